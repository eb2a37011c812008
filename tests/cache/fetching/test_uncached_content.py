"""Blocks that are kept in memory because the disk has no room for them."""

import pytest

from s3fs_meta.cache.fetching.uncached_content import UncachedContent
from s3fs_meta.errors import NotLocalError
from s3fs_meta.limits import ARRIVED_BYTES_MAX
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import BlockId, PackId


def block(number: int, content_hash: bytes = b"h") -> Located:
    """Return an uploaded block that is not in the cache."""
    return Located(BlockId(number), 8, content_hash, PackId(1), 0, 8, None)


def test_content_in_memory_is_found_by_block_number_and_hash() -> None:
    """A block number may refer to a different block after a commit group was lost."""
    uncached = UncachedContent()
    uncached.add(block(1), b"abcdefgh")

    assert uncached.read(block(1), 2, 4) == b"cd"
    assert not uncached.has(block(1, b"other"))
    with pytest.raises(NotLocalError):
        uncached.read(block(2), 0, 1)


def test_oldest_content_in_memory_is_dropped_above_the_memory_limit() -> None:
    uncached = UncachedContent()
    third = bytes(ARRIVED_BYTES_MAX // 3)
    for number in range(1, 5):
        uncached.add(block(number), third)

    assert [uncached.has(block(number)) for number in range(1, 5)] == [False, True, True, True]
    assert uncached.size_bytes == 3 * len(third)


def test_two_blocks_are_kept_in_memory_regardless_of_their_size() -> None:
    """Two blocks stay in memory, because a read across their border needs both."""
    uncached = UncachedContent()
    large = bytes(ARRIVED_BYTES_MAX)
    for number in range(1, 4):
        uncached.add(block(number), large)

    assert [uncached.has(block(number)) for number in range(1, 4)] == [False, True, True]


def test_memory_of_replaced_and_cleared_content_is_freed() -> None:
    uncached = UncachedContent()
    uncached.add(block(1), b"abcdefgh")
    uncached.add(block(1), b"abc")
    assert uncached.size_bytes == 3

    uncached.clear()

    assert uncached.size_bytes == 0
    assert not uncached.has(block(1))
