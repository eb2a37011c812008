"""Histograms of request latencies, with differences and quantiles.

Owns: the computations. Does not know: the source of the counts (``fuse.request_times``).
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Histogram:
    """The number of requests of one operation in each range of latencies."""

    bounds_s: tuple[float, ...]  # inclusive upper bounds of the buckets, ascending
    counts: tuple[int, ...]  # requests per bucket; the last bucket has no upper bound
    total_s: float

    @property
    def count(self) -> int:
        """Return the number of requests in the histogram."""
        return sum(self.counts)

    def cumulated(self) -> list[int]:
        """Return the number of requests up to each bound, and up to infinity."""
        return list(itertools.accumulate(self.counts))

    def since(self, earlier: "Histogram | None") -> "Histogram":
        """Return the histogram of the requests since an earlier reading of the same mount."""
        if earlier is None or earlier.bounds_s != self.bounds_s:
            return self  # the earlier reading is missing or has no requests
        counts = tuple(now - then for now, then in zip(self.counts, earlier.counts, strict=True))
        if min(counts) < 0:
            return self  # the daemon was restarted between the two readings
        return Histogram(self.bounds_s, counts, self.total_s - earlier.total_s)

    def quantile_s(self, part: float) -> float | None:
        """Return the quantile *part* of the latencies, or None if there were no requests.

        The result is interpolated within a bucket; above the last bound it is infinity.
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
    """Return the histograms of all operations from the statistics of a mount.

    An older version of the daemon reports no histograms.
    """
    times = figures.get("latency")
    if not times:
        return {}
    return {
        name: Histogram(tuple(times["bounds_s"]), tuple(one["counts"]), one["total_s"])
        for name, one in times["operations"].items()
    }
