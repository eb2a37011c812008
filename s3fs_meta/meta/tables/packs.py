"""Rows of ``packs``: the objects that contain blocks.

Owns: states, sizes, the live bytes of a pack, and the txg in which the live bytes became 0
(died_txg).
Does not know: the store, the packs that images need (``sync.history.garbage.garbage_search``).
Keeps: counters.stored_bytes equals the sum of object_bytes over packs in state STORED;
died_txg is set if and only if live_bytes is 0, except before the pack's blocks have locations.
"""

import contextlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from s3fs_meta.errors import BadRowError, MetadataError
from s3fs_meta.limits import PACKS_SCANNED_AT_ONCE
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.tables import damage_marks
from s3fs_meta.model import ObjectKey, PackId, PackState, Txg

_COLUMNS: Final = "pack, object_key, state, object_bytes, live_bytes, died_txg"
# The next changelog lists the packs in the table pack_news, with their blocks.
_LIST: Final = "INSERT OR IGNORE INTO pack_news VALUES (?)"


class PackRow(NamedTuple):
    """One row of the table ``packs``."""

    pack: PackId
    object_key: ObjectKey
    state: PackState
    object_bytes: int
    live_bytes: int
    died_txg: Txg | None


_STATES: Final = frozenset(PackState)


def create(db: Database, key: ObjectKey, object_bytes: int) -> PackId:
    """Insert a pack before it is stored; return its number. Requires an open transaction."""
    pack = db.counters.take_pack()
    db.run(
        f"INSERT INTO packs VALUES (?, ?, {PackState.UPLOADING:d}, ?, 0, NULL)",
        (pack, key, object_bytes),
    )
    return pack


def adopt(db: Database, pack: PackId, key: ObjectKey, object_bytes: int) -> None:
    """Insert a stored pack into an older copy of the database, under its current number.

    If the copy already has a row for the pack, the row's state becomes STORED. Needs a transaction.
    """
    if find(db, pack) is None:
        db.run(
            f"INSERT INTO packs VALUES (?, ?, {PackState.UPLOADING:d}, ?, 0, NULL)",
            (pack, key, object_bytes),
        )
        db.counters.next_pack = max(db.counters.next_pack, pack + 1)
    stored(db, pack)


def find(db: Database, pack: PackId) -> PackRow | None:
    """Return the row of a pack, or None if it has no row."""
    row = db.one(f"SELECT {_COLUMNS} FROM packs WHERE pack = ?", (pack,))
    return None if row is None else _row(row)


def get(db: Database, pack: PackId) -> PackRow:
    """Return the row of a pack, which must exist.

    Raises:
        MetadataError: the pack has no row.
    """
    row = find(db, pack)
    if row is None:
        raise _missing(pack)
    return row


def object_key(db: Database, pack: PackId) -> ObjectKey:
    """Return a pack's object key; raise MetadataError or BadRowError if it has no valid row."""
    row = db.one("SELECT object_key FROM packs WHERE pack = ?", (pack,))
    if row is None:
        raise _missing(pack)
    if type(row[0]) is not str:
        raise BadRowError(f"pack {pack}", 0)
    return ObjectKey(row[0])


def object_bytes(db: Database, pack: PackId) -> int:
    """Return the size of a pack's object; raise MetadataError if the pack has no row."""
    return get(db, pack).object_bytes


def stored(db: Database, pack: PackId) -> None:
    """Record that the store confirmed a pack; a repeated call is harmless. Needs a transaction.

    The next changelog lists the pack, unless a changelog that is being made lists all its blocks.
    """
    row = get(db, pack)
    db.run(_LIST, (pack,))
    if row.state is PackState.UPLOADING:
        _set_state(db, pack, PackState.STORED)
        db.counters.stored_bytes += row.object_bytes


def condemn(db: Database, pack: PackId, died: Txg | None = None) -> None:
    """Condemn a pack without live blocks, so that no block refers to it again. Needs a transaction.

    A pack that never had a live block in this history has no died_txg yet. This function sets it,
    because the pack may have had live blocks in another history (``renew_died_txg``).

    Args:
        died: the died_txg to set; None for the open txg.
    """
    row = get(db, pack)
    assert row.live_bytes == 0, "a pack with live blocks cannot be condemned"
    assert pack not in db.held_packs, "a pack that a running copy needs cannot be condemned"
    if row.state is PackState.STORED:
        db.counters.stored_bytes -= row.object_bytes
    _set_state(db, pack, PackState.CONDEMNED)
    note_if_dead(db, pack, died)
    report(db, [pack])


def revive(db: Database, pack: PackId) -> None:
    """Mark a condemned pack as stored again. Requires an open transaction.

    The store must have the object, and no host may have sent a DELETE for it.
    """
    row = get(db, pack)
    if row.state is PackState.CONDEMNED:
        _set_state(db, pack, PackState.STORED)
        db.counters.stored_bytes += row.object_bytes
        report(db, [pack])


def delete(db: Database, pack: PackId) -> None:
    """Delete the row of a pack whose object is deleted. Requires an open transaction."""
    row = get(db, pack)
    assert row.live_bytes == 0, "a pack with live blocks cannot be deleted"
    if row.state is PackState.STORED:
        db.counters.stored_bytes -= row.object_bytes
    db.run("DELETE FROM packs WHERE pack = ?", (pack,))
    damage_marks.forget_pack(db, pack)
    report(db, [pack])


def add_live_bytes(db: Database, pack: PackId, stored_bytes: int) -> None:
    """Add a block's bytes to a pack's live bytes. Requires an open transaction."""
    sql = "UPDATE packs SET live_bytes = live_bytes + ?, died_txg = NULL WHERE pack = ?"
    if not db.run(sql, (stored_bytes, pack)):
        raise MetadataError(f"pack {pack} has no row in the table packs", 0)


def drop_live_bytes(db: Database, pack: PackId, stored_bytes: int) -> None:
    """Subtract a block's bytes from a pack's live bytes. Requires an open transaction."""
    sql = (
        "UPDATE packs SET live_bytes = live_bytes - ?1, died_txg ="
        " CASE WHEN live_bytes = ?1 AND died_txg IS NULL THEN ?2 ELSE died_txg END WHERE pack = ?3"
    )
    if not db.run(sql, (stored_bytes, db.counters.txg, pack)):
        raise MetadataError(f"pack {pack} has no row in the table packs", 0)


def note_if_dead(db: Database, pack: PackId, died: Txg | None = None) -> None:
    """If a pack has no live bytes, set its died_txg, by default to the open txg.

    Needs a transaction.
    """
    db.run(
        "UPDATE packs SET died_txg = ? WHERE pack = ? AND live_bytes = 0 AND died_txg IS NULL",
        (db.counters.txg if died is None else died, pack),
    )


def report(db: Database, changed: Sequence[PackId]) -> None:
    """Let the next changelog list the given packs and their blocks. Needs a transaction.

    A changelog that is being made does not contain this change; the changelog after it does.
    """
    db.run_many(_LIST, [(pack,) for pack in changed])
    db.packs_changed_after_cut.update(changed)


def slices(db: Database, numbers_max: int = PACKS_SCANNED_AT_ONCE) -> Iterator[range]:
    """Yield ranges that together contain all pack numbers, in ascending order.

    A bucket may have millions of packs. For queries without an index, the caller searches one range
    at a time, with a schedule point after each.
    """
    end = db.counters.next_pack
    yield from (range(at, at + numbers_max) for at in range(0, end, numbers_max))


def find_condemned(db: Database, within: range) -> list[PackRow]:
    """Return the condemned packs with numbers in a range of ``slices``, sorted by number."""
    sql = (
        f"SELECT {_COLUMNS} FROM packs WHERE state = {PackState.CONDEMNED:d}"
        " AND pack >= ? AND pack < ? ORDER BY pack"
    )
    return [_row(row) for row in db.all(sql, (within.start, within.stop))]


def find_dead(db: Database, floor: Txg, limit: int, after: PackRow | None = None) -> list[PackRow]:
    """Return at most *limit* stored packs that no txg from *floor* onwards needs, by died_txg.

    A running copy of an earlier point in time may still need some of them (``held_packs``).

    Args:
        after: the last row of the previous result, or None at the start.
    """
    last = (-1, 0) if after is None else (after.died_txg, after.pack)
    rows = db.all(
        f"SELECT {_COLUMNS} FROM packs WHERE died_txg IS NOT NULL AND died_txg <= ?1"
        " AND died_txg >= ?2 AND (died_txg > ?2 OR pack > ?3)"
        f" AND state = {PackState.STORED:d} AND live_bytes = 0"
        " ORDER BY died_txg, pack LIMIT ?4",
        (floor, *last, limit),
    )
    return [_row(row) for row in rows]


def renew_died_txg(db: Database) -> None:
    """Set died_txg of every dead pack to the open txg. Requires an open transaction.

    Call this if the chain continues without some txgs, which other hosts can still restore: packs
    that are dead or condemned now may have had live blocks in these txgs.
    """
    db.run("UPDATE packs SET died_txg = ? WHERE died_txg IS NOT NULL", (db.counters.txg,))


def outlive(db: Database, txg: Txg) -> None:
    """Set died_txg to at least *txg* + 1 in packs that died in *txg*. Needs a transaction.

    Call this when the database adopts a changelog that an earlier process wrote. A fence record has
    the number of the txg that was open when the packs died. It contains none of that txg's changes,
    so a restore of the fence record still needs these packs. For any other changelog, the packs are
    kept one txg longer than necessary.
    """
    db.run("UPDATE packs SET died_txg = max(died_txg, ?1 + 1) WHERE died_txg >= ?1", (txg,))


def has_dead(db: Database, after: Txg, upto: Txg) -> bool:
    """Return whether a stored pack died in one of the txgs *after* + 1 to *upto*."""
    row = db.one(
        "SELECT 1 FROM packs WHERE died_txg > ? AND died_txg <= ?"
        f" AND state = {PackState.STORED:d} AND live_bytes = 0 LIMIT 1",
        (after, upto),
    )
    return row is not None


def live_bytes(db: Database, within: range) -> int:
    """Return the bytes that files need in the stored packs with numbers in a range of ``slices``."""
    row = db.one(
        f"SELECT total(live_bytes) FROM packs WHERE state = {PackState.STORED:d}"
        " AND pack >= ? AND pack < ?",
        (within.start, within.stop),
    )
    return 0 if row is None else int(row[0])


def count(db: Database, within: range) -> int:
    """Return the number of packs with numbers in a range of ``slices``."""
    sql = "SELECT count(*) FROM packs WHERE pack >= ? AND pack < ?"
    row = db.one(sql, (within.start, within.stop))
    return 0 if row is None else int(row[0])


def keys_after(db: Database, pack: PackId, limit: int) -> list[tuple[PackId, ObjectKey]]:
    """Return the keys of the next *limit* packs after a pack number, sorted by number."""
    return [(number, key) for number, key, _size in sizes_after(db, pack, limit)]


def sizes_after(db: Database, pack: PackId, limit: int) -> list[tuple[PackId, ObjectKey, int]]:
    """Return the next *limit* packs after a pack number, with the sizes of stored packs.

    The size of a pack in another state is 0.

    Raises:
        BadRowError: a key cannot be read.
    """
    rows = db.all(
        "SELECT pack, object_key, state, object_bytes FROM packs WHERE pack > ?"
        " ORDER BY pack LIMIT ?",
        (pack, limit),
    )
    return [(*_keyed(row), row[3] if row[2] == PackState.STORED else 0) for row in rows]


def condemned(db: Database) -> list[tuple[PackId, ObjectKey]]:
    """Return all condemned packs, sorted by number."""
    return _in_state(db, PackState.CONDEMNED)


def uploading(db: Database) -> list[tuple[PackId, ObjectKey]]:
    """Return packs whose upload is not confirmed, sorted by number."""
    return _in_state(db, PackState.UPLOADING)


def iterate(db: Database) -> Iterator[PackRow]:
    """Yield all packs by number. Exhaust or close the iterator before the next schedule point."""
    for row in db.iterate(f"SELECT {_COLUMNS} FROM packs ORDER BY pack"):
        yield _row(row)


def readable_stored(db: Database) -> Iterator[PackRow]:
    """Yield the stored packs as ``iterate`` does, but skip rows that cannot be read."""
    for row in db.iterate(
        f"SELECT {_COLUMNS} FROM packs WHERE state = {PackState.STORED:d} ORDER BY pack"
    ):
        with contextlib.suppress(BadRowError):
            yield _row(row)


def all_keys(db: Database) -> Iterator[tuple[PackId, ObjectKey]]:
    """Yield the keys of packs by number, but omit rows whose key cannot be read.

    Close the iterator before the next schedule point.
    """
    sql = "SELECT pack, CAST(object_key AS BLOB) FROM packs WHERE typeof(object_key) = 'text'"
    for pack, key in db.iterate(f"{sql} ORDER BY pack"):
        yield pack, ObjectKey(key.decode("ascii", "replace"))


def mostly_dead(
    db: Database, within: range, fraction: float, limit: int, after: PackRow | None = None
) -> list[PackRow]:
    """Return at most *limit* stored packs that are partly live, up to *fraction* of their size.

    The packs are sorted by dead bytes, largest number first. Packs that are marked as damaged are
    skipped.

    Args:
        db: the database.
        within: a range of ``slices``.
        fraction: the maximum share of live bytes.
        limit: the maximum number of packs.
        after: the last row of the previous result, or None at the start.
    """
    last = None if after is None else after.object_bytes - after.live_bytes
    rows = db.all(
        f"SELECT {_COLUMNS} FROM packs WHERE state = {PackState.STORED:d} AND live_bytes > 0"
        f" AND live_bytes <= object_bytes * ?1 / 1000000 AND NOT {damage_marks.COVERS_PACK}"
        " AND pack >= ?5 AND pack < ?6"
        " AND (?2 IS NULL OR object_bytes - live_bytes < ?2"
        " OR object_bytes - live_bytes = ?2 AND pack > ?3)"
        " ORDER BY object_bytes - live_bytes DESC, pack LIMIT ?4",
        (
            int(fraction * 1_000_000),
            last,
            0 if after is None else after.pack,
            limit,
            within.start,
            within.stop,
        ),
    )
    return [_row(row) for row in rows]


def with_most_dead_bytes(rows: Iterable[PackRow], limit: int) -> list[PackRow]:
    """Return the *limit* packs with the most dead bytes, in the order of ``mostly_dead``."""
    return heapq.nsmallest(
        limit, rows, key=lambda row: (row.live_bytes - row.object_bytes, row.pack)
    )


def _missing(pack: PackId) -> MetadataError:
    return MetadataError(f"pack {pack} has no row in the table packs", 0)


def _in_state(db: Database, state: PackState) -> list[tuple[PackId, ObjectKey]]:
    sql = "SELECT pack, object_key FROM packs WHERE state = ? ORDER BY pack"
    return [_keyed(row) for row in db.all(sql, (int(state),))]


def _keyed(row: Row) -> tuple[PackId, ObjectKey]:
    """Return the number and the key of a pack; raise BadRowError if the key is invalid."""
    if type(row[1]) is not str:
        raise BadRowError(f"pack {row[0]}", 0)
    return row[0], ObjectKey(row[1])


def _set_state(db: Database, pack: PackId, state: PackState) -> None:
    db.run("UPDATE packs SET state = ? WHERE pack = ?", (int(state), pack))


def _row(row: Row) -> PackRow:
    """Convert a row of ``packs``; raise BadRowError if it is invalid."""
    pack, key, state, size, live, died = row
    numbers = (state, size, live, 0 if died is None else died)
    if type(key) is not str or any(type(one) is not int for one in numbers) or state not in _STATES:
        raise BadRowError(f"pack {pack}", 0)
    return PackRow(pack, ObjectKey(key), PackState(state), size, live, died)
