"""Time, as a value that tests can replace.

Owns: reading the wall clock. Monotonic time for deadlines is trio's.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Source of wall-clock time."""

    def now_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC."""
        return time.time_ns()
