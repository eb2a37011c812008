"""Translation of SQLite's errors into ours.

Owns: the translation. Used by every module of ``meta`` that touches a connection.
"""

from typing import Final

import apsw

from s3fs_meta.errors import DatabaseError, DatabaseFullError, FormatError, S3fsError

_DAMAGE: Final = (apsw.CorruptError, apsw.NotADBError)


def translated(exc: apsw.Error, path: str) -> S3fsError:
    """Return our error for one of SQLite's; the caller raises it ``from`` the other."""
    text = str(exc) or type(exc).__name__
    if isinstance(exc, apsw.FullError):
        return DatabaseFullError(f"the disk below {path!r} is full: {text}")
    if isinstance(exc, _DAMAGE):
        return FormatError(path, text)
    return DatabaseError(f"SQLite failed on {path!r}: {text}")
