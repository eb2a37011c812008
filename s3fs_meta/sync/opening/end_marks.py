"""The rows that record whether the last process ended cleanly, and which state is doubtful.

Owns: the rows ``clean``, ``volatile`` and ``boot_id`` of ``local_state``, and their syncs.
Does not know: the use of a doubtful database (``local_state_choice``).
Keeps: in a mount for writing, ``clean`` is durable as '0' before any other change, and as '1' only
after the last change.
With ``synchronous=off`` SQLite syncs nothing, so that the disk may have a new row and old pages, or
the reverse. Changes of these rows are therefore synced with all earlier changes.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Final

from s3fs_meta import machine
from s3fs_meta.cache.files.block_files import sync_disk
from s3fs_meta.errors import DatabaseError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import local_state

_MARKS: Final = ("boot_id", "clean", "volatile")


def volatility(pragmas: Pragmas) -> str:
    """Return the event that may lose committed rows: ``crash``, ``power`` (loss) or ``nothing``."""
    if pragmas.journal_mode in {"off", "memory"}:
        return "crash"
    return "nothing" if pragmas.survives_power_loss else "power"


def sync_from_now(db: Database) -> None:
    """Sync all earlier commits, and let SQLite sync all later commits. The call blocks.

    Without ``synchronous=off`` nothing is done: SQLite then makes the syncs that a mark needs, or
    with a WAL the caller calls ``sync_wal``. The files of the database are not opened, because
    closing a descriptor would release SQLite's locks (fcntl(2)).

    Raises:
        OSError: the disk failed.
    """
    if db.pragmas.synchronous != "off":
        return
    directory = os.open(db.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_disk(directory, db.path.parent)
    finally:
        os.close(directory)
    db.connection.pragma("synchronous", "full")


@contextlib.contextmanager
def synced(db: Database) -> Iterator[None]:
    """Sync all earlier commits, and the commits of the with-block; see ``sync_from_now``."""
    sync_from_now(db)
    try:
        yield
    finally:
        if db.pragmas.synchronous == "off":
            db.connection.pragma("synchronous", "off")


@contextlib.contextmanager
def unclean(db: Database) -> Iterator[None]:
    """Record, during the with-block, that a crash may damage the database under unsafe settings.

    Use this to change a database that was closed cleanly or was just restored. The record remains
    if an error left a group open. It also remains if a change failed under journal_mode=off: the
    change was not undone, so the database refuses all further changes.
    """
    before = {name: local_state.get(db, name) for name in _MARKS}
    is_unused = before["clean"] == "1" or before["boot_id"] is None
    if not is_unused or volatility(db.pragmas) == "nothing":
        yield
        return
    memory = machine.memory_of(db.path.parent)
    _note(db, {"boot_id": memory, "clean": "0", "volatile": volatility(db.pragmas)})
    try:
        yield
    finally:
        if not db.in_group:
            with contextlib.suppress(DatabaseError):
                _note(db, before)


def _note(db: Database, marks: Mapping[str, str | None]) -> None:
    with synced(db):
        db.begin_local()
        for name, value in marks.items():
            if value is None:
                local_state.delete(db, name)
            else:
                local_state.put(db, name, value)
        db.commit()
