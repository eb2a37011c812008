"""Rows of ``inodes``.

Owns: attributes, and the counters of inodes and of file bytes.
Does not know: names, blocks, who may do what; ctime rules are the caller's.
Keeps: counters.inodes and counters.file_bytes equal the rows.

Times stand as differences to ctime: an update that moves ctime moves the others with it, so each
statement here says what happens to all three. A time outside of ``TIME_NS_MIN`` to
``TIME_NS_MAX`` is stored as the nearest inside, as kernels clamp times to what a filesystem holds.
"""

import stat
from typing import Final

from s3fs_meta.errors import NoInodeError
from s3fs_meta.limits import TIME_NS_MAX, TIME_NS_MIN
from s3fs_meta.meta.database import Database, Row
from s3fs_meta.model import Attributes, Ino

# The columns of Attributes, in its order; other modules join them in.
COLUMNS: Final = (
    "i.ino, i.mode, i.nlink, i.uid, i.gid, i.size_bytes, i.mapped_blocks,"
    " i.ctime_ns, i.ctime_ns + i.mtime_delta_ns, i.ctime_ns + i.atime_delta_ns,"
    " i.rdev, i.parent, i.flags"
)

_FIND: Final = f"SELECT {COLUMNS} FROM inodes i WHERE i.ino = ?"
_INSERT: Final = "INSERT INTO inodes VALUES (?, ?, ?, ?, ?, ?, 0, ?, 0, 0, ?, ?, 0)"
_REPLACE: Final = (
    "UPDATE inodes SET mode = ?, nlink = ?, uid = ?, gid = ?, size_bytes = ?, mapped_blocks = ?,"
    " ctime_ns = ?, mtime_delta_ns = ?, atime_delta_ns = ?, rdev = ?, parent = ?, flags = ?"
    " WHERE ino = ?"
)
_WRITTEN: Final = (
    "UPDATE inodes SET size_bytes = ?1, mapped_blocks = mapped_blocks + ?2,"
    " atime_delta_ns = atime_delta_ns + ctime_ns - ?3, mtime_delta_ns = 0, ctime_ns = ?3"
    " WHERE ino = ?4"
)
_SET_TIMES: Final = (
    "UPDATE inodes SET ctime_ns = ?, mtime_delta_ns = ?, atime_delta_ns = ? WHERE ino = ?"
)
_SET_SIZE: Final = (
    "UPDATE inodes SET size_bytes = ?, mapped_blocks = mapped_blocks + ? WHERE ino = ?"
)
_CHANGE_DIRECTORY: Final = (
    "UPDATE inodes SET size_bytes = size_bytes + ?1, nlink = nlink + ?2,"
    " atime_delta_ns = atime_delta_ns + ctime_ns - ?3, mtime_delta_ns = 0, ctime_ns = ?3"
    " WHERE ino = ?4"
)
_ADD_LINKS: Final = (
    "UPDATE inodes SET nlink = nlink + ?1, mtime_delta_ns = mtime_delta_ns + ctime_ns - ?2,"
    " atime_delta_ns = atime_delta_ns + ctime_ns - ?2, ctime_ns = ?2 WHERE ino = ?3"
)
_DELETE_BARE_ORPHAN: Final = (
    "DELETE FROM inodes WHERE ino = ?"
    " AND nlink = 0 AND size_bytes = 0 AND mapped_blocks = 0 AND flags = 0"
)

_new = tuple.__new__  # a third of what calling the class costs


def attributes_of(row: Row) -> Attributes:
    """Return the value of a row with the columns of COLUMNS."""
    return _new(Attributes, row)


def find(db: Database, ino: Ino) -> Attributes | None:
    """Return one inode, None if there is none."""
    row = db.one(_FIND, (ino,))
    return None if row is None else _new(Attributes, row)


def get(db: Database, ino: Ino) -> Attributes:
    """Return one inode.

    Raises:
        NoInodeError: there is none.
    """
    row = db.one(_FIND, (ino,))
    if row is None:
        raise NoInodeError(ino)
    return _new(Attributes, row)


def create(  # noqa: PLR0913 - the columns of a new row
    db: Database,
    mode: int,
    uid: int,
    gid: int,
    parent: Ino,
    now_ns: int,
    *,
    rdev: int = 0,
    nlink: int = 1,
    size_bytes: int = 0,
) -> Attributes:
    """Make an inode with a new number; all three times are *now_ns*. Transaction: inside a group.

    Args:
        parent: the directory that will name it; the dentry is the caller's.
        nlink: 1, for directories 2.
    """
    counters = db.counters
    ino = counters.take_ino()
    db.run(_INSERT, (ino, mode, nlink, uid, gid, size_bytes, now_ns, rdev, parent))
    counters.inodes += 1
    if size_bytes and stat.S_ISREG(mode):
        counters.file_bytes += size_bytes
    row = (ino, mode, nlink, uid, gid, size_bytes, 0, now_ns, now_ns, now_ns, rdev, parent, 0)
    return _new(Attributes, row)


def replace(db: Database, attributes: Attributes, *, size_before: int | None = None) -> None:
    """Write all columns of one inode. Transaction: inside a group.

    Args:
        attributes: the new ones.
        size_before: the present size, if the caller just read it; saves a query.

    Raises:
        NoInodeError: there is none; nothing was changed.
    """
    if size_before is None:
        size_before = _size_before(db, attributes)
    ctime_ns = attributes.ctime_ns
    changed = db.run(
        _REPLACE,
        (
            attributes.mode,
            attributes.nlink,
            attributes.uid,
            attributes.gid,
            attributes.size_bytes,
            attributes.mapped_blocks,
            ctime_ns,
            _clamped(attributes.mtime_ns) - ctime_ns,
            _clamped(attributes.atime_ns) - ctime_ns,
            attributes.rdev,
            attributes.parent,
            attributes.flags,
            attributes.ino,
        ),
    )
    if not changed:
        raise NoInodeError(attributes.ino)
    if stat.S_ISREG(attributes.mode):
        db.counters.file_bytes += attributes.size_bytes - size_before


def set_size_and_mtime(
    db: Database,
    ino: Ino,
    size_bytes: int,
    mtime_ns: int,
    mapped_delta: int,
    *,
    size_before: int | None = None,
) -> None:
    """Note a write to a regular file: mtime and ctime become *mtime_ns*, atime stays.

    Args:
        mapped_delta: block map rows added, less those removed.
        size_before: the present size, if the caller just read it; saves a query.

    Raises:
        NoInodeError: there is none; nothing was changed.
    """
    if size_before is None:
        size_before = get(db, ino).size_bytes
    if not db.run(_WRITTEN, (size_bytes, mapped_delta, mtime_ns, ino)):
        raise NoInodeError(ino)
    db.counters.file_bytes += size_bytes - size_before


def change_directory(
    db: Database, ino: Ino, now_ns: int, *, entries: int = 0, subdirectories: int = 0
) -> None:
    """Note that names came or went in a directory: size, nlink, mtime and ctime.

    Args:
        entries: names added, less those removed.
        subdirectories: directories among them, counted the same way.

    Raises:
        NoInodeError: there is none; nothing was changed.
    """
    if not db.run(_CHANGE_DIRECTORY, (entries, subdirectories, now_ns, ino)):
        raise NoInodeError(ino)


def add_links(db: Database, ino: Ino, links: int, now_ns: int) -> None:
    """Change nlink by *links* (may be negative) and ctime; the other times stay.

    Raises:
        NoInodeError: there is none; nothing was changed.
    """
    if not db.run(_ADD_LINKS, (links, now_ns, ino)):
        raise NoInodeError(ino)


def touch(
    db: Database,
    ino: Ino,
    *,
    ctime_ns: int | None = None,
    mtime_ns: int | None = None,
    atime_ns: int | None = None,
) -> None:
    """Set the given times; the others stay.

    Raises:
        NoInodeError: there is none; nothing was changed.
    """
    if atime_ns is not None and ctime_ns is None and mtime_ns is None:
        changed = db.run(
            "UPDATE inodes SET atime_delta_ns = ? - ctime_ns WHERE ino = ?",
            (_clamped(atime_ns), ino),
        )
        if not changed:
            raise NoInodeError(ino)
        return
    before = get(db, ino)
    replace(
        db,
        before._replace(
            ctime_ns=before.ctime_ns if ctime_ns is None else ctime_ns,
            mtime_ns=before.mtime_ns if mtime_ns is None else mtime_ns,
            atime_ns=before.atime_ns if atime_ns is None else atime_ns,
        ),
    )


def set_times(db: Database, ino: Ino, *, ctime_ns: int, mtime_ns: int, atime_ns: int) -> None:
    """Set all three times, without reading any.

    Raises:
        NoInodeError: there is none; nothing was changed.
    """
    deltas = _clamped(mtime_ns) - ctime_ns, _clamped(atime_ns) - ctime_ns
    if not db.run(_SET_TIMES, (ctime_ns, *deltas, ino)):
        raise NoInodeError(ino)


def set_size(
    db: Database, ino: Ino, size_bytes: int, mapped_delta: int, *, size_before: int
) -> None:
    """Note a write to a regular file whose times somebody else keeps; they stay.

    Args:
        mapped_delta: block map rows added, less those removed.
        size_before: the present size.

    Raises:
        NoInodeError: there is none; nothing was changed.
    """
    if not db.run(_SET_SIZE, (size_bytes, mapped_delta, ino)):
        raise NoInodeError(ino)
    db.counters.file_bytes += size_bytes - size_before


def set_parent(db: Database, ino: Ino, parent: Ino) -> None:
    """Note which directory names an inode; no time changes."""
    db.run("UPDATE inodes SET parent = ? WHERE ino = ?", (parent, ino))


def add_mapped_blocks(db: Database, ino: Ino, blocks: int) -> None:
    """Change the number of mapped blocks; no time changes."""
    db.run("UPDATE inodes SET mapped_blocks = mapped_blocks + ? WHERE ino = ?", (blocks, ino))


def set_flag(db: Database, ino: Ino, flag: int, *, on: bool) -> None:
    """Set or clear one bit of ``flags``; no time changes."""
    sql = "flags | ?1" if on else "flags & ~?1"
    db.run(f"UPDATE inodes SET flags = {sql} WHERE ino = ?2", (int(flag), ino))


def delete(db: Database, ino: Ino, *, before: Attributes | None = None) -> None:
    """Remove the row; names, blocks, attributes are the caller's. Transaction: inside a group.

    Args:
        ino: which.
        before: its present attributes, if the caller just read them; saves a query.

    Raises:
        NoInodeError: there is none.
    """
    if before is None:
        before = get(db, ino)
    if not db.run("DELETE FROM inodes WHERE ino = ?", (ino,)):
        raise NoInodeError(ino)
    db.counters.inodes -= 1
    if stat.S_ISREG(before.mode):
        db.counters.file_bytes -= before.size_bytes


def delete_bare_orphan(db: Database, ino: Ino) -> bool:
    """Remove the row of an inode without name, content, target and attributes, if it is one.

    One statement instead of two for most of what is ever removed while it is empty.

    Returns:
        Whether it was, and is gone. Transaction: inside a group.
    """
    if not db.run(_DELETE_BARE_ORPHAN, (ino,)):
        return False
    db.counters.inodes -= 1
    return True


def orphans(db: Database) -> list[Ino]:
    """Return inodes without a name, ascending; they are few."""
    return [row[0] for row in db.all("SELECT ino FROM inodes WHERE nlink = 0 ORDER BY ino")]


def _size_before(db: Database, attributes: Attributes) -> int:
    if not stat.S_ISREG(attributes.mode):
        return 0
    row = db.one("SELECT size_bytes FROM inodes WHERE ino = ?", (attributes.ino,))
    if row is None:
        raise NoInodeError(attributes.ino)
    return int(row[0])


def _clamped(time_ns: int) -> int:
    return max(TIME_NS_MIN, min(TIME_NS_MAX, time_ns))
