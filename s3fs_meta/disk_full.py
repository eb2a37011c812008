"""Writes that fail because a local disk is full: the errnos, and an error with advice.

Owns: the sets of errnos, the advice. Does not know: the effect of a full disk on a request.
Source: write(2), open(2).
"""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from s3fs_meta.errors import DatabaseFullError

FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

# Errors that the program ignores when it reserves disk space: it also writes without reservation.
# EFBIG reports that a file exceeds RLIMIT_FSIZE or the maximum file size of the filesystem.
NO_ROOM_ERRNOS: Final = FULL_ERRNOS | {errno.EFBIG}


@contextlib.contextmanager
def advising(directory: Path) -> Iterator[None]:
    """Add advice to an error that the with-block raises about a full disk below a directory.

    Raises:
        DatabaseFullError: a file in the directory cannot be created or written.
    """
    try:
        yield
    except OSError as exc:
        if exc.errno not in FULL_ERRNOS or exc.filename is None:
            raise
        if not Path(exc.filename).is_relative_to(directory):
            raise
        raise DatabaseFullError(
            f"the disk that contains {str(exc.filename)!r} is full, or has no free inodes"
            f" ({exc.strerror}); delete some files on it"
        ) from exc
