"""Invariants of symlink targets and extended attributes."""

from typing import Final

from s3fs_meta.check.context import Examination, Invariant
from s3fs_meta.check.sums import EVERY_INODE, IS_SYMLINK
from s3fs_meta.limits import (
    SYMLINK_BYTES_MAX,
    XATTR_NAME_BYTES_MAX,
    XATTR_VALUE_BYTES_MAX,
)

_TARGETS: Final = "symlinks AS s LEFT JOIN inodes AS i ON i.ino = s.ino"
_XATTRS: Final = "xattrs AS x LEFT JOIN inodes AS i ON i.ino = x.ino"

# --- targets of symbolic links -----------------------------------------------------------------


def _name_lost_target(exam: Examination, invariant: Invariant) -> None:
    """Give symbolic links without a target row a placeholder target."""
    exam.run(
        "INSERT OR REPLACE INTO symlinks"
        f" SELECT i.ino, CAST('(target of inode ' || i.ino || ' lost)' AS BLOB) FROM inodes AS i"
        f" WHERE i.ino IN ({invariant.select('i.ino')})"
    )
    exam.run(
        "UPDATE inodes SET size_bytes = s.length FROM (SELECT ino, length(target) AS length"
        " FROM symlinks) AS s WHERE s.ino = inodes.ino AND s.length <> size_bytes"
    )


_BAD_TARGET: Final = (
    f"typeof(s.target) <> 'blob' OR length(s.target) NOT BETWEEN 1 AND {SYMLINK_BYTES_MAX}"
    " OR instr(s.target, x'00')"
)


def _mend_targets(exam: Examination, _invariant: Invariant) -> None:
    """Convert targets of type text to bytes; cut targets at a NUL byte or at the maximum length."""
    exam.run("UPDATE symlinks SET target = CAST(target AS BLOB) WHERE typeof(target) <> 'blob'")
    exam.run(
        "UPDATE symlinks SET target = substr(target, 1, instr(target, x'00') - 1)"
        " WHERE instr(target, x'00') > 0"
    )
    exam.run(
        f"UPDATE symlinks SET target = substr(target, 1, {SYMLINK_BYTES_MAX})"
        f" WHERE length(target) > {SYMLINK_BYTES_MAX}"
    )
    exam.run("DELETE FROM symlinks WHERE length(target) = 0")  # I18 reports a missing target


def _measure_targets(exam: Examination, invariant: Invariant) -> None:
    exam.run(
        "UPDATE inodes SET size_bytes = (SELECT length(s.target) FROM symlinks AS s"
        f" WHERE s.ino = inodes.ino) WHERE ino IN ({invariant.select('i.ino')})"
    )


# --- extended attributes and flags -------------------------------------------------------------

_BAD_XATTR: Final = (
    f"typeof(x.name) <> 'blob' OR length(x.name) NOT BETWEEN 1 AND {XATTR_NAME_BYTES_MAX}"
    f" OR instr(x.name, x'00') OR typeof(x.value) <> 'blob'"
    f" OR length(x.value) > {XATTR_VALUE_BYTES_MAX}"
)


def _mend_xattrs(exam: Examination, _invariant: Invariant) -> None:
    """Convert xattrs of type text to bytes; delete xattrs that setxattr would refuse."""
    exam.run(
        "UPDATE OR IGNORE xattrs SET name = CAST(name AS BLOB), value = CAST(value AS BLOB)"
        " WHERE typeof(name) <> 'blob' OR typeof(value) <> 'blob'"
    )
    exam.run(f"DELETE FROM xattrs AS x WHERE {_BAD_XATTR}")


ATTRIBUTES: Final = (
    Invariant(
        18,
        "every symbolic link has a target",
        source=EVERY_INODE,
        damaged=f"{IS_SYMLINK} AND NOT EXISTS (SELECT 1 FROM symlinks AS s WHERE s.ino = i.ino)",
        columns="i.ino",
        text="symbolic link {0} has no target",
        repair=_name_lost_target,
    ),
    Invariant(
        19,
        "symlink targets are 1 to 4095 bytes without NUL",
        source=_TARGETS,
        damaged=_BAD_TARGET,
        columns="s.ino, s.target",
        text="symbolic link {0} has an invalid target: {1!r}",
        repair=_mend_targets,
    ),
    Invariant(
        20,
        "the name of an extended attribute has 1 to 255 bytes without NUL, and the value at most 64"
        " KiB",
        source=_XATTRS,
        damaged=_BAD_XATTR,
        columns="x.ino, x.name, length(x.value)",
        text="inode {0} has an invalid extended attribute: {1!r}, {2} bytes",
        repair=_mend_xattrs,
    ),
)

TARGET_SIZES: Final = (
    Invariant(
        57,
        "the size of a symbolic link is the length of its target",
        source=_TARGETS,
        damaged=f"{IS_SYMLINK} AND NOT ({_BAD_TARGET}) AND i.size_bytes <> length(s.target)",
        columns="i.ino, i.size_bytes, length(s.target)",
        text="symbolic link {0} has size {1}, but its target has {2} bytes",
        repair=_measure_targets,
        safe=True,
    ),
)
