"""Properties: settings by mkfs, and lists such as abandoned images and kept packs."""

import pytest

from s3fs_meta.errors import FormatError
from s3fs_meta.meta import changesets
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import pending
from s3fs_meta.meta.tables import properties as rows
from s3fs_meta.meta.tables.pending import ChangeRecorder
from s3fs_meta.model import ObjectKey, Txg
from tests.meta.conftest import MakeDatabase

ONE = ObjectKey("image/000000000007-1-0123456789abcdef/manifest")
TWO = ObjectKey("image/000000000009-2-0123456789abcdef/manifest")
PACK = ObjectKey("pack/00/1-" + "0" * 32)


def test_properties_set_by_mkfs_are_stored(db: Database, properties: dict[str, bytes]) -> None:
    """A new database contains the given properties and the schema version."""
    assert rows.all_of(db) == {**properties, "schema_version": b"2"}
    assert rows.get(db, "uuid") == properties["uuid"]


def test_missing_property_is_reported_as_damage(db: Database) -> None:
    """A property of mkfs that is missing was lost, so its absence is damage."""
    with pytest.raises(FormatError, match="'colour' is missing"):
        rows.get(db, "colour")


def test_abandoned_images_are_listed_without_other_properties(db: Database) -> None:
    """An abandoned image stays listed until it is forgotten; other properties are not listed."""
    facts = rows.all_of(db)
    db.begin_local()
    rows.abandon_images(db, [ONE, TWO])
    rows.abandon_images(db, [ONE])
    assert rows.abandoned_images(db) == {ONE, TWO}
    rows.forget_images(db, [ONE])
    assert rows.abandoned_images(db) == {TWO}
    rows.forget_images(db, [TWO])
    db.commit()
    assert rows.all_of(db) == facts


def test_abandoned_image_is_recorded_without_triggering_a_new_image(db: Database) -> None:
    """Changelogs ship the list of abandoned images to every later writer."""
    db.commit()
    ChangeRecorder(db, lambda: 1)
    db.begin_local()
    rows.abandon_images(db, [ONE])
    db.commit()
    [(_seq, changeset)] = pending.records(db.connection, 0)
    assert ONE.encode() in changeset
    assert not changesets.is_news(changeset)


def test_last_repair_that_renumbered_packs_is_recorded(
    db: Database, make_database: MakeDatabase
) -> None:
    """A rollback copies the record of the last pack renumbering into the older database."""
    other = make_database("other.db")
    other.begin()
    assert rows.renumbered_packs(db) == (0, 0)
    rows.take_over_renumbered(other, db)
    assert rows.renumbered_packs(other) == (0, 0)
    rows.renumber_packs(db, 7, 40)
    rows.renumber_packs(db, 9, 50)
    assert rows.renumbered_packs(db) == (9, 50)
    rows.take_over_renumbered(other, db)
    assert rows.renumbered_packs(other) == (9, 50)
    assert rows.kept_packs(other) == set()
    assert rows.abandoned_images(other) == set()


def test_last_replaced_history_is_recorded(db: Database, make_database: MakeDatabase) -> None:
    """A rollback copies the record of the last replaced history into the older database."""
    other = make_database("other.db")
    other.begin()
    assert rows.replaced_history(db) == 0
    rows.take_over_replaced(other, db)
    assert rows.replaced_history(other) == 0
    rows.note_replaced_history(db, Txg(7))
    rows.note_replaced_history(db, Txg(9))
    rows.take_over_replaced(other, db)
    assert rows.replaced_history(other) == 9
    assert rows.kept_packs(other) == set()
    assert rows.renumbered_packs(other) == (0, 0)


@pytest.mark.parametrize("value", [b"", b"junk", b"7 8 9", b"-1", "7", 7, b"9" * 19])
def test_damaged_record_of_a_repair_is_reported_and_replaced(
    db: Database, value: bytes | str | int
) -> None:
    """A damaged record is replaced by a record that keeps at least as many packs."""
    db.counters.begin_txg(12)
    db.begin()
    for name in ("renumbered/packs", "replaced/history"):
        db.run("INSERT INTO properties VALUES (?, ?)", (name, value))
    with pytest.raises(FormatError, match=r"renumbered/packs.*fsck -y"):
        rows.renumbered_packs(db)
    with pytest.raises(FormatError, match=r"replaced/history.*fsck -y"):
        rows.replaced_history(db)
    assert rows.damaged_records(db) == ["renumbered/packs", "replaced/history"]

    rows.replace_damaged_records(db)

    assert rows.damaged_records(db) == []
    assert rows.renumbered_packs(db) == (12, db.counters.next_pack)
    assert rows.replaced_history(db) == 12


def test_abandoned_images_are_copied_to_another_database(
    db: Database, make_database: MakeDatabase
) -> None:
    """A rollback copies the list of abandoned images into the older database."""
    other = make_database("other.db")
    for one, key in ((db, ONE), (other, TWO)):
        one.begin_local()
        rows.abandon_images(one, [key])
    rows.take_over_images(db, other)
    assert rows.abandoned_images(db) == {TWO}


def test_kept_packs_are_listed_without_other_properties(db: Database) -> None:
    rows.abandon_images(db, [ObjectKey("image/000000000007-1-0123456789abcdef/manifest")])
    assert rows.kept_packs(db) == set()
    rows.keep_packs(db, [PACK])
    rows.keep_packs(db, [PACK])
    assert rows.kept_packs(db) == {PACK}
    assert PACK not in rows.abandoned_images(db)
