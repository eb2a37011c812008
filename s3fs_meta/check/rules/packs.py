"""Invariants of pack rows: keys, states, live bytes."""

from collections.abc import Iterator
from typing import Final

from s3fs_meta.check.context import Examination, Invariant
from s3fs_meta.check.observations import Need
from s3fs_meta.check.sums import EVERY_PACK
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.tables import properties
from s3fs_meta.model import PackState, Txg

_STATES: Final = tuple(int(state) for state in PackState)
_SHARED_KEYS: Final = (
    "(SELECT object_key, min(pack) AS first, count(*) AS packs FROM packs"
    " GROUP BY object_key HAVING count(*) > 1) AS k"
)

# A txg without changes, such as a fence record, does not change the row of counters.
# The next txg opens before a txg is shipped, so the open txg is at most the shipped txg plus 2.
_LAST_OPEN_TXG: Final = (
    "(SELECT max(txg, coalesce((SELECT CASE WHEN json_valid(value)"
    " THEN json_extract(value, '$.txg') + 2 END FROM local_state WHERE name = 'chain'), 0))"
    " FROM counters)"
)


def _bad_rows(exam: Examination) -> Iterator[Row]:
    """Yield packs with an invalid key, state or size; only the codec can check the form of keys."""
    sql = (
        "SELECT pack, CAST(object_key AS BLOB), typeof(object_key), state, object_bytes FROM packs"
    )
    for pack, raw, kind, state, object_bytes in exam.db.iterate(sql):
        key = (raw or b"").decode(errors="backslashreplace") if kind == "text" else raw
        good_size = isinstance(object_bytes, int) and object_bytes > 0
        if not (_is_key(key) and good_size and state in _STATES):
            yield pack, key, state, object_bytes


def _is_key(key: object) -> bool:
    return isinstance(key, str) and pack_codec.parse_key(key) is not None


def _mend_rows(exam: Examination, _invariant: Invariant) -> None:
    """Derive the state and the size of packs from other rows and from the listing of the bucket.

    A lost key cannot be derived, but a search of the bucket can find the pack's blocks. If such a
    pack has no blocks, its row is deleted. Points in time may still need the pack. So all packs
    without rows are kept until the retention floor has passed the present txg.
    """
    exam.run(  # only the SQL type of a key may be wrong
        "UPDATE packs SET object_key = CAST(object_key AS TEXT) WHERE typeof(object_key) = 'blob'"
    )
    is_listed = "packs.object_key IN (SELECT object_key FROM temp.seen_objects)"
    may_exist = is_listed if Need.OBJECTS in exam.evidence.surveyed else "TRUE"
    for pack, key, state, object_bytes in list(_bad_rows(exam)):
        if not _is_key(key) and exam.run(
            "DELETE FROM packs WHERE pack = ?"
            " AND NOT EXISTS (SELECT 1 FROM blocks AS b WHERE b.pack = packs.pack)",
            (pack,),
        ):
            properties.note_replaced_history(exam.db, Txg(exam.db.counters.txg))
        if state not in _STATES:
            exam.run(
                "UPDATE packs SET state = CASE WHEN EXISTS (SELECT 1 FROM blocks AS b"
                f" WHERE b.pack = packs.pack) OR {may_exist} THEN {PackState.STORED:d}"
                f" ELSE {PackState.CONDEMNED:d} END WHERE pack = ?",
                (pack,),
            )
        if not isinstance(object_bytes, int) or object_bytes <= 0:
            exam.run(
                "UPDATE packs SET object_bytes = coalesce((SELECT o.size_bytes FROM"
                " temp.seen_objects AS o WHERE o.object_key = packs.object_key),"
                " (SELECT max(b.pack_offset + b.stored_bytes) FROM blocks AS b"
                " WHERE b.pack = packs.pack), 1) WHERE pack = ?",
                (pack,),
            )


def _merge_rows(exam: Examination, invariant: Invariant) -> None:
    """Keep one row per pack object, and move the blocks of its other rows to that row."""
    for key, first in exam.collected(invariant.select("k.object_key, k.first")):
        others = "(SELECT pack FROM packs WHERE object_key = ?1 AND pack <> ?2)"
        exam.run(
            "UPDATE packs SET state = CASE WHEN EXISTS (SELECT 1 FROM packs AS o"
            f" WHERE o.object_key = ?1 AND o.state = {PackState.STORED:d})"
            f" THEN {PackState.STORED:d} ELSE state END WHERE pack = ?2",
            (key, first),
        )
        exam.run(f"UPDATE blocks SET pack = ?2 WHERE pack IN {others}", (key, first))
        exam.run("DELETE FROM packs WHERE object_key = ?1 AND pack <> ?2", (key, first))


def _count_live(exam: Examination, invariant: Invariant) -> None:
    exam.run(
        "UPDATE packs SET live_bytes = coalesce((SELECT l.stored_bytes FROM temp.check_live AS l"
        f" WHERE l.pack = packs.pack), 0) WHERE pack IN ({invariant.select('p.pack')})"
    )


def _date_death(exam: Examination, invariant: Invariant) -> None:
    """Set died_txg to the open txg if a pack has no live bytes, otherwise to NULL."""
    exam.run(
        "UPDATE packs SET died_txg = CASE WHEN live_bytes = 0 THEN ?1 END"
        f" WHERE pack IN ({invariant.select('p.pack')})",
        (exam.db.counters.txg,),
    )


_ADVICE: Final = (
    "-p corrects the number only if fsck could read all blocks that it tried to read (I51)"
)

PACKS: Final = (
    Invariant(
        38,
        "the row of a pack has a valid key, state and size",
        text="pack {0} has an invalid row: key {1!r}, state {2}, {3} bytes",
        scan=_bad_rows,
        repair=_mend_rows,
        about_inode=False,
        advice="if the key is invalid, the blocks of the pack cannot be read; -y searches for them",
    ),
    Invariant(
        39,
        "every pack object has only one row",
        source=_SHARED_KEYS,
        columns="k.object_key, k.packs",
        text="{1} packs have the key {0!r}",
        repair=_merge_rows,
        about_inode=False,
    ),
)

# While a block is unreadable, -p makes none of these repairs (``fsck``): a wrong sum may show that
# the row of the block names a wrong pack or length.
LIVES: Final = (
    Invariant(
        63,
        "live_bytes is the sum of the stored bytes of the blocks in a pack",
        source=EVERY_PACK,
        damaged="p.live_bytes <> coalesce(l.stored_bytes, 0)",
        columns="p.pack, p.live_bytes, coalesce(l.stored_bytes, 0)",
        text="pack {0} has {2} live bytes, but live_bytes is {1}",
        repair=_count_live,
        safe=True,
        about_inode=False,
        advice=_ADVICE,
    ),
    Invariant(
        64,
        "a stored pack has died_txg if and only if no block is live; died_txg is not in the future",
        source=EVERY_PACK,
        damaged=f"p.state = {PackState.STORED:d}"
        " AND ((p.died_txg IS NULL) <> (coalesce(l.stored_bytes, 0) > 0)"
        f" OR p.died_txg > {_LAST_OPEN_TXG})",
        columns="p.pack, p.died_txg, p.live_bytes",
        text="pack {0} has died_txg {1} and {2} live bytes",
        repair=_date_death,
        safe=True,
        about_inode=False,
        advice=_ADVICE,
    ),
)
