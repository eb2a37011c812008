"""Content of an earlier state: past blocks become blocks of files again, without a download.

Owns: the choice of a present block for each past block, new rows for blocks whose numbers are no
longer in use, and the revival of packs.
Does not know: copying names (``tree_copies``), the reason for attaching the past database.
Keeps: a block has a location only in a pack that is stored, not condemned, and not marked as
damaged. One commit group contains all changes of a call and its check of the packs.

A past block is found in this order:

1. its number is still in use, with the same content in an intact location: the block is shared;
2. another block has the same content in an intact location: that block is shared;
3. its pack is retained: a new block is created at its location. The old number is not used again,
   because other hosts deleted its row, and a changelog lists the locations of new numbers only.

A pack without live blocks becomes live again with the first such block. The next changelog lists
the pack. From it, a host that restores from a level object learns when the pack dies again.

    past_parts    rows of block_map to insert; ``block`` is the number in the past
    past_blocks   the blocks of these parts, with their past location; ``new`` is the present number
"""

from typing import Final

from s3fs_meta.errors import PastUnavailableError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import blocks, damage_marks, inodes, packs
from s3fs_meta.meta.tables.packs import PackRow
from s3fs_meta.model import (
    BlockIndex,
    BlockRow,
    BlockState,
    Ino,
    ObjectKey,
    PackId,
    PackState,
    Txg,
)

_TABLES: Final = (
    "CREATE TEMP TABLE IF NOT EXISTS past_parts (ino INTEGER, block_index INTEGER, block INTEGER)",
    "CREATE TEMP TABLE IF NOT EXISTS past_blocks (block INTEGER PRIMARY KEY, names INTEGER,"
    " new INTEGER, is_made INTEGER, plain_bytes INTEGER, hash BLOB, pack INTEGER,"
    " pack_offset INTEGER, stored_bytes INTEGER)",
)
_IS_INTACT: Final = f"NOT ({damage_marks.ANY} AND {damage_marks.COVERS_B})"
# A block without references is not used: a changelog may already record its deletion.
_IN_USE: Final = (
    "(SELECT b.block FROM main.blocks AS b WHERE b.block = q.block AND b.refs > 0"
    f" AND b.hash = o.hash AND {_IS_INTACT})"
)
_FIND: Final = (
    f"INSERT INTO temp.past_blocks SELECT q.block, q.names, {_IN_USE}, 0, o.plain_bytes, o.hash,"
    " o.pack, o.pack_offset, o.stored_bytes FROM"
    " (SELECT block, count(*) AS names FROM temp.past_parts GROUP BY block) AS q"
    " LEFT JOIN past.blocks AS o ON o.block = q.block"
)
_FIND_EQUAL: Final = (
    "UPDATE temp.past_blocks AS t SET new = (SELECT b.block FROM main.blocks AS b"
    " WHERE b.hash = t.hash AND b.refs > 0 AND b.pack IS NOT NULL AND b.plain_bytes = t.plain_bytes"
    f" AND {_IS_INTACT} ORDER BY b.block LIMIT 1) WHERE t.new IS NULL"
)
_HAS_PLACE: Final = (
    "typeof(b.hash) = 'blob' AND typeof(b.plain_bytes) = 'integer' AND b.plain_bytes > 0"
    " AND typeof(b.pack_offset) = 'integer' AND b.pack_offset >= 0"
    " AND typeof(b.stored_bytes) = 'integer' AND b.stored_bytes > 0"
)
_LOST: Final = (
    "SELECT q.object_key FROM temp.past_blocks AS b"
    " LEFT JOIN main.packs AS p ON p.pack = b.pack LEFT JOIN past.packs AS q ON q.pack = b.pack"
    f" WHERE b.new IS NULL AND NOT ({_HAS_PLACE} AND p.state IS {PackState.STORED:d}"
    f" AND p.object_key IS q.object_key AND {_IS_INTACT}) LIMIT 1"
)
# New numbers follow the order of the old ones, so blocks written together stay adjacent.
# Blocks with the same content, which perhaps were not deduplicated in the past, become one block.
_NUMBER: Final = (
    "UPDATE temp.past_blocks SET new = ?1 + s.place FROM (SELECT hash, plain_bytes,"
    " row_number() OVER (ORDER BY min(block)) - 1 AS place FROM temp.past_blocks"
    " WHERE new IS NULL GROUP BY hash, plain_bytes) AS s WHERE past_blocks.new IS NULL"
    " AND past_blocks.hash = s.hash AND past_blocks.plain_bytes = s.plain_bytes"
)
_CHOOSE: Final = (
    "UPDATE temp.past_blocks SET is_made = 1 WHERE block IN"
    " (SELECT min(block) FROM temp.past_blocks WHERE new >= ?1 GROUP BY new)"
)
_REVIVE: Final = (
    "INSERT INTO main.blocks SELECT b.new, s.names, b.plain_bytes, b.hash, b.pack, b.pack_offset,"
    " b.stored_bytes FROM temp.past_blocks AS b CROSS JOIN (SELECT new, sum(names) AS names"
    " FROM temp.past_blocks WHERE new >= ?1 GROUP BY new) AS s ON s.new = b.new"
    " WHERE b.is_made ORDER BY b.new"
)
# Select packs in which no block will stay: a sealed block is about to move to another pack.
# On this host, such a pack has live bytes until its last blocks are uploaded in other packs.
# For other hosts, the pack is dead as soon as a changelog records where its last blocks moved.
_DEAD: Final = (
    "SELECT n.pack FROM (SELECT DISTINCT pack FROM temp.past_blocks WHERE is_made) AS n"
    " WHERE NOT EXISTS (SELECT 1 FROM main.blocks AS b WHERE b.pack = n.pack AND b.refs > 0"
    " AND NOT EXISTS (SELECT 1 FROM cached_blocks AS c WHERE c.block = b.block"
    f" AND c.state = {BlockState.SEALED:d}))"
)
_LIVE_AGAIN: Final = (
    "UPDATE main.packs SET live_bytes = live_bytes + s.bytes, died_txg = NULL FROM"
    " (SELECT pack, sum(stored_bytes) AS bytes FROM temp.past_blocks WHERE is_made GROUP BY pack)"
    " AS s WHERE packs.pack = s.pack"
)
_SHARE: Final = (
    "UPDATE main.blocks SET refs = refs + s.names FROM (SELECT new, sum(names) AS names"
    " FROM temp.past_blocks WHERE new < ?1 GROUP BY new) AS s WHERE blocks.block = s.new"
)
_MAP: Final = (
    "INSERT INTO main.block_map SELECT p.ino, p.block_index, b.new FROM temp.past_parts AS p"
    " CROSS JOIN temp.past_blocks AS b ON b.block = p.block"
)
_TAKE: Final = (
    "INSERT INTO temp.past_parts SELECT ?, block_index, block FROM past.block_map"
    " WHERE ino = ? AND block_index >= ? ORDER BY block_index LIMIT ?"
)


def begin(db: Database) -> None:
    """Create the temporary tables of past blocks. Requires an open transaction."""
    for statement in _TABLES:
        db.all(statement)
    clear(db)


def clear(db: Database) -> None:
    """Empty the temporary tables; the caller then inserts into ``past_parts``.

    Requires an open transaction.
    """
    db.run("DELETE FROM temp.past_parts")
    db.run("DELETE FROM temp.past_blocks")


def resolve(db: Database, txg: Txg) -> None:
    """Find a block for each part in ``past_parts``; only temporary tables change.

    Requires an open transaction.

    Raises:
        PastUnavailableError: the content of a block was deleted or is damaged.
    """
    db.run(_FIND)
    db.run(_FIND_EQUAL)
    lost = db.one(_LOST)
    if lost is not None:
        raise unavailable(db, txg, lost[0])
    first = db.counters.next_block
    if db.run(_NUMBER, (first,)):
        db.run(_CHOOSE, (first,))


def share(db: Database) -> int:
    """Map the files in ``past_parts`` to the blocks that ``resolve`` has just found.

    The caller updates ``mapped_blocks``. Requires an open transaction.

    Returns:
        The number of revived packs.
    """
    first, revived = db.counters.next_block, 0
    made = db.one(
        "SELECT count(*), coalesce(sum(plain_bytes), 0) FROM temp.past_blocks WHERE is_made"
    )
    assert made is not None, "an aggregate query returns one row"
    if made[0]:
        db.counters.next_block += made[0]
        db.counters.block_bytes += made[1]
        dead = [PackId(row[0]) for row in db.all(_DEAD)]
        db.run(_REVIVE, (first,))
        packs.report(db, dead)
        revived = len(dead)
        db.run(_LIVE_AGAIN)
    db.run(_SHARE, (first,))
    db.run(_MAP)
    return revived


def share_range(
    db: Database, txg: Txg, old: Ino, new: Ino, start: BlockIndex, limit: int
) -> tuple[BlockIndex | None, int]:
    """Map a file to the next *limit* blocks of a past file. Requires an open transaction.

    Returns:
        The index at which to continue, or None at the end, and the number of revived packs.

    Raises:
        PastUnavailableError: the content of a block was deleted or is damaged; no row changed.
    """
    clear(db)
    count = db.run(_TAKE, (new, old, start, limit))
    if not count:
        return None, 0
    resolve(db, txg)
    revived = share(db)
    inodes.add_mapped_blocks(db, new, count)
    last = db.one("SELECT max(block_index) FROM temp.past_parts")
    assert last is not None, "an aggregate query returns one row"
    return (BlockIndex(last[0] + 1) if count == limit else None), revived


# --- check the content before a copy -----------------------------------------------------------


def is_retained(db: Database, pack: PackId, key: ObjectKey) -> bool:
    """Return whether a past pack is stored and undamaged, so that its blocks are usable."""
    row = packs.find(db, pack)
    return _is_stored(row, key) and not (
        damage_marks.exist(db) and bool(damage_marks.marks_of(db, pack))
    )


def _is_stored(row: PackRow | None, key: ObjectKey) -> bool:
    return row is not None and row.state is PackState.STORED and row.object_key == key


def is_available(db: Database, past: BlockRow, key: ObjectKey) -> bool:
    """Return whether the content of one past block is usable, so that ``share`` can map it.

    Args:
        key: the object of the block's pack in the past.
    """
    if past.hash is None or past.pack is None:
        return False
    same, equal = blocks.find(db, past.block), blocks.intact(db, past.hash)
    is_in_use = same is not None and same.refs > 0 and same.hash == past.hash
    if same is not None and is_in_use and not blocks.is_damaged(db, same):
        return True
    if equal is not None and equal.plain_bytes == past.plain_bytes:
        return True
    is_marked = damage_marks.covers(db, past.pack, past.pack_offset)
    return _is_stored(packs.find(db, past.pack), key) and not is_marked


def unavailable(db: Database, txg: Txg, key: str | None) -> PastUnavailableError:
    """Return the error for past content that is unavailable.

    Args:
        key: the object that contained the content; None if the past state lists no object for it.
    """
    if key is None:
        why = "part of the content was lost before it reached the bucket"
    elif db.one("SELECT 1 FROM packs WHERE object_key = ?", (key,)) is None:
        why = (
            f"part of the content is in {key}, which the present metadata does not list: the object"
            " belongs to a replaced history, or was deleted because it is no longer retained"
        )
    else:
        why = (
            f"part of the content is in {key}, which is damaged, or is being deleted because it is"
            " no longer retained"
        )
    return PastUnavailableError(
        txg, f"{why}; no copy was made; use s3fs-meta restore to copy all readable files"
    )
