"""The statistics of a mount over the last hour.

Owns: reading the statistics, and the differences between two readings.
Does not know: HTML, the names of the statistics (``mount.statistics.figures``).
Keeps: at most BROWSE_SAMPLES_MAX samples. If the mount has ended, does not answer or has another
version, a sample without values is added, and the server continues.
Tasks: one ``run``.
"""

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import trio

from s3fs_meta.browse.limits import BROWSE_SAMPLE_S, BROWSE_SAMPLES_MAX
from s3fs_meta.errors import S3fsError
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.requests.control_api import request_status
from s3fs_meta.mount.statistics import health, prices
from s3fs_meta.mount.statistics.latency import Histogram, histograms

_DAY_S: Final = 86_400.0
_MEDIAN: Final = 0.5
_SLOWEST: Final = 0.99


class Sample(NamedTuple):
    """The statistics of a mount at one point in time."""

    time_ns: int
    state: str  # state of the mount, or the reason why the state is unknown
    values: Mapping[str, float]  # all statistics with a known value


class MountWatch:
    """Reads the statistics of one mount, and keeps the samples of the last hour."""

    def __init__(self, place: Target) -> None:
        self.samples: deque[Sample] = deque(maxlen=BROWSE_SAMPLES_MAX)
        self.prices = prices.default()
        self._place = place
        self._earlier: Mapping[str, Any] | None = None  # statistics of the last sample
        self._read_s = 0.0  # time of the last sample

    async def run(self) -> None:
        """Read the statistics of the mount at intervals until cancelled."""
        while True:
            await self.read()
            await trio.sleep(BROWSE_SAMPLE_S)

    async def read(self) -> None:
        """Read the statistics of the mount once, and add one sample."""
        now_ns, now_s = time.time_ns(), trio.current_time()
        try:
            figures = await request_status(self._place)
            values = levels(figures)
            if self._earlier is not None:
                values |= rates(self._earlier, figures, now_s - self._read_s, self.prices)
            sample = Sample(now_ns, str(figures["state"]), values)
        except (S3fsError, OSError) as exc:
            self._add_unknown(now_ns, str(exc))
        except (KeyError, TypeError):
            self._add_unknown(now_ns, "the daemon of the mount has another version of s3fs-meta")
        else:
            self.samples.append(sample)
            self._earlier, self._read_s = figures, now_s

    def _add_unknown(self, now_ns: int, why: str) -> None:
        self.samples.append(Sample(now_ns, why, {}))
        self._earlier = None


def levels(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return the statistics that need only one reading, such as sizes and ages."""
    exposed = health.exposure(figures)
    return {
        "age": exposed.age_s,
        "pending": exposed.content_bytes,
        "cache": figures["cache"]["bytes"],
    }


def rates(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    passed_s: float,
    table: prices.PriceTable,
) -> dict[str, float]:
    """Return the statistics that need two readings: rates, cost per day, hit ratio and latencies.

    Returns:
        An empty dict if another mount began between the readings.
    """
    if before.get("pid") != now.get("pid") or passed_s <= 0:
        return {}
    found = {
        "sent": (now["upload"]["sent_bytes"] - before["upload"]["sent_bytes"]) / passed_s,
        "store": (_requests(now) - _requests(before)) / passed_s,
        "cost": (_cost(now, table) - _cost(before, table)) * _DAY_S / passed_s,
    }
    hits, misses = (now["cache"][key] - before["cache"][key] for key in ("hits", "misses"))
    if hits + misses:
        found["hits"] = hits / (hits + misses)
    requests = _joined(now).since(_joined(before))
    found["requests"] = requests.count / passed_s
    for name, part in (("median", _MEDIAN), ("slowest", _SLOWEST)):
        quantile_s = requests.quantile_s(part)
        if quantile_s is not None and quantile_s <= max(requests.bounds_s):
            found[name] = quantile_s
    return found


def _joined(figures: Mapping[str, Any]) -> Histogram:
    """Return one histogram with the latencies of all operations."""
    found = list(histograms(figures).values())
    if not found:
        return Histogram((0.0,), (0, 0), 0.0)
    counts = tuple(map(sum, zip(*(one.counts for one in found), strict=True)))
    return Histogram(found[0].bounds_s, counts, sum(one.total_s for one in found))


def _requests(figures: Mapping[str, Any]) -> int:
    return sum(int(one["requests"]) for one in figures["store"].values())


def _cost(figures: Mapping[str, Any], table: prices.PriceTable) -> float:
    """Return the cost of all requests and downloads since the mount began."""
    cost = 0.0
    for kinds in figures.get("billed", {}).values():  # an old daemon does not count requests
        for kind, counts in kinds.items():
            cost += counts["requests"] * table.requests.get(kind, 0.0)
            cost += counts["received_bytes"] * table.out_byte
    return cost
