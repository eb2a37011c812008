"""``s3fs-meta restore``: copy the files of a point in time out of a bucket."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import trio
import typer

from s3fs_meta.background_task import continuing
from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_BUCKET, CommandHelp, Example, exits_of
from s3fs_meta.cli.given_arguments import given_texts
from s3fs_meta.cli.new_directory import copy_target
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.counted import counted
from s3fs_meta.export.copier import Copier, Tally
from s3fs_meta.export.from_snapshot import Restoring, find
from s3fs_meta.model import PointInTime
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.snapshot_source import Reading, opened_bucket, opened_snapshot
from s3fs_meta.options import option_syntax
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.newest_locations import newest_state
from s3fs_meta.sync.history.points_in_time import described
from s3fs_meta.sync.uncached_reads import UncachedReader

HELP = CommandHelp(
    name="restore",
    summary="Copy files out of a bucket, as they were at a point in time.",
    description=(
        "Copies the complete tree, or the tree at each PATH with its parent directories, into a "
        "new or empty directory: content, names, modes, times, extended attributes, ACLs, hard "
        "and symbolic links, holes and special files; owners only if root runs the command. The "
        "filesystem may be mounted on any host, and is not changed.",
        "A point in time is a time in ISO 8601 (local unless it has a zone), an age (10m, 1h30m), "
        "txg=N or the name of a kept point. Content that the bucket has lost is a hole in the "
        "copy, and is reported.",
    ),
    examples=(
        Example(
            "s3fs-meta restore --at '2h ago' --to ~/rescued s3://bucket/home thesis",
            "copy a directory as it was two hours ago",
        ),
        Example(
            "s3fs-meta restore --to /srv/copy s3://bucket/home",
            "copy the present state of all files",
        ),
        Example(
            "s3fs-meta restore --no-privileges --to /srv/look s3://bucket/shared",
            "as root, leave out set-user-ID programs and devices",
        ),
        Example(
            "s3fs-meta restore --at txg=1234 --to ~/then s3://bucket/home",
            "copy the state at a transaction group",
        ),
    ),
    exits=exits_of(*OF_BUCKET),
)


def restore(
    url: options.Url,
    target: Annotated[
        Path,
        typer.Option("--to", metavar="DIR", help="New or empty directory for the copy."),
    ],
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH]...",
            callback=given_texts,
            help="Paths to copy, relative to the root; default: all files.",
        ),
    ] = None,
    at: options.At = "newest",
    no_privileges: options.NoPrivileges = False,
    *,
    access: options.BucketOptions,
    json: options.Json = False,
) -> int:
    """Run ``s3fs-meta restore``: copy the files of a point in time out of a bucket."""
    wanted = option_syntax.point_in_time("--at", at)
    place = targets.of_url(url, access.cachedir)
    with copy_target(target, "restore", quiet=json) as (front, begin):
        reading = Reading(place, access.s3, access.passphrase_file, front)
        names = [os.fsencode(path) for path in paths or []]
        copied = _Copied(names, target, not no_privileges)
        link, tally, copier = trio.run(_restore, reading, wanted, copied, begin)
    _show(link, tally, copier, {"url": url, "to": str(target)}, json=json)
    if tally.found_damage:
        return ExitStatus.CORRUPTION
    return ExitStatus.LOCAL if tally.incomplete_files else ExitStatus.DONE


class _Copied(NamedTuple):
    """The directory entries that the command copies out of the bucket."""

    paths: list[bytes]  # paths relative to the root; all files if the list is empty
    target: Path
    privileges: bool


async def _restore(
    reading: Reading, wanted: PointInTime, copied: _Copied, begin: Callable[[], None]
) -> tuple[Link, Tally, Copier]:
    async with (
        opened_bucket(reading) as bucket,
        opened_snapshot(reading, bucket, wanted) as volume,
    ):
        for path in copied.paths:
            find(volume.db, path)  # a path that did not exist is reported before anything is copied
        newest = newest_state(volume)
        content = UncachedReader(volume.db, volume.store, volume.keyring, newest.find)
        copier = Copier(volume.db, content, copied.target, privileges=copied.privileges)
        restoring = Restoring(volume.db, copier, reading.front.progress)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(continuing, "lost content", newest.run)
            begin()
            await restoring.copy(copied.paths)
            nursery.cancel_scope.cancel()
        return volume.link, restoring.tally, copier


def _show(link: Link, tally: Tally, copier: Copier, where: dict[str, Any], *, json: bool) -> None:
    if json:
        point_in_time = {"txg": link.txg, "created_ns": link.created_ns}
        output.print_json(where | point_in_time | tally.facts(copier))
        return
    size = output.human_bytes(tally.size_bytes)
    output.print_text(
        f"copied {counted(tally.files, 'file')}, {size}, of {described(link)} to {where['to']}"
    )
    for line in tally.lines(copier):
        output.print_text(line)
