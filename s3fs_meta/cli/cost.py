"""``s3fs-meta cost``: show the cost of the counted requests by cause."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import trio
import typer

from s3fs_meta.background_task import in_thread
from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import CommandHelp, Example, exits_of
from s3fs_meta.clock import SystemClock
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.errors import ControlError, SettingsError
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.requests.control_api import request_counts
from s3fs_meta.mount.statistics import costs
from s3fs_meta.mount.statistics import prices as price_table
from s3fs_meta.mount_errors import NotMountedError
from s3fs_meta.objects import urls
from s3fs_meta.sync.host_state import request_log
from s3fs_meta.sync.host_state.json_file import NewerFileError
from s3fs_meta.sync.host_state.request_log import Ledger

HELP = CommandHelp(
    name="cost",
    summary="Show the cost of the bucket: requests, transfer and storage.",
    description=(
        "Multiplies the requests that this host has counted for the filesystem by a table of "
        "prices, and shows the cost by cause: today, in the last 30 days, and for a month at the "
        "same rate. Days are in UTC. Requests of mounts are counted, and those of most commands on "
        "a filesystem that was mounted on this host. The bucket is not contacted. Each host counts "
        "only its own requests, so requests of a follower are counted on the follower.",
        "The default prices are the prices of AWS S3 Standard in us-east-1. --prices takes a file in "
        "TOML with other prices; docs/guide/cost.md describes it. Metadata (images, changelogs) is "
        "not part of the stored bytes.",
    ),
    examples=(
        Example("s3fs-meta cost /mnt/home", "show the cost of a mounted filesystem"),
        Example(
            "s3fs-meta cost --prices minio.toml s3://bucket/home", "use the prices of another store"
        ),
        Example("s3fs-meta cost --json s3://bucket/home", "print the cost as JSON"),
    ),
    exits=exits_of(ExitStatus.SETTINGS, ExitStatus.NOT_MOUNTED, ExitStatus.CONTROL),
)

_Prices = Annotated[
    Path | None,
    typer.Option(
        "--prices",
        metavar="FILE",
        help="TOML file with a table of prices; default: AWS S3 Standard, us-east-1.",
    ),
]
_SPANS = ("today", "last_30_days", "per_month")
_CENT = 0.01
_SHOWN_MIN = 0.0001  # a smaller amount would be printed with an exponent
_CAUSES = {
    "data": "packs of data",
    "changelogs": "changelogs",
    "levels": "levels of changelogs",
    "history": "index of the history",
    "images": "images of metadata",
    "lease": "lease",
    "reads": "reads of files",
    "following": "following",
    "compaction": "compaction",
    "garbage": "garbage collection",
    "fsck": "fsck",
    "mount": "mount, restore",
}


def cost(
    target: options.Filesystem,
    prices: _Prices = None,
    *,
    cachedir: options.Cachedir = None,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta cost``: show the cost of the counted requests by cause."""
    table = price_table.default() if prices is None else price_table.load(prices)
    place = targets.of_either(target, cachedir)
    ledger = trio.run(_ledger, place)
    report = {"url": place.url} | costs.report(ledger, table, SystemClock().now_ns())
    if json:
        output.print_json(report)
        return
    for line in heading(report):
        output.print_text(line)
    output.print_columns(("", "today", "cost", "30 days", "cost", "a month", "cost"), rows(report))


async def _ledger(place: Target) -> Ledger:
    """Return the request counts on this host; a running mount first saves its counts.

    Raises:
        NotMountedError: nothing is mounted on the given mountpoint.
        SettingsError: no request was counted, or a newer version wrote the counts.
        UsageError: the URL is invalid.
    """
    state = place.state
    try:
        state = await request_counts(place)
    except NotMountedError:
        if place.mountpoint is not None:
            raise
    except ControlError:
        pass  # the daemon does not answer, or has an earlier version, which does not count requests
    try:
        ledger = await in_thread(request_log.read, state)
    except NewerFileError as exc:
        raise SettingsError(
            f"cannot read the request counts in {state} ({exc}): upgrade s3fs-meta"
        ) from exc
    if ledger is None:
        urls.parse(place.url)  # an invalid URL cannot be mounted
        raise SettingsError(
            f"no requests to {place.url} were counted on this host yet; counting starts with the first"
            f" mount: s3fs-meta mount {shlex.quote(place.url)} DIRECTORY"
        )
    return ledger


# --- show the costs as text --------------------------------------------------------------------


def heading(report: dict[str, Any]) -> list[str]:
    """Return the heading of the table that shows the costs of requests."""
    table, days = report["prices"], report["counted_days"]
    lines = [
        f"{report['url']}: prices of {table['name']} as of {table['as_of']}, in {table['currency']}",
        f"counted on this host since {output.human_time(report['since_ns'])}"
        f" ({days:.1f} of the last {costs.MONTH_DAYS} days)",
    ]
    if report["per_month"] is None:
        lines.append("the cost per month is shown once requests have been counted for an hour")
    return lines


def rows(report: dict[str, Any]) -> list[list[str]]:
    """Return the table rows: each cause of requests, transfer, storage and the sum."""
    spans = [report[name] for name in _SPANS]
    causes = [
        cause for cause, counts in report["last_30_days"]["causes"].items() if counts["requests"]
    ]
    found = [
        [
            _CAUSES.get(cause, cause),
            *_cells([None if one is None else one["causes"][cause] for one in spans], "requests"),
        ]
        for cause in causes
    ]
    for name, text in ((costs.TRANSFER, "sent by the store"), (costs.STORAGE, "stored in packs")):
        found.append(
            [text, *_cells([None if one is None else one[name] for one in spans], "bytes")]
        )
    total = [
        cell for one in spans for cell in ("", "" if one is None else _money(one[costs.TOTAL]))
    ]
    return [*found, ["sum", *total]]


def _cells(spans: list[dict[str, Any] | None], unit: str) -> list[str]:
    cells: list[str] = []
    for counts in spans:
        if counts is None:
            cells += ["", ""]
        elif unit == "bytes":
            cells += [output.human_bytes(counts["bytes"]), _money(counts["cost"])]
        else:
            cells += [f"{counts['requests']:,}", _money(counts["cost"])]
    return cells


def _money(amount: float) -> str:
    """Return an amount with two decimals; an amount below a cent has one significant digit."""
    if not amount:
        return "0"
    if amount < _SHOWN_MIN:
        return f"<{_SHOWN_MIN}"
    return f"{amount:,.2f}" if amount >= _CENT else f"{amount:.1g}"
