"""Protective settings that every SQLite connection of this program has."""

import contextlib
import shutil
from pathlib import Path

import apsw
import pytest

from s3fs_meta import sync_failures
from s3fs_meta.errors import DamagedDatabaseError, DatabaseError, DatabaseFullError, FormatError
from s3fs_meta.limits import DATABASE_VALUE_BYTES_MAX
from s3fs_meta.meta.db import connections
from s3fs_meta.meta.db.connections import translated
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from tests.meta.conftest import MakeDatabase

ROOT = Path(__file__).parents[3]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return the path of a database whose schema has a trigger and a view."""
    path = tmp_path / "hostile.db"
    made = apsw.Connection(str(path))
    made.execute(
        "CREATE TABLE t (a INTEGER); CREATE TABLE log (a INTEGER);"
        " CREATE TRIGGER x AFTER INSERT ON t BEGIN INSERT INTO log VALUES (new.a); END;"
        " CREATE VIEW v AS SELECT 1"
    )
    made.close()
    return path


def test_triggers_in_a_database_file_are_not_executed(hostile: Path) -> None:
    connection = connections.connect(hostile, read_only=False)
    connection.execute("INSERT INTO t VALUES (1)")

    assert connection.execute("SELECT * FROM log").fetchall() == []
    connection.close()


def test_views_in_a_database_file_are_refused_but_temporary_views_work(hostile: Path) -> None:
    """Temporary views must work, because followers use them to read tables of an older schema."""
    connection = connections.connect(hostile, read_only=True)
    with pytest.raises(apsw.SQLError):
        connection.execute("SELECT * FROM v").fetchall()

    connection.execute("CREATE TEMP VIEW own AS SELECT 2")
    assert connection.execute("SELECT * FROM own").fetchall() == [(2,)]
    connection.close()


def test_connections_do_not_trust_the_schema_of_the_file(hostile: Path) -> None:
    """A connection refuses functions in the schema, and checks the cells of every page."""
    for connection in (
        connections.connect(hostile, read_only=False),
        connections.connect(hostile, read_only=True),
        connections.in_memory(),
    ):
        assert connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, -1) == 0
        assert connection.pragma("cell_size_check") == 1
        connection.close()


def test_value_above_the_length_limit_is_reported_as_damage(tmp_path: Path) -> None:
    """Without the length limit, SQLite could allocate up to 1 GB of memory for one value."""
    path = tmp_path / "long.db"
    made = apsw.Connection(str(path))
    made.execute("CREATE TABLE t (a)")
    made.execute("INSERT INTO t VALUES (zeroblob(?))", (DATABASE_VALUE_BYTES_MAX + 1,))
    made.close()
    for read_only in (True, False):
        connection = connections.connect(path, read_only=read_only)
        with pytest.raises(apsw.TooBigError) as caught:
            connection.execute("SELECT a FROM t").fetchall()
        connection.close()
        assert isinstance(translated(caught.value, "meta.db"), FormatError)


def test_limit_of_value_lengths_is_restored_when_the_context_ends(hostile: Path) -> None:
    connection = connections.connect(hostile, read_only=False)
    with pytest.raises(apsw.TooBigError), connections.short_values(connection, 10_000):
        connection.execute("SELECT zeroblob(10001)").fetchall()
    assert len(connection.execute("SELECT zeroblob(10001)").fetchall()) == 1
    connection.close()


def test_defensive_connection_cannot_write_the_schema(hostile: Path) -> None:
    """Mounts do not use a defensive connection, because it ignores journal_mode=off."""
    connection = connections.connect(hostile, read_only=False, defensive=True)
    connection.pragma("writable_schema", 1)
    with pytest.raises(apsw.SQLError, match="may not be modified"):
        connection.execute("DELETE FROM sqlite_schema")
    connection.close()

    connection = connections.connect(hostile, read_only=False)
    assert connection.pragma("journal_mode", "off") == "off"
    assert connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, -1) == 0
    connection.close()


def test_only_one_module_opens_connections_to_sqlite() -> None:
    """A connection opened in another module would not have the protective settings."""
    makers = [
        path.name
        for path in sorted((ROOT / "s3fs_meta").rglob("*.py"))
        if "apsw.Connection(" in path.read_text() and "testing" not in path.parts
    ]
    assert makers == ["connections.py"]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (apsw.FullError("f"), DatabaseFullError),
        (apsw.CorruptError("c"), DamagedDatabaseError),
        (apsw.NotADBError("n"), DamagedDatabaseError),
        (apsw.IOError("i"), DatabaseError),
        (apsw.BusyError("b"), DatabaseError),
        (apsw.Error(), DatabaseError),
    ],
)
def test_sqlite_errors_are_translated_to_error_classes_of_this_program(
    theirs: apsw.Error, ours: type
) -> None:
    """A full disk and a damaged file have a class each; other errors become DatabaseError."""
    error = translated(theirs, "meta.db")
    assert type(error) is ours
    assert "meta.db" in str(error)


def test_full_disk_during_the_opening_of_a_database_is_reported(
    small_disk: Path, make_database: MakeDatabase
) -> None:
    """A failed extension of the -shm file is reported as a full disk, not as a failed sync."""
    path = small_disk / "meta.db"
    made = make_database()
    made.close()
    shutil.copy(made.path, path)
    with (small_disk / "file").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))

    with pytest.raises(
        DatabaseFullError, match=r"meta\.db' is probably full .*; free some space on it"
    ):
        Database.open(path, Pragmas())

    assert not sync_failures.is_noted(small_disk)
