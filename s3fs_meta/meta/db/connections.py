"""Opening SQLite connections, and translating SQLite's exceptions into errors of this program.

Owns: the translation of errors, the detection of failed syncs, the settings of every connection.
Does not know: pragmas that users choose (``pragmas``), commit groups, tables.
Keeps: every file is untrusted, because the schema of an image comes from the bucket. No trigger or
view of a database runs, and its schema calls only functions without side effects. A page with
inconsistent cells causes an error instead of a read outside the page. A value or definition that is
too long to be valid causes an error before memory is allocated.
Source: https://www.sqlite.org/security.html, "Untrusted SQLite Database Files". Temporary
views of this program still work (since SQLite 3.35).
"""

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from s3fs_meta import sync_failures
from s3fs_meta.errors import (
    DamagedDatabaseError,
    DatabaseError,
    DatabaseFullError,
    S3fsError,
    UsageError,
)
from s3fs_meta.limits import (
    DATABASE_BUSY_MS,
    DATABASE_SQL_BYTES_MAX,
    DATABASE_VALUE_BYTES_MAX,
    STATEMENTS_CACHED_MAX,
)
from s3fs_meta.state_paths import require_regular

_SUFFIXES: Final = ("", "-journal", "-wal", "-shm")  # a database and SQLite's files next to it
_DAMAGE: Final = (apsw.CorruptError, apsw.NotADBError, apsw.TooBigError)
# SQLite could not extend the -shm file. It does not report why; the usual reason is a full disk.
_NO_SHM_ROOM: Final = apsw.SQLITE_IOERR_SHMSIZE
# Errors that lose no written page: a failed read, or a -shm file that SQLite can create again.
_HARMLESS: Final = frozenset({apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ, _NO_SHM_ROOM})


def _keep_ctimes() -> None:
    """Prevent SQLite from changing the ctime of a log that it only opens.

    For root, SQLite sets the owner of each log that it opens to the owner of the database. The log
    already has this owner (``state_dir``), but fchown(2) would change its ctime, which must be the
    time of the last commit (``wal.last_change_ns``). So isatty(3) replaces fchown(2): it needs no
    interpreter lock, and SQLite ignores its result.
    """
    pointer = ctypes.cast(ctypes.CDLL(None).isatty, ctypes.c_void_p).value
    assert pointer is not None, "the address of a function is not null"
    unix = apsw.VFS("s3fs-meta system calls", "")
    unix.xSetSystemCall("fchown", pointer)
    unix.unregister()


_keep_ctimes()


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
        defensive: forbid SQL that could damage the file; meant for files that are not verified yet.
            Do not set it for a database in use, because it makes ``journal_mode=off`` ineffective.

    Raises:
        apsw.Error: the file cannot be opened, or is not a database.
    """
    _require_regular(path, "", "-wal", "-shm", "-journal")
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    # ``attached`` passes URIs to SQLite; an absolute path cannot be mistaken for a URI.
    flags |= apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(str(path), flags=flags, statementcachesize=STATEMENTS_CACHED_MAX)
    try:
        connection.set_busy_timeout(DATABASE_BUSY_MS)
        _distrust(connection, value_bytes_max, defensive=defensive)
    except BaseException:
        connection.close()
        raise
    return connection


def set_journal_mode(connection: apsw.Connection, mode: str, synchronous: str, path: Path) -> None:
    """Set the journal mode of a database, which no other connection may use except under WAL.

    Args:
        synchronous: the value of this pragma during the change and afterwards.

    Raises:
        UsageError: SQLite cannot use the mode for this file.
        apsw.Error: another connection uses the database, or the disk failed.
    """
    if mode != "wal":
        connection.pragma("locking_mode", "exclusive")
    connection.pragma("synchronous", synchronous)
    found = connection.pragma("journal_mode", mode)
    if found != mode:
        raise UsageError(
            f"SQLite cannot use journal_mode={mode} for {str(path)!r}: the mode is still {found}"
        )


def remove_files(path: Path) -> None:
    """Remove a database that no connection uses, with its journal and write-ahead log."""
    for suffix in _SUFFIXES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def read_only_uri(path: Path) -> str:
    """Return a URI with which SQLite opens a file read-only."""
    return f"file:{quote(str(path))}?mode=ro"


def immutable_uri(path: Path) -> str:
    """Return a URI with which SQLite opens an unchanging file read-only and without locks."""
    return f"file:{quote(str(path))}?immutable=1"


def connect_immutable(
    path: Path, value_bytes_max: int = DATABASE_VALUE_BYTES_MAX
) -> apsw.Connection:
    """Open an unchanging file read-only and without locks; pages of the file may be missing.

    Args:
        value_bytes_max: a longer row or value raises an error before memory is allocated for it.

    Raises:
        apsw.Error: the file is not a database.
    """
    _require_regular(path, "")
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(immutable_uri(path), flags=flags)
    try:
        _distrust(connection, value_bytes_max, defensive=True)
    except BaseException:
        connection.close()
        raise
    return connection


def _require_regular(path: Path | str, *suffixes: str) -> None:
    """Check the types of the files that SQLite opens, because open(2) of a FIFO would wait.

    Raises:
        apsw.CantOpenError: one of the entries is not a regular file.
    """
    for suffix in suffixes:
        try:
            require_regular(f"{path}{suffix}")
        except OSError as exc:
            raise apsw.CantOpenError(f"{exc.filename}: {exc.strerror}") from exc


def in_memory() -> apsw.Connection:
    """Return an empty database in memory; the caller closes it."""
    connection = apsw.Connection(":memory:")
    _distrust(connection, DATABASE_VALUE_BYTES_MAX, defensive=False)
    return connection


@contextlib.contextmanager
def short_values(connection: apsw.Connection, value_bytes_max: int) -> Iterator[None]:
    """Let SQLite raise apsw.TooBigError for long rows and values in a with-block."""
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
        # Keep SQLite with STAT4 from preparing a join again whenever parameters are bound.
        # Without this setting, a lookup takes 20 us instead of 2 us.
        (apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1),
    ):
        connection.config(setting, value)
    connection.pragma("cell_size_check", 1)


def note_failed_sync(exc: apsw.Error, path: Path) -> None:
    """Record a database error that may be due to a failed sync."""
    if isinstance(exc, apsw.IOError) and getattr(exc, "extendedresult", 0) not in _HARMLESS:
        sync_failures.note(path.parent)


def is_full(exc: apsw.Error) -> bool:
    """Return whether an SQLite exception reports a disk that is full, or probably full."""
    no_room = getattr(exc, "extendedresult", 0) == _NO_SHM_ROOM
    return no_room or isinstance(exc, apsw.FullError)


@contextlib.contextmanager
def translating(path: str) -> Iterator[None]:
    """Raise SQLite's exceptions in a with-block as errors of this program."""
    try:
        yield
    except (apsw.Error, UnicodeDecodeError) as exc:
        raise translated(exc, path) from exc


def translated(exc: apsw.Error | UnicodeDecodeError, path: str) -> S3fsError:
    """Return an S3fsError for an SQLite exception; the caller raises it ``from`` the exception.

    The driver raises UnicodeDecodeError for a damaged value that SQLite takes for text.
    """
    if isinstance(exc, UnicodeDecodeError):
        return DamagedDatabaseError(path, "a text value is not valid UTF-8")
    text = str(exc) or type(exc).__name__
    if is_full(exc):
        certainly = "is" if isinstance(exc, apsw.FullError) else "is probably"
        return DatabaseFullError(
            f"the disk that contains {path!r} {certainly} full ({text}); free some space on it"
        )
    if isinstance(exc, _DAMAGE):
        return DamagedDatabaseError(path, text)
    return DatabaseError(f"SQLite failed on {path!r}: {text}")
