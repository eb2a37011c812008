"""Rows of ``xattrs``: extended attributes, including POSIX ACLs.

Owns: names and values, and the inode's flag HAS_XATTRS, which saves callers a query.
Does not know: namespaces, permissions, size limits, ctime.
Keeps: the flag is set if and only if the inode has rows; ``Counters.xattr_bytes``, once computed,
is the sum over all rows.
"""

from typing import Final

from s3fs_meta.errors import AttributeExistsError, NoAttributeError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import inodes, row_types
from s3fs_meta.model import Ino, InodeFlag

_SET: Final = "INSERT INTO xattrs VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"


def count_bytes(db: Database) -> None:
    """Compute the total bytes of all extended attributes; later changes update the total."""
    db.counters.xattr_bytes = sum_bytes(db, "?", 1)


def add_bytes(db: Database, added_bytes: int) -> None:
    """Add *added_bytes*, which may be negative, to the total size. Requires an open transaction."""
    if db.counters.xattr_bytes is not None:
        db.counters.xattr_bytes += added_bytes


def sum_bytes(db: Database, which: str, value: int | str) -> int:
    """Return the total size of the names and values in the rows that satisfy a condition.

    Args:
        db: the database.
        which: an SQL condition with one parameter.
        value: the value of the parameter.
    """
    row = db.one(
        f"SELECT coalesce(sum(length(name) + length(value)), 0) FROM xattrs WHERE {which}", (value,)
    )
    assert row is not None, "an aggregate query returns one row"
    return int(row[0])


def size_bytes(db: Database, ino: Ino, name: bytes) -> int:
    """Return the size of one attribute's name and value, or 0 if the inode does not have it."""
    row = db.one("SELECT length(value) FROM xattrs WHERE ino = ? AND name = ?", (ino, name))
    return 0 if row is None else len(name) + int(row[0])


def find(db: Database, ino: Ino, name: bytes) -> bytes | None:
    """Return the value of one extended attribute, or None if the inode does not have it."""
    row = db.one("SELECT value FROM xattrs WHERE ino = ? AND name = ?", (ino, name))
    return None if row is None else row_types.blob(row[0], "an attribute", ino)


def get(db: Database, ino: Ino, name: bytes) -> bytes:
    """Return the value of one extended attribute.

    Raises:
        NoAttributeError: the inode does not have the attribute.
    """
    value = find(db, ino, name)
    if value is None:
        raise NoAttributeError(ino, name)
    return value


def require(db: Database, ino: Ino, name: bytes, *, must_be_new: bool, must_exist: bool) -> None:
    """Check the flags of setxattr(2), before space is required, as ext4 does.

    Raises:
        AttributeExistsError: *must_be_new* is set (XATTR_CREATE), but the attribute exists.
        NoAttributeError: *must_exist* is set (XATTR_REPLACE), but the attribute is missing.
    """
    if must_be_new or must_exist:
        exists = find(db, ino, name) is not None
        if must_be_new and exists:
            raise AttributeExistsError(ino, name)
        if must_exist and not exists:
            raise NoAttributeError(ino, name)


def set(db: Database, ino: Ino, name: bytes, value: bytes) -> None:  # noqa: A001 - see setxattr(2)
    """Set one extended attribute of an inode. Requires an open transaction."""
    if db.counters.xattr_bytes is not None:
        add_bytes(db, len(name) + len(value) - size_bytes(db, ino, name))
    db.run(_SET, (ino, name, value))
    inodes.set_flag(db, ino, InodeFlag.HAS_XATTRS, on=True)


def remove(db: Database, ino: Ino, name: bytes) -> None:
    """Remove one extended attribute of an inode. Requires an open transaction.

    Raises:
        NoAttributeError: the inode does not have the attribute; nothing was changed.
    """
    gone_bytes = 0 if db.counters.xattr_bytes is None else size_bytes(db, ino, name)
    if not db.run("DELETE FROM xattrs WHERE ino = ? AND name = ?", (ino, name)):
        raise NoAttributeError(ino, name)
    add_bytes(db, -gone_bytes)
    if db.one("SELECT 1 FROM xattrs WHERE ino = ? LIMIT 1", (ino,)) is None:
        inodes.set_flag(db, ino, InodeFlag.HAS_XATTRS, on=False)


def names(db: Database, ino: Ino) -> list[bytes]:
    """Return the sorted names of an inode's extended attributes."""
    rows = db.all("SELECT name FROM xattrs WHERE ino = ? ORDER BY name", (ino,))
    return [row_types.blob(row[0], "an attribute", ino) for row in rows]


def items(db: Database, ino: Ino) -> list[tuple[bytes, bytes]]:
    """Return the names and values of an inode's extended attributes, sorted by name."""
    rows = db.all("SELECT name, value FROM xattrs WHERE ino = ? ORDER BY name", (ino,))
    return [
        (
            row_types.blob(row[0], "an attribute", ino),
            row_types.blob(row[1], "an attribute", ino),
        )
        for row in rows
    ]


def delete_all(db: Database, ino: Ino) -> None:
    """Remove all extended attributes of an inode, if any. Requires an open transaction."""
    if db.counters.xattr_bytes is not None:
        add_bytes(db, -sum_bytes(db, "ino = ?", ino))
    if db.run("DELETE FROM xattrs WHERE ino = ?", (ino,)):
        inodes.set_flag(db, ino, InodeFlag.HAS_XATTRS, on=False)
