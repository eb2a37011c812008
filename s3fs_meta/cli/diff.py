"""``s3fs-meta diff``: list the differences between two points in time."""

import os
import stat
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Annotated, Any, Final

import trio
import typer

from s3fs_meta.background_task import in_thread
from s3fs_meta.cli import completion, options
from s3fs_meta.cli.command_help import OF_BUCKET, CommandHelp, Example, exits_of
from s3fs_meta.cli.past_target import is_url, past_target
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.printable import quoted
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.errors import UsageError
from s3fs_meta.export.from_snapshot import find
from s3fs_meta.limits import DIFF_CHANGES_MAX
from s3fs_meta.meta.trees import tree_diff
from s3fs_meta.meta.trees.tree_diff import Difference, TreeDiff
from s3fs_meta.model import ROOT_INO, Ino, PointInTime
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.snapshot_source import Reading, opened_bucket, opened_snapshot
from s3fs_meta.mount_errors import NotMountedError
from s3fs_meta.options import option_syntax
from s3fs_meta.options.option_syntax import format_time
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.index.index_search import HistorySearch
from s3fs_meta.sync.history.versions.changed_between import changed_between
from s3fs_meta.sync.history.versions.changelog_reader import ChangelogReader
from s3fs_meta.sync.volume import Volume

HELP = CommandHelp(
    name="diff",
    summary="List what changed between two points in time.",
    description=(
        "Lists the files and directories that were added (+), removed (-), changed in content (M) "
        "or only in owner, permissions or xattrs (A), and renamed (R), sorted by path. A renamed "
        "directory is one line; a file that was replaced by another file of the same name counts "
        "as changed.",
        "A point in time is a time in ISO 8601 (local unless it has a zone), an age (10m, 1h30m), "
        "txg=N or the name of a kept point. AFTER defaults to the newest. Everything is read from "
        "the bucket, so changes that are not uploaded yet are missing.",
    ),
    examples=(
        Example("s3fs-meta diff s3://bucket/home '1d ago'", "list what changed since yesterday"),
        Example(
            "s3fs-meta diff /mnt/home/thesis txg=12 txg=99", "compare a directory between two txgs"
        ),
        Example("s3fs-meta diff s3://bucket/home txg=12 txg=99 thesis", "compare without a mount"),
        Example(
            "s3fs-meta diff --stat /mnt/home 1h", "show only how much changed in the last hour"
        ),
    ),
    exits=exits_of(*OF_BUCKET, ExitStatus.NOT_MOUNTED),
)

_SIGNS: Final = {
    tree_diff.ADDED: "+",
    tree_diff.REMOVED: "-",
    tree_diff.CHANGED: "M",
    tree_diff.ATTRIBUTES: "A",
    tree_diff.RENAMED: "R",
}


def diff(
    target: options.PathOrUrl,
    before: Annotated[
        str,
        typer.Argument(
            metavar="BEFORE",
            help="The earlier point in time.",
            autocompletion=completion.points_in_time,
        ),
    ],
    after: Annotated[
        str,
        typer.Argument(
            metavar="[AFTER]",
            help="The later point in time.",
            autocompletion=completion.points_in_time,
        ),
    ] = "newest",
    path: options.PathInBucket = None,
    stat_only: Annotated[
        bool, typer.Option("--stat", help="Print only how many files changed, and their sizes.")
    ] = False,
    *,
    access: options.BucketOptions,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta diff``: list the differences between two points in time."""
    points = (
        option_syntax.point_in_time("BEFORE", before),
        option_syntax.point_in_time("AFTER", after),
    )
    place, names = _place(target, path, access.cachedir)
    top = b"/".join(names)
    with TerminalFront(quiet=json) as front:
        reading = Reading(place, access.s3, access.passphrase_file, front)
        links, found = trio.run(_compare, reading, points, top)
    shown = sorted(one for one in found if one.is_below(top))
    facts: dict[str, Any] = {
        "url": place.url,
        "before": _point(links[0]),
        "after": _point(links[1]),
        "totals": _totals(shown),
    }
    if json and stat_only:
        output.print_json(facts)
        return
    if json:
        output.print_json_rows(facts, "differences", map(_facts, shown))
        return
    if not stat_only:
        for one in shown:
            output.print_text(_line(one))
    output.print_text(_summary(facts["totals"]))


def _place(target: str, path: str | None, cachedir: Path | None) -> tuple[Target, list[bytes]]:
    """Return the filesystem and the components of the path to compare."""
    if path is None and not is_url(target):
        with suppress(NotMountedError):  # the path may also be in a mount, below its mountpoint
            return targets.of_mountpoint(Path(target), cachedir), []
    found = past_target(target, path, cachedir)
    if found.top != ROOT_INO:
        raise UsageError(
            f"the path {target} is below a bind mount; use the URL and the path in the filesystem: "
            f"s3fs-meta diff {found.place.url} TIME TIME PATH"
        )
    return found.place, found.names


async def _compare(
    reading: Reading, points: tuple[PointInTime, PointInTime], top: bytes
) -> tuple[tuple[Link, Link], list[Difference]]:
    async with opened_bucket(reading) as bucket, AsyncExitStack() as stack:
        before, after = [await bucket.find(point) for point in points]
        if before.txg > after.txg:
            raise UsageError(
                f"give the earlier point first: {points[0].text} is later than {points[1].text}"
            )

        async def opened(link: Link, part: str, earlier: Volume | None = None) -> Volume:
            exact = PointInTime(f"txg={link.txg}", txg=link.txg)
            return await stack.enter_async_context(
                opened_snapshot(reading, bucket, exact, part, earlier)
            )

        earlier = await opened(before, "before")
        later = await opened(after, "after", earlier)
        _require_path(earlier, later, top)
        search = HistorySearch(bucket.store, bucket.keyring, bucket.uuid, after)
        changelogs = ChangelogReader(bucket.store, bucket.keyring, bucket.uuid)
        progress = reading.front.progress
        changed = await changed_between(search, changelogs, before.txg, after.txg, progress)
        found = await in_thread(_differences, earlier, later, changed)
    return (before, after), found


def _differences(before: Volume, after: Volume, changed: set[Ino] | None) -> list[Difference]:
    if changed is None:
        changed = set()
        for ino in tree_diff.changed_inodes(before.db, after.db):
            changed.add(ino)
            if len(changed) > DIFF_CHANGES_MAX:
                raise UsageError(
                    f"more than {DIFF_CHANGES_MAX:,} files changed: compare points in time that"
                    " are closer to each other"
                )
    return list(TreeDiff(before.db, after.db).differences(changed))


def _require_path(before: Volume, after: Volume, top: bytes) -> None:
    """Raise UsageError if a path exists at neither of the two points in time."""
    try:
        find(before.db, top)
    except UsageError:
        try:
            find(after.db, top)
        except UsageError as exc:
            shown = os.fsdecode(top)
            raise UsageError(f"the path {shown!r} exists at neither point in time") from exc


def _point(link: Link) -> dict[str, Any]:
    return {
        "txg": link.txg,
        "created_ns": link.created_ns,
        "time": format_time(link.created_ns),
    }


def _totals(found: list[Difference]) -> dict[str, Any]:
    kinds = Counter(one.kind for one in found)
    files = [one for one in found if stat.S_ISREG(one.mode)]
    return {
        **{kind: kinds[kind] for kind in _SIGNS},
        "before_bytes": sum(one.before_bytes or 0 for one in files),
        "after_bytes": sum(one.after_bytes or 0 for one in files),
    }


def _line(one: Difference) -> str:
    """Return a difference as one line for users."""
    sign = _SIGNS[one.kind] + (
        "M" if one.kind == tree_diff.RENAMED and one.is_content_changed else ""
    )
    path = _shown(one.path, one.mode)
    if one.former_path is not None:
        path = f"{_shown(one.former_path, one.mode)} -> {path}"
    if not stat.S_ISREG(one.mode):
        return f"{sign:<2} {'':>21}  {path}"
    sizes = [one.before_bytes, one.after_bytes]
    texts = ["" if size is None else output.human_bytes(size) for size in sizes]
    arrow = "->" if None not in sizes and texts[0] != texts[1] else "  "
    if texts[0] == texts[1]:
        texts[0] = ""
    return f"{sign:<2} {texts[0]:>9} {arrow}{texts[1]:>9}  {path}"


def _shown(path: bytes, mode: int) -> str:
    text = quoted(os.fsdecode(path))
    return f"{text}/" if stat.S_ISDIR(mode) else text


def _summary(totals: dict[str, Any]) -> str:
    counts = [f"{totals[kind]} {kind}" for kind in _SIGNS if totals[kind]]
    if not counts:
        return "no differences"
    sizes = (output.human_bytes(totals[which]) for which in ("before_bytes", "after_bytes"))
    return f"{', '.join(counts)}; content of these files: {' -> '.join(sizes)}"


def _facts(one: Difference) -> dict[str, Any]:
    """Return the JSON output for one difference."""
    return {
        "path": os.fsdecode(one.path),
        "kind": one.kind,
        "former_path": None if one.former_path is None else os.fsdecode(one.former_path),
        "mode": one.mode,
        "before_bytes": one.before_bytes,
        "after_bytes": one.after_bytes,
        "content_changed": one.is_content_changed,
    }
