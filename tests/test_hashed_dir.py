"""Tests of hashed directory trees, which spread files over subdirectories.

Empty subdirectories are removed.
"""

import errno
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta import hashed_dir
from s3fs_meta.hashed_dir import (
    NumberedDir,
    PrunedTree,
    replace_durably,
    sync_path,
    write_again,
    write_durably,
)
from tests.fast_folders import fast_folder
from tests.faults import raising

CREATE = os.O_CREAT | os.O_WRONLY


@pytest.fixture(params=[PrunedTree, NumberedDir])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> PrunedTree:
    """Return an empty tree. Each test runs with every kind of tree."""
    root = tmp_path / "root"
    root.mkdir()
    kind: type[PrunedTree] = request.param
    return kind(root)


@pytest.fixture
def numbered(tmp_path: Path) -> NumberedDir:
    """Return an empty tree for files whose names are numbers."""
    (tmp_path / "root").mkdir()
    return NumberedDir(tmp_path / "root")


def put(files: PrunedTree, name: str, content: bytes = b"content") -> None:
    """Create a file in a tree."""
    fd = files.open(name, CREATE | os.O_EXCL)
    os.write(fd, content)
    os.close(fd)


def empty_directories(root: Path) -> list[str]:
    """Return every empty directory below *root*."""
    return [path for path, folders, names in os.walk(root) if not folders and not names]


def test_created_file_is_found_by_its_name(files: PrunedTree) -> None:
    """A file is opened by its name, and the method ``path`` returns its location."""
    put(files, "17")

    fd = files.open("17", os.O_RDONLY)
    assert os.read(fd, 100) == b"content"
    os.close(fd)
    assert files.path("17").read_bytes() == b"content"
    assert list(files.names()) == ["17"]


def test_file_can_be_moved_to_another_tree(files: PrunedTree, tmp_path: Path) -> None:
    """Moving a file removes its empty directory, but replaces no file in the target tree."""
    (tmp_path / "other").mkdir()
    other = type(files)(tmp_path / "other")
    put(files, "17")
    files.move_to(other, "17")
    assert (list(files.names()), list(other.names())) == ([], ["17"])
    assert empty_directories(files.root) == [str(files.root)]

    put(files, "17", b"another")
    with pytest.raises(FileExistsError):
        files.move_to(other, "17")
    assert files.path("17").read_bytes() == b"another"


def test_new_file_is_readable_only_by_its_owner(files: PrunedTree) -> None:
    """A file has mode 0600, and directories have mode 0700."""
    put(files, "17")

    assert files.path("17").stat().st_mode & 0o777 == 0o600
    folders = [path for path in files.root.rglob("*") if path.is_dir()]
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)


def test_opening_a_missing_file_creates_no_directory(files: PrunedTree) -> None:
    """A read of a missing file raises FileNotFoundError and creates no directory."""
    with pytest.raises(FileNotFoundError):
        files.open("17", os.O_RDONLY)

    assert os.listdir(files.root) == []


def test_removal_of_the_last_file_removes_its_empty_parent_directories(files: PrunedTree) -> None:
    """After the last file is removed, only the empty root directory of the tree remains."""
    put(files, "17")

    assert files.remove("17")

    assert os.listdir(files.root) == []


def test_removal_of_a_missing_file_returns_false(files: PrunedTree) -> None:
    assert not files.remove("17")


def test_directory_that_contains_another_file_is_not_removed(numbered: NumberedDir) -> None:
    other = "18"
    put(numbered, "17")
    put(numbered, other)

    numbered.remove("17")

    assert list(numbered.names()) == [other]


def test_file_moved_into_a_tree_replaces_the_existing_file(
    files: PrunedTree, tmp_path: Path
) -> None:
    """After a move, the source file no longer exists at its old path."""
    put(files, "17", b"old")
    source = tmp_path / "source"
    source.write_bytes(b"new")

    files.put_from(source, "17")

    assert files.path("17").read_bytes() == b"new"
    assert not source.exists()


def test_moving_a_missing_file_into_a_tree_leaves_no_directory(
    files: PrunedTree, tmp_path: Path
) -> None:
    """If the source file is missing, the directories created for the file are removed."""
    with pytest.raises(FileNotFoundError):
        files.put_from(tmp_path / "nothing", "17")

    assert os.listdir(files.root) == []


@pytest.mark.parametrize(("new", "left"), [("18", ["xxx"]), ("1018", ["1xxx"])])
def test_renamed_file_leaves_no_empty_directory(
    numbered: NumberedDir, new: str, left: list[str]
) -> None:
    put(numbered, "17", b"content")
    put(numbered, new, b"replaced")

    numbered.rename("17", new)

    assert numbered.path(new).read_bytes() == b"content"
    assert list(numbered.names()) == [new]
    assert os.listdir(numbered.root) == left


def test_rename_of_a_missing_file_creates_no_directory(files: PrunedTree) -> None:
    with pytest.raises(FileNotFoundError):
        files.rename("17", "1018")

    assert os.listdir(files.root) == []


def test_new_hard_link_does_not_replace_an_existing_file(files: PrunedTree, tmp_path: Path) -> None:
    """Creating a hard link at an existing name fails, and the existing file is unchanged."""
    source = tmp_path / "source"
    source.write_bytes(b"first")
    files.link_new(source, "17")

    with pytest.raises(FileExistsError):
        files.link_new(tmp_path / "source", "17")

    assert files.path("17").read_bytes() == b"first"


def test_failed_file_creation_leaves_no_directory(numbered: NumberedDir) -> None:
    """If the disk refuses a file name, the directories created for the file are removed."""
    with pytest.raises(OSError, match="name too long"):
        numbered.open("n" * 300, CREATE)

    assert os.listdir(numbered.root) == []


def test_missing_root_directory_is_not_recreated(files: PrunedTree, tmp_path: Path) -> None:
    """If the root directory is missing, as after its disk was unmounted, no file is created."""
    source = tmp_path / "source"
    source.write_bytes(b"content")
    files.root.rmdir()

    with pytest.raises(FileNotFoundError):
        files.open("17", CREATE)
    with pytest.raises(FileNotFoundError):
        files.put_from(source, "17")
    with pytest.raises(FileNotFoundError):
        files.link_new(source, "17")

    assert not files.root.exists()


def test_object_is_stored_at_the_path_given_by_its_key(tmp_path: Path) -> None:
    tree = PrunedTree(tmp_path)
    put(tree, "pack/3f/7-9a")
    put(tree, "pack/40/7-9b")

    tree.remove("pack/3f/7-9a")

    assert (tmp_path / "pack" / "40" / "7-9b").is_file()
    assert os.listdir(tmp_path / "pack") == ["40"]


def test_listing_of_a_tree_does_not_follow_symlinks_to_directories(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(outside)

    assert list(PrunedTree(root).names()) == []


def test_pruning_removes_only_empty_directories(numbered: NumberedDir) -> None:
    """Pruning a tree keeps all files, and all directories that contain files."""
    put(numbered, "17")
    (numbered.root / "zz" / "aa" / "bb").mkdir(parents=True)
    (numbered.root / "zy").mkdir()

    assert numbered.prune_all() == 4

    assert list(numbered.names()) == ["17"]
    assert empty_directories(numbered.root) == []


def test_pruning_removes_any_number_of_levels() -> None:
    """The number of levels may exceed the depth of Python's stack.

    The tree is not below ``tmp_path``: if the test were killed, later runs of pytest could not
    remove so many levels.
    """
    with fast_folder() as folder:
        numbered = NumberedDir(folder)
        place = os.fspath(numbered.root)
        try:
            for _ in range(1500):
                place += "/d"
                os.mkdir(place)

            assert numbered.prune_all() == 1500
            assert os.listdir(numbered.root) == []
        finally:
            subprocess.run(["rm", "-rf", folder], check=True)


def test_removal_of_many_files_tries_to_remove_each_directory_once(
    numbered: NumberedDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one of several files to remove is missing, the other files are still removed."""
    for number in (0x17, 0x18, 0x1001, 0x1002, 0x2001):
        put(numbered, f"{number:x}")
    tried: list[str] = []
    rmdir = os.rmdir

    def note(path: str) -> None:
        tried.append(path.rpartition("/")[2])
        rmdir(path)

    monkeypatch.setattr(os, "rmdir", note)
    numbered.remove_all(f"{number:x}" for number in (0x17, 0x18, 0x19, 0x1001, 0x3001, 0x2001))

    assert sorted(numbered.names()) == ["1002"]
    assert sorted(tried) == ["1xxx", "2xxx", "xxx"]
    assert empty_directories(numbered.root) == []


def test_failed_removal_of_many_files_leaves_no_empty_directory(numbered: NumberedDir) -> None:
    for name in ("17", "2001"):
        put(numbered, name)
    numbered.path("1001").mkdir(parents=True)

    [(name, failure)] = numbered.remove_all(["17", "1001", "2001"])

    assert (name, type(failure)) == ("1001", IsADirectoryError)
    assert not numbered.path("17").parent.exists()
    assert not numbered.path("2001").parent.exists()


def test_root_directory_is_synced_only_after_a_directory_is_created_in_it(
    numbered: NumberedDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the sync of the root directory fails, the next sync of parents repeats it."""
    synced: list[str] = []

    def note(path: str) -> None:
        synced.append(str(path).rpartition("/")[2])
        if failing and path == str(numbered.root):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    failing = False
    monkeypatch.setattr(hashed_dir, "sync_path", note)

    def parents_of(name: str) -> list[str]:
        synced.clear()
        numbered.sync_parents([name])
        return list(synced)

    put(numbered, "17")
    root = numbered.root.name
    assert parents_of("17") == ["xxx", root]
    put(numbered, "18")
    assert parents_of("18") == ["xxx"]
    put(numbered, "1001")
    failing = True
    with pytest.raises(OSError, match="Input/output"):
        parents_of("1001")
    failing = False
    assert parents_of("1001") == ["1xxx", root]
    assert parents_of("1001") == ["1xxx"]
    numbered.remove("1001")
    put(numbered, "1002")
    assert parents_of("1002") == ["1xxx", root]


def test_sync_of_parent_directories_ignores_a_removed_directory(numbered: NumberedDir) -> None:
    put(numbered, "17")
    numbered.remove("17")

    numbered.sync_parents(["17"])
    sync_path(numbered.root)


@pytest.mark.parametrize("rounds", [100, pytest.param(5_000, marks=pytest.mark.slow)])
def test_concurrent_changes_in_one_directory_lose_no_file(
    numbered: NumberedDir, rounds: int
) -> None:
    """Threads that create and remove files in one directory lose no file and leave no directory."""
    names = ["17", "18"]
    failures: list[Exception] = []

    def create_and_remove(name: str) -> None:
        try:
            for _ in range(rounds):
                put(numbered, name)
                assert numbered.path(name).is_file()
                assert numbered.remove(name)
        except Exception as exc:  # noqa: BLE001 - raised again outside the thread
            failures.append(exc)

    threads = [threading.Thread(target=create_and_remove, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert os.listdir(numbered.root) == []


def test_files_in_wrong_directories_are_moved_to_the_correct_directories(
    numbered: NumberedDir,
) -> None:
    """A block file in a wrong directory is moved to the correct one. Other files stay in place."""
    put(numbered, "15ab2", b"in its place")
    for place in ["3f/15ab3", "3f/7", "15/15ab4", "notes/read me", "notes/0x8", "zz/15ab2"]:
        path = numbered.root / place
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(place.encode())

    assert numbered.gather() == 3
    assert numbered.gather() == 0

    assert numbered.path("15ab3").read_bytes() == b"3f/15ab3"
    assert numbered.path("15ab2").read_bytes() == b"in its place"
    found = sorted(str(path.relative_to(numbered.root)) for path in numbered.root.glob("*/*"))
    assert found == [
        "15xxx/15ab2", "15xxx/15ab3", "15xxx/15ab4",
        "notes/0x8", "notes/read me", "xxx/7", "zz/15ab2",
    ]  # fmt: skip


@pytest.fixture
def memory_disk() -> Iterator[Path]:
    """Return a directory in memory if possible, otherwise on a disk."""
    with fast_folder() as folder:
        yield folder


@pytest.mark.slow
def test_removal_of_100000_files_leaves_no_directory(memory_disk: Path) -> None:
    """The removal of 100,000 files also removes all directories of the tree."""
    numbered = NumberedDir(memory_disk)
    for number in range(100_000):
        put(numbered, f"{number:x}", b"")
    assert len(os.listdir(memory_disk)) == 25
    assert {len(os.listdir(folder)) for folder in memory_disk.iterdir()} == {4096, 100_000 % 4096}

    for number in range(100_000):
        numbered.remove(f"{number:x}")

    assert os.listdir(memory_disk) == []


def test_durable_write_creates_a_private_file_and_follows_no_symlink(tmp_path: Path) -> None:
    """A durable write replaces all bytes of an existing file, and refuses a symlink."""
    path = tmp_path / "file"
    for data in (b"long" * 1000, b"short", b""):
        write_durably(path, data)
        assert path.read_bytes() == data
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic"):
        write_durably(tmp_path / "link", b"elsewhere")
    assert path.read_bytes() == b""


def test_failed_replacement_keeps_the_previous_file(tmp_path: Path) -> None:
    """A failed replacement removes its temporary file and keeps the previous file."""
    path = tmp_path / "file"
    replace_durably(path, b"former")
    replace_durably(path, b"new")
    assert path.read_bytes() == b"new"

    target = tmp_path / "target"
    (tmp_path / "file.new").symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        replace_durably(path, b"later")
    assert (path.read_bytes(), target.exists()) == (b"new", False)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("size_bytes", [0, 1, 1000, 2500])
def test_rewrite_of_a_file_writes_every_byte_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    """Every byte is written, because bytes on the disk may differ from those in the page cache."""
    content = os.urandom(size_bytes)
    path = tmp_path / "file"
    path.write_bytes(content)
    written = bytearray(size_bytes)
    pwrite = os.pwrite

    def note(fd: int, data: bytes, offset: int) -> int:
        data = data[:300]  # A system call may write fewer bytes than requested.
        written[offset : offset + len(data)] = data
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", note)
    write_again(path, tmp_path / "copy", piece_bytes=1000)

    assert bytes(written) == path.read_bytes() == content
    assert os.listdir(tmp_path) == ["file"]


def test_failed_rewrite_of_a_file_leaves_no_temporary_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a rewrite fails on a full disk, the file is unchanged and no copy remains."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    monkeypatch.setattr(os, "fsync", raising(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_again(path, tmp_path / "copy")

    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes() == b"content"
