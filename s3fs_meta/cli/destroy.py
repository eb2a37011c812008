"""``s3fs-meta destroy``: remove a filesystem and its local state."""

import contextlib
import socket
import sys
from typing import Annotated, NamedTuple

import trio
import typer

from s3fs_meta.background_task import in_thread, in_thread_or_here
from s3fs_meta.bucket_errors import LostSuperblockError
from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_BUCKET, CommandHelp, Example, exits_of
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.lease import Lease
from s3fs_meta.console import interruption, output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.interruption import Remains
from s3fs_meta.console.ui import Front, TerminalFront, answer_to
from s3fs_meta.counted import counted
from s3fs_meta.errors import (
    BeingRemovedError,
    CorruptionError,
    HeldError,
    NotAFilesystemError,
    ObjectMissingError,
    UsageError,
)
from s3fs_meta.limits import FOREIGN_SHOWN_MAX, TEXT_OBJECT_BYTES_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.stores import opened_store
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.sync.administration import removal
from s3fs_meta.sync.history.garbage.own_objects import own_objects
from s3fs_meta.sync.host_state.state_dir import StateDir, is_locked
from s3fs_meta.sync.lease.keeper import describe_holder
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.selection import open_keys, require_proof
from s3fs_meta.sync.superblock.unlocking import Secret

HELP = CommandHelp(
    name="destroy",
    summary="Remove a filesystem with everything in it.",
    description=(
        "Removes the objects that the filesystem wrote, and the local state of this host, except "
        "quarantined states (kept-...) and replaced objects (replaced-...). First "
        "the user must type the filesystem's label, or its URL if it has no label. The command "
        "needs the passphrase: it reads the objects (of a pack, only the index), and removes those "
        "that it can verify with the encryption keys of the filesystem. Foreign objects below the same prefix stay, "
        "even if their names look like s3fs-meta objects, and so do damaged objects.",
        "With --by-name the command reads no objects. It removes every object whose name looks "
        "like an s3fs-meta object. Use it for a filesystem whose passphrase or superblock is lost.",
    ),
    examples=(
        Example(
            "s3fs-meta destroy s3://bucket/home", "ask for confirmation, then remove the objects"
        ),
        Example(
            "s3fs-meta destroy --confirm photos s3://bucket/photos",
            "remove the filesystem from a script",
        ),
    ),
    exits=exits_of(*OF_BUCKET, ExitStatus.HELD),
)


class _Found(NamedTuple):
    label: str
    name: str  # the text that the user must type
    own: list[ObjectKey]
    foreign: list[ObjectKey]
    superblock: bytes | None  # new content of the second superblock object; None to keep it


class _Wanted(NamedTuple):
    """The filesystem to remove, and the options of the command."""

    place: targets.Target
    s3: S3Options
    secret: Secret | None
    confirm: str | None
    force_takeover: bool
    mount: str  # command that mounts the filesystem; shown if a mount was killed
    recovery: str  # command that copies files out of quarantined state


def destroy(
    url: options.Url,
    confirm: Annotated[
        str | None,
        typer.Option(
            "--confirm",
            metavar="NAME",
            help="Confirm with the filesystem's label or URL, instead of a prompt on the terminal.",
        ),
    ] = None,
    by_name: Annotated[
        bool,
        typer.Option(
            "--by-name",
            help="Remove every object whose name looks like an s3fs-meta object, without reading "
            "the objects and without a passphrase.",
        ),
    ] = False,
    force_takeover: options.ForceTakeover = False,
    *,
    access: options.BucketOptions,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta destroy``: remove a filesystem and its local state."""
    place = targets.of_url(url, access.cachedir)
    with (
        interruption.explained("nothing was removed") as remains,
        TerminalFront(quiet=json) as front,
    ):
        secret = None if by_name else access.secret(front.ask)
        mount = options.command("mount", *access.arguments, url, "MOUNTPOINT")
        recovery = options.command("recover-state", *access.arguments, url)
        wanted = _Wanted(place, access.s3, secret, confirm, force_takeover, mount, recovery)
        found = trio.run(_destroy, wanted, front, remains)
    if json:
        removed, foreign = len(found.own), len(found.foreign)
        output.print_json({"url": url, "removed": removed, "foreign": foreign})
        return
    output.print_text(f"removed {counted(len(found.own), 'object')} from {url}")
    if found.foreign:
        shown = ", ".join(map(repr, found.foreign[:FOREIGN_SHOWN_MAX]))
        more = ", …" if len(found.foreign) > FOREIGN_SHOWN_MAX else ""
        output.print_text(
            "not removed, because the filesystem did not write them: "
            f"{counted(len(found.foreign), 'object')}: {shown}{more}"
        )


async def _destroy(wanted: _Wanted, front: Front, remains: Remains) -> _Found:
    place = wanted.place
    # The prompt and the removal share one event loop, which also reads the terminal.
    async with opened_store(place.url, wanted.s3, state=place.state) as store:
        before = await removal.superblock_versions(store)
        contents = await removal.list_contents(store)
        if not contents.named:
            raise NotAFilesystemError(store.url)
        lease = await _refuse_held(store, wanted)
        found = await _find(store, contents, Remembered(place.state), wanted.secret, front)
        front.ready()  # remove the progress bar, so that the prompt stands alone
        if await in_thread(StateDir(place.state).rescued):
            front.notice(
                f"{place.state} contains quarantined states or objects that fsck replaced; to copy"
                f" files out, run {wanted.recovery} first, because destroy deletes the keys for them"
            )
        _require_name(place.url, found, wanted.confirm)
        state_dir = StateDir(place.state)
        await state_dir.lock(wait_s=0.0)
        try:
            await _require_unchanged(store, lease, wanted)
            remains.change(
                "some objects may be removed already; to remove the others, run destroy again"
            )
            await removal.remove(
                store,
                found.own,
                found.label,
                lambda done, total: front.progress("objects", done, total),
                before=before,
                superblock=found.superblock,
            )
            rescued, failures = await in_thread_or_here(state_dir.discard)
        finally:
            state_dir.unlock()
        if failures:
            front.notice(
                f"all objects were removed, but {str(failures[0].filename)!r} in {place.state} was"
                f" not removed: {failures[0].strerror}; remove the directory by hand"
            )
        if rescued:
            front.notice(
                f"{place.state} still contains {counted(len(rescued), 'entry')} with quarantined or replaced data"
                f" ({rescued[0].name}{', …' if len(rescued) > 1 else ''}); remove the directory when"
                " you need no file in it"
            )
    return found


async def _refuse_held(store: ObjectStore, wanted: _Wanted) -> Lease | None:
    """Return the lease, or None if it is missing or damaged.

    Raises:
        HeldError: a host holds the lease, and --takeover was not given.
    """
    try:
        data = (await store.get(lease_codec.KEY, TEXT_OBJECT_BYTES_MAX)).data
        lease = lease_codec.decode(lease_codec.KEY, data)
    except (ObjectMissingError, CorruptionError):
        return None
    if not lease.released and not wanted.force_takeover:
        if await in_thread(is_locked, wanted.place.state):
            raise HeldError(f"the filesystem {store.url} is in use on this host; unmount it first")
        raise HeldError(_describe_ended(lease, wanted.mount) or describe_holder(lease))
    return lease


def _describe_ended(lease: Lease, mount: str) -> str:
    """Return a message if a killed mount of this host may still hold the lease, else ""."""
    if lease.host != socket.gethostname() or targets.is_running(lease.pid):
        return ""
    return (
        f"held by host {lease.host!r}, which is the name of this host, and process {lease.pid} does "
        f"not run here: a mount was killed. Mount the filesystem again ({mount}), which recovers it, "
        "and unmount it; or use --takeover to remove it with all changes that are only on this host"
    )


async def _require_unchanged(store: ObjectStore, before: Lease | None, wanted: _Wanted) -> None:
    """Check the lease again after the prompt, unless --takeover was given.

    Raises:
        HeldError: a host has acquired the lease meanwhile.
        UsageError: a host has written meanwhile, so the list of objects may be incomplete.
    """
    lease = await _refuse_held(store, wanted)
    if lease != before and not wanted.force_takeover:
        raise UsageError(
            f"a host has written to {store.url} since its objects were listed; nothing was removed;"
            " run the command again"
        )


async def _find(
    store: ObjectStore,
    contents: removal.Contents,
    remembered: Remembered,
    secret: Secret | None,
    front: Front,
) -> _Found:
    """Find the objects to remove, even after an interrupted mkfs or removal.

    Raises:
        The errors of ``open_keys``, ``removal.keys_of_removed`` and ``own_objects``.
    """
    if secret is None:
        label = await _label(store)
        return _Found(label, label or store.url, contents.keys, contents.foreign, None)
    try:
        keys = await open_keys(store, remembered, secret, repairing=True)
        await require_proof(store, keys)
    except BeingRemovedError:
        label = await _label(store)
        opened = await removal.keys_of_removed(store, remembered, secret)
    except LostSuperblockError:
        front.notice(
            "if the superblock is lost for good, use destroy --by-name: it needs no keys, and removes"
            " every object whose name looks like an object of s3fs-meta"
        )
        raise
    else:
        removal.require_own_superblock(keys)
        label = keys.superblock.label
        opened = keys.keyring, keys.data
    if opened is None:  # the bucket has only the lease and the destroy tombstone
        own = [key for key in contents.keys if key in removal.LAST]
        superblock = None
    else:
        keyring, superblock = opened
        own = await own_objects(store, keyring, contents.named, front.progress)
    foreign = sorted({*contents.foreign, *contents.keys} - set(own))
    return _Found(label, label or store.url, own, foreign, superblock)


async def _label(store: ObjectStore) -> str:
    """Return the label of a filesystem, or "" if it has no label, or no readable superblock."""
    for key in (superblock_codec.KEY, superblock_codec.COPY_KEY):
        with contextlib.suppress(ObjectMissingError, CorruptionError):
            data = (await store.get(key, TEXT_OBJECT_BYTES_MAX)).data
            removed = superblock_codec.tombstone_label(data)
            return superblock_codec.decode(key, data).label if removed is None else removed
    return ""


def _require_name(url: str, found: _Found, confirm: str | None) -> None:
    """Raise UsageError unless the user confirms with the filesystem's name."""
    typed = confirm
    if typed is None:
        if not sys.stdin.isatty():
            raise UsageError(f"stdin is not a terminal; use --confirm {found.name!r}")
        sys.stderr.write(f"{url} contains {counted(len(found.own), 'object')} of a filesystem.\n")
        typed = answer_to(f"To remove them all, type {found.name!r}: ")
    if typed.strip() not in {found.name, url}:
        raise UsageError(f"the typed text differs from {found.name!r}; nothing was removed")
