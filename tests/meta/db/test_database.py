"""The connection to the metadata database: commit groups, errors, journal modes and durability."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from typing_extensions import Buffer, override

from s3fs_meta.errors import (
    DatabaseError,
    FormatError,
    NewerFormatError,
    UsageError,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.group_listeners import LossStep
from s3fs_meta.meta.db.pragmas import JOURNAL_MODES, Pragmas
from s3fs_meta.meta.tables import dentries, inodes, local_state, properties
from s3fs_meta.model import ROOT_INO
from tests.meta.conftest import MakeDatabase, create_file


def read_all_names(path: Path, pragmas: Pragmas) -> list[bytes]:
    """Open a database, return the names of all dentries, and close it."""
    db = Database.open(path, pragmas)
    try:
        return [row[0] for row in db.all("SELECT name FROM dentries")]
    finally:
        db.close()


# --- opening of a database ---------------------------------------------------------------------


def test_committed_rows_are_readable_after_reopening_the_database(
    make_database: MakeDatabase, journal_mode: str
) -> None:
    db = make_database(journal_mode=journal_mode)
    ino = create_file(db, b"a")
    db.commit()
    counters = db.counters.values()
    db.close()
    again = Database.open(db.path, db.pragmas)
    assert dentries.find(again, ROOT_INO, b"a") == ino
    assert again.counters.values() == counters
    assert again.one("PRAGMA journal_mode") == (journal_mode,)
    again.close()


@pytest.mark.parametrize("before", JOURNAL_MODES)
def test_journal_mode_can_be_changed_when_a_database_is_opened(
    make_database: MakeDatabase, before: str, journal_mode: str
) -> None:
    """A file survives each change from one journal mode to another."""
    db = make_database(journal_mode=before)
    ino = create_file(db, b"a")
    db.commit()
    db.close()
    again = Database.open(db.path, Pragmas(journal_mode=journal_mode, synchronous="off"))
    create_file(again, b"b")
    again.commit()
    assert dentries.find(again, ROOT_INO, b"a") == ino
    again.close()


def test_requested_sqlite_pragmas_take_effect(make_database: MakeDatabase) -> None:
    wanted = {"page_size": 8192, "cache_size": 321, "mmap_size": 65536, "synchronous": "extra"}
    db = make_database(**wanted, journal_size_limit=4096, temp_store="file")
    answers = {name: db.one(f"PRAGMA {name}") for name in (*wanted, "temp_store")}
    assert answers == {
        "page_size": (8192,),
        "cache_size": (321,),
        "mmap_size": (65536,),
        "synchronous": (3,),
        "temp_store": (1,),
    }
    assert db.one("PRAGMA journal_size_limit") == (4096,)


def test_no_database_is_created_if_a_pragma_is_invalid(
    tmp_path: Path, properties: dict[str, bytes]
) -> None:
    with pytest.raises(UsageError, match="page_size=3000"):
        Database.create(tmp_path / "meta.db", Pragmas(page_size=3000), properties)
    assert list(tmp_path.iterdir()) == []


def test_no_database_is_left_if_a_new_database_cannot_be_opened(
    tmp_path: Path, properties: dict[str, bytes]
) -> None:
    """The next attempt is not refused because of an existing file."""
    incomplete = {name: value for name, value in properties.items() if name != "uuid"}
    with pytest.raises(FormatError, match="uuid"):
        Database.create(tmp_path / "meta.db", Pragmas(), incomplete)
    assert list(tmp_path.iterdir()) == []


def test_existing_database_is_never_replaced_by_a_new_one(make_database: MakeDatabase) -> None:
    """Creating a database over an existing file is refused."""
    db = make_database("one.db")
    create_file(db, b"a")
    db.commit()
    with pytest.raises(DatabaseError, match="cannot create"):
        make_database("one.db")
    assert dentries.find(db, ROOT_INO, b"a") is not None


def test_root_directory_of_a_new_database_has_the_given_owner_and_times(
    tmp_path: Path, properties: dict[str, bytes]
) -> None:
    db = Database.create(tmp_path / "m.db", Pragmas(), properties, uid=7, gid=8, now_ns=9)
    root = inodes.get(db, ROOT_INO)
    assert (root.uid, root.gid, root.ctime_ns, root.mtime_ns, root.atime_ns) == (7, 8, 9, 9, 9)
    db.close()


@pytest.mark.parametrize("content", [b"", b"not a database" * 500], ids=["empty", "other"])
def test_file_that_is_not_a_metadata_database_is_not_opened(tmp_path: Path, content: bytes) -> None:
    """A file that is not a metadata database is refused without being changed."""
    path = tmp_path / "meta.db"
    path.write_bytes(content)
    with pytest.raises(FormatError):
        Database.open(path, Pragmas(journal_mode="delete"))
    assert path.read_bytes() == content


def test_opening_a_missing_database_creates_no_file(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError):
        Database.open(tmp_path / "meta.db", Pragmas())
    assert list(tmp_path.iterdir()) == []


def test_database_with_a_newer_schema_is_refused(db: Database) -> None:
    """The error about a newer schema version advises an upgrade."""
    db.run("UPDATE properties SET value = ? WHERE name = 'schema_version'", (b"999",))
    db.commit()
    db.close()
    with pytest.raises(NewerFormatError, match=r"schema version 999.*; upgrade s3fs-meta"):
        Database.open(db.path, db.pragmas)


@pytest.mark.parametrize("name", ["uuid", "block_bytes", "cookie_key"])
def test_database_with_a_missing_property_can_be_opened_only_for_repair(
    db: Database, name: str
) -> None:
    """A mount needs the UUID, the block size and the cookie key; fsck can open without them."""
    db.run("UPDATE properties SET value = x'' WHERE name = ?", (name,))
    db.commit()
    db.close()
    with pytest.raises(FormatError, match=f"property {name} is missing; run s3fs-meta fsck"):
        Database.open(db.path, db.pragmas)
    Database.open(db.path, db.pragmas, repairing=True).close()


def test_concurrent_reader_sees_only_committed_groups(make_database: MakeDatabase) -> None:
    """In WAL mode, another connection reads the last commit while a commit group is open."""
    db = make_database()
    create_file(db, b"committed")
    db.commit()
    create_file(db, b"open")
    reader = Database.open(db.path, db.pragmas, read_only=True)
    assert dentries.find(reader, ROOT_INO, b"committed") is not None
    assert dentries.find(reader, ROOT_INO, b"open") is None
    with pytest.raises(DatabaseError):
        create_file(reader, b"never")
    reader.close()


def test_existing_database_keeps_its_page_size(make_database: MakeDatabase) -> None:
    """The pragma page_size affects only new databases."""
    db = make_database(page_size=4096)
    db.close()
    again = Database.open(db.path, Pragmas(page_size=8192, synchronous="off"))
    assert again.one("PRAGMA page_size") == (4096,)
    again.close()


# --- groups of operations ----------------------------------------------------------------------


def test_commit_group_contains_all_operations_until_the_next_commit(
    make_database: MakeDatabase,
) -> None:
    """begin() opens a commit group or counts one more operation; commit() ends the group."""
    db = make_database()
    opened: list[bool] = []
    db.listeners.when_opened(lambda: opened.append(db.in_group))
    db.commit()
    for _ in range(3):
        db.begin()
    assert (db.in_group, db.group_operations, opened) == (True, 3, [True])
    db.commit()
    assert (db.in_group, db.group_operations, opened) == (False, 0, [True])


def test_changing_local_rows_does_not_count_as_an_operation(make_database: MakeDatabase) -> None:
    """A change of local rows opens a commit group, but is no change of the filesystem."""
    db = make_database()
    db.begin_local()
    assert (db.in_group, db.group_operations, db.changed) == (True, 0, False)
    db.begin()
    assert (db.group_operations, db.changed) == (1, True)


def test_change_of_a_row_without_an_open_commit_group_is_refused(
    make_database: MakeDatabase,
) -> None:
    """A change of a row without an open commit group raises AssertionError."""
    db = make_database()
    with pytest.raises(AssertionError):
        local_state.put(db, "a", "b")


def test_rollback_undoes_rows_and_counters(make_database: MakeDatabase, journal_mode: str) -> None:
    """After a rollback, the old rows and counters are valid; journal_mode=off cannot roll back."""
    db = make_database(journal_mode=journal_mode)
    create_file(db, b"kept")
    db.commit()
    before = db.counters.values()
    counters = db.counters
    called: list[bool] = []
    db.listeners.when_lost(LossStep.RELOAD, lambda: called.append(db.in_group))
    create_file(db, b"lost")
    db.rollback()
    assert called == [False]
    assert db.counters is counters
    if journal_mode == "off":
        with pytest.raises(DatabaseError, match="journal_mode=off"):
            db.begin()
        return
    assert counters.values() == before
    assert dentries.find(db, ROOT_INO, b"lost") is None
    create_file(db, b"again")
    db.commit()


def test_counters_are_written_only_if_they_changed(make_database: MakeDatabase) -> None:
    """A commit group that changes only local rows does not write the row of counters."""
    db = make_database()
    db.begin_local()
    local_state.put(db, "a", "b")
    before = db.connection.total_changes()
    db.commit()
    assert db.connection.total_changes() == before
    create_file(db, b"a")
    before = db.connection.total_changes()
    db.commit()
    # The commit changes two rows: the counters and the inode.
    assert db.connection.total_changes() == before + 2


def test_change_recorder_is_called_at_the_start_and_end_of_each_commit_group(
    make_database: MakeDatabase,
) -> None:
    """The change recorder is called after a group opens, and before the group is committed."""
    db = make_database()
    seen: list[tuple[str, int]] = []

    class Recorder:
        def group_opened(self) -> None:
            seen.append(("opened", stored_inodes()))

        def group_committing(self) -> None:
            seen.append(("committing", stored_inodes()))
            local_state.put(db, "recorded", "in the same transaction")

    def stored_inodes() -> int:
        row = db.one("SELECT inodes FROM counters")
        assert row is not None
        return int(row[0])

    db.recorder = Recorder()
    create_file(db, b"a")
    create_file(db, b"b")
    db.commit()
    assert seen == [("opened", 1), ("committing", 3)]
    assert local_state.get(db, "recorded") == "in the same transaction"


# --- errors of SQLite --------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["one", "all", "iterate"])
def test_failed_query_causes_a_database_error(make_database: MakeDatabase, method: str) -> None:
    """A failed query raises an error class of this program, not of SQLite."""
    db = make_database()
    with pytest.raises(DatabaseError, match="no such table"):
        list(getattr(db, method)("SELECT * FROM no_such"))


def test_damaged_database_page_causes_a_format_error(make_database: MakeDatabase) -> None:
    """A query that reads damaged pages raises FormatError."""
    db = make_database(journal_mode="delete")
    for number in range(300):
        create_file(db, b"%0200d" % number)
    db.commit()
    db.close()
    with db.path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        pages = file.tell() // 4096
        for page in range(2, pages):
            file.seek(page * 4096)
            file.write(b"\xff" * 4096)
    with pytest.raises(FormatError):
        read_all_names(db.path, db.pragmas)


# --- durability of commits ---------------------------------------------------------------------


def test_durable_commit_works_in_every_journal_mode(
    make_database: MakeDatabase, journal_mode: str
) -> None:
    """A durable commit ends the commit group and leaves the synchronous pragma unchanged."""
    db = make_database(journal_mode=journal_mode, synchronous="normal")
    create_file(db, b"a")
    db.commit_durable()
    db.sync_wal()
    assert not db.in_group
    assert db.one("PRAGMA synchronous") == (1,)
    row = db.one("SELECT inodes, dentries FROM counters")
    assert row == (db.counters.inodes, db.counters.dentries) == (2, 1)


class RecordingFile(apsw.VFSFile):
    """A database or journal file that records the operations on it."""

    def __init__(self, inherit: str, name: apsw.URIFilename | str | None, flags: list[int]) -> None:
        super().__init__(inherit, name, flags)
        is_journal = flags[0] & apsw.SQLITE_OPEN_MAIN_JOURNAL
        self._kind = "journal" if is_journal else "database"

    @override
    def xWrite(self, data: Buffer, offset: int) -> None:
        EVENTS.append(f"write {self._kind}")
        super().xWrite(data, offset)

    @override
    def xSync(self, flags: int) -> None:
        EVENTS.append(f"sync {self._kind}")
        super().xSync(flags)

    @override
    def xTruncate(self, newsize: int) -> None:
        EVENTS.append(f"truncate {self._kind}")
        super().xTruncate(newsize)


class RecordingVfs(apsw.VFS):
    """An SQLite VFS that records the operations on the database and its journal."""

    def __init__(self) -> None:
        super().__init__("recording", "unix", makedefault=True)

    @override
    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:
        return RecordingFile("unix", name, flags)

    @override
    def xDelete(self, filename: str, syncdir: bool) -> None:
        EVENTS.append("unlink journal" + (", sync directory" if syncdir else ""))
        super().xDelete(filename, syncdir)


EVENTS: list[str] = []


@pytest.fixture
def events() -> Iterator[list[str]]:
    """Return the list in which the databases of a test record their file operations."""
    vfs = RecordingVfs()
    EVENTS.clear()
    yield EVENTS
    vfs.unregister()


@pytest.mark.parametrize(
    ("mode", "last"),
    [
        ("delete", ["sync database", "write journal", "sync journal"]),
        ("truncate", ["sync database", "truncate journal", "sync journal"]),
        ("persist", ["sync database", "write journal", "sync journal"]),
    ],
)
def test_durable_commit_syncs_the_database_before_it_clears_the_journal(
    events: list[str], make_database: MakeDatabase, mode: str, last: list[str]
) -> None:
    db = make_database(journal_mode=mode, synchronous="normal")
    create_file(db, b"a")
    events.clear()
    db.commit_durable()
    assert events[-len(last) :] == last
    events.clear()
    db.commit_durable()
    assert events == [] or events[-1] == "sync journal", "even without anything to commit"
    db.close()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["wal", "delete", "truncate", "persist"])
def test_killed_writer_loses_at_most_one_commit_group(
    make_database: MakeDatabase, mode: str
) -> None:
    """After a kill, acknowledged commit groups exist, and the last group is complete or absent."""
    for round_number in range(4):
        db = make_database(f"{round_number}.db", journal_mode=mode, cache_size=20)
        db.close()
        acknowledged = run_and_kill(db, lines=5 + 17 * round_number)
        again = Database.open(db.path, db.pragmas)
        count = again.counters.dentries
        assert count in {acknowledged, acknowledged + 50}
        assert again.one("SELECT count(*), count(DISTINCT ino) FROM dentries") == (count, count)
        assert again.inodes.one("SELECT count(*) FROM inodes") == (count + 1,)
        assert again.one("PRAGMA integrity_check") == ("ok",)
        again.close()


WRITER = """
import sys
from pathlib import Path
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.group_listeners import LossStep
from s3fs_meta.meta.db.pragmas import Pragmas
db = Database.open(Path(sys.argv[1]), Pragmas(journal_mode=sys.argv[2], cache_size=20))
for number in range(1, 1_000_000):
    db.begin()
    made = inodes.create(db, 0o100644, 0, 0, 1, 5)
    dentries.add(db, 1, b"%0200d" % number, made.ino)
    if number % 50 == 0:
        db.commit()
        print(number, flush=True)
"""


def run_and_kill(db: Database, lines: int) -> int:
    """Kill a process that commits groups of 50 files; return the files that it acknowledged."""
    command = [sys.executable, "-c", WRITER, str(db.path), db.pragmas.journal_mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        seen = [writer.stdout.readline() for _ in range(lines)]
        writer.kill()
        seen += writer.stdout.readlines()
    return max(int(line) for line in seen if line.endswith("\n"))


def test_closing_a_database_undoes_the_open_commit_group(make_database: MakeDatabase) -> None:
    """Closing a database rolls back the open commit group; a second close has no effect."""
    db = make_database()
    create_file(db, b"a")
    db.close()
    db.close()
    again = Database.open(db.path, db.pragmas)
    assert dentries.find(again, ROOT_INO, b"a") is None
    again.close()


def test_cookie_key_is_read_when_the_database_is_opened(make_database: MakeDatabase) -> None:
    """The cookie key determines the order of names in directories."""
    db = make_database()
    assert db.cookie_key == properties.get(db, "cookie_key")
