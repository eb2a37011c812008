"""Rows of ``symlinks``: the targets of symbolic links, which are bytes without NUL."""

from s3fs_meta.errors import NoInodeError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import row_types
from s3fs_meta.model import Ino


def create(db: Database, ino: Ino, target: bytes) -> None:
    """Set the target of a new symbolic link. Requires an open transaction."""
    db.run("INSERT INTO symlinks VALUES (?, ?)", (ino, target))


def target(db: Database, ino: Ino) -> bytes:
    """Return the target of a symbolic link.

    Raises:
        NoInodeError: the inode has no target.
    """
    row = db.one("SELECT target FROM symlinks WHERE ino = ?", (ino,))
    if row is None:
        raise NoInodeError(ino)
    return row_types.blob(row[0], "the target", ino)


def delete(db: Database, ino: Ino) -> None:
    """Remove the target of an inode, if it has one. Requires an open transaction."""
    db.run("DELETE FROM symlinks WHERE ino = ?", (ino,))
