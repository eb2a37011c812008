"""The schema: rules for recorded changes, and upgrades from version 1."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from s3fs_meta.errors import DatabaseError, FormatError, NewerFormatError
from s3fs_meta.meta import changesets
from s3fs_meta.meta.db import schema
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.db.schema import create_tables
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.meta.tables.properties import all_of
from s3fs_meta.model import ROOT_INO, Cookie, Ino
from tests.meta.conftest import NOW_NS, MakeDatabase
from tests.meta.recorders import apply_in_transaction
from tests.rows import contents

COLUMN = "btime_delta_ns"
SYNCED = Pragmas()


def table_names(db: Database) -> set[str]:
    """Return the names of all tables in a database."""
    return {row[0] for row in db.all("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def test_every_table_is_in_exactly_one_list_of_tables(db: Database) -> None:
    """A table in no list or in two lists could be missing in images, or be shipped by mistake."""
    listed = (*schema.REPLICATED_TABLES, *schema.LOCATION_TABLES, *schema.LOCAL_TABLES)
    assert table_names(db) == set(listed)
    assert len(listed) == len(set(listed))


def test_replicated_tables_have_primary_keys_that_are_not_null(db: Database) -> None:
    """SQLite silently records no changes of a table whose primary key may be NULL."""
    for table in schema.REPLICATED_TABLES:
        key = [row for row in db.all(f"PRAGMA table_info({table})") if row[5]]
        assert key, f"{table} has no primary key"
        assert all(row[3] for row in key), f"{table} has a key that may be NULL"


def test_schema_has_no_triggers_and_no_foreign_keys(db: Database) -> None:
    """With triggers or foreign keys, applying recorded changes would change some rows twice."""
    assert db.all("SELECT name FROM sqlite_schema WHERE type = 'trigger'") == []
    for table in table_names(db):
        assert db.all(f"PRAGMA foreign_key_list({table})") == []


def test_no_table_uses_autoincrement(db: Database) -> None:
    """AUTOINCREMENT is not used, because SQLite does not record its state in changesets."""
    assert not db.all("SELECT name FROM sqlite_schema WHERE sql LIKE '%AUTOINCREMENT%'")


def test_new_database_has_an_empty_root_directory(db: Database) -> None:
    """The root directory has inode number 1, is its own parent and has no entries."""
    row = db.inodes.one("SELECT ino, mode, nlink, size_bytes, parent, flags FROM inodes")
    assert row == (1, 0o40755, 2, 0, 1, 0)
    assert (db.counters.next_ino, db.counters.inodes, db.counters.dentries) == (2, 1, 0)
    assert db.counters.txg == 1


def make_former(db: Database, version: bytes = b"1") -> tuple[Path, Ino]:
    """Convert a database with a file to schema version 1, and close it."""
    db.begin()
    made = inodes.create(db, 0o100644, 1, 2, ROOT_INO, NOW_NS)
    dentries.add(db, ROOT_INO, b"f", made.ino)
    inodes.touch(db, made.ino, ctime_ns=NOW_NS + 5, mtime_ns=-1)
    db.commit()
    mode = db.pragmas.journal_mode
    db.close()
    with closing(apsw.Connection(str(db.path))) as connection:
        assert (connection.pragma("journal_mode") == "wal") == (mode == "wal")
        connection.execute(f"ALTER TABLE inodes DROP COLUMN {COLUMN}")
        connection.execute(
            "UPDATE properties SET value = ? WHERE name = 'schema_version'", (version,)
        )
    return db.path, made.ino


def raw(path: Path) -> dict[str, list[Any]]:
    """Return all replicated rows of a database file, without upgrading its schema."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        return contents(connection)


def test_database_of_schema_version_1_is_upgraded_when_it_is_opened(
    make_database: MakeDatabase, journal_mode: str
) -> None:
    """A schema upgrade keeps every row and sets each birth time to the ctime."""
    path, ino = make_former(make_database(journal_mode=journal_mode))
    before = raw(path)
    pragmas = Pragmas(journal_mode=journal_mode, synchronous="off")
    with closing(Database.open(path, pragmas)) as db:
        assert not db.is_former
        assert all_of(db)["schema_version"] == b"2"
        found = inodes.get(db, ino)
        assert (found.btime_ns, found.ctime_ns, found.mtime_ns) == (NOW_NS + 5, NOW_NS + 5, -1)
        db.begin()
        inodes.touch(db, ino, ctime_ns=NOW_NS + 9)
        made = inodes.create(db, 0o100644, 1, 2, ROOT_INO, NOW_NS + 9)
        db.commit()
    after = raw(path)
    rows = {row[0]: row for row in after["inodes"]}
    assert [rows[row[0]][:7] for row in before["inodes"]] == [row[:7] for row in before["inodes"]]
    assert after["dentries"] == before["dentries"]
    with closing(Database.open(path, pragmas)) as db:
        assert inodes.get(db, ino).btime_ns == NOW_NS + 5
        assert inodes.get(db, made.ino) == made


def test_upgraded_tables_equal_the_tables_of_a_new_database(make_database: MakeDatabase) -> None:
    """The upgraded table of inodes has the columns, types, defaults and order of a new table."""
    path, _ino = make_former(make_database())
    columns = "SELECT * FROM pragma_table_info('inodes')"
    with closing(Database.open(path, SYNCED)) as db:
        assert db.all(columns) == make_database("new.db").all(columns)
        assert db.all("PRAGMA integrity_check") == [("ok",)]


def test_failed_schema_upgrade_leaves_the_database_unchanged(
    make_database: MakeDatabase, journal_mode: str
) -> None:
    path, _ino = make_former(make_database(journal_mode=journal_mode))
    before = raw(path)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(
            "CREATE TEMP TRIGGER refused BEFORE UPDATE ON main.properties"
            " BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
        with pytest.raises(apsw.ConstraintError):
            schema.upgrade(connection)
        assert not connection.in_transaction
    assert raw(path) == before
    with closing(Database.open(path, Pragmas(journal_mode=journal_mode, synchronous="off"))):
        pass
    assert len(raw(path)["inodes"][0]) == len(before["inodes"][0]) + 1


@pytest.mark.slow
def test_schema_is_not_upgraded_if_the_journal_mode_cannot_be_set(
    make_database: MakeDatabase,
) -> None:
    """After a failed mount, an earlier version of the program can still open the database.

    Each attempt waits DATABASE_BUSY_MS for the other connection.
    """
    path, _ino = make_former(make_database(journal_mode="wal"))
    before = raw(path)
    with closing(apsw.Connection(str(path))) as other:
        other.execute("SELECT * FROM properties").fetchall()
        for mode in ("delete", "off"):
            with pytest.raises(DatabaseError):
                Database.open(path, Pragmas(journal_mode=mode))
    assert raw(path) == before
    with closing(Database.open(path, Pragmas(journal_mode="delete"))) as db:
        assert all_of(db)["schema_version"] == b"2"


def test_second_schema_upgrade_changes_nothing(make_database: MakeDatabase) -> None:
    path, _ino = make_former(make_database())
    with closing(apsw.Connection(str(path))) as one, closing(apsw.Connection(str(path))) as other:
        schema.upgrade(one)
        schema.upgrade(other)
        schema.upgrade(one)


def test_database_to_which_another_connection_writes_is_not_upgraded(
    make_database: MakeDatabase,
) -> None:
    """The upgrade raises BusyError and changes no row."""
    path, _ino = make_former(make_database())
    before = raw(path)
    with closing(apsw.Connection(str(path))) as other, closing(apsw.Connection(str(path))) as one:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(apsw.BusyError):
            schema.upgrade(one)
    assert raw(path) == before


def test_reader_of_a_version_1_database_sees_the_current_columns(
    make_database: MakeDatabase, journal_mode: str
) -> None:
    """A reader of a version 1 database sees the current columns, but the file is not changed."""
    path, ino = make_former(make_database(journal_mode=journal_mode))
    before = path.read_bytes()
    with closing(Database.open(path, Pragmas(journal_mode=journal_mode), read_only=True)) as db:
        assert db.is_former
        found = inodes.get(db, ino)
        assert (found.btime_ns, found.ctime_ns, found.mtime_ns) == (NOW_NS + 5, NOW_NS + 5, -1)
        assert dentries.find_attributes(db, ROOT_INO, b"f") == found
        [(_name, _cookie, listed)] = dentries.page(db, ROOT_INO, Cookie(0), 10)
        assert listed == found
    assert path.read_bytes() == before


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize(("version", "error"), [(b"0", FormatError), (b"3", NewerFormatError)])
def test_database_of_an_unknown_schema_version_is_refused_without_a_change(
    make_database: MakeDatabase, version: bytes, error: type[Exception], *, read_only: bool
) -> None:
    """Schema versions 0 and 3 do not exist; a higher version is reported as newer."""
    path, _ino = make_former(make_database(), version)
    before = raw(path)
    with pytest.raises(error, match=f"schema version {version.decode()}"):
        Database.open(path, SYNCED, read_only=read_only)
    assert raw(path) == before


def test_schema_upgrade_on_a_full_disk_is_refused(
    make_database: MakeDatabase, small_disk: Path
) -> None:
    """On a full disk the schema upgrade is refused; after space is freed, the upgrade succeeds."""
    path, ino = make_former(make_database())
    here = small_disk / "meta.db"
    here.write_bytes(path.read_bytes())
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, os.statvfs(small_disk).f_bavail * 4096)
    with pytest.raises(DatabaseError):
        Database.open(here, SYNCED)
    filler.unlink()
    with closing(Database.open(here, SYNCED)) as db:
        assert inodes.get(db, ino).btime_ns == NOW_NS + 5


# --- changesets of schema version 1 -------------------------------------------------------------


@pytest.fixture
def former() -> Iterator[apsw.Connection]:
    """Yield a database with the tables of schema version 1 and two inodes."""
    connection = apsw.Connection(":memory:")
    create_tables(connection)
    connection.execute(f"ALTER TABLE inodes DROP COLUMN {COLUMN}")
    for ino in (1, 2):
        connection.execute(f"INSERT INTO inodes VALUES ({ino}, 0, 1, 0, 0, 0, 0, 5, 0, 0, 0, 1, 0)")
    yield connection
    connection.close()


def present_copy(former: apsw.Connection) -> apsw.Connection:
    """Return a copy of a version 1 database with the current tables."""
    copy = apsw.Connection(":memory:")
    create_tables(copy)
    for row in former.execute("SELECT * FROM inodes").fetchall():
        copy.execute(f"INSERT INTO inodes VALUES ({'?, ' * len(row)} 0)", row)
    return copy


def changes_of(connection: apsw.Connection, *statements: str) -> bytes:
    """Return the changeset that SQLite records for some SQL statements."""
    session = apsw.Session(connection, "main")
    session.attach("inodes")
    for sql in statements:
        connection.execute(sql)
    recorded_changes = session.changeset()
    session.close()
    return recorded_changes


ROW = "0, 1, 0, 0, 0, 0, 9, 0, 0, 0, 1, 0"


def test_changesets_of_schema_version_1_can_be_applied_and_merged_and_inverted(
    former: apsw.Connection,
) -> None:
    """Changesets of schema version 1 can be merged with changesets of the current version."""
    one_by_one, at_once = present_copy(former), present_copy(former)
    before = contents(at_once)
    old = changes_of(
        former,
        f"INSERT INTO inodes VALUES (3, {ROW}), (4, {ROW})",
        "UPDATE inodes SET ctime_ns = 6 WHERE ino = 1",
        "DELETE FROM inodes WHERE ino = 2",
    )
    apply_in_transaction(one_by_one, old)
    new = changes_of(
        one_by_one,
        f"UPDATE inodes SET ctime_ns = 10, {COLUMN} = -4 WHERE ino IN (1, 3)",
        "DELETE FROM inodes WHERE ino = 4",
        f"INSERT INTO inodes VALUES (2, {ROW}, -3)",
    )
    merged = changesets.merge([old, new])
    apply_in_transaction(at_once, merged)

    assert contents(at_once) == contents(one_by_one)
    assert at_once.execute(f"SELECT ino, {COLUMN} FROM inodes").fetchall() == [
        (1, -4),
        (2, -3),
        (3, -4),
    ]
    apply_in_transaction(at_once, apsw.Changeset.invert(merged))
    assert contents(at_once) == before
    apply_in_transaction(one_by_one, apsw.Changeset.invert(new), apsw.Changeset.invert(old))
    assert contents(one_by_one) == before


def test_changeset_of_schema_version_1_is_refused_if_a_row_differs(former: apsw.Connection) -> None:
    """A changeset of version 1 contains old values, which the current row must match."""
    copy = present_copy(former)
    changeset = changes_of(former, "UPDATE inodes SET ctime_ns = 6 WHERE ino = 1")
    copy.execute("UPDATE inodes SET ctime_ns = 7")
    copy.execute("BEGIN")
    with pytest.raises(FormatError, match="the row has different values"):
        changesets.apply(copy, changeset, "changes")


def test_changeset_with_an_unknown_number_of_columns_is_refused(former: apsw.Connection) -> None:
    """A changeset must have the columns of schema version 1 or of the current version."""
    copy = present_copy(former)
    present = changes_of(copy, "UPDATE inodes SET ctime_ns = 6 WHERE ino = 1")
    former.execute("BEGIN")
    with pytest.raises(FormatError, match="does not fit table inodes: the columns differ"):
        changesets.apply(former, present, "changes")
    former.execute("ALTER TABLE inodes DROP COLUMN flags")
    fewer = changes_of(former, "UPDATE inodes SET ctime_ns = 6 WHERE ino = 1")
    copy.execute("BEGIN")
    with pytest.raises(FormatError, match="does not fit table inodes: the columns differ"):
        changesets.apply(copy, fewer, "changes")
