"""Invariants of values counted from names: link counts, directory sizes, parents, hard links.

These invariants are repaired after the names and the tree.
"""

from typing import Final

from s3fs_meta.check import sums
from s3fs_meta.check.context import Examination, Invariant, Repair
from s3fs_meta.check.sums import EVERY_DIRECTORY, EVERY_INODE, IS_DIRECTORY
from s3fs_meta.model import ROOT_INO

_IS_NAMED: Final = (
    f"(i.ino = {ROOT_INO} OR EXISTS (SELECT 1 FROM temp.check_names AS n WHERE n.ino = i.ino))"
)


def _recompute(column: str, value: str, ino: str) -> Repair:
    """Return a repair that sets a column of the damaged inodes to an SQL value."""

    def repair(exam: Examination, invariant: Invariant) -> None:
        exam.run(f"UPDATE inodes SET {column} = {value} WHERE ino IN ({invariant.select(ino)})")

    return repair


_OF_NAMES: Final = "FROM temp.check_names AS n WHERE n.ino = inodes.ino"
_OF_ENTRIES: Final = "FROM temp.check_dirs AS d WHERE d.ino = inodes.ino"

_SHOULD_LINK: Final = (
    "SELECT l.ino, l.parent, l.names FROM temp.check_links AS l JOIN inodes AS i ON i.ino = l.ino"
    f" WHERE NOT {IS_DIRECTORY}"
)
_LINK_DIFFERENCES: Final = (
    f"(SELECT ino, parent, 'lacks' AS fault FROM ({_SHOULD_LINK} EXCEPT"
    " SELECT ino, parent, names FROM hard_links)"
    " UNION SELECT ino, parent, 'should not have' FROM"
    f" (SELECT ino, parent, names FROM hard_links EXCEPT {_SHOULD_LINK}))"
)


def _rebuild_links(exam: Examination, invariant: Invariant) -> None:
    exam.run(f"DELETE FROM hard_links WHERE ino IN ({invariant.select('x.ino')})")
    exam.run(f"INSERT OR REPLACE INTO hard_links {_SHOULD_LINK}")


LINK_COUNTS: Final = (
    Invariant(
        52,
        "the parent of an inode is a directory that contains its name",
        source=EVERY_INODE,
        damaged=f"i.ino <> {ROOT_INO} AND ((n.names = 1 AND i.parent <> n.low) OR (n.names > 1"
        " AND NOT EXISTS (SELECT 1 FROM temp.check_links AS l"
        " WHERE l.ino = i.ino AND l.parent = i.parent)))",
        columns="i.ino, i.parent, n.low",
        text="inode {0} has parent {1}, but its name is in directory {2}",
        repair=_recompute("parent", f"(SELECT n.low {_OF_NAMES})", "i.ino"),
        safe=True,
    ),
    Invariant(
        53,
        "nlink of a non-directory is the number of its names",
        source=EVERY_INODE,
        damaged=f"NOT {IS_DIRECTORY} AND i.nlink <> n.names",
        columns="i.ino, i.nlink, n.names",
        text="inode {0} has nlink {1}, but {2} names",
        repair=_recompute("nlink", f"(SELECT n.names {_OF_NAMES})", "i.ino"),
        safe=True,
    ),
    Invariant(
        54,
        "nlink of a directory is 2 plus the number of its subdirectories",
        source=EVERY_DIRECTORY,
        damaged=f"d.kind = {sums.DIRECTORY} AND i.nlink <> 2 + d.subdirectories AND {_IS_NAMED}",
        columns="d.ino, i.nlink, d.subdirectories",
        text="directory {0} has nlink {1}, but {2} subdirectories",
        repair=_recompute("nlink", f"2 + (SELECT d.subdirectories {_OF_ENTRIES})", "d.ino"),
        safe=True,
    ),
    Invariant(
        55,
        "the size of a directory is the number of its entries",
        source=EVERY_DIRECTORY,
        damaged=f"d.kind = {sums.DIRECTORY} AND i.size_bytes <> d.entries",
        columns="d.ino, i.size_bytes, d.entries",
        text="directory {0} has size {1}, but {2} entries",
        repair=_recompute("size_bytes", f"(SELECT d.entries {_OF_ENTRIES})", "d.ino"),
        safe=True,
    ),
    Invariant(
        56,
        "for each file with several names, hard_links has the number of names in each directory",
        source=f"{_LINK_DIFFERENCES} AS x",
        columns="x.ino, x.parent, x.fault",
        text="hard_links {2} this row for inode {0} in directory {1}",
        repair=_rebuild_links,
        safe=True,
    ),
)
