"""The speed of recent uploads.

Owns: the speed of uploads while at least one runs; ``status`` reports it with the remaining time.
Does not know: packs.
"""

from collections import deque
from typing import NamedTuple

from s3fs_meta.limits import UPLOADS_MEASURED, UPLOADS_MEASURED_S


class Speed(NamedTuple):
    """The speed of the last uploads, in bytes per second."""

    sent_bytes: float  # rate of the packs as they were sent
    content_bytes: float  # rate of the blocks in these packs before compression

    def within(self, sent_bytes_max: int | None) -> "Speed":
        """Return the speed, capped at a maximum transfer rate (None: no maximum)."""
        if sent_bytes_max is None or self.sent_bytes <= sent_bytes_max:
            return self
        return Speed(sent_bytes_max, self.content_bytes / self.sent_bytes * sent_bytes_max)


class _Upload(NamedTuple):
    begun_s: float
    ended_s: float
    sent_bytes: int
    content_bytes: int


class Throughput:
    """Measures the speed of the most recent successful uploads of packs."""

    def __init__(self) -> None:
        self._uploads: deque[_Upload] = deque(maxlen=UPLOADS_MEASURED)
        self.sent_bytes = 0  # total size of the packs sent since the mount

    def add(self, begun_s: float, ended_s: float, *, sent_bytes: int, content_bytes: int) -> None:
        """Record an upload that succeeded; times are taken from trio's clock."""
        self._uploads.append(_Upload(begun_s, ended_s, sent_bytes, content_bytes))
        self.sent_bytes += sent_bytes

    def speed(self, now_s: float) -> Speed | None:
        """Return the speed of the last uploads, or None if no upload has finished for a while.

        The time between uploads is left out; time in which several uploads run is counted only
        once.
        """
        recent = [one for one in self._uploads if now_s - one.ended_s <= UPLOADS_MEASURED_S]
        busy_s, until_s = 0.0, float("-inf")
        for one in sorted(recent):
            busy_s += max(one.ended_s - max(one.begun_s, until_s), 0.0)
            until_s = max(until_s, one.ended_s)
        if busy_s <= 0:
            return None
        return Speed(
            sum(one.sent_bytes for one in recent) / busy_s,
            sum(one.content_bytes for one in recent) / busy_s,
        )
