"""Times of requests as a histogram: its differences and its quantiles.

Owns: the arithmetic. Does not know: where the counts are from (``fuse.request_times``).
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Histogram:
    """The requests of one operation by the time that they took."""

    bounds_s: tuple[float, ...]  # upper bounds of the buckets, ascending, inclusive
    counts: tuple[int, ...]  # one for each bucket, and one for requests above the last bound
    total_s: float

    @property
    def count(self) -> int:
        """Return the number of requests."""
        return sum(self.counts)

    def cumulated(self) -> list[int]:
        """Return for each bound, and for infinity, the requests that took at most this time."""
        return list(itertools.accumulate(self.counts))

    def since(self, earlier: "Histogram | None") -> "Histogram":
        """Return the requests that an earlier reading of the same mount does not have."""
        if earlier is None:
            return self
        counts = tuple(now - then for now, then in zip(self.counts, earlier.counts, strict=True))
        if min(counts) < 0:
            return self  # the daemon was started again between the readings
        return Histogram(self.bounds_s, counts, self.total_s - earlier.total_s)

    def quantile_s(self, part: float) -> float | None:
        """Return the time within which *part* of the requests was answered; None without any.

        The result is interpolated within its bucket; infinity if it is above the last bound.
        """
        wanted, before = part * self.count, 0
        if not self.count:
            return None
        lower_s = 0.0
        for bound_s, count in zip(self.bounds_s, self.counts, strict=False):
            if count and before + count >= wanted:
                return lower_s + (bound_s - lower_s) * (wanted - before) / count
            before, lower_s = before + count, bound_s
        return math.inf


def histograms(figures: Mapping[str, Any]) -> dict[str, Histogram]:
    """Return the histograms of all operations from the figures of a mount.

    A daemon of an older version has none.
    """
    times = figures.get("latency")
    if not times:
        return {}
    return {
        name: Histogram(tuple(times["bounds_s"]), tuple(one["counts"]), one["total_s"])
        for name, one in times["operations"].items()
    }
