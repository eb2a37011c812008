"""Targets of symbolic links."""

import pytest

from s3fs_meta.errors import NoInodeError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import symlinks
from s3fs_meta.model import Ino


@pytest.mark.parametrize("target", [b"x", b"/" * 4095, bytes(range(1, 256)), b"../a b"])
def test_target_round_trips_byte_for_byte(db: Database, target: bytes) -> None:
    """Targets are any bytes."""
    symlinks.create(db, Ino(5), target)
    assert symlinks.target(db, Ino(5)) == target


def test_inode_without_a_target(db: Database) -> None:
    """Reading raises, deleting does not."""
    with pytest.raises(NoInodeError):
        symlinks.target(db, Ino(5))
    symlinks.delete(db, Ino(5))


def test_deleted_target_is_not_found(db: Database) -> None:
    """The target is deleted together with its inode."""
    symlinks.create(db, Ino(5), b"x")
    symlinks.delete(db, Ino(5))
    with pytest.raises(NoInodeError):
        symlinks.target(db, Ino(5))
