"""Copies and hole punches whose last block cannot be written: which part has changed.

The kernel drops its cached pages of a range only if the call succeeds.
"""

import random

import pytest

from s3fs_meta.errors import TransientStoreError
from s3fs_meta.fs.content.file_ranges import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.meta.tables import block_map
from s3fs_meta.model import BlockId, BlockIndex, Ino
from tests.fs.conftest import BLOCK_BYTES, Volume, make_file, whole


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
    """A copy of one source block covers two target blocks, of which the second cannot be written."""
    ino, content = await uploaded(fs, volume, b"f", 1)
    other, before = await uploaded(fs, volume, b"g", 2)
    volume.session.files.remove(block_at(fs, other, 1))
    volume.store.fail("get_range")
    half = BLOCK_BYTES // 2

    assert fs.ranges.try_copy(ino, 0, other, half, BLOCK_BYTES) is None
    assert await fs.ranges.copy(ino, 0, other, half, BLOCK_BYTES) == half

    assert await whole(fs, other) == before[:half] + content[:half] + before[2 * half :]


@pytest.mark.parametrize("mode", [PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE])
async def test_range_is_not_cleared_in_part_if_its_last_block_is_unavailable(
    fs: Filesystem, volume: Volume, mode: int
) -> None:
    """If the start were cleared, the kernel would show its old content until it drops its pages."""
    ino, content = await uploaded(fs, volume, b"f", 3)
    await volume.session.cache.evictor.drop([block_at(fs, ino, 2)])
    volume.store.fail("get_range")
    with pytest.raises(TransientStoreError):
        await fs.ranges.allocate(ino, mode, 1, 2 * BLOCK_BYTES)
    assert await whole(fs, ino) == content

    await fs.ranges.allocate(ino, mode, 1, 2 * BLOCK_BYTES)
    cleared = 1 + 2 * BLOCK_BYTES
    assert await whole(fs, ino) == content[:1] + bytes(cleared - 1) + content[cleared:]
