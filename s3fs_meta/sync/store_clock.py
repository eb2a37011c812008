"""This host's clock, and its difference from the store's clock.

Owns: the comparison of the clocks, and the time for changelogs: this host's time, or the store's
time if the clocks disagree. Does not know: garbage collection, its callers.
Keeps: the time of a txg does not come from a clock of this host that is known to be wrong. The
clocks are compared before a host writes, and again when this host's clock jumps. Times of earlier
txgs prove nothing, because the filesystem may have been idle for years.
Tasks: any task; a measurement is one request.
Design: docs/design/durability.md, "Clocks".
"""

import logging

import trio

from s3fs_meta.clock import Clock
from s3fs_meta.errors import ClockError
from s3fs_meta.limits import CLOCK_OFF_S_MAX
from s3fs_meta.objects.contract import ObjectStore

_log = logging.getLogger(__name__)

_S: int = 1_000_000_000


class StoreClock:
    """A clock that stays close to the store's clock, for times that other hosts read."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        """Use this host's clock until the first measurement."""
        self._store = store
        self._clock = clock
        self.offset_ns = 0  # the store's time minus this host's time; 0 if the clocks agree
        self._checked_ns = 0  # this host's wall-clock time at the last measurement
        self._checked_s = 0.0  # this host's monotonic time at the last measurement
        self.difference = ""  # the difference of the clocks as text; "" if they agree
        self.disagreement = ""  # effect of the difference on a writer, as one line of text

    def now_ns(self) -> int:
        """Return this host's time, corrected by the measured offset, in ns since 1970-01-01 UTC."""
        return self._clock.now_ns() + self.offset_ns

    async def measure_for_reading(self) -> None:
        """Compare the clocks if the store's clock can be read without writing to the store."""
        if self._store.has_own_clock:
            await self.measure()

    async def compare(self) -> None:
        """Compare the clocks, and log it when they start to disagree.

        Raises:
            StoreError: the store is unavailable; the result of the last comparison stays valid.
        """
        before = self.disagreement
        await self.measure()
        if self.disagreement and not before:
            _log.warning("%s", self.disagreement)

    async def measure(self) -> None:
        """Compare the clocks without logging. Raises the same errors as ``compare``.

        If the store does not report its time, the result of the last comparison stays valid.
        """
        before_ns = self._clock.now_ns()
        theirs_ns = await self._store.now_ns()
        after_ns = self._clock.now_ns()
        self._checked_ns, self._checked_s = after_ns, trio.current_time()
        if theirs_ns is None:
            return
        # the store read its clock between the two readings of this host's clock
        off_ns = theirs_ns - min(max(theirs_ns, before_ns), after_ns)
        if abs(off_ns) <= CLOCK_OFF_S_MAX * _S:
            self.offset_ns, self.difference, self.disagreement = 0, "", ""
            return
        self.offset_ns = off_ns
        direction = "behind" if off_ns > 0 else "ahead of"
        self.difference = (
            f"this host's clock is {_describe(abs(off_ns))} {direction} the clock of"
            f" {self._store.url}"
        )
        self.disagreement = (
            f"{self.difference}: new txgs use the store's time, and no garbage is deleted until "
            "the clocks agree; set the clock"
        )

    async def compare_after_a_jump(self) -> None:
        """Compare the clocks if this host's clock jumped or the host slept.

        Raises the same errors as ``compare``.
        """
        passed_ns = self._clock.now_ns() - self._checked_ns
        elapsed_ns = int((trio.current_time() - self._checked_s) * _S)
        if abs(passed_ns - elapsed_ns) > CLOCK_OFF_S_MAX * _S:
            await self.compare()

    async def require_agreement(self) -> None:
        """Compare the clocks; raise ClockError if they disagree.

        Raises:
            ClockError: the clocks disagree.
            StoreError: the store is unavailable.
        """
        await self.compare()
        if self.disagreement:
            raise ClockError(self.disagreement)


def is_later(created_ns: int, now_ns: int) -> bool:
    """Return whether the time of a txg is more than CLOCK_OFF_S_MAX seconds in the future."""
    return created_ns - now_ns > CLOCK_OFF_S_MAX * _S


def _describe(difference_ns: int) -> str:
    """Return a time difference as text, in a unit that is easy to read."""
    seconds = difference_ns // _S
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} seconds"
