"""Time, as a value that tests can replace.

Owns: reading the wall clock. Monotonic time for deadlines is trio's.
"""

import functools
import os
from typing import Protocol


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
        OSError: that file, which is in memory, cannot be made: too many are open.
    """

    def __init__(self) -> None:
        self._fd = _file_to_stamp()

    def now_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC; no stamp of the kernel's before is later."""
        os.utime(self._fd)
        return os.fstat(self._fd).st_ctime_ns


@functools.cache
def _file_to_stamp() -> int:
    """Return the descriptor of the one file of this process, open until it ends."""
    return os.memfd_create("s3fs-meta-clock")
