"""A recorder of database changes, and a helper that applies its changesets."""

import apsw

from s3fs_meta.meta import changesets
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.schema import REPLICATED_TABLES


class SessionRecorder:
    """A recorder that keeps one changeset per commit group."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._session: apsw.Session | None = None
        self.changesets: list[bytes] = []

    def group_opened(self) -> None:
        """Start a session that records the replicated tables."""
        self._session = apsw.Session(self._db.connection, "main")
        for table in REPLICATED_TABLES:
            self._session.attach(table)

    def group_committing(self) -> None:
        """Store the changeset of the commit group."""
        assert self._session is not None
        self.changesets.append(self._session.changeset())
        self._session.close()
        self._session = None


def recorded(db: Database) -> SessionRecorder:
    """Attach a recorder to a database and return the recorder."""
    recorder = SessionRecorder(db)
    db.recorder = recorder
    return recorder


def apply_in_transaction(connection: apsw.Connection, *changes: bytes) -> None:
    """Apply changesets in one transaction and commit it."""
    connection.execute("BEGIN")
    for changeset in changes:
        changesets.apply(connection, changeset, "changes")
    connection.execute("COMMIT")
