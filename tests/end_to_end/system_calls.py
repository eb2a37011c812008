"""System calls that Python lacks, calls as another user, and checks of expected errnos."""

import ctypes
import os
import pickle
import struct
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import pytest

_Result = TypeVar("_Result")

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.getdents64.restype = ctypes.c_ssize_t

AT_FDCWD: Final = -100
CLOCK_REALTIME_COARSE: Final = 5  # The time of the last clock tick: see clock_gettime(2).
RENAME_NOREPLACE: Final = 1
RENAME_EXCHANGE: Final = 2
UTIME_NOW: Final = (1 << 30) - 1
UTIME_OMIT: Final = (1 << 30) - 2


def _checked(result: int, path: Path) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    return result


def renameat2(old: Path, new: Path, flags: int) -> None:
    """Rename with RENAME_NOREPLACE or RENAME_EXCHANGE."""
    done = _libc.renameat2(
        AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), ctypes.c_uint(flags)
    )
    _checked(done, old)


def utimensat(path: Path, atime: tuple[int, int], mtime: tuple[int, int]) -> None:
    """Set atime and mtime; each is given as seconds and nanoseconds, UTIME_NOW or UTIME_OMIT."""
    times = (ctypes.c_long * 4)(*atime, *mtime)
    _checked(_libc.utimensat(AT_FDCWD, os.fsencode(path), ctypes.byref(times), 0), path)


class Listed(NamedTuple):
    """An entry of a directory, and the position at which a listing continues after it."""

    name: bytes
    ino: int
    next_position: int


def read_entries(directory: int, buffer_bytes: int = 4096) -> list[Listed]:
    """Return the next entries of an open directory without "." and "..", or [] at its end."""
    buffer = ctypes.create_string_buffer(buffer_bytes)
    while True:
        count = _libc.getdents64(directory, buffer, ctypes.c_size_t(buffer_bytes))
        size_bytes = _checked(count, Path(str(directory)))
        entries = _parsed(buffer.raw[:size_bytes])
        found = [entry for entry in entries if entry.name not in {b".", b".."}]
        if found or not size_bytes:
            return found


def _parsed(data: bytes) -> list[Listed]:
    """Parse an array of struct linux_dirent64. Source: getdents64(2)."""
    found = []
    start = 0
    while start < len(data):
        ino, position, length = struct.unpack_from("=QqH", data, start)
        name = data[start + 19 : start + length].partition(b"\0")[0]
        found.append(Listed(name, ino, position))
        start += length
    return found


def read_all_entries(directory: int) -> list[Listed]:
    """Return all remaining entries of an open directory."""
    found: list[Listed] = []
    while entries := read_entries(directory):
        found += entries
    return found


def drop_page_cache(path: Path) -> None:
    """Write the dirty pages of a file and drop its page cache, so that reads reach the daemon."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def kernel_stamp_ns() -> int:
    """Return the time that the kernel would store in a file now.

    It comes from the kernel's fine-grained clock if there is one. No later change of a file has an
    earlier timestamp. Source: Linux 6.13, fs/inode.c.
    """
    with tempfile.TemporaryFile() as file:
        os.fstat(file.fileno())
        os.utime(file.fileno())
        return os.fstat(file.fileno()).st_ctime_ns


def wait_for_clock_tick() -> None:
    """Wait about 10 ms, so that later changes of files have a later timestamp."""
    before = time.time_ns()
    while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) <= before:
        pass


def as_user(
    uid: int, folder: Path, work: Callable[[], _Result], *, groups: tuple[int, ...] = ()
) -> _Result:
    """Call *work* in a process of another user; return its result, or raise its OSError.

    Args:
        uid: the user id and group id of the process.
        folder: the working directory of the process, set before it becomes the user. *work* must
            use relative paths, because the user may have no access to the parent directories.
        work: a function that only makes system calls, because it runs in a forked process.
        groups: the supplementary groups of the process.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python would warn about a fork while trio has idle threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _be_user(uid, folder, work, groups, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    assert data, "the child process exited before it reported its result"
    result, error = pickle.loads(data)
    if error is not None:
        raise OSError(error, os.strerror(error))
    outcome: _Result = result
    return outcome


def _be_user(
    uid: int, folder: Path, work: Callable[[], object], groups: tuple[int, ...], writer: int
) -> None:
    """Become another user, call a function and report its result; never return."""
    status = 1
    try:
        os.chdir(folder)
        os.setgroups(groups)
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        try:
            outcome: tuple[object, int | None] = (work(), None)
        except OSError as exc:
            outcome = (None, exc.errno)
        os.write(writer, pickle.dumps(outcome))
        status = 0
    finally:
        os._exit(status)


def refused(code: int) -> "pytest.RaisesExc[OSError]":
    """Require that the ``with`` block raises an OSError with the given errno."""
    return pytest.raises(OSError, check=lambda exc: exc.errno == code)
