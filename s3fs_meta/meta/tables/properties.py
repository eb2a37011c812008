"""Rows of ``properties``: facts that never change after mkfs, but for the version of the tables.

Written by ``Database.create``; ``upgrades`` raises the version.

The other rows of that table are in ``abandoned_images``, ``kept_packs`` and
``damage_marks``.
"""

from s3fs_meta.errors import FormatError
from s3fs_meta.meta.db.database import Database


def get(db: Database, name: str) -> bytes:
    """Return one fact.

    Raises:
        FormatError: the database lacks it.
    """
    row = db.one("SELECT value FROM properties WHERE name = ?", (name,))
    if row is None:
        raise FormatError(str(db.path), f"property {name!r} is missing")
    return bytes(row[0])


def all_of(db: Database) -> dict[str, bytes]:
    """Return all facts by name."""
    return {row[0]: bytes(row[1]) for row in db.all("SELECT name, value FROM properties")}
