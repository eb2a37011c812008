"""Block files on a local disk."""

import os
import subprocess
from pathlib import Path

import pytest

from s3fs_meta.cache.block_files import BlockFiles
from s3fs_meta.errors import LostBlockError
from s3fs_meta.limits import SYNCFS_FILES_MIN
from s3fs_meta.model import BlockId

ONE = BlockId(1)
TWO = BlockId(2)


@pytest.fixture
def files(tmp_path: Path) -> BlockFiles:
    """Return an empty directory of block files."""
    return BlockFiles(tmp_path / "blocks", tmp_path / "tmp")


def test_gap_before_the_first_byte_reads_as_zeros(files: BlockFiles) -> None:
    """A block whose first write is in its middle begins with zeros."""
    files.create(ONE, 5, b"abc")

    assert files.read(ONE, 0, 8) == b"\0\0\0\0\0abc"


def test_write_in_place_grows_the_file(files: BlockFiles) -> None:
    """Bytes past the end are added, bytes before it replaced."""
    files.create(ONE, 0, b"abcdef")

    files.write_within(ONE, 4, b"XYZ", 4)

    assert files.read(ONE, 0, 7) == b"abcdXYZ"
    assert files.size(ONE) == 7


def test_short_file_is_an_error_not_zeros(files: BlockFiles) -> None:
    """Asking past the end of a torn file names the byte where it ends."""
    files.create(ONE, 0, b"abc")

    with pytest.raises(LostBlockError, match="ends at byte 3"):
        files.read(ONE, 0, 4)


def test_missing_file_is_an_error(files: BlockFiles) -> None:
    """A block without a file is reported as lost."""
    with pytest.raises(LostBlockError):
        files.read(ONE, 0, 1)
    with pytest.raises(LostBlockError):
        files.write_within(ONE, 0, b"x", 0)


def test_leftover_of_an_undone_group_is_overwritten(files: BlockFiles) -> None:
    """A number that is given again after a crash starts with an empty file."""
    files.create(ONE, 0, b"leftover of before")

    files.create(ONE, 0, b"new")

    assert files.size(ONE) == 3


def test_copy_has_only_the_requested_bytes(files: BlockFiles) -> None:
    """The source stays as it is."""
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
    """The root is empty again when the last block is gone."""
    for number in range(50):
        files.create(BlockId(number), 0, b"x")
    for number in range(50):
        files.remove(BlockId(number))

    assert list((tmp_path / "blocks").iterdir()) == []


@pytest.mark.parametrize("count", [3, SYNCFS_FILES_MIN])
def test_sync_accepts_few_and_many_and_gone_files(files: BlockFiles, count: int) -> None:
    """Both ways to sync work, and a doomed file in the list is no error."""
    blocks = [BlockId(number) for number in range(count)]
    for block in blocks:
        files.create(block, 0, b"x")
    files.remove(blocks[0])

    files.sync(blocks)

    assert files.size(blocks[1]) == 1


def test_unfinished_files_of_an_earlier_run_are_cleared(files: BlockFiles, tmp_path: Path) -> None:
    """Only the one tmp directory is looked at."""
    (tmp_path / "tmp" / "fetch-1").write_bytes(b"half")

    files.clear_tmp()

    assert list((tmp_path / "tmp").iterdir()) == []


def test_numbers_lists_every_block(files: BlockFiles) -> None:
    """The walk finds what was created."""
    for number in (1, 255, 1 << 40):
        files.create(BlockId(number), 0, b"x")

    assert sorted(files.numbers()) == [1, 255, 1 << 40]


def test_two_adoptions_of_one_block_do_not_meet(
    files: BlockFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader and compaction may fetch the same block at once, in two threads."""
    put_from = files._directory.put_from
    first = [True]

    def meet(source: Path, name: str) -> None:
        if first:
            first.clear()
            files.adopt(BlockId(1), b"content")
        put_from(source, name)

    monkeypatch.setattr(files._directory, "put_from", meet)

    files.adopt(BlockId(1), b"content")

    assert files.read(BlockId(1), 0, 7) == b"content"


def test_file_that_was_removed_behind_our_back_takes_no_more_bytes(files: BlockFiles) -> None:
    """It is open still, but what is written to it would be gone with it."""
    files.create(ONE, 0, b"abc")
    files.root.joinpath("xxx", "1").unlink()

    with pytest.raises(LostBlockError, match="removed"):
        files.write_within(ONE, 0, b"x", 3)


def test_file_that_was_removed_behind_our_back_is_not_taken_over(files: BlockFiles) -> None:
    """Its content would have no name."""
    files.create(ONE, 0, b"abc")
    files.root.joinpath("xxx", "1").unlink()

    with pytest.raises(LostBlockError):
        files.take_over(ONE, TWO, 3)


def open_below(root: Path) -> list[str]:
    """Return the files below a directory that this process holds open."""
    held = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    names = [os.readlink(fd) for fd in held if fd.is_symlink()]
    return [name for name in names if name.startswith(f"{root}/")]


def test_space_of_a_removed_file_is_freed(files: BlockFiles) -> None:
    """A file that was used lately is not held open after it was removed, in a thread or not."""
    for remove in (files.remove, lambda block: files.remove_all([block])):
        files.create(ONE, 0, b"abc")
        assert open_below(files.root)
        remove(ONE)
        files.close_removed()

        assert open_below(files.root) == []


def test_fetched_copy_replaces_one_that_is_open(files: BlockFiles) -> None:
    """The loop reads what came, not the file whose name it took."""
    files.create(ONE, 0, b"torn")
    assert files.read_on_loop(ONE, 0, 4) == b"torn"

    files.adopt(ONE, b"good")

    assert files.read_on_loop(ONE, 0, 4) == b"good"


def test_file_is_not_open_any_more_when_a_thread_removes_it(files: BlockFiles) -> None:
    """The space comes back with unlink(2): a close on the loop would take as long."""
    files.create(ONE, 0, b"abc")

    files.let_go([ONE, TWO])

    assert open_below(files.root) == []
    assert files.read_on_loop(ONE, 0, 3) == b"abc"


@pytest.mark.mount
def test_block_on_a_disk_that_turned_read_only_is_read(small_disk: Path) -> None:
    """As ext4 does after an error: existing blocks are readable, but none can be written."""
    files = BlockFiles(small_disk / "blocks", small_disk / "tmp")
    files.create(ONE, 0, b"abc")
    files.let_go([ONE])
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    assert files.read_on_loop(ONE, 0, 3) == b"abc"
    with pytest.raises(LostBlockError, match="Read-only"):
        files.write_within(ONE, 0, b"x", 3)
