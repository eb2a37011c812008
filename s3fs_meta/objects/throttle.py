"""Limits of the rate of uploads and downloads: a token bucket for each direction.

Owns: the order and the delay of transfers. Does not know: when a program waits for an upload (the
callers of ``lifted`` do). Only packs and images are limited. A transfer waits until the rate allows
all of its bytes. The transfer then runs at full speed, because a store accepts only complete
objects. The bytes of a repeated attempt delay later transfers.
Keeps: trio's clock measures waiting. The wall clock only selects an entry of the timetable, so a
jump of the wall clock never causes a burst above RATE_BURST_S.
Tasks: any number of tasks may wait. Threads: none.
"""

import enum
import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import trio

from s3fs_meta.limits import RATE_BURST_S, RATE_CHECK_S
from s3fs_meta.model import ObjectKey
from s3fs_meta.options.rate_limit import RateLimit
from s3fs_meta.options.settings import CacheOptions

_LIMITED_KEYS: Final = ("pack/", "image/")  # key prefixes of file content and metadata images


class Rank(enum.IntEnum):
    """The rank of a waiting transfer; lower numbers are served first."""

    WANTED = 0  # a program is waiting for the result of the transfer
    BACKGROUND = 1


class _Waiting(NamedTuple):
    """One waiting transfer; transfers are served in ascending order of these tuples."""

    rank: Rank
    number: int
    size_bytes: int


def local_time() -> time.struct_time:
    """Return the local time in the current time zone of the machine.

    tzset(3) is called first, because localtime_r(3) keeps the time zone from the process's start.
    """
    time.tzset()
    return time.localtime()


class Throttle:
    """A token bucket for the transfers in one direction."""

    def __init__(
        self, limit: RateLimit, local_time: Callable[[], time.struct_time] = local_time
    ) -> None:
        self.limit = limit
        self._local_time = local_time
        self._balance = 0.0  # number of bytes that may be transferred now; negative after retries
        self._balance_at_s = -math.inf
        self._returned_bytes = 0  # bytes that callers took but did not transfer
        self._waiting: set[_Waiting] = set()
        self._numbers = itertools.count()
        self._changed = trio.Event()
        self._lifts = 0

    @property
    def bytes_per_s(self) -> int | None:
        """Return the rate that applies now, or None for no limit."""
        if self._lifts and not self.limit.strict:
            return None
        return self.limit.bytes_per_s(self._local_time())

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes of all waiting transfers."""
        return sum(one.size_bytes for one in self._waiting)

    def set(self, limit: RateLimit) -> None:
        """Replace the rate limit, also for waiting transfers. Never yields to other tasks."""
        self.limit = limit
        self._wake()

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Suspend a limit that is not strict while a program waits. Never yields to other tasks."""
        self._lifts += 1
        self._wake()
        try:
            yield
        finally:
            self._lifts -= 1

    async def take(self, size_bytes: int, rank: Rank = Rank.BACKGROUND) -> int:
        """Wait until the rate allows a transfer of *size_bytes*; return the bytes taken.

        No bytes are taken while no limit applies.

        Waiting transfers of one rank continue in the order of their calls. The call yields to other
        tasks only if a limit applies.
        """
        if self._accrued() is None:
            self._returned_bytes = 0
            return 0
        waiting = _Waiting(rank, next(self._numbers), size_bytes)
        self._waiting.add(waiting)
        try:
            while (rate := self._accrued()) is not None:
                lacking = math.inf
                if min(self._waiting) is waiting:
                    lacking = size_bytes - self._balance - self._returned_bytes
                    if lacking < 1:  # a rounding error may leave less than one byte
                        returned_bytes = min(self._returned_bytes, size_bytes)
                        self._returned_bytes -= returned_bytes
                        self._balance -= size_bytes - returned_bytes
                        return size_bytes
                with trio.move_on_after(min(lacking / rate, RATE_CHECK_S)):
                    await self._changed.wait()
            return 0
        finally:
            self._waiting.remove(waiting)
            self._wake()

    def give_back(self, size_bytes: int) -> None:
        """Let later transfers use bytes that the caller took but did not transfer.

        The bytes do not expire, because the rate has already allowed them. Never yields to other
        tasks.
        """
        if self.bytes_per_s is not None:
            self._returned_bytes += size_bytes
            self._wake()

    def charge(self, size_bytes: int) -> None:
        """Subtract bytes that were transferred without ``take``. Never yields to other tasks."""
        if self._accrued() is not None:
            self._balance -= size_bytes

    def _accrued(self) -> int | None:
        """Add the bytes that the rate has allowed since the last call; return the rate.

        Unused bytes accumulate up to RATE_BURST_S, or up to the largest waiting transfer.
        """
        now_s = trio.current_time()
        passed_s = min(now_s - self._balance_at_s, _LONG_S)
        self._balance_at_s = now_s
        rate = self.bytes_per_s
        if rate is None:
            self._balance = min(self._balance, 0.0)
            return None
        most = max((float(one.size_bytes) for one in self._waiting), default=0.0)
        most = max(most, rate * RATE_BURST_S)
        self._balance = min(self._balance + passed_s * rate, most)
        return rate

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


# Maximum time for which one call adds bytes; the time since the last call may be infinite.
_LONG_S: Final = 7 * 86_400.0


class Throttles(NamedTuple):
    """The token buckets of one mount."""

    upload: Throttle
    download: Throttle

    def charge(self, key: ObjectKey, sent_bytes: int, received_bytes: int) -> None:
        """Charge the bytes of a retried request to the token buckets of both directions."""
        if key.startswith(_LIMITED_KEYS):
            self.upload.charge(sent_bytes)
            self.download.charge(received_bytes)


def throttles_of(options: CacheOptions) -> Throttles:
    """Return the token buckets of a mount with the given options."""
    return Throttles(Throttle(options.upload_limit), Throttle(options.download_limit))
