"""Origins of copied blocks: the block from which each unsynced copy was made."""

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_origins, blocks, cached_blocks
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.meta.tables.block_origins import Copy
from s3fs_meta.model import BlockId, BlockIndex, BlockState, Ino, PackId

STORED = Located(BlockId(1), 100, b"h" * 32, PackId(3), 20, 70, BlockState.CLEAN)
NOT_UPLOADED = Located(BlockId(2), 50, None, None, None, None, BlockState.DIRTY)


def make(db: Database, number: int, origin: Located, keep_bytes: int) -> BlockId:
    """Create a dirty block of 60 bytes that is a copy of its origin."""
    block = BlockId(number)
    blocks.create_dirty(db, block, Ino(7), BlockIndex(0), 60)
    block_origins.note(db, block, origin, keep_bytes)
    return block


def test_copied_blocks_are_listed_in_the_order_of_their_numbers(db: Database) -> None:
    """The row of a copied block contains the location of the block's origin."""
    make(db, 12, NOT_UPLOADED, 40)
    make(db, 11, STORED, 100)

    assert block_origins.not_uploaded(db) == [
        Copy(BlockId(11), BlockId(1), 100, 100, 60, b"h" * 32, PackId(3), 20, 70),
        Copy(BlockId(12), BlockId(2), 40, 50, 60, None, None, None, None),
    ]
    assert sorted(block_origins.blocks(db)) == [11, 12]


def test_copied_block_without_a_recorded_origin_is_not_listed(db: Database) -> None:
    """Deleting the origin of a block without a recorded origin is not an error."""
    one, two = make(db, 11, STORED, 100), make(db, 12, STORED, 100)

    block_origins.forget(db, [one, BlockId(99)])

    assert block_origins.blocks(db) == [two]


def test_copied_block_is_not_listed_after_its_upload(db: Database) -> None:
    stored, doomed = make(db, 11, STORED, 100), make(db, 12, STORED, 100)
    cached_blocks.set_state(db, stored, BlockState.UPLOADED)
    cached_blocks.set_state(db, doomed, BlockState.DOOMED)
    blocks.drop_ref(db, doomed)
    blocks.delete(db, doomed)

    [found] = block_origins.not_uploaded(db)

    assert (found.block, found.holds_bytes) == (doomed, None)
