"""The rows that record whether the last process ended cleanly, and which state is doubtful.

Owns: the rows ``clean``, ``volatile`` and ``boot_id`` of ``local_state``, and their syncs.
Does not know: the use of a doubtful database (``local_state_choice``).
Keeps: in a mount for writing, ``clean`` is durable as '0' before any other change, and as '1' only
after the last change.
With ``synchronous=off`` SQLite syncs nothing, so the disk may have a new row together with old
pages, or the reverse. A change of these rows is therefore synced together with all earlier changes.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from s3fs_meta import machine
from s3fs_meta.cache.files.block_files import sync_disk
from s3fs_meta.errors import DatabaseError, S3fsError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import local_state

_log = logging.getLogger(__name__)

_MARKS: Final = ("boot_id", "clean", "volatile")


def volatility(pragmas: Pragmas) -> str:
    """Return the event that loses committed rows: ``crash``, ``power`` (loss) or ``nothing``."""
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
    _sync_disk_of(db)
    db.connection.pragma("synchronous", "full")


def _sync_disk_of(db: Database) -> None:
    directory = os.open(db.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_disk(directory, db.path.parent)
    finally:
        os.close(directory)


@contextlib.contextmanager
def synced(db: Database) -> Iterator[None]:
    """Sync all earlier commits, and the commits in the with-block (see ``sync_from_now``)."""
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


def is_power_lost(db: Database, state: Path) -> bool:
    """Return whether power was lost and no mount has recovered the state since then.

    A mount may have recorded the power loss. A power loss is also assumed if, after an unclean
    shutdown, the machine was rebooted or the disk was attached again.

    Args:
        db: the database of the local state, which may be quarantined.
        state: the state directory.
    """
    if local_state.get(db, "power_lost") == "1":
        return True
    if local_state.get(db, "clean") == "1":
        return False
    return machine.has_forgotten(local_state.get(db, "boot_id"), machine.memory_of(state))


def settle_before_quarantine(db: Database) -> None:
    """Sync the local state, and record whether its power was lost. The call blocks.

    Without this record, ``recover-state`` would treat the next reboot as a power loss, and report
    unsynced content as lost. A failure is only logged, because the state is quarantined anyway.
    If the quarantine does not take place, the next mount may use the state. The row ``changed``
    then makes this mount upload changes that only the rows show.
    """
    try:
        if is_power_lost(db, db.path.parent):
            marks = {"power_lost": "1"}
        else:
            _sync_disk_of(db)
            marks = {"clean": "1", "changed": "1"}
        _note(db, marks)
        db.sync_wal()
    except (S3fsError, OSError) as exc:
        _log.warning(
            "the local state in %s could not be synced before its quarantine, so after a reboot"
            " s3fs-meta recover-state may report content as lost: %s",
            db.path.parent,
            exc,
        )


def _note(db: Database, marks: Mapping[str, str | None]) -> None:
    with synced(db):
        db.begin_local()
        for name, value in marks.items():
            if value is None:
                local_state.delete(db, name)
            else:
                local_state.put(db, name, value)
        db.commit()
