"""Content in memory of blocks for which the disk has no room."""

import pytest

from s3fs_meta.cache.fetching.uncached_content import UncachedContent
from s3fs_meta.errors import NotLocalError
from s3fs_meta.limits import ARRIVED_BYTES_MAX
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import BlockId, PackId


def block(number: int, content_hash: bytes = b"h") -> Located:
    """Return an uploaded block that is not cached."""
    return Located(BlockId(number), 8, content_hash, PackId(1), 0, 8, None)


def test_content_is_found_by_number_and_hash() -> None:
    """A number may belong to another block after a commit group was lost."""
    uncached = UncachedContent()
    uncached.add(block(1), b"abcdefgh")

    assert uncached.read(block(1), 2, 4) == b"cd"
    assert not uncached.has(block(1, b"other"))
    with pytest.raises(NotLocalError):
        uncached.read(block(2), 0, 1)


def test_oldest_content_is_dropped_beyond_the_bound() -> None:
    uncached = UncachedContent()
    third = bytes(ARRIVED_BYTES_MAX // 3)
    for number in range(1, 5):
        uncached.add(block(number), third)

    assert [uncached.has(block(number)) for number in range(1, 5)] == [False, True, True, True]
    assert uncached.size_bytes == 3 * len(third)


def test_two_blocks_are_kept_regardless_of_their_size() -> None:
    """A read at the border of two large blocks needs both of them at the same time."""
    uncached = UncachedContent()
    large = bytes(ARRIVED_BYTES_MAX)
    for number in range(1, 4):
        uncached.add(block(number), large)

    assert [uncached.has(block(number)) for number in range(1, 4)] == [False, True, True]


def test_replaced_and_cleared_content_frees_its_memory() -> None:
    uncached = UncachedContent()
    uncached.add(block(1), b"abcdefgh")
    uncached.add(block(1), b"abc")
    assert uncached.size_bytes == 3

    uncached.clear()

    assert uncached.size_bytes == 0
    assert not uncached.has(block(1))
