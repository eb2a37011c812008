"""Symbolic links, directories and special files at the paths of objects in a local store."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from s3fs_meta.errors import ObjectMissingError, StoreAccessError
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ObjectInfo
from s3fs_meta.objects.local import LOCK, UNFINISHED, LocalStore
from s3fs_meta.objects.local_directory import open_lock

KEY = ObjectKey("pack")


def bind_socket(path: Path) -> None:
    """Create a socket file."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: path.symlink_to(path.name), "ELOOP .*; replace the link by its target"),
        (bind_socket, "ENXIO .*; a directory or a special file is in the way; move it away"),
    ],
    ids=["loop of symbolic links", "socket"],
)
async def test_error_about_a_link_or_a_socket_at_the_path_of_an_object_says_what_to_do(
    tmp_path: Path, make: Callable[[Path], None], text: str
) -> None:
    make(tmp_path / KEY)
    store = LocalStore(tmp_path)

    with pytest.raises(StoreAccessError, match=text):
        await store.get(KEY, 100)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "FIFO"])
async def test_error_about_a_missing_object_names_a_directory_or_fifo_at_its_path(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / KEY)
    store = LocalStore(tmp_path)

    with pytest.raises(ObjectMissingError, match="missing: a directory or a special file"):
        await store.get(KEY, 100)


async def test_loop_of_symbolic_links_as_a_directory_of_objects_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pack").symlink_to("pack")
    store = LocalStore(tmp_path)

    with pytest.raises(StoreAccessError, match="replace the link by its target"):
        async for _info in store.list("pack/"):
            pass


async def test_error_about_a_directory_in_the_way_of_a_write_says_what_to_do(
    tmp_path: Path,
) -> None:
    (tmp_path / KEY).mkdir()
    (tmp_path / KEY / "file").write_bytes(b"1")
    store = LocalStore(tmp_path)

    with pytest.raises(StoreAccessError, match=r"EISDIR .*; move it away"):
        await store.put(KEY, b"content")
    with pytest.raises(StoreAccessError, match=r"EISDIR .*; move it away"):
        await store.delete([KEY])
    await store.close()


def test_fifo_at_the_path_of_the_lock_file_does_not_block_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without write permission opens the lock file only for reading."""
    lock, opened = tmp_path / "lock", os.open
    os.mkfifo(lock)

    def without_permission(path: Path, flags: int, mode: int = 0) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "refused", str(path))
        assert flags & os.O_NONBLOCK, "open(2) would wait for a writer"
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", without_permission)
    with pytest.raises(OSError, match="No such device"):
        open_lock(lock, 0)


@pytest.mark.parametrize(
    "make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)], ids=["dir", "FIFO", "link"]
)
async def test_error_about_an_obstacle_at_the_lock_file_names_its_path(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    lock = tmp_path / UNFINISHED / LOCK
    lock.parent.mkdir()
    make(lock)
    store = LocalStore(tmp_path)

    with pytest.raises(StoreAccessError, match=f"at '{lock}'; "):
        await store.put(KEY, b"content")


async def test_impossible_time_of_a_local_object_is_unknown(tmp_path: Path) -> None:
    """A tmpfs accepts any time for a file, but a column of SQLite does not."""
    (tmp_path / KEY).write_bytes(b"1")
    os.utime(tmp_path / KEY, ns=(0, -1))
    store = LocalStore(tmp_path)

    assert [info async for info in store.list("")] == [ObjectInfo(KEY, 1, None)]
