"""Expiry of kept points: deciding which points a policy drops because of their age.

Owns: the rules, as in ``restic forget``: the latest point of each period is kept.
Does not know: the bucket, the caller that drops the points.
Keeps: only points that were kept with ``--auto`` are dropped; a point that a user named by hand is
kept until the user drops it. Points are ordered by txg, so a wrong clock never makes a new point
older than the points before it.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone, tzinfo
from typing import Final, NamedTuple


class ExpiringPoint(NamedTuple):
    """The facts about a kept point that determine its expiry."""

    key: str  # the key of the kept point's object
    txg: int  # the txg, by which points are ordered
    created_ns: int  # time of the point's txg
    kept_ns: int  # time at which the user kept the point; it orders points of the same txg
    auto: bool  # True if "keep --expire" may drop the point


class Policy(NamedTuple):
    """For each kind of period, the number of points to keep; 0: none."""

    last: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0

    @property
    def is_empty(self) -> bool:
        """Return whether the policy would drop every point."""
        return not any(self)


def _week(when: datetime) -> tuple[int, ...]:
    year, week, _day = when.isocalendar()
    return year, week


_PERIODS: Final[dict[str, Callable[[datetime], tuple[int, ...]]]] = {
    "daily": lambda when: (when.year, when.month, when.day),
    "weekly": _week,
    "monthly": lambda when: (when.year, when.month),
    "yearly": lambda when: (when.year,),
}


def judge(
    points: Iterable[ExpiringPoint], policy: Policy, zone: tzinfo | None = None
) -> list[tuple[ExpiringPoint, tuple[str, ...]]]:
    """Return each ``--auto`` point with the periods that keep it (none: drop it), latest first.

    Args:
        points: kept points; points that users named by hand are left out.
        policy: a policy that is not empty.
        zone: the time zone that defines days; None: this host's time zone.
    """
    assert not policy.is_empty, "an empty policy would drop every point"
    ordered = sorted(
        (point for point in points if point.auto),
        key=lambda point: (point.txg, point.kept_ns, point.key),
        reverse=True,
    )
    times = [
        datetime.fromtimestamp(point.created_ns // 10**9, timezone.utc).astimezone(zone)
        for point in ordered
    ]
    reasons: list[list[str]] = [["last"] if at < policy.last else [] for at in range(len(ordered))]
    for kind, period_of in _PERIODS.items():
        for at in _latest_of_each([period_of(when) for when in times], getattr(policy, kind)):
            reasons[at].append(kind)
    return [(point, tuple(why)) for point, why in zip(ordered, reasons, strict=True)]


def _latest_of_each(periods: Sequence[tuple[int, ...]], count: int) -> list[int]:
    """Return the indices of the latest points in the last *count* periods that have a point.

    If there are fewer periods, the oldest point is also kept until later points have replaced it.
    """
    found: list[int] = []
    last: tuple[int, ...] | None = None
    for at, period in enumerate(periods):
        if len(found) == count:
            break
        if period != last or at == len(periods) - 1:
            found.append(at)
            last = period
    return found
