"""Changing the page size of a database that is not in use."""

import contextlib
import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from s3fs_meta.errors import DatabaseError, UsageError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.offline.page_size import change_page_size
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO
from tests.meta.conftest import MakeDatabase


def filled(make_database: MakeDatabase, **pragmas: object) -> Database:
    """Return a closed database with 200 files."""
    db = make_database(**pragmas)
    db.begin()
    for number in range(200):
        ino = inodes.create(db, 0o100644, 0, 0, ROOT_INO, 5).ino
        dentries.add(db, ROOT_INO, b"%0100d" % number, ino)
    db.commit()
    db.close()
    return db


@pytest.mark.parametrize("page_size", [512, 4096, 65536])
@pytest.mark.parametrize("journal_mode", ["wal", "delete"])
def test_changing_the_page_size_keeps_all_rows(
    make_database: MakeDatabase, page_size: int, journal_mode: str
) -> None:
    """The database must leave WAL mode first, because SQLite otherwise ignores a new page_size."""
    path = filled(make_database, journal_mode=journal_mode, page_size=2048).path
    change_page_size(path, page_size)
    again = Database.open(path, Pragmas(journal_mode=journal_mode, synchronous="off"))
    assert again.one("PRAGMA page_size") == (page_size,)
    assert again.one("PRAGMA integrity_check") == ("ok",)
    assert again.one("SELECT count(*) FROM dentries") == (200,)
    assert again.counters.dentries == 200
    assert path.stat().st_mode & 0o777 == 0o600
    again.close()
    assert os.listdir(path.parent) == [path.name]


def test_invalid_page_size_is_refused_and_changes_nothing(make_database: MakeDatabase) -> None:
    path = filled(make_database).path
    before = path.read_bytes()
    with pytest.raises(UsageError, match="page_size=3000"):
        change_page_size(path, 3000)
    assert path.read_bytes() == before


def test_page_size_is_not_changed_while_another_connection_writes(
    make_database: MakeDatabase,
) -> None:
    """If another connection has an open commit group, the change fails and leaves no copy."""
    db = make_database(journal_mode="delete")
    db.begin()
    with pytest.raises(DatabaseError):
        change_page_size(db.path, 8192, busy_ms=0)
    db.commit()
    assert db.one("PRAGMA page_size") == (4096,)
    assert not db.path.with_name("meta.db-resized").exists()


def test_changing_the_page_size_removes_the_unfinished_copy_of_a_crash(
    make_database: MakeDatabase,
) -> None:
    """A crash during the change of the page size leaves an unfinished copy, which is removed."""
    path = filled(make_database).path
    path.with_name("meta.db-resized").write_bytes(b"half a copy")
    change_page_size(path, 8192)
    assert not path.with_name("meta.db-resized").exists()


def test_changing_the_page_size_of_a_missing_database_creates_no_file(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError):
        change_page_size(tmp_path / "meta.db", 8192)
    assert list(tmp_path.iterdir()) == []


def test_database_stays_usable_if_the_disk_is_too_full_to_change_the_page_size(
    make_database: MakeDatabase, small_disk: Path
) -> None:
    """The rows and the page size stay the same, and the configured journal mode is set again."""
    path = small_disk / "meta.db"
    shutil.copyfile(filled(make_database).path, path)
    with contextlib.suppress(OSError), (small_disk / "filler").open("wb") as filler:
        while True:
            filler.write(bytes(4096))
            filler.flush()

    with pytest.raises(DatabaseError):
        change_page_size(path, 8192)

    (small_disk / "filler").unlink()
    assert sorted(os.listdir(small_disk)) == ["meta.db"]
    with closing(Database.open(path, Pragmas(journal_mode="wal"))) as db:
        assert db.one("PRAGMA journal_mode") == ("wal",)
        assert db.one("PRAGMA page_size") == (4096,)
        assert db.one("SELECT count(*) FROM dentries") == (200,)
        assert db.counters.dentries == 200
