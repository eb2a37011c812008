"""``s3fs-meta status``: show statistics of a mount, or facts about the objects in a bucket."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import trio
import typer

from s3fs_meta.background_task import in_thread
from s3fs_meta.cli import completion, options, status_bucket, status_view
from s3fs_meta.cli.command_help import OF_BUCKET, CommandHelp, Example, exits_of
from s3fs_meta.cli.given_arguments import given_text
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.errors import ControlError, UsageError
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.requests.control_api import ask_each, request_status, request_unshipped
from s3fs_meta.mount.statistics.health import HealthLevel, Limits, MountHealth, judge, worst
from s3fs_meta.mount.stores import options_of_mount, with_options
from s3fs_meta.mount_errors import NotMountedError, OtherUserError, UnreachedDaemonError
from s3fs_meta.options.option_syntax import parse_size, percent, seconds

HELP = CommandHelp(
    name="status",
    summary="Show statistics of a mounted filesystem, or facts about the objects in a bucket.",
    description=(
        "For a mountpoint, or for a URL that is mounted on this host, the command shows sizes, "
        "counts, ratios, the cache, changes that are not uploaded yet, and the last image. "
        "Without an argument, it shows every mount on this host.",
        "For another URL, the command sends about ten requests to the bucket; it writes nothing, "
        "and takes no lease. It shows the newest state with its time, the host that held "
        "the lease and whether it released it, the last image, the changelogs after it, and the "
        "command to run next. The exit status is 12 if one of these objects is missing or "
        "damaged; fsck -n examines the rest. Contents of an encrypted filesystem are examined "
        "only if --passphrase-file or the environment provides the passphrase; the command does "
        "not prompt for it. Without the passphrase, only names and times of objects are shown.",
    ),
    examples=(
        Example("s3fs-meta status", "list every mount on this host"),
        Example("s3fs-meta status /mnt/home", "show the main statistics of a mount"),
        Example(
            "s3fs-meta status --check --max-age 5m --min-free 5% /mnt/home",
            "check limits for Nagios or cron",
        ),
        Example("s3fs-meta status --watch", "show rates and times every 2 s"),
        Example("s3fs-meta status --prometheus", "print metrics for node_exporter"),
        Example("s3fs-meta status --unshipped /mnt/home", "list files with changes to upload"),
        Example("s3fs-meta status s3://bucket/home", "show what a lost host left in the bucket"),
        Example("s3fs-meta status --json s3://bucket/home", "print the facts as JSON"),
    ),
    exits=exits_of(*OF_BUCKET, ExitStatus.NOT_MOUNTED, ExitStatus.CONTROL),
)

_INTERVAL: Final = "2s"  # default of --interval

_MaxAge = Annotated[
    str | None,
    typer.Option(
        "--max-age",
        metavar="TIME",
        help="With --check: maximum age of a change that is not yet uploaded, such as 5m.",
    ),
]
_MaxPending = Annotated[
    str | None,
    typer.Option(
        "--max-pending",
        metavar="SIZE",
        help="With --check: maximum size of file data that is not yet uploaded, such as 1G.",
    ),
]
_MinFree = Annotated[
    str | None,
    typer.Option(
        "--min-free",
        metavar="PERCENT",
        help="With --check: minimum free space on the disk of the cache, such as 5%.",
    ),
]
_Target = Annotated[
    str | None,
    typer.Argument(
        metavar="[MOUNTPOINT|URL]",
        help="Filesystem to show; default: every mount.",
        callback=given_text,
        autocompletion=completion.mountpoints,
    ),
]
_Unshipped = Annotated[
    bool, typer.Option("--unshipped", help="List files whose changes are not yet in the bucket.")
]
_Every = Annotated[
    bool, typer.Option("--all", help="Show all statistics, including request counters.")
]
_ForMonitoring = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Print one line for a monitoring program. The exit status is 0 (good), 1 (a limit "
        "is exceeded or an upload failed), 2 (the mount refuses changes, or has ended) or 3 "
        "(unknown).",
    ),
]
_Watch = Annotated[
    bool,
    typer.Option(
        "--watch",
        help="Show the activity of a mount until Ctrl-C: rates, times, uploads, and the processes "
        "with the most requests. The target may be omitted if there is only one mount.",
    ),
]
_Interval = Annotated[
    str | None,
    typer.Option(
        "--interval",
        metavar="TIME",
        help="With --watch: time between two updates; default: 2s.",
    ),
]
_Prometheus = Annotated[
    bool,
    typer.Option(
        "--prometheus",
        help="Print the statistics of one mount or of all mounts in the Prometheus text format, "
        "for node_exporter's textfile collector.",
    ),
]


def status(
    target: _Target = None,
    *,
    access: options.BucketOptions,
    json: options.Json = False,
    unshipped: _Unshipped = False,
    every: _Every = False,
    check: _ForMonitoring = False,
    prometheus: _Prometheus = False,
    watch: _Watch = False,
    interval: _Interval = None,
    max_age: _MaxAge = None,
    max_pending: _MaxPending = None,
    min_free: _MinFree = None,
) -> int:
    """Run ``s3fs-meta status``: print statistics of mounts, or facts about a bucket."""
    limits = {"--max-age": max_age, "--max-pending": max_pending, "--min-free": min_free}
    _require_use(limits, "--check", is_given=check)
    _require_use({"--interval": interval}, "--watch", is_given=watch)
    outputs = {"--check": check, "--prometheus": prometheus, "--watch": watch}
    _require_one({**outputs, "--unshipped": unshipped, "--all": every})
    _require_one({**outputs, "--json": json})
    if check:
        return _check(target, access.cachedir, _limits(max_age, max_pending, min_free))
    if prometheus:
        from s3fs_meta.cli import status_prometheus  # only --prometheus needs this import

        status_prometheus.show(target, access.cachedir)
        return ExitStatus.DONE
    if watch:
        from s3fs_meta.cli import status_watch  # only --watch needs this import

        status_watch.run(target, access.cachedir, _INTERVAL if interval is None else interval)
        return ExitStatus.DONE
    if unshipped:
        _show_unshipped(target, access.cachedir, json=json)
        return ExitStatus.DONE
    if target is None:
        _show_all(json=json, every=every)
        return ExitStatus.DONE
    return _show(targets.of_either(target, access.cachedir), access, json=json, every=every)


def _require_use(values: Mapping[str, str | None], needed: str, *, is_given: bool) -> None:
    """Raise UsageError if an option has a value but the option that uses it is missing."""
    for word, value in values.items():
        if value is not None and not is_given:
            raise UsageError(f"the option {word} needs {needed}")


def _require_one(given: Mapping[str, bool]) -> None:
    """Raise UsageError if more than one of several options is given."""
    given_options = [word for word, is_given in given.items() if is_given]
    if len(given_options) > 1:
        raise UsageError(f"{' and '.join(given_options)} cannot be combined")


def _limits(max_age: str | None, max_pending: str | None, min_free: str | None) -> Limits:
    return Limits(
        None if max_age is None else seconds(0)("--max-age", max_age),
        None if max_pending is None else parse_size("--max-pending", max_pending),
        None if min_free is None else percent("--min-free", min_free),
    )


def _show(place: Target, access: options.BucketOptions, *, json: bool, every: bool) -> int:
    """Print the statistics of a mount, or facts about a bucket; return the exit status."""
    figures = trio.run(_figures, place, access)
    is_mounted = figures["mountpoint"] is not None
    if json:
        output.print_json(figures)
    elif not is_mounted:
        complete = partial(with_options, url=place.url, options=access.s3, state=place.state)
        output.print_table(status_bucket.rows(figures, complete))
    elif every:
        output.print_table(status_view.table_rows(figures))
    else:
        output.print_table(status_view.screen(figures))
    return ExitStatus.CORRUPTION if not is_mounted and figures["faults"] else ExitStatus.DONE


def _check(target: str | None, cachedir: Path | None, limits: Limits) -> int:
    """Print a line for one mount or each mount; return the worst exit status."""
    try:
        places = targets.all_mounted() if target is None else [targets.of_either(target, cachedir)]
    except NotMountedError as exc:  # print to stdout, because monitoring programs ignore stderr
        failed = _without_answer(exc)
        output.print_text(failed.text)
        return int(failed.level)
    except ControlError as exc:  # the path is inside a mount whose daemon does not answer
        output.print_text(f"{HealthLevel.UNKNOWN.name}: {exc.message}")
        return int(HealthLevel.UNKNOWN)
    if not places:
        output.print_text(f"{HealthLevel.CRITICAL.name}: nothing is mounted")
        return int(HealthLevel.CRITICAL)
    verdicts = trio.run(ask_each, places, partial(_verdict, limits=limits))
    for verdict in verdicts:
        output.print_text(verdict.text)
    return int(worst([verdict.level for verdict in verdicts]))


async def _verdict(place: Target, limits: Limits) -> MountHealth:
    try:
        figures = await request_status(place)
        disk = await in_thread(os.statvfs, place.state)
    except NotMountedError as exc:
        return _without_answer(exc)
    except ControlError as exc:
        return MountHealth(
            HealthLevel.UNKNOWN, f"{HealthLevel.UNKNOWN.name}: {place.url}: {exc.message}"
        )
    found = judge(figures, 100.0 * disk.f_bavail / max(disk.f_blocks, 1), limits)
    text = with_options(found.text, place.url, options_of_mount(place), place.state)
    return found._replace(text=text)


def _without_answer(exc: NotMountedError) -> MountHealth:
    """Return the verdict for a mount that cannot be queried, or has ended."""
    may_work = isinstance(exc, (OtherUserError, UnreachedDaemonError))
    level = HealthLevel.UNKNOWN if may_work else HealthLevel.CRITICAL
    return MountHealth(level, f"{level.name}: {exc.message}")


def _show_unshipped(target: str | None, cachedir: Path | None, *, json: bool) -> None:
    """Print the paths of files whose changes are not yet in the bucket."""
    if target is None:
        place = targets.only_mounted("--unshipped")
    else:
        place = targets.of_either(target, cachedir)
    found = trio.run(request_unshipped, place)
    if json:
        output.print_json(found)
        return
    for path in found["paths"]:
        output.print_text(path)
    if not found["complete"]:
        output.print_text("… and more; s3fs-meta flush uploads all changes")


def _show_all(*, json: bool, every: bool) -> None:
    """Print one line about each mount, or all statistics of each mount."""
    found = trio.run(_all_figures)
    if json:
        output.print_json({"mounts": found})
        return
    if not found:
        output.print_text("nothing is mounted")
    for number, figures in enumerate(found):
        if not every:
            output.print_text(_line(figures))
            continue
        if number:
            output.print_text("")
        output.print_table(status_view.table_rows(figures))


def _line(figures: Mapping[str, Any]) -> str:
    """Return the URL, mountpoint and state of a mount in one line."""
    pending = figures.get("upload", {}).get("pending_bytes")
    rest = "" if pending is None else f", {output.human_bytes(pending)} to upload"
    return f"{figures['url']} on {figures['mountpoint']}: {figures['state']}{rest}"


async def _all_figures() -> list[dict[str, Any]]:
    return await ask_each(targets.all_mounted(), _figures_or_reason)


async def _figures_or_reason(place: Target) -> dict[str, Any]:
    try:
        return await request_status(place)
    except (NotMountedError, ControlError) as exc:
        return {"url": place.url, "mountpoint": place.mountpoint, "state": exc.message}


async def _figures(place: Target, access: options.BucketOptions) -> dict[str, Any]:
    try:
        return await request_status(place)
    except NotMountedError:
        if place.mountpoint is not None:
            raise
    return await status_bucket.facts(place, access)
