"""Rows of ``copies``: the origin of each copied block whose cache file is not synced yet.

Owns: the rows of ``copies``. Does not know: block files and their syncs (``cache``).
Keeps: a row is inserted in the group that creates the block, and deleted in the group that records
the sync of its file, at the latest. So the row exists while a power cut may lose the content.
"""

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import BlockId, BlockState, PackId

HOLE: Final = BlockId(0)  # block number of a copied hole; no block has the number 0


class Copy(NamedTuple):
    """A block that replaced another block, its origin, and the location of the origin."""

    block: BlockId
    origin: BlockId  # the replaced block, a HOLE, or the block itself (see ``note_gap``)
    # Number of leading bytes of the origin that are still part of the file.
    # If keep_bytes exceeds plain_bytes, zeros follow the end of the origin.
    keep_bytes: int
    plain_bytes: int  # length of the origin in bytes
    holds_bytes: int | None  # length of the new block, or None if no file refers to it
    hash: bytes | None  # None, like the pack fields, if the origin was recorded before its upload
    pack: PackId | None
    pack_offset: int | None
    stored_bytes: int | None


def note(db: Database, block: BlockId, origin: Located, keep_bytes: int) -> None:
    """Record the origin of a block that replaces another block. Requires an open transaction."""
    db.run(
        "INSERT INTO copies VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            block,
            origin.block,
            keep_bytes,
            origin.plain_bytes,
            origin.hash,
            origin.pack,
            origin.pack_offset,
            origin.stored_bytes,
        ),
    )


def note_hole(db: Database, block: BlockId, hole_bytes: int) -> None:
    """Record that a new block replaces *hole_bytes* zeros of a hole. Needs a transaction."""
    db.run(
        f"INSERT INTO copies VALUES (?1, {HOLE:d}, ?2, ?2, NULL, NULL, NULL, NULL)",
        (block, hole_bytes),
    )


def note_gap(db: Database, block: BlockId, content_bytes: int, gap_end: int) -> None:
    """Record that zeros follow the durable content of a block; replace an earlier record.

    Requires an open transaction.
    """
    db.run(
        "INSERT OR REPLACE INTO copies VALUES (?1, ?1, ?2, ?3, NULL, NULL, NULL, NULL)",
        (block, gap_end, content_bytes),
    )


def extend(db: Database, block: BlockId, content_bytes: int, gap_end: int) -> bool:
    """Record that zeros up to *gap_end* follow the origin of a copied block.

    The row stays unchanged if only a part of the origin is used, because the other bytes would
    reappear, or if the block has other content after its origin. Return whether the row was
    changed. Requires an open transaction.
    """
    sql = (
        "UPDATE copies SET keep_bytes = ?1"
        " WHERE block = ?2 AND keep_bytes = ?3 AND plain_bytes <= ?3"
    )
    return db.run(sql, (gap_end, block, content_bytes)) == 1


def shorten_hole(db: Database, block: BlockId, hole_bytes: int) -> bool:
    """Limit the recorded length of a replaced hole to *hole_bytes*. Needs a transaction.

    Return whether the row was changed.
    """
    sql = (
        "UPDATE copies SET keep_bytes = ?1, plain_bytes = ?1"
        f" WHERE block = ?2 AND origin = {HOLE:d} AND keep_bytes > ?1"
    )
    return db.run(sql, (hole_bytes, block)) == 1


def forget(db: Database, blocks: Iterable[BlockId]) -> None:
    """Delete the recorded origins of blocks. Requires an open transaction."""
    db.run(
        "DELETE FROM copies WHERE block IN (SELECT value FROM json_each(?))",
        (json.dumps(list(blocks)),),
    )


def blocks(db: Database) -> list[BlockId]:
    """Return all blocks whose origin is recorded."""
    return [BlockId(row[0]) for row in db.all("SELECT block FROM copies")]


def kept_bytes(db: Database) -> dict[BlockId, int]:
    """Return, for each copied block, the number of bytes that its origin restores."""
    return {BlockId(row[0]): row[1] for row in db.all("SELECT block, keep_bytes FROM copies")}


def origins_not_uploaded(db: Database) -> set[BlockId]:
    """Return the origins of copied blocks, except origins that were in the bucket when recorded."""
    return {BlockId(row[0]) for row in db.all("SELECT origin FROM copies WHERE hash IS NULL")}


def not_uploaded(db: Database) -> list[Copy]:
    """Return the copied blocks that are not in the bucket; each origin precedes its copies."""
    rows = db.all(
        "SELECT c.block, c.origin, c.keep_bytes, c.plain_bytes, b.plain_bytes,"
        " c.hash, c.pack, c.pack_offset, c.stored_bytes FROM copies AS c"
        " JOIN cached_blocks AS l ON l.block = c.block LEFT JOIN blocks AS b ON b.block = c.block"
        " WHERE b.pack IS NULL AND l.state IN"
        f" ({BlockState.DIRTY:d}, {BlockState.SEALED:d}, {BlockState.DOOMED:d}) ORDER BY c.block"
    )
    return [Copy._make(row) for row in rows]
