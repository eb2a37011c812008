"""Rows of ``properties`` that name images which were given up: nobody may rely on them any more.

Owns: noting and forgetting them. Does not know: why an image goes, the store.
Keeps: they are rows of a replicated table, so every later writer knows them, whichever changelogs
or image it comes from; the name of a row is the key of a manifest, which no fact of mkfs has.
"""

from collections.abc import Iterable
from typing import Final

from s3fs_meta.meta.db.database import Database
from s3fs_meta.model import ObjectKey

_PREFIX: Final = "image/"
_OURS: Final = f"name >= '{_PREFIX}' AND name < 'image0'"  # the character after a slash is a zero


def add(db: Database, manifests: Iterable[ObjectKey]) -> None:
    """Note that images are given up. Transaction: inside a group."""
    db.run_many("INSERT OR IGNORE INTO properties VALUES (?, x'')", [(key,) for key in manifests])


def keys(db: Database) -> set[ObjectKey]:
    """Return the manifests of the images that were given up and may still be there."""
    return {ObjectKey(row[0]) for row in db.all(f"SELECT name FROM properties WHERE {_OURS}")}


def forget(db: Database, manifests: Iterable[ObjectKey]) -> None:
    """Note that manifests are gone; no name is ever used again. Transaction: inside a group."""
    db.run_many("DELETE FROM properties WHERE name = ?", [(key,) for key in manifests])


def take_over(db: Database, other: Database) -> None:
    """Know those that another database knows, and no others. Transaction: inside a group."""
    db.run(f"DELETE FROM properties WHERE {_OURS}")
    add(db, sorted(keys(other)))
