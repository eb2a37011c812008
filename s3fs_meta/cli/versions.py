"""``s3fs-meta versions``: list the versions of a file."""

import shlex
import stat
from collections.abc import Mapping
from typing import Annotated, Any, Final

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_BUCKET, OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.cli.limits import HISTORY_SHOWN_DEFAULT, PATTERN_SHOWN_DEFAULT
from s3fs_meta.cli.past_target import is_url, past_target
from s3fs_meta.console import output
from s3fs_meta.console.printable import quoted
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.counted import counted
from s3fs_meta.errors import UsageError
from s3fs_meta.model import PointInTime
from s3fs_meta.mount.requests.history_requests import Shape, found_by, request_versions
from s3fs_meta.mount.snapshot_source import Reading, opened_bucket, opened_snapshot
from s3fs_meta.options.option_syntax import format_time
from s3fs_meta.sync.history.index.index_search import HistorySearch
from s3fs_meta.sync.history.versions.changelog_reader import ChangelogReader
from s3fs_meta.sync.history.versions.path_versions import PathVersions

_TIME_CHARS: Final = len(format_time(0))

HELP = CommandHelp(
    name="versions",
    summary="List the retained versions of a file.",
    description=(
        "Lists the transaction groups in which the file at PATH changed, newest first: "
        "number, time, size, and what changed. The file may have been renamed, replaced by "
        "another one, or removed; PATH may be its path at any retained point in time. mount -o "
        "at= and restore accept the number or the time as shown; the file then has its state "
        "after that change.",
        "With a path in a mounted filesystem the command queries the mount, so changes that are "
        "not uploaded yet are also listed. With a URL, the command reads only the bucket, and "
        "PATH is relative to the root. This also works while a host has the filesystem mounted; "
        "changes that are not uploaded yet are then not listed.",
        "The history index in the bucket lists the changelogs to read; without it, all are read.",
    ),
    examples=(
        Example("s3fs-meta versions /mnt/home/thesis/draft.txt", "list the versions of a file"),
        Example(
            "s3fs-meta versions s3://bucket/home thesis/draft.txt", "list them without a mount"
        ),
        Example(
            "s3fs-meta restore --at txg=1234 --to ~/then s3://bucket/home thesis/draft.txt",
            "copy one of these versions",
        ),
        Example(
            "s3fs-meta versions --pattern /mnt/home/reports/'*.pdf'",
            "list all reports, even removed ones",
        ),
        Example(
            "s3fs-meta versions --json s3://bucket/home report.pdf", "print the versions as JSON"
        ),
    ),
    exits=exits_of(*OF_BUCKET, *OF_MOUNT),
)


def versions(
    target: options.PathOrUrl,
    path: options.PathInBucket = None,
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            metavar="N",
            min=1,
            help=f"Maximum number of versions listed per file; default: {HISTORY_SHOWN_DEFAULT}, "
            f"or {PATTERN_SHOWN_DEFAULT} with --pattern.",
        ),
    ] = None,
    attributes: Annotated[
        bool,
        typer.Option(
            "--attributes",
            help="Also list versions in which only the owner, the permissions or xattrs changed.",
        ),
    ] = False,
    pattern: Annotated[
        bool,
        typer.Option(
            "--pattern",
            help="Treat the last component of PATH as a pattern (* ? [a-z]), and list all matching "
            "files.",
        ),
    ] = False,
    *,
    access: options.BucketOptions,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta versions``: list the versions of a file."""
    most = count or (PATTERN_SHOWN_DEFAULT if pattern else HISTORY_SHOWN_DEFAULT)
    shape = Shape(most, attributes=attributes, pattern=pattern)
    wanted = past_target(target, path, access.cachedir)
    if not is_url(target):
        found = trio.run(request_versions, wanted, shape)
    elif path is None:
        command = f"s3fs-meta versions {shlex.quote(target)} PATH"
        raise UsageError(f"add the path of a file after the URL: {command}")
    else:
        with TerminalFront(quiet=json) as front:
            reading = Reading(wanted.place, access.s3, access.passphrase_file, front)
            found = trio.run(_find, reading, wanted.names, shape)
    if json:
        output.print_json(_facts(found, wanted.place.url, shape))
        return
    for one in found["files"]:
        name = one["path"].rpartition("/")[2]
        if pattern:
            output.print_text(quoted(one["path"]))
        for version in one["versions"]:
            output.print_text(_line(version, name))
        if not one["complete"]:
            output.print_text(f"there are earlier versions; list more with -n {10 * most}")
    for notice in found["notices"]:
        output.print_text(notice)


async def _find(reading: Reading, names: list[bytes], shape: Shape) -> dict[str, Any]:
    """Find versions in the bucket; the result has the form of ``request_versions``."""
    newest = PointInTime("newest")
    async with (
        opened_bucket(reading) as bucket,
        opened_snapshot(reading, bucket, newest) as volume,
    ):
        oldest = await bucket.points.oldest(volume.link)
        finder = PathVersions(
            volume.db,
            HistorySearch(bucket.store, bucket.keyring, bucket.uuid, volume.link),
            ChangelogReader(bucket.store, bucket.keyring, bucket.uuid),
            oldest.txg,
            volume.link,
        )
        return await found_by(finder, names, shape)


def _line(version: Mapping[str, Any], shown: str) -> str:
    """Return a version as one line for users; omit the file's name if it equals *shown*."""
    when = (
        "not uploaded yet" if version["created_ns"] is None else format_time(version["created_ns"])
    )
    number = str(version["txg"]) if version["uploaded"] else "-"
    why = version["unknown"]
    if why is not None and version["created_ns"] is None:
        return f"{number:>6}  unknown: {why}"
    changes = ", ".join(version["changes"]) + (f": {why}" if why else "")
    name = "" if version["name"] in {None, shown} else f" ({quoted(version['name'])})"
    return f"{number:>6}  {when:<{_TIME_CHARS}}  {_size(version):>8}  {changes}{name}"


def _size(version: Mapping[str, Any]) -> str:
    """Return the size of a file, or the number of names in a directory."""
    size, mode = version["size_bytes"], version["mode"]
    if size is None:
        return ""
    return counted(size, "name") if mode and stat.S_ISDIR(mode) else output.human_bytes(size)


def _facts(found: Mapping[str, Any], url: str, shape: Shape) -> dict[str, Any]:
    """Return the JSON output for the versions of one file or of several files."""
    files = [
        {**one, "versions": [_timed(two) for two in one["versions"]]} for one in found["files"]
    ]
    notices = {"notices": found["notices"]}
    if shape.pattern:
        return {"url": url, "files": files, **notices}
    return {"url": url, **files[0], **notices}


def _timed(version: Mapping[str, Any]) -> dict[str, Any]:
    created_ns = version["created_ns"]
    return {**version, "time": None if created_ns is None else format_time(created_ns)}
