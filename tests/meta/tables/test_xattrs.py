"""Extended attributes, and the inode flag that saves queries for them."""

import pytest

from s3fs_meta.errors import AttributeExistsError, NoAttributeError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, inodes, xattrs
from s3fs_meta.model import ROOT_INO, Ino, InodeFlag


@pytest.fixture
def ino(db: Database) -> Ino:
    """Return the inode number of a file."""
    return inodes.create(db, 0o100644, 0, 0, ROOT_INO, 5).ino


def flagged(db: Database, ino: Ino) -> bool:
    """Return True if an inode has the flag for extended attributes."""
    return bool(inodes.get(db, ino).flags & InodeFlag.HAS_XATTRS)


@pytest.mark.parametrize("value", [b"", b"x", bytes(range(256)), b"v" * 65536])
def test_extended_attribute_is_read_back_unchanged(db: Database, ino: Ino, value: bytes) -> None:
    xattrs.set(db, ino, b"user.a", value)
    assert xattrs.get(db, ino, b"user.a") == value
    xattrs.set(db, ino, b"user.a", b"other")
    assert xattrs.items(db, ino) == [(b"user.a", b"other")]


def test_names_of_extended_attributes_are_in_byte_order(db: Database, ino: Ino) -> None:
    for name in (b"user.b", b"security.x", b"user.a\xff"):
        xattrs.set(db, ino, name, b"")
    assert xattrs.names(db, ino) == [b"security.x", b"user.a\xff", b"user.b"]
    assert xattrs.names(db, ROOT_INO) == []


def test_xattr_flag_is_set_while_an_inode_has_extended_attributes(db: Database, ino: Ino) -> None:
    """The inode flag is set by the first extended attribute and cleared with the last."""
    assert not flagged(db, ino)
    xattrs.set(db, ino, b"user.a", b"")
    xattrs.set(db, ino, b"user.b", b"")
    xattrs.remove(db, ino, b"user.a")
    assert flagged(db, ino)
    xattrs.remove(db, ino, b"user.b")
    assert not flagged(db, ino)


def test_setxattr_flags_create_and_replace_are_enforced(db: Database, ino: Ino) -> None:
    """XATTR_CREATE requires a new attribute, and XATTR_REPLACE requires an existing attribute."""
    with pytest.raises(NoAttributeError):
        xattrs.require(db, ino, b"user.a", must_be_new=False, must_exist=True)
    xattrs.require(db, ino, b"user.a", must_be_new=True, must_exist=False)
    xattrs.set(db, ino, b"user.a", b"1")
    with pytest.raises(AttributeExistsError):
        xattrs.require(db, ino, b"user.a", must_be_new=True, must_exist=False)
    xattrs.require(db, ino, b"user.a", must_be_new=False, must_exist=True)


def test_removal_of_a_missing_attribute_keeps_a_dentry_with_equal_name(
    db: Database, ino: Ino
) -> None:
    """Removing an extended attribute must not remove a dentry of the same name."""
    dentries.add(db, ROOT_INO, b"user.a", ino)
    with pytest.raises(NoAttributeError):
        xattrs.remove(db, ROOT_INO, b"user.a")
    with pytest.raises(NoAttributeError):
        xattrs.get(db, ROOT_INO, b"user.a")
    assert dentries.find(db, ROOT_INO, b"user.a") == ino


def test_all_extended_attributes_of_one_inode_are_deleted(db: Database, ino: Ino) -> None:
    xattrs.set(db, ino, b"user.a", b"1")
    xattrs.set(db, ino, b"user.b", b"1")
    xattrs.set(db, ROOT_INO, b"user.a", b"1")
    xattrs.delete_all(db, ino)
    xattrs.delete_all(db, ino)
    assert xattrs.names(db, ino) == []
    assert not flagged(db, ino)
    assert xattrs.names(db, ROOT_INO) == [b"user.a"]


def test_total_size_of_all_xattrs_is_updated_by_set_and_remove(db: Database, ino: Ino) -> None:
    """The total size includes names and values, and is computed at the first request."""
    xattrs.set(db, ino, b"user.a", b"12345")
    before = db.counters.xattr_bytes
    assert before is None

    xattrs.count_bytes(db)
    assert db.counters.xattr_bytes == len(b"user.a" + b"12345")
    xattrs.set(db, ino, b"user.a", b"1")
    xattrs.set(db, ROOT_INO, b"user.long", b"123")
    assert db.counters.xattr_bytes == len(b"user.a" + b"1" + b"user.long" + b"123")
    xattrs.remove(db, ino, b"user.a")
    assert db.counters.xattr_bytes == len(b"user.long" + b"123")
