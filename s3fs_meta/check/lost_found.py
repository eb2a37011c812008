"""lost+found: the directory for inodes that have lost their names.

Owns: the directory and the names in it. It also assigns new inode numbers: to content that the type
of its inode forbids, to blocks beyond the maximum file size, and in place of invalid numbers.
Does not know: the cause of a lost name or inode.
Keeps: an inode gets the name ``#NUMBER`` with its inode number, which is never reused; if that name
is in use, it gets the name ``#NUMBER~1``, ``#NUMBER~2`` and so on.
"""

import stat
from typing import Final

from s3fs_meta.check.context import Examination
from s3fs_meta.errors import EntryExistsError, MetadataError, quoted
from s3fs_meta.meta.lost_names import LOST_FOUND, alternatives
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Ino

_MODE: Final = stat.S_IFDIR | 0o700
_INODE_COLUMNS: Final = (
    ("inodes", "ino"),
    ("inodes", "parent"),
    ("dentries", "parent"),
    ("dentries", "ino"),
    ("hard_links", "ino"),
    ("hard_links", "parent"),
    ("symlinks", "ino"),
    ("xattrs", "ino"),
    ("block_map", "ino"),
    ("cached_blocks", "ino"),
)


def directory(exam: Examination) -> Ino:
    """Return the inode of lost+found, created if missing. Requires an open transaction.

    If a file has the name ``lost+found``, try ``lost+found~1``, ``lost+found~2`` and so on.
    """
    for name in alternatives(LOST_FOUND):
        ino = dentries.find(exam.db, ROOT_INO, name)
        if ino is None:
            return _make(exam, name)
        found = inodes.find(exam.db, ino)
        if found is not None and stat.S_ISDIR(found.mode):
            return ino
    raise MetadataError("every possible name for the directory lost+found is in use", ROOT_INO)


def _make(exam: Examination, name: bytes) -> Ino:
    uid, gid = exam.owner()
    made = inodes.create(exam.db, _MODE, uid, gid, ROOT_INO, exam.now_ns, nlink=2)
    dentries.add(exam.db, ROOT_INO, name, made.ino)
    exam.touched()
    exam.report.remember(f"created directory /{name.decode()}")
    return made.ino


def place(exam: Examination, home: Ino, ino: Ino) -> None:
    """Give an inode a name in lost+found. Requires an open transaction.

    Later repairs compute link counts, sizes and parents.

    Args:
        exam: the run of fsck.
        home: the inode of lost+found, from ``directory``.
        ino: an inode without a name.
    """
    add_under_free_name(exam, home, b"#%d" % ino, ino)


def add_under_free_name(exam: Examination, parent: Ino, wanted: bytes, ino: Ino) -> bytes:
    """Add a dentry, with a number after its name if the name is in use; return the final name."""
    for name in alternatives(wanted):
        try:
            dentries.add(exam.db, parent, name, ino)
        except EntryExistsError:
            continue
        exam.touched()
        return name
    raise MetadataError(f"all names like {quoted(wanted)} are in use in directory {parent}", ino)


def renumber(exam: Examination, ino: Ino) -> None:
    """Replace an invalid inode number with a new one in every table. Needs a transaction."""
    new = _new_number(exam, ino, "everything")
    for table, column in _INODE_COLUMNS:
        exam.run(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (new, ino))


# --- content that the type of its inode does not allow -----------------------------------------
# Content that the type of its inode forbids is moved to a new inode number.
# Other repairs create the new inode, and give it a name in lost+found.


def move_map(exam: Examination, ino: Ino) -> None:
    """Move the block map of an inode to a new inode number. Requires an open transaction."""
    new = _new_number(exam, ino, "blocks")
    exam.run("UPDATE block_map SET ino = ? WHERE ino = ?", (new, ino))
    exam.run("UPDATE cached_blocks SET ino = ? WHERE ino = ?", (new, ino))


def move_block(exam: Examination, ino: Ino, index: int) -> None:
    """Move one block of an inode to index 0 of a new inode. Requires an open transaction."""
    new = _new_number(exam, ino, f"the block at index {index}")
    exam.run(
        "UPDATE block_map SET ino = ?, block_index = 0 WHERE ino = ? AND block_index = ?",
        (new, ino, index),
    )
    exam.run(
        "UPDATE cached_blocks SET ino = ?, block_index = 0 WHERE ino = ? AND block_index = ?",
        (new, ino, index),
    )


def move_entries(exam: Examination, ino: Ino) -> None:
    """Move the entries of a directory to a new inode number. Requires an open transaction."""
    new = _new_number(exam, ino, "directory entries")
    exam.run("UPDATE dentries SET parent = ? WHERE parent = ?", (new, ino))


def move_target(exam: Examination, ino: Ino) -> None:
    """Move the symlink target of an inode to a new inode number. Requires an open transaction."""
    new = _new_number(exam, ino, "the target of a symbolic link")
    exam.run("UPDATE symlinks SET ino = ? WHERE ino = ?", (new, ino))


def _new_number(exam: Examination, ino: Ino, what: str) -> Ino:
    new = exam.db.counters.take_ino()
    exam.report.remember(f"moved {what} of inode {ino} to inode {new}")
    return new
