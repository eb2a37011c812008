"""Tests of the table symlinks, which contains the targets of symbolic links."""

import pytest

from s3fs_meta.errors import NoInodeError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import symlinks
from s3fs_meta.model import Ino


@pytest.mark.parametrize("target", [b"x", b"/" * 4095, bytes(range(1, 256)), b"../a b"])
def test_symlink_target_is_read_back_unchanged(db: Database, target: bytes) -> None:
    """A symlink target may contain any bytes except zero bytes."""
    symlinks.create(db, Ino(5), target)
    assert symlinks.target(db, Ino(5)) == target


def test_reading_a_missing_symlink_target_is_an_error(db: Database) -> None:
    """Reading a missing symlink target is an error; deleting it is not."""
    with pytest.raises(NoInodeError):
        symlinks.target(db, Ino(5))
    symlinks.delete(db, Ino(5))


def test_symlink_target_is_not_found_after_its_deletion(db: Database) -> None:
    symlinks.create(db, Ino(5), b"x")
    symlinks.delete(db, Ino(5))
    with pytest.raises(NoInodeError):
        symlinks.target(db, Ino(5))
