"""Expiry of kept points by ``keep --expire``."""

from datetime import datetime, timedelta, timezone, tzinfo

import pytest

from s3fs_meta.sync.history.kept.kept_expiry import ExpiringPoint, Policy, judge

UTC = timezone.utc
DAY = timedelta(days=1)
FIRST = datetime(2026, 1, 1, 2, tzinfo=UTC)


def at(when: datetime, *, auto: bool = True, ahead: timedelta = timedelta(0)) -> ExpiringPoint:
    """Return a point that was kept at a given time, with a clock that is fast by *ahead*."""
    created_ns = int((when + ahead).timestamp()) * 10**9
    return ExpiringPoint(when.isoformat(), int(when.timestamp()), created_ns, 0, auto)


def nights(count: int) -> list[ExpiringPoint]:
    """Return one kept point for each of the first *count* nights."""
    return [at(FIRST + timedelta(days=number)) for number in range(count)]


def staying(
    points: list[ExpiringPoint], policy: Policy, zone: tzinfo = UTC
) -> dict[str, tuple[str, ...]]:
    """Return the days of the remaining points, and the rule that keeps each point."""
    return {point.key[:10]: why for point, why in judge(points, policy, zone) if why}


def test_expiry_keeps_the_latest_kept_point_of_each_day() -> None:
    points = [at(FIRST + timedelta(hours=hours)) for hours in (0, 5, 21, 30, 40)]
    found = [point.key for point, why in judge(points, Policy(daily=2), UTC) if why]
    assert found == [points[4].key, points[2].key]


def test_expiry_after_a_year_keeps_daily_and_weekly_and_monthly_points() -> None:
    """The expected points are those of restic forget with equal daily, weekly and monthly rules."""
    found = staying(nights(365), Policy(daily=7, weekly=5, monthly=12))
    days = [day for day, why in found.items() if "daily" in why]
    assert days == [f"2026-12-{day}" for day in range(31, 24, -1)]
    weeks = [day for day, why in found.items() if "weekly" in why]
    assert weeks == ["2026-12-31", "2026-12-27", "2026-12-20", "2026-12-13", "2026-12-06"]
    months = [day for day, why in found.items() if "monthly" in why]
    assert months[0] == "2026-12-31"
    assert months[-1] == "2026-01-31"
    assert len(months) == 12
    assert len(found) == 21


def test_expiry_keeps_the_oldest_point_until_every_period_has_a_point() -> None:
    """The oldest point is not dropped, so that the history grows until every period has a point."""
    found = staying(nights(10), Policy(monthly=3))
    assert list(found) == ["2026-01-10", "2026-01-01"]


def test_nightly_expiry_keeps_the_same_points_as_one_later_expiry() -> None:
    """A point that a nightly expiry drops would not be kept by any later expiry."""
    policy = Policy(daily=7, weekly=5, monthly=12)
    kept: list[ExpiringPoint] = []
    for point in nights(400):
        kept = [one for one, why in judge([*kept, point], policy, UTC) if why]
    assert kept == [one for one, why in judge(nights(400), policy, UTC) if why]
    newest = {one.key for one in kept}
    days = {one.key for one in nights(400)[-7:]}
    assert days <= newest
    assert len({key[:7] for key in newest}) >= 12
    assert len(newest) <= 7 + 5 + 12


@pytest.mark.parametrize("policy", [Policy(last=3), Policy(daily=3), Policy(yearly=1)])
def test_points_dated_by_a_fast_clock_do_not_expire_other_points(policy: Policy) -> None:
    """Some points have times ten years in the future, because a clock was wrong."""
    kept = [at(one, ahead=timedelta(days=3650)) for one in (FIRST + i * DAY for i in range(5))]
    for number in range(5, 30):
        point = at(FIRST + number * DAY)
        kept = [one for one, why in judge([*kept, point], policy, UTC) if why]
        assert point in kept


def test_expiry_ignores_points_that_were_kept_by_hand() -> None:
    """Points kept by hand are neither dropped nor counted."""
    hand = at(FIRST + timedelta(hours=3), auto=False)
    points = [at(FIRST), hand]
    assert judge(points, Policy(last=1), UTC) == [(points[0], ("last",))]


def test_expiry_policy_counts_days_from_midnight_in_local_time() -> None:
    """Days are counted in local time: half past midnight may be the previous day elsewhere."""
    points = [at(datetime(2026, 3, 1, hour, 30, tzinfo=UTC)) for hour in (20, 22, 23)]
    there = timezone(timedelta(hours=1))
    assert [bool(why) for _point, why in judge(points, Policy(daily=2), there)] == [
        True,
        True,
        False,
    ]
    assert [bool(why) for _point, why in judge(points, Policy(daily=1), UTC)] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("policy", "count"),
    [(Policy(last=3), 3), (Policy(yearly=1), 1), (Policy(last=1, daily=1, weekly=1), 1)],
)
def test_expiry_policy_keeps_the_configured_number_of_points(policy: Policy, count: int) -> None:
    assert len(staying(nights(30), policy)) == count


def test_empty_expiry_policy_is_detected() -> None:
    """An empty policy would drop every point, so the command refuses it."""
    assert Policy().is_empty
    assert not Policy(yearly=1).is_empty
