"""Tests of the cost of counted bucket requests and of stored bytes."""

from datetime import date

import pytest

from s3fs_meta.mount.statistics import costs
from s3fs_meta.mount.statistics.prices import PriceTable
from s3fs_meta.objects.billing import DAY_NS, Billed, Usage
from s3fs_meta.sync.host_state.request_log import Ledger

TODAY = 20_000
NOON = TODAY * DAY_NS + DAY_NS // 2
PRICES = PriceTable(
    "x", date(2026, 11, 1), "EUR", {"put": 5.0, "list": 4.0, "get": 1.0, "delete": 0.0}, 0.5, 3.0
)
USAGE: Usage = {
    TODAY: {("data", "put"): Billed(2, 100, 0), ("reads", "get"): Billed(3, 0, 10)},
    TODAY - 1: {("data", "put"): Billed(1, 50, 0), ("new cause", "put"): Billed(1, 0, 0)},
    TODAY - 40: {("data", "put"): Billed(1000, 0, 0)},
}


def test_request_costs_of_today_and_the_last_thirty_days_are_summed_by_cause() -> None:
    """Older days are omitted, and request causes that only a newer program knows are included."""
    report = costs.report(Ledger((TODAY - 40) * DAY_NS, USAGE, {}), PRICES, NOON)

    today, last = report["today"], report["last_30_days"]
    assert today["causes"]["data"] == {
        "requests": 2,
        "put": 2,
        "list": 0,
        "get": 0,
        "delete": 0,
        "sent_bytes": 100,
        "received_bytes": 0,
        "cost": 10.0,
    }
    assert today["transfer"] == {"bytes": 10, "cost": 5.0}
    assert today["total"] == 10.0 + 3.0 + 5.0
    assert last["causes"]["data"]["cost"] == 15.0
    assert last["causes"]["new cause"]["cost"] == 5.0
    assert last["total"] == 15.0 + 5.0 + 3.0 + 5.0
    assert report["counted_days"] == 29.5


def test_monthly_cost_is_extrapolated_from_the_time_in_which_requests_were_counted() -> None:
    """Request counts of two days are multiplied by 15. Stored bytes cost a complete month."""
    ledger = Ledger(NOON - 2 * DAY_NS, USAGE, {TODAY: 7})
    report = costs.report(ledger, PRICES, NOON)

    assert report["counted_days"] == 2
    month = report["per_month"]
    assert month["causes"]["data"]["put"] == 45
    assert month["causes"]["data"]["cost"] == pytest.approx(225.0)
    assert month["transfer"] == {"bytes": 150, "cost": pytest.approx(75.0)}
    assert month["storage"] == {"bytes": 7, "cost": 21.0}


def test_monthly_cost_is_not_extrapolated_from_less_than_an_hour() -> None:
    ledger = Ledger(NOON - DAY_NS // 30, USAGE, {})
    assert costs.report(ledger, PRICES, NOON)["per_month"] is None
    ledger = Ledger(NOON + DAY_NS, USAGE, {})  # The clock was set back.
    assert costs.report(ledger, PRICES, NOON)["per_month"] is None


def test_request_costs_ignore_days_in_the_future() -> None:
    usage: Usage = {TODAY + 1: USAGE[TODAY], TODAY: USAGE[TODAY]}
    ledger = Ledger(NOON - DAY_NS, usage, {TODAY: 10, TODAY + 9: 77})
    report = costs.report(ledger, PRICES, NOON)

    assert report["today"]["causes"]["data"]["put"] == 2
    assert report["last_30_days"]["causes"]["data"]["put"] == 2
    assert report["per_month"]["storage"]["bytes"] == 10


def test_stored_bytes_are_charged_per_day() -> None:
    """A day without a record has the previous day's size.

    Today is charged up to the current time.
    """
    stored = {TODAY - 3: 10, TODAY - 1: 30}
    report = costs.report(Ledger(0, {}, stored), PRICES, NOON)

    assert report["today"]["storage"] == {"bytes": 30, "cost": pytest.approx(30 * 0.5 / 30 * 3)}
    assert report["last_30_days"]["storage"]["cost"] == pytest.approx((10 + 10 + 30 + 15) / 30 * 3)
