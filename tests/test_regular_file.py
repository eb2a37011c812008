"""Tests of opening files that may have been replaced by a FIFO, device or directory.

A call that waits for a FIFO ends with the time limit of the test.
"""

import os
import re
import resource
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from s3fs_meta import sync_failures
from s3fs_meta.cache.crash_safety import intent_log
from s3fs_meta.cache.crash_safety.intent_log import IntentLog
from s3fs_meta.errors import DatabaseError, SettingsError
from s3fs_meta.fs.trees import pins_file
from s3fs_meta.hashed_dir import PrunedTree, sync_path, write_again, write_durably, write_new
from s3fs_meta.meta.db import wal
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.state_paths import NotRegularFileError, open_regular, read_regular
from s3fs_meta.sync import known_points
from s3fs_meta.sync.host_state import request_log, state_dir
from s3fs_meta.sync.superblock.host_copy import Remembered

pytestmark = pytest.mark.timeout(30)

FIFO = "a FIFO"


def replace(path: Path, kind: str) -> None:
    """Put an entry of another type instead of a file."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    match kind:
        case "a FIFO":
            os.mkfifo(path)
        case "a directory":
            path.mkdir()
        case "a symbolic link":
            path.symlink_to("/dev/zero")
        case "a socket":
            # bind(2) accepts only short paths
            here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.chdir(path.parent)
                with socket.socket(socket.AF_UNIX) as made:
                    made.bind(path.name)
            finally:
                os.fchdir(here)
                os.close(here)
        case _:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # the device of /dev/zero


def kinds() -> list[str]:
    """Return all types of entries that the user who runs the tests can create."""
    made = [FIFO, "a directory", "a symbolic link", "a socket"]
    return [*made, "a device"] if os.geteuid() == 0 else made


# Functions that open a file of the state directory, each with the name of the file.
OPENS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "requests": ("requests.json", request_log.read),
    "points": ("points.json", known_points.read),
    "superblock": ("superblock", lambda state: Remembered(state).read()),
    "pins": ("pins", pins_file.read),
    "failed sync": ("failed-sync", sync_failures.is_noted),
    "cleared failed sync": ("failed-sync", sync_failures.forget),
    "holder": ("holder", state_dir.read_holder),
    "lock": ("lock", state_dir.is_locked),
    "watched lock": ("lock", state_dir.LockWatch),
    "read intent log": (
        "blocks/intent-log",
        lambda state: intent_log.read_entries(state / "blocks", 1, b""),
    ),
    "written intent log": (
        "blocks/intent-log",
        lambda state: IntentLog(state / "blocks", 1).prepare(),
    ),
    "new file": (
        "requests.json.new",
        lambda state: write_durably(state / "requests.json.new", b""),
    ),
    "rewritten file": ("block", lambda state: write_again(state / "block", state / "copy")),
    "times of the database": ("meta.db", lambda state: wal.last_change_ns(state / "meta.db")),
}


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("name", OPENS)
def test_entry_of_another_type_than_a_file_is_refused_with_its_path(
    tmp_path: Path, name: str, kind: str
) -> None:
    file, opens = OPENS[name]
    replace(tmp_path / file, kind)

    with pytest.raises((NotRegularFileError, SettingsError)) as caught:
        opens(tmp_path)

    text = str(caught.value)
    assert f"the entry is {kind}, not a regular file; remove it" in text
    assert str(tmp_path / file) in text
    assert (tmp_path / file).is_symlink() or not (tmp_path / file).is_file()


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("read_only", [True, False])
def test_sqlite_opens_only_regular_files_as_database_files(
    tmp_path: Path, suffix: str, kind: str, *, read_only: bool
) -> None:
    path = tmp_path / "meta.db"
    facts = {"uuid": b"u", "block_bytes": b"1048576", "cookie_key": bytes(16)}
    Database.create(path, Pragmas(), facts, uid=0, gid=0).close()
    replace(tmp_path / f"meta.db{suffix}", kind)

    with pytest.raises(DatabaseError) as caught:
        Database.open(path, Pragmas(), read_only=read_only)

    assert f"{path}{suffix}: the entry is {kind}" in str(caught.value)


@pytest.mark.parametrize("write", [write_durably, write_new])
def test_error_of_a_write_contains_the_path(
    tmp_path: Path, write: Callable[[Path, bytes], None]
) -> None:
    """A limit of the file size fails the write in the same call as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(OSError, match=re.escape(f"File too large: '{tmp_path}/file'")):
            write(tmp_path / "file", b"content")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_regular_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")

    assert read_regular(path, 4) == b"cont"
    assert read_regular(path, 100) == b"content"


def test_new_file_is_created_with_the_given_flags(tmp_path: Path) -> None:
    fd = open_regular(tmp_path / "new", os.O_WRONLY | os.O_CREAT)
    os.close(fd)

    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")


def test_fifo_in_a_tree_of_files_is_opened_without_waiting(tmp_path: Path) -> None:
    """A read of a block file that was replaced then fails, because a FIFO has no positions."""
    os.mkfifo(tmp_path / "1f")

    fd = PrunedTree(tmp_path).open("1f", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Illegal seek"):
            os.pread(fd, 1, 0)
    finally:
        os.close(fd)


def test_fifo_is_synced_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(OSError, match="Invalid argument"):
        sync_path(tmp_path / "fifo")
