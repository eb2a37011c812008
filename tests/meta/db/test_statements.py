"""SQL statements on tables other than inodes, and the number of rows that they change."""

import pytest

from s3fs_meta.errors import DamagedDatabaseError
from s3fs_meta.limits import RECENT_ANSWERS_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO


def test_statement_on_another_table_leaves_changed_inode_rows_in_memory(db: Database) -> None:
    """Adding a dentry does not write the changed inode row of its directory to the table."""
    inodes.change_directory(db, ROOT_INO, 5, entries=1)
    before = db.connection.total_changes()
    db.run("INSERT INTO dentries VALUES (1, 256, x'61', 1)")
    assert db.one("SELECT ino FROM dentries") == (1,)
    assert db.all("SELECT parent, name FROM dentries") == [(1, b"a")]
    assert db.connection.total_changes() == before + 1


def test_statements_can_change_rows_only_in_a_commit_group(db: Database) -> None:
    """A statement that changes rows without an open commit group raises AssertionError."""
    db.commit()
    with pytest.raises(AssertionError, match="inside a group"):
        db.run("DELETE FROM dentries")
    with pytest.raises(AssertionError, match="inside a group"):
        db.run_many("DELETE FROM dentries WHERE ino = ?", [(1,)])


def test_damaged_text_is_reported_as_damage_of_the_database(db: Database) -> None:
    """One damaged bit in the header of a row can make SQLite return a name as text."""
    db.run("INSERT INTO dentries VALUES (1, 256, CAST(x'fffe' AS TEXT), 1)")
    sql = "SELECT name FROM dentries"
    for read in (db.one, db.all, lambda sql: list(db.iterate(sql))):
        with pytest.raises(DamagedDatabaseError, match="UTF-8"):
            read(sql)
    assert db.in_group


def test_change_of_a_row_empties_the_cache_of_query_results(db: Database) -> None:
    """The cache of query results is also emptied when it is full."""
    db.recent()["known"] = 1
    assert db.recent() == {"known": 1}
    db.run("INSERT INTO dentries VALUES (1, 256, x'61', 1)")
    assert db.recent() == {}

    db.recent().update(dict.fromkeys(range(RECENT_ANSWERS_MAX - 1), 0))
    assert len(db.recent()) == RECENT_ANSWERS_MAX - 1
    db.recent()["last"] = 0
    assert db.recent() == {}


def test_schema_contains_only_tables_and_indexes(db: Database) -> None:
    """A trigger or view could use the table of inodes in a statement that does not name it."""
    hidden = db.all("SELECT name FROM sqlite_schema WHERE type NOT IN ('table', 'index')")
    assert hidden == []


def test_count_of_changed_rows_excludes_rows_written_by_a_commit_or_query(db: Database) -> None:
    """The number of changed rows excludes rows that a commit or a query writes itself."""
    db.begin()
    before = db.rows_changed()
    ino = inodes.create(db, 0o100644, 0, 0, ROOT_INO, 0).ino
    made = db.rows_changed()
    assert made > before

    assert db.inodes.one("SELECT count(*) FROM inodes") == (2,)
    db.commit()
    assert db.rows_changed() == made

    db.begin()
    inodes.set_flag(db, ino, 4, on=True)
    assert db.rows_changed() > made
