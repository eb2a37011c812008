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

_log = logging.getLogger(__name__)

NAME: Final = "failed-sync"
_RECORD_BYTES: Final = 128  # size of the record; memory_of() returns at most 80 characters
_NOTHING: Final = bytes(_RECORD_BYTES)
_MAKE: Final = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


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
    """Return whether a sync failed since the boot; cached pages may then differ from the disk."""
    try:
        with (state / NAME).open("rb") as file:
            before = file.read(_RECORD_BYTES).rstrip(b"\0").decode("ascii", "replace")
    except FileNotFoundError:
        return False
    return bool(before) and not machine.has_forgotten(before, machine.memory_of(state))


def _write(state: Path, record: bytes) -> None:
    fd = os.open(state / NAME, _MAKE, 0o600)
    try:
        os.pwrite(fd, record, 0)
    finally:
        os.close(fd)
