"""The wall clock, which tests can replace.

Owns: reading the wall clock. Deadlines use trio's monotonic clock.
"""

import errno
import fcntl
import functools
import os
from typing import Final, Protocol

_MFD_NOEXEC_SEAL: Final = 8  # from linux/memfd.h; sysctl vm.memfd_noexec may require this flag


class Clock(Protocol):
    """A source of wall-clock time, which tests can replace."""

    def now_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The clock of the machine, which is never behind the times that the kernel assigns to files.

    The kernel sets the times of files that are written; this program sets the times of files that
    are created. make(1) and relatime require that a later change never has an earlier time. No
    clock of clock_gettime(2) guarantees this: the kernel uses its coarse clock, which is up to a
    tick behind the fine clock. Since Linux 6.13 the kernel instead uses the last fine time given to
    any file, if that is later (fs/inode.c, inode_set_ctime_current). So this class makes the kernel
    set the time of a file in memory, and reads that time.

    Raises:
        OSError: the file in memory cannot be created, usually because too many files are open.
    """

    def __init__(self) -> None:
        self._fd = _file_to_stamp()

    def now_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC, never less than the kernel's last file time."""
        os.utime(self._fd)
        return os.fstat(self._fd).st_ctime_ns


@functools.cache
def _file_to_stamp() -> int:
    """Return the descriptor of a file in memory, which stays open until the process exits.

    The descriptor is above 2, even if the caller has closed the descriptors 0 to 2.
    """
    fd = _memory_file()
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def _memory_file() -> int:
    try:
        return os.memfd_create("s3fs-meta-clock", os.MFD_CLOEXEC | _MFD_NOEXEC_SEAL)
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
        return os.memfd_create("s3fs-meta-clock")  # Linux before 6.3 rejects the flag
