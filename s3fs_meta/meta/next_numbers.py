"""A check of the next unused numbers, before a writer takes numbers.

Owns: which numbers must be lower than the next numbers. Does not know: repairs (fsck checks I6).
Keeps: a writer never takes a number that is in use, so that no new block replaces another one.
The check reads one index entry of each table, so its time does not depend on the number of rows.
"""

from typing import Final

from s3fs_meta.errors import DamagedDatabaseError, MetadataError
from s3fs_meta.limits import PAST_INO_MIN
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import inodes

# Each counter, and the columns with its numbers. Each column has an index.
_NUMBERS: Final = (
    (
        "next_ino",
        (
            ("dentries", "parent"),
            ("symlinks", "ino"),
            ("xattrs", "ino"),
            ("block_map", "ino"),
            ("inodes", "ino"),
        ),
    ),
    ("next_block", (("blocks", "block"), ("cached_blocks", "block"))),
    ("next_pack", (("packs", "pack"), ("blocks", "pack"))),
)


def require_valid(db: Database) -> None:
    """Check that no next number is in use or above the maximum.

    Raises:
        MetadataError: a next number is wrong; nothing was changed.
    """
    for counter, columns in _NUMBERS:
        following: int = getattr(db.counters, counter)
        used = max(_highest(db, table, column) for table, column in columns)
        if following <= used:
            raise MetadataError(f"{counter} is {following}, but number {used} is in use", 0)
        if following > PAST_INO_MIN:
            raise MetadataError(f"{counter} is {following}, above the maximum of {PAST_INO_MIN}", 0)


def _highest(db: Database, table: str, column: str) -> int:
    """Return the highest number in a column; ignore damaged numbers, which I8 and others report.

    A damaged index does not prevent the mount: files that the damage does not affect stay usable.
    """
    try:
        if table == "inodes":
            return inodes.highest(db, PAST_INO_MIN)
        valid = f"{column} BETWEEN 0 AND {PAST_INO_MIN - 1}"
        row = db.one(f"SELECT max({column}) FROM {table} WHERE {valid}")
    except DamagedDatabaseError:
        return 0
    return 0 if row is None or row[0] is None else int(row[0])
