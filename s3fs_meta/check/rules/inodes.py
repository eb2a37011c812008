"""Invariants of inodes: root, numbers, types, times, rows that need an inode, removed trees.

Repairs keep all content. Content without an inode, or of an inode whose type forbids such content,
is put into a new inode in lost+found.
"""

import stat
from typing import Final

from s3fs_meta.check import lost_found, sums
from s3fs_meta.check.context import ID_MAX, Examination, Invariant
from s3fs_meta.check.observations import Need
from s3fs_meta.check.report import Severity
from s3fs_meta.check.sums import EVERY_DIRECTORY, EVERY_INODE, IS_DIRECTORY, TYPE_OF_MODE
from s3fs_meta.limits import FILE_BYTES_MAX, LINKS_MAX, PAST_INO_MIN, TIME_NS_MAX, TIME_NS_MIN
from s3fs_meta.model import FILE_TYPES, ROOT_INO, InodeFlag

# A bit mask of the file types. Testing a bit takes half the time of the operator IN.
# A mode that is not a number matches no bit of the mask.
_TYPE_SET: Final = sum(1 << (kind >> 12) for kind in FILE_TYPES)
_TYPE_IS_KNOWN: Final = f"((1 << (i.mode >> 12)) & {_TYPE_SET})"
_TYPE_BITS: Final = stat.S_IFMT(0xFFFF)
_MODE_MAX: Final = _TYPE_BITS | 0o7777
_NUMBER_MAX: Final = (1 << 63) - 1
# Larger numbers are reserved for inodes of points in time (fs/past), which have no rows.
_INO_RANGE: Final = f"BETWEEN 1 AND {PAST_INO_MIN - 1}"

_HAS_TARGET: Final = "EXISTS (SELECT 1 FROM symlinks AS s WHERE s.ino = i.ino)"
_HAS_XATTRS: Final = "EXISTS (SELECT 1 FROM xattrs AS x WHERE x.ino = i.ino)"
_HAS_MAP: Final = "EXISTS (SELECT 1 FROM block_map AS b WHERE b.ino = i.ino)"
_HAS_ENTRIES: Final = "EXISTS (SELECT 1 FROM dentries AS e WHERE e.parent = i.ino)"

_TARGETS: Final = "symlinks AS s LEFT JOIN inodes AS i ON i.ino = s.ino"
_XATTRS: Final = "xattrs AS x LEFT JOIN inodes AS i ON i.ino = x.ino"
_MAPPED: Final = "temp.check_mapped AS m LEFT JOIN inodes AS i ON i.ino = m.ino"
_REMOVED: Final = InodeFlag.REMOVED

# Selects tops (the roots of removed trees), as opposed to directories that have lost their names.
IS_TOP: Final = f"(i.nlink = 0 AND i.flags & {_REMOVED} AND {IS_DIRECTORY})"


# --- the root directory ------------------------------------------------------------------------


def _make_root(exam: Examination, _invariant: Invariant) -> None:
    """Make the root inode a directory again, so that its names and attributes stay valid."""
    mode = stat.S_IFDIR | 0o755
    exam.run(
        "INSERT OR IGNORE INTO inodes VALUES (?1, ?2, 2, 0, 0, 0, 0, ?3, 0, 0, 0, ?1, 0, 0)",
        (ROOT_INO, mode, exam.now_ns),
    )
    exam.run(
        "UPDATE inodes SET mode = CASE WHEN (mode & ?2) = ?3 THEN mode ELSE ?4 END,"
        " nlink = max(nlink, 2), parent = ?1 WHERE ino = ?1",
        (ROOT_INO, _TYPE_BITS, stat.S_IFDIR, mode),
    )


# --- valid ranges of numbers -------------------------------------------------------------------

# BETWEEN also rejects text and blobs, because SQLite sorts text and blobs after all numbers.
_OUT_OF_RANGE: Final = " OR ".join(
    (
        f"i.ino NOT {_INO_RANGE}",
        f"i.nlink NOT BETWEEN 0 AND {LINKS_MAX}",
        f"i.uid NOT BETWEEN 0 AND {ID_MAX}",
        f"i.gid NOT BETWEEN 0 AND {ID_MAX}",
        f"i.size_bytes NOT BETWEEN 0 AND {FILE_BYTES_MAX}",
        f"i.mapped_blocks NOT BETWEEN 0 AND {FILE_BYTES_MAX}",
        f"i.rdev NOT BETWEEN 0 AND {_NUMBER_MAX}",
        f"i.parent NOT BETWEEN 0 AND {_NUMBER_MAX}",
    )
)


def _clamp(exam: Examination, invariant: Invariant) -> None:
    """Clamp numbers to their ranges; later repairs recompute the derived numbers."""
    _renumber(exam, invariant, "i.ino")
    uid, gid = exam.owner()
    size = f"CASE WHEN size_bytes BETWEEN 0 AND {FILE_BYTES_MAX} THEN CAST(size_bytes AS INTEGER)"
    exam.run(
        "UPDATE inodes SET nlink = max(0, min(CAST(nlink AS INTEGER), ?1)),"
        f" uid = CASE WHEN uid BETWEEN 0 AND {ID_MAX} THEN CAST(uid AS INTEGER) ELSE ?2 END,"
        f" gid = CASE WHEN gid BETWEEN 0 AND {ID_MAX} THEN CAST(gid AS INTEGER) ELSE ?3 END,"
        f" size_bytes = {size} ELSE 0 END,"
        " mapped_blocks = max(0, min(CAST(mapped_blocks AS INTEGER), ?1)),"
        f" rdev = CASE WHEN rdev BETWEEN 0 AND {_NUMBER_MAX} THEN CAST(rdev AS INTEGER) ELSE 0 END,"
        f" parent = CASE WHEN parent BETWEEN 0 AND {_NUMBER_MAX} THEN CAST(parent AS INTEGER)"
        " ELSE 0 END, mode = CAST(mode AS INTEGER), flags = CAST(flags AS INTEGER)"
        f" WHERE ino IN ({invariant.select('i.ino')})",
        (LINKS_MAX, uid, gid),
    )


def _renumber(exam: Examination, invariant: Invariant, column: str) -> None:
    """Replace inode numbers that are out of range with new numbers."""
    for (ino,) in exam.collected(f"{invariant.select(column)} AND {column} NOT {_INO_RANGE}"):
        lost_found.renumber(exam, ino)


# --- types of inodes ---------------------------------------------------------------------------


def _retype(exam: Examination, invariant: Invariant) -> None:
    """Set the type of inodes according to their content; move content that the type forbids."""
    damaged = invariant.select("i.ino")
    contents = f"{_HAS_ENTRIES}, {_HAS_MAP}, {_HAS_TARGET}"
    for ino, old, entries, mapped, target in exam.collected(
        f"SELECT i.ino, i.mode, {contents} FROM inodes AS i WHERE i.ino IN ({damaged})"
    ):
        mode = old & _MODE_MAX if isinstance(old, int) else 0o600
        kind = _fitting_type(stat.S_IFMT(mode), entries, mapped, target)
        exam.run("UPDATE inodes SET mode = ? WHERE ino = ?", (kind | stat.S_IMODE(mode), ino))
        if kind != stat.S_IFREG and mapped:
            lost_found.move_map(exam, ino)
        if kind != stat.S_IFDIR and entries:
            lost_found.move_entries(exam, ino)
        if kind != stat.S_IFLNK and target:
            lost_found.move_target(exam, ino)


def _fitting_type(kind: int, entries: int, mapped: int, target: int) -> int:
    """Return the file type for an inode, according to its content.

    Args:
        kind: the current type.
        entries, mapped, target: whether the inode has dentries, blocks, and a symlink target.
    """
    shown = [
        shown_kind
        for shown_kind, present in (
            (stat.S_IFDIR, entries),
            (stat.S_IFREG, mapped),
            (stat.S_IFLNK, target),
        )
        if present
    ]
    if kind in shown or (kind in FILE_TYPES and not shown):
        return kind
    return shown[0] if shown else stat.S_IFREG


def _reset_times(exam: Examination, invariant: Invariant) -> None:
    """Set mtime, atime and birth time to ctime; set an invalid or future ctime to the present."""
    exam.run(
        "UPDATE inodes AS i SET ctime_ns = CASE WHEN i.ctime_ns BETWEEN 0 AND ?1 THEN"
        " CAST(i.ctime_ns AS INTEGER) ELSE ?1 END,"
        " mtime_delta_ns = 0, atime_delta_ns = 0, btime_delta_ns = 0"
        f" WHERE i.ino IN ({invariant.select('i.ino')})",
        (exam.now_ns,),
    )


# --- rows of missing inodes --------------------------------------------------------------------


def _make_directories(exam: Examination, invariant: Invariant) -> None:
    _make_inodes(exam, stat.S_IFDIR | 0o700, 2, "0", invariant, "d.ino")


def _make_files(exam: Examination, invariant: Invariant) -> None:
    """Create a file for each block map without an inode; a later repair sets its size."""
    _make_inodes(exam, stat.S_IFREG | 0o600, 1, "0", invariant, "m.ino")


def _make_symlinks(exam: Examination, invariant: Invariant) -> None:
    _make_inodes(exam, stat.S_IFLNK | 0o777, 1, "length(s.target)", invariant, "s.ino")


def _make_inodes(
    exam: Examination, mode: int, nlink: int, size: str, invariant: Invariant, ino: str
) -> None:
    """Create missing inodes for rows; the repair of I26 puts unnamed inodes into lost+found."""
    _renumber(exam, invariant, ino)
    exam.derive()
    uid, gid = exam.owner()
    columns = f"{ino}, ?1, ?2, ?3, ?4, {size}, 0, ?5, 0, 0, 0, 0, 0, 0"
    exam.run(
        f"INSERT OR IGNORE INTO inodes {invariant.select(columns)}",
        (mode, nlink, uid, gid, exam.now_ns),
    )


def _mend_xattrs(exam: Examination, invariant: Invariant) -> None:
    """Create an empty file if the missing inode has a name; otherwise delete its attributes."""
    uid, gid = exam.owner()
    exam.run(
        "INSERT OR IGNORE INTO inodes SELECT n.ino, ?1, n.names, ?2, ?3, 0, 0, ?4, 0, 0, 0, n.low,"
        f" 0, 0 FROM temp.check_names AS n WHERE n.ino IN ({invariant.select('x.ino')})",
        (stat.S_IFREG | 0o600, uid, gid, exam.now_ns),
    )
    exam.run(f"DELETE FROM xattrs WHERE ino IN ({invariant.select('x.ino')})")


# --- orphaned inodes ---------------------------------------------------------------------------


def _purge_orphans(exam: Examination, invariant: Invariant) -> None:
    """Remove files that were unlinked while they were open; later repairs free the blocks."""
    orphans = f"(SELECT i.ino FROM inodes AS i WHERE i.ino IN ({invariant.select('i.ino')}))"
    for table in ("block_map", "symlinks", "xattrs", "hard_links"):
        exam.run(f"DELETE FROM {table} WHERE ino IN {orphans}")
    exam.run(f"DELETE FROM inodes WHERE ino IN {orphans}")


# --- flags of inodes ---------------------------------------------------------------------------

# Flags that are kept. The other flags, HAS_XATTRS and REMOVED, are derived from rows.
_WISHES: Final = int(InodeFlag.PROTECTED | InodeFlag.HOLDS_LOCKED)
_RIGHT_FLAGS: Final = (
    f"(CASE WHEN {_HAS_XATTRS} THEN {InodeFlag.HAS_XATTRS:d} ELSE 0 END"
    f" | CASE WHEN {IS_TOP} THEN {InodeFlag.REMOVED:d} ELSE 0 END | (i.flags & {_WISHES}))"
)


def _set_flags(exam: Examination, invariant: Invariant) -> None:
    """Correct the flags HAS_XATTRS and REMOVED; clear unknown bits."""
    exam.run(
        f"UPDATE inodes AS i SET flags = {_RIGHT_FLAGS}"
        f" WHERE i.ino IN ({invariant.select('i.ino')})"
    )


INODES: Final = (
    Invariant(
        7,
        "the root is a directory and its own parent",
        source=f"(SELECT 1) LEFT JOIN inodes AS i ON i.ino = {ROOT_INO}",
        damaged=f"i.ino IS NULL OR {TYPE_OF_MODE} <> {stat.S_IFDIR} OR i.nlink < 2"
        f" OR i.parent <> {ROOT_INO}",
        columns=f"{ROOT_INO}, i.mode, i.nlink, i.parent",
        text="the root directory has mode {1}, nlink {2}, parent {3}",
        repair=_make_root,
    ),
    Invariant(
        8,
        "the numbers of an inode are in range",
        source=EVERY_INODE,
        damaged=_OUT_OF_RANGE,
        columns="i.ino, i.nlink, i.uid, i.gid, i.size_bytes, i.mapped_blocks, i.rdev, i.parent",
        text="inode {0} has a number out of range: nlink {1}, uid {2}, gid {3}, size {4},"
        " {5} blocks, rdev {6}, parent {7}",
        repair=_clamp,
    ),
    Invariant(
        9,
        "a mode consists of a known file type and permission bits",
        source=EVERY_INODE,
        damaged=f"NOT {_TYPE_IS_KNOWN} OR i.mode > {_MODE_MAX}",
        columns="i.ino, i.mode",
        text="inode {0} has an invalid mode: {1}",
        repair=_retype,
    ),
    Invariant(
        10,
        "times are in range, and ctime is after 1970",
        source=EVERY_INODE,
        damaged=f"i.ctime_ns NOT BETWEEN 0 AND {TIME_NS_MAX}"
        f" OR i.ctime_ns + i.mtime_delta_ns NOT BETWEEN {TIME_NS_MIN} AND {TIME_NS_MAX}"
        f" OR i.ctime_ns + i.atime_delta_ns NOT BETWEEN {TIME_NS_MIN} AND {TIME_NS_MAX}"
        f" OR i.ctime_ns + i.btime_delta_ns NOT BETWEEN {TIME_NS_MIN} AND {TIME_NS_MAX}",
        columns="i.ino, i.ctime_ns, i.mtime_delta_ns, i.atime_delta_ns, i.btime_delta_ns",
        text="inode {0} has times out of range: ctime {1}, and relative to it mtime {2}, atime {3},"
        " birth time {4} (ns)",
        repair=_reset_times,
    ),
    Invariant(
        11,
        "only directories have entries",
        source=EVERY_DIRECTORY,
        damaged=f"d.kind = {sums.NO_DIRECTORY} AND {_TYPE_IS_KNOWN}",
        columns="d.ino, d.entries, i.mode",
        text="inode {0} of mode {2} is not a directory, but has {1} entries",
        repair=_retype,
    ),
    Invariant(
        12,
        "only regular files have blocks",
        source=EVERY_INODE,
        damaged=f"m.ino IS NOT NULL AND {_TYPE_IS_KNOWN} AND {TYPE_OF_MODE} <> {stat.S_IFREG}",
        columns="i.ino, m.blocks, i.mode",
        text="inode {0} of mode {2} is not a regular file, but has {1} blocks",
        repair=_retype,
    ),
    Invariant(
        13,
        "only symbolic links have targets",
        source=_TARGETS,
        damaged=f"{_TYPE_IS_KNOWN} AND {TYPE_OF_MODE} <> {stat.S_IFLNK}",
        columns="i.ino, i.mode, s.target",
        text="inode {0} of mode {1} is not a symbolic link, but has the target {2!r}",
        repair=_retype,
    ),
    Invariant(
        14,
        "the directory of every dentry exists",
        source=EVERY_DIRECTORY,
        damaged=f"d.kind = {sums.MISSING}",
        columns="d.ino, d.entries",
        text="directory {0} with {1} entries has no inode",
        repair=_make_directories,
    ),
    Invariant(
        15,
        "blocks belong to inodes that exist",
        source=_MAPPED,
        damaged="i.ino IS NULL",
        columns="m.ino, m.blocks",
        text="the file {0} with {1} blocks has no inode",
        repair=_make_files,
    ),
    Invariant(
        16,
        "symlink targets belong to inodes that exist",
        source=_TARGETS,
        damaged="i.ino IS NULL",
        columns="s.ino, s.target",
        text="symbolic link {0} to {1!r} has no inode",
        repair=_make_symlinks,
    ),
    Invariant(
        17,
        "extended attributes belong to inodes that exist",
        source=_XATTRS,
        damaged="i.ino IS NULL",
        columns="x.ino, x.name",
        text="the extended attribute {1!r} belongs to inode {0}, which does not exist",
        repair=_mend_xattrs,
    ),
)

# Orphans are checked after names are repaired, because such a repair may give an inode a name.
ORPHANS: Final = (
    Invariant(
        28,
        "an unlinked inode exists only while a process has it open",
        source=EVERY_INODE,
        damaged=f"i.nlink = 0 AND n.ino IS NULL AND i.ino <> {ROOT_INO} AND NOT {_HAS_ENTRIES}"
        f" AND NOT {IS_TOP}",
        columns="i.ino, i.size_bytes",
        text="inode {0} of {1} bytes was unlinked while open",
        repair=_purge_orphans,
        safe=True,
        severity=Severity.LEFTOVER,
        needs=Need.UNMOUNTED,
    ),
)

FLAGS: Final = (
    Invariant(
        58,
        "an inode with extended attributes has the flag for them, and no inode has a wrong or"
        " unknown flag",
        source=EVERY_INODE,
        damaged=f"i.flags <> {_RIGHT_FLAGS}",
        columns="i.ino, i.flags",
        text="inode {0} has wrong flags: {1}",
        repair=_set_flags,
        safe=True,
    ),
)


# --- removed trees -----------------------------------------------------------------------------


def _purge_trees(exam: Examination, invariant: Invariant) -> None:
    """Delete removed trees, and all inodes that have no name outside removed trees.

    Later repairs recompute link counts and free blocks. A directory that also has a name outside
    removed trees is kept, because the repair of I25 decides which name is right.
    """
    exam.db.all("DROP TABLE IF EXISTS temp.check_dying")
    exam.db.all("CREATE TEMP TABLE check_dying (ino INTEGER PRIMARY KEY, names INTEGER)")
    exam.db.all(
        "INSERT INTO temp.check_dying WITH RECURSIVE dying (ino) AS ("
        f" {invariant.select('i.ino')} UNION SELECT e.ino FROM dying AS t"
        " JOIN temp.check_edges AS e ON e.parent = t.ino"
        f" JOIN temp.check_names AS n ON n.ino = e.ino AND n.names = 1 AND e.ino <> {ROOT_INO})"
        " SELECT ino, 0 FROM dying"
    )
    exam.db.all(
        "INSERT INTO temp.check_dying SELECT ino, count(*) FROM dentries"
        " WHERE parent IN (SELECT ino FROM temp.check_dying) GROUP BY ino"
        " ON CONFLICT DO UPDATE SET names = excluded.names"
    )
    exam.run("DELETE FROM dentries WHERE parent IN (SELECT ino FROM temp.check_dying)")
    unused = (
        "(SELECT t.ino FROM temp.check_dying AS t LEFT JOIN temp.check_names AS n"
        " ON n.ino = t.ino WHERE t.names = coalesce(n.names, 0))"
    )
    for table in ("block_map", "symlinks", "xattrs", "hard_links", "inodes"):
        exam.run(f"DELETE FROM {table} WHERE ino IN {unused}")


TREES: Final = (
    Invariant(
        69,
        "a filesystem that is not mounted has no removed tree",
        source=EVERY_INODE,
        damaged=f"{IS_TOP} AND n.ino IS NULL",
        columns="i.ino, i.size_bytes",
        text="directory {0} was removed together with its {1} entries",
        repair=_purge_trees,
        safe=True,
        severity=Severity.LEFTOVER,
        needs=Need.UNMOUNTED,
    ),
)
