"""Tests of file content: reads return the written bytes, and zeros for holes."""

import errno
import random

import pytest
import trio
import trio.testing

from s3fs_meta.cache.crash_safety.recovery import restore_copies
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.errors import (
    BusyError,
    InvalidRequestError,
    NoInodeError,
    NoSpaceLeftError,
    PermanentStoreError,
    ReadOnlyStateError,
    RefusesDirectoryError,
    TooBigError,
    TransientStoreError,
    UnexpectedStoreError,
)
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.limits import FILE_BYTES_MAX, WAITING_HANDLERS_MAX
from s3fs_meta.meta.tables import block_map, cached_blocks
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex, BlockState, Ino
from s3fs_meta.mount_state import MountState
from tests.faults import raising
from tests.fs.conftest import (
    BLOCK_BYTES,
    T0,
    USER,
    Volume,
    look,
    make_directory,
    make_file,
    sliced,
    whole,
)

SLOW = pytest.mark.slow
SIXTEEN_TIB = 16 << 40


def blocks(fs: Filesystem, ino: Ino) -> int:
    """Return the number of mapped blocks of a file; its attributes must have the same number."""
    row = fs.db.one("SELECT count(*) FROM block_map WHERE ino = ?", (ino,))
    assert row is not None
    assert fs.getattr(ino).mapped_blocks == row[0]
    return int(row[0])


def block_of(fs: Filesystem, ino: Ino) -> BlockId:
    """Return the first block of a file."""
    block = block_map.find(fs.db, ino, BlockIndex(0))
    assert block is not None
    return block


async def test_written_bytes_are_read_back(fs: Filesystem, volume: Volume) -> None:
    """A write that spans several blocks sets the file's size, times and counters."""
    ino = make_file(fs, b"f")
    content = random.Random(1).randbytes(3 * BLOCK_BYTES + 17)
    now_ns = volume.clock.later()
    assert await fs.write(ino, 0, content) == len(content)

    assert await whole(fs, ino) == content
    assert await fs.read(ino, BLOCK_BYTES - 5, 10) == content[BLOCK_BYTES - 5 : BLOCK_BYTES + 5]
    assert await fs.read(ino, len(content) - 3, 100) == content[-3:]
    assert await fs.read(ino, len(content), 100) == b""
    row = fs.getattr(ino)
    assert (row.size_bytes, row.mtime_ns, row.ctime_ns) == (len(content), now_ns, now_ns)
    assert blocks(fs, ino) == 4
    assert fs.db.counters.file_bytes == len(content)


async def test_write_finds_the_blocks_of_a_file_despite_a_wrong_block_count(fs: Filesystem) -> None:
    """If a damaged row has the block count 0, a write must still find the existing block."""
    ino = make_file(fs, b"f")
    await fs.write(ino, 0, b"content")
    fs.db.inodes.run("UPDATE inodes SET mapped_blocks = 0 WHERE ino = ?", (ino,))

    await fs.write(ino, 3, b"T")

    assert await whole(fs, ino) == b"conTent"


async def test_power_cut_restores_overwritten_bytes_despite_a_wrong_file_size(
    fs: Filesystem, volume: Volume
) -> None:
    """If a damaged row has the size 0, a lost write must not lose the bytes that it replaced."""
    ino, content = make_file(fs, b"f"), random.Random(2).randbytes(100)
    await fs.write(ino, 0, content)
    await volume.upload()
    fs.db.begin()
    fs.db.inodes.run("UPDATE inodes SET size_bytes = 0 WHERE ino = ?", (ino,))
    await fs.write(ino, 50, b"x" * 50)
    volume.commit()
    block, files, opened = block_of(fs, ino), volume.session.files, volume.session.volume

    files.cut_after(block, 0)  # A power cut loses the block's content.
    await restore_copies(fs.db, files, opened.keyring, volume.store)

    assert files.read(block, 0, len(content)) == content


async def test_empty_write_changes_nothing(fs: Filesystem) -> None:
    ino = make_file(fs, b"f")
    before = fs.getattr(ino)
    assert await fs.write(ino, 99, b"") == 0
    assert fs.getattr(ino) == before


async def test_gap_between_two_writes_is_a_hole(fs: Filesystem) -> None:
    """A gap between two writes reads as zeros and has no blocks."""
    ino = make_file(fs, b"f")
    await fs.write(ino, 100, b"a")
    await fs.write(ino, 5 * BLOCK_BYTES + 7, b"b")
    await fs.write(ino, 200, b"c")
    expected = bytearray(5 * BLOCK_BYTES + 8)
    expected[100:101], expected[200:201], expected[-1:] = b"a", b"c", b"b"
    assert await whole(fs, ino) == bytes(expected)
    assert blocks(fs, ino) == 2


async def test_sparse_file_of_16_tib_can_be_written_at_both_ends(fs: Filesystem) -> None:
    """A file of 16 TiB with one byte at each end has two blocks."""
    ino = make_file(fs, b"f")
    await fs.write(ino, SIXTEEN_TIB - 1, b"z")
    await fs.write(ino, 0, b"a")
    assert fs.getattr(ino).size_bytes == SIXTEEN_TIB
    assert blocks(fs, ino) == 2
    assert await fs.read(ino, SIXTEEN_TIB - 3, 10) == b"\0\0z"
    assert await fs.read(ino, SIXTEEN_TIB // 2, 4) == bytes(4)
    await fs.data.truncate(ino, 1)
    assert await whole(fs, ino) == b"a"


async def test_file_cannot_grow_beyond_the_size_limit(fs: Filesystem) -> None:
    """A write or truncation beyond the size limit raises TooBigError and changes nothing."""
    ino = make_file(fs, b"f")
    with pytest.raises(TooBigError):
        await fs.write(ino, FILE_BYTES_MAX, b"a")
    with pytest.raises(TooBigError):
        await fs.data.truncate(ino, FILE_BYTES_MAX + 1)
    assert fs.getattr(ino).size_bytes == 0


async def test_only_regular_files_have_content(fs: Filesystem) -> None:
    """Reads, writes and truncations of directories, FIFOs and missing inodes fail."""
    directory = make_directory(fs, b"d")
    fifo = fs.namespace.make_node(ROOT_INO, b"p", 0o010600, USER).ino
    for ino, error in (
        (directory, RefusesDirectoryError),
        (fifo, InvalidRequestError),
        (Ino(999), NoInodeError),
    ):
        with pytest.raises(error):
            await fs.read(ino, 0, 1)
        with pytest.raises(error):
            await fs.write(ino, 0, b"a")
        with pytest.raises(error):
            await fs.data.truncate(ino, 0)


@pytest.mark.parametrize("state", ["dirty", "clean", "evicted"])
async def test_partial_overwrite_preserves_all_other_bytes(
    fs: Filesystem, volume: Volume, state: str
) -> None:
    """A partial overwrite of a dirty, clean or evicted block keeps all other bytes."""
    ino = make_file(fs, b"f")
    content = bytearray(random.Random(2).randbytes(2 * BLOCK_BYTES))
    await fs.write(ino, 0, bytes(content))
    if state == "clean":
        await volume.upload()
    elif state == "evicted":
        await volume.evict()
    for offset, data in (
        (10, b"x" * 100),
        (BLOCK_BYTES - 3, b"y" * 6),
        (2 * BLOCK_BYTES - 1, b"zz"),
    ):
        await fs.write(ino, offset, data)
        content[offset : offset + len(data)] = data
    assert await whole(fs, ino) == bytes(content)
    assert blocks(fs, ino) == 3


async def test_overwriting_a_complete_block_fetches_nothing(fs: Filesystem, volume: Volume) -> None:
    """A write of a complete block succeeds while the store is unreachable."""
    ino = make_file(fs, b"f")
    await fs.write(ino, 0, b"a" * BLOCK_BYTES)
    await volume.evict()
    volume.store.down = UnexpectedStoreError("any", "down")
    await fs.write(ino, 0, b"b" * BLOCK_BYTES)
    assert await whole(fs, ino) == b"b" * BLOCK_BYTES


async def test_access_to_an_evicted_block_fails_if_the_store_is_unreachable(
    fs: Filesystem, volume: Volume
) -> None:
    """If the store is unreachable, operations on an evicted block fail and change nothing."""
    ino = make_file(fs, b"f")
    await fs.write(ino, 0, b"a" * BLOCK_BYTES)
    await volume.evict()
    before = fs.getattr(ino)
    volume.store.down = UnexpectedStoreError("any", "down")
    with pytest.raises(PermanentStoreError):
        await fs.read(ino, 0, 1)
    with pytest.raises(PermanentStoreError):
        await fs.write(ino, 5, b"x")
    with pytest.raises(PermanentStoreError):
        await fs.data.truncate(ino, 5)
    assert fs.getattr(ino) == before
    volume.store.down = None
    assert await whole(fs, ino) == b"a" * BLOCK_BYTES


async def test_read_with_several_errors_raises_a_single_error(
    fs: Filesystem, volume: Volume
) -> None:
    """If two parts of a read fail, the read raises the first error, not an exception group."""
    ino = make_file(fs, b"f")
    content = random.Random(3).randbytes(2 * BLOCK_BYTES)
    await fs.write(ino, 0, content)
    await volume.evict()
    volume.store.fail("get_range", UnexpectedStoreError("any", "odd"), times=2)
    with pytest.raises(UnexpectedStoreError):
        await fs.read(ino, 0, len(content))
    volume.store.fail("get_range", times=0)
    assert await whole(fs, ino) == content


async def test_several_blocks_are_read_although_the_cache_disk_failed(
    fs: Filesystem, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks come from the bucket, and are not cached."""
    ino = make_file(fs, b"f")
    content = random.Random(3).randbytes(2 * BLOCK_BYTES)
    await fs.write(ino, 0, content)
    await volume.evict()
    monkeypatch.setattr(BlockFiles, "adopt", raising(OSError(errno.EIO, "failed disk")))
    assert await fs.read(ino, 0, len(content)) == content


async def test_write_after_a_fetch_sees_a_concurrent_truncation(
    fs: Filesystem, volume: Volume
) -> None:
    """A write that waited for a fetch does not undo a truncation that happened meanwhile."""
    ino = make_file(fs, b"f")
    await fs.write(ino, 0, b"a" * 1000)
    await volume.evict()
    gate = volume.store.hold("get_range")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fs.write, ino, 500, b"b")
        await gate.wait_started()
        await fs.data.truncate(ino, 0)
        gate.open()
    assert await whole(fs, ino) == bytes(500) + b"b"


# --- truncation of files -----------------------------------------------------------------------


@pytest.mark.parametrize("state", ["dirty", "clean", "evicted"])
@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES])
async def test_truncated_content_does_not_reappear_when_the_file_is_extended(
    fs: Filesystem, volume: Volume, state: str, size: int
) -> None:
    """A file that is truncated and then extended has zeros beyond the truncated size."""
    ino = make_file(fs, b"f")
    content = b"\xff" * (2 * BLOCK_BYTES + 10)
    await fs.write(ino, 0, content)
    if state == "clean":
        await volume.upload()
    elif state == "evicted":
        await volume.evict()
    await fs.data.truncate(ino, size)
    assert await whole(fs, ino) == content[:size]
    assert blocks(fs, ino) == -(-size // BLOCK_BYTES)
    await fs.data.truncate(ino, len(content))
    assert await whole(fs, ino) == content[:size] + bytes(len(content) - size)
    assert fs.db.counters.file_bytes == len(content)


async def test_truncation_sets_mtime_and_ctime(fs: Filesystem, volume: Volume) -> None:
    """Truncation to the same size also sets mtime and ctime, unless the kernel keeps the times."""
    ino = make_file(fs, b"f")
    now_ns = volume.clock.later()
    await fs.data.truncate(ino, 0)
    assert (fs.getattr(ino).mtime_ns, fs.getattr(ino).ctime_ns) == (now_ns, now_ns)
    volume.clock.later()
    await fs.data.truncate(ino, 10, sets_times=False)
    assert fs.getattr(ino).mtime_ns == now_ns


@sliced(purged_blocks=2)
async def test_large_file_is_truncated_in_several_steps(fs: Filesystem) -> None:
    """Truncation removes blocks from the end in steps.

    After each step the shorter file is valid.
    """
    ino = make_file(fs, b"f")
    for index in range(9):
        await fs.write(ino, index * BLOCK_BYTES, b"a" * 10)
    sizes = []
    while fs.data.cut_piece(fs.getattr(ino), BlockIndex(2)):
        sizes.append(fs.getattr(ino).size_bytes)
        assert blocks(fs, ino) * BLOCK_BYTES == sizes[-1]
    assert sizes == [7 * BLOCK_BYTES, 5 * BLOCK_BYTES, 3 * BLOCK_BYTES]


@sliced(purged_blocks=2)
async def test_large_file_keeps_its_size_if_its_truncation_needs_an_unavailable_block(
    fs: Filesystem, volume: Volume
) -> None:
    """The truncation must change nothing, because the kernel keeps the old size after an error."""
    ino, content = make_file(fs, b"f"), random.Random(4).randbytes(7 * BLOCK_BYTES)
    await fs.write(ino, 0, content)
    await volume.evict()
    volume.store.fail("get_range")
    with pytest.raises(TransientStoreError):
        await fs.data.truncate(ino, 10)
    assert await whole(fs, ino) == content

    await fs.data.truncate(ino, 10)
    assert await whole(fs, ino) == content[:10]


@sliced(purged_blocks=2)
async def test_other_tasks_can_run_while_a_large_file_is_truncated(fs: Filesystem) -> None:
    ino = make_file(fs, b"f")
    for index in range(9):
        await fs.write(ino, index * BLOCK_BYTES, b"a" * 10)
    with trio.testing.assert_checkpoints():
        await fs.data.truncate(ino, BLOCK_BYTES + 5)
    assert (fs.getattr(ino).size_bytes, blocks(fs, ino)) == (BLOCK_BYTES + 5, 2)


# --- refused requests --------------------------------------------------------------------------


async def test_full_filesystem_refuses_new_blocks(fs: Filesystem) -> None:
    """New blocks count against the capacity. Overwrites and holes need no additional space."""
    ino = make_file(fs, b"f")
    fs.set_capacity(BLOCK_BYTES)
    await fs.write(ino, 0, b"a" * BLOCK_BYTES)
    with pytest.raises(NoSpaceLeftError):
        await fs.write(ino, BLOCK_BYTES, b"b")
    await fs.write(ino, 5, b"c")
    await fs.data.truncate(ino, 10 * BLOCK_BYTES)
    assert fs.statfs().free_bytes == 0
    fs.namespace.unlink(ROOT_INO, b"f")
    assert fs.statfs().free_bytes == BLOCK_BYTES


async def test_degraded_mount_refuses_writes(fs: Filesystem) -> None:
    """A degraded mount refuses writes and truncations, but still allows reads."""
    ino = make_file(fs, b"f")
    await fs.write(ino, 0, b"abc")
    fs.status.enter(MountState.DEGRADED, "a test")
    with pytest.raises(ReadOnlyStateError):
        await fs.write(ino, 0, b"x")
    with pytest.raises(ReadOnlyStateError):
        await fs.data.truncate(ino, 0)
    assert await whole(fs, ino) == b"abc"


async def test_failed_write_keeps_the_bytes_before_the_error(
    fs: Filesystem, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the second part of a write fails, the file ends after the first part."""
    ino = make_file(fs, b"f")
    create = volume.session.files.create

    def second_fails(block: int, offset: int, data: bytes) -> None:
        if offset == 0 and len(data) == 7:
            raise NoSpaceLeftError("a test")
        create(block, offset, data)  # type: ignore[arg-type]  # A BlockId is an int.

    monkeypatch.setattr(volume.session.files, "create", second_fails)
    with pytest.raises(NoSpaceLeftError):
        await fs.write(ino, BLOCK_BYTES - 5, b"x" * 12)
    assert fs.getattr(ino).size_bytes == BLOCK_BYTES
    assert blocks(fs, ino) == 1
    assert (await whole(fs, ino))[-6:] == b"\0" + b"x" * 5


@pytest.mark.parametrize("is_settled", [False, True], ids=["uploaded", "clean"])
async def test_failed_write_into_a_copied_block_leaves_no_row_of_the_copy(
    fs: Filesystem, volume: Volume, monkeypatch: pytest.MonkeyPatch, *, is_settled: bool
) -> None:
    ino = make_file(fs, b"f")
    await fs.write(ino, 0, b"a" * 100)
    await volume.upload()
    if is_settled:
        await volume.evict()
        await fs.read(ino, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(volume.session.files, "write_within", raising(NoSpaceLeftError("a test")))
        with pytest.raises(NoSpaceLeftError):
            await fs.write(ino, 5, b"b")

    assert await whole(fs, ino) == b"a" * 100
    assert fs.db.one("SELECT count(*), sum(refs) FROM blocks") == (1, 1)


async def test_waiting_reads_do_not_block_metadata_requests(fs: Filesystem, volume: Volume) -> None:
    """At most WAITING_HANDLERS_MAX reads wait for the store. The next read fails with EAGAIN."""
    ino = make_file(fs, b"f")
    await fs.write(ino, 0, b"a" * 100)
    await volume.evict()
    gate = volume.store.hold("get_range")
    async with trio.open_nursery() as nursery:
        for _ in range(WAITING_HANDLERS_MAX):
            nursery.start_soon(fs.read, ino, 0, 1)
        await gate.wait_started()
        await trio.testing.wait_all_tasks_blocked()
        assert fs.data.waiting == WAITING_HANDLERS_MAX
        with pytest.raises(BusyError):
            await fs.read(ino, 0, 1)
        assert look(fs, b"f").size_bytes == 100
        gate.open()
    assert fs.data.waiting == 0


async def test_write_to_a_cached_block_succeeds_while_reads_wait(
    fs: Filesystem, volume: Volume
) -> None:
    """A write to a cached block succeeds while the maximum number of reads waits.

    If the write failed with EAGAIN, the kernel would discard the written data.
    """
    ino = make_file(fs, b"f")
    await fs.write(ino, 0, b"a" * 100)
    await volume.evict()
    other = make_file(fs, b"g")
    gate = volume.store.hold("get_range")
    async with trio.open_nursery() as nursery:
        for _ in range(WAITING_HANDLERS_MAX):
            nursery.start_soon(fs.read, ino, 0, 1)
        await gate.wait_started()
        await trio.testing.wait_all_tasks_blocked()
        assert await fs.write(other, 0, b"written back") == 12
        gate.open()
    assert await whole(fs, other) == b"written back"


async def test_block_that_is_evicted_before_its_write_is_fetched_again(
    volume: Volume, caplog: pytest.LogCaptureFixture
) -> None:
    """If the cache makes room by evicting the block to be written, the write fetches it again."""
    async with volume.mounted(cache_bytes=2 * BLOCK_BYTES) as fs:
        ino = make_file(fs, b"f")
        await fs.write(ino, 0, b"a" * BLOCK_BYTES + b"b" * BLOCK_BYTES)
        await volume.upload()
        fetched = volume.session.cache.fetcher.fetched_blocks
        assert await fs.write(ino, 5, b"new", sets_times=False) == 3

        assert volume.session.cache.fetcher.fetched_blocks == fetched + 1
        assert await fs.read(ino, 0, 10) == b"aaaaanewaa"
        assert "damaged" not in caplog.text


async def test_write_is_refused_if_the_mount_becomes_read_only_while_the_write_waits(
    fs: Filesystem, volume: Volume
) -> None:
    ino = make_file(fs, b"f")
    await fs.write(ino, 0, b"a" * 100)
    await volume.evict()
    gate = volume.store.hold("get_range")

    async def refused() -> None:
        with pytest.raises(ReadOnlyStateError):
            await fs.write(ino, 5, b"b")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refused)
        await gate.wait_started()
        fs.status.enter(MountState.DEGRADED, "a test")
        gate.open()
    assert await whole(fs, ino) == b"a" * 100


async def test_overwrite_of_two_dirty_blocks_changes_no_database_row(volume: Volume) -> None:
    """If committed content is overwritten, the open commit group is committed first."""
    async with volume.mounted() as fs:
        ino = make_file(fs, b"f")
        await fs.write(ino, 0, b"a" * 2 * BLOCK_BYTES, sets_times=False)
        before = fs.db.rows_changed()
        await fs.write(ino, BLOCK_BYTES - 3, b"bbbccc", sets_times=False)
        assert fs.db.rows_changed() == before
        assert not fs.db.in_group
    async with volume.mounted() as fs:
        content = await whole(fs, ino)
        assert content[BLOCK_BYTES - 4 : BLOCK_BYTES + 4] == b"abbbccca"


# --- order of the writes that survive a killed daemon ------------------------------------------


@pytest.mark.parametrize("sets_times", [True, False])
async def test_overwrite_becomes_durable_only_after_all_earlier_operations(
    volume: Volume, *, sets_times: bool
) -> None:
    """Committed content changes only after all earlier operations are committed."""
    async with volume.mounted() as fs:
        ino = make_file(fs, b"f")
        await fs.write(ino, 0, b"old")
        volume.commit()
        make_file(fs, b"before")
        await fs.write(ino, 0, b"new", sets_times=sets_times)
        make_file(fs, b"after")

    async with volume.mounted() as fs:
        assert await whole(fs, ino) == b"new"
        assert fs.lookup(ROOT_INO, b"before") is not None
        assert fs.lookup(ROOT_INO, b"after") is None


async def test_kill_undoes_all_of_an_uncommitted_truncation(volume: Volume) -> None:
    """If the daemon is killed, an uncommitted truncation and the write after it are undone."""
    async with volume.mounted() as fs:
        ino = make_file(fs, b"f")
        await fs.write(ino, 0, b"0123456789")
        volume.commit()
        await fs.data.truncate(ino, 3)
        await fs.write(ino, 6, b"x")

    async with volume.mounted() as fs:
        assert await whole(fs, ino) == b"0123456789"


async def test_bytes_of_a_lost_append_do_not_appear_in_a_later_hole(volume: Volume) -> None:
    """Bytes that a killed daemon appended are not visible in a later hole at their position."""
    async with volume.mounted() as fs:
        ino = make_file(fs, b"f")
        await fs.write(ino, 0, b"abc")
        volume.commit()
        await fs.write(ino, 3, b"lost")

    async with volume.mounted() as fs:
        assert await whole(fs, ino) == b"abc"
        await fs.write(ino, 10, b"z")
        assert await whole(fs, ino) == b"abc" + bytes(7) + b"z"


async def test_overwrite_of_one_dirty_block_changes_no_database_row(volume: Volume) -> None:
    """If the kernel keeps the times, overwriting a dirty block opens no commit group."""
    async with volume.mounted() as fs:
        ino = make_file(fs, b"f")
        volume.clock.later()
        await fs.write(ino, 0, b"abcdef", sets_times=False)
        assert fs.getattr(ino).mtime_ns == T0
        volume.commit()
        await fs.write(ino, 2, b"x", sets_times=False)
        assert not fs.db.in_group
        assert await whole(fs, ino) == b"abxdef"


@pytest.mark.parametrize(
    ("seed", "steps"), [(0, 20), (1, 20), *(pytest.param(n, 200, marks=SLOW) for n in range(2, 8))]
)
async def test_file_after_random_operations_has_the_same_content_as_a_bytearray(
    fs: Filesystem, volume: Volume, seed: int, steps: int
) -> None:
    """After random writes, truncations, uploads and evictions, a file equals a bytearray."""
    chance = random.Random(seed)
    ino = make_file(fs, b"f")
    model = bytearray()
    for _ in range(steps):
        offset, length = chance.randrange(4 * BLOCK_BYTES), chance.randrange(1, BLOCK_BYTES)
        match chance.choice(["write", "write", "write", "truncate", "upload", "evict"]):
            case "write":
                data = chance.randbytes(length)
                await fs.write(ino, offset, data, sets_times=chance.random() < 0.5)
                model.extend(bytes(max(offset - len(model), 0)))
                model[offset : offset + length] = data
            case "truncate":
                await fs.data.truncate(ino, offset)
                del model[offset:]
                model.extend(bytes(offset - len(model)))
            case "upload":
                await volume.upload()
            case _:
                await volume.evict()
        assert await whole(fs, ino) == bytes(model)
    dirty = cached_blocks.in_state(volume.session.db, BlockState.DIRTY)
    assert len(dirty) <= blocks(fs, ino) <= 5
    assert fs.db.one("SELECT 1 FROM blocks WHERE refs = 0") is None
