"""Preparing a database of an earlier txg as the next state of the filesystem.

Owns: the facts copied from the current database: numbers that must never be reused, packs, abandoned
images, damage marks, and new locations of content. Does not know: how the earlier database is
restored, how it replaces the current one.
Keeps: the files are exactly those of the earlier txg. Packs needed only by later states count as
dead from now on: the later states stay available for the retention time, then the packs are deleted.
Tasks: all calls block; they belong in a thread, on databases that no other task uses meanwhile.
"""

from typing import Final

from s3fs_meta.errors import SettingsError
from s3fs_meta.meta import replica
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import blocks, damage_marks, packs, properties
from s3fs_meta.model import BlockId, BlockRow, ObjectKey, PackState

_NAMED_MAX: Final = 3  # maximum number of packs that an error names

# Blocks whose packs are condemned or missing, or whose locations are marked as damaged.
_HOMELESS: Final = (
    f"SELECT b.block, b.hash, b.plain_bytes, q.object_key, p.state IS {PackState.STORED:d}"
    " FROM blocks AS b"
    " LEFT JOIN temp.present_packs AS p ON p.pack = b.pack"
    " LEFT JOIN packs AS q ON q.pack = b.pack"
    f" WHERE b.pack IS NOT NULL AND (p.state IS NOT {PackState.STORED:d} OR {damage_marks.COVERS_B})"
)


def take_over(past: Database, present: Database) -> int:
    """Add facts from the current database to a database of an earlier txg, and commit.

    Args:
        past: a restored database of the earlier txg, without local rows.
        present: the current database of the filesystem; all its changes are in the bucket.

    Returns:
        The number of blocks of *past* that are damaged in the bucket and have no intact copy.

    Raises:
        SettingsError: packs of *past* were deleted. *past* is unusable, *present* is unchanged.
    """
    past.begin_local()
    now, then = present.counters, past.counters
    then.next_ino = max(then.next_ino, now.next_ino)
    then.next_block = max(then.next_block, now.next_block)
    then.next_pack = max(then.next_pack, now.next_pack)
    then.txg = now.txg
    damage_marks.take_over(past, present)
    _list_present(past, present)
    lost = _find_content(past, present)
    _exchange_packs(past)
    properties.take_over_images(past, present)
    properties.take_over_renumbered(past, present)
    replica.settle(past)
    past.commit()
    return lost


def _list_present(past: Database, present: Database) -> None:
    past.run(
        "CREATE TEMP TABLE present_packs (pack INTEGER PRIMARY KEY, object_key TEXT,"
        " state INTEGER, object_bytes INTEGER, died_txg INTEGER)"
    )
    past.run_many(
        "INSERT INTO temp.present_packs VALUES (?, ?, ?, ?, ?)",
        (
            (row.pack, row.object_key, int(row.state), row.object_bytes, row.died_txg)
            for row in packs.iterate(present)
        ),
    )


def _find_content(past: Database, present: Database) -> int:
    """Set new locations of blocks that are unreadable at their old locations.

    Returns:
        The number of blocks that are damaged in the bucket and have no other location.
    """
    missing: dict[ObjectKey, None] = {}
    lost = 0
    for block, content_hash, plain_bytes, key, is_kept in past.all(_HOMELESS):
        found = _elsewhere(present, block, content_hash, plain_bytes)
        if found is None and is_kept:
            lost += 1  # the block was already unreadable before the rollback
            continue
        if found is None:
            missing[key] = None
            continue
        past.run(
            "UPDATE blocks SET pack = ?, pack_offset = ?, stored_bytes = ? WHERE block = ?",
            (found.pack, found.pack_offset, found.stored_bytes, block),
        )
    if missing:
        named = ", ".join(list(missing)[:_NAMED_MAX])
        more = f" and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
        raise SettingsError(
            f"some content of that point in time is in the packs {named}{more}, which may be"
            " deleted already; use s3fs-meta restore to copy the available content"
        )
    return lost


def _elsewhere(
    present: Database, block: BlockId, content_hash: bytes, plain_bytes: int
) -> BlockRow | None:
    """Return a block of the current database with the same content in an intact pack."""
    for row in (blocks.find(present, block), *blocks.by_hash(present, content_hash)):
        if row is None or row.pack is None or blocks.is_damaged(present, row):
            continue
        if row.hash != content_hash or row.plain_bytes != plain_bytes:
            continue
        if packs.get(present, row.pack).state is PackState.STORED:
            return row
    return None


def _exchange_packs(past: Database) -> None:
    """Adopt the packs of the current database; recount their live bytes for the earlier blocks.

    Packs without live bytes get the open txg as died_txg, because earlier txgs need them.
    """
    past.run("DELETE FROM packs")
    past.run(
        "INSERT INTO packs SELECT p.pack, p.object_key, p.state, p.object_bytes,"
        " coalesce((SELECT sum(b.stored_bytes) FROM blocks AS b WHERE b.pack = p.pack), 0),"
        " p.died_txg FROM temp.present_packs AS p"
    )
    past.run("UPDATE packs SET died_txg = NULL WHERE live_bytes > 0")
    past.run(
        "UPDATE packs SET died_txg = ? WHERE live_bytes = 0 AND died_txg IS NULL"
        f" AND state = {PackState.STORED:d}",
        (past.counters.txg,),
    )
    past.run("DROP TABLE temp.present_packs")
