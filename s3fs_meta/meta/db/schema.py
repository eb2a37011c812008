"""The tables of the database: the kind of each, and how they are created.

Owns: reading schema.sql and local.sql (the authority on rows), and the lists of tables.
"""

import functools
import stat
from importlib import resources
from typing import Final

import apsw

from s3fs_meta.model import ROOT_INO

SCHEMA_VERSION: Final = 2

# How many columns tables had in earlier versions. Those that came since are their last ones, and
# have defaults: what a changeset that does not know them leaves in their place.
FORMER_COLUMNS: Final = {"inodes": frozenset({13})}

# In the order in which they are compared and copied.
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


def create_tables(connection: apsw.Connection) -> None:
    """Make the replicated and location tables in an empty database. Inside a transaction."""
    connection.execute(script("schema.sql"))


def create_local_tables(connection: apsw.Connection) -> None:
    """Make the local tables where they are missing. Inside a transaction."""
    connection.execute(script("local.sql"))


def insert_first_rows(connection: apsw.Connection, uid: int, gid: int, now_ns: int) -> None:
    """Make the root directory and the counters of an otherwise empty filesystem."""
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
