"""Block files: files on the local disk that contain cached blocks."""

import gc
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.cache import block_files
from s3fs_meta.cache.block_files import BlockFiles, OpenBlocks
from s3fs_meta.errors import LostBlockError
from s3fs_meta.limits import SYNCFS_FILES_MIN
from s3fs_meta.model import BlockId

ONE = BlockId(1)
TWO = BlockId(2)
ONE, TWO, THREE = BlockId(1), BlockId(2), BlockId(3)


@pytest.fixture
def files(tmp_path: Path) -> BlockFiles:
    """Return an empty directory of block files."""
    return BlockFiles(tmp_path / "blocks", tmp_path / "tmp")


def test_gap_before_the_first_written_byte_of_a_block_reads_as_zeros(files: BlockFiles) -> None:
    """A block whose first write is in its middle begins with zeros."""
    files.create(ONE, 5, b"abc")

    assert files.read(ONE, 0, 8) == b"\0\0\0\0\0abc"


def test_write_in_place_replaces_and_appends_bytes_of_a_block_file(files: BlockFiles) -> None:
    files.create(ONE, 0, b"abcdef")

    files.write_within(ONE, 4, b"XYZ", 4)

    assert files.read(ONE, 0, 7) == b"abcdXYZ"
    assert files.size(ONE) == 7


def test_read_past_the_end_of_a_block_file_is_an_error(files: BlockFiles) -> None:
    """The error for a torn block file names the byte at which the file ends."""
    files.create(ONE, 0, b"abc")

    with pytest.raises(LostBlockError, match="ends at byte 3"):
        files.read(ONE, 0, 4)


def test_block_without_a_file_is_reported_as_lost(files: BlockFiles) -> None:
    with pytest.raises(LostBlockError):
        files.read(ONE, 0, 1)
    with pytest.raises(LostBlockError):
        files.write_within(ONE, 0, b"x", 0)


def test_leftover_block_file_of_a_rolled_back_group_is_overwritten(files: BlockFiles) -> None:
    """After a crash a block number is used again, and an old file may already have its name."""
    files.create(ONE, 0, b"leftover of before")

    files.create(ONE, 0, b"new")

    assert files.size(ONE) == 3


def test_copy_of_a_block_file_has_only_the_requested_bytes(files: BlockFiles) -> None:
    files.create(ONE, 0, b"abcdef")

    files.copy(ONE, TWO, 4)

    assert files.read(TWO, 0, 4) == b"abcd"
    assert files.size(TWO) == 4
    assert files.size(ONE) == 6


def test_fetched_block_leaves_nothing_in_the_tmp_directory(
    files: BlockFiles, tmp_path: Path
) -> None:
    """A fetched block is written to the tmp directory and then renamed to its path."""
    files.adopt(ONE, b"fetched")

    assert files.read(ONE, 0, 7) == b"fetched"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_removal_of_all_block_files_leaves_no_directory(files: BlockFiles, tmp_path: Path) -> None:
    for number in range(50):
        files.create(BlockId(number), 0, b"x")
    for number in range(50):
        files.remove(BlockId(number))

    assert list((tmp_path / "blocks").iterdir()) == []


@pytest.mark.parametrize("count", [3, SYNCFS_FILES_MIN])
def test_block_files_are_synced_even_if_one_is_missing(files: BlockFiles, count: int) -> None:
    """A few block files are synced singly, many with syncfs; a removed file causes no error."""
    blocks = [BlockId(number) for number in range(count)]
    for block in blocks:
        files.create(block, 0, b"x")
    files.remove(blocks[0])

    files.sync(blocks)

    assert files.size(blocks[1]) == 1


def test_files_of_unfinished_fetches_are_removed_from_the_tmp_directory(
    files: BlockFiles, tmp_path: Path
) -> None:
    (tmp_path / "tmp" / "fetch-1").write_bytes(b"half")

    files.clear_tmp()

    assert list((tmp_path / "tmp").iterdir()) == []


def test_numbers_of_all_block_files_are_listed(files: BlockFiles) -> None:
    for number in (1, 255, 1 << 40):
        files.create(BlockId(number), 0, b"x")

    assert sorted(files.numbers()) == [1, 255, 1 << 40]


def test_two_threads_can_store_the_same_fetched_block(
    files: BlockFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader and compaction may fetch the same block at the same time, in two threads."""
    put_from = files._directory.put_from  # noqa: SLF001 - two threads meet inside of one call
    first = [True]

    def meet(source: Path, name: str) -> None:
        if first:
            first.clear()
            files.adopt(BlockId(1), b"content")
        put_from(source, name)

    monkeypatch.setattr(files._directory, "put_from", meet)  # noqa: SLF001 - two threads meet inside of one call

    files.adopt(BlockId(1), b"content")

    assert files.read(BlockId(1), 0, 7) == b"content"


def test_write_to_a_block_file_that_another_process_deleted_is_refused(files: BlockFiles) -> None:
    """Bytes written to a block file that another process deleted would be lost."""
    files.create(ONE, 0, b"abc")
    files.root.joinpath("xxx", "1").unlink()

    with pytest.raises(LostBlockError, match="removed"):
        files.write_within(ONE, 0, b"x", 3)


def test_rename_of_a_block_file_that_another_process_deleted_is_refused(files: BlockFiles) -> None:
    files.create(ONE, 0, b"abc")
    files.root.joinpath("xxx", "1").unlink()

    with pytest.raises(LostBlockError):
        files.take_over(ONE, TWO, 3)


def open_below(root: Path) -> list[str]:
    """Return the paths of this process's open files below a directory."""
    held = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    names = [os.readlink(fd) for fd in held if fd.is_symlink()]
    return [name for name in names if name.startswith(f"{root}/")]


def test_removed_block_file_is_not_kept_open(files: BlockFiles) -> None:
    """A removed block file is closed, so that its space on the disk is freed."""
    for remove in (files.remove, lambda block: files.remove_all([block])):
        files.create(ONE, 0, b"abc")
        assert open_below(files.root)
        remove(ONE)
        files.close_removed()

        assert open_below(files.root) == []


def test_fetched_block_replaces_an_open_block_file(files: BlockFiles) -> None:
    """A read after a fetch uses the new block file, even if the old one was open."""
    files.create(ONE, 0, b"torn")
    assert files.read_on_loop(ONE, 0, 4) == b"torn"

    files.adopt(ONE, b"good")

    assert files.read_on_loop(ONE, 0, 4) == b"good"


def test_removed_block_file_is_closed_by_a_thread(files: BlockFiles) -> None:
    """Closing a removed file frees its space, which would stall the event loop."""
    files.create(ONE, 0, b"abc")

    files.let_go([ONE, TWO])

    assert open_below(files.root) == []
    assert files.read_on_loop(ONE, 0, 3) == b"abc"


@pytest.mark.mount
def test_block_on_a_read_only_disk_can_be_read(small_disk: Path) -> None:
    """On a disk that turned read-only, blocks can be read but not written."""
    files = BlockFiles(small_disk / "blocks", small_disk / "tmp")
    files.create(ONE, 0, b"abc")
    files.let_go([ONE])
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    assert files.read_on_loop(ONE, 0, 3) == b"abc"
    with pytest.raises(LostBlockError, match="Read-only"):
        files.write_within(ONE, 0, b"x", 3)


def opened(tmp_path: Path) -> int:
    """Return a descriptor of a file in *tmp_path*."""
    return os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)


def is_open(fd: int) -> bool:
    """Return whether a descriptor is open."""
    return os.path.exists(f"/proc/self/fd/{fd}")


def test_closed_block_files_are_synced_with_the_complete_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A closed file is synced with the disk, because the kernel may forget its write errors."""
    monkeypatch.setattr(block_files, "OPEN_BLOCKS_MAX", 2)
    files = BlockFiles(tmp_path / "few", tmp_path / "tmp")
    synced = _count_syncfs(files, monkeypatch)
    files.create(ONE, 0, b"one")
    files.create(TWO, 0, b"two")
    files.sync([ONE, TWO])
    assert synced == []

    files.write_within(ONE, 0, b"ONE", 3)
    files.create(THREE, 0, b"three")  # closes ONE
    files.sync([ONE, THREE])
    assert len(synced) == 1

    files.read_on_loop(ONE, 0, 3)  # closes TWO, which has no unsynced bytes
    files.write_within(ONE, 0, b"One", 3)
    files.sync([ONE])
    assert len(synced) == 1


def test_block_file_closed_during_a_sync_is_synced_with_the_complete_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A sync covers a block file that is closed before the thread of the sync opens it."""
    monkeypatch.setattr(block_files, "OPEN_BLOCKS_MAX", 1)
    files = BlockFiles(tmp_path / "one", tmp_path / "tmp")
    synced = _count_syncfs(files, monkeypatch)
    files.create(ONE, 0, b"one")
    fdatasync = os.fdatasync

    def close_first(fd: int) -> None:
        files.create(TWO, 0, b"two")
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", close_first)
    files.sync([ONE])

    assert len(synced) == 1


def _count_syncfs(files: BlockFiles, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each later call of syncfs(2) is appended."""
    synced: list[str] = []
    syncfs = files._syncfs  # noqa: SLF001 - the call is what matters

    def note() -> None:
        synced.append("syncfs")
        syncfs()

    monkeypatch.setattr(files, "_syncfs", note)
    return synced


def test_oldest_open_block_file_is_closed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most OPEN_BLOCKS_MAX block files are open; the file opened first is closed first."""
    monkeypatch.setattr(block_files, "OPEN_BLOCKS_MAX", 2)
    held = OpenBlocks()
    fds = [opened(tmp_path) for _ in range(3)]
    for block, fd in zip((ONE, TWO, THREE), fds, strict=True):
        held.put(block, fd)

    assert [held.get(block) for block in (ONE, TWO, THREE)] == [None, *fds[1:]]
    assert [is_open(fd) for fd in fds] == [False, True, True]


def test_forgotten_block_file_stays_open_until_the_event_loop_closes_it(tmp_path: Path) -> None:
    """A thread may still read a block file that was removed from the table of open files."""
    held = OpenBlocks()
    fd = opened(tmp_path)
    held.put(ONE, fd)

    held.forget(ONE)
    assert held.get(ONE) is None
    assert is_open(fd)

    held.close_forgotten()
    assert not is_open(fd)


def test_new_block_file_replaces_the_old_open_descriptor(tmp_path: Path) -> None:
    """A block number of a rolled-back group is used again, but not its old open file."""
    held = OpenBlocks()
    old, new = opened(tmp_path), opened(tmp_path)
    held.put(ONE, old)

    held.put(ONE, new)

    assert held.get(ONE) == new
    assert not is_open(old)


def test_deleting_the_table_of_open_block_files_closes_all_files(tmp_path: Path) -> None:
    held = OpenBlocks()
    fds = [opened(tmp_path), opened(tmp_path)]
    held.put(ONE, fds[0])
    held.put(TWO, fds[1])
    held.forget(ONE)

    del held
    gc.collect()

    assert not any(is_open(fd) for fd in fds)


@pytest.fixture
def _hasty_threads() -> Iterator[None]:
    """Make the interpreter switch threads as often as possible."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("_hasty_threads")
@pytest.mark.parametrize("rounds", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_threads_may_forget_block_files_while_the_event_loop_closes_others(
    monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """Threads remove entries from the table of open files while the loop closes old files."""
    monkeypatch.setattr(block_files, "OPEN_BLOCKS_MAX", 64)
    held = OpenBlocks()
    newest, ended = 0, threading.Event()

    def forget() -> None:
        while not ended.is_set():
            held.forget(BlockId(newest - 32))

    threads = [threading.Thread(target=forget) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for newest in range(rounds):
            held.put(BlockId(newest), os.dup(0))
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_process_with_a_low_file_limit_keeps_fewer_block_files_open(tmp_path: Path) -> None:
    """Block files use at most a quarter of RLIMIT_NOFILE."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, limits[1]))
    try:
        held = OpenBlocks()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    fds = [opened(tmp_path) for _ in range(150)]
    for number, fd in enumerate(fds):
        held.put(BlockId(number), fd)

    assert sum(map(is_open, fds)) == 100


def test_hard_linked_block_files_outlive_their_first_names(
    files: BlockFiles, tmp_path: Path
) -> None:
    """Linking block files skips missing files and refuses existing names."""
    aside = tmp_path / "kept" / "blocks"
    for block in (ONE, TWO):
        files.create(block, 0, b"content")

    files.link_to([ONE, THREE, TWO], aside)
    files.remove(ONE)

    assert sorted(path.name for path in aside.rglob("*") if path.is_file()) == ["1", "2"]
    assert BlockFiles(aside, tmp_path / "tmp").read(ONE, 0, 7) == b"content"
    with pytest.raises(FileExistsError):
        files.link_to([TWO], aside)
