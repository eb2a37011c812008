"""``s3fs-meta recover-state``: list quarantined local state, and copy files out of it."""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import trio
import typer

from s3fs_meta.background_task import continuing, in_thread
from s3fs_meta.bucket_errors import BrokenChainError, NoImageError
from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_BUCKET, CommandHelp, Example, exits_of
from s3fs_meta.cli.new_directory import copy_target
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec.image import NO_HASH
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.ui import Front
from s3fs_meta.counted import counted
from s3fs_meta.errors import (
    CorruptionError,
    FormatError,
    ObjectMissingError,
    S3fsError,
    SettingsError,
    UnfinishedFilesystemError,
    UsageError,
)
from s3fs_meta.export import quarantine_list
from s3fs_meta.export.copier import Copier, Tally
from s3fs_meta.export.from_quarantine import KeptContent, copy_all
from s3fs_meta.export.quarantine_list import Kept
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import local_state
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.stores import opened_store, with_options
from s3fs_meta.objects import urls
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.newest_locations import NewestState
from s3fs_meta.sync.image.restore import Restorer
from s3fs_meta.sync.lease.keeper import LeaseKeeper
from s3fs_meta.sync.lease.lease_repair import read_or_derive
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.selection import open_keys
from s3fs_meta.sync.uncached_reads import FindOtherCopy

HELP = CommandHelp(
    name="recover-state",
    summary="List quarantined local state, and copy files out of it.",
    description=(
        "A mount that cannot continue with its local changes (another host has taken the "
        "filesystem over, or a crash has made them doubtful) quarantines them in a directory "
        "kept-... of its state directory. Without --to this command lists these directories.",
        "With --to it copies every file that differs from the state on which the changes were "
        "based: content from the cached blocks, otherwise from the bucket, with name, mode, "
        "owner, times and extended attributes. Removals and renames are not listed. The command "
        "writes only to the new directory; compare it with the mounted filesystem and copy back "
        "the files that you want.",
    ),
    examples=(
        Example("s3fs-meta recover-state s3://bucket/home", "list the quarantined states"),
        Example(
            "s3fs-meta recover-state --to /tmp/rescued s3://bucket/home", "copy the changed files"
        ),
    ),
    exits=exits_of(*OF_BUCKET),
)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The files that the command copies out of a quarantined state, and the target directory."""

    place: targets.Target
    kept: Kept
    target: Path
    everything: bool
    privileges: bool


def recover_state(
    url: options.Url,
    target: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Directory for the copied files, which must be new or empty.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--kept",
            metavar="NAME",
            help="Name of the quarantined state; required if there are several.",
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--everything", help="Copy all files, including unchanged files."),
    ] = False,
    no_privileges: options.NoPrivileges = False,
    *,
    access: options.BucketOptions,
    json: options.Json = False,
) -> int:
    """Run ``s3fs-meta recover-state``: list quarantined states, or copy files out of one."""
    urls.parse(url)
    place = targets.of_url(url, access.cachedir)
    found = [one for one in quarantine_list.find_all(place.state) if name in {None, one.path.name}]
    if name is not None and not found:
        raise UsageError(f"the directory {place.state} contains no quarantined state {name!r}")
    if target is None:
        _list(place, found, json=json)
        return ExitStatus.DONE
    wanted = _Wanted(place, _only(found, place), target, everything, not no_privileges)
    with copy_target(target, "recover-state", quiet=json) as (front, begin):
        _require_database(wanted.kept)
        tally, copier = trio.run(_copy, wanted, access, front, begin)
    _show(wanted, tally, copier, json=json)
    if tally.found_damage:
        return ExitStatus.CORRUPTION
    return ExitStatus.LOCAL if tally.incomplete_files else ExitStatus.DONE


def _only(found: list[Kept], place: targets.Target) -> Kept:
    if not found:
        raise SettingsError(f"nothing is quarantined in {place.state}")
    found = [one for one in found if one.database.exists()] or found
    if len(found) > 1:
        names = ", ".join(one.path.name for one in found)
        raise UsageError(f"there are several quarantined states; choose one with --kept: {names}")
    return found[0]


def _require_database(kept: Kept) -> None:
    if not kept.database.exists():
        why = quarantine_list.without_database(kept)
        raise SettingsError(f"no file can be copied out of {kept.path}: {why}")


async def _copy(
    wanted: _Wanted, access: options.BucketOptions, front: Front, begin: Callable[[], None]
) -> tuple[Tally, Copier]:
    secret = access.secret(front.ask)
    async with opened_store(wanted.place.url, access.s3, counts=wanted.place.state) as store:
        keys = await open_keys(store, Remembered(wanted.place.state), secret)
        for notice in keys.notices:
            front.notice(with_options(notice, wanted.place.url, access.s3, wanted.place.state))
        superblock, keyring = keys.superblock, keys.keyring
        with contextlib.closing(quarantine_list.open_database(wanted.kept)) as db:
            if local_state.get(db, "uuid") not in {None, superblock.uuid}:
                raise SettingsError(f"the state {wanted.kept.path} belongs to another filesystem")
            async with _base(wanted, db, store, superblock, keyring, front) as base:
                inos = await in_thread(quarantine_list.changed, db, base)
            async with _newest(wanted, store, superblock, keyring) as find:
                content = KeptContent(db, wanted.kept.blocks, store, keyring, find)
                copier = Copier(
                    db,
                    content,
                    wanted.target,
                    privileges=wanted.privileges,
                    # the block size in the quarantined database may be damaged
                    block_bytes=superblock.block_bytes,
                )
                begin()
                tally = await copy_all(db, inos, copier, front.progress)
    return tally, copier


@contextlib.asynccontextmanager
async def _newest(
    wanted: _Wanted, store: ObjectStore, superblock: Superblock, keyring: Keyring
) -> AsyncIterator[FindOtherCopy | None]:
    """Yield a function that finds lost content in the newest state; None if that is unreadable."""
    clock = SystemClock()
    keeper = LeaseKeeper(store, clock)
    try:
        await read_or_derive(keeper, store, keyring, clock)
    except (CorruptionError, UnfinishedFilesystemError):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="newest-", dir=wanted.place.state) as scratch:
        path = Path(scratch) / "meta.db"
        newest = NewestState(store, keyring, superblock.uuid, keeper.lease, path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(continuing, "lost content", newest.run)
            yield newest.find
            nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def _base(
    wanted: _Wanted,
    db: Database,
    store: ObjectStore,
    superblock: Superblock,
    keyring: Keyring,
    front: Front,
) -> AsyncIterator[Database | None]:
    """Yield the database on which the quarantined state is based; None to copy all files.

    Raises:
        SettingsError: the bucket cannot restore that database, or its txg is unknown.
    """
    try:
        link = None if wanted.everything else chain.recorded(db)
    except FormatError as exc:
        raise SettingsError(
            f"the changed files are unknown: {exc}; --everything copies all files"
        ) from exc
    if link is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="base-", dir=wanted.place.state) as scratch:
        path = Path(scratch) / "meta.db"
        restorer = Restorer(store, keyring, superblock.uuid, front.progress)
        try:
            restored = await restorer.restore(None, path, upto=link.txg)
        # After the retention period, the changelogs after a kept point's image may be missing.
        except (
            BrokenChainError,
            NoImageError,
            ObjectMissingError,
            UnfinishedFilesystemError,
        ) as exc:
            raise SettingsError(
                f"the bucket cannot restore txg {link.txg}, on which the quarantined state is based"
                f" ({_reason(exc)}), so the changed files are unknown; --everything copies all files"
            ) from exc
        if not _is_same(link, restored):
            front.notice(
                f"the bucket does not have the state at txg {link.txg} on which the quarantined state"
                f" is based; every file that differs from its state at txg {restored.txg} is copied"
            )
        with contextlib.closing(Database.open(path, Pragmas(), read_only=True)) as base:
            yield base


def _is_same(link: Link, restored: Link) -> bool:
    """Return whether *restored* is the txg of *link*, and not of another history."""
    same_hash = link.hash == restored.hash or NO_HASH in {link.hash, restored.hash}
    return link.txg == restored.txg and same_hash


def _reason(exc: S3fsError) -> str:
    """Return why a txg cannot be restored, without the advice in the error's message."""
    if isinstance(exc, BrokenChainError):
        return f"{exc.key!r}: {exc.what}"
    if isinstance(exc, UnfinishedFilesystemError):
        return "it has no image that is old enough"
    return exc.what if isinstance(exc, NoImageError) else exc.message


def _list(place: targets.Target, found: list[Kept], *, json: bool) -> None:
    facts = [quarantine_list.summary(kept) for kept in found]
    if json:
        output.print_json({"url": place.url, "state": str(place.state), "kept": facts})
        return
    if not facts:
        output.print_text(f"nothing is quarantined in {place.state}")
    for one in facts:
        output.print_text(f"{one['path']}: quarantined {output.human_time(one['set_aside_ns'])}")
        output.print_text(f"  {_describe(one)}")


def _describe(facts: Mapping[str, Any]) -> str:
    if facts["why_unreadable"]:
        return f"cannot be read: {facts['why_unreadable']}"
    return f"{output.human_bytes(facts['only_here_bytes'])} were never uploaded"


def _show(wanted: _Wanted, tally: Tally, copier: Copier, *, json: bool) -> None:
    if json:
        where = {"url": wanted.place.url, "kept": wanted.kept.path.name, "to": str(wanted.target)}
        output.print_json(where | tally.facts(copier))
        return
    output.print_text(
        f"copied {counted(tally.files, 'file')}, {output.human_bytes(tally.size_bytes)}, to {wanted.target}"
    )
    for line in tally.lines(copier):
        output.print_text(line)
    if not tally.files and not wanted.everything:
        output.print_text(
            "no file differs from the transaction group on which this state was based; if it was"
            " quarantined for its cached copies of lost content, --everything copies all files"
        )
