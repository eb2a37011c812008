"""Tests of rate limits: their syntax, and the rate that applies at a given time."""

import calendar
import time
from collections.abc import Iterator

import pytest

from s3fs_meta.errors import UsageError
from s3fs_meta.limits import KIB, MIB, RATE_SLOTS_MAX
from s3fs_meta.options.rate_limit import RateLimit, rate_limit

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def _at(limit: RateLimit, when: str) -> int | None:
    """Return the rate at a local time such as "mon 08:00"."""
    day, clock = when.split()
    hours, minutes = map(int, clock.split(":"))
    return limit.bytes_per_s(
        time.struct_time((2026, 11, 23, hours, minutes, 0, _DAYS.index(day), 327, 0))
    )


@pytest.mark.parametrize(
    ("text", "rate"),
    [("512K", 512 * KIB), ("1.5M", 3 * MIB // 2), ("4096", 4096), ("off", None), ("0", None)],
)
def test_rate_limit_without_a_timetable_applies_at_all_times(text: str, rate: int | None) -> None:
    """A single rate limit applies at all times, and accepts the same units as a size."""
    limit = rate_limit("upload_limit", text)

    assert {_at(limit, "mon 00:00"), _at(limit, "wed 12:30"), _at(limit, "sun 23:59")} == {rate}
    assert str(limit) == text
    assert not limit.strict


@pytest.mark.parametrize(
    "text",
    [
        "08:00,512K 19:00,10M 23:00,off",
        "08:00=512K;19:00=10M;23:00=off",
        "  23:00,OFF ; 08:00=512k  19:00,10m",
    ],
)
def test_rate_limit_timetable_has_the_syntax_of_rclone(text: str) -> None:
    """An entry of a timetable applies until the next entry, even across midnight."""
    limit = rate_limit("upload_limit", text)

    assert _at(limit, "tue 07:59") is None
    assert _at(limit, "tue 08:00") == 512 * KIB
    assert _at(limit, "tue 18:59") == 512 * KIB
    assert _at(limit, "tue 19:00") == 10 * MIB
    assert _at(limit, "tue 23:00") is None
    assert _at(limit, "mon 00:00") is None


def test_rate_limit_for_a_weekday_applies_only_on_that_day() -> None:
    """A timetable entry without a weekday applies on all days that have no entry of their own."""
    limit = rate_limit("upload_limit", "Mon-00:00,4K 12:00,1M Saturday-12:00,2M sun-20:00,off")

    assert _at(limit, "mon 11:59") == 4 * KIB
    assert _at(limit, "mon 12:00") == MIB
    assert _at(limit, "tue 00:00") == MIB
    assert _at(limit, "sat 12:00") == 2 * MIB
    assert _at(limit, "sun 12:00") == MIB
    assert _at(limit, "sun 20:00") is None


@pytest.mark.parametrize("text", ["1M strict", "strict;1M", "08:00=1M;20:00=off;STRICT"])
def test_word_strict_can_precede_or_follow_a_rate_limit(text: str) -> None:
    """The word strict is accepted before or after the rate, and always printed after the rate."""
    limit = rate_limit("upload_limit", text)

    assert limit.strict
    assert str(limit).endswith(" strict")
    assert rate_limit("upload_limit", str(limit)) == limit


@pytest.mark.parametrize(
    "text",
    [
        *("", "strict", "x", "1X", "-1", "1M 2M", "1M,2M", "1M " + "strict " * RATE_SLOTS_MAX),
        *("08:00", "08:00,", "24:00,1M", "08:60,1M", "8:00,1M", "08:00,1M 512K", "08:00,fast"),
        *("Mo-08:00,1M", "Xyz-08:00,1M"),
    ],
)
def test_error_about_an_invalid_rate_limit_shows_examples(text: str) -> None:
    """The error about an invalid rate shows an example rate and an example timetable."""
    with pytest.raises(UsageError, match=r"is not a rate; write for example upload_limit=512K"):
        rate_limit("upload_limit", text)


@pytest.mark.parametrize("text", ["512", "08:00,1023 20:00,off"])
def test_rate_limit_below_the_minimum_is_refused(text: str) -> None:
    """A very low rate is refused, because the user has probably forgotten the unit."""
    with pytest.raises(UsageError, match="below the minimum of 1K bytes per second"):
        rate_limit("upload_limit", text)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set a time zone whose daylight saving time begins on 29 March and ends on 25 October."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_rate_limit_of_an_hour_skipped_by_daylight_saving_applies_afterwards() -> None:
    """When the local time jumps from 02:00 to 03:00, an entry at 02:30 applies."""
    limit = rate_limit("upload_limit", "01:00,1K 02:30,2K 04:00,3K")
    change_s = calendar.timegm((2026, 3, 29, 1, 0, 0))
    rates = [limit.bytes_per_s(time.localtime(change_s + s)) for s in (-1, 0, 3599, 3600)]

    assert rates == [KIB, 2 * KIB, 2 * KIB, 3 * KIB]


@pytest.mark.usefixtures("berlin")
def test_rate_limit_of_an_hour_repeated_by_daylight_saving_applies_twice() -> None:
    """When the local time jumps from 03:00 to 02:00, the entry at 02:30 ends and starts again."""
    limit = rate_limit("upload_limit", "01:00,1K 02:30,2K 04:00,3K")
    change_s = calendar.timegm((2026, 10, 25, 1, 0, 0))
    rates = [
        limit.bytes_per_s(time.localtime(change_s + s)) for s in (-1801, -1800, -1, 0, 1799, 1800)
    ]

    assert rates == [KIB, 2 * KIB, 2 * KIB, KIB, KIB, 2 * KIB]


def test_rate_limit_stays_valid_past_midnight_and_the_end_of_the_week() -> None:
    """Sunday's last entry applies until Monday's first entry. An entry may be at midnight."""
    limit = rate_limit("upload_limit", "Sun-23:30,1K Mon-00:15,2K Tue-00:00,3K")

    assert _at(limit, "sun 23:29") == 3 * KIB
    assert _at(limit, "sun 23:59") == KIB
    assert _at(limit, "mon 00:00") == KIB
    assert _at(limit, "mon 00:15") == 2 * KIB
    assert _at(limit, "mon 23:59") == 2 * KIB
    assert _at(limit, "tue 00:00") == 3 * KIB
