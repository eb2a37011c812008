"""Time, as a value that tests can replace.

Owns: reading the wall clock. Monotonic time for deadlines is trio's.
"""

import errno
import fcntl
import functools
import os
from typing import Final, Protocol

_MFD_NOEXEC_SEAL: Final = 8  # linux/memfd.h; a machine may forbid other kinds (vm.memfd_noexec)


class Clock(Protocol):
    """Source of wall-clock time."""

    def now_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's clock, as the kernel reads it when it stamps a file.

    The kernel sets the times of what is written, we those of what is made, and whichever comes
    later must not be the older one, to make(1) and to relatime. No clock of clock_gettime(2) does
    that: the kernel stamps with its coarse clock, up to a tick behind the fine one; but since
    Linux 6.13 with the last fine time that any file was given, where that is later (fs/inode.c,
    inode_set_ctime_current). So the kernel is let to stamp a file, and that is the time.

    Raises:
        OSError: that file, which is in memory, cannot be made: most often, too many are open.
    """

    def __init__(self) -> None:
        self._fd = _file_to_stamp()

    def now_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC; no stamp of the kernel's before is later."""
        os.utime(self._fd)
        return os.fstat(self._fd).st_ctime_ns


@functools.cache
def _file_to_stamp() -> int:
    """Return the descriptor of the one file of this process, open until it ends.

    Its number is above 2, also if the caller has closed the three that a daemon redirects.
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
        return os.memfd_create("s3fs-meta-clock")  # Linux before 6.3
