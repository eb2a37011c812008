"""Rows of ``properties`` that name packs which must be kept although their content is unknown.

Owns: adding them, for ``fsck --rebuild``. Does not know: why a pack is unreadable.
Keeps: they are rows of a replicated table, so no later writer takes such a pack for an orphan.
"""

from collections.abc import Iterable

from s3fs_meta.meta.db.database import Database
from s3fs_meta.model import ObjectKey

_OURS = "name >= 'pack/' AND name < 'pack0'"  # the character after a slash is a zero


def add(db: Database, keys: Iterable[ObjectKey]) -> None:
    """Note that packs must be kept. Transaction: inside a group."""
    db.run_many("INSERT OR IGNORE INTO properties VALUES (?, x'')", [(key,) for key in keys])


def keys(db: Database) -> set[ObjectKey]:
    """Return the packs that must be kept."""
    return {ObjectKey(row[0]) for row in db.all(f"SELECT name FROM properties WHERE {_OURS}")}
