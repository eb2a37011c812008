"""The first root: the root directory as it was before the first recorded change."""

from collections.abc import Iterable

import pytest

from s3fs_meta.meta import changesets
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.offline.first_root import FirstRoot
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO
from tests.meta.conftest import MakeDatabase
from tests.meta.recorders import recorded
from tests.rows import contents

CHANGES = ("gid = 7", "uid = 5, ctime_ns = 99", "uid = 6, mode = 16832", "ctime_ns = 100")


def change(db: Database, assignment: str) -> None:
    """Change the root directory's inode in a separate commit group."""
    db.begin()
    db.inodes.flush()
    db.run(f"UPDATE inodes SET {assignment} WHERE ino = ?", (ROOT_INO,))
    db.commit()


def apply_all(db: Database, changes: Iterable[bytes]) -> None:
    """Apply changesets to a database whose root directory may differ."""
    first_root = FirstRoot(db)
    db.begin_local()
    for changeset in changes:
        first_root.hear(changeset)
        changesets.apply(db.connection, changeset, "a changelog")
    db.commit()


def test_changesets_apply_to_a_database_with_a_different_root_directory(
    make_database: MakeDatabase,
) -> None:
    """The first changesets contain old values of the root directory, which another host lacks."""
    writer, other = make_database("writer.db"), make_database("other.db")
    for db in (writer, other):
        db.inodes.write_through()
    change(writer, "mode = 16895, uid = 3, gid = 4, ctime_ns = 12345")
    recorder = recorded(writer)
    for assignment in CHANGES:
        change(writer, assignment)

    apply_all(other, recorder.changesets)

    assert len(recorder.changesets) == len(CHANGES)
    assert contents(other.connection) == contents(writer.connection)
    assert inodes.get(other, ROOT_INO).uid == 6


@pytest.mark.parametrize("lost", [False, True], ids=["replaced", "lost and drawn anew"])
def test_changesets_with_a_new_cookie_key_apply_to_a_database_with_another_key(
    make_database: MakeDatabase, lost: bool
) -> None:
    """A crash of fsck can leave a new cookie key, which the next mount ships."""
    writer, other = make_database("writer.db"), make_database("other.db")
    writer.begin()
    if lost:
        writer.run("DELETE FROM properties WHERE name = 'cookie_key'")
    else:
        writer.run("UPDATE properties SET value = x'0011' WHERE name = 'cookie_key'")
    writer.commit()
    recorder = recorded(writer)
    writer.begin()
    writer.run("INSERT OR REPLACE INTO properties VALUES ('cookie_key', ?)", (b"k" * 16,))
    writer.commit()

    apply_all(other, recorder.changesets)

    assert len(recorder.changesets) == 1
    assert contents(other.connection) == contents(writer.connection)
