"""Rows of ``properties`` that name abandoned images: no host may use them any more.

Owns: adding and removing them. Does not know: why an image is abandoned, the store.
Keeps: they are rows of a replicated table, so every later writer has them, from any changelog or
image. The name of a row is the key of a manifest, which cannot be the name of a fact of mkfs.
"""

from collections.abc import Iterable
from typing import Final

from s3fs_meta.meta.db.database import Database
from s3fs_meta.model import ObjectKey

_PREFIX: Final = "image/"
_OURS: Final = f"name >= '{_PREFIX}' AND name < 'image0'"  # the character after a slash is a zero


def add(db: Database, manifests: Iterable[ObjectKey]) -> None:
    """Note that images are abandoned. Transaction: inside a group."""
    db.run_many("INSERT OR IGNORE INTO properties VALUES (?, x'')", [(key,) for key in manifests])


def keys(db: Database) -> set[ObjectKey]:
    """Return the manifests of abandoned images, which may still exist in the bucket."""
    return {ObjectKey(row[0]) for row in db.all(f"SELECT name FROM properties WHERE {_OURS}")}


def forget(db: Database, manifests: Iterable[ObjectKey]) -> None:
    """Note that manifests are deleted; names are never reused. Transaction: inside a group."""
    db.run_many("DELETE FROM properties WHERE name = ?", [(key,) for key in manifests])


def take_over(db: Database, other: Database) -> None:
    """Replace the rows by those of another database. Transaction: inside a group."""
    db.run(f"DELETE FROM properties WHERE {_OURS}")
    add(db, sorted(keys(other)))
