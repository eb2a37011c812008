"""``s3fs-meta recover-state``: what a mount set aside, and the files in it."""

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import trio
import typer

from s3fs_meta.cli import kept_state, options, output, passphrase_source, places
from s3fs_meta.cli.command_help import CommandHelp, Example, exits_of
from s3fs_meta.cli.exits import ExitStatus
from s3fs_meta.cli.front import Front, TerminalFront
from s3fs_meta.cli.kept_files import Copied, KeptFiles
from s3fs_meta.cli.kept_state import Kept, Names
from s3fs_meta.cli.stores import opened_store
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import ObjectMissingError, SettingsError, UsageError
from s3fs_meta.meta import local_state
from s3fs_meta.meta.database import Database
from s3fs_meta.meta.pragmas import Pragmas
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.sync import heads
from s3fs_meta.sync.opening import load_superblock, unlock
from s3fs_meta.sync.restore import restore_image

HELP = CommandHelp(
    name="recover-state",
    summary="List local state that was set aside, and copy files out of it.",
    description=(
        "A mount whose local changes cannot be continued (another host has taken the filesystem "
        "over, or a crash has made them doubtful) keeps them in a directory kept-... of its state "
        "directory. Without --to this command lists those directories.",
        "With --to it copies out every file that is not as it was in the last image before: "
        "content from the local copies, else from the bucket, with name, mode, owner, times and "
        "extended attributes. What was removed or renamed is not told. Nothing is changed but "
        "the new directory; compare it with the mounted filesystem and take over what you want.",
    ),
    examples=(
        Example("s3fs-meta recover-state s3://bucket/home", "what was set aside"),
        Example(
            "s3fs-meta recover-state --to /tmp/rescued s3://bucket/home", "the files that changed"
        ),
    ),
    exits=exits_of(
        ExitStatus.SETTINGS,
        ExitStatus.PASSPHRASE,
        ExitStatus.NO_FILESYSTEM,
        ExitStatus.STORE,
        ExitStatus.STORE_ACCESS,
        ExitStatus.CORRUPTION,
        ExitStatus.LOCAL,
    ),
)

_SHOWN_MAX: Final = 20  # incomplete files that people are shown; --json has all


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be copied, and where."""

    place: places.Place
    kept: Kept
    target: Path
    everything: bool


def recover_state(
    url: options.Url,
    target: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Copy the files into this directory, which must be new or empty.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--kept",
            metavar="NAME",
            help="Which of several directories, by its name.",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--everything", help="Copy all files, also those that the last image before had."
        ),
    ] = False,
    passphrase_file: options.PassphraseFile = None,
    endpoint_url: options.EndpointUrl = None,
    region: options.Region = None,
    profile: options.Profile = None,
    cachedir: options.Cachedir = None,
    json: options.Json = False,
) -> int:
    """Carry out the command."""
    place = places.of_url(url, cachedir)
    found = [one for one in kept_state.find_all(place.state) if name in {None, one.path.name}]
    if name is not None and not found:
        raise UsageError(f"there is no {name!r} in {place.state}")
    if target is None:
        _list(place, found, json=json)
        return ExitStatus.DONE
    wanted = _Wanted(place, _only(found, place), target, everything)
    _require_empty(target)
    s3 = options.s3_options(endpoint_url, region, profile)
    with TerminalFront(quiet=json) as front:
        copied = trio.run(_copy, wanted, s3, passphrase_file, front)
    _show(wanted, copied, json=json)
    complete = not any(one.missing or one.unsure for one in copied)
    return ExitStatus.DONE if complete else ExitStatus.CORRUPTION


def _only(found: list[Kept], place: places.Place) -> Kept:
    if not found:
        raise SettingsError(f"nothing was set aside in {place.state}")
    if len(found) > 1:
        names = ", ".join(one.path.name for one in found)
        raise UsageError(f"choose one with --kept: {names}")
    return found[0]


def _require_empty(target: Path) -> None:
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise UsageError(f"{str(target)!r} is not empty")
    except OSError as exc:
        raise UsageError(f"{str(target)!r} cannot be used: {exc.strerror}") from exc


async def _copy(
    wanted: _Wanted, s3: S3Options, passphrase_file: Path | None, front: Front
) -> list[Copied]:
    environment = os.environ.get(passphrase_source.ENVIRONMENT_NAME)
    async with opened_store(wanted.place.url, s3) as store:
        superblock = await load_superblock(store)
        keyring = await unlock(
            superblock,
            lambda: passphrase_source.existing(environment, passphrase_file, front.ask),
        )
        with contextlib.closing(kept_state.open_database(wanted.kept)) as db:
            if local_state.get(db, "uuid") not in {None, superblock.uuid}:
                raise SettingsError(f"{wanted.kept.path} is of another filesystem")
            async with _base(wanted, db, store, keyring, front) as base:
                inos = await trio.to_thread.run_sync(kept_state.changed, db, base)
            files = KeptFiles(db, wanted.kept.blocks, store, keyring, wanted.target)
            names = Names(db, set(inos))
            copied = []
            for done, ino in enumerate(inos, start=1):
                one = await files.copy(ino, names)
                front.progress("files", done, len(inos))
                copied += [] if one is None else [one]
            files.finish(names)
    return copied


@contextlib.asynccontextmanager
async def _base(
    wanted: _Wanted, db: Database, store: ObjectStore, keyring: Keyring, front: Front
) -> AsyncIterator[Database | None]:
    """Give the database of the image that the state went on from; None if all is wanted.

    Raises:
        SettingsError: the image is gone.
    """
    head = heads.recorded(db, "head")
    if wanted.everything or head is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="base-", dir=wanted.place.state) as scratch:
        path = Path(scratch) / "meta.db"
        try:
            manifest = await heads.load_manifest(
                store, keyring, head.manifest_key, head.manifest_hash
            )
            await restore_image(store, keyring, manifest, path, front.progress)
        except ObjectMissingError as exc:
            raise SettingsError(
                "the image that it went on from is no longer in the bucket, so what changed "
                "cannot be told; --everything copies all files"
            ) from exc
        with contextlib.closing(Database.open(path, Pragmas(), read_only=True)) as base:
            yield base


def _list(place: places.Place, found: list[Kept], *, json: bool) -> None:
    facts = [kept_state.summary(kept) for kept in found]
    if json:
        output.print_json({"url": place.url, "state": str(place.state), "kept": facts})
        return
    if not facts:
        output.print_text(f"nothing was set aside in {place.state}")
    for one in facts:
        output.print_text(f"{one['path']}: set aside {output.human_time(one['set_aside_ns'])}")
        output.print_text(f"  {_told(one)}")


def _told(facts: Mapping[str, Any]) -> str:
    if facts["why_unreadable"]:
        return f"cannot be read: {facts['why_unreadable']}"
    return f"{output.human_bytes(facts['only_here_bytes'])} of it were never uploaded"


def _show(wanted: _Wanted, copied: list[Copied], *, json: bool) -> None:
    bad = [one for one in copied if one.missing or one.unsure]
    total_bytes = sum(one.size_bytes for one in copied)
    if json:
        output.print_json(
            {
                "url": wanted.place.url,
                "kept": wanted.kept.path.name,
                "to": str(wanted.target),
                "files": len(copied),
                "bytes": total_bytes,
                "incomplete": [
                    {
                        "path": os.fsdecode(one.path),
                        "missing": one.missing,
                        "unsure": one.unsure,
                    }
                    for one in bad
                ],
            }
        )
        return
    output.print_text(
        f"copied {len(copied)} files, {output.human_bytes(total_bytes)}, to {wanted.target}"
    )
    for one in bad[:_SHOWN_MAX]:
        for what, ranges in (("are missing", one.missing), ("were never synced", one.unsure)):
            if ranges:
                told = ", ".join(f"{first}-{last}" for first, last in ranges)
                output.print_text(f"  bytes {told} {what} in {os.fsdecode(one.path)!r}")
    if len(bad) > _SHOWN_MAX:
        output.print_text(f"  … and {len(bad) - _SHOWN_MAX} more that are not complete")
