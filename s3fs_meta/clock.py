"""Time, as a value that tests can replace.

Owns: reading the wall clock. Monotonic time for deadlines is trio's.
"""

import time
from typing import Final, Protocol

# Python has no name for it. Source: clock_gettime(2), linux/time.h.
_CLOCK_REALTIME_COARSE: Final = 5


class Clock(Protocol):
    """Source of wall-clock time."""

    def now_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's clock, as the kernel reads it when it stamps a file.

    The kernel sets the times of what is written, we those of what is made. A finer clock of ours
    would be ahead of the kernel's by up to a tick (4 ms at 250 Hz), and a file that is written
    right after another was made would be the older one of the two, to make(1) and to relatime.
    """

    def now_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC, of the last tick."""
        return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
