"""Invariants of trees that were removed as a whole and not yet taken apart."""

from typing import Final

from s3fs_meta.check.context import Examination, Invariant
from s3fs_meta.check.observations import Need
from s3fs_meta.check.report import Severity
from s3fs_meta.check.scratch_tables import EVERY_INODE, IS_DIRECTORY
from s3fs_meta.model import ROOT_INO, InodeFlag

_REMOVED: Final = InodeFlag.REMOVED

# A directory that went with all that is in it. Others without a name have lost it.
IS_TOP: Final = f"(i.nlink = 0 AND i.flags & {_REMOVED} AND {IS_DIRECTORY})"


def _purge_trees(exam: Examination, invariant: Invariant) -> None:
    """Remove tops and what has no name but below them; later repairs count links and blocks.

    A directory with a further name stays: another invariant decides which name is right.
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
    gone = (
        "(SELECT t.ino FROM temp.check_dying AS t LEFT JOIN temp.check_names AS n"
        " ON n.ino = t.ino WHERE t.names = coalesce(n.names, 0))"
    )
    for table in ("block_map", "symlinks", "xattrs", "hard_links", "inodes"):
        exam.run(f"DELETE FROM {table} WHERE ino IN {gone}")


TREES: Final = (
    Invariant(
        69,
        "no removed tree is left when no host has it mounted",
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
