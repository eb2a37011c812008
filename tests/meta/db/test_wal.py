"""SQLite's write-ahead log (WAL): its length, its limits and its syncs."""

import errno
import os
import resource
import shutil
from pathlib import Path

import apsw
import pytest

from s3fs_meta import sync_failures
from s3fs_meta.errors import DatabaseError
from s3fs_meta.limits import WAL_CHECKPOINT_BYTES, WAL_ROOM_BYTES
from s3fs_meta.meta.db import connections
from s3fs_meta.meta.db import wal as wal_module
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.db.wal import Wal, last_change_ns
from s3fs_meta.meta.tables import dentries
from s3fs_meta.model import ROOT_INO, Ino
from s3fs_meta.testing.failing_vfs import failing_sqlite
from tests.descriptors import no_more_files
from tests.faults import raising
from tests.meta.conftest import MakeDatabase


def commit_some(db: Database, numbers: range) -> None:
    """Commit a group that adds a long name for each number."""
    for number in numbers:
        db.begin()
        dentries.add(db, ROOT_INO, b"%0250d" % number, Ino(2))
    db.commit()


def wal_file(db: Database) -> Path:
    """Return the path of the write-ahead log."""
    return db.path.with_name(db.path.name + "-wal")


def test_wal_grows_with_commits_and_restarts_after_a_checkpoint(
    make_database: MakeDatabase,
) -> None:
    """After a checkpoint has copied the complete WAL, the next commit restarts the WAL."""
    db = make_database()
    commit_some(db, range(100))
    length = db.wal_bytes
    assert 0 < length <= wal_file(db).stat().st_size
    done = db.checkpoint()
    assert done is not None
    assert done.copied_frames == done.frames > 0
    assert (db.wal_bytes, db.wal_uncopied_bytes) == (length, 0)
    commit_some(db, range(100, 101))
    assert 0 < db.wal_bytes < length, "the log must restart after all of it was copied"


def test_open_commit_group_does_not_prevent_a_checkpoint(make_database: MakeDatabase) -> None:
    """A checkpoint copies all committed frames even while a commit group is open."""
    db = make_database()
    commit_some(db, range(100))
    db.begin()
    dentries.add(db, ROOT_INO, b"open", Ino(2))
    done = db.checkpoint()
    assert done is not None
    assert done.copied_frames == done.frames
    db.commit()
    assert dentries.find(db, ROOT_INO, b"open") == 2


def test_size_of_the_wal_is_limited_under_constant_load(make_database: MakeDatabase) -> None:
    """Under constant load the WAL restarts although a commit group is open at each checkpoint."""
    db = make_database(page_size=65536, cache_size=-65536)
    longest = 0
    for round_number in range(60):
        commit_some(db, range(30 * round_number, 30 * round_number + 30))
        longest = max(longest, db.wal_bytes)
        if db.wal_uncopied_bytes > WAL_CHECKPOINT_BYTES:
            db.begin()
            dentries.add(db, ROOT_INO, b"open-%d" % round_number, Ino(2))
            db.checkpoint()
    assert longest > WAL_CHECKPOINT_BYTES
    assert longest < 4 * WAL_CHECKPOINT_BYTES


def test_open_snapshot_limits_a_checkpoint(make_database: MakeDatabase, tmp_path: Path) -> None:
    """While a snapshot is open, a checkpoint copies no frames newer than the snapshot."""
    db = make_database()
    commit_some(db, range(10))
    snapshot = db.open_snapshot()
    commit_some(db, range(10, 100))
    done = db.checkpoint()
    assert done is not None
    assert done.copied_frames < done.frames
    snapshot.copy_to(tmp_path / "copy.db")
    snapshot.close()
    done = db.checkpoint()
    assert done is not None
    assert done.copied_frames == done.frames


def test_wal_autocheckpoint_limits_the_wal(make_database: MakeDatabase) -> None:
    """With wal_autocheckpoint=10, a commit runs a checkpoint if the WAL has ten pages."""
    db = make_database(wal_autocheckpoint=10)
    for number in range(20):
        commit_some(db, range(10 * number, 10 * number + 10))
    assert db.wal_bytes < 100 * 4096


def test_sync_without_a_wal_does_nothing(make_database: MakeDatabase, tmp_path: Path) -> None:
    """A sync does nothing if the journal mode is not WAL, or if there is no WAL file yet."""
    db = make_database(journal_mode="delete", synchronous="normal")
    db.sync_wal()
    assert db.checkpoint() is None
    assert (db.wal_bytes, db.wal_uncopied_bytes) == (0, 0)
    Wal(tmp_path / "none.db", 4096, "normal").sync()


def test_sync_of_the_wal_keeps_the_locks_on_the_database(make_database: MakeDatabase) -> None:
    """A sync of the WAL must not make the process lose SQLite's locks on the database.

    A process that closes a descriptor of a file loses all its POSIX locks on this file.
    """
    db = make_database(synchronous="normal")
    commit_some(db, range(10))
    before = locks_of(db.path)
    db.sync_wal()
    db.sync_wal()
    assert locks_of(db.path) == before
    assert before, "SQLite holds a shared lock in WAL mode"


def locks_of(path: Path) -> list[str]:
    """Return the POSIX locks on a file that /proc/locks lists."""
    inode = f":{path.stat().st_ino} "
    return [
        line.split(": ", 1)[1]
        for line in Path("/proc/locks").read_text().splitlines()
        if inode in line
    ]


def test_journal_size_limit_truncates_the_wal(make_database: MakeDatabase) -> None:
    """When the WAL restarts, SQLite truncates it to journal_size_limit."""
    db = make_database(journal_size_limit=65536)
    commit_some(db, range(1000))
    long = wal_file(db).stat().st_size
    db.checkpoint()
    commit_some(db, range(1000, 1001))
    assert wal_file(db).stat().st_size <= 65536 < long


def test_closing_the_database_removes_the_wal(make_database: MakeDatabase) -> None:
    """The last connection copies the WAL into the database and deletes the WAL file."""
    db = make_database()
    commit_some(db, range(100))
    db.close()
    assert not wal_file(db).exists()
    again = Database.open(db.path, Pragmas(journal_mode="delete"))
    assert again.counters.dentries == 100
    again.close()


@pytest.mark.parametrize("frames", [0, 1, 10])
def test_size_of_the_wal_is_computed_from_its_number_of_frames(tmp_path: Path, frames: int) -> None:
    """A WAL consists of a header of 32 bytes, and pages with headers of 24 bytes."""
    wal = Wal(tmp_path / "meta.db", 4096, "normal")
    wal.note_commit(frames)
    assert wal.size_bytes == (32 + frames * 4120 if frames else 0)


def lacks_room(db: Database) -> bool:
    """Return True if the WAL has little preallocated space left."""
    assert db.wal is not None
    return db.wal.lacks_room


def used_and_file_bytes(db: Database) -> tuple[int, int]:
    """Return the used size of the WAL and the size of its file."""
    return db.wal_bytes, wal_file(db).stat().st_size


def make_room(db: Database, room_bytes: int = WAL_ROOM_BYTES) -> None:
    """Preallocate space at the end of the WAL, and sync the WAL."""
    assert db.wal is not None
    db.wal.append_room(room_bytes)
    db.sync_wal()


def test_commits_into_preallocated_space_do_not_extend_the_wal(make_database: MakeDatabase) -> None:
    """Commits into preallocated space change neither the size nor the disk usage of the WAL."""
    db = make_database()
    commit_some(db, range(10))
    assert lacks_room(db)
    make_room(db)
    used, file_bytes = used_and_file_bytes(db)
    blocks = wal_file(db).stat().st_blocks
    assert file_bytes == used + WAL_ROOM_BYTES

    while not lacks_room(db):
        commit_some(db, range(db.counters.dentries, db.counters.dentries + 10))

    assert used < db.wal_bytes < file_bytes
    assert (wal_file(db).stat().st_size, wal_file(db).stat().st_blocks) == (file_bytes, blocks)
    make_room(db)
    assert wal_file(db).stat().st_size == db.wal_bytes + WAL_ROOM_BYTES


def test_extension_of_the_wal_overwrites_no_frame_of_a_concurrent_commit(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Space is added after all frames, even after those written during the extension."""
    db = make_database()
    commit_some(db, range(10))
    write = os.write

    def write_late(fd: int, data: bytes) -> int:
        commit_some(db, range(10, 50))
        return write(fd, data)

    monkeypatch.setattr(os, "write", write_late)
    make_room(db)
    monkeypatch.undo()

    assert read_after_a_kill(db) == 50


def read_after_a_kill(db: Database) -> int:
    """Copy the database and its WAL; return the number of dentries in the copy."""
    copy = db.path.with_name("copy.db")
    shutil.copy(db.path, copy)
    shutil.copy(wal_file(db), f"{copy}-wal")
    killed = Database.open(copy, Pragmas())
    try:
        return killed.counters.dentries
    finally:
        killed.close()


def test_old_frames_of_a_restarted_wal_count_as_preallocated_space(
    make_database: MakeDatabase,
) -> None:
    """A restarted WAL overwrites its old frames before its file grows."""
    db = make_database()
    commit_some(db, range(1000))
    make_room(db)
    file_bytes = wal_file(db).stat().st_size
    db.checkpoint()
    commit_some(db, range(1000, 1010))
    make_room(db)

    assert not lacks_room(db)
    assert wal_file(db).stat().st_size == file_bytes
    assert read_after_a_kill(db) == 1010


def test_wal_is_not_extended_on_a_full_disk(tmp_path: Path) -> None:
    """On a full disk no space is added to the WAL, and no error is raised."""
    (tmp_path / "meta.db-wal").touch()
    wal = Wal(tmp_path / "meta.db", 4096, "normal")
    wal.note_commit(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # write(2) fails with EFBIG
    try:
        wal.append_room()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    # The next attempt waits until the WAL has grown by half of WAL_ROOM_BYTES.
    assert not wal.lacks_room


def test_first_sync_of_the_wal_makes_its_directory_entry_durable(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    db = make_database(synchronous="normal")
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    for number in range(3):
        commit_some(db, range(number, number + 1))
        db.sync_wal()

    assert synced == [str(db.path.parent)]


def test_lack_of_file_descriptors_is_not_recorded_as_a_failed_sync_of_the_wal(
    make_database: MakeDatabase,
) -> None:
    """A commit succeeds without a descriptor for syncs, and the next sync opens the WAL."""
    db = make_database(synchronous="normal")
    commit_some(db, range(1))
    assert db.wal is not None
    lacking = Wal(db.path, 4096, "normal")
    with no_more_files():
        lacking.note_commit(1)
        with pytest.raises(OSError, match="Too many open files"):
            lacking.sync()
        db.sync_wal()
    lacking.sync()
    assert lacking.failure == ""
    assert not sync_failures.is_noted(db.path.parent)


def test_disk_error_during_an_extension_of_the_wal_is_raised(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error during an extension of the WAL is raised, except for a full disk."""
    db = make_database()
    commit_some(db, range(10))
    monkeypatch.setattr(os, "write", raising(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(OSError, match="Input/output"):
        make_room(db)


def test_truncated_wal_has_no_preallocated_space(make_database: MakeDatabase) -> None:
    """A WAL that SQLite truncates after a restart has no preallocated space left."""
    db = make_database(journal_size_limit=65536)
    commit_some(db, range(1000))
    make_room(db)
    assert not lacks_room(db)
    db.checkpoint()
    commit_some(db, range(1000, 1001))

    assert wal_file(db).stat().st_size <= 65536
    assert lacks_room(db)


@pytest.mark.parametrize(
    "rest",
    [bytes(50_000), os.urandom(50_000), bytes(4120) + os.urandom(50_000)],
    ids=["zeros", "garbage", "garbage after zeros"],
)
def test_bytes_after_the_end_of_the_wal_are_not_read_as_frames(
    make_database: MakeDatabase, rest: bytes
) -> None:
    """After a power cut, the WAL may end with zeros or with old content of the disk."""
    db = make_database()
    commit_some(db, range(10))
    with wal_file(db).open("ab") as file:
        file.write(rest)

    assert read_after_a_kill(db) == 10
    commit_some(db, range(10, 20))
    assert read_after_a_kill(db) == 20


def test_old_frames_of_a_restarted_wal_are_ignored(make_database: MakeDatabase) -> None:
    """Old frames in a restarted WAL are recognised by their salt, which differs."""
    db = make_database()
    commit_some(db, range(1000))
    old = wal_file(db).read_bytes()
    db.checkpoint()
    commit_some(db, range(1000, 1010))
    used = db.wal_bytes
    assert wal_file(db).read_bytes()[used:] == old[used:]

    assert read_after_a_kill(db) == 1010
    frame_bytes = 4096 + 24
    commit_some(db, range(1010, 1020))
    with wal_file(db).open("r+b") as file:  # The disk loses the last commit.
        file.seek(used)
        file.write(old[used : used + 20 * frame_bytes])
    assert read_after_a_kill(db) == 1010


def test_sync_of_the_wal_uses_a_separate_file_descriptor(make_database: MakeDatabase) -> None:
    """The kernel reports a write error once per descriptor, so syncs do not use SQLite's."""
    db = make_database()
    commit_some(db, range(10))
    fds = [fd for fd in os.listdir("/proc/self/fd") if names(fd, wal_file(db))]
    assert len(fds) == 2, "one descriptor is for SQLite, and one for syncs"
    db.close()
    assert not [fd for fd in os.listdir("/proc/self/fd") if names(fd, wal_file(db))]


def names(fd: str, path: Path) -> bool:
    """Return True if a descriptor of this process refers to a file, even to a deleted file."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(str(path))
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("in_thread", [False, True], ids=["between groups", "in a thread"])
def test_wal_syncs_fail_after_a_checkpoint_could_not_sync_the_wal(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch, in_thread: bool
) -> None:
    """A sync error that SQLite received must make all later syncs of the WAL fail."""
    monkeypatch.setattr(wal_module, "WAL_CHECKPOINT_BYTES", 1)
    with failing_sqlite("-wal") as failing:
        db = make_database(synchronous="normal")
        commit_some(db, range(10))
        db.begin()  # The open commit group prevents a restart of the WAL.
        dentries.add(db, ROOT_INO, b"open", Ino(2))
        db.checkpoint()
        before = db.path.read_bytes()
        if in_thread:
            monkeypatch.undo()
            db.commit()
            failing.armed = True
            with pytest.raises(DatabaseError):
                db.checkpoint()
        else:
            failing.armed = True
            db.commit()

        with pytest.raises(OSError, match="checkpoint failed"):
            db.sync_wal()
        with pytest.raises(DatabaseError):
            db.checkpoint()
        commit_some(db, range(30, 40))
        db.close()

        assert (failing.failures, failing.later_syncs) == (1, 0)
        assert db.path.read_bytes() == before


def test_wal_syncs_keep_failing_after_a_failed_sync(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = make_database(synchronous="normal")
    commit_some(db, range(10))
    before = db.path.read_bytes()
    monkeypatch.setattr(os, "fdatasync", raising(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(OSError, match="Input/output"):
        db.sync_wal()
    monkeypatch.undo()

    with pytest.raises(OSError, match="earlier sync"):
        db.sync_wal()
    with pytest.raises(DatabaseError):
        db.checkpoint()
    db.close()
    assert db.path.read_bytes() == before, "closing ran no checkpoint"
    assert wal_file(db).exists()


def test_checkpoint_that_fails_on_a_full_disk_does_not_affect_later_wal_syncs(
    make_database: MakeDatabase,
) -> None:
    """If a checkpoint fails because the disk is full, later syncs of the WAL succeed."""
    db = make_database(synchronous="normal")
    commit_some(db, range(10))
    db.sync_wal()
    assert db.wal is not None

    class Full:
        def wal_checkpoint(self, mode: int) -> tuple[int, int]:
            raise apsw.FullError(f"mode {mode}")

    with pytest.raises(apsw.FullError):
        db.wal.checkpoint_with(Full())  # type: ignore[arg-type]
    commit_some(db, range(10, 20))
    db.sync_wal()


@pytest.mark.parametrize("name", ["meta.db", "meta.db-wal"])
def test_sync_failure_while_closing_a_database_is_recorded(
    make_database: MakeDatabase, name: str
) -> None:
    """SQLite hides errors of the checkpoint at closing, so the program records them itself."""
    with failing_sqlite(name) as failing:
        db = make_database(synchronous="normal")
        commit_some(db, range(10))
        failing.armed = True
        db.close()

    assert (failing.failures, failing.later_syncs) == (1, 0)
    assert wal_file(db).exists()
    assert sync_failures.is_noted(db.path.parent)


def test_failed_sync_of_the_wal_is_recorded(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = make_database(synchronous="normal")
    commit_some(db, range(10))
    monkeypatch.setattr(os, "fdatasync", raising(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(OSError, match="Input/output"):
        db.sync_wal()
    assert sync_failures.is_noted(db.path.parent)


@pytest.mark.parametrize("journal_mode", ["wal", "delete", "truncate", "persist"])
def test_last_commit_is_earlier_than_a_commit_that_a_kill_interrupted(
    tmp_path: Path, journal_mode: str
) -> None:
    """The time of the last commit ignores writes of an interrupted commit group."""
    connection = apsw.Connection(str(tmp_path / "open.db"))
    connection.pragma("journal_mode", journal_mode)
    connection.pragma("cache_size", 1)
    connection.execute("CREATE TABLE numbers (content BLOB)")
    changed = "meta.db-wal" if journal_mode == "wal" else "meta.db"

    connection.execute("BEGIN")
    before_ns = _ctime_ns(tmp_path / "open.db")
    connection.executemany("INSERT INTO numbers VALUES (zeroblob(?))", [(5000,)] * 100)
    _copy_database(tmp_path / "open.db", tmp_path / "killed")
    connection.execute("COMMIT")
    _copy_database(tmp_path / "open.db", tmp_path / "committed")

    killed_ns = last_change_ns(tmp_path / "killed" / "meta.db")
    assert killed_ns is not None
    assert killed_ns < before_ns
    committed_ns = last_change_ns(tmp_path / "committed" / "meta.db")
    assert committed_ns == _ctime_ns(tmp_path / "committed" / changed)
    connection.close()


def test_opening_a_database_does_not_count_as_a_commit(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    """If root runs SQLite, opening a WAL changes its ctime, but not the time of the last commit."""
    db = make_database()
    commit_some(db, range(3))
    _copy_database(db.path, tmp_path / "killed")
    killed = tmp_path / "killed" / "meta.db"
    before_ns = last_change_ns(killed)
    later = tmp_path / "later"
    later.touch()
    # Files that change in the same clock tick have equal ctimes.
    while _ctime_ns(later) <= _ctime_ns(Path(f"{killed}-wal")):
        later.touch()

    connection = connections.connect(killed, read_only=True)
    connection.execute("SELECT count(*) FROM dentries").fetchall()

    assert last_change_ns(killed) == before_ns
    connection.close()


def _ctime_ns(path: Path) -> int:
    return path.stat().st_ctime_ns


def _copy_database(database: Path, target: Path) -> None:
    target.mkdir()
    for path in database.parent.glob(f"{database.name}*"):
        shutil.copy(path, target / path.name.replace(database.name, "meta.db"))


def bytes_read() -> int:
    """Return the number of bytes that this process has read from files."""
    [line] = [
        line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar")
    ]
    return int(line.split()[1])


@pytest.mark.parametrize(
    "header",
    [b"", bytes.fromhex("377f0682 002de218 00001000"), bytes.fromhex("377f0683 002de218")],
    ids=["zeros", "no salts", "no page size"],
)
def test_search_for_the_last_commit_does_not_read_zeros_at_the_end_of_the_wal(
    make_database: MakeDatabase, header: bytes
) -> None:
    """The time of the last commit is found quickly if a program extended the log with zeros."""
    db = make_database(synchronous="normal")
    db.close()
    log = Path(f"{db.path}-wal")
    log.write_bytes(header)
    os.truncate(log, 64 << 20)
    before = bytes_read()

    assert last_change_ns(db.path) == log.stat().st_ctime_ns

    assert bytes_read() - before < 1 << 16
