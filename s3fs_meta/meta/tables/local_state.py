"""Rows of ``local_state``: facts about this host's copy of the database; local.sql lists them."""

from collections.abc import Mapping
from typing import Final

from s3fs_meta.errors import FormatError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables.row_types import decimal

# Facts about this host that remain valid after the database is replaced; see local.sql.
OF_HOST: Final = (
    "holder",
    "nonces",
    "own_txg",
    "epoch",
    "boot_id",
    "clean",
    "volatile",
    "suspect",
)


def get(db: Database, name: str) -> str | None:
    """Return the value of one fact, or None if it is not recorded."""
    row = db.one("SELECT value FROM local_state WHERE name = ?", (name,))
    return None if row is None else str(row[0])


def number(db: Database, name: str) -> int | None:
    """Return the value of one fact that is a number, or None if it is not recorded.

    Raises:
        FormatError: the value is not a number.
    """
    text = get(db, name)
    if text is None:
        return None
    value = decimal(text)
    if value is None:
        raise FormatError(
            str(db.path), f"the row {name!r} of the table local_state is not a number"
        )
    return value


def put(db: Database, name: str, value: str) -> None:
    """Record one fact, replacing its former value. Requires an open transaction."""
    db.run("INSERT OR REPLACE INTO local_state VALUES (?, ?)", (name, value))


def put_all(db: Database, facts: Mapping[str, str]) -> None:
    """Record several facts, as ``put`` does. Requires an open transaction."""
    db.run_many("INSERT OR REPLACE INTO local_state VALUES (?, ?)", facts.items())


def delete(db: Database, name: str) -> None:
    """Delete one fact, if it is recorded. Requires an open transaction."""
    db.run("DELETE FROM local_state WHERE name = ?", (name,))


def take_over(db: Database, other: Database) -> None:
    """Copy the facts about this host from another database. Requires an open transaction."""
    for name in OF_HOST:
        value = get(other, name)
        if value is not None:
            put(db, name, value)
