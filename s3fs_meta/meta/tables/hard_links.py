"""Rows of ``hard_links``, and the parent of an inode: the directories that contain its names.

Owns: ``hard_links`` and ``inodes.parent``. Does not know: names; the caller updates nlink.
Keeps: if nlink >= 2, the rows of an inode add up to nlink, and ``inodes.parent`` is the directory
in one of these rows. If nlink <= 1, the inode has no rows. Directories never have rows.

The functions take the inode's attributes from *before* the link count changes.
"""

from typing import Final

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import Attributes, Ino

_SHARED: Final = 2  # minimum link count of inodes with rows in hard_links

_ADD: Final = "INSERT INTO hard_links VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET names = names + 1"
# The first directory of an inode, or no row if a given directory still contains one of its names.
# The query reads two rows, although an inode may have names in a million directories.
_FIRST_UNLESS: Final = (
    "SELECT parent FROM hard_links WHERE ino = ?1"
    " AND NOT EXISTS (SELECT 1 FROM hard_links WHERE ino = ?1 AND parent = ?2)"
    " ORDER BY parent LIMIT 1"
)


def link_added(db: Database, before: Attributes, parent: Ino) -> None:
    """Record another name of a non-directory in *parent*. Requires an open transaction."""
    if before.nlink == 0:
        inodes.set_parent(db, before.ino, parent)
        return
    if before.nlink == 1:
        db.run(_ADD, (before.ino, before.parent))
    db.run(_ADD, (before.ino, parent))


def link_removed(db: Database, before: Attributes, parent: Ino) -> None:
    """Record that a non-directory lost a name in *parent*. Requires an open transaction."""
    if before.nlink <= 1:
        return
    _drop(db, before.ino, parent)
    if before.nlink == _SHARED:
        row = db.one("SELECT parent FROM hard_links WHERE ino = ?", (before.ino,))
        db.run("DELETE FROM hard_links WHERE ino = ?", (before.ino,))
        if row is not None and row[0] != before.parent:
            inodes.set_parent(db, before.ino, row[0])
    else:
        _mend_parent(db, before, parent)


def moved(db: Database, before: Attributes, old_parent: Ino, new_parent: Ino) -> None:
    """Record that a name moved from one directory to another. Requires an open transaction."""
    if old_parent == new_parent:
        return
    if before.nlink < _SHARED or not has_rows(db, before.ino):
        inodes.set_parent(db, before.ino, new_parent)
        return
    db.run(_ADD, (before.ino, new_parent))
    _drop(db, before.ino, old_parent)
    _mend_parent(db, before, old_parent)


def parents(db: Database, ino: Ino) -> list[tuple[Ino, int]]:
    """Return the directories with names of an inode, sorted, and the number of names in each.

    The result is empty for an orphan and for a missing inode.
    """
    rows = db.all("SELECT parent, names FROM hard_links WHERE ino = ? ORDER BY parent", (ino,))
    if rows:
        return [(row[0], row[1]) for row in rows]
    found = inodes.find(db, ino)
    return [] if found is None or found.nlink == 0 else [(found.parent, 1)]


def parents_after(db: Database, ino: Ino, after: Ino, limit: int) -> list[Ino]:
    """Return the directories in ``parents`` with numbers above *after*, but at most *limit*."""
    sql = "SELECT parent FROM hard_links WHERE ino = ? AND parent > ? ORDER BY parent LIMIT ?"
    rows = db.all(sql, (ino, after, limit))
    if rows or has_rows(db, ino):
        return [row[0] for row in rows]
    found = inodes.find(db, ino)
    is_next = found is not None and found.nlink > 0 and found.parent > after
    return [found.parent] if found is not None and is_next else []


def has_rows(db: Database, ino: Ino) -> bool:
    """Return whether an inode that is not a directory has several names."""
    return db.one("SELECT 1 FROM hard_links WHERE ino = ? LIMIT 1", (ino,)) is not None


def _drop(db: Database, ino: Ino, parent: Ino) -> None:
    one_less = "UPDATE hard_links SET names = names - 1 WHERE ino = ? AND parent = ? AND names > 1"
    if not db.run(one_less, (ino, parent)):
        db.run("DELETE FROM hard_links WHERE ino = ? AND parent = ?", (ino, parent))


def _mend_parent(db: Database, before: Attributes, left: Ino) -> None:
    """Replace the recorded parent of an inode if that directory no longer contains its name."""
    if before.parent == left:
        row = db.one(_FIRST_UNLESS, (before.ino, left))
        if row is not None:
            inodes.set_parent(db, before.ino, row[0])
