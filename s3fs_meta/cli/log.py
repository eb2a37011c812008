"""``s3fs-meta log``: show the history of a filesystem."""

import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Final, NamedTuple

import trio
import typer

from s3fs_meta.bucket_errors import BrokenChainError
from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_BUCKET, CommandHelp, Example, exits_of
from s3fs_meta.cli.limits import HISTORY_SHOWN_DEFAULT
from s3fs_meta.cli.past_target import past_target
from s3fs_meta.codec.changelog import Kind
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.counted import counted
from s3fs_meta.errors import FormatError, NewerFormatError, ObjectMissingError, UsageError
from s3fs_meta.meta.changesets import Summary
from s3fs_meta.model import NEWEST, ROOT_INO, Ino, PointInTime, Txg
from s3fs_meta.mount.snapshot_source import Reading, opened_bucket, opened_snapshot
from s3fs_meta.mount.stores import with_options
from s3fs_meta.options import option_syntax
from s3fs_meta.options.option_syntax import format_time
from s3fs_meta.sync.chain.chain import FetchedChangelog, Link
from s3fs_meta.sync.history.index.index_search import HistorySearch
from s3fs_meta.sync.history.snapshot_mount import Bucket
from s3fs_meta.sync.history.versions import txg_log
from s3fs_meta.sync.history.versions.changelog_reader import ChangelogReader
from s3fs_meta.sync.history.versions.path_log import PathLog
from s3fs_meta.sync.history.versions.path_versions import PathVersions
from s3fs_meta.sync.history.versions.txg_log import Gap, TxgRecord
from s3fs_meta.sync.volume import Volume

HELP = CommandHelp(
    name="log",
    summary="List the transaction groups of a filesystem with the changes in each.",
    description=(
        "Lists transaction groups, newest first: number, time, epoch of the writer, size "
        "of the uploaded objects, the number of inodes created, changed and removed, and the number "
        "of changed names and blocks. mount -o at=, restore and rollback accept the number or the time as shown. Everything is read "
        "from the bucket, so changes that are not uploaded yet are missing; the filesystem may be "
        "mounted on any host.",
        "With PATH, the command lists only groups that changed the file or directory at PATH, or "
        "anything below the directory; the counts are for the complete group. PATH may be "
        "its path at any retained point in time up to --until. For a file that was moved into the "
        "directory, its earlier changes are also listed; for a file that was moved out, its "
        "changes until then. A read is not a change. Two kinds of groups are always listed: a "
        "group of kind image (made by fsck or rollback), which may have changed anything, and a "
        "group whose changelog is missing or damaged, with the reason. The history index in the "
        "bucket lists the changelogs to read; without it, all are read.",
        "s3fs-meta versions lists the versions of one file, with its size and the kind of change "
        "in each group. This command shows when a directory changed; s3fs-meta diff shows what "
        "changed in it.",
    ),
    examples=(
        Example("s3fs-meta log s3://bucket/home", "list the last transaction groups"),
        Example("s3fs-meta log /mnt/home/thesis", "list the groups that changed a directory"),
        Example("s3fs-meta log s3://bucket/home thesis", "list them without a mount"),
        Example(
            "s3fs-meta log --since '2h ago' --json s3://bucket/home", "print recent groups as JSON"
        ),
    ),
    exits=exits_of(*OF_BUCKET, ExitStatus.NOT_MOUNTED),
)


class _Wanted(NamedTuple):
    """The part of the history that the command shows: a path and a range of times."""

    top: Ino  # inode of the directory where the path starts
    names: list[bytes]  # components of the path; an empty list selects everything below *top*
    since: PointInTime | None
    until: PointInTime
    most: int | None


def log(
    target: options.PathOrUrl,
    path: options.PathInBucket = None,
    since: Annotated[
        str | None, options.time_option("--since", "List only transaction groups since TIME.")
    ] = None,
    until: Annotated[
        str, options.time_option("--until", "List only transaction groups up to TIME.")
    ] = "newest",
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            metavar="N",
            min=1,
            help=f"Maximum number of listed transaction groups; default: {HISTORY_SHOWN_DEFAULT}, "
            "or all with --since.",
        ),
    ] = None,
    *,
    access: options.BucketOptions,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta log``: show the history of a filesystem."""
    place, top, names = past_target(target, path, access.cachedir)
    wanted = _Wanted(
        top,
        names,
        None if since is None else option_syntax.point_in_time("--since", since),
        option_syntax.point_in_time("--until", until),
        count or (HISTORY_SHOWN_DEFAULT if since is None else None),
    )
    with TerminalFront(quiet=json) as front:
        reading = Reading(place, access.s3, access.passphrase_file, front)
        entries = trio.run(_read, reading, wanted)
    if json:
        output.print_json({"url": place.url, "txgs": [_facts(entry) for entry in entries]})
        return
    for entry in entries:
        output.print_text(_line(entry))


async def _read(reading: Reading, wanted: _Wanted) -> list[TxgRecord | Gap]:
    found: list[TxgRecord | Gap] = []
    async with opened_bucket(reading) as bucket, contextlib.AsyncExitStack() as stack:
        last = await _last(bucket, wanted.until)
        oldest = await bucket.points.oldest(bucket.points.end)
        since = None if wanted.since is None else await _first(bucket, wanted.since)
        _require_order(wanted, since, last)
        if wanted.names or wanted.top != ROOT_INO:
            exact = PointInTime(f"txg={last.txg}", txg=last.txg)
            volume = await stack.enter_async_context(opened_snapshot(reading, bucket, exact))
            backwards = await _of_path(reading, bucket, volume, wanted, oldest.txg)
        else:
            for notice in bucket.points.notices:
                reading.front.notice(
                    with_options(notice, reading.place.url, reading.options, reading.place.state)
                )
            backwards = txg_log.backwards(bucket, last, oldest.txg)
        async with aclosing(backwards) as changelogs:
            async for fetched in changelogs:
                if _is_before(fetched, since):
                    break
                done = last.txg - fetched.txg
                reading.front.progress("changelogs", done, last.txg - oldest.txg)
                found.append(await _entry(bucket, fetched))
                if len(found) == wanted.most:
                    break
    return found


async def _of_path(
    reading: Reading, bucket: Bucket, volume: Volume, wanted: _Wanted, first: Txg
) -> AsyncGenerator[FetchedChangelog | Gap, None]:
    """Return the changelogs with changes of the given path, latest first."""
    search = HistorySearch(bucket.store, bucket.keyring, bucket.uuid, volume.link)
    changelogs = ChangelogReader(bucket.store, bucket.keyring, bucket.uuid)
    versions = PathVersions(volume.db, search, changelogs, first, volume.link, top=wanted.top)
    bindings = await versions.bindings(wanted.names)
    if not versions.has_all_bindings:
        reading.front.notice(
            "too many inodes have had this path: changes to the earliest inodes are not listed"
        )
    return PathLog(volume.db, search, changelogs, bindings, volume.link.txg).backwards(first)


async def _first(bucket: Bucket, since: PointInTime) -> PointInTime:
    """Return the point in time at which the list begins, by the clock of the store."""
    if since.kept is not None:
        return since._replace(txg=(await bucket.find(since)).txg)
    return (await bucket.by_store(since))[0]


def _require_order(wanted: _Wanted, since: PointInTime | None, last: Link) -> None:
    """Raise UsageError if the user gave a beginning that is later than the end."""
    if since is None or wanted.since is None or wanted.until == NEWEST:
        return
    end_ns = last.created_ns if wanted.until.time_ns is None else wanted.until.time_ns
    is_later = since.txg > last.txg if since.txg is not None else (since.time_ns or 0) > end_ns
    if is_later:
        raise UsageError(
            f"--since {wanted.since.text} is later than --until {wanted.until.text}; exchange the"
            " two times"
        )


async def _last(bucket: Bucket, until: PointInTime) -> Link:
    """Return the last txg to list; add a notice if the newest changelogs cannot be read."""
    if until != NEWEST:
        return await bucket.find(until)
    newest = await bucket.points.newest()
    if bucket.points.unreadable_end:
        try:
            await bucket.find(until)
        except BrokenChainError as exc:
            bucket.points.notices.append(exc.message)
    return newest


async def _entry(bucket: Bucket, fetched: FetchedChangelog | Gap) -> TxgRecord | Gap:
    if isinstance(fetched, Gap):
        return fetched
    try:
        return await txg_log.describe(bucket, fetched)
    except NewerFormatError:
        raise
    except (FormatError, ObjectMissingError) as exc:  # an object is damaged or missing
        return Gap(fetched.link.txg, exc.message)


def _is_before(fetched: FetchedChangelog | Gap, since: PointInTime | None) -> bool:
    if since is None:
        return False
    if since.txg is not None:
        return fetched.txg < since.txg
    if since.time_ns is None or isinstance(fetched, Gap):
        return False
    return fetched.link.created_ns < since.time_ns


_KINDS: Final = {
    Kind.GROUP: "",
    Kind.FENCE: "a new writer",
    Kind.IMAGE: "a new image by fsck or rollback",
}


def _line(entry: TxgRecord | Gap) -> str:
    """Return a transaction group as one line for users."""
    if isinstance(entry, Gap):
        return f"{entry.txg:>6}  cannot be restored: {entry.why}"
    size = output.human_bytes(entry.object_bytes + entry.stored_bytes)
    text = _KINDS[entry.kind] or _changes(entry.changes)
    when = format_time(entry.link.created_ns)
    return f"{entry.link.txg:>6}  {when}  epoch {entry.epoch}  {size:>8}  {text}"


def _changes(changes: Summary | None) -> str:
    if changes is None:
        return ""
    counts = {
        "created": changes.created,
        "changed": changes.changed,
        "removed": changes.removed,
    }
    found = [f"{count} {word}" for word, count in counts.items() if count]
    nouns = {"name": changes.names, "block": changes.blocks}
    found += [counted(count, noun) for noun, count in nouns.items() if count]
    return ", ".join(found) or "no files"


def _facts(entry: TxgRecord | Gap) -> dict[str, Any]:
    """Return the JSON output for one transaction group."""
    if isinstance(entry, Gap):
        return {"txg": entry.txg, "unreadable": entry.why}
    return {
        "txg": entry.link.txg,
        "created_ns": entry.link.created_ns,
        "time": format_time(entry.link.created_ns),
        "epoch": entry.epoch,
        "kind": entry.kind.value,
        "hash": entry.link.hash,
        "changelog_bytes": entry.object_bytes,
        "stored_bytes": entry.stored_bytes,
        "changes": None if entry.changes is None else entry.changes._asdict(),
    }
