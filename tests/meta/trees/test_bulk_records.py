"""Change records of bulk operations, which must equal the records of SQLite's session extension."""

from pathlib import Path

import apsw
import pytest

from s3fs_meta.errors import DatabaseError
from s3fs_meta.limits import TIME_NS_MIN
from s3fs_meta.meta.changesets import merge
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.db.schema import REPLICATED_TABLES
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.meta.tables.pending import ChangeRecorder
from s3fs_meta.meta.trees import bulk_records, tree_copies
from s3fs_meta.meta.trees.tree_copies import LIVING, SourceDirectory
from s3fs_meta.model import ROOT_INO, Cookie, Ino
from tests.meta.conftest import NOW_NS
from tests.meta.recorders import SessionRecorder

Change = tuple[str, str, object, object]
FACTS = {"uuid": b"u", "block_bytes": b"65536", "cookie_key": b"k" * 16}
LENGTHS = (1, 2, 126, 127, 128, 129, 254, 255)


def _changes(changesets: list[bytes]) -> list[Change]:
    """Return the combined and sorted changes of several changesets."""
    merged = merge(changesets)
    found = [(each.name, each.op, each.old, each.new) for each in apsw.Changeset.iter(merged)]
    return sorted(found, key=repr)


def _pending(db: Database) -> list[bytes]:
    return [row[0] for row in db.all("SELECT changeset FROM pending ORDER BY seq")]


def _fill(db: Database) -> Ino:
    """Create files with names of every length and inode numbers of every size."""
    db.begin()
    top = inodes.create(db, 0o040755, 1, 2, ROOT_INO, NOW_NS, nlink=2).ino
    dentries.add(db, ROOT_INO, b"top", top)
    for length in LENGTHS:
        made = inodes.create(db, 0o100644, 2**32 - 2, 0, top, NOW_NS)
        dentries.add(db, top, bytes([length]) * length, made.ino)
        inodes.set_size(db, made.ino, length << 50, 0)
    db.inodes.run(
        "UPDATE inodes SET ctime_ns = ?1, mtime_delta_ns = -5, atime_delta_ns = ?2 - ?1",
        (NOW_NS, TIME_NS_MIN),
    )
    inodes.change_directory(db, top, NOW_NS, entries=len(LENGTHS))
    inodes.change_directory(db, ROOT_INO, NOW_NS, entries=1, subdirectories=1)
    db.commit()
    return top


def _copy(db: Database, top: Ino) -> None:
    db.begin()
    tree_copies.begin(db)
    new = tree_copies.copy_inode(db, LIVING, inodes.get(db, top), NOW_NS)
    source = SourceDirectory(top, new, Cookie(0))
    tree_copies.copy_names(db, LIVING, [source], NOW_NS, names_max=100, blocks_max=10)
    # Some rows change twice in one commit group.
    db.inodes.run("UPDATE inodes SET mode = 33152 WHERE ino > ?", (new + 3,))
    db.commit()


def _rows(db: Database) -> list[object]:
    return [db.all(f"SELECT * FROM {table}") for table in REPLICATED_TABLES]


def test_change_records_of_bulk_operations_equal_the_records_of_an_sqlite_session(
    tmp_path: Path,
) -> None:
    ours, theirs = (Database.create(tmp_path / name, Pragmas(), FACTS) for name in ("a", "b"))
    tops = [_fill(db) for db in (ours, theirs)]
    recorder = ChangeRecorder(ours, lambda: NOW_NS)
    session = SessionRecorder(theirs)
    theirs.recorder = session
    for db, top in zip((ours, theirs), tops, strict=True):
        _copy(db, top)

    assert _rows(ours) == _rows(theirs)
    records = _pending(ours)
    assert recorder.bytes == sum(map(len, records))
    found = _changes(records)
    assert found == _changes(session.changesets)
    assert len([each for each in found if each[:2] == ("dentries", "INSERT")]) == len(LENGTHS)
    ours.close()
    theirs.close()


def test_names_of_a_wrong_type_are_copied_and_recorded_as_blobs(tmp_path: Path) -> None:
    """A record with the length of a text in characters would be damaged, and block all uploads."""
    db = Database.create(tmp_path / "a", Pragmas(), FACTS)
    top = _fill(db)
    db.begin()
    db.run("UPDATE dentries SET name = CAST(name AS TEXT) WHERE parent = ?", (top,))
    db.commit()
    _recorder = ChangeRecorder(db, lambda: NOW_NS)

    _copy(db, top)

    found = _changes(_pending(db))
    assert len([each for each in found if each[:2] == ("dentries", "INSERT")]) == len(LENGTHS)
    sql = "SELECT count(*) FROM dentries WHERE parent > ? AND typeof(name) = 'blob'"
    assert db.one(sql, (top,)) == (len(LENGTHS),)
    db.close()


def test_commit_group_is_rolled_back_if_its_changes_cannot_be_recorded(db: Database) -> None:
    """A commit group whose changes have no record must not be committed."""
    db.commit()
    top = _fill(db)
    ChangeRecorder(db, lambda: NOW_NS)
    db.begin()
    with pytest.raises(DatabaseError), bulk_records.recorded(db):  # noqa: PT012 - both statements run before the error
        db.run("DELETE FROM dentries WHERE parent = ?", (top,))
        db.run("DELETE FROM nothing")
    assert not db.in_group
    assert db.one("SELECT count(*) FROM dentries WHERE parent = ?", (top,)) == (len(LENGTHS),)
