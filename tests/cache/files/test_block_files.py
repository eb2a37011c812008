"""Block files: files on the local disk that contain cached blocks."""

import os
import subprocess
from pathlib import Path

import pytest

from s3fs_meta.cache.files import open_blocks
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.errors import LostBlockError, SettingsError, ShortageError
from s3fs_meta.limits import SYNCFS_FILES_MIN
from s3fs_meta.model import BlockId
from tests.descriptors import no_more_files

ONE, TWO, THREE = BlockId(1), BlockId(2), BlockId(3)


@pytest.fixture
def files(tmp_path: Path) -> BlockFiles:
    """Return an empty directory of block files."""
    return BlockFiles(tmp_path / "blocks", tmp_path / "tmp")


def test_gap_before_the_first_written_byte_of_a_block_file_reads_as_zeros(
    files: BlockFiles,
) -> None:
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


def test_lack_of_file_descriptors_is_not_reported_as_a_lost_block(files: BlockFiles) -> None:
    """If open(2) fails with EMFILE, the block file may be intact, so the block is not lost."""
    files.create(ONE, 0, b"abc")
    files.let_go([ONE])

    with no_more_files():
        with pytest.raises(ShortageError, match="Too many open files"):
            files.read(ONE, 0, 3)
        with pytest.raises(ShortageError):
            files.read_on_loop(ONE, 0, 3)
        with pytest.raises(ShortageError):
            files.write_within(ONE, 0, b"x", 3)
        with pytest.raises(ShortageError):
            files.create(TWO, 0, b"x")
        with pytest.raises(ShortageError):
            files.adopt(ONE, b"x")
        assert files.open_on_loop(ONE) is None

    assert files.read(ONE, 0, 3) == b"abc"


def test_leftover_block_file_of_a_rolled_back_group_is_replaced(files: BlockFiles) -> None:
    """A crash may leave an old block file whose number a new block uses."""
    files.create(ONE, 0, b"leftover of before")

    files.create(ONE, 0, b"new")

    assert files.size(ONE) == 3


def test_copy_of_a_block_file_contains_only_the_requested_bytes(files: BlockFiles) -> None:
    files.create(ONE, 0, b"abcdef")

    files.copy(ONE, TWO, 4)

    assert files.read(TWO, 0, 4) == b"abcd"
    assert files.size(TWO) == 4
    assert files.size(ONE) == 6


def test_fetch_of_a_block_leaves_no_file_in_the_tmp_directory(
    files: BlockFiles, tmp_path: Path
) -> None:
    """A fetched block is written to a file in the tmp directory, which is renamed when complete."""
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
def test_block_files_are_synced_even_if_one_is_missing(
    files: BlockFiles, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """A few block files are synced with fsync, many with syncfs; missing files cause no error."""
    blocks = [BlockId(number) for number in range(count)]
    for block in blocks:
        files.create(block, 0, b"x")
    files.remove(blocks[0])
    inodes = {path.stat().st_ino for path in files.root.rglob("*") if path.is_file()}
    synced, fdatasync = set[int](), os.fdatasync

    def note(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", note)
    whole = _count_syncfs(files, monkeypatch)

    files.sync(blocks)

    assert len(inodes) == count - 1
    is_whole = count >= SYNCFS_FILES_MIN
    assert (synced, whole) == ((set(), ["syncfs"]) if is_whole else (inodes, []))


def test_only_unfinished_files_of_this_program_are_removed_from_the_tmp_directory(
    files: BlockFiles, tmp_path: Path
) -> None:
    for name in ("fetch-1f-0", "again-2", "image-7.db-journal", "restored.db.restoring-wal"):
        (tmp_path / "tmp" / name).write_bytes(b"half")
    (tmp_path / "tmp" / "thesis.db").write_bytes(b"not ours")
    (tmp_path / "tmp" / "fetch-1f").symlink_to("/etc/hostname")

    files.clear_tmp()

    assert sorted(path.name for path in (tmp_path / "tmp").iterdir()) == ["fetch-1f", "thesis.db"]


def test_list_of_block_numbers_contains_every_block_file(files: BlockFiles) -> None:
    for number in (1, 255, 1 << 40):
        files.create(BlockId(number), 0, b"x")

    assert sorted(files.numbers()) == [1, 255, 1 << 40]


def test_two_threads_can_store_the_same_fetched_block(
    files: BlockFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read and a compaction may fetch the same block at the same time in two threads."""
    put_from = files._directory.put_from  # noqa: SLF001 - makes two threads meet in one call
    first = [True]

    def meet(source: Path, name: str) -> None:
        if first:
            first.clear()
            files.adopt(BlockId(1), b"content")
        put_from(source, name)

    monkeypatch.setattr(files._directory, "put_from", meet)  # noqa: SLF001 - makes two threads meet in one call

    files.adopt(BlockId(1), b"content")

    assert files.read(BlockId(1), 0, 7) == b"content"


def test_write_to_a_block_file_that_another_process_deleted_is_refused(files: BlockFiles) -> None:
    """Without the refusal, bytes written to a deleted block file would be lost."""
    files.create(ONE, 0, b"abc")
    files.root.joinpath("xxx", "1").unlink()

    with pytest.raises(LostBlockError, match="removed"):
        files.write_within(ONE, 0, b"x", 3)


def test_rename_of_a_block_file_that_another_process_deleted_is_refused(files: BlockFiles) -> None:
    files.create(ONE, 0, b"abc")
    files.root.joinpath("xxx", "1").unlink()

    with pytest.raises(LostBlockError):
        files.take_over(ONE, TWO, 3)


def test_renamed_block_file_that_a_thread_has_just_replaced_can_be_written(
    files: BlockFiles, tmp_path: Path
) -> None:
    """A thread that fetches a block renames the new file before it closes the old file."""
    files.create(ONE, 0, b"cached")
    fetched = tmp_path / "tmp" / "fetched"
    fetched.write_bytes(b"cached")
    fetched.rename(files.root / "xxx" / "1")

    files.take_over(ONE, TWO, 4)
    files.write_within(TWO, 2, b"XYZ", 4)

    assert files.read(TWO, 0, 5) == files.read_on_loop(TWO, 0, 5) == b"caXYZ"
    assert (files.size(ONE), files.size(TWO)) == (None, 5)


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


def test_block_file_that_is_closed_before_its_removal_is_still_readable(files: BlockFiles) -> None:
    """The event loop closes a file before a thread removes it, but may read it until then."""
    files.create(ONE, 0, b"abc")

    files.let_go([ONE, TWO])

    assert open_below(files.root) == []
    assert files.read_on_loop(ONE, 0, 3) == b"abc"


@pytest.mark.mount
def test_block_directory_on_another_disk_is_refused(small_disk: Path, tmp_path: Path) -> None:
    """No downloaded block could be moved there, so writes to parts of files would fail."""
    (tmp_path / "blocks").symlink_to(small_disk)

    with pytest.raises(SettingsError, match=r"another disk.* --cachedir"):
        BlockFiles(tmp_path / "blocks", tmp_path / "tmp")


@pytest.mark.parametrize(
    ("name", "target"), [("0xxx", "moved"), ("xxx", "missing"), ("3f", "moved")]
)
def test_link_in_place_of_a_directory_of_blocks_is_refused(
    tmp_path: Path, name: str, target: str
) -> None:
    """Listings do not follow a link, so its blocks would count as lost."""
    (tmp_path / "moved").mkdir()
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / name).symlink_to(tmp_path / target)

    with pytest.raises(SettingsError, match=f"/blocks/{name}' is a link; put the directory with"):
        BlockFiles(tmp_path / "blocks", tmp_path / "tmp")


def test_link_to_a_file_beside_the_directories_of_blocks_is_accepted(tmp_path: Path) -> None:
    """The program never uses such a link; fsck lists it as an unknown file."""
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / "notes").symlink_to(tmp_path / "missing")

    assert BlockFiles(tmp_path / "blocks", tmp_path / "tmp").size(ONE) is None


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


def test_closed_block_files_are_made_durable_by_syncfs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A closed file is synced with syncfs, because the kernel may forget its write errors."""
    monkeypatch.setattr(open_blocks, "OPEN_BLOCKS_MAX", 2)
    files = BlockFiles(tmp_path / "few", tmp_path / "tmp")
    synced = _count_syncfs(files, monkeypatch)
    files.create(ONE, 0, b"one")
    files.create(TWO, 0, b"two")
    files.sync([ONE, TWO])
    assert synced == []

    files.write_within(ONE, 0, b"ONE", 3)
    files.create(THREE, 0, b"three")  # The table of open files closes the file of block ONE.
    files.sync([ONE, THREE])
    assert len(synced) == 1

    files.read_on_loop(ONE, 0, 3)  # The table of open files closes the file of block TWO.
    files.write_within(ONE, 0, b"One", 3)
    files.sync([ONE])
    assert len(synced) == 1


def test_block_file_closed_during_a_sync_is_synced_with_syncfs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A sync also covers a block file that is closed before the sync thread opens it."""
    monkeypatch.setattr(open_blocks, "OPEN_BLOCKS_MAX", 1)
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
    syncfs = files._syncfs  # noqa: SLF001 - the test counts calls of this method

    def note() -> None:
        synced.append("syncfs")
        syncfs()

    monkeypatch.setattr(files, "_syncfs", note)
    return synced


def test_hard_linked_block_files_survive_the_removal_of_their_first_names(
    files: BlockFiles, tmp_path: Path
) -> None:
    """Missing block files get no hard link; an existing link name is an error."""
    aside = tmp_path / "kept" / "blocks"
    for block in (ONE, TWO):
        files.create(block, 0, b"content")

    files.link_to([ONE, THREE, TWO], aside)
    files.remove(ONE)

    assert sorted(path.name for path in aside.rglob("*") if path.is_file()) == ["1", "2"]
    assert BlockFiles(aside, tmp_path / "tmp").read(ONE, 0, 7) == b"content"
    with pytest.raises(FileExistsError):
        files.link_to([TWO], aside)


def test_changed_block_leaves_a_hard_link_in_a_quarantined_state_unchanged(
    files: BlockFiles, tmp_path: Path
) -> None:
    """A clean block becomes dirty by a rename of its file, which must not be shared then."""
    kept = tmp_path / "kept" / "blocks"
    files.create(ONE, 0, b"abcdef")
    files.link_to([ONE], kept)

    files.take_over(ONE, TWO, 4)
    files.write_within(TWO, 0, b"X", 4)

    assert files.read(TWO, 0, 4) == b"Xbcd"
    assert list(files.numbers()) == [TWO]
    assert BlockFiles(kept, tmp_path / "tmp").read(ONE, 0, 6) == b"abcdef"


def test_sync_without_free_file_descriptors_does_not_count_as_a_failed_disk(
    files: BlockFiles,
) -> None:
    """If no file descriptor is free, syncfs(2) syncs the files, so the mount stays writable."""
    files.create(ONE, 0, b"abc")
    with no_more_files():
        files.sync([ONE])

    files.sync([ONE])
