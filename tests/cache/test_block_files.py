"""Block files on a local disk."""

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


def test_gap_before_the_first_byte_reads_as_zeros(files: BlockFiles) -> None:
    """A block whose first write is in its middle begins with zeros."""
    files.create(ONE, 5, b"abc")

    assert files.read(ONE, 0, 8) == b"\0\0\0\0\0abc"


def test_write_in_place_grows_the_file(files: BlockFiles) -> None:
    """Bytes past the end are added, earlier bytes replaced."""
    files.create(ONE, 0, b"abcdef")

    files.write_within(ONE, 4, b"XYZ", 4)

    assert files.read(ONE, 0, 7) == b"abcdXYZ"
    assert files.size(ONE) == 7


def test_short_file_is_an_error(files: BlockFiles) -> None:
    """The error names the byte where the torn file ends; no zeros are returned."""
    files.create(ONE, 0, b"abc")

    with pytest.raises(LostBlockError, match="ends at byte 3"):
        files.read(ONE, 0, 4)


def test_missing_file_is_an_error(files: BlockFiles) -> None:
    """A block without a file is reported as lost."""
    with pytest.raises(LostBlockError):
        files.read(ONE, 0, 1)
    with pytest.raises(LostBlockError):
        files.write_within(ONE, 0, b"x", 0)


def test_leftover_file_of_an_undone_group_is_overwritten(files: BlockFiles) -> None:
    """A block number that is used again after a crash starts with an empty file."""
    files.create(ONE, 0, b"leftover of before")

    files.create(ONE, 0, b"new")

    assert files.size(ONE) == 3


def test_copy_has_only_the_requested_bytes(files: BlockFiles) -> None:
    """The source is unchanged."""
    files.create(ONE, 0, b"abcdef")

    files.copy(ONE, TWO, 4)

    assert files.read(TWO, 0, 4) == b"abcd"
    assert files.size(TWO) == 4
    assert files.size(ONE) == 6


def test_adopted_block_leaves_nothing_in_tmp(files: BlockFiles, tmp_path: Path) -> None:
    """A fetched block is renamed into place."""
    files.adopt(ONE, b"fetched")

    assert files.read(ONE, 0, 7) == b"fetched"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_removed_blocks_leave_no_directory(files: BlockFiles, tmp_path: Path) -> None:
    """The root is empty again after the last block is removed."""
    for number in range(50):
        files.create(BlockId(number), 0, b"x")
    for number in range(50):
        files.remove(BlockId(number))

    assert list((tmp_path / "blocks").iterdir()) == []


@pytest.mark.parametrize("count", [3, SYNCFS_FILES_MIN])
def test_sync_accepts_few_many_and_missing_files(files: BlockFiles, count: int) -> None:
    """Both ways of syncing work, and a doomed file in the list is no error."""
    blocks = [BlockId(number) for number in range(count)]
    for block in blocks:
        files.create(block, 0, b"x")
    files.remove(blocks[0])

    files.sync(blocks)

    assert files.size(blocks[1]) == 1


def test_unfinished_files_of_an_earlier_run_are_cleared(files: BlockFiles, tmp_path: Path) -> None:
    """Only the tmp directory is searched."""
    (tmp_path / "tmp" / "fetch-1").write_bytes(b"half")

    files.clear_tmp()

    assert list((tmp_path / "tmp").iterdir()) == []


def test_all_block_numbers_are_listed(files: BlockFiles) -> None:
    """The walk finds every created block."""
    for number in (1, 255, 1 << 40):
        files.create(BlockId(number), 0, b"x")

    assert sorted(files.numbers()) == [1, 255, 1 << 40]


def test_concurrent_adoptions_of_one_block_work(
    files: BlockFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader and compaction may fetch the same block at once, in two threads."""
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


def test_file_deleted_by_another_process_accepts_no_bytes(files: BlockFiles) -> None:
    """Bytes written to a file that another process deleted would be lost."""
    files.create(ONE, 0, b"abc")
    files.root.joinpath("xxx", "1").unlink()

    with pytest.raises(LostBlockError, match="removed"):
        files.write_within(ONE, 0, b"x", 3)


def test_file_deleted_by_another_process_is_not_renamed(files: BlockFiles) -> None:
    """A file that another process deleted has no name to rename."""
    files.create(ONE, 0, b"abc")
    files.root.joinpath("xxx", "1").unlink()

    with pytest.raises(LostBlockError):
        files.take_over(ONE, TWO, 3)


def open_below(root: Path) -> list[str]:
    """Return the open files of this process below a directory."""
    held = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    names = [os.readlink(fd) for fd in held if fd.is_symlink()]
    return [name for name in names if name.startswith(f"{root}/")]


def test_space_of_a_removed_file_is_freed(files: BlockFiles) -> None:
    """A recently used file is not kept open after its removal, in a thread or not."""
    for remove in (files.remove, lambda block: files.remove_all([block])):
        files.create(ONE, 0, b"abc")
        assert open_below(files.root)
        remove(ONE)
        files.close_removed()

        assert open_below(files.root) == []


def test_fetched_block_replaces_an_open_one(files: BlockFiles) -> None:
    """The loop reads the fetched content, not the replaced file."""
    files.create(ONE, 0, b"torn")
    assert files.read_on_loop(ONE, 0, 4) == b"torn"

    files.adopt(ONE, b"good")

    assert files.read_on_loop(ONE, 0, 4) == b"good"


def test_file_is_closed_before_a_thread_removes_it(files: BlockFiles) -> None:
    """unlink(2) frees the space: a close on the loop would take as long."""
    files.create(ONE, 0, b"abc")

    files.let_go([ONE, TWO])

    assert open_below(files.root) == []
    assert files.read_on_loop(ONE, 0, 3) == b"abc"


@pytest.mark.mount
def test_block_on_a_read_only_disk_can_be_read(small_disk: Path) -> None:
    """On a disk that turned read-only blocks can be read but not written."""
    files = BlockFiles(small_disk / "blocks", small_disk / "tmp")
    files.create(ONE, 0, b"abc")
    files.let_go([ONE])
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    assert files.read_on_loop(ONE, 0, 3) == b"abc"
    with pytest.raises(LostBlockError, match="Read-only"):
        files.write_within(ONE, 0, b"x", 3)


def opened(tmp_path: Path) -> int:
    """Return a descriptor of some file."""
    return os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)


def is_open(fd: int) -> bool:
    """Return whether a descriptor is open."""
    return os.path.exists(f"/proc/self/fd/{fd}")


def test_file_opened_first_is_closed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of open files has a bound; the file opened first is closed first."""
    monkeypatch.setattr(block_files, "OPEN_BLOCKS_MAX", 2)
    held = OpenBlocks()
    fds = [opened(tmp_path) for _ in range(3)]
    for block, fd in zip((ONE, TWO, THREE), fds, strict=True):
        held.put(block, fd)

    assert [held.get(block) for block in (ONE, TWO, THREE)] == [None, *fds[1:]]
    assert [is_open(fd) for fd in fds] == [False, True, True]


def test_forgotten_file_stays_open_until_the_loop_closes_it(tmp_path: Path) -> None:
    """A thread that is reading from it reads from the same file to the end."""
    held = OpenBlocks()
    fd = opened(tmp_path)
    held.put(ONE, fd)

    held.forget(ONE)
    assert held.get(ONE) is None
    assert is_open(fd)

    held.close_forgotten()
    assert not is_open(fd)


def test_new_descriptor_of_a_block_replaces_the_old_one(tmp_path: Path) -> None:
    """A number of an undone group is used again: the old file is not written to."""
    held = OpenBlocks()
    old, new = opened(tmp_path), opened(tmp_path)
    held.put(ONE, old)

    held.put(ONE, new)

    assert held.get(ONE) == new
    assert not is_open(old)


def test_all_files_are_closed_at_the_end(tmp_path: Path) -> None:
    """Kept and forgotten files are closed, even without an explicit close."""
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
    """Let the interpreter switch threads as often as possible."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("_hasty_threads")
@pytest.mark.parametrize("rounds", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_threads_may_forget_files_while_the_loop_makes_room(
    monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """A thread that forgets a file does not disturb the loop's iteration over files."""
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


def test_process_with_a_low_limit_keeps_fewer_files_open(tmp_path: Path) -> None:
    """A quarter of the limit: the database, the store and threads need some, too."""
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


def test_linked_files_outlive_the_first_names(files: BlockFiles, tmp_path: Path) -> None:
    """A missing file is passed over; a taken name is refused."""
    aside = tmp_path / "kept" / "blocks"
    for block in (ONE, TWO):
        files.create(block, 0, b"content")

    files.link_to([ONE, THREE, TWO], aside)
    files.remove(ONE)

    assert sorted(path.name for path in aside.rglob("*") if path.is_file()) == ["1", "2"]
    assert BlockFiles(aside, tmp_path / "tmp").read(ONE, 0, 7) == b"content"
    with pytest.raises(FileExistsError):
        files.link_to([TWO], aside)
