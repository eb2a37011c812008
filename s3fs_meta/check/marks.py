"""Setting and removing damage marks after fsck has read packs.

Owns: choosing the damage marks to set and to remove.
Does not know: reading packs (``survey.packs``), which also finds wrong marks; the use of marks
(``sync.upload.healing``).
``settle`` opens its own transaction, after all repairs.
"""

from typing import Final

from s3fs_meta.check.context import Examination
from s3fs_meta.check.rules.bucket import MISSING_PACKS, TORN_PACKS
from s3fs_meta.meta.tables import damage_marks
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import PackId

_SEEN: Final = "SELECT pack, pack_offset FROM temp.seen_damage ORDER BY pack, pack_offset"
# A damage mark is removed if the marked location is readable, or the pack's row was deleted.
_IS_REFUTED: Final = (
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM temp.seen_false_marks WHERE name = ?)"
    " OR NOT EXISTS (SELECT 1 FROM packs WHERE pack = ?)"
)


def note_packs(exam: Examination) -> None:
    """Record missing and truncated packs as damaged, before a repair moves their blocks."""
    exam.evidence.note_damage(f"SELECT pack, -1 FROM ({MISSING_PACKS})")
    exam.evidence.note_damage(f"SELECT pack, -1 FROM ({TORN_PACKS})")


def settle(exam: Examination) -> None:
    """Mark missing packs and unreadable records; remove wrong marks.

    Locations from which a repair moved blocks are also marked, because earlier transaction groups
    still refer to them.
    """
    found = [
        Mark(PackId(pack), None if offset < 0 else offset) for pack, offset in exam.db.all(_SEEN)
    ]
    found = [one for one in found if not damage_marks.covers(exam.db, one.pack, one.pack_offset)]
    refuted_marks = _refuted_marks(exam)
    if not found and not refuted_marks:
        return
    exam.db.begin()
    try:
        damage_marks.remove(exam.db, refuted_marks)
        added = sum(damage_marks.add(exam.db, mark) for mark in found)
        exam.touched()
        exam.commit()
    finally:
        exam.db.rollback()  # undoes the changes after an error; has no effect after the commit
    if added:
        exam.report.remember(
            f"marked {added} damaged locations in the bucket: no content is deduplicated onto them;"
            " writing the same content again heals them"
        )
    if refuted_marks:
        exam.report.remember(
            f"removed {len(refuted_marks)} damage marks: their locations are readable again"
        )


def _refuted_marks(exam: Examination) -> list[Mark]:
    return [
        mark
        for mark in damage_marks.marks(exam.db)
        if exam.db.one(_IS_REFUTED, (mark.name, mark.pack)) is not None
    ]
