"""Tests of the query for the blocks of many files, which returns its rows in slices."""

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, blocks
from s3fs_meta.meta.tables.block_map import FilePart
from s3fs_meta.meta.trees import tree_content
from s3fs_meta.model import BlockId, BlockIndex, Ino


def _map(db: Database, ino: int, *block_ids: int) -> None:
    db.begin()
    for index, block in enumerate(block_ids):
        blocks.create_dirty(db, BlockId(block), Ino(ino), BlockIndex(index), 100 + block)
        block_map.set(db, Ino(ino), BlockIndex(index), BlockId(block))


def test_blocks_of_many_files_are_listed_in_the_order_of_files(db: Database) -> None:
    """If a slice ends within a file, the next slice continues in this file."""
    _map(db, 5, 50, 51, 52)
    _map(db, 6, 60)
    wanted = [(Ino(6), BlockIndex(0)), (Ino(9), BlockIndex(0)), (Ino(5), BlockIndex(1))]

    found = tree_content.blocks_of(db, wanted, 2)
    assert [(one.ino, one.block, one.plain_bytes, one.pack) for one in found.blocks] == [
        (6, 60, 160, None),
        (5, 51, 151, None),
    ]
    assert found.last == FilePart(Ino(5), BlockIndex(1))
    found = tree_content.blocks_of(db, [(Ino(5), BlockIndex(2))], 2)
    assert ([one.block for one in found.blocks], found.last) == ([52], None)


def test_block_rows_with_wrong_types_are_omitted(db: Database) -> None:
    """A walk of a tree omits block rows with invalid types and continues."""
    _map(db, 5, 50, 51)
    db.run("UPDATE block_map SET block_index = 'x' WHERE block = 51")
    db.run("UPDATE blocks SET plain_bytes = 'x' WHERE block = 50")

    found = tree_content.blocks_of(db, [(Ino(5), BlockIndex(0))], 2)
    assert found.blocks == []
    assert found.last is not None
    after = BlockIndex(found.last.block_index + 1)
    assert tree_content.blocks_of(db, [(Ino(5), after)], 1).blocks == []
