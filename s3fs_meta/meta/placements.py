"""Applying placements: recording where sealed blocks are stored, in the live database or a copy.

Owns: the changes of rows when a block is placed in a pack, is all zeros, or is a duplicate.
Does not know: uploads, the cache. ``cached_blocks`` is not used, because that table may be missing
in a copy of the database.
Keeps: refs, live_bytes, mapped_blocks and the counters are correct.

Rows may change between the sealing of a block and its placement, and a copy of the database may be
*older* than the placements. So every decision is based on the current rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

from s3fs_meta.errors import MetadataError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.schema import LOCAL_TABLES
from s3fs_meta.meta.tables import block_map, blocks, inodes
from s3fs_meta.model import BlockId, BlockIndex, BlockRow, Ino, PackId


class Placed(NamedTuple):
    """The placement of a block in a pack, which already has a row."""

    block: BlockId
    hash: bytes
    pack: PackId
    pack_offset: int
    stored_bytes: int


class Zero(NamedTuple):
    """The placement of a block of zeros: its part of the file becomes a hole."""

    block: BlockId
    ino: Ino
    block_index: BlockIndex


class Duplicate(NamedTuple):
    """The placement of a duplicate: it has the content and the location of the block *of*.

    If *of* was deleted in the meantime, the duplicate keeps the location.
    """

    placed: Placed
    ino: Ino
    block_index: BlockIndex
    of: BlockId

    @property
    def block(self) -> BlockId:
        """Return the duplicate, to which the file refers until the placement is applied."""
        return self.placed.block


Placement = Placed | Zero | Duplicate


def placement_of(row: BlockRow) -> Placed:
    """Return the recorded placement of a block in a pack."""
    assert row.hash is not None, "a block in a pack has a hash"
    assert row.pack is not None, "the block must be in a pack"
    assert row.pack_offset is not None, "a block in a pack has an offset"
    assert row.stored_bytes is not None, "a block in a pack has a length"
    return Placed(row.block, row.hash, row.pack, row.pack_offset, row.stored_bytes)


def apply(db: Database, placements: Sequence[Placement]) -> list[BlockId]:
    """Apply placements in order; skip placements of deleted blocks. Requires an open transaction.

    Returns:
        The blocks whose rows were deleted, in order. Their cached copies may be deleted.

    Raises:
        MetadataError: a block is not only at its recorded file position; its rows are unchanged.
    """
    removed: list[BlockId] = []
    for placement in placements:
        row = blocks.find(db, placement.block)
        if row is None:
            continue
        if row.refs == 0:  # the file no longer uses the block
            blocks.delete(db, row.block)
            removed.append(row.block)
        elif _apply_one(db, placement, row):
            removed.append(row.block)
    return removed


def _apply_one(db: Database, placement: Placement, row: BlockRow) -> bool:
    """Apply one placement of a referenced block; return whether the block's row was deleted."""
    if isinstance(placement, Zero):
        if block_map.find(db, placement.ino, placement.block_index) != row.block or row.refs != 1:
            raise MetadataError(
                f"block {row.block} is not at its recorded position in the file", placement.ino
            )
        block_map.remove(db, placement.ino, placement.block_index)
        inodes.add_mapped_blocks(db, placement.ino, -1)
        _end(db, row.block)
        return True
    placed = placement.placed if isinstance(placement, Duplicate) else placement
    if isinstance(placement, Duplicate) and blocks.find(db, placement.of) is not None:
        if row.refs != 1 or not block_map.repoint(
            db, placement.ino, placement.block_index, row.block, placement.of
        ):
            raise MetadataError(
                f"block {row.block} is not at its recorded position in the file", placement.ino
            )
        blocks.add_ref(db, placement.of)
        _end(db, row.block)
        return True
    blocks.set_location(db, row, placed.hash, placed.pack, placed.pack_offset, placed.stored_bytes)
    return False


def _end(db: Database, block: BlockId) -> None:
    remaining = blocks.drop_ref(db, block)
    assert remaining == 0, "a removed block must have had one reference"
    blocks.delete(db, block)


def drop_local_tables(db: Database) -> None:
    """Drop the local tables of a copy and zero the freed pages. Requires an open transaction."""
    db.run("PRAGMA secure_delete = ON")
    for table in LOCAL_TABLES:
        db.run(f"DROP TABLE IF EXISTS {table}")
