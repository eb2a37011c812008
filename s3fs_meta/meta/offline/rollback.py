"""Preparing a database of an earlier txg as the next state of the filesystem.

Owns: the facts copied from the current database: numbers that must never be reused, packs and their
numbers, abandoned images, damage marks, and new locations of content.
Does not know: how the earlier database is restored, and how it replaces the current one.
Keeps: the files are exactly the files of the earlier txg. Packs that only later states need are
dead from now on, and garbage collection deletes them after the retention period.
Tasks: all calls block; call them in a thread, on databases that no other task uses during a call.
"""

from collections.abc import Collection
from typing import Final

from s3fs_meta.errors import SettingsError
from s3fs_meta.meta import replica
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import blocks, damage_marks, packs, properties
from s3fs_meta.model import BlockId, BlockRow, ObjectKey, PackState

_NAMED_MAX: Final = 3  # maximum number of packs that an error message lists

# Blocks whose packs are condemned or missing, or whose locations are marked as damaged.
_HOMELESS: Final = (
    f"SELECT b.block, b.hash, b.plain_bytes, q.object_key, p.state IS {PackState.STORED:d}"
    " FROM blocks AS b"
    " LEFT JOIN temp.present_packs AS p ON p.pack = b.pack"
    " LEFT JOIN packs AS q ON q.pack = b.pack"
    f" WHERE b.pack IS NOT NULL AND (p.state IS NOT {PackState.STORED:d} OR {damage_marks.COVERS_B})"
)
_HAS_BLOCKS: Final = "EXISTS (SELECT 1 FROM blocks AS b WHERE b.pack = q.pack)"


def unlisted(past: Database, present: Database) -> list[tuple[ObjectKey, int]]:
    """Return the packs of the earlier txg that have no row in the current database.

    These packs were deleted, or belong to a history that the chain did not continue.

    Returns:
        The keys and the sizes of the objects.
    """
    past.begin_local()
    _list_present(past, present)
    rows = past.all(
        f"SELECT q.object_key, q.object_bytes FROM packs AS q WHERE {_HAS_BLOCKS} AND NOT EXISTS"
        " (SELECT 1 FROM temp.present_packs AS p WHERE p.object_key = q.object_key)"
    )
    past.run("DROP TABLE temp.present_packs")
    past.commit()
    return [(ObjectKey(key), size) for key, size in rows]


def take_over(past: Database, present: Database, strays: Collection[ObjectKey] = ()) -> int:
    """Add facts from the current database to a database of an earlier txg, and commit.

    Args:
        past: a restored database of the earlier txg, without local rows.
        present: the current database of the filesystem; all its changes are in the bucket.
        strays: the packs among ``unlisted`` that are in the bucket.

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
    _match_packs(past, strays)
    lost = _find_content(past, present)
    _exchange_packs(past)
    properties.take_over_images(past, present)
    properties.take_over_renumbered(past, present)
    if strays:
        properties.renumber_packs(past, then.txg, then.next_pack)
    properties.take_over_replaced(past, present)
    properties.keep_packs(past, sorted(properties.kept_packs(present)))
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
    past.run("CREATE INDEX temp.present_by_key ON present_packs (object_key)")


def _match_packs(past: Database, strays: Collection[ObjectKey]) -> None:
    """Give the packs of the earlier txg the numbers that they have in the current database.

    A rebuild assigns new numbers to packs, and two histories may assign the same number to
    different packs. A pack without a row in the current database is assigned an unused number. Of
    these packs, only *strays* are marked as stored.
    """
    past.run(f"DELETE FROM packs AS q WHERE NOT {_HAS_BLOCKS}")
    past.run("CREATE TEMP TABLE matched (old INTEGER PRIMARY KEY, new INTEGER)")
    past.run(
        "INSERT OR IGNORE INTO temp.matched SELECT q.pack, p.pack FROM packs AS q"
        " LEFT JOIN temp.present_packs AS p ON p.object_key = q.object_key"
        " WHERE p.pack IS NOT q.pack"
    )
    for old, key, size in past.all(
        "SELECT q.pack, q.object_key, q.object_bytes FROM packs AS q"
        " JOIN temp.matched AS m ON m.old = q.pack WHERE m.new IS NULL"
    ):
        new = past.counters.take_pack()
        past.run("UPDATE temp.matched SET new = ? WHERE old = ?", (new, old))
        if key in strays:
            past.run(
                "INSERT INTO temp.present_packs VALUES (?, ?, ?, ?, NULL)",
                (new, key, int(PackState.STORED), size),
            )
    past.run(
        "UPDATE blocks SET pack = (SELECT new FROM temp.matched WHERE old = blocks.pack)"
        " WHERE pack IN (SELECT old FROM temp.matched)"
    )
    past.run("UPDATE packs SET pack = -pack WHERE pack IN (SELECT old FROM temp.matched)")
    past.run(
        "UPDATE packs SET pack = (SELECT new FROM temp.matched WHERE old = -packs.pack)"
        " WHERE pack < 0"
    )
    past.run("DROP TABLE temp.matched")


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
            f"some content of that point in time is in the packs {named}{more}, which may already"
            " be deleted; use s3fs-meta restore to copy the available content"
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
    """Adopt the packs of the current database; count live bytes for the blocks of the earlier txg.

    The open txg becomes died_txg of packs without live bytes: earlier txgs need these packs.
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
