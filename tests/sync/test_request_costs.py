"""The number of requests of typical workloads, on which docs/guide/cost.md is based."""

from pathlib import Path

import pytest

from s3fs_meta.limits import FOLLOW_LISTING_POLLS, LEVEL_FAN_OUT, RECLAIM_IDLE_S, RECLAIM_INTERVAL_S
from s3fs_meta.mount.statistics import prices
from s3fs_meta.objects.billing import Meter, MeteredStore
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import Power, write_file

MONTH_S = 30 * 86_400
PAGE = Path(__file__).parents[2] / "docs" / "guide" / "cost.md"


def counted(meter: Meter) -> dict[str, int]:
    """Return the number of requests of each class since the last call."""
    found: dict[str, int] = {}
    for counts in meter.take().values():
        for (_cause, kind), billed in counts.items():
            found[kind] = found.get(kind, 0) + billed.requests
    return found


def row(name: str, *parts: tuple[dict[str, int], float]) -> str:
    """Return a row of the cost page; each part has requests and a number of runs per month."""
    month = {
        kind: sum(counts.get(kind, 0) * times for counts, times in parts)
        for kind in ("put", "list", "get")
    }
    table = prices.default()
    cost = sum(count * table.requests[kind] for kind, count in month.items())
    numbers = " | ".join(f"{float(f'{count:.2g}'):,.0f}" for count in month.values())
    return f"| {name} | {numbers} | {cost:.2f} USD |"


async def polls_of_follower(plain: Power, store: MeteredStore, meter: Meter) -> dict[str, int]:
    """Return the requests of polls that find no new txg, including their periodic listing."""
    options, reads = SessionOptions(follow=True), OpenOptions(read_only=True, follow=True)
    async with plain.session(
        "b", options=reads, session_options=options, store=store, tasks=False
    ) as reader:
        counted(meter)
        assert reader.follower is not None
        for _ in range(FOLLOW_LISTING_POLLS):
            await reader.follower.poll_once()
        return counted(meter)


@pytest.mark.slow
async def test_cost_guide_shows_the_measured_number_of_requests(plain: Power) -> None:
    meter = Meter()
    store = MeteredStore(plain.store, meter)
    async with plain.session("a", tasks=False, store=store) as session:
        write_file(session, b"x")
        await session.shipper.ship()
        await session.leveler.make_due()
        await session.indexer.make_due()
        counted(meter)
        await session.reclaimer.run(unless_idle=True)
        search = counted(meter)
        await session.reclaimer.run(unless_idle=True)
        assert await session.shipper.ship() is None
        poll = counted(meter)
        cuts = LEVEL_FAN_OUT**3
        for number in range(cuts):
            write_file(session, b"a line of a log %d" % number)
            await session.shipper.ship()
            await session.leveler.make_due()
            await session.indexer.make_due()
        lines = counted(meter)
        polls = await polls_of_follower(plain, store, meter)

    intervals = MONTH_S / RECLAIM_INTERVAL_S
    ships = MONTH_S / SessionOptions().sync_interval_s
    polled = MONTH_S / SessionOptions().poll_interval_s / FOLLOW_LISTING_POLLS
    rows = [
        row("an idle mount", (search, MONTH_S / RECLAIM_IDLE_S), (poll, intervals)),
        row("a log with a new line each second", (lines, ships / cuts), (search, intervals)),
        row("a follower without changes", (polls, polled)),
    ]
    assert [one for one in rows if one not in PAGE.read_text()] == []
