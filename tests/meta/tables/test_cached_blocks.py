"""Tests of the table cached_blocks: states, synced lengths and totals of cached blocks."""

import pytest

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import blocks, cached_blocks, damage_marks, packs
from s3fs_meta.meta.tables.cached_blocks import StateTotal
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import BlockId, BlockIndex, BlockState, CachedRow, Ino, ObjectKey


def make_block(
    db: Database, state: BlockState, plain_bytes: int = 100, ino: int = 5, index: int = 0
) -> BlockId:
    """Create a cached block in a given state."""
    block = db.counters.take_block()
    blocks.create_dirty(db, block, Ino(ino), BlockIndex(index), plain_bytes)
    cached_blocks.set_state(db, block, state)
    return block


def test_row_of_a_cached_block_can_be_added_and_changed_and_deleted(db: Database) -> None:
    """A change of the state of a block without a row returns False."""
    block = BlockId(7)
    assert cached_blocks.get(db, block) is None
    assert not cached_blocks.set_state(db, block, BlockState.CLEAN)
    cached_blocks.put(db, block, BlockState.CLEAN, Ino(3), BlockIndex(4))
    cached_blocks.put(db, block, BlockState.SEALED, Ino(5), BlockIndex(6))
    assert cached_blocks.get(db, block) == CachedRow(
        block, BlockState.SEALED, Ino(5), BlockIndex(6)
    )
    assert cached_blocks.set_state(db, block, BlockState.UPLOADED)
    cached_blocks.delete(db, block)
    cached_blocks.delete(db, block)
    assert cached_blocks.get(db, block) is None


def test_unsynced_bytes_of_dirty_and_sealed_blocks_are_listed(db: Database) -> None:
    """A block in a pack needs no sync, even while compaction has sealed it."""
    one, two = make_block(db, BlockState.DIRTY), make_block(db, BlockState.SEALED)
    make_block(db, BlockState.CLEAN)
    moving = make_block(db, BlockState.SEALED)
    db.run("UPDATE blocks SET pack = 1 WHERE block = ?", (moving,))
    plain_bytes = blocks.get(db, one).plain_bytes
    assert cached_blocks.unsynced_tails(db) == [(one, 0, plain_bytes), (two, 0, plain_bytes)]

    cached_blocks.note_synced(db, [(one, plain_bytes), (two, 5), (BlockId(99), 1)])

    assert cached_blocks.unsynced_tails(db) == [(two, 5, plain_bytes)]


@pytest.mark.parametrize("state", list(BlockState))
def test_cached_blocks_in_one_state_are_listed(db: Database, state: BlockState) -> None:
    """The list of blocks in a state is sorted by block number and can be limited."""
    made = {one: [make_block(db, one) for _ in range(3)] for one in BlockState}
    assert cached_blocks.in_state(db, state) == made[state]
    assert cached_blocks.in_state(db, state, 2) == made[state][:2]


def test_query_for_pending_blocks_uses_an_index(db: Database) -> None:
    """An index finds the few pending blocks among 250,000 clean blocks."""
    plan = db.all(
        "EXPLAIN QUERY PLAN SELECT block FROM cached_blocks"
        " WHERE state <> 4 AND state = ? ORDER BY block LIMIT ?",
        (1, 1),
    )
    assert "cached_blocks_pending" in plan[0][3]


def test_sealed_blocks_are_ordered_by_inode_and_index(db: Database) -> None:
    third = make_block(db, BlockState.SEALED, 10, ino=9, index=0)
    second = make_block(db, BlockState.SEALED, 20, ino=8, index=5)
    first = make_block(db, BlockState.SEALED, 30, ino=8, index=4)
    make_block(db, BlockState.DIRTY, 40, ino=8, index=3)
    assert cached_blocks.sealed_rows(db) == [
        (first, 8, 4, 30),
        (second, 8, 5, 20),
        (third, 9, 0, 10),
    ]


def test_sizes_and_totals_of_cached_blocks_are_loaded_at_start(db: Database) -> None:
    """A block in the state DOOMED may have no row in the table of blocks."""
    dirty = make_block(db, BlockState.DIRTY, 10)
    clean = [make_block(db, BlockState.CLEAN, size) for size in (20, 30)]
    doomed = make_block(db, BlockState.DOOMED, 40)
    blocks.drop_ref(db, doomed)
    blocks.delete(db, doomed)
    assert list(cached_blocks.rows_with_size(db)) == [
        (dirty, BlockState.DIRTY, 10),
        (clean[0], BlockState.CLEAN, 20),
        (clean[1], BlockState.CLEAN, 30),
        (doomed, BlockState.DOOMED, 0),
    ]
    totals = cached_blocks.totals(db)
    assert totals[BlockState.CLEAN] == StateTotal(2, 50)
    assert totals[BlockState.SEALED] == StateTotal(0, 0)
    assert totals[BlockState.DOOMED] == StateTotal(1, 0)


def test_sealed_blocks_with_references_become_dirty_after_a_crash(db: Database) -> None:
    """After a crash, a sealed block becomes DIRTY if a file uses it, and otherwise DOOMED."""
    kept = make_block(db, BlockState.SEALED)
    let_go = make_block(db, BlockState.SEALED)
    clean = make_block(db, BlockState.CLEAN)
    moving = make_block(db, BlockState.SEALED)
    pack = packs.create(db, ObjectKey("pack/00/1-00"), 100)
    blocks.set_location(db, blocks.get(db, moving), bytes(32), pack, 0, 50)
    blocks.drop_ref(db, let_go)
    cached_blocks.unseal_all(db)
    states = {block: state for block, state, _ in cached_blocks.rows_with_size(db)}
    assert states == {
        kept: BlockState.DIRTY,
        let_go: BlockState.DOOMED,
        clean: BlockState.CLEAN,
        # The block is not clean, because its location may not be durable.
        moving: BlockState.UPLOADED,
    }
    assert blocks.find(db, let_go) is None
    assert db.counters.block_bytes == 300


@pytest.mark.parametrize(("offset", "found"), [(None, True), (7, True), (8, False)])
def test_cached_blocks_at_damaged_locations_are_detected(
    db: Database, offset: int | None, found: bool
) -> None:
    """A damage mark of a record affects only the block in this record."""
    key = ObjectKey("pack/00/1-" + "0" * 32)
    packs.create(db, ObjectKey("pack/11/1-" + "1" * 32), 100)
    pack = packs.create(db, key, 100)
    make_block(db, BlockState.DIRTY)
    damage_marks.add(db, Mark(pack, offset))
    assert not cached_blocks.are_marked(db, db)

    block = make_block(db, BlockState.CLEAN)
    db.run("UPDATE blocks SET pack = ?, pack_offset = 7 WHERE block = ?", (pack, block))

    assert cached_blocks.are_marked(db, db) == found
