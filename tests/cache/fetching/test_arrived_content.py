"""Fetched blocks that are kept in memory until they are read."""

from s3fs_meta.cache.fetching.arrived_content import ArrivedContent, ArrivedRange
from s3fs_meta.limits import ARRIVED_BYTES_MAX, ARRIVED_S_MAX
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import BlockId, BlockState, PackId

CONTENT = memoryview(b"content")
HALF_BYTES = ARRIVED_BYTES_MAX // 2


def located(block: int, digest: bytes = b"1" * 32) -> Located:
    """Return a cached block in a pack."""
    return Located(BlockId(block), len(CONTENT), digest, PackId(1), 0, 8, BlockState.CLEAN)


def test_content_in_memory_is_dropped_after_its_last_byte_is_read() -> None:
    arrived, source = ArrivedContent(), ArrivedRange(100, 0.0)
    arrived.add(located(1), CONTENT, source)

    reads = [arrived.take(located(1), stop) for stop in (3, len(CONTENT), len(CONTENT))]

    assert reads == [CONTENT, CONTENT, None]
    assert arrived.size_bytes == 0


def test_content_in_memory_with_the_wrong_hash_is_not_returned() -> None:
    """A new block may reuse the number of a block in memory if a commit group was lost."""
    arrived = ArrivedContent()
    arrived.add(located(1), CONTENT, ArrivedRange(100, 0.0))

    assert arrived.take(located(1, b"2" * 32), 3) is None


def test_memory_of_a_range_is_counted_until_its_last_block_is_dropped() -> None:
    """A view of one block keeps the memory of the complete fetched range in use."""
    arrived, source = ArrivedContent(), ArrivedRange(100, 0.0)
    for block in (1, 2):
        arrived.add(located(block), CONTENT, source)
    sizes = []
    for block in (1, 2):
        arrived.drop(BlockId(block))
        sizes.append(arrived.size_bytes)

    assert sizes == [100, 0]


def test_decompressed_content_in_memory_is_counted_until_its_range_is_dropped() -> None:
    """A fetched range uses memory both for raw bytes and for decompressed blocks."""
    arrived, source = ArrivedContent(), ArrivedRange(100, 0.0)
    sizes = []
    for block, content in ((1, b"decompressed"), (2, CONTENT), (3, CONTENT)):
        arrived.add(located(block), content, source)
        sizes.append(arrived.size_bytes)
    for block in (1, 2, 3):
        arrived.drop(BlockId(block))

    assert sizes == [12, 112, 112]
    assert arrived.size_bytes == 0


def test_new_range_is_not_kept_in_memory_when_the_limit_is_reached() -> None:
    """If memory is full, earlier ranges stay, because a sequential reader needs them first."""
    arrived = ArrivedContent()
    for block in (1, 2, 3):
        arrived.add(located(block), CONTENT, ArrivedRange(HALF_BYTES, 0.0))

    assert [arrived.take(located(block), 3) for block in (1, 2, 3)] == [CONTENT, CONTENT, None]
    assert arrived.size_bytes <= ARRIVED_BYTES_MAX


def test_range_in_memory_is_replaced_if_its_reader_has_stopped() -> None:
    """If a reader has stopped, its blocks in memory make room for blocks of another reader."""
    arrived = ArrivedContent()
    for block in (1, 2):
        arrived.add(located(block), CONTENT, ArrivedRange(HALF_BYTES, 0.0))
    arrived.add(located(3), CONTENT, ArrivedRange(HALF_BYTES, 2 * ARRIVED_S_MAX))

    assert [arrived.take(located(block), 3) for block in (1, 2, 3)] == [None, None, CONTENT]


def test_block_that_is_fetched_twice_is_kept_in_memory_only_once() -> None:
    arrived = ArrivedContent()
    for content in (memoryview(b"former."), CONTENT):
        arrived.add(located(1), content, ArrivedRange(100, 0.0))

    assert (arrived.size_bytes, arrived.take(located(1), 3)) == (100, CONTENT)


def test_content_is_not_returned_after_memory_is_cleared() -> None:
    arrived = ArrivedContent()
    arrived.add(located(1), CONTENT, ArrivedRange(100, 0.0))

    arrived.clear()

    assert (arrived.size_bytes, arrived.take(located(1), 3)) == (0, None)
