"""Opening SQLite connections, and translation of SQLite's exceptions into our errors.

Owns: the translation of errors, the settings of every connection. They assume an untrusted file,
because the schema of an image comes from the bucket.
Does not know: pragmas that users choose (``pragmas``), groups, tables.
Keeps: no trigger or view of a database runs, and its schema calls only functions without side
effects. A page with inconsistent cells raises an error, and never causes a read past its memory. A
value or definition longer than any valid one raises an error before memory is allocated for it.
Source: https://www.sqlite.org/security.html, "Untrusted SQLite Database Files". Our own temporary
views still work (since SQLite 3.35).
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from s3fs_meta.errors import DatabaseError, DatabaseFullError, FormatError, S3fsError
from s3fs_meta.limits import (
    DATABASE_BUSY_MS,
    DATABASE_SQL_BYTES_MAX,
    DATABASE_VALUE_BYTES_MAX,
    STATEMENTS_CACHED_MAX,
)

_DAMAGE: Final = (apsw.CorruptError, apsw.NotADBError, apsw.TooBigError)


def connect(
    path: Path | str,
    *,
    read_only: bool,
    defensive: bool = False,
    value_bytes_max: int = DATABASE_VALUE_BYTES_MAX,
) -> apsw.Connection:
    """Open an existing database file.

    Args:
        value_bytes_max: a longer row or value raises an error before memory is allocated for it.
        defensive: forbid SQL that could damage the file, because the file is not verified yet. Not
        for a database in use, because the setting makes ``journal_mode=off`` ineffective.

    Raises:
        apsw.Error: the file cannot be opened, or is not a database.
    """
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    connection = apsw.Connection(str(path), flags=flags, statementcachesize=STATEMENTS_CACHED_MAX)
    try:
        connection.set_busy_timeout(DATABASE_BUSY_MS)
        _distrust(connection, value_bytes_max, defensive=defensive)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_damaged(path: Path, value_bytes_max: int) -> apsw.Connection:
    """Open a file read-only in which pages may be missing; no process may change it meanwhile.

    Args:
        value_bytes_max: a longer row or value raises an error before memory is allocated for it.

    Raises:
        apsw.Error: the file is not a database.
    """
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags)
    try:
        _distrust(connection, value_bytes_max, defensive=True)
    except BaseException:
        connection.close()
        raise
    return connection


def in_memory() -> apsw.Connection:
    """Return an empty database in memory; the caller closes it."""
    connection = apsw.Connection(":memory:")
    _distrust(connection, DATABASE_VALUE_BYTES_MAX, defensive=False)
    return connection


@contextlib.contextmanager
def short_values(connection: apsw.Connection, value_bytes_max: int) -> Iterator[None]:
    """In a ``with`` block, let longer rows and values raise apsw.TooBigError."""
    before = connection.limit(apsw.SQLITE_LIMIT_LENGTH, value_bytes_max)
    try:
        yield
    finally:
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, before)


def _distrust(connection: apsw.Connection, value_bytes_max: int, *, defensive: bool) -> None:
    connection.limit(apsw.SQLITE_LIMIT_LENGTH, value_bytes_max)
    connection.limit(apsw.SQLITE_LIMIT_SQL_LENGTH, DATABASE_SQL_BYTES_MAX)
    for setting, value in (
        (apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
        (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0),
        (apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0),
        (apsw.SQLITE_DBCONFIG_DEFENSIVE, int(defensive)),
        # Without the planner's stability guarantee a SQLite with STAT4 prepares a join again
        # whenever parameters are bound: 20 us for a lookup instead of 2.
        (apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1),
    ):
        connection.config(setting, value)
    connection.pragma("cell_size_check", 1)


def translated(exc: apsw.Error, path: str) -> S3fsError:
    """Return our error for an exception of SQLite; the caller raises it ``from`` that exception."""
    text = str(exc) or type(exc).__name__
    if isinstance(exc, apsw.FullError):
        return DatabaseFullError(f"the disk below {path!r} is full: {text}")
    if isinstance(exc, _DAMAGE):
        return FormatError(path, text)
    return DatabaseError(f"SQLite failed on {path!r}: {text}")
