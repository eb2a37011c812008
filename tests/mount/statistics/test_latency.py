"""Tests of the differences and quantiles of latency histograms."""

import math

import pytest

from s3fs_meta.mount.statistics.latency import Histogram, histograms

BOUNDS = (0.001, 0.01, 0.1)


def _of(*counts: int, total_s: float = 0.0) -> Histogram:
    return Histogram(BOUNDS, counts, total_s)


@pytest.mark.parametrize(
    ("counts", "part", "expected"),
    [
        ((10, 0, 0, 0), 0.5, 0.0005),
        ((10, 0, 0, 0), 1.0, 0.001),
        ((5, 5, 0, 0), 0.5, 0.001),
        ((0, 0, 10, 0), 0.5, 0.055),
        ((90, 9, 1, 0), 0.99, 0.01),
        ((0, 0, 0, 1), 0.5, math.inf),
        ((0, 0, 0, 0), 0.5, None),
    ],
)
def test_latency_quantile_is_interpolated_within_a_histogram_bucket(
    counts: tuple[int, ...], part: float, expected: float | None
) -> None:
    assert _of(*counts).quantile_s(part) == (
        expected if expected is None else pytest.approx(expected)
    )


def test_difference_of_two_latency_histograms_counts_requests_between_the_readings() -> None:
    earlier, later = _of(100, 5, 0, 0, total_s=1.0), _of(100, 5, 3, 1, total_s=151.0)

    assert later.since(earlier) == _of(0, 0, 3, 1, total_s=150.0)
    assert later.since(None) is later


def test_difference_of_latency_histograms_is_not_negative_after_a_restart() -> None:
    assert _of(1, 0, 0, 0).since(_of(5, 0, 0, 0)) == _of(1, 0, 0, 0)


def test_status_of_an_older_daemon_contains_no_histograms() -> None:
    assert histograms({"state": "serving"}) == {}


def test_quantile_0_is_the_lower_bound_of_the_first_histogram_bucket_in_use() -> None:
    assert Histogram((1.0, 2.0), (0, 4, 0), 6.0).quantile_s(0.0) == 1.0
