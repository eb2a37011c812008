"""Recorders of changes."""

import apsw

from s3fs_meta.meta import changesets
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.schema import REPLICATED_TABLES


class SessionRecorder:
    """Keeps one changeset per group."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._session: apsw.Session | None = None
        self.changesets: list[bytes] = []

    def group_opened(self) -> None:
        """Attach a session to the replicated tables."""
        self._session = apsw.Session(self._db.connection, "main")
        for table in REPLICATED_TABLES:
            self._session.attach(table)

    def group_committing(self) -> None:
        """Store the changes of the group."""
        assert self._session is not None
        self.changesets.append(self._session.changeset())
        self._session.close()
        self._session = None


def recorded(db: Database) -> SessionRecorder:
    """Attach a recorder to a database."""
    recorder = SessionRecorder(db)
    db.recorder = recorder
    return recorder


def apply_in_transaction(connection: apsw.Connection, *changes: bytes) -> None:
    """Apply changesets and commit."""
    connection.execute("BEGIN")
    for changeset in changes:
        changesets.apply(connection, changeset, "changes")
    connection.execute("COMMIT")
