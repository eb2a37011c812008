"""Sums over dentries and block maps, computed once for many invariants.

Owns: temporary tables with one row per inode, directory or block, and the FROM clauses that join
them. Does not know: damaged rows.

    check_names    per inode: the number of its names, and the lowest and highest parent
    check_links    per inode with several names, and per directory: the number of names
    check_edges    per directory that has names, and per parent: the number of names
    check_dirs     per directory, and per other inode with dentries: the number of dentries
    check_tops     the inodes from which directories are searched: the root, directories without a
                   name, and inodes of other types that have dentries
    check_reached  the directories that the search from check_tops finds
    check_mapped   per file: the number of blocks, the first and last index, the end of the content
    check_refs     per block: the number of rows of block_map
    check_live     per pack: the stored bytes of its blocks

The tables are in temporary files; only a page cache of FSCK_SUMS_CACHE_KIB is in memory.
"""

import stat
from typing import Final

from s3fs_meta.limits import FSCK_SUMS_ROWS_MAX
from s3fs_meta.meta.db.counters import sum_of
from s3fs_meta.meta.db.database import Database
from s3fs_meta.model import ROOT_INO

TYPE_OF_MODE: Final = f"(i.mode & {stat.S_IFMT(0xFFFF)})"
IS_DIRECTORY: Final = f"{TYPE_OF_MODE} = {stat.S_IFDIR}"
IS_REGULAR: Final = f"{TYPE_OF_MODE} = {stat.S_IFREG}"
IS_SYMLINK: Final = f"{TYPE_OF_MODE} = {stat.S_IFLNK}"

BLOCK_BYTES: Final = "(SELECT CAST(value AS INTEGER) FROM properties WHERE name = 'block_bytes')"

# Values of check_dirs.kind: whether the parent inode exists, and whether it is a directory.
MISSING: Final = 0
NO_DIRECTORY: Final = 1
DIRECTORY: Final = 2

EVERY_INODE: Final = (
    "inodes AS i LEFT JOIN temp.check_names AS n ON n.ino = i.ino"
    " LEFT JOIN temp.check_mapped AS m ON m.ino = i.ino"
)
EVERY_DIRECTORY: Final = "temp.check_dirs AS d LEFT JOIN inodes AS i ON i.ino = d.ino"
EVERY_BLOCK: Final = (
    "blocks AS b LEFT JOIN temp.check_refs AS r ON r.block = b.block"
    " LEFT JOIN cached_blocks AS c ON c.block = b.block LEFT JOIN packs AS p ON p.pack = b.pack"
)
EVERY_PACK: Final = "packs AS p LEFT JOIN temp.check_live AS l ON l.pack = p.pack"

_TABLES: Final = {
    "check_names": "(ino INTEGER PRIMARY KEY, names INTEGER, low INTEGER, high INTEGER)",
    "check_links": (
        "(ino INTEGER, parent INTEGER, names INTEGER, PRIMARY KEY (ino, parent)) WITHOUT ROWID"
    ),
    "check_edges": (
        "(parent INTEGER, ino INTEGER, names INTEGER, PRIMARY KEY (parent, ino)) WITHOUT ROWID"
    ),
    "check_dirs": (
        "(ino INTEGER PRIMARY KEY, kind INTEGER DEFAULT 0, entries INTEGER DEFAULT 0,"
        " subdirectories INTEGER DEFAULT 0)"
    ),
    "check_tops": "(ino INTEGER PRIMARY KEY)",
    "check_reached": "(ino INTEGER PRIMARY KEY)",
    "check_mapped": (
        "(ino INTEGER PRIMARY KEY, blocks INTEGER, first_index INTEGER, last_index INTEGER,"
        " reach INTEGER)"
    ),
    "check_refs": "(block INTEGER PRIMARY KEY, refs INTEGER)",
    "check_live": "(pack INTEGER PRIMARY KEY, stored_bytes INTEGER)",
}

# No index has the order of check_names or check_refs, so the rows arrive unsorted.
# A table that fits into the page cache is filled unsorted, which is twice as fast as sorting.
# A larger table is filled in sorted order, to avoid accesses to random pages.
# Rows with values of wrong types are skipped, because invariant I70 may report them only later.
_SOUND_ENTRY: Final = "typeof(ino) = 'integer' AND typeof(parent) = 'integer'"
_SOUND_BLOCK: Final = "typeof(block) = 'integer'"
NAMES_AS_THEY_COME: Final = (
    f"INSERT INTO temp.check_names SELECT ino, 1, parent, parent FROM dentries WHERE {_SOUND_ENTRY}"
    " ON CONFLICT DO UPDATE SET names = names + 1, low = min(low, excluded.low),"
    " high = max(high, excluded.high)"
)
NAMES_SORTED: Final = (
    "INSERT INTO temp.check_names"
    f" SELECT ino, count(*), min(parent), max(parent) FROM dentries WHERE {_SOUND_ENTRY}"
    " GROUP BY ino"
)
REFS_AS_THEY_COME: Final = (
    f"INSERT INTO temp.check_refs SELECT block, 1 FROM block_map WHERE {_SOUND_BLOCK}"
    " ON CONFLICT DO UPDATE SET refs = refs + 1"
)
REFS_SORTED: Final = (
    f"INSERT INTO temp.check_refs SELECT block, count(*) FROM block_map WHERE {_SOUND_BLOCK}"
    " GROUP BY block"
)

_FILL: Final = (
    "INSERT INTO temp.check_links SELECT d.ino, d.parent, count(*) FROM dentries AS d"
    " WHERE d.ino IN (SELECT ino FROM temp.check_names WHERE names > 1) GROUP BY 1, 2",
    "INSERT INTO temp.check_edges SELECT n.low, n.ino, 1 FROM inodes AS i"
    f" JOIN temp.check_names AS n ON n.ino = i.ino WHERE {IS_DIRECTORY} AND n.names = 1",
    "INSERT INTO temp.check_edges SELECT l.parent, l.ino, l.names FROM temp.check_links AS l"
    f" JOIN inodes AS i ON i.ino = l.ino WHERE {IS_DIRECTORY}",
    "INSERT INTO temp.check_dirs (ino, entries)"
    f" SELECT parent, count(*) FROM dentries WHERE {_SOUND_ENTRY} GROUP BY parent",
    f"UPDATE temp.check_dirs SET kind = {NO_DIRECTORY}"
    " WHERE EXISTS (SELECT 1 FROM inodes AS i WHERE i.ino = check_dirs.ino)",
    f"INSERT INTO temp.check_dirs (ino, kind) SELECT i.ino, {DIRECTORY} FROM inodes AS i"
    f" WHERE {IS_DIRECTORY} ON CONFLICT DO UPDATE SET kind = {DIRECTORY}",
    "UPDATE temp.check_dirs SET subdirectories = e.names FROM"
    " (SELECT parent, sum(names) AS names FROM temp.check_edges GROUP BY parent) AS e"
    " WHERE e.parent = check_dirs.ino",
    "INSERT INTO temp.check_mapped SELECT m.ino, count(*), min(m.block_index), max(m.block_index),"
    f" max(m.block_index * {BLOCK_BYTES} + coalesce(b.plain_bytes, 1))"
    " FROM block_map AS m LEFT JOIN blocks AS b ON b.block = m.block"
    " WHERE typeof(m.ino) = 'integer' AND typeof(m.block_index) = 'integer' GROUP BY m.ino",
    f"INSERT INTO temp.check_live SELECT pack, {sum_of('stored_bytes')} FROM blocks"
    " WHERE typeof(pack) = 'integer' GROUP BY pack",
    # The search starts at every directory without a name, so it misses only cycles of directories.
    "INSERT INTO temp.check_tops SELECT d.ino FROM temp.check_dirs AS d"
    f" LEFT JOIN temp.check_names AS n ON n.ino = d.ino WHERE d.ino = {ROOT_INO}"
    f" OR d.kind <> {DIRECTORY} OR n.ino IS NULL",
    "INSERT INTO temp.check_reached WITH RECURSIVE reached (ino) AS ("
    " SELECT ino FROM temp.check_tops"
    " UNION SELECT e.ino FROM reached AS r JOIN temp.check_edges AS e ON e.parent = r.ino)"
    " SELECT ino FROM reached",
)


def make_tables(db: Database) -> None:
    """Create the empty temporary tables ``check_*``."""
    for name, columns in _TABLES.items():
        db.all(f"CREATE TEMP TABLE IF NOT EXISTS {name} {columns}")


def fill_tables(db: Database) -> None:
    """Fill the temporary tables ``check_*`` from the current rows."""
    for name in _TABLES:
        db.all(f"DELETE FROM temp.{name}")
    db.all(NAMES_AS_THEY_COME if _is_small(db, "dentries") else NAMES_SORTED)
    db.all(REFS_AS_THEY_COME if _is_small(db, "block_map") else REFS_SORTED)
    for statement in _FILL:
        db.all(statement)


def _is_small(db: Database, table: str) -> bool:
    """Return whether the sums over a table fit into the page cache for temporary tables."""
    row = db.one(f"SELECT count(*) FROM {table}")
    assert row is not None, "an aggregate query returns one row"
    return int(row[0]) <= FSCK_SUMS_ROWS_MAX


def drop_tables(db: Database) -> None:
    """Drop all temporary tables of a run except the observations."""
    for (name,) in db.all("SELECT name FROM temp.sqlite_schema WHERE type = 'table'"):
        if not name.startswith("seen_"):
            db.all(f"DROP TABLE temp.{name}")
