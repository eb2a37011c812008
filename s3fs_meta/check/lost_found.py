"""lost+found: the directory for inodes that have lost their name.

Owns: the directory, the names in it, and giving content without an inode a new inode number.
Does not know: why a name or an inode is lost.
Keeps: an inode gets one name, ``#`` and its number, which no other inode ever has.
"""

import stat
from collections.abc import Iterator
from typing import Final

from s3fs_meta.check.context import Examination
from s3fs_meta.errors import EntryExistsError, MetadataError
from s3fs_meta.limits import LOST_NAME_ATTEMPTS_MAX, NAME_BYTES_MAX
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Ino

NAME: Final = b"lost+found"
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
    """Return the inode of lost+found; make it if there is none. Transaction: inside a group.

    If that name is not a directory, use the first free one of ``lost+found~1`` and so on.
    """
    for name in _names(NAME):
        ino = dentries.find(exam.db, ROOT_INO, name)
        if ino is None:
            return _make(exam, name)
        found = inodes.find(exam.db, ino)
        if found is not None and stat.S_ISDIR(found.mode):
            return ino
    raise MetadataError("no name for lost+found is free", ROOT_INO)


def _make(exam: Examination, name: bytes) -> Ino:
    uid, gid = exam.owner()
    made = inodes.create(exam.db, _MODE, uid, gid, ROOT_INO, exam.now_ns, nlink=2)
    dentries.add(exam.db, ROOT_INO, name, made.ino)
    exam.touched()
    exam.report.remember(f"made directory /{name.decode()}")
    return made.ino


def place(exam: Examination, home: Ino, ino: Ino) -> None:
    """Give an inode a name in lost+found. Transaction: inside a group.

    Link counts, sizes and parents are left to the repairs that compute them.

    Args:
        exam: the run.
        home: the inode of lost+found, from ``directory``.
        ino: an inode without a name.
    """
    add_under_free_name(exam, home, b"#%d" % ino, ino)


def add_under_free_name(exam: Examination, parent: Ino, wanted: bytes, ino: Ino) -> bytes:
    """Add a dentry under the wanted name, or the first free one that resembles it; return it."""
    for name in _names(wanted):
        try:
            dentries.add(exam.db, parent, name, ino)
        except EntryExistsError:
            continue
        exam.touched()
        return name
    raise MetadataError(f"no name like {wanted!r} is free in directory {parent}", ino)


def _names(wanted: bytes) -> Iterator[bytes]:
    """Yield a name and variants of it, none longer than NAME_BYTES_MAX."""
    yield wanted[:NAME_BYTES_MAX]
    for number in range(1, LOST_NAME_ATTEMPTS_MAX):
        ending = b"~%d" % number
        yield wanted[: NAME_BYTES_MAX - len(ending)] + ending


def renumber(exam: Examination, ino: Ino) -> None:
    """Replace an impossible inode number by a new one, in every table."""
    new = _new_number(exam, ino, "everything")
    for table, column in _INODE_COLUMNS:
        exam.run(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (new, ino))


# --- content that cannot stay where it is ------------------------------------------------------
# It gets a new inode number. The inode itself is made by the repair for content without one, and
# named by the repair for inodes without a name.


def move_map(exam: Examination, ino: Ino) -> None:
    """Move the block map of an inode to a new number. Transaction: inside a group."""
    new = _new_number(exam, ino, "blocks")
    exam.run("UPDATE block_map SET ino = ? WHERE ino = ?", (new, ino))
    _follow(exam, ino, new)


def move_block(exam: Examination, ino: Ino, index: int) -> None:
    """Move one block of an inode to index 0 of a new number."""
    new = _new_number(exam, ino, f"the block at place {index}")
    exam.run(
        "UPDATE block_map SET ino = ?, block_index = 0 WHERE ino = ? AND block_index = ?",
        (new, ino, index),
    )
    exam.run(
        "UPDATE cached_blocks SET ino = ?, block_index = 0 WHERE ino = ? AND block_index = ?",
        (new, ino, index),
    )


def move_entries(exam: Examination, ino: Ino) -> None:
    """Move the entries of a directory to a new number."""
    new = _new_number(exam, ino, "directory entries")
    exam.run("UPDATE dentries SET parent = ? WHERE parent = ?", (new, ino))


def move_target(exam: Examination, ino: Ino) -> None:
    """Move the target of an inode to a new number."""
    new = _new_number(exam, ino, "the target of a symbolic link")
    exam.run("UPDATE symlinks SET ino = ? WHERE ino = ?", (new, ino))


def _follow(exam: Examination, ino: Ino, new: Ino) -> None:
    """Update the inode number of cached blocks that are not uploaded yet."""
    exam.run("UPDATE cached_blocks SET ino = ? WHERE ino = ?", (new, ino))


def _new_number(exam: Examination, ino: Ino, what: str) -> Ino:
    new = exam.db.counters.take_ino()
    exam.report.remember(f"moved {what} of inode {ino} to inode {new}")
    return new
