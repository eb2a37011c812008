"""A second database file, attached to the open database."""

from pathlib import Path

import pytest

from s3fs_meta.errors import DatabaseError, FormatError
from s3fs_meta.meta.db.attached import attached
from s3fs_meta.meta.db.database import Database
from tests.meta.conftest import MakeDatabase

_COUNT = "SELECT inodes FROM past.counters"


def _put(db: Database, name: str) -> None:
    db.begin()
    db.run("INSERT INTO properties VALUES (?, x'01')", (name,))
    db.commit()


def _has(db: Database, schema: str, name: str) -> bool:
    return db.one(f"SELECT 1 FROM {schema}.properties WHERE name = ?", (name,)) is not None


def test_tables_of_the_open_database_and_the_attached_database_can_be_read(
    make_database: MakeDatabase, journal_mode: str
) -> None:
    """A table name without a prefix means the open database; the attached one may be locked."""
    db = make_database("present.db", journal_mode=journal_mode)
    past = make_database("past.db", journal_mode="off")
    _put(past, "then")
    with attached(db, past.path):
        _put(db, "now")
        db.begin()
        copied = "INSERT INTO properties SELECT name || ' too', value FROM past.properties"
        assert db.run(f"{copied} WHERE name = 'then'") == 1
        assert [_has(db, schema, "then") for schema in ("main", "past")] == [False, True]
        assert db.one("SELECT 1 FROM properties WHERE name = 'now'") is not None
    assert not db.in_group
    assert _has(db, "main", "then too")
    with pytest.raises(DatabaseError):
        db.one(_COUNT)
    with attached(db, past.path):  # Attach the same database a second time.
        assert db.one(_COUNT) == (1,)


def test_attached_database_cannot_be_changed(make_database: MakeDatabase) -> None:
    db, past = make_database("present.db"), make_database("past.db", journal_mode="off")
    with attached(db, past.path):
        db.begin()
        with pytest.raises(DatabaseError, match="readonly"):
            db.run("DELETE FROM past.properties")
        assert db.in_group


def test_open_database_stays_usable_after_an_error_while_another_database_is_attached(
    make_database: MakeDatabase,
) -> None:
    """After an error during an attachment, earlier changes stay in the commit group."""
    db, past = make_database("present.db"), make_database("past.db", journal_mode="off")
    with pytest.raises(RuntimeError), attached(db, past.path):  # noqa: PT012 - the error must follow the changes
        db.begin()
        db.run("INSERT INTO properties VALUES ('now', x'01')")
        raise RuntimeError
    assert _has(db, "main", "now")
    with attached(db, past.path):
        assert db.one(_COUNT) == (1,)


def test_database_can_be_closed_while_another_database_is_attached(
    make_database: MakeDatabase,
) -> None:
    """A mount may end while a copy from an attached database is running."""
    db, past = make_database("present.db"), make_database("past.db", journal_mode="off")
    with attached(db, past.path):
        db.close()
    assert db.is_closed


def test_error_about_an_attached_file_that_is_not_a_database_names_the_file(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    """The error about an invalid file names this file, and the open database stays usable."""
    db, path = make_database("present.db"), tmp_path / "junk"
    path.write_bytes(b"junk" * 1000)
    with pytest.raises((FormatError, DatabaseError)), attached(db, path):
        db.one(_COUNT)
    _put(db, "now")


def test_path_of_an_attached_database_may_contain_special_characters(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    (tmp_path / "a?b#c %41").mkdir()
    db, past = make_database("present.db"), make_database("a?b#c %41/past.db", journal_mode="off")
    with attached(db, past.path):
        assert db.one(_COUNT) == (1,)
