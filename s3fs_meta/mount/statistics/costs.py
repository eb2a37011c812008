"""The cost of a filesystem's requests: today, in the last 30 days, and per month.

Owns: the sums, and the extrapolation to a month. Does not know: how counts are stored or shown.
Keeps: a month has 30 days, and days start at midnight UTC, as on the bill of a store.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from s3fs_meta.mount.statistics.prices import PriceTable
from s3fs_meta.objects.billing import DAY_NS, NOTHING, Billed, Cause, RequestClass
from s3fs_meta.sync.host_state.request_log import Ledger

MONTH_DAYS: Final = 30
_HOUR_DAYS: Final = 1 / 24  # less than an hour of counts is not extrapolated to a month
TRANSFER: Final = "transfer"
STORAGE: Final = "storage"
TOTAL: Final = "total"
_KINDS: Final = tuple(kind.value for kind in RequestClass)


class CostSpan(NamedTuple):
    """A span of days up to today, over which counts are summed."""

    first_day: int
    today: int  # last day of the sums; later days in the counts come from a wrong clock
    # Factor that scales the sums, for example to a month; None if there are too few days.
    factor: float | None = 1.0
    is_rate: bool = False  # True to report costs per month, with a month of storage at today's size


def report(ledger: Ledger, prices: PriceTable, now_ns: int) -> dict[str, Any]:
    """Return the counts and costs by cause, for each span, as a JSON object."""
    today = now_ns // DAY_NS
    first = today - MONTH_DAYS + 1
    begin_ns = max(ledger.since_ns, first * DAY_NS)
    days = max((now_ns - begin_ns) / DAY_NS, 0.0)
    factor = MONTH_DAYS / days if days >= _HOUR_DAYS else None
    spans = {
        "today": CostSpan(today, today),
        "last_30_days": CostSpan(first, today),
        "per_month": CostSpan(first, today, factor, is_rate=True),
    }
    return {
        "prices": {
            "name": prices.name,
            "as_of": prices.as_of.isoformat(),
            "currency": prices.currency,
        },
        "since_ns": ledger.since_ns,
        "counted_days": round(days, 3),
        **{name: _costs(ledger, prices, span, now_ns) for name, span in spans.items()},
    }


def _costs(
    ledger: Ledger, prices: PriceTable, span: CostSpan, now_ns: int
) -> dict[str, Any] | None:
    if span.factor is None:
        return None
    causes = {cause.value: _of_cause(ledger, prices, span, cause.value) for cause in Cause}
    others = {cause for counts in ledger.usage.values() for cause, _kind in counts} - set(causes)
    causes |= {cause: _of_cause(ledger, prices, span, cause) for cause in sorted(others)}
    received_bytes = sum(one["received_bytes"] for one in causes.values())
    stored_bytes = _stored(ledger, span, now_ns)
    found = {
        "causes": causes,
        TRANSFER: {"bytes": received_bytes, "cost": received_bytes * prices.out_byte},
        STORAGE: {"bytes": _latest(ledger, span.today), "cost": stored_bytes * prices.stored_byte},
    }
    requests = sum(one["cost"] for one in causes.values())
    return found | {TOTAL: requests + found[TRANSFER]["cost"] + found[STORAGE]["cost"]}


def _of_cause(ledger: Ledger, prices: PriceTable, span: CostSpan, cause: str) -> dict[str, Any]:
    """Return the requests of one cause by class, their bytes and cost, scaled to the span."""
    counts: dict[str, Billed] = {}
    for day, usage in ledger.usage.items():
        for (found, kind), billed in usage.items():
            if found == cause and span.first_day <= day <= span.today:
                counts[kind] = counts.get(kind, NOTHING).plus(billed)
    return _as_json(counts, prices, span.factor or 0.0)


def _as_json(counts: Mapping[str, Billed], prices: PriceTable, factor: float) -> dict[str, Any]:
    requests = {kind: round(counts.get(kind, NOTHING).requests * factor) for kind in _KINDS}
    cost = sum(one.requests * prices.requests.get(kind, 0.0) for kind, one in counts.items())
    return {
        "requests": sum(requests.values()),
        **requests,
        "sent_bytes": round(sum(one.sent_bytes for one in counts.values()) * factor),
        "received_bytes": round(sum(one.received_bytes for one in counts.values()) * factor),
        "cost": cost * factor,
    }


def _latest(ledger: Ledger, day: int) -> int:
    """Return the size of all packs in the last record before the end of a day."""
    known = [one for one in ledger.stored_bytes if one <= day]
    return ledger.stored_bytes[max(known)] if known else 0


def _stored(ledger: Ledger, span: CostSpan, now_ns: int) -> float:
    """Return the average number of stored bytes in a span, times the span's fraction of a month.

    If the span is a monthly rate, return the present number of stored bytes. For a day without a
    record, the previous record applies.
    """
    if span.is_rate:
        return float(_latest(ledger, span.today))
    total = 0.0
    for day in range(span.first_day, span.today + 1):
        part = (now_ns % DAY_NS) / DAY_NS if day == span.today else 1.0
        total += part * _latest(ledger, day)
    return total / MONTH_DAYS
