"""Extended attributes, and the inode flag that saves a query."""

import pytest

from s3fs_meta.errors import AttributeExistsError, NoAttributeError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, inodes, xattrs
from s3fs_meta.model import ROOT_INO, Ino, InodeFlag


@pytest.fixture
def ino(db: Database) -> Ino:
    """Return a file."""
    return inodes.create(db, 0o100644, 0, 0, ROOT_INO, 5).ino


def flagged(db: Database, ino: Ino) -> bool:
    """Return whether the inode says that it has attributes."""
    return bool(inodes.get(db, ino).flags & InodeFlag.HAS_XATTRS)


@pytest.mark.parametrize("value", [b"", b"x", bytes(range(256)), b"v" * 65536])
def test_value_round_trips(db: Database, ino: Ino, value: bytes) -> None:
    """A value of any allowed size reads back, also an empty one."""
    xattrs.set(db, ino, b"user.a", value)
    assert xattrs.get(db, ino, b"user.a") == value
    xattrs.set(db, ino, b"user.a", b"other")
    assert xattrs.items(db, ino) == [(b"user.a", b"other")]


def test_names_are_ascending(db: Database, ino: Ino) -> None:
    """Names are returned in byte order."""
    for name in (b"user.b", b"security.x", b"user.a\xff"):
        xattrs.set(db, ino, name, b"")
    assert xattrs.names(db, ino) == [b"security.x", b"user.a\xff", b"user.b"]
    assert xattrs.names(db, ROOT_INO) == []


def test_flag_is_set_while_there_are_attributes(db: Database, ino: Ino) -> None:
    """Set with the first attribute, cleared with the last."""
    assert not flagged(db, ino)
    xattrs.set(db, ino, b"user.a", b"")
    xattrs.set(db, ino, b"user.b", b"")
    xattrs.remove(db, ino, b"user.a")
    assert flagged(db, ino)
    xattrs.remove(db, ino, b"user.b")
    assert not flagged(db, ino)


def test_setxattr_conditions_are_enforced(db: Database, ino: Ino) -> None:
    """XATTR_CREATE and XATTR_REPLACE refuse and change nothing."""
    with pytest.raises(NoAttributeError):
        xattrs.set(db, ino, b"user.a", b"1", must_exist=True)
    assert not flagged(db, ino)
    xattrs.set(db, ino, b"user.a", b"1", must_be_new=True)
    with pytest.raises(AttributeExistsError):
        xattrs.set(db, ino, b"user.a", b"2", must_be_new=True)
    assert xattrs.get(db, ino, b"user.a") == b"1"
    xattrs.set(db, ino, b"user.a", b"3", must_exist=True)
    assert xattrs.get(db, ino, b"user.a") == b"3"


def test_remove_of_missing_xattr_keeps_file_of_that_name(db: Database, ino: Ino) -> None:
    """The error is ENODATA, and a directory entry of that name stays."""
    dentries.add(db, ROOT_INO, b"user.a", ino)
    with pytest.raises(NoAttributeError):
        xattrs.remove(db, ROOT_INO, b"user.a")
    with pytest.raises(NoAttributeError):
        xattrs.get(db, ROOT_INO, b"user.a")
    assert dentries.find(db, ROOT_INO, b"user.a") == ino


def test_attributes_are_deleted_with_the_inode(db: Database, ino: Ino) -> None:
    """Attributes of other inodes stay."""
    xattrs.set(db, ino, b"user.a", b"1")
    xattrs.set(db, ino, b"user.b", b"1")
    xattrs.set(db, ROOT_INO, b"user.a", b"1")
    xattrs.delete_all(db, ino)
    xattrs.delete_all(db, ino)
    assert xattrs.names(db, ino) == []
    assert not flagged(db, ino)
    assert xattrs.names(db, ROOT_INO) == [b"user.a"]
