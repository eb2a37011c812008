"""The in-memory index of cached blocks."""

import gc
import random
from functools import partial

from s3fs_meta.cache.index import CacheIndex, Held
from s3fs_meta.model import BlockId, BlockState


def index_of(*blocks: tuple[int, BlockState, int]) -> CacheIndex:
    """Return an index of blocks that are given as numbers, states and sizes."""
    index = CacheIndex()
    for number, state, size_bytes in blocks:
        index.put(BlockId(number), state, size_bytes, now_s=float(number))
    return index


def test_cache_index_totals_are_updated_when_the_state_of_a_block_changes() -> None:
    """The cache index counts each block in its current state only."""
    index = index_of((1, BlockState.DIRTY, 10), (2, BlockState.CLEAN, 5))

    index.move(BlockId(1), BlockState.SEALED)

    assert index.bytes_in[BlockState.DIRTY] == 0
    assert index.bytes_in[BlockState.SEALED] == 10
    assert index.pending_bytes == 10
    assert index.total_bytes == 15
    assert index.total_count == 2


def test_block_dropped_from_the_cache_index_is_not_counted() -> None:
    index = index_of((1, BlockState.CLEAN, 10))

    index.drop(BlockId(1))

    assert index.get(BlockId(1)) is None
    assert index.total_bytes == 0
    assert index.oldest_clean() is None


def test_least_recently_used_clean_block_is_evicted_next() -> None:
    index = index_of((1, BlockState.CLEAN, 1), (2, BlockState.CLEAN, 1), (3, BlockState.CLEAN, 1))

    index.used(BlockId(1))

    assert index.oldest_clean() == BlockId(2)


def test_only_clean_blocks_can_be_evicted() -> None:
    """Dirty, sealed, uploaded and unreferenced blocks are not selected for eviction."""
    index = index_of(
        (1, BlockState.DIRTY, 1),
        (2, BlockState.SEALED, 1),
        (3, BlockState.UPLOADED, 1),
        (4, BlockState.DOOMED, 1),
    )

    assert index.oldest_clean() is None


def test_oldest_dirty_blocks_are_selected_for_upload_within_limits() -> None:
    """At most a given number and size of dirty blocks is selected for upload, but at least one."""
    index = index_of(*((number, BlockState.DIRTY, 100) for number in range(1, 6)))

    assert index.dirty_before(10.0, 250) == [BlockId(1), BlockId(2)]
    assert index.dirty_before(10.0, 1) == [BlockId(1)]
    assert index.dirty_before(2.0, 1000) == [BlockId(1), BlockId(2)]
    assert index.dirty_before(0.5, 1000) == []
    assert index.dirty_before(10.0, 1000, 1) == [BlockId(1)]


def test_index_lists_blocks_whose_length_changed_since_the_last_sync() -> None:
    index = index_of((1, BlockState.DIRTY, 10), (2, BlockState.DIRTY, 20))
    written = [BlockId(1), BlockId(2), BlockId(3)]
    for block in written:
        index.note_write(block)
    unsynced = index.take_unsynced()
    assert (sorted(unsynced.lengths), unsynced.named) == ([(1, 10), (2, 20)], set())

    for block, length in unsynced.lengths:
        index.note_synced(block, length)
    index.put(BlockId(1), BlockState.DIRTY, 15)
    index.drop(BlockId(2))
    index.put(BlockId(2), BlockState.DIRTY, 20)
    for block in written:
        index.note_write(block)

    unsynced = index.take_unsynced()
    assert (sorted(unsynced.lengths), unsynced.named) == ([(1, 15), (2, 20)], {1})


def test_unsynced_block_is_listed_once_after_several_writes() -> None:
    """After a block is listed for a sync, only another write makes the index list it again."""
    index = CacheIndex()
    index.note_write(BlockId(1))
    index.note_write(BlockId(2))
    index.note_write(BlockId(1))

    assert sorted(index.take_unsynced().blocks) == [BlockId(1), BlockId(2)]
    assert index.take_unsynced().blocks == []


def test_unread_blocks_fetched_by_read_ahead_are_evicted_first() -> None:
    """If read-ahead has fetched too many unread blocks, these blocks are evicted first."""
    index = CacheIndex()
    index.put(BlockId(1), BlockState.CLEAN, 10)
    for block in (2, 3, 4):
        index.put_unrequested(BlockId(block), 10)
    assert (index.oldest_clean(29), index.oldest_clean(30)) == (2, 1)

    index.used(BlockId(2))
    index.drop(BlockId(3))

    assert index.unasked_bytes == 10
    assert (index.oldest_clean(9), index.oldest_clean(10)) == (4, 1)
    index.drop(BlockId(1))
    index.drop(BlockId(2))
    assert index.oldest_clean(10) == 4
    index.move(BlockId(4), BlockState.SEALED)
    assert (index.unasked_bytes, index.oldest_clean()) == (0, None)


def test_pinned_block_is_not_selected_as_the_next_block_to_evict() -> None:
    """A pin also protects a dirty block that becomes clean, and blocks cached after the pin."""
    index = index_of((1, BlockState.CLEAN, 10), (2, BlockState.CLEAN, 5), (3, BlockState.DIRTY, 7))
    for block in (1, 3, 4):
        index.pin(BlockId(block), 10)
    index.pin(BlockId(1), 10)  # Block 1 is already pinned.
    index.move(BlockId(3), BlockState.CLEAN)
    index.put_unrequested(BlockId(4), 2)
    index.used(BlockId(1))

    assert index.oldest_clean() == 2
    assert index.kept_bytes == 10 + 7 + 2
    assert index.evictable_bytes == 5
    assert (index.pinned_bytes, index.pinned_count) == (30, 3)
    index.drop(BlockId(2))
    assert index.oldest_clean() is None
    index.reconsider()
    assert index.oldest_clean() is None

    index.clear()
    index.put(BlockId(1), BlockState.CLEAN, 10)
    assert (index.oldest_clean(), index.kept_bytes) == (None, 10)


def test_unpinned_block_can_be_evicted_again() -> None:
    index = index_of((1, BlockState.CLEAN, 10), (2, BlockState.CLEAN, 5))
    index.pin(BlockId(1), 10)
    index.unpin(BlockId(1))
    index.unpin(BlockId(9))  # Block 9 was never pinned.

    assert [index.oldest_clean(), index.kept_bytes, index.pinned_bytes] == [2, 0, 0]
    index.drop(BlockId(2))
    assert index.oldest_clean() == 1


def test_pinned_block_that_may_be_the_last_copy_is_counted_once_as_pinned() -> None:
    index = index_of((1, BlockState.CLEAN, 10))
    index.spare(BlockId(1))
    index.pin(BlockId(1), 10)

    assert (index.spared_bytes, index.kept_bytes, index.evictable_bytes) == (0, 10, 0)
    index.reconsider()
    assert index.oldest_clean() is None


def test_clean_blocks_add_no_work_to_python_garbage_collections() -> None:
    """A garbage collection of Python delays requests, so clean blocks must not lengthen it."""
    index = CacheIndex()
    gc.collect()
    before = len(gc.get_objects())

    for number in range(1000, 2000):
        index.made(BlockId(number), number, 0.0)
        index.note_synced(BlockId(number), number)
        index.move(BlockId(number), BlockState.CLEAN)

    gc.collect()
    assert len(gc.get_objects()) - before < 100
    assert index.get(BlockId(1999)) == Held(BlockState.CLEAN, 1999)


def test_index_returns_the_latest_state_and_size_of_each_block_after_random_changes() -> None:
    draw = random.Random(7)
    index, expected, pinned = CacheIndex(), dict[BlockId, Held](), set[BlockId]()
    for _ in range(5000):
        block, size_bytes = BlockId(draw.randrange(20)), draw.randrange(100)
        state, change = draw.choice(list(BlockState)), draw.randrange(8)
        held = expected.get(block)
        is_clean = held is not None and held.state is BlockState.CLEAN
        if change == 0:
            index.drop(block)
            expected.pop(block, None)
        elif change == 1:
            index.put_unrequested(block, size_bytes)
            expected[block] = Held(BlockState.CLEAN, size_bytes)
        elif change == 2 and is_clean and block not in pinned:
            if not index.unspare(block):
                index.spare(block)
        elif change == 3:
            change_pin = (
                index.unpin if block in pinned else partial(index.pin, size_bytes=size_bytes)
            )
            change_pin(block)
            pinned ^= {block}
        elif change == 4 and held is not None:
            index.move(block, state)
            expected[block] = Held(state, held.size_bytes)
        elif change == 5:
            index.used(block)
        else:
            index.put(block, state, size_bytes)
            expected[block] = Held(state, size_bytes)
        assert {block: index.get(block) for block in index.blocks()} == expected
        assert all((BlockId(one) in index) == (one in expected) for one in range(20))
        assert index.total_bytes == sum(held.size_bytes for held in expected.values())
    assert sum(index.count_in.values()) == index.total_count == len(expected)
    assert sum(index.bytes_in.values()) == index.total_bytes
