"""Damage marks: rows that mark packs, or records in packs, as damaged."""

import pytest

from s3fs_meta.errors import FormatError
from s3fs_meta.limits import DAMAGED_RECORDS_MAX
from s3fs_meta.meta import changesets
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import (
    damage_marks,
    packs,
    pending,
    properties,
)
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.meta.tables.pending import ChangeRecorder
from s3fs_meta.model import ObjectKey, PackId
from tests.meta.conftest import MakeDatabase

ONE, TEN = PackId(1), PackId(10)  # Both decimal pack numbers begin with the same digits.


def test_damage_mark_of_a_record_covers_no_other_record(db: Database) -> None:
    assert not damage_marks.exist(db)
    assert damage_marks.add(db, Mark(ONE, 17))
    assert not damage_marks.add(db, Mark(ONE, 17))

    assert damage_marks.exist(db)
    covered = [(pack, offset) for pack in (ONE, TEN) for offset in (0, 17, 170, None)]
    assert [one for one in covered if damage_marks.covers(db, *one)] == [(ONE, 17)]
    assert damage_marks.marks(db) == [Mark(ONE, 17)]


def test_damage_mark_of_a_pack_replaces_the_marks_of_its_records(db: Database) -> None:
    for mark in (Mark(ONE, 17), Mark(TEN, 17), Mark(ONE, None)):
        assert damage_marks.add(db, mark)
    assert not damage_marks.add(db, Mark(ONE, 99))

    assert damage_marks.marks(db) == [Mark(ONE, None), Mark(TEN, 17)]
    assert damage_marks.covers(db, ONE, 99)
    assert not damage_marks.covers(db, TEN, 99)


def test_damage_mark_covers_the_complete_pack_if_too_many_records_are_damaged(db: Database) -> None:
    """If too many records of a pack are damaged, one mark of the pack replaces their marks."""
    for offset in range(DAMAGED_RECORDS_MAX):
        damage_marks.add(db, Mark(ONE, offset))
    assert len(damage_marks.marks(db)) == DAMAGED_RECORDS_MAX

    assert damage_marks.add(db, Mark(ONE, DAMAGED_RECORDS_MAX))
    assert damage_marks.marks(db) == [Mark(ONE, None)]


def test_damage_marks_are_removed_singly_or_together_with_their_pack(db: Database) -> None:
    """When garbage collection deletes a pack, it removes all marks of the pack."""
    gone = packs.create(db, ObjectKey("pack/00/1-" + "0" * 32), 100)
    for mark in (Mark(gone, 5), Mark(TEN, None), Mark(TEN, 8), Mark(PackId(11), 8)):
        damage_marks.add(db, mark)

    damage_marks.remove(db, [Mark(PackId(11), 8), Mark(PackId(12), 8)])
    packs.delete(db, gone)

    assert damage_marks.marks(db) == [Mark(TEN, None)]


@pytest.mark.parametrize("name", ["junk", "", "1/", "1/2/3", "01", "1/+2", "9" * 30])
def test_invalid_damage_mark_is_reported_and_removed(db: Database, name: str) -> None:
    damage_marks.add(db, Mark(ONE, 17))
    db.run("INSERT INTO properties VALUES (?, x'')", (f"damaged/{name}",))
    with pytest.raises(FormatError, match=r"damage mark .* is invalid.*fsck -y"):
        damage_marks.marks(db)

    damage_marks.remove_invalid(db)

    assert damage_marks.marks(db) == [Mark(ONE, 17)]


@pytest.mark.parametrize("alias", ["damaged", "image", "pack"])
def test_damage_marks_are_listed_without_other_properties(db: Database, alias: str) -> None:
    """Damage marks share the table of properties with abandoned images and kept packs."""
    properties.abandon_images(db, [ObjectKey("image/000000000007-1-0123456789abcdef/manifest")])
    properties.keep_packs(db, [ObjectKey("pack/00/1-" + "0" * 32)])
    others = properties.all_of(db)
    assert not damage_marks.exist(db)

    damage_marks.add(db, Mark(ONE, None))
    assert {*properties.all_of(db)} - {*others} == {"damaged/1"}
    names = {
        "damaged": damage_marks.marks(db),
        "image": properties.abandoned_images(db),
        "pack": properties.kept_packs(db),
    }
    assert len(names[alias]) == 1


def test_damage_mark_is_recorded_without_triggering_an_image(db: Database) -> None:
    """Changelogs ship damage marks to every later writer."""
    db.commit()
    ChangeRecorder(db, lambda: 1)
    db.begin_local()
    damage_marks.add(db, Mark(ONE, 17))
    db.commit()
    [(_seq, changeset)] = pending.records(db.connection, 0)
    assert b"damaged/1/17" in changeset
    assert not changesets.is_news(changeset)


def test_sql_condition_for_damaged_blocks_finds_exactly_the_marked_blocks(db: Database) -> None:
    """The SQL condition COVERS_B selects exactly the blocks that damage marks cover."""
    marked = (Mark(ONE, 17), Mark(TEN, None))
    for mark in marked:
        damage_marks.add(db, mark)
    for number, (pack, offset) in enumerate([(1, 17), (1, 170), (10, 3), (100, 17)], 1):
        db.run("INSERT INTO blocks VALUES (?, 1, 9, NULL, ?, ?, 9)", (number, pack, offset))
    sql = f"SELECT b.block FROM blocks AS b WHERE {damage_marks.COVERS_B} ORDER BY b.block"
    assert [row[0] for row in db.all(sql)] == [1, 3]


def test_damage_marks_are_copied_to_another_database(
    db: Database, make_database: MakeDatabase
) -> None:
    """A rollback copies the current damage marks into the older database."""
    other = make_database("other.db")
    other.begin_local()
    damage_marks.add(db, Mark(ONE, None))
    damage_marks.add(other, Mark(TEN, 4))
    damage_marks.take_over(db, other)
    assert damage_marks.marks(db) == [Mark(TEN, 4)]
