"""The record of a failed sync; it is in the state directory whose files were synced.

Owns: the file ``failed-sync``. Does not know: the file whose sync failed, the repair by the next
mount (``sync.opening.failed_sync``).
Keeps: the thread of the failed call writes the record before the call returns. The file is created
at its full length when the filesystem is opened. It can therefore be overwritten even on a full
disk, a frequent reason for a failed sync. The record need not be durable, because it is only about
pages in memory. Design: docs/design/durability.md, "From write to fsync".
"""

import logging
import os
from pathlib import Path
from typing import Final

from s3fs_meta import machine
from s3fs_meta.state_paths import open_regular, read_regular

_log = logging.getLogger(__name__)

NAME: Final = "failed-sync"
_RECORD_BYTES: Final = 128  # size of the record; memory_of() returns at most 80 characters
_NOTHING: Final = bytes(_RECORD_BYTES)


def prepare(state: Path) -> None:
    """Create the file of the record if it is missing. After an error, ``note`` tries again."""
    try:
        if not (state / NAME).exists():
            _write(state, _NOTHING)
    except OSError as exc:
        _log.info(
            "cannot create the file %s, which records a failed sync: %s", state / NAME, exc.strerror
        )


def note(state: Path) -> None:
    """Record that a sync of the local state has failed. Any thread may call this function."""
    try:
        _write(state, machine.memory_of(state).encode().ljust(_RECORD_BYTES, b"\0"))
    except OSError as exc:
        _log.error(
            "fsync of the local state failed, and %s cannot record this (%s);"
            " reboot before the next mount",
            state / NAME,
            exc.strerror,
        )


def forget(state: Path) -> None:
    """Clear the record of a failed sync, after all files became durable. Raises OSError."""
    _write(state, _NOTHING)


def is_noted(state: Path) -> bool:
    """Return whether a sync failed since the boot, so that cached pages may differ from the disk."""
    try:
        record = read_regular(state / NAME, _RECORD_BYTES)
    except FileNotFoundError:
        return False
    before = record.rstrip(b"\0").decode("ascii", "replace")
    return bool(before) and not machine.has_forgotten(before, machine.memory_of(state))


def _write(state: Path, record: bytes) -> None:
    fd = open_regular(state / NAME, os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(fd, record, 0)
    finally:
        os.close(fd)
