"""The write-ahead log: length, bound, sync."""

from collections.abc import Callable
from pathlib import Path

import pytest

from s3fs_meta.limits import WAL_CHECKPOINT_BYTES
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.db.wal import Wal
from s3fs_meta.meta.tables import dentries
from s3fs_meta.model import ROOT_INO, Ino

MakeDatabase = Callable[..., Database]


def commit_some(db: Database, numbers: range) -> None:
    """Commit one group of long names."""
    for number in numbers:
        db.begin()
        dentries.add(db, ROOT_INO, b"%0250d" % number, Ino(2))
    db.commit()


def wal_file(db: Database) -> Path:
    """Return the path of the log."""
    return db.path.with_name(db.path.name + "-wal")


def test_length_grows_with_commits_and_is_copied(make_database: MakeDatabase) -> None:
    """A checkpoint copies all that is committed, and the writer goes on."""
    db = make_database()
    commit_some(db, range(100))
    length = db.wal_bytes
    assert 0 < length <= wal_file(db).stat().st_size
    done = db.checkpoint()
    assert done is not None
    assert done.copied_frames == done.frames > 0
    assert (db.wal_bytes, db.wal_uncopied_bytes) == (length, 0)
    commit_some(db, range(100, 101))
    assert 0 < db.wal_bytes < length, "a log that was copied whole is started over"


def test_open_group_does_not_stop_a_checkpoint(make_database: MakeDatabase) -> None:
    """Earlier commits are copied; the group commits afterwards."""
    db = make_database()
    commit_some(db, range(100))
    db.begin()
    dentries.add(db, ROOT_INO, b"open", Ino(2))
    done = db.checkpoint()
    assert done is not None
    assert done.copied_frames == done.frames
    db.commit()
    assert dentries.find(db, ROOT_INO, b"open") == 2


def test_log_is_bounded_under_constant_load(make_database: MakeDatabase) -> None:
    """Although a group is open during every checkpoint, the log restarts."""
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


def test_snapshot_limits_the_checkpoint(make_database: MakeDatabase, tmp_path: Path) -> None:
    """An open snapshot keeps later frames from being copied; after its end all are copied."""
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


def test_automatic_checkpoints_when_requested(make_database: MakeDatabase) -> None:
    """With the mount option a commit checkpoints after that many pages."""
    db = make_database(wal_autocheckpoint=10)
    for number in range(20):
        commit_some(db, range(10 * number, 10 * number + 10))
    assert db.wal_bytes < 100 * 4096


def test_sync_without_a_log(make_database: MakeDatabase, tmp_path: Path) -> None:
    """In rollback modes, and before the first write, there is no log to sync."""
    db = make_database(journal_mode="delete", synchronous="normal")
    db.sync_wal()
    assert db.checkpoint() is None
    assert (db.wal_bytes, db.wal_uncopied_bytes) == (0, 0)
    Wal(tmp_path / "none.db", 4096, "normal").sync()


def test_sync_leaves_the_databases_locks(make_database: MakeDatabase) -> None:
    """Opening and closing the log by a descriptor of our own keeps SQLite's locks.

    Another process that wants the database for itself is still kept out.
    """
    db = make_database(synchronous="normal")
    commit_some(db, range(10))
    before = locks_of(db.path)
    db.sync_wal()
    db.sync_wal()
    assert locks_of(db.path) == before
    assert before, "under WAL the database file carries a shared lock"


def locks_of(path: Path) -> list[str]:
    """Return the POSIX locks that the kernel knows for a file."""
    inode = f":{path.stat().st_ino} "
    return [
        line.split(": ", 1)[1]
        for line in Path("/proc/locks").read_text().splitlines()
        if inode in line
    ]


def test_journal_size_limit_shortens_the_file(make_database: MakeDatabase) -> None:
    """The file is truncated when the log restarts."""
    db = make_database(journal_size_limit=65536)
    commit_some(db, range(1000))
    long = wal_file(db).stat().st_size
    db.checkpoint()
    commit_some(db, range(1000, 1001))
    assert wal_file(db).stat().st_size <= 65536 < long


def test_log_is_removed_after_closing(make_database: MakeDatabase) -> None:
    """The last connection copies everything and removes it."""
    db = make_database()
    commit_some(db, range(100))
    db.close()
    assert not wal_file(db).exists()
    again = Database.open(db.path, Pragmas(journal_mode="delete"))
    assert again.counters.dentries == 100
    again.close()


@pytest.mark.parametrize("frames", [0, 1, 10])
def test_length_in_bytes(tmp_path: Path, frames: int) -> None:
    """A header, and a header for each page."""
    wal = Wal(tmp_path / "meta.db", 4096, "normal")
    wal.note_commit(frames)
    assert wal.size_bytes == (32 + frames * 4120 if frames else 0)
