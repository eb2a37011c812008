"""Rows of ``block_map``: the block of each part of a file. A hole has no row.

Owns: the block map. Does not know: reference counts (``blocks``) and ``inodes.mapped_blocks``,
which callers update from the results of these functions.
"""

from collections.abc import Generator
from typing import Any, Final, NamedTuple

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.tables import damage_marks, row_types
from s3fs_meta.model import BlockId, BlockIndex, BlockRow, BlockState, Ino, PackId


class Located(NamedTuple):
    """A block of a file, and its location. The pack fields are None before the upload."""

    block: BlockId
    plain_bytes: int
    hash: bytes | None
    pack: PackId | None
    pack_offset: int | None
    stored_bytes: int | None
    # State of the block in the cache; None if the block is not cached, or if ``of_row`` made this.
    state: BlockState | None


class FilePart(NamedTuple):
    """A block-sized part of a file: the primary key of ``block_map``."""

    ino: Ino
    block_index: BlockIndex


_LOCATED: Final = (
    "b.block, b.plain_bytes, b.hash, b.pack, b.pack_offset, b.stored_bytes, c.state"
    # The LEFT JOIN detects a block_map row without a blocks row as damage.
    " FROM block_map m LEFT JOIN blocks b ON b.block = m.block"
    " LEFT JOIN cached_blocks c ON c.block = m.block"
)
_LOCATE: Final = f"SELECT {_LOCATED} WHERE m.ino = ? AND m.block_index = ?"
_LOCATE_RANGE: Final = (
    f"SELECT m.block_index, {_LOCATED} WHERE m.ino = ? AND m.block_index BETWEEN ? AND ?"
    " ORDER BY m.block_index"
)

# Indexing a tuple is faster than calling BlockState.
_STATES: Final[tuple[BlockState | None, ...]] = (None, *BlockState)
assert all(state is None or _STATES[state] is state for state in _STATES), "states start at 1"


def _located(ino: Ino, row: Row, state: int | None) -> Located:
    row_types.require_location(row, ino)
    return tuple.__new__(Located, (*row, None if state is None else _STATES[state]))


def of_row(row: BlockRow) -> Located:
    """Return a block with its location in the bucket, but without its state in the cache."""
    return Located(
        row.block, row.plain_bytes, row.hash, row.pack, row.pack_offset, row.stored_bytes, None
    )


def locate(db: Database, ino: Ino, index: BlockIndex) -> Located | None:
    """Return the block for a part of a file with its location, or None for a hole."""
    recent, key = db.recent(), (ino, index)
    try:
        found: Located | None = recent[key]
    except KeyError:
        row = db.one(_LOCATE, (ino, index))
        found = recent[key] = None if row is None else _located(ino, row[:-1], row[-1])
    return found


def locate_range(
    db: Database, ino: Ino, first: BlockIndex, last: BlockIndex
) -> dict[BlockIndex, Located]:
    """Return the blocks, with locations, of the parts *first* to *last* (inclusive) of a file.

    Holes are not in the result.
    """
    rows = db.all(_LOCATE_RANGE, (ino, first, last))
    return {row[0]: _located(ino, row[1:-1], row[-1]) for row in rows}


def find(db: Database, ino: Ino, index: BlockIndex) -> BlockId | None:
    """Return the block for a part of a file, or None for a hole."""
    row = db.one("SELECT block FROM block_map WHERE ino = ? AND block_index = ?", (ino, index))
    return None if row is None else row[0]


def set(  # noqa: A001 - used with the module's name
    db: Database, ino: Ino, index: BlockIndex, block: BlockId
) -> BlockId | None:
    """Map a part of a file to a block; return the former block, or None if the part was a hole.

    Requires an open transaction.
    """
    before = find(db, ino, index)
    replace(db, ino, index, before, block)
    return before


def replace(
    db: Database, ino: Ino, index: BlockIndex, before: BlockId | None, block: BlockId
) -> None:
    """Map a part of a file to another block. Requires an open transaction.

    Args:
        before: the current block of the part, or None for a hole.
    """
    if before is None:
        db.run("INSERT INTO block_map VALUES (?, ?, ?)", (ino, index, block))
    else:
        is_there = repoint(db, ino, index, before, block)
        assert is_there, "the part must be mapped to the given block"


def remove(db: Database, ino: Ino, index: BlockIndex) -> BlockId | None:
    """Turn a part of a file into a hole; return the former block, or None if it was a hole.

    Requires an open transaction.
    """
    before = find(db, ino, index)
    if before is not None:
        db.run("DELETE FROM block_map WHERE ino = ? AND block_index = ?", (ino, index))
    return before


def remove_read(db: Database, ino: Ino, index: BlockIndex) -> None:
    """Turn a part whose row was just read into a hole. Requires an open transaction."""
    db.run("DELETE FROM block_map WHERE ino = ? AND block_index = ?", (ino, index))


def indexes_from(
    db: Database, ino: Ino, index_from: BlockIndex, limit: int
) -> list[tuple[BlockIndex, BlockId]]:
    """Return at most *limit* mapped parts of a file from *index_from* onwards, in order."""
    rows = db.all(
        "SELECT block_index, block FROM block_map WHERE ino = ? AND block_index >= ?"
        " ORDER BY block_index LIMIT ?",
        (ino, index_from, limit),
    )
    return _pairs(rows, ino)


def indexes_between(
    db: Database, ino: Ino, index_from: BlockIndex, index_to: BlockIndex, limit: int
) -> list[tuple[BlockIndex, BlockId]]:
    """Return at most *limit* mapped parts of a file with *index_from* <= index < *index_to*."""
    rows = db.all(
        "SELECT block_index, block FROM block_map WHERE ino = ? AND block_index >= ?"
        " AND block_index < ? ORDER BY block_index LIMIT ?",
        (ino, index_from, index_to, limit),
    )
    return _pairs(rows, ino)


def lengths_from(
    db: Database, ino: Ino, index_from: BlockIndex, limit: int
) -> list[tuple[BlockIndex, int]]:
    """Return the mapped parts of a file and their lengths, starting at *index_from*, in order."""
    rows = db.all(
        "SELECT m.block_index, b.plain_bytes FROM block_map AS m JOIN blocks AS b"
        " ON b.block = m.block WHERE m.ino = ? AND m.block_index >= ?"
        " ORDER BY m.block_index LIMIT ?",
        (ino, index_from, limit),
    )
    return _pairs(rows, ino)


def last_indexes(
    db: Database, ino: Ino, index_from: BlockIndex, limit: int
) -> list[tuple[BlockIndex, BlockId]]:
    """Return the last *limit* mapped parts of a file, down to *index_from*, in descending order."""
    rows = db.all(
        "SELECT block_index, block FROM block_map WHERE ino = ? AND block_index >= ?"
        " ORDER BY block_index DESC LIMIT ?",
        (ino, index_from, limit),
    )
    return _pairs(rows, ino)


def _pairs(rows: list[Row], ino: Ino) -> list[tuple[Any, Any]]:
    """Return rows with two numbers; raise BadRowError if a value is invalid."""
    return [(row[0], row[1]) for row in row_types.require_block_numbers(rows, ino)]


def blocks_after(
    db: Database, after: FilePart, limit: int
) -> tuple[FilePart | None, list[tuple[BlockId, FilePart]]]:
    """Return the next *limit* rows of all block maps, and the position of the last row.

    Returns:
        The last part that was read (None after the last row), and the blocks with their parts.
    """
    rows = db.all(
        "SELECT ino, block_index, block FROM block_map WHERE (ino, block_index) > (?, ?)"
        " ORDER BY ino, block_index LIMIT ?",
        (*after, limit),
    )
    last = FilePart(rows[-1][0], rows[-1][1]) if len(rows) == limit else None
    return last, [(row[2], FilePart(row[0], row[1])) for row in rows]


def blocks_of(
    db: Database, ino: Ino, first: BlockIndex, last: BlockIndex
) -> Generator[tuple[BlockIndex, BlockId], None, None]:
    """Yield the mapped parts *first* to *last* (inclusive) of a file, in order, with their blocks.

    Exhaust or close the iterator before the next schedule point.
    """
    yield from db.iterate(
        "SELECT block_index, block FROM block_map WHERE ino = ? AND block_index BETWEEN ? AND ?"
        " ORDER BY block_index",
        (ino, first, last),
    )


def first_not_shareable(
    db: Database, ino: Ino, first: BlockIndex, last: BlockIndex
) -> BlockIndex | None:
    """Return the first part from *first* to *last* (inclusive) with a block that cannot be shared.

    A block cannot be shared if it is not uploaded or its location is marked as damaged.
    """
    row = db.one(
        "SELECT m.block_index FROM block_map AS m CROSS JOIN blocks AS b ON b.block = m.block"
        " WHERE m.ino = ? AND m.block_index BETWEEN ? AND ?"
        f" AND (b.hash IS NULL OR {damage_marks.ANY} AND {damage_marks.COVERS_B})"
        " ORDER BY m.block_index LIMIT 1",
        (ino, first, last),
    )
    return None if row is None else row[0]


def copy_range(
    db: Database, ino: Ino, first: BlockIndex, last: BlockIndex, target: Ino, shift: int
) -> int:
    """Map parts of file *target* to blocks of another file's range; return the number of parts.

    The range is shifted by *shift*; the mapped parts must be holes.
    Requires an open transaction.
    """
    return db.run(
        "INSERT INTO block_map SELECT ?, block_index + ?, block FROM block_map"
        " WHERE ino = ? AND block_index BETWEEN ? AND ?",
        (target, shift, ino, first, last),
    )


def repoint(db: Database, ino: Ino, index: BlockIndex, old: BlockId, new: BlockId) -> bool:
    """Replace block *old* of a file part with *new*; return False if the part has another block.

    Requires an open transaction.
    """
    sql = "UPDATE block_map SET block = ? WHERE ino = ? AND block_index = ? AND block = ?"
    return db.run(sql, (new, ino, index, old)) == 1
