"""``s3fs-meta versions``: the versions of a file."""

import os
from typing import Annotated, Any

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_BUCKET, CommandHelp, Example, exits_of
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.export.from_snapshot import names_of
from s3fs_meta.limits import HISTORY_SHOWN_DEFAULT
from s3fs_meta.model import PointInTime
from s3fs_meta.mount import targets
from s3fs_meta.mount.snapshot_source import Reading, opened_bucket, opened_snapshot
from s3fs_meta.option_syntax import format_time
from s3fs_meta.sync.history.changelog_reader import ChangelogReader
from s3fs_meta.sync.history.index_search import HistorySearch
from s3fs_meta.sync.history.path_versions import PathVersions, Version, Versions

HELP = CommandHelp(
    name="versions",
    summary="List the versions of a file that the bucket has.",
    description=(
        "Lists the transaction groups in which the file at PATH changed, the last one first: "
        "number, time, size, and what changed. The file may have been renamed, replaced by "
        "another one, or removed; PATH is where it was at any retained point in time. mount -o "
        "at= and restore accept the number or the time as shown, and give the file as it was "
        "after that change.",
        "Everything is read from the bucket; the filesystem may be mounted on any host. Changes "
        "that are not uploaded yet are missing; s3fs-meta flush uploads them. The history index "
        "in the bucket lists the changelogs to read; where it is missing, all are read.",
    ),
    examples=(
        Example("s3fs-meta versions s3://bucket/home thesis/draft.txt", "the versions of a file"),
        Example(
            "s3fs-meta restore --at txg=1234 --to ~/then s3://bucket/home thesis/draft.txt",
            "the file as one of these versions",
        ),
        Example("s3fs-meta versions --json s3://bucket/home report.pdf", "as JSON, for a program"),
    ),
    exits=exits_of(*OF_BUCKET, ExitStatus.SETTINGS, ExitStatus.LOCAL),
)


def versions(
    url: options.Url,
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="Path of the file, from the root.", show_default=False),
    ],
    count: Annotated[
        int, typer.Option("-n", metavar="N", min=1, help="Maximum number of versions.")
    ] = HISTORY_SHOWN_DEFAULT,
    attributes: Annotated[
        bool,
        typer.Option(
            "--attributes", help="Also list changes of only owners, permissions or xattrs."
        ),
    ] = False,
    *,
    access: options.Access,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta versions``."""
    names = names_of(os.fsencode(path))
    place = targets.of_url(url, access.cachedir)
    with TerminalFront(quiet=json) as front:
        reading = Reading(place, access.s3, access.passphrase_file, front)
        found = trio.run(_find, reading, names, count, attributes)
    if json:
        facts = [_facts(version) for version in found.found]
        output.print_json(
            {"url": url, "path": path, "versions": facts, "complete": found.is_complete}
        )
        return
    for version in found.found:
        output.print_text(_line(version, names[-1] if names else b""))
    if not found.is_complete:
        output.print_text(f"there are earlier versions; list more with -n {10 * count}")


async def _find(reading: Reading, names: list[bytes], count: int, attributes: bool) -> Versions:
    newest = PointInTime("newest")
    async with (
        opened_bucket(reading) as bucket,
        opened_snapshot(reading, bucket, newest) as volume,
    ):
        oldest = await bucket.points.oldest()
        finder = PathVersions(
            volume.db,
            HistorySearch(bucket.store, bucket.keyring, bucket.uuid, volume.link),
            ChangelogReader(bucket.store, bucket.keyring, bucket.uuid),
            oldest.txg,
            volume.link,
        )
        return await finder.of_path(names, count, attributes=attributes)


def _line(version: Version, shown: bytes) -> str:
    """Return a version as one line for users; the name of the file is *shown* already."""
    if version.created_ns is None:
        return f"{version.txg:>6}  unknown: {version.why}"
    size = "" if version.size_bytes is None else output.human_bytes(version.size_bytes)
    changes = ", ".join(version.changes) + (f": {version.why}" if version.why else "")
    name = "" if version.name in {None, shown} else f" ({os.fsdecode(version.name or b'')!r})"
    return f"{version.txg:>6}  {format_time(version.created_ns)}  {size:>8}  {changes}{name}"


def _facts(version: Version) -> dict[str, Any]:
    """Return a version as a dictionary for programs."""
    created_ns = version.created_ns
    return {
        "txg": version.txg,
        "created_ns": created_ns,
        "time": None if created_ns is None else format_time(created_ns),
        "ino": version.ino,
        "changes": list(version.changes),
        "name": None if version.name is None else os.fsdecode(version.name),
        "size_bytes": version.size_bytes,
        "mtime_ns": version.mtime_ns,
        "mode": version.mode,
        "unknown": version.why or None,
    }
