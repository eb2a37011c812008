"""``s3fs-meta destroy``: remove a filesystem with everything in it."""

import contextlib
import shutil
import sys
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import trio
import typer

from s3fs_meta.cli import options, output, places
from s3fs_meta.cli.command_help import CommandHelp, Example, exits_of
from s3fs_meta.cli.exits import ExitStatus
from s3fs_meta.cli.front import TerminalFront
from s3fs_meta.cli.stores import opened_store
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.lease import Lease
from s3fs_meta.errors import (
    CorruptionError,
    HeldError,
    NotAFilesystemError,
    ObjectMissingError,
    UsageError,
)
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.sync import creation
from s3fs_meta.sync.lease import describe_holder
from s3fs_meta.sync.state_dir import StateDir

HELP = CommandHelp(
    name="destroy",
    summary="Remove a filesystem with everything in it.",
    description=(
        "Asks for the filesystem's label, or for its URL if it has no label, to be typed. Removes "
        "the objects that the filesystem wrote and the local state of this host; foreign objects "
        "below the same prefix stay.",
    ),
    examples=(
        Example("s3fs-meta destroy s3://bucket/home", "asks before anything is removed"),
        Example("s3fs-meta destroy --confirm photos s3://bucket/photos", "in a script"),
    ),
    exits=exits_of(
        ExitStatus.NO_FILESYSTEM,
        ExitStatus.HELD,
        ExitStatus.STORE,
        ExitStatus.STORE_ACCESS,
        ExitStatus.LOCAL,
    ),
)

_LOCK_WAIT_S: Final = 0.0


class _Found(NamedTuple):
    label: str
    name: str  # what must be typed
    lease: Lease | None
    own: list[ObjectKey]
    foreign: int


def destroy(
    url: options.Url,
    confirm: Annotated[
        str | None,
        typer.Option(
            "--confirm",
            metavar="NAME",
            help="Label or URL, instead of typing it.",
            show_default=False,
        ),
    ] = None,
    force_takeover: options.ForceTakeover = False,
    endpoint_url: options.EndpointUrl = None,
    region: options.Region = None,
    profile: options.Profile = None,
    cachedir: options.Cachedir = None,
    json: options.Json = False,
) -> None:
    """Carry out the command."""
    place = places.of_url(url, cachedir)
    s3 = options.s3_options(endpoint_url, region, profile)
    found = trio.run(_destroy, place, s3, confirm, force_takeover)
    if json:
        output.print_json({"url": url, "removed": len(found.own), "foreign": found.foreign})
        return
    output.print_text(f"removed {len(found.own)} objects from {url}")
    if found.foreign:
        output.print_text(f"{found.foreign} objects that are not the filesystem's are still there")


async def _destroy(
    place: places.Place, s3: S3Options, confirm: str | None, force_takeover: bool
) -> _Found:
    # One run of the event loop from the question to the end: the terminal is asked in it.
    async with opened_store(place.url, s3) as store:
        found = await _look(store)
        if found.lease is not None and not found.lease.released and not force_takeover:
            raise HeldError(describe_holder(found.lease))
        _require_name(place.url, found, confirm)
        state_dir = StateDir(place.state)
        await state_dir.lock(wait_s=_LOCK_WAIT_S)
        try:
            with TerminalFront() as front:
                await creation.destroy(
                    store,
                    found.own,
                    found.label,
                    lambda done, total: front.progress("objects", done, total),
                )
            await trio.to_thread.run_sync(_remove_state, place.state)
        finally:
            state_dir.unlock()
    return found


async def _look(store: ObjectStore) -> _Found:
    """Find out what there is, also where mkfs was interrupted or objects are damaged.

    Raises:
        NotAFilesystemError: nothing of a filesystem is there.
    """
    own, foreign = await creation.list_own(store)
    if not own:
        raise NotAFilesystemError(store.url)
    label = await _label(store)
    lease = None
    with contextlib.suppress(ObjectMissingError, CorruptionError):
        data = (await store.get(lease_codec.KEY, TEXT_OBJECT_BYTES_MAX)).data
        lease = lease_codec.decode(lease_codec.KEY, data)
    return _Found(label, label or store.url, lease, own, len(foreign))


async def _label(store: ObjectStore) -> str:
    """Return what a filesystem is called; empty where no superblock says it: then its URL does."""
    for key in (superblock_codec.KEY, superblock_codec.COPY_KEY):
        with contextlib.suppress(ObjectMissingError, CorruptionError):
            data = (await store.get(key, TEXT_OBJECT_BYTES_MAX)).data
            removed = superblock_codec.tombstone_label(data)
            return superblock_codec.decode(key, data).label if removed is None else removed
    return ""


def _require_name(url: str, found: _Found, confirm: str | None) -> None:
    """Raise UsageError unless the name was given or is typed now."""
    typed = confirm
    if typed is None:
        if not sys.stdin.isatty():
            raise UsageError(f"nobody is there to be asked; use --confirm {found.name!r}")
        sys.stderr.write(f"{url} holds {len(found.own)} objects of a filesystem.\n")
        sys.stderr.write(f"To remove them all, type {found.name!r}: ")
        sys.stderr.flush()
        typed = sys.stdin.readline()
    if typed.strip() not in {found.name, url}:
        raise UsageError(f"that is not its name, {found.name!r}; nothing was removed")


def _remove_state(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
