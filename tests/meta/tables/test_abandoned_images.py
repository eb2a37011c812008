"""Images that no host may rely on, as rows."""

from s3fs_meta.meta import changesets
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import abandoned_images, pending, properties
from s3fs_meta.meta.tables.pending import ChangeRecorder
from s3fs_meta.model import ObjectKey
from tests.meta.conftest import MakeDatabase

ONE = ObjectKey("image/000000000007-1-0123456789abcdef/manifest")
TWO = ObjectKey("image/000000000009-2-0123456789abcdef/manifest")


def test_facts_of_mkfs_are_none_of_them(db: Database) -> None:
    """A noted image is listed until it is forgotten; the facts stay."""
    facts = properties.all_of(db)
    db.begin_local()
    abandoned_images.add(db, [ONE, TWO])
    abandoned_images.add(db, [ONE])
    assert abandoned_images.keys(db) == {ONE, TWO}
    abandoned_images.forget(db, [ONE])
    assert abandoned_images.keys(db) == {TWO}
    abandoned_images.forget(db, [TWO])
    db.commit()
    assert properties.all_of(db) == facts


def test_they_are_recorded_and_no_news(db: Database) -> None:
    """Every later writer learns of them; no image is made because of them."""
    db.commit()
    ChangeRecorder(db, lambda: 1)
    db.begin_local()
    abandoned_images.add(db, [ONE])
    db.commit()
    [(_seq, changeset)] = pending.records(db.connection, 0)
    assert ONE.encode() in changeset
    assert not changesets.is_news(changeset)


def test_another_database_takes_them_over(db: Database, make_database: MakeDatabase) -> None:
    """As the past does that becomes the present."""
    other = make_database("other.db")
    for one, key in ((db, ONE), (other, TWO)):
        one.begin_local()
        abandoned_images.add(one, [key])
    abandoned_images.take_over(db, other)
    assert abandoned_images.keys(db) == {TWO}
