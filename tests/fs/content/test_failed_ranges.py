"""Tests of copies and hole punches whose last block cannot be written.

They check which part of the range has changed, because the kernel drops its cached pages of a range
only if the call succeeds.
"""

import random

import pytest

from s3fs_meta.errors import (
    BadRowError,
    DamagedDatabaseError,
    DatabaseError,
    MetadataError,
    S3fsError,
    TransientStoreError,
)
from s3fs_meta.fs.content.file_ranges import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.meta.tables import block_map
from s3fs_meta.model import BlockId, BlockIndex, Ino
from tests.fs.conftest import BLOCK_BYTES, Volume, make_file, sliced, whole


async def uploaded(fs: Filesystem, volume: Volume, name: bytes, blocks: int) -> tuple[Ino, bytes]:
    """Create an uploaded file whose blocks are all cached."""
    ino, content = make_file(fs, name), random.Random(name).randbytes(blocks * BLOCK_BYTES)
    await fs.write(ino, 0, content)
    await volume.upload()
    return ino, content


def block_at(fs: Filesystem, ino: Ino, index: int) -> BlockId:
    """Return a block of a file."""
    block = block_map.find(fs.db, ino, BlockIndex(index))
    assert block is not None
    return block


async def test_failed_copy_returns_the_bytes_copied_to_an_earlier_block_of_the_target(
    fs: Filesystem, volume: Volume
) -> None:
    """A copy of one source block covers two target blocks, and the second cannot be written."""
    ino, content = await uploaded(fs, volume, b"f", 1)
    other, before = await uploaded(fs, volume, b"g", 2)
    volume.session.files.remove(block_at(fs, other, 1))
    volume.store.fail("get_range")
    half = BLOCK_BYTES // 2

    assert fs.ranges.try_copy(ino, 0, other, half, BLOCK_BYTES) is None
    assert await fs.ranges.copy(ino, 0, other, half, BLOCK_BYTES) == half

    assert await whole(fs, other) == before[:half] + content[:half] + before[2 * half :]


def damage(fs: Filesystem, block: BlockId, change: str) -> None:
    """Change a column of a block's row to a value that the daemon never writes."""
    fs.db.begin()
    fs.db.inodes.run(f"UPDATE blocks SET {change} WHERE block = {block}")
    fs.db.commit()
    fs.db.recent().clear()


@sliced(shared_blocks=1)
@pytest.mark.parametrize(
    ("change", "error"), [("refs = 0", MetadataError), ("plain_bytes = 'text'", BadRowError)]
)
async def test_copy_that_leaves_a_change_incomplete_reports_the_error(
    fs: Filesystem, volume: Volume, change: str, error: type[S3fsError]
) -> None:
    """If the copy returned a number of bytes instead, the incomplete change would be committed."""
    ino, _content = await uploaded(fs, volume, b"f", 2)
    other, _before = await uploaded(fs, volume, b"g", 2)
    damage(fs, block_at(fs, other, 1), change)
    with pytest.raises(error):
        await fs.ranges.copy(ino, 0, other, 0, 2 * BLOCK_BYTES)


@sliced(shared_blocks=1)
@pytest.mark.parametrize(
    ("failure", "error"),
    [("RAISE(ABORT, 'failure')", DatabaseError), ("zeroblob(1 << 40)", DamagedDatabaseError)],
)
async def test_copy_that_sqlite_interrupts_in_a_later_slice_reports_the_error(
    fs: Filesystem, volume: Volume, failure: str, error: type[S3fsError]
) -> None:
    """SQLite refuses the overlong value in this test with an error that also reports damage."""
    ino, _content = await uploaded(fs, volume, b"f", 2)
    other, _before = await uploaded(fs, volume, b"g", 2)
    fs.db.connection.execute(
        "CREATE TEMP TRIGGER failing BEFORE INSERT ON main.block_map"
        f" WHEN new.block_index = 1 BEGIN SELECT {failure}; END"
    )
    with pytest.raises(error):
        await fs.ranges.copy(ino, 0, other, 0, 2 * BLOCK_BYTES)


async def test_copy_ends_before_an_unreadable_row_of_the_source(
    fs: Filesystem, volume: Volume
) -> None:
    """The damaged row is read before the target changes, so the mount stays writable."""
    ino, content = await uploaded(fs, volume, b"f", 2)
    other, before = await uploaded(fs, volume, b"g", 2)
    damage(fs, block_at(fs, ino, 1), "plain_bytes = 'text'")
    length = 2 * BLOCK_BYTES - 1
    assert await fs.ranges.copy(ino, 1, other, 0, length) == BLOCK_BYTES - 1
    assert await whole(fs, other) == content[1:BLOCK_BYTES] + before[BLOCK_BYTES - 1 :]


@pytest.mark.parametrize("mode", [PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE])
async def test_range_is_not_cleared_in_part_if_its_last_block_is_unavailable(
    fs: Filesystem, volume: Volume, mode: int
) -> None:
    """After an error, the kernel keeps its cached pages, so no part of the range may be cleared."""
    ino, content = await uploaded(fs, volume, b"f", 3)
    await volume.session.cache.evictor.drop([block_at(fs, ino, 2)])
    volume.store.fail("get_range")
    with pytest.raises(TransientStoreError):
        await fs.ranges.allocate(ino, mode, 1, 2 * BLOCK_BYTES)
    assert await whole(fs, ino) == content

    await fs.ranges.allocate(ino, mode, 1, 2 * BLOCK_BYTES)
    cleared = 1 + 2 * BLOCK_BYTES
    assert await whole(fs, ino) == content[:1] + bytes(cleared - 1) + content[cleared:]
