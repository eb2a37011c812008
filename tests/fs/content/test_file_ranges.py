"""Tests of lseek(2), fallocate(2) and copy_file_range(2) on ranges of files."""

import random

import pytest
import trio
import trio.testing

from s3fs_meta.errors import (
    InvalidRequestError,
    NoDataError,
    NoSpaceLeftError,
    NotPermittedError,
    NotSupportedError,
    ObjectMissingError,
    TooBigError,
    TransientStoreError,
)
from s3fs_meta.fs.attributes import SetAttributes
from s3fs_meta.fs.content.file_ranges import KEEP_SIZE, PUNCH_HOLE, SEEK_DATA, SEEK_HOLE, ZERO_RANGE
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.limits import FILE_BYTES_MAX
from s3fs_meta.meta.tables import inodes, packs
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import Ino, InodeFlag
from tests.fs.conftest import BLOCK_BYTES, USER, Volume, make_file, sliced, whole

PUNCH = PUNCH_HOLE | KEEP_SIZE
COLLAPSE_RANGE = 0x08


async def filled(fs: Filesystem, name: bytes, size_bytes: int) -> tuple[Ino, bytes]:
    """Create a file of random bytes."""
    ino, content = make_file(fs, name), random.Random(7).randbytes(size_bytes)
    await fs.write(ino, 0, content)
    return ino, content


def mapped(fs: Filesystem, ino: Ino) -> list[tuple[int, int]]:
    """Check the block count of a file; return the index and the number of each mapped block."""
    rows = fs.db.all("SELECT block_index, block FROM block_map WHERE ino = ? ORDER BY 1", (ino,))
    assert fs.getattr(ino).mapped_blocks == len(rows)
    return [(row[0], row[1]) for row in rows]


# --- SEEK_DATA and SEEK_HOLE -------------------------------------------------------------------


async def test_seek_finds_data_and_holes(fs: Filesystem) -> None:
    """SEEK_DATA and SEEK_HOLE find the data between two holes."""
    ino = make_file(fs, b"f")
    await fs.write(ino, 3 * BLOCK_BYTES, bytes(2 * BLOCK_BYTES + 5))
    await fs.data.truncate(ino, 9 * BLOCK_BYTES)
    start, end = 3 * BLOCK_BYTES, 5 * BLOCK_BYTES + 5

    for offset in (0, 17, start - 1, start):
        assert await fs.ranges.seek(ino, offset, SEEK_DATA) == start
    for offset in (start, start + 17, end - 1, end):
        assert await fs.ranges.seek(ino, offset, SEEK_HOLE) == end
    for offset in (0, 17, end + 1, 9 * BLOCK_BYTES - 1):
        assert await fs.ranges.seek(ino, offset, SEEK_HOLE) == offset
    assert await fs.ranges.seek(ino, end - 1, SEEK_DATA) == end - 1
    with pytest.raises(NoDataError):
        await fs.ranges.seek(ino, end, SEEK_DATA)


async def test_seek_hole_finds_the_end_of_a_file(fs: Filesystem) -> None:
    """In a file without holes, SEEK_HOLE returns the file size."""
    ino, _content = await filled(fs, b"f", 2 * BLOCK_BYTES)

    assert await fs.ranges.seek(ino, 5, SEEK_HOLE) == 2 * BLOCK_BYTES
    await fs.data.truncate(ino, BLOCK_BYTES + 1)
    assert await fs.ranges.seek(ino, 5, SEEK_HOLE) == BLOCK_BYTES + 1


async def test_seek_finds_a_hole_between_two_blocks(fs: Filesystem) -> None:
    """SEEK_HOLE finds a missing block between two blocks, and SEEK_DATA finds the second block."""
    ino = make_file(fs, b"f")
    for index in (0, 2):
        await fs.write(ino, index * BLOCK_BYTES, bytes(BLOCK_BYTES))

    assert await fs.ranges.seek(ino, 0, SEEK_HOLE) == BLOCK_BYTES
    assert await fs.ranges.seek(ino, BLOCK_BYTES, SEEK_DATA) == 2 * BLOCK_BYTES


@pytest.mark.parametrize("whence", [SEEK_DATA, SEEK_HOLE])
@pytest.mark.parametrize("offset", [-1, 10, 11])
async def test_seek_at_or_after_the_end_of_a_file_fails_with_enxio(
    fs: Filesystem, whence: int, offset: int
) -> None:
    """A seek at or after the end of a file fails with ENXIO, as lseek(2) documents."""
    ino, _content = await filled(fs, b"f", 10)

    with pytest.raises(NoDataError):
        await fs.ranges.seek(ino, offset, whence)


async def test_seek_refuses_unknown_values_of_whence(fs: Filesystem) -> None:
    """Only SEEK_DATA and SEEK_HOLE are accepted. The kernel itself handles all other values."""
    ino, _content = await filled(fs, b"f", 10)

    with pytest.raises(InvalidRequestError):
        await fs.ranges.seek(ino, 0, 5)


# --- fallocate ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (0, 4 * BLOCK_BYTES),
        (5, 7),
        (BLOCK_BYTES - 3, 6),
        (BLOCK_BYTES, BLOCK_BYTES),
        (BLOCK_BYTES + 1, 2 * BLOCK_BYTES),
        (3 * BLOCK_BYTES + 9, 100 * BLOCK_BYTES),
        (50 * BLOCK_BYTES, 10),
    ],
)
@pytest.mark.parametrize("mode", [PUNCH, ZERO_RANGE | KEEP_SIZE])
async def test_cleared_range_reads_as_zeros(
    fs: Filesystem, mode: int, offset: int, length: int
) -> None:
    """A cleared range reads as zeros, and its complete blocks are freed."""
    ino, content = await filled(fs, b"f", 4 * BLOCK_BYTES)
    expected = bytearray(content)
    stop = min(offset + length, len(content))
    expected[offset:stop] = bytes(max(stop - offset, 0))

    await fs.ranges.allocate(ino, mode, offset, length)

    assert await whole(fs, ino) == bytes(expected)
    freed = [i for i in range(4) if offset <= i * BLOCK_BYTES and (i + 1) * BLOCK_BYTES <= stop]
    assert [index for index, _block in mapped(fs, ino)] == [i for i in range(4) if i not in freed]


async def test_clearing_a_range_preserves_other_bytes_of_uncached_blocks(
    fs: Filesystem, volume: Volume
) -> None:
    """Partly cleared blocks that are not cached are fetched, and their other bytes stay."""
    ino, content = await filled(fs, b"f", 3 * BLOCK_BYTES)
    await volume.evict()

    await fs.ranges.allocate(ino, PUNCH, 10, 2 * BLOCK_BYTES)

    zeros = bytes(2 * BLOCK_BYTES)
    assert await whole(fs, ino) == content[:10] + zeros + content[10 + 2 * BLOCK_BYTES :]


async def test_many_blocks_are_unmapped_in_several_slices(fs: Filesystem) -> None:
    """Clearing a range of 550 blocks takes more than one slice."""
    ino = make_file(fs, b"f")
    for index in range(0, 1200, 2):
        await fs.write(ino, index * BLOCK_BYTES, b"x")
    size_bytes = fs.getattr(ino).size_bytes

    await fs.ranges.allocate(ino, PUNCH, BLOCK_BYTES, 1100 * BLOCK_BYTES)

    assert [index for index, _block in mapped(fs, ino)] == [0, *range(1102, 1200, 2)]
    assert fs.getattr(ino).size_bytes == size_bytes


@sliced(purged_blocks=2)
async def test_file_locked_during_a_hole_punch_keeps_its_remaining_blocks(fs: Filesystem) -> None:
    """If a file is locked between two slices of a hole punch, its remaining blocks stay."""
    ino, _content = await filled(fs, b"f", 7 * BLOCK_BYTES)

    async def lock() -> None:
        while fs.getattr(ino).mapped_blocks == 7:  # noqa: ASYNC110 - there is no event to wait for
            await trio.lowlevel.checkpoint()
        fs.db.begin()
        inodes.set_flag(fs.db, ino, InodeFlag.LOCKED, on=True)

    async def clear() -> None:
        with pytest.raises(NotPermittedError):
            await fs.ranges.allocate(ino, PUNCH, 0, 7 * BLOCK_BYTES)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lock)
        nursery.start_soon(clear)
    left = fs.getattr(ino).mapped_blocks
    assert 0 < left < 7
    assert len(mapped(fs, ino)) == left


@pytest.mark.parametrize(
    ("mode", "size_bytes"), [(0, 500), (ZERO_RANGE, 500), (KEEP_SIZE, 100), (PUNCH, 100)]
)
async def test_allocation_extends_a_file_unless_keep_size_is_set(
    fs: Filesystem, mode: int, size_bytes: int
) -> None:
    """Without KEEP_SIZE, allocation extends a file. It clears content only on request."""
    ino, content = await filled(fs, b"f", 100)

    await fs.ranges.allocate(ino, mode, 50, 450)

    kept = 100 if mode in {0, KEEP_SIZE} else 50
    assert fs.getattr(ino).size_bytes == size_bytes
    assert await whole(fs, ino) == content[:kept] + bytes(size_bytes - kept)


async def test_allocation_above_the_filesystem_capacity_is_refused(fs: Filesystem) -> None:
    """An allocation above the capacity is refused. Punching a hole needs no space."""
    fs.set_capacity(10 * BLOCK_BYTES)
    ino, _content = await filled(fs, b"f", 4 * BLOCK_BYTES)

    await fs.ranges.allocate(ino, 0, 0, 10 * BLOCK_BYTES)
    with pytest.raises(NoSpaceLeftError):
        await fs.ranges.allocate(ino, KEEP_SIZE, 0, 11 * BLOCK_BYTES)
    await fs.ranges.allocate(ino, PUNCH, 0, 11 * BLOCK_BYTES)


@pytest.mark.parametrize("mode", [0, KEEP_SIZE])
async def test_allocation_after_the_content_of_a_file_needs_space(
    fs: Filesystem, mode: int
) -> None:
    """Blocks outside of the range do not count; posix_fallocate(3) often extends a file."""
    fs.set_capacity(10 * BLOCK_BYTES)
    ino, _content = await filled(fs, b"f", 8 * BLOCK_BYTES)

    with pytest.raises(NoSpaceLeftError):
        await fs.ranges.allocate(ino, mode, 8 * BLOCK_BYTES, 8 * BLOCK_BYTES)

    assert fs.getattr(ino).size_bytes == 8 * BLOCK_BYTES
    await fs.ranges.allocate(ino, mode, 7 * BLOCK_BYTES, 3 * BLOCK_BYTES)


@pytest.mark.parametrize("capacity_bytes", [0, 10 * BLOCK_BYTES])
async def test_allocation_above_the_free_disk_space_is_refused(
    fs: Filesystem, capacity_bytes: int
) -> None:
    """An allocation one byte above the free space fails, with or without a capacity."""
    ino = make_file(fs, b"f")
    fs.set_capacity(capacity_bytes)
    fs.xattrs.set(ino, b"user.a", b"x" * 100, USER)
    free_bytes = fs.statfs().free_bytes

    for mode in (0, KEEP_SIZE):
        with pytest.raises(NoSpaceLeftError):
            await fs.ranges.allocate(ino, mode, 0, free_bytes + 1)
    assert fs.getattr(ino).size_bytes == 0


async def test_allocation_cannot_use_the_disk_space_of_pinned_blocks(
    fs: Filesystem, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space of pinned clean blocks is not available, because they cannot be evicted."""
    _pinned, new = await filled(fs, b"f", 4 * BLOCK_BYTES), make_file(fs, b"new")
    await volume.upload()
    cache = volume.session.cache
    monkeypatch.setattr(cache.disk, "spare_bytes", lambda: 3 * BLOCK_BYTES)
    await fs.ranges.allocate(new, KEEP_SIZE, 0, 7 * BLOCK_BYTES)
    for block in cache.index.blocks():
        cache.index.pin(block, BLOCK_BYTES)

    with pytest.raises(NoSpaceLeftError, match="local disk"):
        await fs.ranges.allocate(new, KEEP_SIZE, 0, 4 * BLOCK_BYTES)
    await fs.ranges.allocate(new, KEEP_SIZE, 0, 3 * BLOCK_BYTES)


async def test_allocation_that_does_not_fit_on_the_local_disk_is_refused(
    fs: Filesystem, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allocation must fit into the free disk space plus the clean blocks that can be evicted."""
    ino, _content = await filled(fs, b"f", 4 * BLOCK_BYTES)
    monkeypatch.setattr(volume.session.cache.disk, "spare_bytes", lambda: 3 * BLOCK_BYTES)

    await fs.ranges.allocate(ino, KEEP_SIZE, 0, 7 * BLOCK_BYTES)
    for length in (8 * BLOCK_BYTES, 1 << 40):
        with pytest.raises(NoSpaceLeftError, match="local disk"):
            await fs.ranges.allocate(ino, KEEP_SIZE, 0, length)
    await volume.upload()
    await fs.ranges.allocate(ino, KEEP_SIZE, 0, 11 * BLOCK_BYTES)
    monkeypatch.setattr(volume.session.cache, "bytes_max", 2 * BLOCK_BYTES)
    await fs.ranges.allocate(ino, KEEP_SIZE, 0, 1 << 40)


@pytest.mark.parametrize(
    ("mode", "offset", "length", "error"),
    [
        (COLLAPSE_RANGE, 0, BLOCK_BYTES, NotSupportedError),
        (PUNCH_HOLE, 0, BLOCK_BYTES, NotSupportedError),
        (0, -1, 10, InvalidRequestError),
        (0, 0, 0, InvalidRequestError),
        (0, FILE_BYTES_MAX, 1, TooBigError),
    ],
)
async def test_invalid_fallocate_call_is_refused(
    fs: Filesystem, mode: int, offset: int, length: int, error: type[Exception]
) -> None:
    """Fallocate refuses an unsupported mode or an invalid range, and leaves the file unchanged."""
    ino, content = await filled(fs, b"f", 100)
    begun: list[Ino] = []

    with pytest.raises(error):
        await fs.ranges.allocate(ino, mode, offset, length, begun.append)

    assert await whole(fs, ino) == content
    assert begun == []


async def test_locked_file_can_be_neither_cleared_nor_overwritten(fs: Filesystem) -> None:
    """A locked file cannot be punched or overwritten, but it can be copied."""
    ino, content = await filled(fs, b"f", 100)
    other = make_file(fs, b"g")
    await fs.write(other, 0, b"another")
    fs.db.begin()
    fs.db.inodes.run("UPDATE inodes SET flags = flags | ? WHERE ino = ?", (InodeFlag.LOCKED, ino))
    assert fs.getattr(ino).flags & InodeFlag.LOCKED

    for mode in (0, PUNCH, ZERO_RANGE):
        with pytest.raises(NotPermittedError):
            await fs.ranges.allocate(ino, mode, 0, 10)
    with pytest.raises(NotPermittedError):
        await fs.ranges.copy(other, 0, ino, 0, 10)
    assert await fs.ranges.copy(ino, 0, other, 0, 100) == 100
    assert await whole(fs, other) == content


# --- copies that share blocks ------------------------------------------------------------------


async def test_copy_shares_uploaded_blocks(fs: Filesystem, volume: Volume) -> None:
    """A copy shares the uploaded blocks of its source, without reading any content."""
    ino, content = await filled(fs, b"f", 3 * BLOCK_BYTES)
    await volume.evict()
    other = make_file(fs, b"g")
    volume.store.fail("get_range")

    assert await fs.ranges.copy(ino, 0, other, 0, 1 << 40) == len(content)
    assert mapped(fs, other) == mapped(fs, ino)

    with pytest.raises(TransientStoreError):
        await whole(fs, other)  # This is the first download, which fails once.
    assert await whole(fs, other) == content


@pytest.mark.parametrize("at_once", [True, False])
async def test_copy_of_a_small_uploaded_file_shares_its_block(
    fs: Filesystem, volume: Volume, at_once: bool
) -> None:
    """A copy of a small uploaded file shares its block until a later write."""
    ino, content = await filled(fs, b"f", BLOCK_BYTES // 2 + 1)
    await volume.evict()
    other = make_file(fs, b"g")
    volume.store.fail("get_range")

    if at_once:
        assert fs.ranges.try_copy(ino, 0, other, 0, 1 << 40) == len(content)
    else:
        assert await fs.ranges.copy(ino, 0, other, 0, 1 << 40) == len(content)

    assert mapped(fs, other) == mapped(fs, ino)
    assert fs.getattr(other).size_bytes == len(content)
    with pytest.raises(TransientStoreError):
        await whole(fs, other)  # This is the first download, which fails once.
    await fs.write(other, len(content), b"more")
    assert await whole(fs, other) == content + b"more"
    assert await whole(fs, ino) == content


@pytest.mark.parametrize(("at", "length"), [(0, 9), (BLOCK_BYTES, 5), (7, 10), (0, 1 << 30)])
@pytest.mark.parametrize("size_bytes", [3, 10, BLOCK_BYTES, BLOCK_BYTES + 9])
@pytest.mark.parametrize("uploaded", [True, False])
async def test_copy_of_a_small_file_without_waiting_equals_its_source(
    fs: Filesystem, volume: Volume, uploaded: bool, size_bytes: int, at: int, length: int
) -> None:
    """A copy that does not wait has the same result as a copy between bytearrays."""
    ino, content = await filled(fs, b"f", 10)
    other = make_file(fs, b"g")
    expected = bytearray(random.Random(8).randbytes(size_bytes))
    await fs.write(other, 0, bytes(expected))
    if uploaded:
        await volume.upload()
    part = content[:length]

    assert fs.ranges.try_copy(ino, 0, other, at, length) == len(part)

    expected.extend(bytes(max(at - len(expected), 0)))
    expected[at : at + len(part)] = part
    assert await whole(fs, other) == bytes(expected)
    assert await whole(fs, ino) == content
    await volume.upload()
    mapped(fs, other)


async def test_copy_without_waiting_is_refused_if_the_copy_would_have_to_wait(
    fs: Filesystem, volume: Volume
) -> None:
    """The function try_copy refuses uncached content and copies of several blocks."""
    ino, content = await filled(fs, b"f", 2 * BLOCK_BYTES)
    other = make_file(fs, b"g")
    assert fs.ranges.try_copy(ino, 0, other, 0, len(content)) is None
    await volume.evict()
    assert fs.ranges.try_copy(ino, 0, other, 0, 5) is None
    assert fs.getattr(other).size_bytes == 0


async def test_copy_without_waiting_into_a_full_cache_is_refused(volume: Volume) -> None:
    """If dirty blocks fill the cache, a copy has to wait, so try_copy refuses it."""
    async with volume.mounted(cache_bytes=2 * BLOCK_BYTES) as fs:
        ino, _content = await filled(fs, b"f", 2 * BLOCK_BYTES)
        other = make_file(fs, b"g")

        assert fs.ranges.try_copy(ino, 0, other, 0, 5) is None

        assert fs.getattr(other).size_bytes == 0
        assert fs.getattr(other).mapped_blocks == 0


async def test_copy_of_a_part_of_a_block_excludes_the_other_bytes_of_the_block(
    fs: Filesystem, volume: Volume
) -> None:
    """If the copy of a part of a block is extended, it has zeros after the copied part."""
    ino, content = await filled(fs, b"f", 100)
    await volume.upload()
    other = make_file(fs, b"g")

    assert fs.ranges.try_copy(ino, 0, other, 0, 40) == 40
    await fs.setattr(other, SetAttributes(size_bytes=100), USER)

    assert await whole(fs, other) == content[:40] + bytes(60)


@pytest.mark.parametrize("blocks_copied", [1, 3])
@pytest.mark.parametrize("is_cached", [True, False])
async def test_damaged_block_is_not_shared_with_a_copy(
    fs: Filesystem, volume: Volume, blocks_copied: int, is_cached: bool
) -> None:
    """A copy of a cached block whose pack is missing gets a block of its own.

    If the block is not cached, the copy fails.
    """
    size_bytes = (blocks_copied - 1) * BLOCK_BYTES + 5000
    ino, content = await filled(fs, b"f", size_bytes)
    await volume.upload()
    if not is_cached:
        await volume.evict()
    db = volume.session.db
    for pack, key in list(packs.all_keys(db)):
        volume.session.damage.mark(Mark(pack, None), "is missing")
        await volume.store.delete([key])
    other = make_file(fs, b"g")

    if is_cached:
        done = fs.ranges.try_copy(ino, 0, other, 0, size_bytes)
        if done is None:
            done = await fs.ranges.copy(ino, 0, other, 0, size_bytes)
        assert done == size_bytes
        assert not set(mapped(fs, other)) & set(mapped(fs, ino))
        await volume.evict()
        assert await whole(fs, other) == await whole(fs, ino) == content
    else:
        with pytest.raises(ObjectMissingError):
            await fs.ranges.copy(ino, 0, other, 0, size_bytes)
        assert fs.getattr(other).size_bytes == 0


async def test_write_to_a_copy_does_not_change_the_source(fs: Filesystem, volume: Volume) -> None:
    """After writes to a file and its copy, each file has its own content."""
    ino, content = await filled(fs, b"f", 2 * BLOCK_BYTES)
    await volume.upload()
    other = make_file(fs, b"g")
    await fs.ranges.copy(ino, 0, other, 0, len(content))

    await fs.write(other, 0, b"other")
    await fs.write(ino, BLOCK_BYTES, b"first")

    assert await whole(fs, other) == b"other" + content[5:]
    assert await whole(fs, ino) == content[:BLOCK_BYTES] + b"first" + content[BLOCK_BYTES + 5 :]


@pytest.mark.parametrize("uploaded", [True, False])
@pytest.mark.parametrize(
    ("offset", "at", "length"),
    [
        (0, 0, 4 * BLOCK_BYTES),
        (5, 0, 2 * BLOCK_BYTES),
        (BLOCK_BYTES, 3 * BLOCK_BYTES, 2 * BLOCK_BYTES),
        (7, BLOCK_BYTES + 7, 2 * BLOCK_BYTES),
        (3 * BLOCK_BYTES + 10, 10, 5 * BLOCK_BYTES),
        (10 * BLOCK_BYTES, 0, 5),
    ],
)
async def test_copy_of_a_range_equals_its_source(
    fs: Filesystem, volume: Volume, uploaded: bool, offset: int, at: int, length: int
) -> None:
    """The result is the same as that of a copy between bytearrays."""
    ino, content = await filled(fs, b"f", 4 * BLOCK_BYTES + 100)
    await fs.ranges.allocate(ino, PUNCH, BLOCK_BYTES, BLOCK_BYTES)
    source = bytearray(content)
    source[BLOCK_BYTES : 2 * BLOCK_BYTES] = bytes(BLOCK_BYTES)
    other = make_file(fs, b"g")
    expected = bytearray(random.Random(8).randbytes(3 * BLOCK_BYTES))
    await fs.write(other, 0, bytes(expected))
    if uploaded:
        await volume.upload()
    part = source[offset : offset + length]

    assert await fs.ranges.copy(ino, offset, other, at, length) == len(part)

    if part:
        expected.extend(bytes(max(at - len(expected), 0)))
        expected[at : at + len(part)] = part
    assert await whole(fs, other) == bytes(expected)
    assert await whole(fs, ino) == bytes(source)
    mapped(fs, other)


@sliced(purged_blocks=3)
async def test_copy_over_many_blocks_releases_old_blocks_in_slices(
    fs: Filesystem, volume: Volume
) -> None:
    """A copy keeps target blocks that equal the source, and releases other blocks in slices."""
    ino, content = await filled(fs, b"f", 5 * BLOCK_BYTES)
    await fs.write(ino, 5 * BLOCK_BYTES, content)
    other, _content = await filled(fs, b"g", 12 * BLOCK_BYTES)
    await volume.upload()
    assert len({block for _index, block in mapped(fs, ino)}) == 5

    for _ in range(2):
        assert await fs.ranges.copy(ino, 0, other, 0, 1 << 30) == 2 * len(content)

    assert mapped(fs, other)[:10] == mapped(fs, ino)
    assert (await whole(fs, other))[: 2 * len(content)] == content + content
    refs = fs.db.all(
        "SELECT b.refs, (SELECT count(*) FROM block_map WHERE block = b.block) FROM blocks b"
    )
    assert all(named == counted for named, counted in refs)


async def test_failed_copy_returns_the_number_of_copied_bytes(
    fs: Filesystem, volume: Volume
) -> None:
    """A copy that fails after two blocks returns their length, and the next call raises the error.

    Otherwise the kernel would keep outdated pages of the target.
    """
    ino, content = await filled(fs, b"f", 2 * BLOCK_BYTES + 10)
    await volume.evict()
    other = make_file(fs, b"g")
    volume.store.fail("get_range", times=2)

    assert await fs.ranges.copy(ino, 0, other, 0, len(content) - 1) == 2 * BLOCK_BYTES
    with pytest.raises(TransientStoreError):
        await fs.ranges.copy(ino, 2 * BLOCK_BYTES, other, 2 * BLOCK_BYTES, 9)
    assert await whole(fs, other) == content[: 2 * BLOCK_BYTES]


@sliced(shared_blocks=1 << 20)
async def test_length_of_one_copy_is_limited_by_its_32_bit_result(fs: Filesystem) -> None:
    """A copy of 8 GiB returns after 1 GiB, because the result of copy_file_range has 32 bits."""
    ino, other = make_file(fs, b"f"), make_file(fs, b"g")
    await fs.data.truncate(ino, 8 << 30)

    assert await fs.ranges.copy(ino, 0, other, 0, 8 << 30) == 1 << 30
    assert fs.getattr(other).size_bytes == 1 << 30


async def test_sharing_a_range_or_punching_a_hole_sets_mtime(
    fs: Filesystem, volume: Volume
) -> None:
    """Sharing or punching a range sets mtime, because the kernel does not set it."""
    ino, _content = await filled(fs, b"f", 2 * BLOCK_BYTES)
    await volume.upload()
    other = make_file(fs, b"g")

    now_ns = volume.clock.later()
    await fs.ranges.copy(ino, 0, other, 0, 2 * BLOCK_BYTES)
    assert fs.getattr(other).mtime_ns == now_ns
    now_ns = volume.clock.later()
    await fs.ranges.allocate(other, PUNCH, 0, BLOCK_BYTES)
    assert fs.getattr(other).mtime_ns == now_ns


@sliced(copied_bytes=BLOCK_BYTES + 1)
async def test_one_copy_call_copies_a_limited_range_of_dirty_blocks(fs: Filesystem) -> None:
    """cp(1) repeats the call until its result is 0."""
    ino, content = await filled(fs, b"f", 5 * BLOCK_BYTES)
    other = make_file(fs, b"g")

    counts, at = [], 0
    while count := await fs.ranges.copy(ino, at, other, at, 1 << 40):
        counts.append(count)
        at += count

    assert counts == [2 * BLOCK_BYTES, 2 * BLOCK_BYTES, BLOCK_BYTES]
    assert await whole(fs, other) == content


async def test_copy_within_one_file_shares_blocks(fs: Filesystem, volume: Volume) -> None:
    """After a copy within one file, the two halves of the file have the same two blocks."""
    ino, content = await filled(fs, b"f", 2 * BLOCK_BYTES)
    await volume.upload()

    assert await fs.ranges.copy(ino, 0, ino, 2 * BLOCK_BYTES, 2 * BLOCK_BYTES) == len(content)

    assert await whole(fs, ino) == content + content
    assert len({block for _index, block in mapped(fs, ino)}) == 2
