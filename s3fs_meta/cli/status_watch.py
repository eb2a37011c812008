"""``status --watch``: show the activity of a mount repeatedly.

Owns: the difference between two readings, the screen, the end of the command. Does not know: the
statistics (``mount.statistics.figures``), the arithmetic of latencies (``mount.statistics.latency``).
On a terminal one screen is updated; in a pipe or a file, every interval prints a screen.
"""

import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from s3fs_meta.cli import status_view
from s3fs_meta.cli.limits import WATCH_OPERATIONS_MAX, WATCH_PROCESSES_MAX, WATCH_S_MIN
from s3fs_meta.console import output
from s3fs_meta.console.printable import printable, user_name
from s3fs_meta.errors import ControlError
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.requests.control_api import request_requesters, request_status
from s3fs_meta.mount.statistics.latency import Histogram, histograms
from s3fs_meta.mount_errors import NotMountedError
from s3fs_meta.options.option_syntax import seconds

FIRST_S_MAX: Final = 1.0  # maximum delay before the first screen
_FEW_PER_S: Final = 10  # smaller rates are shown with one decimal place
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class TimedFigures(NamedTuple):
    """The statistics of a mount at one point in time."""

    at_s: float
    figures: Mapping[str, Any]


class StatusScreen(NamedTuple):
    """The texts of one screen of ``status --watch``."""

    title: str
    rows: Mapping[str, str]
    operations: Sequence[Sequence[str]]
    processes: Sequence[Sequence[str]]


def run(target: str | None, cachedir: Path | None, interval: str) -> None:
    """Run ``s3fs-meta status --watch``.

    Raises:
        NotMountedError: the filesystem is not mounted.
        UsageError: the target is missing or ambiguous, or the interval is invalid.
    """
    interval_s = seconds(WATCH_S_MIN)("--interval", interval)
    place = (
        targets.only_mounted("--watch") if target is None else targets.of_either(target, cachedir)
    )
    trio.run(watch, place, interval_s)


async def watch(place: Target, interval_s: float) -> None:
    """Show a mount until a signal ends the command, or until the mount has ended.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: the daemon does not answer the first request.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_on_signal, nursery.cancel_scope)
        await _watch(place, interval_s)
        nursery.cancel_scope.cancel()


async def _watch(place: Target, interval_s: float) -> None:
    earlier = await _read(place)
    console = Console(markup=False, highlight=False)
    with Live(console=console, auto_refresh=False, transient=False) as live:
        wait_s = min(interval_s, FIRST_S_MAX)
        while True:
            await trio.sleep(wait_s)
            try:
                later = await _read(place)
                requesters = await _requesters(place, later.at_s - earlier.at_s)
            except (NotMountedError, ControlError) as exc:
                live.stop()
                output.print_at_once(f"{earlier.figures['url']}: {exc.message}")
                return
            screen = rendered(view(earlier, later, requesters))
            if console.is_terminal:
                live.update(screen, refresh=True)
            else:
                console.print(screen, soft_wrap=True)
            earlier, wait_s = later, interval_s


async def _read(place: Target) -> TimedFigures:
    figures = await request_status(place)
    return TimedFigures(trio.current_time(), figures)


async def _requesters(place: Target, within_s: float) -> Mapping[str, Any]:
    """Return the processes that send the most requests; {} if the daemon is too old."""
    with suppress(ControlError):
        return await request_requesters(place, within_s)
    return {}


async def _cancel_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(*_ENDS) as signals:
        async for _ in signals:
            scope.cancel()
            return


# --- draw one screen -----------------------------------------------------------------------------


def view(earlier: TimedFigures, later: TimedFigures, requesters: Mapping[str, Any]) -> StatusScreen:
    """Return a screen that shows the activity between two readings."""
    figures, before = later.figures, earlier.figures
    passed_s = max(later.at_s - earlier.at_s, 1e-6)
    then = histograms(before)
    times = {name: one.since(then.get(name)) for name, one in histograms(figures).items()}
    rows = {
        "state": status_view.state_of(figures),
        "requests": _requests(figures, sum(one.count for one in times.values()) / passed_s),
        "content": _content(before, figures, passed_s),
        "cache": _cache(before["cache"], figures["cache"]),
        "upload": status_view.shown_upload(figures["upload"]),
        "only on this host": status_view.at_risk(figures),
        "bucket": _bucket(before["store"], figures["store"], passed_s),
    }
    return StatusScreen(
        f"{figures['url']} on {figures['mountpoint']}, {datetime.now().astimezone():%H:%M:%S}",
        rows | status_view.errors_of(figures),
        _operations(times, passed_s),
        _processes(requesters),
    )


def _requests(figures: Mapping[str, Any], per_s: float) -> str:
    latency = figures.get("latency", {})
    waiting = latency.get("waiting", 0)
    oldest = output.human_duration(latency.get("oldest_s", 0.0))
    return _rate(per_s) + (f", {waiting} waiting, the oldest for {oldest}" if waiting else "")


def _content(before: Mapping[str, Any], now: Mapping[str, Any], passed_s: float) -> str:
    """Return the rates of reads and writes by the kernel, as text."""
    then, latency = before.get("latency", {}), now.get("latency", {})
    return ", ".join(
        f"{output.human_bytes((latency.get(key, 0) - then.get(key, 0)) / passed_s)}/s {word}"
        for key, word in (("read_bytes", "read"), ("written_bytes", "written"))
    )


def _cache(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    hits, misses = now["hits"] - before["hits"], now["misses"] - before["misses"]
    used = f"{output.human_bytes(now['bytes'])} of {output.human_bytes(now['bytes_max'])}"
    return used + (f", {hits / (hits + misses):.0%} of reads found there" if hits + misses else "")


def _bucket(
    before: Mapping[str, Mapping[str, int]], now: Mapping[str, Mapping[str, int]], passed_s: float
) -> str:
    made = {
        key: sum(method[key] - before.get(name, {}).get(key, 0) for name, method in now.items())
        for key in ("requests", "sent_bytes", "received_bytes")
    }
    sent, received = (
        output.human_bytes(made[f"{word}_bytes"] / passed_s) for word in ("sent", "received")
    )
    return f"{_rate(made['requests'] / passed_s)}, {sent}/s sent, {received}/s received"


def _operations(times: Mapping[str, Histogram], passed_s: float) -> list[list[str]]:
    """Return the most frequent operations: name, rate, median and 99th percentile."""
    used = sorted(times.items(), key=lambda one: -one[1].count)
    return [
        [
            name,
            _rate(one.count / passed_s),
            status_view.shown_latency(one.quantile_s(0.5)),
            status_view.shown_latency(one.quantile_s(0.99)),
        ]
        for name, one in used[:WATCH_OPERATIONS_MAX]
        if one.count
    ]


def _processes(requesters: Mapping[str, Any]) -> list[list[str]]:
    """Return the busiest processes: name, pid, user, rate and share of the requests."""
    return [
        [
            one["name"],
            "" if one["pid"] is None else str(one["pid"]),
            "" if one["uid"] is None else user_name(one["uid"]),
            _rate(one["requests"] / max(requesters["span_s"], 1e-6)),
            f"{one['requests'] / requesters['requests']:.0%}",
        ]
        for one in requesters.get("processes", ())[:WATCH_PROCESSES_MAX]
    ]


def _rate(per_s: float) -> str:
    return f"{per_s:.1f}/s" if 0 < per_s < _FEW_PER_S else f"{per_s:.0f}/s"


def rendered(shown: StatusScreen) -> Group:
    """Return a screen for the terminal."""
    parts: list[Any] = [Text(printable(shown.title), style="bold"), output.table_of(shown.rows)]
    if shown.operations:
        operations = ("operation", "rate", "p50", "p99")
        parts.append(output.columns_of(operations, shown.operations))
    if shown.processes:
        processes = ("process", "pid", "user", "rate", "share")
        parts.append(output.columns_of(processes, shown.processes, 3))
    return Group(*parts, Text())
