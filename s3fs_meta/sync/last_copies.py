"""The rule that protects cached blocks that may be the last copies of their content.

Owns: which clean cached blocks of a replaced local state must not be dropped. Does not know: how
these blocks are quarantined.
Keeps: a cached block is kept if a record reports the loss of its content, unless all files with it
were removed or changed since. Such a record is the damage mark of a pack, or the attribute of a
file in which fsck replaced a lost part by a hole.
Tasks: all functions block, so they must run in a thread.
Design: docs/design/durability.md, "At mount".
"""

from collections.abc import Iterator, Set
from typing import Final

from s3fs_meta.meta import lost_ranges
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, cached_blocks
from s3fs_meta.model import BlockId, BlockState

_STORED: Final = frozenset({BlockState.UPLOADED, BlockState.CLEAN})


def exist(db: Database, newest: Database) -> bool:
    """Return whether any cached block may be the last copy of its content.

    Args:
        db: the local database; only its blocks in the states uploaded and clean are considered.
        newest: the database that replaces *db*.
    """
    return any(cached_blocks.are_marked(db, one) for one in (newest, db)) or any(
        _is_stored(db, block) for block in _of_lost_parts(db, newest)
    )


def among(db: Database, newest: Database, held: Set[BlockId]) -> list[BlockId]:
    """Return the numbers of the blocks in *held* that may be last copies, sorted."""
    found = {
        block for marked in (newest, db) for block in cached_blocks.marked_among(db, marked, held)
    }
    found.update(block for block in _of_lost_parts(db, newest) if block in held)
    return sorted(found)


def _is_stored(db: Database, block: BlockId) -> bool:
    row = cached_blocks.get(db, block)
    return row is not None and row.state in _STORED


def _of_lost_parts(db: Database, newest: Database) -> Iterator[BlockId]:
    """Yield the blocks of *db* at positions where *newest* has a hole for lost content."""
    for part in lost_ranges.iterate(newest):
        for index, block in block_map.blocks_of(db, part.ino, part.first, part.last):
            if block_map.find(newest, part.ino, index) is None:
                yield block
