"""The time line: the retained txgs in runs, with the number of files that changed in each.

Owns: the length of runs, counting by the history index. Does not know: how runs are shown.
Keeps: at most BROWSE_RUNS_MAX runs. Where the index lacks changes, at most BROWSE_CHANGELOGS_MAX
changelogs are read for them; the number of a run is unknown beyond that.
"""

from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import groupby
from typing import NamedTuple

import trio

from s3fs_meta.browse.source import Source
from s3fs_meta.codec.history_index import HistoryIndex
from s3fs_meta.limits import (
    BROWSE_CHANGELOGS_MAX,
    BROWSE_RUNS_MAX,
    HISTORY_FAN_OUT,
    HISTORY_FETCHES_MAX,
)
from s3fs_meta.meta import row_history
from s3fs_meta.model import Ino, Txg
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.changelog_reader import Unreadable


class Run(NamedTuple):
    """Some consecutive txgs."""

    first: Txg
    last: Txg
    end: Link | None  # the link of the last txg; None: it cannot be read
    changed: int | None  # number of changed files and directories; None: unknown


class Day(NamedTuple):
    """The runs that end on one day, the latest first."""

    name: str  # the date; "" for runs whose time is unknown
    runs: list[Run]


async def runs_of(source: Source, first: Txg, last: Txg) -> list[Run]:
    """Return the runs of a range of txgs, the latest first.

    Raises:
        StoreError: the bucket cannot be reached.
    """
    step = 1
    while (last - first) // step >= BROWSE_RUNS_MAX:
        step *= HISTORY_FAN_OUT
    # A run of the index ends with a multiple of its length.
    ends = [*range(first + (-first) % step, last, step), last]
    firsts = [first, *(end + 1 for end in ends[:-1])]
    runs = [(Txg(one), Txg(end)) for one, end in zip(firsts, ends, strict=True)]
    links = await _links(source, [end for _, end in runs])
    budget = BROWSE_CHANGELOGS_MAX
    found: list[Run] = []
    for one, end in reversed(runs):
        changed, read = await _changed(source, one, end, budget)
        budget -= read
        found.append(Run(one, end, links.get(end), changed))
    return found


def by_day(runs: Sequence[Run]) -> list[Day]:
    """Return runs grouped by the local day on which they end."""
    return [Day(name, list(some)) for name, some in groupby(runs, _day)]


def _day(run: Run) -> str:
    if run.end is None:
        return ""
    when = datetime.fromtimestamp(run.end.created_ns / 1e9, tz=timezone.utc).astimezone()
    return f"{when:%A, %Y-%m-%d}"


async def _links(source: Source, txgs: Sequence[Txg]) -> dict[Txg, Link]:
    found: dict[Txg, Link] = {}

    async def read(txg: Txg) -> None:
        link = await source.bucket.points.readable(txg)
        if link is not None:
            found[txg] = link

    for at in range(0, len(txgs), HISTORY_FETCHES_MAX):
        async with trio.open_nursery() as nursery:
            for txg in txgs[at : at + HISTORY_FETCHES_MAX]:
                nursery.start_soon(read, txg)
    return found


async def _changed(source: Source, first: Txg, last: Txg, budget: int) -> tuple[int | None, int]:
    """Return the number of inodes that some txgs changed, and how many changelogs were read."""
    inos: set[Ino] = set()

    def take(index: HistoryIndex, mask: int) -> None:
        inos.update(row.ino for row in index.inodes if (row.content | row.other) & mask)

    missing = await (await source.search()).collect(first, last, take)
    if len(missing) > budget:
        return None, 0
    for at in range(0, len(missing), HISTORY_FETCHES_MAX):
        batch = missing[at : at + HISTORY_FETCHES_MAX]
        for one in await source.changelogs.scan(batch, _inodes):
            if isinstance(one, Unreadable):
                return None, len(missing)
            inos.update(*one.results)
    return len(inos), len(missing)


def _inodes(changeset: bytes, is_whole: bool) -> set[Ino]:
    rows = row_history.changed_rows(changeset, is_whole=is_whole)
    return {*rows.content, *rows.other}
