"""Changing the page size of a database that no process has open.

Owns: the conversion. Under WAL SQLite ignores the pragma page_size, and a VACUUM in place needs
temporary space in another directory. So a new file is written next to the database and then renamed
to replace it. A crash leaves the complete old or new database, and perhaps an unused file.
Source: https://www.sqlite.org/lang_vacuum.html, "VACUUM INTO".
"""

import os
from pathlib import Path
from typing import Final

import apsw

from s3fs_meta.errors import FormatError
from s3fs_meta.limits import DATABASE_BUSY_MS
from s3fs_meta.meta.db import connections, counters
from s3fs_meta.meta.db.connections import note_failed_sync, translated
from s3fs_meta.meta.db.local_disk import create_empty, sync_directory
from s3fs_meta.meta.db.pragmas import Pragmas

_SUFFIX: Final = "-resized"


def change_page_size(path: Path, page_size: int, *, busy_ms: int = DATABASE_BUSY_MS) -> None:
    """Rewrite a database with another page size. The disk needs space for a second database.

    The new file has journal_mode=delete, and so may the old file after an error; when the file is
    opened, the configured mode is set. The call takes a long time. After an error, the database has
    its old page size and the same rows.

    Args:
        busy_ms: longest wait, in ms, for other processes that use the database.

    Raises:
        UsageError: SQLite does not support the page size.
        DatabaseError: the disk is full, or another process uses the database.
        FormatError: a check of the new file failed.
    """
    Pragmas(page_size=page_size).validate()
    resized = path.with_name(path.name + _SUFFIX)
    resized.unlink(missing_ok=True)
    try:
        _write_resized(path, resized, page_size, busy_ms)
        os.replace(resized, path)
    except apsw.Error as exc:
        note_failed_sync(exc, path)
        raise translated(exc, str(path)) from exc
    finally:
        resized.unlink(missing_ok=True)
    sync_directory(path.parent)


def _write_resized(path: Path, resized: Path, page_size: int, busy_ms: int) -> None:
    old = connections.connect(path, read_only=False)
    try:
        old.set_busy_timeout(busy_ms)
        old.pragma("locking_mode", "exclusive")
        old.pragma("journal_mode", "delete")  # switch from WAL, so that the old file needs no log
        before = old.execute(counters.SELECT).fetchall()
        create_empty(resized)
        old.pragma("page_size", page_size)
        old.execute("VACUUM INTO ?", (str(resized),))
    finally:
        old.close()
    new = connections.connect(resized, read_only=True)
    try:
        is_intact = new.pragma("quick_check") == "ok" and new.pragma("page_size") == page_size
        if not is_intact or new.execute(counters.SELECT).fetchall() != before:
            raise FormatError(str(resized), "the converted database differs from the original")
    finally:
        new.close()
    fd = os.open(resized, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
