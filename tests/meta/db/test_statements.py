"""Statements: which come after the rows that wait in memory."""

import pytest

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO


def test_statement_about_other_tables_writes_nothing(db: Database) -> None:
    """Names come and go without the rows of their directory."""
    inodes.change_directory(db, ROOT_INO, 5, entries=1)
    before = db.connection.total_changes()
    db.run("INSERT INTO dentries VALUES (1, 256, x'61', 1)")
    assert db.one("SELECT ino FROM dentries") == (1,)
    assert db.all("SELECT parent, name FROM dentries") == [(1, b"a")]
    assert db.connection.total_changes() == before + 1


def test_who_peeks_sees_the_table_as_it_is(db: Database) -> None:
    """And pokes at it: both are for who keeps the rows right."""
    inodes.change_directory(db, ROOT_INO, 5, entries=1)
    assert db.peek("SELECT size_bytes FROM inodes") == (0,)
    assert db.poke("UPDATE inodes SET mode = mode") == 1
    assert inodes.get(db, ROOT_INO).size_bytes == 1
    assert db.one("SELECT size_bytes FROM inodes") == (1,)


def test_rows_change_only_inside_a_group(db: Database) -> None:
    """Also by a statement that knows better."""
    db.commit()
    for change in (db.run, db.poke):
        with pytest.raises(AssertionError, match="inside a group"):
            change("DELETE FROM dentries")


def test_table_is_reached_only_by_its_name(db: Database) -> None:
    """A trigger or a view would hide it from the text of a statement, and old rows would show."""
    hidden = db.all("SELECT name FROM sqlite_schema WHERE type NOT IN ('table', 'index')")
    assert hidden == []


def test_rows_that_callers_change_are_counted(db: Database) -> None:
    """Not what a commit or a query writes of them, so that a reader changes nothing."""
    db.begin()
    before = db.rows_changed
    ino = inodes.create(db, 0o100644, 0, 0, ROOT_INO, 0).ino
    made = db.rows_changed
    assert made > before

    assert db.one("SELECT count(*) FROM inodes") == (2,)
    db.commit()
    assert db.rows_changed == made

    db.begin()
    inodes.set_flag(db, ino, 4, on=True)
    assert db.rows_changed > made
