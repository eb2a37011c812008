"""Tests of the syntax of option values such as sizes, points in time and addresses."""

import time
from collections.abc import Callable

import pytest

from s3fs_meta.errors import UsageError
from s3fs_meta.model import NEWEST, AbbreviatedLink, PointInTime, Txg
from s3fs_meta.options import option_syntax
from s3fs_meta.options.listen_address import Address
from s3fs_meta.options.option_syntax import (
    format_time,
    listen_address,
    mark,
    nearest,
    page_cache,
    parse_point_in_time,
    parse_size,
    point_in_time,
    point_of_txg,
    retention,
    seconds,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("512", 512), ("4K", 4096), ("1.5M", 3 << 19), ("2GiB", 2 << 30), ("1t", 1 << 40)],
)
def test_size_options_accept_binary_units(text: str, expected: int) -> None:
    """K, M, G and T mean powers of 1024, in upper or lower case, with or without "iB"."""
    assert parse_size("x", text) == expected


@pytest.mark.parametrize("text", ["", "-1", "K", "1X", "1 2", "0x10", "1e9"])
def test_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size("x", text)


def test_error_suggests_a_known_option_only_if_it_is_similar() -> None:
    """An unknown word is refused without a suggestion if no known word is similar."""
    assert nearest("qqq", ["journal_mode"]) == ""
    assert nearest("Comit", ["commit"]) == "; did you mean 'commit'?"


NOW_NS = 1_700_000_000 * 10**9


@pytest.mark.parametrize(
    ("text", "back_s"),
    [("10m ago", 600), ("2h", 7200), ("1h30m", 5400), ("90 s ago", 90), ("1.5 min", 90), ("0s", 0)],
)
def test_point_in_time_can_be_relative(text: str, back_s: int) -> None:
    """A duration such as 10m is subtracted from the current time."""
    assert option_syntax.parse_point_in_time(text, NOW_NS) == PointInTime(
        text, NOW_NS - back_s * 10**9, is_ago=True
    )


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("2023-11-14T22:13:20Z", NOW_NS),
        ("2023-11-14 22:13:20.25+00:00", NOW_NS + 250_000_000),
        ("2023-11-15T00:13:20+02:00", NOW_NS),
        ("2023-11-14T18:13:20", NOW_NS),  # The time zone of this test is UTC-4.
        ("2023-11-15", NOW_NS - NOW_NS % (86_400 * 10**9) + 28 * 3600 * 10**9),
    ],
)
def test_point_in_time_can_be_a_date_or_time(
    text: str, time_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ISO 8601 time without a zone is local time. A date stands for 00:00 on that day."""
    monkeypatch.setenv("TZ", "XXX4")
    time.tzset()
    try:
        assert option_syntax.parse_point_in_time(text, 0) == PointInTime(text, time_ns)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_point_in_time_is_parsed_exactly_to_the_nanosecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Txgs have times in nanoseconds, so a rounded time could select a different txg."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        whole = point_in_time("at", "2026-05-09T14:30:05+00:00").time_ns
        assert whole is not None
        for fraction, more_ns in (
            (".123456789", 123_456_789),
            (".12345678", 123_456_780),
            (".5", 500_000_000),
            (",000000001", 1),
            (".9999999999", 999_999_999),
        ):
            for zone in ("+00:00", "Z", ""):
                text = f"2026-05-09T14:30:05{fraction}{zone}"
                assert point_in_time("at", text).time_ns == whole + more_ns
    finally:
        monkeypatch.undo()
        time.tzset()


def test_point_in_time_can_be_a_txg() -> None:
    """A txg is given as txg=N, the form that the log command prints, or with the option txg."""
    assert point_in_time("at", "txg=42") == PointInTime("txg=42", txg=Txg(42))
    assert point_of_txg("txg", "42") == PointInTime("txg=42", txg=Txg(42))
    assert point_in_time("at", "newest") == NEWEST


@pytest.mark.parametrize("text", ["then", "ago", "m", "before-upgrade", "auto-2026-11-20T02:00"])
def test_point_in_time_can_be_the_name_of_a_kept_point(text: str) -> None:
    """The parser accepts any name as a kept point, because it does not read the bucket."""
    assert point_in_time("at", text) == PointInTime(text, kept=text)


@pytest.mark.parametrize(
    "text", ["", "a b", "10", "10x", "now", "2023-13-01", "0001-01-01", "txg=", "txg=-1", "-5m"]
)
def test_invalid_point_in_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="is not a point in time; write for example at=20"):
        point_in_time("at", text)


@pytest.mark.parametrize(
    ("parse", "word", "text"),
    [
        (point_in_time, "at", "9" * 400 + "d"),
        (point_of_txg, "txg", "9" * 5000),
        (page_cache, "cache_size", "9" * 5000),
        (parse_size, "cachesize", "9" * 5000),
        (seconds(1.0), "commit", "9" * 5000),
        (retention, "retention", "9" * 5000 + "d"),
        (listen_address, "metrics", "9" * 5000),
        (mark, "at_least", "9" * 5000 + ":0123456789abcdef"),
    ],
)
def test_number_with_too_many_digits_is_refused(
    parse: Callable[[str, str], object], word: str, text: str
) -> None:
    """Python converts no infinite float and no text of more than 4300 digits to an int."""
    with pytest.raises(UsageError):
        parse(word, text)


@pytest.mark.parametrize("time_ns", [NOW_NS, NOW_NS + 1, NOW_NS + 999_999, NOW_NS + 10**9 - 1])
def test_printed_time_is_never_parsed_as_an_earlier_time(time_ns: int) -> None:
    read = point_in_time("at", format_time(time_ns))

    assert read.time_ns is not None
    assert 0 <= read.time_ns - time_ns < 1_000_000


@pytest.mark.parametrize("text", ["5", "5:", ":abc", "5:abc", "5:" + "g" * 20, "x:" + "a" * 20])
def test_invalid_value_of_the_at_least_option_is_refused(text: str) -> None:
    """The value of at_least is TXG:HASH, and the hash must have a minimum length."""
    with pytest.raises(UsageError, match="must be TXG:HASH"):
        mark("at_least", text)


def test_at_least_option_accepts_a_shortened_hash() -> None:
    """The hash of at_least may be shortened, and may be in upper or lower case."""
    assert mark("at_least", "7:" + "AB" * 8) == AbbreviatedLink(Txg(7), "ab" * 8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9105", "127.0.0.1:9105"),
        (":9105", "127.0.0.1:9105"),
        ("localhost:0", "127.0.0.1:0"),
        ("0.0.0.0:80", "0.0.0.0:80"),
        ("[::1]:9105", "[::1]:9105"),
    ],
)
def test_listen_address_is_loopback_by_default(text: str, expected: str) -> None:
    assert str(listen_address("metrics", text)) == expected
    assert listen_address("metrics", text).is_loopback == (not text.startswith("0"))


@pytest.mark.parametrize("text", ["", "x", "host:80", "127.0.0.1", "127.0.0.1:65536", "1:-1"])
def test_invalid_listen_address_is_refused(text: str) -> None:
    """A listen address must be numeric, because a host name may have several addresses."""
    with pytest.raises(UsageError, match="must be an IP address and a port"):
        listen_address("metrics", text)


def test_loopback_addresses_are_recognised() -> None:
    assert Address("127.1.2.3", 1).is_loopback
    assert not Address("::", 1).is_loopback


@pytest.mark.parametrize("text", ["9" * 400, "9" * 300 + "T", "8388608T", "99999999T"])
def test_size_above_the_largest_integer_of_the_database_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"^cachesize={text} is above the maximum, 4194304T$"):
        parse_size("cachesize", text)
    assert parse_size("cachesize", "4194304T") == 1 << 62


@pytest.mark.parametrize("text", ["txg=٣", "٣h", "２ d ago"])
def test_point_in_time_with_non_ascii_digits_is_refused(text: str) -> None:
    assert parse_point_in_time(text, 10**18) is None


def test_size_with_non_ascii_digits_is_refused() -> None:
    with pytest.raises(UsageError):
        parse_size("cachesize", "٣G", "10G")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("12h", 43_200), ("30 d", 2_592_000), ("2w", 1_209_600), ("5m", 300)],
)
def test_retention_accepts_every_unit(text: str, seconds: int) -> None:
    assert retention("retention", text) == seconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("30", "has no unit; write for example retention=30d"),
        ("6M", "write m for minutes"),
        ("1y", "is not a time from 0 to 100 years"),
        ("40000d", "is not a time from 0 to 100 years"),
    ],
)
def test_retention_refuses_a_time_that_may_be_mistaken_for_a_longer_one(
    text: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        retention("retention", text)


def test_path_of_an_unknown_user_is_refused() -> None:
    """At boot, a directory service with the users may not be available yet."""
    with pytest.raises(UsageError, match="cachedir=~no-such-user/x"):
        option_syntax.path_value("cachedir", "~no-such-user/x")
