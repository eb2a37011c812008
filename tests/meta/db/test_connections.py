"""Settings and limits that every connection has."""

from pathlib import Path

import apsw
import pytest

from s3fs_meta.errors import DatabaseError, DatabaseFullError, FormatError
from s3fs_meta.meta.db import connections
from s3fs_meta.meta.db.connections import translated

ROOT = Path(__file__).parents[3]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a database whose schema does something."""
    path = tmp_path / "hostile.db"
    made = apsw.Connection(str(path))
    made.execute(
        "CREATE TABLE t (a INTEGER); CREATE TABLE log (a INTEGER);"
        " CREATE TRIGGER x AFTER INSERT ON t BEGIN INSERT INTO log VALUES (new.a); END;"
        " CREATE VIEW v AS SELECT 1"
    )
    made.close()
    return path


def test_triggers_do_not_run(hostile: Path) -> None:
    """An operation changes what it says, and nothing else."""
    connection = connections.connect(hostile, read_only=False)
    connection.execute("INSERT INTO t VALUES (1)")

    assert connection.execute("SELECT * FROM log").fetchall() == []
    connection.close()


def test_views_of_a_file_cannot_be_read_and_temporary_ones_can(hostile: Path) -> None:
    """A follower shows a former table as the present one by a view of its own."""
    connection = connections.connect(hostile, read_only=True)
    with pytest.raises(apsw.SQLError):
        connection.execute("SELECT * FROM v").fetchall()

    connection.execute("CREATE TEMP VIEW own AS SELECT 2")
    assert connection.execute("SELECT * FROM own").fetchall() == [(2,)]
    connection.close()


def test_settings_are_those_for_files_of_others(hostile: Path) -> None:
    """Functions in a schema, cells of a page."""
    for connection in (
        connections.connect(hostile, read_only=False),
        connections.connect(hostile, read_only=True),
        connections.in_memory(),
    ):
        assert connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, -1) == 0
        assert connection.pragma("cell_size_check") == 1
        connection.close()


def test_defensive_connection_cannot_write_the_schema_and_others_have_every_journal(
    hostile: Path,
) -> None:
    """Defensive mode makes ``journal_mode=off`` a word, so a mount does without."""
    connection = connections.connect(hostile, read_only=False, defensive=True)
    connection.pragma("writable_schema", 1)
    with pytest.raises(apsw.SQLError, match="may not be modified"):
        connection.execute("DELETE FROM sqlite_schema")
    connection.close()

    connection = connections.connect(hostile, read_only=False)
    assert connection.pragma("journal_mode", "off") == "off"
    assert connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, -1) == 0
    connection.close()


def test_connections_are_made_in_one_place() -> None:
    """One that is made elsewhere would trust the file."""
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
        (apsw.CorruptError("c"), FormatError),
        (apsw.NotADBError("n"), FormatError),
        (apsw.IOError("i"), DatabaseError),
        (apsw.BusyError("b"), DatabaseError),
        (apsw.Error(), DatabaseError),
    ],
)
def test_each_kind_has_its_error(theirs: apsw.Error, ours: type) -> None:
    """The most specific one wins; an unlisted one is never silence."""
    error = translated(theirs, "meta.db")
    assert type(error) is ours
    assert "meta.db" in str(error)
