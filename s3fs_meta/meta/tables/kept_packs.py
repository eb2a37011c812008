"""Rows of ``properties`` that name packs which stay although nothing is known of what is in them.

Owns: noting them; ``fsck --rebuild`` does. Does not know: why one cannot be read.
Keeps: they are rows of a replicated table, so no later writer takes such a pack for an orphan.
"""

from collections.abc import Iterable

from s3fs_meta.meta.db.database import Database
from s3fs_meta.model import ObjectKey

_OURS = "name >= 'pack/' AND name < 'pack0'"  # the character after a slash is a zero


def add(db: Database, keys: Iterable[ObjectKey]) -> None:
    """Note that packs stay. Transaction: inside a group."""
    db.run_many("INSERT OR IGNORE INTO properties VALUES (?, x'')", [(key,) for key in keys])


def keys(db: Database) -> set[ObjectKey]:
    """Return the packs that stay."""
    return {ObjectKey(row[0]) for row in db.all(f"SELECT name FROM properties WHERE {_OURS}")}
