"""Rows of ``blocks``: hash, location and reference count of each block.

Owns: reference counts, hashes, locations, the counter of block bytes, and the effect of a deleted
block on its pack. Does not know: files on the local disk, the store.
Keeps: refs equals the number of block_map rows that refer to the block. packs.live_bytes equals the
stored bytes of the blocks in the pack. Hash and location of a block are all set or all NULL.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

from s3fs_meta.errors import BadRowError, MetadataError
from s3fs_meta.limits import EQUAL_BLOCKS_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.tables import damage_marks, packs, row_types
from s3fs_meta.model import BlockId, BlockIndex, BlockRow, BlockState, Ino, PackId

_COLUMNS: Final = "block, refs, plain_bytes, hash, pack, pack_offset, stored_bytes"
# No column contains text. Damaged text that is not UTF-8 would make a query for many rows fail.
_NO_TEXT: Final = (
    "'text' NOT IN (typeof(refs), typeof(plain_bytes), typeof(hash), typeof(pack),"
    " typeof(pack_offset), typeof(stored_bytes))"
)

# These statements run in one call, because most writes of a new block need no others.
_CREATE_DIRTY: Final = (
    "INSERT INTO blocks VALUES (?, 1, ?, NULL, NULL, NULL, NULL);"
    f"INSERT INTO cached_blocks VALUES (?, {BlockState.DIRTY:d}, ?, ?, ?)"
)
_FILL_HOLE: Final = f"{_CREATE_DIRTY};INSERT INTO block_map VALUES (?, ?, ?)"

_MAPPED_FROM: Final = (
    "SELECT m.block_index, m.block, b.refs, b.plain_bytes, b.hash, b.pack, b.pack_offset,"
    " b.stored_bytes FROM block_map m LEFT JOIN blocks b ON b.block = m.block"
    " WHERE m.ino = ? AND m.block_index >= ? ORDER BY m.block_index LIMIT ?"
)

_new = tuple.__new__


def _row(row: Row) -> BlockRow:
    """Convert a row of ``blocks``; raise BadRowError if it is invalid."""
    row_types.require_location((row[0], *row[2:]), 0)
    if type(row[1]) is not int:
        raise BadRowError("a block", 0)
    return _new(BlockRow, row)


def create_dirty(
    db: Database,
    block: BlockId,
    ino: Ino,
    index: BlockIndex,
    plain_bytes: int,
    *,
    hole_bytes: int = 0,
) -> None:
    """Insert the rows of a new dirty block with one reference.

    Args:
        block: a number from ``counters.take_block``; the cache file may exist before the row.
        ino: the file that contains the block.
        index: the block's position in the file.
        plain_bytes: length of the block's content.
        hole_bytes: number of zeros at the block's start; they need not be synced.

    Requires an open transaction, in which the caller also maps the block.
    """
    db.run(_CREATE_DIRTY, (block, plain_bytes, block, ino, index, hole_bytes))
    db.counters.block_bytes += plain_bytes


def fill_hole(
    db: Database, block: BlockId, ino: Ino, index: BlockIndex, plain_bytes: int, *, hole_bytes: int
) -> None:
    """Insert a block as ``create_dirty`` does, in place of a hole.

    Requires an open transaction.
    """
    db.run(_FILL_HOLE, (block, plain_bytes, block, ino, index, hole_bytes, ino, index, block))
    db.counters.block_bytes += plain_bytes


def find(db: Database, block: BlockId) -> BlockRow | None:
    """Return the row of a block, or None if it has no row."""
    row = db.one(f"SELECT {_COLUMNS} FROM blocks WHERE block = ?", (block,))
    return None if row is None else _row(row)


def get(db: Database, block: BlockId) -> BlockRow:
    """Return the row of a block, which must exist.

    Raises:
        MetadataError: the block has no row.
    """
    row = find(db, block)
    if row is None:
        raise MetadataError(f"block {block} has no row in the table blocks", 0)
    return row


def mapped_from(
    db: Database, ino: Ino, index_from: BlockIndex, limit: int
) -> list[tuple[BlockIndex, BlockRow]]:
    """Return at most *limit* mapped blocks of a file from *index_from* onwards, with indexes.

    Raises:
        BadRowError: a row cannot be read.
        MetadataError: a block has no row.
    """
    rows = db.all(_MAPPED_FROM, (ino, index_from, limit))
    row_types.require_block_numbers([row[:2] for row in rows], ino)
    for row in rows:
        if row[2] is None:
            get(db, row[1])
    return [(row[0], _row(row[1:])) for row in rows]


def has_hash(db: Database, block: BlockId, content_hash: bytes | None) -> bool:
    """Return whether a block exists and has a given content hash."""
    sql = "SELECT 1 FROM blocks WHERE block = ? AND hash = ?"
    return db.one(sql, (block, content_hash)) is not None


def by_hash(db: Database, content_hash: bytes) -> list[BlockRow]:
    """Return at most EQUAL_BLOCKS_MAX blocks with the given content hash, oldest first.

    Usually at most one block has a given hash. But concurrent uploads may store the same content
    twice. Rows that cannot be read are omitted.
    """
    rows = db.all(
        f"SELECT {_COLUMNS} FROM blocks WHERE hash = ? AND {_NO_TEXT}"
        f" ORDER BY block LIMIT {EQUAL_BLOCKS_MAX}",
        (content_hash,),
    )
    return list(_readable(rows))


def intact(db: Database, content_hash: bytes) -> BlockRow | None:
    """Return the oldest usable block with the given content hash, for deduplication, or None.

    Blocks without references are skipped, because a changelog reported their deletion. Blocks whose
    location is marked as damaged are also skipped.
    """
    for row in by_hash(db, content_hash):
        if row.refs > 0 and row.pack is not None and not is_damaged(db, row):
            return row
    return None


def is_damaged(db: Database, row: BlockRow) -> bool:
    """Return whether the location of a block is marked as damaged."""
    return row.pack is not None and damage_marks.covers(db, row.pack, row.pack_offset)


def in_pack(db: Database, pack: PackId) -> list[BlockRow]:
    """Return the blocks in a pack, sorted by offset; the size of the pack limits their number.

    Raises:
        BadRowError, DamagedDatabaseError: a row cannot be read.
    """
    rows = db.all(f"SELECT {_COLUMNS} FROM blocks WHERE pack = ? ORDER BY pack_offset", (pack,))
    return [_row(row) for row in rows]


def readable_in_pack(db: Database, pack: PackId) -> list[BlockRow]:
    """Return the blocks in a pack as ``in_pack`` does, but omit rows that cannot be read."""
    rows = db.all(
        f"SELECT {_COLUMNS} FROM blocks WHERE pack = ? AND {_NO_TEXT} ORDER BY pack_offset", (pack,)
    )
    return list(_readable(rows))


def near_in_pack(db: Database, pack: PackId, block: BlockId, limit: int) -> list[BlockRow]:
    """Return a block and the blocks of its pack that were created shortly before and after it.

    The files of these blocks were probably written together. The result is unsorted; it has at most
    *limit* blocks from each side. Rows that cannot be read are omitted.
    """
    sides = ("block >= ? ORDER BY block", "block < ? ORDER BY block DESC")
    rows = [
        row
        for side in sides
        for row in db.all(
            f"SELECT {_COLUMNS} FROM blocks WHERE pack = ? AND {_NO_TEXT} AND {side} LIMIT ?",
            (pack, block, limit),
        )
    ]
    return list(_readable(rows))


def _readable(rows: Iterable[Row]) -> Iterator[BlockRow]:
    """Yield the valid rows. A read of the file reports the damage of an invalid row."""
    for row in rows:
        with contextlib.suppress(BadRowError):
            yield _row(row)


def resize(db: Database, block: BlockId, before_bytes: int, plain_bytes: int) -> None:
    """Record the new length of a dirty block. Requires an open transaction.

    Raises:
        MetadataError: the block has no row, or its recorded length is not *before_bytes*.
    """
    sql = "UPDATE blocks SET plain_bytes = ? WHERE block = ? AND plain_bytes = ?"
    if not db.run(sql, (plain_bytes, block, before_bytes)):
        raise MetadataError(f"block {block} has no row with a length of {before_bytes} bytes", 0)
    db.counters.block_bytes += plain_bytes - before_bytes


def add_ref(db: Database, block: BlockId) -> None:
    """Add a reference to a block. Requires an open transaction."""
    if not db.run("UPDATE blocks SET refs = refs + 1 WHERE block = ?", (block,)):
        raise MetadataError(f"block {block} has no row in the table blocks", 0)


def add_refs_of_range(db: Database, ino: Ino, first: BlockIndex, last: BlockIndex) -> None:
    """Add one reference to each block in a range of a file. Requires an open transaction."""
    db.run(
        "UPDATE blocks SET refs = refs + s.rows FROM (SELECT block, count(*) AS rows FROM block_map"
        " WHERE ino = ? AND block_index BETWEEN ? AND ? GROUP BY block) AS s"
        " WHERE blocks.block = s.block",
        (ino, first, last),
    )


def drop_ref(db: Database, block: BlockId) -> int:
    """Remove one reference to a block; return the number of references that remain.

    The row is kept even with 0 references: the caller decides whether the block is still needed.
    Requires an open transaction.

    Raises:
        MetadataError: the block has no row, or its reference count is not positive.
    """
    row = get(db, block)
    if row.refs <= 0:
        raise MetadataError(f"a file uses block {block}, whose reference count is {row.refs}", 0)
    db.run("UPDATE blocks SET refs = refs - 1 WHERE block = ?", (block,))
    return row.refs - 1


def set_location(
    db: Database,
    before: BlockRow,
    content_hash: bytes,
    pack: PackId,
    pack_offset: int,
    stored_bytes: int,
) -> None:
    """Set the location of a block, given its row; if it already has a location, move it.

    Requires an open transaction.
    """
    packs.add_live_bytes(db, pack, stored_bytes)
    db.run(
        "UPDATE blocks SET hash = ?, pack = ?, pack_offset = ?, stored_bytes = ? WHERE block = ?",
        (content_hash, pack, pack_offset, stored_bytes, before.block),
    )
    if before.pack is not None:
        packs.drop_live_bytes(db, before.pack, before.stored_bytes or 0)


def delete(db: Database, block: BlockId) -> None:
    """Delete the row of a block without references. Requires an open transaction.

    The caller deletes the block's cache file and its row in cached_blocks.
    """
    row = get(db, block)
    assert row.refs == 0, "only a block without references may be deleted"
    delete_read(db, row)


def delete_read(db: Database, row: BlockRow) -> None:
    """Delete the row of a block, whose only reference the caller removes, as ``delete`` does."""
    db.run("DELETE FROM blocks WHERE block = ?", (row.block,))
    db.counters.block_bytes -= row.plain_bytes
    if row.pack is not None:
        packs.drop_live_bytes(db, row.pack, row.stored_bytes or 0)
