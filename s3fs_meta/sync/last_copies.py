"""Cached blocks that may be the last copies of their content.

Owns: the rule which clean cached blocks of a replaced local state must not be dropped.
Does not know: how they are kept.
Keeps: a cached block is dropped only if the bucket still counts as having it, or if the files that
had it were removed or changed. Two records say that the bucket lost it: a mark of damage, which ends
with the pack's row after the retention, and the attribute of a file whose lost part fsck replaced by
a hole, which stays with the file.
All functions block, and belong in a thread.
Design: docs/design/durability.md, "At mount".
"""

from collections.abc import Iterator, Set
from typing import Final

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, cached_blocks, lost_ranges
from s3fs_meta.model import BlockId, BlockState

_STORED: Final = frozenset({BlockState.UPLOADED, BlockState.CLEAN})


def exist(db: Database, newest: Database) -> bool:
    """Return whether a local database has cached blocks that may be last copies.

    Args:
        db: the database; only its rows of uploaded and clean blocks count.
        newest: the database that replaces it.
    """
    return any(cached_blocks.are_marked(db, one) for one in (newest, db)) or any(
        _is_stored(db, block) for block in _of_lost_parts(db, newest)
    )


def among(db: Database, newest: Database, held: Set[BlockId]) -> list[BlockId]:
    """Return those of the cached blocks *held* that may be last copies, ascending."""
    found = {
        block for marked in (newest, db) for block in cached_blocks.marked_among(db, marked, held)
    }
    found.update(block for block in _of_lost_parts(db, newest) if block in held)
    return sorted(found)


def _is_stored(db: Database, block: BlockId) -> bool:
    row = cached_blocks.get(db, block)
    return row is not None and row.state in _STORED


def _of_lost_parts(db: Database, newest: Database) -> Iterator[BlockId]:
    """Yield the blocks in *db* of parts of files that *newest* records as lost and has as holes."""
    for part in lost_ranges.iterate(newest):
        for index, block in block_map.blocks_of(db, part.ino, part.first, part.last):
            if block_map.find(newest, part.ino, index) is None:
                yield block
