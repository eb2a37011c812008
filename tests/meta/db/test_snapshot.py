"""Snapshots: consistent copies of the database while commit groups continue."""

import threading
from pathlib import Path

import pytest

from s3fs_meta.errors import DatabaseError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import dentries
from s3fs_meta.model import ROOT_INO
from tests.meta.conftest import MakeDatabase, create_file


def names_in(path: Path) -> set[bytes]:
    """Check that a copy of a database is intact, and return the names in it."""
    copy = Database.open(path, Pragmas(journal_mode="off"))
    assert copy.one("PRAGMA integrity_check") == ("ok",)
    names = {row[0] for row in copy.all("SELECT name FROM dentries")}
    assert copy.counters.dentries == len(names)
    copy.close()
    return names


def test_copy_of_a_snapshot_contains_no_later_commit_groups(
    make_database: MakeDatabase, journal_mode: str, tmp_path: Path
) -> None:
    """A copy of a snapshot contains no group committed later, in any journal mode."""
    db = make_database(journal_mode=journal_mode)
    create_file(db, b"before")
    db.commit()
    snapshot = db.open_snapshot()
    create_file(db, b"after")
    db.commit()
    snapshot.copy_to(tmp_path / "copy.db")
    snapshot.close()
    snapshot.close()
    assert names_in(tmp_path / "copy.db") == {b"before"}
    assert {path.name for path in tmp_path.glob("*copy*")} == {"copy.db"}
    assert not list(tmp_path.glob("*-snapshot"))


def test_copy_of_a_snapshot_excludes_the_open_commit_group(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    """In WAL mode, a commit group may be open before and during the copy of a snapshot."""
    db = make_database()
    create_file(db, b"before")
    db.commit()
    create_file(db, b"open")
    snapshot = db.open_snapshot()
    snapshot.copy_to(tmp_path / "copy.db")
    snapshot.close()
    assert names_in(tmp_path / "copy.db") == {b"before"}
    db.commit()
    assert dentries.find(db, ROOT_INO, b"open") is not None


def test_commit_groups_continue_while_a_snapshot_is_copied(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    """A snapshot is copied in a thread, and commit groups continue in the meantime."""
    db = make_database()
    for number in range(2000):
        create_file(db, b"%0100d" % number)
    db.commit()
    snapshot = db.open_snapshot()
    copying = threading.Thread(target=snapshot.copy_to, args=(tmp_path / "copy.db",))
    copying.start()
    rounds = 0
    while copying.is_alive() or rounds < 20:
        create_file(db, b"later-%d" % rounds)
        db.commit()
        if rounds % 10 == 0:
            db.checkpoint()
        rounds += 1
    copying.join()
    snapshot.close()
    assert len(names_in(tmp_path / "copy.db")) == 2000


def test_snapshot_is_not_copied_over_an_existing_file(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    db = make_database()
    (tmp_path / "copy.db").write_bytes(b"mine")
    snapshot = db.open_snapshot()
    with pytest.raises(DatabaseError):
        snapshot.copy_to(tmp_path / "copy.db")
    snapshot.close()
    assert (tmp_path / "copy.db").read_bytes() == b"mine"


def test_copy_of_a_closed_snapshot_is_refused(make_database: MakeDatabase, tmp_path: Path) -> None:
    """Copying a closed snapshot is a programming error and raises AssertionError."""
    snapshot = make_database().open_snapshot()
    snapshot.close()
    with pytest.raises(AssertionError):
        snapshot.copy_to(tmp_path / "copy.db")
