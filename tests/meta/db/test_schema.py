"""Rules that the schema must keep so that changes can be recorded."""

from s3fs_meta.meta.db import schema
from s3fs_meta.meta.db.database import Database


def table_names(db: Database) -> set[str]:
    """Return all tables of a database."""
    return {row[0] for row in db.all("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def test_every_table_has_a_kind(db: Database) -> None:
    """A table that no list names would be in images by accident, or not be replicated."""
    listed = (*schema.REPLICATED_TABLES, *schema.LOCATION_TABLES, *schema.LOCAL_TABLES)
    assert table_names(db) == set(listed)
    assert len(listed) == len(set(listed))


def test_replicated_tables_have_not_null_primary_keys(db: Database) -> None:
    """SQLite silently does not record changes of other tables."""
    for table in schema.REPLICATED_TABLES:
        key = [row for row in db.all(f"PRAGMA table_info({table})") if row[5]]
        assert key, f"{table} has no primary key"
        assert all(row[3] for row in key), f"{table} has a key that may be NULL"


def test_there_are_no_triggers_and_no_foreign_keys(db: Database) -> None:
    """Both would act a second time where recorded changes are applied."""
    assert db.all("SELECT name FROM sqlite_schema WHERE type = 'trigger'") == []
    for table in table_names(db):
        assert db.all(f"PRAGMA foreign_key_list({table})") == []


def test_numbers_are_not_sqlites(db: Database) -> None:
    """AUTOINCREMENT keeps its memory in a table that no changeset contains."""
    assert not db.all("SELECT name FROM sqlite_schema WHERE sql LIKE '%AUTOINCREMENT%'")


def test_root_directory_of_a_new_database(db: Database) -> None:
    """The first inode is its own parent, a directory without entries."""
    row = db.one("SELECT ino, mode, nlink, size_bytes, parent, flags FROM inodes")
    assert row == (1, 0o40755, 2, 0, 1, 0)
    assert (db.counters.next_ino, db.counters.inodes, db.counters.dentries) == (2, 1, 0)
    assert db.counters.txg == 1
