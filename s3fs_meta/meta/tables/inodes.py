"""Rows of ``inodes``: the attributes of files and directories.

Owns: attributes, and the counters of inodes and of file bytes.
Does not know: names, blocks, permissions; the caller decides when ctime changes.
Keeps: counters.inodes and counters.file_bytes equal the rows.

Rows are read and changed in memory (``db.inode_table``). They are written to the table when the
group commits, or before another statement on the table. A time outside ``TIME_NS_MIN`` to
``TIME_NS_MAX`` is clamped to this range, as kernels clamp times to the range of a filesystem.
"""

import stat
from typing import Final

from s3fs_meta.errors import BadRowError, NoInodeError
from s3fs_meta.limits import TIME_NS_MAX, TIME_NS_MIN
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.model import Attributes, Ino


def _time(delta: str) -> str:
    """Return an SQL expression for a time, which is NULL if the stored difference is not a number.

    Without the condition SQLite would add text and blobs as 0.
    """
    return f"CASE WHEN i.{delta} <= {TIME_NS_MAX - TIME_NS_MIN} THEN i.ctime_ns + i.{delta} END"


# SQL expressions for the fields of Attributes, in order. Other modules use them in joins.
COLUMNS: Final = (
    "i.ino, i.mode, i.nlink, i.uid, i.gid, i.size_bytes, i.mapped_blocks,"
    f" i.ctime_ns, {_time('mtime_delta_ns')}, {_time('atime_delta_ns')},"
    f" i.rdev, i.parent, i.flags, {_time('btime_delta_ns')}"
)

# COLUMNS, with NULL in place of text.
COLUMNS_WITHOUT_TEXT: Final = ", ".join(
    f"CASE typeof({column}) WHEN 'text' THEN NULL ELSE {column} END"
    for column in COLUMNS.split(", ")
)

# COLUMNS for a LEFT JOIN of dentries with inodes, because a new inode may have no row yet.
COLUMNS_OF_NAMED: Final = COLUMNS.replace("i.ino", "d.ino", 1)

_FIND: Final = f"SELECT {COLUMNS} FROM inodes i WHERE i.ino = ?"
_DELETE: Final = "DELETE FROM inodes WHERE ino = ?"
_DELETE_BARE_ORPHAN: Final = (
    f"{_DELETE} AND nlink = 0 AND size_bytes = 0 AND mapped_blocks = 0 AND flags = 0"
)

_TYPE: Final = 0o170000
_REGULAR: Final = stat.S_IFREG
SIZE_BITS: Final = 62  # every valid size has fewer bits
_MIN: Final = TIME_NS_MIN
_MAX: Final = TIME_NS_MAX
_new = tuple.__new__  # tuple.__new__ is three times as fast as calling the class


def attributes_of(row: Row) -> Attributes:
    """Return the attributes in a row with the columns of COLUMNS.

    A value near the limits of SQLite's integers would overflow after a change. The commit group
    would then be lost, with the operations of other users.

    Raises:
        BadRowError: a value is not a number, or is out of range.
    """
    # The operator "|" raises TypeError unless all values are integers. This check takes 0.25 us.
    ino, mode, nlink, uid, gid, size, mapped, ctime, mtime, atime, rdev, parent, flags, btime = row
    try:
        words, sizes, others = mode | nlink | uid | gid | rdev, size | mapped, parent | flags
        times = ctime | mtime - _MIN | atime - _MIN | btime - _MIN
    except TypeError as exc:
        raise BadRowError("the row", ino) from exc
    if words >> 32 or sizes >> SIZE_BITS or others < 0 or times < 0:
        raise BadRowError("the row", ino)
    return _new(Attributes, row)


def unreadable(ino: Ino) -> Attributes:
    """Return the attributes that a listing shows for an unreadable row: 0 except for the number."""
    return _new(Attributes, (ino, *(0 for _ in Attributes._fields[1:])))


def newest(db: Database, row: Row) -> Attributes | None:
    """Return an inode's attributes from memory if cached, else from *row* (COLUMNS_OF_NAMED).

    Returns:
        None if the inode does not exist.
    """
    kept = db.inodes.get(row[0])
    if kept is not None:
        return kept
    if row[1] is None:
        return None
    found = attributes_of(row)
    db.inodes.read(found)
    return found


def find(db: Database, ino: Ino) -> Attributes | None:
    """Return the attributes of an inode, or None if it does not exist."""
    kept = db.inodes.get(ino)
    if kept is not None:
        return kept
    row = db.one(_FIND, (ino,))
    if row is None:
        return None
    found = attributes_of(row)
    db.inodes.read(found)
    return found


def get(db: Database, ino: Ino) -> Attributes:
    """Return the attributes of an inode.

    Raises:
        NoInodeError: the inode does not exist.
    """
    found = db.inodes.get(ino) or find(db, ino)
    if found is None:
        raise NoInodeError(ino)
    return found


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
    """Create an inode with a new number; all four times are *now_ns*. Requires an open transaction.

    Args:
        parent: the directory that contains the inode's name; the caller creates the dentry.
        nlink: the link count: 1, 2 for a directory, or 0 for an inode without a name.
    """
    counters = db.counters
    ino = counters.take_ino()
    counters.inodes += 1
    if size_bytes and stat.S_ISREG(mode):
        counters.file_bytes += size_bytes
    now = now_ns
    row = (ino, mode, nlink, uid, gid, size_bytes, 0, now, now, now, rdev, parent, 0, now)
    made = _new(Attributes, row)
    db.inodes.made(made)
    return made


def replace(db: Database, attributes: Attributes) -> Attributes:
    """Write all columns of one inode. Requires an open transaction.

    Returns:
        The attributes as stored: times outside the range are clamped.

    Raises:
        NoInodeError: the inode does not exist; nothing was changed.
    """
    before = get(db, attributes.ino)
    mtime_ns, atime_ns, btime_ns = attributes.mtime_ns, attributes.atime_ns, attributes.btime_ns
    if not (_MIN <= mtime_ns <= _MAX and _MIN <= atime_ns <= _MAX and _MIN <= btime_ns <= _MAX):
        attributes = attributes._replace(
            mtime_ns=_clamped(mtime_ns), atime_ns=_clamped(atime_ns), btime_ns=_clamped(btime_ns)
        )
    db.inodes.change(attributes)
    if attributes.mode & _TYPE == _REGULAR:
        db.counters.file_bytes += attributes.size_bytes - before.size_bytes
    return attributes


def set_size_and_mtime(
    db: Database, ino: Ino, size_bytes: int, mtime_ns: int, mapped_delta: int
) -> None:
    """Record a write to a regular file: set mtime and ctime to *mtime_ns*.

    Args:
        mapped_delta: number of block map rows added, minus rows removed.

    Raises:
        NoInodeError: the inode does not exist; nothing was changed.
    """
    (_, mode, nlink, uid, gid, size_before, mapped, _, _, *rest) = get(db, ino)
    times = mtime_ns, _clamped(mtime_ns)
    row = (ino, mode, nlink, uid, gid, size_bytes, mapped + mapped_delta, *times, *rest)
    db.inodes.change(_new(Attributes, row))
    db.counters.file_bytes += size_bytes - size_before


def change_directory(
    db: Database, ino: Ino, now_ns: int, *, entries: int = 0, subdirectories: int = 0
) -> None:
    """Record names added to or removed from a directory: change its size, nlink, mtime and ctime.

    Args:
        entries: number of names added, minus names removed.
        subdirectories: number of directories added, minus directories removed.

    Raises:
        NoInodeError: the inode does not exist; nothing was changed.
    """
    (_, mode, nlink, uid, gid, size, mapped, _, _, *rest) = get(db, ino)
    counts = nlink + subdirectories, uid, gid, size + entries
    row = (ino, mode, *counts, mapped, now_ns, now_ns, *rest)
    db.inodes.change(_new(Attributes, row))


def add_links(db: Database, ino: Ino, links: int, now_ns: int) -> None:
    """Add *links*, which may be negative, to nlink, and set ctime.

    Raises:
        NoInodeError: the inode does not exist; nothing was changed.
    """
    (_, mode, nlink, uid, gid, size, mapped, _, *rest) = get(db, ino)
    row = (ino, mode, nlink + links, uid, gid, size, mapped, now_ns, *rest)
    db.inodes.change(_new(Attributes, row))


def touch(
    db: Database,
    ino: Ino,
    *,
    ctime_ns: int | None = None,
    mtime_ns: int | None = None,
    atime_ns: int | None = None,
) -> None:
    """Set the given times of an inode; times that are not given do not change.

    Raises:
        NoInodeError: the inode does not exist; nothing was changed.
    """
    before = get(db, ino)
    set_times(
        db,
        ino,
        ctime_ns=before.ctime_ns if ctime_ns is None else ctime_ns,
        mtime_ns=before.mtime_ns if mtime_ns is None else mtime_ns,
        atime_ns=before.atime_ns if atime_ns is None else atime_ns,
    )


def set_times(db: Database, ino: Ino, *, ctime_ns: int, mtime_ns: int, atime_ns: int) -> None:
    """Set ctime, mtime and atime of an inode.

    Raises:
        NoInodeError: the inode does not exist; nothing was changed.
    """
    (_, mode, nlink, uid, gid, size, mapped, _, _, _, *rest) = get(db, ino)
    times = ctime_ns, _clamped(mtime_ns), _clamped(atime_ns)
    db.inodes.change(_new(Attributes, (ino, mode, nlink, uid, gid, size, mapped, *times, *rest)))


def set_size(db: Database, ino: Ino, size_bytes: int, mapped_delta: int) -> None:
    """Record a write to a regular file without changing its times, which the kernel sets.

    Args:
        mapped_delta: number of block map rows added, minus rows removed.

    Raises:
        NoInodeError: the inode does not exist; nothing was changed.
    """
    (_, mode, nlink, uid, gid, size_before, mapped, *rest) = get(db, ino)
    row = (ino, mode, nlink, uid, gid, size_bytes, mapped + mapped_delta, *rest)
    db.inodes.change(_new(Attributes, row))
    db.counters.file_bytes += size_bytes - size_before


def set_parent(db: Database, ino: Ino, parent: Ino) -> None:
    """Set the parent directory of an inode without changing its times."""
    _amend(db, ino, parent=parent)


def add_mapped_blocks(db: Database, ino: Ino, blocks: int) -> None:
    """Add *blocks*, which may be negative, to the number of mapped blocks, but change no times."""
    before = find(db, ino)
    if before is not None:
        _amend(db, ino, mapped_blocks=before.mapped_blocks + blocks)


def set_flag(db: Database, ino: Ino, flag: int, *, on: bool) -> None:
    """Set or clear one bit of an inode's ``flags`` without changing its times."""
    before = find(db, ino)
    if before is not None:
        _amend(db, ino, flags=before.flags | flag if on else before.flags & ~flag)


def _amend(db: Database, ino: Ino, **columns: int) -> None:
    """Change columns of an inode; do nothing if it does not exist."""
    before = find(db, ino)
    if before is not None:
        db.inodes.change(before._replace(**columns))  # type: ignore[arg-type]  # all are integers


def delete(db: Database, ino: Ino) -> None:
    """Delete the row of an inode; the caller deletes names, blocks and attributes.

    Requires an open transaction.

    Raises:
        NoInodeError: the inode does not exist.
    """
    before = get(db, ino)
    # The cached row is dropped last, because a failed DELETE must change nothing.
    if db.inodes.has_row(ino) and not db.run(_DELETE, (ino,)):
        raise NoInodeError(ino)
    db.inodes.drop(ino)
    db.counters.inodes -= 1
    if before.mode & _TYPE == _REGULAR:
        db.counters.file_bytes -= before.size_bytes


def delete_bare_orphan(db: Database, ino: Ino) -> bool:
    """Delete an inode's row if it has no name, content, target or extended attributes.

    Runs at most one statement. Requires an open transaction.

    Returns:
        True if the row was deleted.
    """
    kept = db.inodes.get(ino)
    if kept is None:
        if not db.run(_DELETE_BARE_ORPHAN, (ino,)):
            return False
    elif kept.nlink or kept.size_bytes or kept.mapped_blocks or kept.flags:
        return False
    elif db.inodes.has_row(ino):
        db.run(_DELETE, (ino,))
    db.inodes.drop(ino)
    db.counters.inodes -= 1
    return True


def orphans(db: Database) -> list[Ino]:
    """Return the few inodes without a name, in ascending order."""
    return [row[0] for row in db.inodes.all("SELECT ino FROM inodes WHERE nlink = 0 ORDER BY ino")]


def highest(db: Database, below: int) -> Ino:
    """Return the highest inode number lower than *below*, or 0 without such an inode."""
    row = db.inodes.one("SELECT max(ino) FROM inodes WHERE ino < ?", (below,))
    return Ino(0 if row is None or row[0] is None else row[0])


def _clamped(time_ns: int) -> int:
    return time_ns if _MIN <= time_ns <= _MAX else max(_MIN, min(_MAX, time_ns))
