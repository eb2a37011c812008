"""Rows of ``local_state``: facts about this host's copy. local.sql lists the names."""

from s3fs_meta.meta.database import Database


def get(db: Database, name: str) -> str | None:
    """Return one fact, None if it is not known."""
    row = db.one("SELECT value FROM local_state WHERE name = ?", (name,))
    return None if row is None else str(row[0])


def put(db: Database, name: str, value: str) -> None:
    """Note one fact, replacing any. Transaction: inside a group."""
    db.run("INSERT OR REPLACE INTO local_state VALUES (?, ?)", (name, value))


def delete(db: Database, name: str) -> None:
    """Forget one fact; an unknown one is no error. Transaction: inside a group."""
    db.run("DELETE FROM local_state WHERE name = ?", (name,))
