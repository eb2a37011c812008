"""The block map: which block contains which byte range of a file."""

import apsw
import pytest

from s3fs_meta.errors import BadRowError, DatabaseError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, blocks, cached_blocks, packs
from s3fs_meta.meta.tables.block_map import FilePart, Located
from s3fs_meta.model import BlockId, BlockIndex, BlockState, Ino, ObjectKey
from tests.meta.conftest import MakeDatabase

FILE = Ino(5)


def at(number: int) -> BlockIndex:
    """Return a number as a block index of a file."""
    return BlockIndex(number)


def map_new_block(db: Database, index: int, ino: Ino = FILE) -> BlockId:
    """Add a dirty block of 100 bytes to a file; return the block number."""
    block = db.counters.take_block()
    blocks.create_dirty(db, block, ino, at(index), 100)
    block_map.set(db, ino, at(index), block)
    return block


def test_lookup_of_a_hole_returns_no_block_and_no_location(db: Database) -> None:
    assert block_map.find(db, FILE, at(0)) is None
    assert block_map.locate(db, FILE, at(0)) is None
    assert block_map.remove(db, FILE, at(0)) is None


def test_changing_the_block_map_returns_the_replaced_block(db: Database) -> None:
    """A change of the block map returns the replaced block, which the caller must release."""
    assert block_map.set(db, FILE, at(3), BlockId(7)) is None
    assert block_map.set(db, FILE, at(3), BlockId(8)) == 7
    assert block_map.remove(db, FILE, at(3)) == 8
    assert block_map.find(db, FILE, at(3)) is None


def test_dirty_block_has_a_state_and_no_location(db: Database) -> None:
    """A dirty block has a state in the cache, but is not in any pack."""
    block = map_new_block(db, 2)
    expected = Located(block, 100, None, None, None, None, BlockState.DIRTY)
    assert block_map.locate(db, FILE, at(2)) == expected


@pytest.mark.parametrize("state", [*BlockState, None])
def test_uploaded_block_has_a_location(db: Database, state: BlockState | None) -> None:
    """A block in a pack has a location, regardless of its state in the cache."""
    block = map_new_block(db, 0)
    pack = packs.create(db, ObjectKey("pack/00/1-a"), 500)
    blocks.set_location(db, blocks.get(db, block), b"h" * 32, pack, 17, 60)
    if state is None:
        cached_blocks.delete(db, block)
    else:
        cached_blocks.set_state(db, block, state)
    located = block_map.locate(db, FILE, at(0))
    assert located == Located(block, 100, b"h" * 32, pack, 17, 60, state)
    assert located.state is state


def test_lookup_of_a_file_range_omits_holes(db: Database) -> None:
    """One query returns all blocks of a file between two indexes, including the last."""
    made = {index: map_new_block(db, index) for index in (0, 1, 3, 4)}
    map_new_block(db, 2, Ino(6))
    found = block_map.locate_range(db, FILE, at(1), at(3))
    assert {index: located.block for index, located in found.items()} == {1: made[1], 3: made[3]}
    assert found[at(1)] == block_map.locate(db, FILE, at(1))
    assert list(found) == [1, 3]


def test_block_indexes_are_returned_in_ascending_order_up_to_a_limit(db: Database) -> None:
    """Truncation removes the blocks of a file in slices."""
    for index in (9, 2, 5, 7):
        block_map.set(db, FILE, at(index), BlockId(100 + index))
    assert block_map.indexes_from(db, FILE, at(3), 2) == [(5, 105), (7, 107)]
    assert block_map.indexes_from(db, FILE, at(8), 10) == [(9, 109)]
    assert block_map.indexes_from(db, FILE, at(10), 10) == []


def test_last_block_indexes_of_a_file_are_returned_in_descending_order(db: Database) -> None:
    """A large truncation begins at the last block of a file."""
    for index in (9, 2, 5, 7):
        block_map.set(db, FILE, at(index), BlockId(100 + index))
    assert block_map.last_indexes(db, FILE, at(3), 2) == [(9, 109), (7, 107)]
    assert block_map.last_indexes(db, FILE, at(10), 2) == []


def test_equal_block_does_not_replace_an_overwritten_block(db: Database) -> None:
    """An equal block replaces a block only if the file still refers to the replaced block."""
    block_map.set(db, FILE, at(0), BlockId(1))
    assert not block_map.repoint(db, FILE, at(0), BlockId(9), BlockId(2))
    assert not block_map.repoint(db, FILE, at(1), BlockId(1), BlockId(2))
    assert block_map.repoint(db, FILE, at(0), BlockId(1), BlockId(2))
    assert block_map.find(db, FILE, at(0)) == 2


def test_query_for_last_block_indexes_returns_a_limited_number(db: Database) -> None:
    """The query returns the last block indexes of a file down to a given index, up to a limit."""
    ino = Ino(7)
    for index in (0, 3, 4, 9):
        block_map.set(db, ino, BlockIndex(index), BlockId(100 + index))
    assert block_map.last_indexes(db, ino, BlockIndex(3), 2) == [(9, 109), (4, 104)]
    assert block_map.last_indexes(db, ino, BlockIndex(4), 9) == [(9, 109), (4, 104)]
    assert block_map.last_indexes(db, ino, BlockIndex(10), 9) == []


def test_cached_location_is_discarded_when_its_rows_change(db: Database) -> None:
    """A cached location is discarded if a row changes or the commit group is rolled back."""
    block = map_new_block(db, 0)
    db.commit()
    before = block_map.locate(db, FILE, at(0))
    assert before is not None
    assert block_map.locate(db, FILE, at(0)) is before  # The location comes from the cache.

    db.begin()
    cached_blocks.set_state(db, block, BlockState.SEALED)
    sealed = block_map.locate(db, FILE, at(0))
    assert sealed == before._replace(state=BlockState.SEALED)
    block_map.remove(db, FILE, at(0))
    assert block_map.locate(db, FILE, at(0)) is None
    db.rollback()

    assert block_map.locate(db, FILE, at(0)) == before


def test_follower_sees_locations_that_another_connection_changed(
    make_database: MakeDatabase,
) -> None:
    """A follower must not use a cached location, because another connection changes the rows."""
    follower = make_database("follower.db")
    assert block_map.locate(follower, FILE, at(0)) is None
    follower.follow()
    assert block_map.locate(follower, FILE, at(0)) is None
    with apsw.Connection(str(follower.path)) as applier:
        applier.execute("INSERT INTO blocks VALUES (7, 1, 100, x'00', 1, 0, 100)")
        applier.execute("INSERT INTO block_map VALUES (?, 0, 7)", (FILE,))
    follower.go_on()
    found = block_map.locate(follower, FILE, at(0))
    assert found is not None
    assert found.block == 7


def test_lookup_in_a_closed_database_raises_a_database_error(make_database: MakeDatabase) -> None:
    closed = make_database("closed.db")
    closed.close()

    with pytest.raises(DatabaseError):
        block_map.locate(closed, FILE, at(0))


def test_blocks_of_all_files_are_read_in_slices_of_limited_size(db: Database) -> None:
    made = {
        map_new_block(db, index, ino): FilePart(ino, at(index))
        for ino, index in ((Ino(5), 0), (Ino(5), 3), (Ino(7), 1), (Ino(8), 0))
    }
    found: dict[BlockId, FilePart] = {}
    after: FilePart | None = FilePart(Ino(0), at(0))
    pieces = 0
    while after is not None:
        after, piece = block_map.blocks_after(db, after, 2)
        assert len(piece) <= 2
        found.update(piece)
        pieces += 1
    assert found == made
    assert pieces == 3


def test_read_of_a_mapped_block_without_a_row_is_an_error(db: Database) -> None:
    """If the row of a mapped block is lost, a read must fail instead of returning zeros."""
    block = map_new_block(db, 0)
    db.run("DELETE FROM blocks WHERE block = ?", (block,))

    with pytest.raises(BadRowError):
        block_map.locate(db, FILE, at(0))
    with pytest.raises(BadRowError):
        block_map.locate_range(db, FILE, at(0), at(3))
