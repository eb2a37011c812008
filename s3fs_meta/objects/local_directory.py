"""The directory of a local store: whether its disk is mounted, and the lock file in it.

Owns: recognising a missing directory and an empty mount point; opening the lock file. It contains a
random identity of the directory, which distinguishes two disks that are mounted at the same path.
Does not know: objects, when the lock is held (``local``).
"""

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from s3fs_meta.errors import UsageError
from s3fs_meta.hashed_dir import DIRECTORY_MODE, FILE_MODE, can_lock

_IDENTITY_BYTES: Final = 16  # number of random bytes, which are written as hexadecimal digits
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
        return _open_regular(path, os.O_RDWR | flags)
    except OSError as exc:
        if flags & os.O_CREAT or exc.errno not in _NOT_WRITABLE:
            raise
    return _open_regular(path, os.O_RDONLY)


def _open_regular(path: Path, flags: int) -> int:
    """Open a file, but no link and no special file; opening a FIFO does not block."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, FILE_MODE)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), os.fspath(path))


def identity_of(fd: int) -> bytes:
    """Return the identity in an open lock file, or b"" if no store has written yet."""
    return os.pread(fd, 2 * _IDENTITY_BYTES, 0)


def write_identity(path: Path) -> bytes:
    """Return the identity in a lock file; first write one if the file is empty.

    The caller must exclude other processes.

    Returns:
        b"" if the file can be opened only for reading.
    """
    fd = open_lock(path, 0)
    try:
        found = identity_of(fd)
        if found or fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            return found
        made = secrets.token_hex(_IDENTITY_BYTES).encode()
        try:
            os.pwrite(fd, made, 0)
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, 0)  # an identity that is not durable could be lost with the disk
            raise
        return made
    finally:
        os.close(fd)


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
