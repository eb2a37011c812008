"""The directory of a local store: whether its disk is mounted, and the lock file in it.

Owns: recognising a missing directory and an empty mount point; opening the lock file.
Does not know: objects, when the lock is held (``local``).
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from s3fs_meta.errors import UsageError
from s3fs_meta.hashed_dir import DIRECTORY_MODE, FILE_MODE, can_lock

# Errors of a change on a read-only disk, or without write permission.
_NOT_WRITABLE: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def is_absent(root: Path) -> bool:
    """Return whether a path does not exist, or is an empty directory such as a mount point.

    Raises:
        OSError: the disk failed.
    """
    try:
        with os.scandir(root) as entries:
            return next(entries, None) is None
    except FileNotFoundError:
        return True
    except (NotADirectoryError, PermissionError):
        return False


def make_root_directory(root: Path) -> None:
    """Create the directory of a store and its missing parents.

    Raises:
        UsageError: the directory cannot be created.
    """
    try:
        root.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as exc:
        why = "it is not a directory" if isinstance(exc, FileExistsError) else exc.strerror
        text = f"directory {os.fspath(root)!r} cannot be created: {why}"
        raise UsageError(text) from exc


def open_lock(path: Path, flags: int) -> int:
    """Open a lock file, for writing if possible: NFS requires this for an exclusive lock.

    Source: flock(2), "NFS details".
    """
    try:
        return os.open(path, os.O_RDWR | flags | os.O_CLOEXEC, FILE_MODE)
    except OSError as exc:
        if flags & os.O_CREAT or exc.errno not in _NOT_WRITABLE:
            raise
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def is_free(fd: int, path: Path) -> bool:
    """Make a lock exclusive, if no other store is open; return whether this succeeded."""
    try:
        return can_lock(fd, path)
    except OSError as exc:
        if exc.errno != errno.EBADF:
            raise
        return False  # the disk is a read-only NFS mount, so no leftovers can be removed


@contextlib.contextmanager
def suppress_read_only() -> Iterator[None]:
    """Suppress errors from a read-only filesystem or missing write permission."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in _NOT_WRITABLE:
            raise
