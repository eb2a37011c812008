"""The time line: the retained txgs in runs, with the number of changed files in each run.

Owns: the length of runs, counting with the history index, gaps between runs, kept points of runs.
Does not know: how runs are displayed.
Keeps: at most BROWSE_RUNS_MAX runs. At most BROWSE_CHANGELOGS_MAX changelogs are read for changes
that are not in the index; the number of changes in further runs is unknown.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from itertools import groupby, pairwise
from statistics import median
from typing import Final, NamedTuple

from s3fs_meta.background_task import run_concurrently
from s3fs_meta.browse.limits import BROWSE_CHANGELOGS_MAX, BROWSE_RUNS_MAX
from s3fs_meta.browse.sources.source import Source
from s3fs_meta.codec.history_index import ALL_BITS, HistoryIndex
from s3fs_meta.codec.kept_point import KeptPoint
from s3fs_meta.limits import HISTORY_FAN_OUT, HISTORY_FETCHES_MAX
from s3fs_meta.meta import row_history
from s3fs_meta.model import Ino, Txg
from s3fs_meta.sync.history.versions.changelog_reader import UnreadableTxg

# Minimum length of a gap to mark, as a fraction of the time span shown.
_GAP: Final = 0.04
_LONGER: Final = 3.0
_NS: Final = 1e9


class Run(NamedTuple):
    """A run of consecutive txgs, which the time line shows as one row."""

    first: Txg
    last: Txg
    begin_ns: int | None  # time of the first txg; None if it cannot be read
    end_ns: int | None  # time of the last txg; None if it cannot be read
    changed: int | None  # number of changed files and directories; None if unknown


KeptIn = Mapping[Txg, Sequence[KeptPoint]]  # kept points of each run, keyed by the run's first txg


class _Indexed(NamedTuple):
    """The changes of one run, as the history index records them."""

    inos: set[int]  # inode numbers of the changed inodes
    missing: list[Txg]  # txgs whose changes are not in the index


class Day(NamedTuple):
    """The runs that end on one day, newest first."""

    name: str  # date; "" for runs with an unknown time
    runs: list[Run]


class Move(NamedTuple):
    """A link on a page to another part of the time line."""

    label: str
    first: Txg
    last: Txg


async def runs_of(source: Source, first: Txg, last: Txg) -> list[Run]:
    """Divide a range of txgs into runs, and return the runs, latest first.

    Raises:
        StoreError: the bucket cannot be reached.
    """
    step = 1
    while (last - first) // step >= BROWSE_RUNS_MAX:
        step *= HISTORY_FAN_OUT
    # The last txg of a run in the index is a multiple of the run's length.
    ends = [*range(first + (-first) % step, last, step), last]
    firsts = [first, *(end + 1 for end in ends[:-1])]
    runs = [(Txg(one), Txg(end)) for one, end in zip(firsts, ends, strict=True)]
    budget = BROWSE_CHANGELOGS_MAX
    times: dict[Txg, int] = {}
    counts: dict[tuple[Txg, Txg], int | None] = {}
    known = {run: source.counted[run] for run in runs if run in source.counted}
    unknown = [run for run in reversed(runs) if run not in known]
    for batch in _batches(unknown):
        for run, found in zip(batch, await _indexed(source, batch, times), strict=True):
            counts[run] = None
            if len(found.missing) <= budget:
                budget -= len(found.missing)
                counts[run] = await _completed(source, found, times)
    await _read_times(source, [txg for run in unknown for txg in run if txg not in times], times)
    made = {run: Run(*run, times.get(run[0]), times.get(run[1]), counts[run]) for run in unknown}
    shown = [made.get(run) or Run(*run, *known[run]) for run in reversed(runs)]
    for run, one in made.items():
        if one.begin_ns is not None and one.end_ns is not None and one.changed is not None:
            source.count(run, (one.begin_ns, one.end_ns, one.changed))
    return shown


def by_day(runs: Sequence[Run]) -> list[Day]:
    """Return the runs, grouped by the local day on which each run ends."""
    return [Day(name, list(some)) for name, some in groupby(runs, _day)]


def gaps(runs: Sequence[Run]) -> dict[Txg, float]:
    """Return the long gaps before runs, in seconds, keyed by the first txg of the run.

    Args:
        runs: the runs, latest first.
    """
    known = [one for one in runs if one.begin_ns is not None and one.end_ns is not None]
    if not known:
        return {}
    shown_ns = (known[0].end_ns or 0) - (known[-1].begin_ns or 0)
    found = {
        later.first: ((later.begin_ns or 0) - (earlier.end_ns or 0)) / _NS
        for later, earlier in pairwise(known)
    }
    if not found:
        return {}
    least_s = max(_GAP * shown_ns / _NS, _LONGER * median(found.values()))
    return {txg: gap_s for txg, gap_s in found.items() if gap_s > least_s}


def kept_in(runs: Sequence[Run], points: Sequence[KeptPoint]) -> KeptIn:
    """Return the kept points in each run.

    Args:
        runs: the runs, latest first.
        points: the kept points, earliest first.
    """
    found: dict[Txg, list[KeptPoint]] = {}
    lasts = [run.last for run in reversed(runs)]
    for point in points:
        at = bisect_left(lasts, point.txg)
        if at < len(runs) and runs[-1 - at].first <= point.txg:
            found.setdefault(runs[-1 - at].first, []).append(point)
    return found


def moves(first: Txg, last: Txg, oldest: Txg, newest: Txg) -> list[Move]:
    """Return links from a part of the time line to the neighbouring, smaller and larger parts."""
    length = last - first + 1
    half, quarter = max(length // 2, 1), length // 4
    wanted = [
        ("Earlier", first - half, last - half),
        ("Later", first + half, last + half),
        ("Closer", first + quarter, last - quarter),
        ("Wider", first - half, last + half),
    ]
    found = [
        Move(label, Txg(max(begin, oldest)), Txg(min(end, newest))) for label, begin, end in wanted
    ]
    return [one for one in found if one.first <= one.last and one[1:] != (first, last)]


def _day(run: Run) -> str:
    if run.end_ns is None:
        return ""
    when = datetime.fromtimestamp(run.end_ns / _NS, tz=timezone.utc).astimezone()
    return f"{when:%A, %Y-%m-%d}"


async def _read_times(source: Source, txgs: Sequence[Txg], times: dict[Txg, int]) -> None:
    async def read(txg: Txg) -> None:
        link = await source.bucket.points.readable(txg)
        if link is not None:
            times[txg] = link.created_ns

    unique = sorted(set(txgs))
    for at in range(0, len(unique), HISTORY_FETCHES_MAX):
        await run_concurrently(partial(read, txg) for txg in unique[at : at + HISTORY_FETCHES_MAX])


def _batches(runs: Sequence[tuple[Txg, Txg]]) -> Iterator[Sequence[tuple[Txg, Txg]]]:
    """Yield batches of runs, each fetched with one set of requests; the first batch has one run."""
    yield runs[:1]
    for at in range(1, len(runs), HISTORY_FETCHES_MAX):
        yield runs[at : at + HISTORY_FETCHES_MAX]


async def _indexed(
    source: Source, runs: Sequence[tuple[Txg, Txg]], times: dict[Txg, int]
) -> list[_Indexed]:
    """Return the changes of runs from the history index; store the times of txgs in *times*."""
    search = await source.search()
    found = [_Indexed(set(), []) for _ in runs]

    async def collect(run: tuple[Txg, Txg], into: _Indexed) -> None:
        def take(index: HistoryIndex, mask: int) -> None:
            times[index.first], times[index.last] = index.first_ns, index.created_ns
            rows = index.inodes
            if mask == ALL_BITS:
                # Count all: each inode in the index object has changed during the run.
                into.inos.update(rows.inos)
                return
            columns = zip(rows.inos, rows.content, rows.other, strict=True)
            into.inos.update(ino for ino, content, other in columns if (content | other) & mask)

        into.missing.extend(await search.collect(*run, take))

    pairs = zip(runs, found, strict=True)
    await run_concurrently(partial(collect, run, into) for run, into in pairs)
    return found


async def _completed(source: Source, run: _Indexed, times: dict[Txg, int]) -> int | None:
    """Return the number of inodes that changed in a run, or None if a changelog is unreadable."""
    for at in range(0, len(run.missing), HISTORY_FETCHES_MAX):
        batch = run.missing[at : at + HISTORY_FETCHES_MAX]
        for one in await source.changelogs.scan(batch, _inodes):
            if isinstance(one, UnreadableTxg):
                return None
            times[one.txg] = one.link.created_ns
            run.inos.update(*one.results)
    return len(run.inos)


def _inodes(changeset: bytes, is_complete: bool) -> set[Ino]:
    rows = row_history.changed_rows(changeset, is_complete=is_complete)
    return {*rows.content, *rows.other}
