"""Applying the writer's changelogs to the database of another host.

Owns: applying one txg in one transaction; updating the rows of blocks and packs to match.
Does not know: the source of changelogs and their order (``sync.chain.replay``).
Keeps: the replicated tables become equal to the writer's tables at the end of the txg; after
``settle`` the rows of blocks and packs allow a writer to continue.
Tasks: all calls block; call them in a thread, on a ``Database`` that no other task uses during a
call.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Final

from s3fs_meta.codec.changelog import Location, PackNote
from s3fs_meta.errors import FormatError
from s3fs_meta.meta import changesets
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import local_state, pending
from s3fs_meta.model import BlockId, BlockState, PackId, PackState, Txg

_UNSETTLED: Final = "unsettled"
_PUT_PACK: Final = (
    "INSERT INTO packs VALUES (?1, ?2, ?3, ?4, 0, NULL)"
    " ON CONFLICT (pack) DO UPDATE SET state = ?3, object_bytes = ?4 WHERE object_key = ?2"
)


class Replica:
    """Applies txgs to one database: call ``begin``, then ``add`` repeatedly, then ``finish``."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def begin(self) -> None:
        """Begin the transaction that applies one txg."""
        db = self._db
        db.begin_local()
        # The column plain_bytes contains the length of the block before the txg.
        db.run(
            "CREATE TEMP TABLE IF NOT EXISTS touched_blocks"
            " (number INTEGER PRIMARY KEY, plain_bytes INTEGER)"
        )
        db.run("DELETE FROM temp.touched_blocks")
        db.run("CREATE TEMP TABLE IF NOT EXISTS touched_packs (number INTEGER PRIMARY KEY)")
        db.run("DELETE FROM temp.touched_packs")

    def abandon(self) -> None:
        """Undo all changes since ``begin``."""
        self._db.rollback()

    def add(self, changeset: bytes, locations: Iterable[Location], where: str) -> None:
        """Apply one section of the txg: a changeset, then locations of blocks.

        Raises:
            FormatError: the changes do not fit the rows; call ``abandon``.
        """
        db = self._db
        if changeset:
            changesets.apply(db.connection, changeset, where)
            refs = changesets.block_refs(changeset)
            db.run_many(
                "INSERT INTO blocks VALUES (?1, ?2, 0, NULL, NULL, NULL, NULL)"
                " ON CONFLICT (block) DO UPDATE SET refs = refs + ?2",
                refs.items(),
            )
            _touch_blocks(db, refs)
        for one in locations:
            self._place(one)

    def _place(self, one: Location) -> None:
        db = self._db
        db.run(
            "INSERT OR IGNORE INTO temp.touched_packs"
            " SELECT pack FROM blocks WHERE block = ? AND pack IS NOT NULL",
            (one.block,),
        )
        content_hash = None if one.pack is None else one.hash
        _touch_blocks(db, (one.block,))
        db.run(
            "UPDATE blocks SET plain_bytes = ?, hash = ?, pack = ?, pack_offset = ?,"
            " stored_bytes = ? WHERE block = ?",
            (one.plain_bytes, content_hash, one.pack, one.pack_offset, one.stored_bytes, one.block),
        )

    def finish(
        self,
        txg: Txg,
        packs: Sequence[PackNote],
        forgotten: Sequence[PackId],
        link: str,
        where: str,
        *,
        merged: bool = False,
    ) -> list[BlockId]:
        """Commit the txg, so that all its changes become visible together.

        Args:
            txg: the number of the txg.
            packs: packs that the txg added or condemned.
            forgotten: packs whose objects were deleted.
            link: the value for ``chain`` in ``local_state``.
            where: the source of the changes, for errors.
            merged: the changes are merged from several txgs up to *txg*, so the txg in which a pack
                died is unknown.

        Returns:
            The blocks whose rows were deleted.

        Raises:
            FormatError: the changes do not fit the rows; call ``abandon``.
        """
        db, changed_packs = self._db, [*forgotten, *(one.pack for one in packs)]
        stored_bytes = -_stored_bytes(db, changed_packs)
        for one in packs:
            if not db.run(_PUT_PACK, (one.pack, one.object_key, int(one.state), one.object_bytes)):
                raise FormatError(
                    where, f"the key of pack {one.pack} differs from the key in the local database"
                )
        db.run_many(
            "INSERT OR IGNORE INTO temp.touched_packs VALUES (?)", [(one.pack,) for one in packs]
        )
        db.run(
            "UPDATE totals SET next_pack = max(next_pack, ?)",
            (max((pack + 1 for pack in changed_packs), default=0),),
        )
        self._require_places(where)
        db.run(
            "INSERT OR IGNORE INTO temp.touched_packs SELECT b.pack FROM temp.touched_blocks AS t"
            " JOIN blocks AS b ON b.block = t.number WHERE b.pack IS NOT NULL"
        )
        removed = db.all(
            "DELETE FROM blocks WHERE refs = 0"
            " AND block IN (SELECT number FROM temp.touched_blocks) RETURNING block"
        )
        self._count_packs(txg, merged=merged)
        for pack in forgotten:
            if db.one("SELECT 1 FROM blocks WHERE pack = ? LIMIT 1", (pack,)) is not None:
                text = f"the txg deletes pack {pack}, which still contains blocks of files"
                raise FormatError(where, text)
            db.run("DELETE FROM packs WHERE pack = ?", (pack,))
        self._count_totals(stored_bytes + _stored_bytes(db, changed_packs))
        db.run("DELETE FROM pack_news")  # these packs are already in a changelog
        local_state.put(db, "chain", link)
        local_state.put(db, _UNSETTLED, "1")
        db.load_counters()
        db.commit()
        return [BlockId(row[0]) for row in removed]

    def _require_places(self, where: str) -> None:
        """Raise FormatError for a used block without a location or stored pack, or with refs < 0."""
        wrong = self._db.one(
            "SELECT b.block, b.refs, b.plain_bytes, b.pack FROM temp.touched_blocks AS t"
            " CROSS JOIN blocks AS b ON b.block = t.number"
            " LEFT JOIN packs AS p ON p.pack = b.pack"
            " WHERE b.refs < 0 OR b.refs > 0 AND (b.plain_bytes = 0"
            f" OR b.pack IS NOT NULL AND p.state IS NOT {PackState.STORED:d}) LIMIT 1"
        )
        if wrong is None:
            return
        block, refs, plain_bytes, pack = wrong
        if refs < 0:
            text = f"block {block} has a negative reference count: {refs}"
        elif plain_bytes == 0:
            text = f"block {block} is in use, but has no location"
        else:
            text = f"block {block} is in use, but its pack {pack} is not recorded as stored"
        raise FormatError(where, text)

    def _count_totals(self, stored_bytes: int) -> None:
        """Add the changes of the txg to the totals, which statfs(2) and the metrics report.

        Args:
            stored_bytes: the growth of the packs in the bucket.
        """
        self._db.run(
            "UPDATE totals SET stored_bytes = max(stored_bytes + ?, 0),"
            " block_bytes = max(block_bytes + (SELECT coalesce(sum(b.plain_bytes), 0)"
            " FROM temp.touched_blocks AS t CROSS JOIN blocks AS b ON b.block = t.number)"
            " - (SELECT coalesce(sum(plain_bytes), 0) FROM temp.touched_blocks), 0)",
            (stored_bytes,),
        )

    def _count_packs(self, txg: Txg, *, merged: bool) -> None:
        """Recompute live bytes and died_txg of the changed packs."""
        self._db.run(
            "UPDATE packs SET live_bytes = coalesce((SELECT sum(b.stored_bytes) FROM blocks AS b"
            " WHERE b.pack = packs.pack), 0)"
            " WHERE pack IN (SELECT number FROM temp.touched_packs)"
        )
        died = "?" if merged else "coalesce(died_txg, ?)"
        self._db.run(
            f"UPDATE packs SET died_txg = CASE live_bytes WHEN 0 THEN {died} END"
            " WHERE pack IN (SELECT number FROM temp.touched_packs)",
            (txg,),
        )


def is_unsettled(db: Database) -> bool:
    """Return whether changelogs were applied after the last ``settle``."""
    return local_state.get(db, _UNSETTLED) is not None


def settle(db: Database) -> None:
    """Recount the totals, and update the states of cached blocks: changelogs contain neither.

    Requires an open transaction.
    """
    row = db.one(
        "SELECT (SELECT coalesce(max(pack), 0) FROM packs),"
        " (SELECT coalesce(sum(plain_bytes), 0) FROM blocks),"
        f" (SELECT coalesce(sum(object_bytes), 0) FROM packs WHERE state = {PackState.STORED:d})"
    )
    assert row is not None, "an aggregate query returns one row"
    counters = db.counters
    counters.next_pack = max(counters.next_pack, row[0] + 1)
    counters.block_bytes, counters.stored_bytes = row[1], row[2]
    db.run(
        f"UPDATE cached_blocks SET state = {BlockState.DOOMED:d}"
        " WHERE block NOT IN (SELECT block FROM blocks)"
    )
    local_state.delete(db, _UNSETTLED)


def settle_at_txg(db: Database) -> None:
    """Update totals and cached blocks in a database that has the state of a txg in the chain.

    Also record that changelogs contain all blocks. The call takes 1 s per ten million blocks.
    Requires an open transaction.
    """
    settle(db)
    pending.raise_block_floor(db)


def _touch_blocks(db: Database, blocks: Iterable[BlockId]) -> None:
    """Record the lengths of blocks before the txg changes them; keep earlier records."""
    db.run_many(
        "INSERT OR IGNORE INTO temp.touched_blocks"
        " SELECT block, plain_bytes FROM blocks WHERE block = ?",
        [(one,) for one in blocks],
    )


def _stored_bytes(db: Database, of_packs: Sequence[PackId]) -> int:
    """Return the total size of the given packs that are stored in the bucket."""
    row = db.one(
        "SELECT coalesce(sum(object_bytes), 0) FROM packs WHERE state = ?"
        " AND pack IN (SELECT value FROM json_each(?))",
        (int(PackState.STORED), json.dumps(of_packs)),
    )
    assert row is not None, "an aggregate query returns one row"
    return int(row[0])
