"""The schema of the database: kinds of tables, creation and upgrade.

Owns: reading schema.sql and local.sql (which define the rows), the lists of tables, the upgrade
from an earlier schema version. Does not know: opening databases, recording changes.
Keeps: an upgrade creates the same rows on all hosts of a chain, because it is not recorded as a
change. A new column keeps its default until the first change that contains it. So changes of the
earlier version give the same result before and after the upgrade.

Every database is upgraded when it is opened for writing: local databases, images, earlier points in
time. A database opened read-only appears in the current schema through a temporary view.

    version 2 inodes.btime_delta_ns, default 0: the birth time of an inode of version 1 is its ctime
                at the first change by a program of version 2

Source: https://www.sqlite.org/lang_altertable.html, chapter 6: ADD COLUMN rewrites no row.
"""

import functools
import stat
from importlib import resources
from typing import Final

import apsw

from s3fs_meta.model import ROOT_INO

SCHEMA_VERSION: Final = 2

# Numbers of columns of tables in earlier schema versions. New columns are added at the end.
# SQLite uses the default value for a column that is missing in a changeset.
FORMER_COLUMNS: Final = {"inodes": frozenset({13})}

# The columns of the table inodes, in the order of schema.sql.
INODE_COLUMNS: Final = (
    "ino",
    "mode",
    "nlink",
    "uid",
    "gid",
    "size_bytes",
    "mapped_blocks",
    "ctime_ns",
    "mtime_delta_ns",
    "atime_delta_ns",
    "rdev",
    "parent",
    "flags",
    "btime_delta_ns",
)

# The replicated tables, in the order in which they are compared and copied.
REPLICATED_TABLES: Final = (
    "inodes",
    "dentries",
    "hard_links",
    "symlinks",
    "xattrs",
    "block_map",
    "counters",
    "properties",
)
LOCATION_TABLES: Final = ("blocks", "packs", "totals")
LOCAL_TABLES: Final = (
    "cached_blocks",
    "copies",
    "pending",
    "pack_news",
    "outbox",
    "local_state",
)

_ROOT_MODE: Final = stat.S_IFDIR | 0o755
_FORMER_VERSION: Final = 1
assert SCHEMA_VERSION == _FORMER_VERSION + 1, "each version needs an upgrade step in this module"
_FORMER: Final = b"%d" % _FORMER_VERSION
_PRESENT: Final = b"%d" % SCHEMA_VERSION
_VERSION: Final = "SELECT value FROM properties WHERE name = 'schema_version'"
_COLUMN: Final = "ALTER TABLE main.inodes ADD COLUMN btime_delta_ns INTEGER NOT NULL DEFAULT 0"
_NOTE: Final = "UPDATE main.properties SET value = ? WHERE name = 'schema_version'"
_VIEW: Final = "CREATE TEMP VIEW inodes AS SELECT *, 0 AS btime_delta_ns FROM main.inodes"


def create_tables(connection: apsw.Connection) -> None:
    """Create the replicated and location tables in an empty database. Needs a transaction."""
    connection.execute(script("schema.sql"))


def create_local_tables(connection: apsw.Connection) -> None:
    """Create the local tables that are missing. Needs a transaction."""
    connection.execute(script("local.sql"))


def insert_first_rows(connection: apsw.Connection, uid: int, gid: int, now_ns: int) -> None:
    """Create the root directory and the counters of an empty filesystem."""
    connection.execute(
        "INSERT INTO inodes VALUES (?, ?, 2, ?, ?, 0, 0, ?, 0, 0, 0, ?, 0, 0)",
        (ROOT_INO, _ROOT_MODE, uid, gid, now_ns, ROOT_INO),
    )
    connection.execute("INSERT INTO counters VALUES (1, ?, 1, 1, 1, 0, 0, 0)", (ROOT_INO + 1,))
    connection.execute("INSERT INTO totals VALUES (1, 1, 0, 0)")


@functools.cache
def script(name: str) -> str:
    """Return the text of schema.sql or local.sql."""
    return resources.files("s3fs_meta.meta").joinpath(name).read_text("utf-8")


def upgrade(connection: apsw.Connection) -> None:
    """Upgrade a database of an earlier schema version; a current database stays unchanged.

    The upgrade is atomic even under power loss if the journal mode of the connection survives a
    power cut. The call blocks and has its own transaction.

    Raises:
        apsw.Error: the database is unchanged.
    """
    if not is_former(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if is_former(connection):
            connection.execute(_COLUMN)
            connection.execute(_NOTE, (_PRESENT,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def show_as_present(connection: apsw.Connection) -> bool:
    """Create temporary views through which an older database appears in the current schema.

    The temporary view ``inodes`` hides the table, which remains ``main.inodes``. SQLite drops the
    view when the connection is closed.

    Returns:
        True if the database has an earlier schema version.
    """
    if not is_former(connection):
        return False
    connection.execute(_VIEW)
    return True


def is_former(connection: apsw.Connection) -> bool:
    """Return whether a database has the earlier schema version that ``upgrade`` accepts."""
    return connection.execute(_VERSION).fetchall() == [(_FORMER,)]
