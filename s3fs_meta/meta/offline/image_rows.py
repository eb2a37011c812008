"""Adopting rows of a damaged image into a database that is being rebuilt from packs.

Owns: comparing rows with the indexes of packs (``temp.claims`` of ``rebuild``).
Does not know: reading rows, pack objects.
Keeps: a block has a location only if the index of a pack confirms it (``sync.upload.pack_salvage`` writes
a new pack for intact blocks of a pack whose index is lost). A file whose inode was read
keeps the blocks that the image lists; newer content becomes a separate file. If rows of its block
map are unreadable, the indexes of packs supply them. fsck repairs contradictions between rows.
Tasks: all calls block; call them in a thread, on a database that no other task uses.
"""

import stat
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from s3fs_meta.limits import SALVAGE_ROWS_AT_ONCE
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.lost_names import LOST_FOUND
from s3fs_meta.meta.offline.salvage import BLOCKS, NAMING, PACKS, DamagedDatabase, Table
from s3fs_meta.model import ROOT_INO

_NEXT_MAX: Final = 1 << 62  # a larger counter is damaged, and would leave no numbers for new rows
_NUMBERED: Final[Mapping[str, tuple[str, ...]]] = {  # columns that contain inode or block numbers
    "inodes": ("ino",),
    "blocks": ("block",),
    "packs": ("pack",),
    "dentries": ("parent", "ino"),
    "hard_links": ("ino", "parent"),
    "symlinks": ("ino",),
    "xattrs": ("ino",),
    "block_map": ("ino", "block"),
}

_IMAGE_BLOCKS: Final = (
    "CREATE TEMP TABLE image_blocks (block INTEGER PRIMARY KEY, plain_bytes INTEGER, hash BLOB,"
    " pack INTEGER, pack_offset INTEGER, stored_bytes INTEGER)"
)
_IMAGE_PACKS: Final = "CREATE TEMP TABLE image_packs (pack INTEGER PRIMARY KEY, object_key BLOB)"

# Find a location for the content of each block in the image.
# Of several index entries with the same content, the entry with the block's number is preferred.
_LOCATE: Final = (
    "INSERT INTO blocks SELECT s.block, 0, s.plain_bytes, s.hash, c.pack, c.pack_offset,"
    " c.stored_bytes FROM temp.image_blocks AS s JOIN temp.claims AS c"
    " ON c.hash = s.hash AND c.plain_bytes = s.plain_bytes"
    " ORDER BY c.block = s.block DESC, c.epoch DESC, c.pack ON CONFLICT DO NOTHING"
)

# Mark index entries that have the number of a block in the image, but other content.
# A fenced host wrote the other content under the same block number.
_OTHER_CONTENT: Final = (
    "UPDATE temp.claims SET doubted = 1 WHERE EXISTS (SELECT 1 FROM temp.image_blocks AS s"
    " WHERE s.block = claims.block AND s.hash <> claims.hash)"
)

# Remove index entries of blocks that were deleted before the image was made.
_FREED: Final = (
    "DELETE FROM temp.claims WHERE NOT doubted AND block < ?"
    " AND block NOT IN (SELECT block FROM temp.image_blocks)"
)

_NEWER: Final = (
    "UPDATE temp.claims SET doubted = 1 WHERE block >= ? AND ino IN (SELECT ino FROM inodes)"
)

# Find files whose block maps were not read completely.
# For all other files, index entries are removed: the image lists every block of these files.
_UNSETTLED: Final = (
    "CREATE TEMP TABLE unsettled AS SELECT i.ino AS ino, i.size_bytes AS size_bytes"
    " FROM inodes AS i LEFT JOIN (SELECT ino, count(*) AS rows FROM block_map GROUP BY ino) AS m"
    " ON m.ino = i.ino WHERE i.mapped_blocks > coalesce(m.rows, 0)"
)
_SETTLED: Final = (
    "DELETE FROM temp.claims WHERE NOT doubted AND ino IN (SELECT ino FROM inodes)"
    " AND NOT EXISTS (SELECT 1 FROM temp.unsettled AS u WHERE u.ino = claims.ino"
    " AND claims.block_index * ? < u.size_bytes)"
)

# If an inode has no row, the newest block at each position is used, as without an image.
_REWRITTEN: Final = (
    "DELETE FROM block_map WHERE ino NOT IN (SELECT ino FROM inodes) AND EXISTS (SELECT 1"
    " FROM temp.claims AS c WHERE NOT c.doubted AND c.ino = block_map.ino"
    " AND c.block_index = block_map.block_index AND c.block >= ?)"
)


class ImageRows(NamedTuple):
    """A record of which rows of an image were readable."""

    next_block: int  # blocks with higher or equal numbers are newer than the image
    knows_blocks: bool  # True if all rows of the table blocks were readable
    incomplete: tuple[str, ...]  # tables that lack some of their pages in the image


def adopt(db: Database, damaged: DamagedDatabase) -> ImageRows:
    """Insert all readable rows of a damaged image into a new database, and commit.

    Raises:
        DatabaseError: the disk failed.
    """
    incomplete = []
    db.inodes.write_through()  # the statements in this module bypass the inode cache
    db.begin()
    db.run(_IMAGE_BLOCKS)
    db.run(_IMAGE_PACKS)
    inodes = damaged.inodes
    targets = [(inodes, "inodes"), (BLOCKS, "temp.image_blocks"), (PACKS, "temp.image_packs")]
    for table, target in (*targets, *((table, table.name) for table in NAMING)):
        reader = damaged.reader(table)
        _insert(db, table, target, reader.rows())
        if not reader.is_complete:
            incomplete.append(table.name)
    db.run("DELETE FROM temp.image_blocks WHERE hash IS NULL")
    counters = db.counters
    next_ino, next_block, capacity_bytes = damaged.counters() or (0, 0, 0)
    if 0 < next_ino < _NEXT_MAX and 0 < next_block < _NEXT_MAX:
        counters.next_ino, counters.next_block = next_ino, next_block
        counters.capacity_bytes = max(capacity_bytes, 0)
    _pass_given_numbers(db)
    db.commit()
    return ImageRows(counters.next_block, "blocks" not in incomplete, tuple(incomplete))


def _insert(db: Database, table: Table, target: str, rows: Iterator[Row]) -> None:
    """Insert rows; replace rows with the same keys, for example the row of the root directory."""
    columns, places = ", ".join(table.columns), ", ".join("?" * len(table.columns))
    sql = f"INSERT OR REPLACE INTO {target} ({columns}) VALUES ({places})"
    while batch := list(islice(rows, SALVAGE_ROWS_AT_ONCE)):
        db.run_many(sql, _fitting(table, batch))


def _fitting(table: Table, batch: list[Row]) -> Iterable[Row]:
    """Return the rows of a batch whose inode and block numbers are all in the valid range."""
    numbered = [table.columns.index(name) for name in _NUMBERED[table.name]]
    least = ROOT_INO + 1 if table.name == "block_map" else 1
    return [
        row
        for row in batch
        if row[0] >= least and all(0 < row[column] < _NEXT_MAX for column in numbered)
    ]


def _pass_given_numbers(db: Database) -> None:
    """Raise the counters above every inode and block number that was read."""
    row = db.one(
        "SELECT (SELECT max(ino) FROM inodes), (SELECT coalesce(max(ino), 0) FROM block_map),"
        " (SELECT coalesce(max(block), 0) FROM temp.image_blocks),"
        " (SELECT coalesce(max(block), 0) FROM block_map)"
    )
    assert row is not None, "an aggregate query returns one row"
    counters = db.counters
    counters.next_ino = max(counters.next_ino, row[0] + 1, row[1] + 1)
    counters.next_block = max(counters.next_block, row[2] + 1, row[3] + 1)


def locate(db: Database) -> None:
    """Create rows for the blocks that are in the image and in the index of a pack.

    ``temp.claims`` must contain the index entries of all packs, and the entries of fenced hosts
    must be marked as doubtful. Requires an open transaction.
    """
    db.run("CREATE INDEX temp.claims_by_hash ON claims (hash)")
    db.run(_LOCATE)
    db.run(_OTHER_CONTENT)


def settle(db: Database, image: ImageRows, block_bytes: int) -> None:
    """Delete index entries (claims) that rows of the image supersede. Needs a transaction."""
    if image.knows_blocks:
        db.run(_FREED, (image.next_block,))
    db.run(_NEWER, (image.next_block,))
    db.run(_UNSETTLED)
    db.run("CREATE INDEX temp.unsettled_by_ino ON unsettled (ino)")
    db.run(_SETTLED, (block_bytes,))
    db.run(_REWRITTEN, (image.next_block,))


def count_files(db: Database) -> tuple[int, int]:
    """Return the number of all regular files, and of the regular files outside lost+found."""
    row = db.one(
        "SELECT count(*), coalesce(sum(parent IS NOT (SELECT ino FROM dentries WHERE parent = ?1"
        " AND name = ?2)), 0) FROM inodes WHERE mode & ?3 = ?4",
        (ROOT_INO, LOST_FOUND, stat.S_IFMT(0xFFFF), stat.S_IFREG),
    )
    assert row is not None, "an aggregate query returns one row"
    return row[0], row[1]
