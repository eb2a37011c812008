"""A consistent snapshot of the database that can be copied while the writer continues.

Owns: the read transaction (WAL) or the immediate copy (other journal modes).
Does not know: images, the rows that are removed from the copy.
Tasks: a snapshot is opened on the event loop; ``copy_to`` and ``close`` run in a thread.
"""

import os
from collections.abc import Callable
from pathlib import Path

import apsw

from s3fs_meta.errors import DatabaseError
from s3fs_meta.limits import BACKUP_STEP_PAGES
from s3fs_meta.meta.db import connections
from s3fs_meta.meta.db.connections import translated


class Snapshot:
    """A snapshot of the database, readable until ``close``.

    Until then, SQLite cannot restart the WAL, so the WAL keeps growing.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        closed: Callable[["Snapshot"], None],
        *,
        remove: Path | None = None,
    ) -> None:
        self.connection = connection  # connection that queries the snapshot in a thread
        self._is_closed = False
        self._closed = closed
        self._remove = remove

    def copy_to(self, path: Path) -> None:
        """Write the snapshot to a new database file, which has no WAL. Call this in a thread.

        The file is not synced.

        Raises:
            DatabaseError: the copy is incomplete; the caller removes it.
        """
        assert not self._is_closed, "the snapshot is closed"
        try:
            copy_database(self.connection, path)
        except apsw.Error as exc:
            raise translated(exc, str(path)) from exc
        except OSError as exc:
            text = f"cannot create the snapshot {str(path)!r}: {exc.strerror}"
            raise DatabaseError(text) from exc

    def close(self) -> None:
        """Release the snapshot. A second call has no effect."""
        if self._is_closed:
            return
        self._is_closed = True
        self.connection.close()
        if self._remove is not None:
            self._remove.unlink(missing_ok=True)
        self._closed(self)


def open_in_wal(path: Path, closed: Callable[[Snapshot], None]) -> Snapshot:
    """Open a snapshot of the last commit: a read transaction on a second connection."""
    connection = connections.connect(path, read_only=True)
    connection.execute("BEGIN")
    # A transaction takes its snapshot at its first read, not at BEGIN.
    connection.execute("SELECT txg FROM counters").fetchall()
    return Snapshot(connection, closed)


def spool(connection: apsw.Connection, path: Path, closed: Callable[[Snapshot], None]) -> Snapshot:
    """Copy the database to *path*; return the copy as a snapshot that ``close`` deletes.

    Without WAL the writer's lock is exclusive, so only its own connection can read the database.
    """
    path.unlink(missing_ok=True)
    try:
        copy_database(connection, path)
        copy = connections.connect(path, read_only=True)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Snapshot(copy, closed, remove=path)


def copy_database(source: apsw.Connection, path: Path) -> None:
    """Copy all pages of a database into a new file in journal_mode=delete."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.close(fd)
    target = connections.connect(path, read_only=False)
    try:
        target.pragma("locking_mode", "exclusive")
        target.pragma("synchronous", "off")
        with target.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(BACKUP_STEP_PAGES)
        target.pragma("journal_mode", "delete")
    finally:
        target.close()
