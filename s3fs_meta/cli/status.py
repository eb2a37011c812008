"""``s3fs-meta status``: figures of a mount, or of the objects in a bucket."""

import os
from pathlib import Path
from typing import Annotated, Any

import trio
import typer

from s3fs_meta.cli import options, status_view
from s3fs_meta.cli.command_help import OF_BUCKET, CommandHelp, Example, exits_of
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock, unlock_plain
from s3fs_meta.console import output, passphrase_source
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.errors import ControlError, NotMountedError, UsageError
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX, TXG_GAP_MAX
from s3fs_meta.model import Txg
from s3fs_meta.mount import targets
from s3fs_meta.mount.control_api import request_status, request_unshipped
from s3fs_meta.mount.health import Level, Limits, Verdict, judge
from s3fs_meta.mount.stores import opened_store
from s3fs_meta.mount.targets import Target
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.option_syntax import parse_size, percent, seconds
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.selection import open_keys, peek

HELP = CommandHelp(
    name="status",
    summary="Show the figures of a mounted filesystem, or facts about the objects in a bucket.",
    description=(
        "For a mountpoint: sizes, counts, ratios, cache, changes that are not uploaded yet, the "
        "last image. For a URL that is mounted on this host: the same. For another URL: the "
        "superblock, the holder of the lease, and the last image. The last image of an encrypted "
        "filesystem is shown only if --passphrase-file or the environment has the passphrase; "
        "the command does not ask. Without an argument: every mount of this host.",
    ),
    examples=(
        Example("s3fs-meta status", "every mount of this host"),
        Example("s3fs-meta status /mnt/home", "one screen about a mount; --all for every figure"),
        Example(
            "s3fs-meta status --check --max-age 5m --min-free 5% /mnt/home", "for Nagios, cron"
        ),
        Example("s3fs-meta status --unshipped /mnt/home", "files with changes not yet uploaded"),
        Example("s3fs-meta status --json s3://bucket/home", "for a monitoring program"),
    ),
    exits=exits_of(*OF_BUCKET, ExitStatus.NOT_MOUNTED, ExitStatus.CONTROL),
)


_MaxAge = Annotated[
    str | None,
    typer.Option(
        "--max-age",
        metavar="TIME",
        help="With --check: how old a change may be that only this host has, as 5m.",
        show_default=False,
    ),
]
_MaxPending = Annotated[
    str | None,
    typer.Option(
        "--max-pending",
        metavar="SIZE",
        help="With --check: how much content may be only on this host, as 1G.",
        show_default=False,
    ),
]
_MinFree = Annotated[
    str | None,
    typer.Option(
        "--min-free",
        metavar="PERCENT",
        help="With --check: how much of the disk with the cache must be free, as 5%.",
        show_default=False,
    ),
]


def status(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[MOUNTPOINT|URL]",
            help="Filesystem to show; default: every mount.",
            show_default=False,
        ),
    ] = None,
    *,
    access: options.Access,
    json: options.Json = False,
    unshipped: Annotated[
        bool,
        typer.Option("--unshipped", help="List files whose changes are not yet in the bucket."),
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Show every figure, the counters of requests too.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Print one line for a monitoring program; the exit status is 0 (good), 1 (a limit "
            "is passed or an upload failed), 2 (the mount does not take changes, or has ended) or 3 "
            "(unknown).",
        ),
    ] = False,
    max_age: _MaxAge = None,
    max_pending: _MaxPending = None,
    min_free: _MinFree = None,
) -> int:
    """Run ``s3fs-meta status``."""
    if check:
        limits = Limits(
            None if max_age is None else seconds(0)("--max-age", max_age),
            None if max_pending is None else parse_size("--max-pending", max_pending),
            None if min_free is None else percent("--min-free", min_free),
        )
        return _check(target, access.cachedir, limits)
    if unshipped:
        _show_unshipped(target, access.cachedir, json=json)
        return ExitStatus.DONE
    if target is None:
        _show_all(json=json)
        return ExitStatus.DONE
    place = targets.of_either(target, access.cachedir)
    figures = trio.run(_figures, place, access)
    if json:
        output.print_json(figures)
    elif every or figures["mountpoint"] is None:
        output.print_table(status_view.table_rows(figures))
    else:
        output.print_table(status_view.screen(figures))
    return ExitStatus.DONE


def _check(target: str | None, cachedir: Path | None, limits: Limits) -> int:
    """Print a line for each mount, or for one; return the exit status of the worst."""
    places = targets.all_mounted() if target is None else [targets.of_either(target, cachedir)]
    worst = Level.OK if places else Level.CRITICAL
    if not places:
        output.print_text(f"{worst.name}: nothing is mounted")
    for place in places:
        verdict = trio.run(_verdict, place, limits)
        output.print_text(verdict.text)
        worst = max(worst, verdict.level)
    return int(worst)


async def _verdict(place: Target, limits: Limits) -> Verdict:
    try:
        figures = await request_status(place)
        disk = await trio.to_thread.run_sync(os.statvfs, place.state)
    except NotMountedError as exc:
        return Verdict(Level.CRITICAL, f"{Level.CRITICAL.name}: {exc.message}")
    except ControlError as exc:
        return Verdict(Level.UNKNOWN, f"{Level.UNKNOWN.name}: {place.url}: {exc.message}")
    return judge(figures, 100.0 * disk.f_bavail / max(disk.f_blocks, 1), limits)


def _show_unshipped(target: str | None, cachedir: Path | None, *, json: bool) -> None:
    """Print the paths of files whose changes are not yet in the bucket."""
    if target is None:
        raise UsageError("--unshipped needs a mountpoint or a URL")
    found = trio.run(request_unshipped, targets.of_either(target, cachedir))
    if json:
        output.print_json(found)
        return
    for path in found["paths"]:
        output.print_text(path)
    if not found["complete"]:
        output.print_text("… and more; s3fs-meta flush uploads all changes")


def _show_all(*, json: bool) -> None:
    found = trio.run(_all_figures)
    if json:
        output.print_json({"mounts": found})
        return
    if not found:
        output.print_text("nothing is mounted")
    for figures in found:
        pending = figures.get("upload", {}).get("pending_bytes")
        rest = "" if pending is None else f", {output.human_bytes(pending)} to upload"
        output.print_text(f"{figures['url']} on {figures['mountpoint']}: {figures['state']}{rest}")


async def _all_figures() -> list[dict[str, Any]]:
    found = []
    for place in targets.all_mounted():
        try:
            found.append(await request_status(place))
        except (NotMountedError, ControlError) as exc:
            found.append({"url": place.url, "mountpoint": place.mountpoint, "state": exc.message})
    return found


async def _figures(place: Target, access: options.Access) -> dict[str, Any]:
    try:
        return await request_status(place)
    except NotMountedError:
        if place.mountpoint is not None:
            raise
    async with opened_store(place.url, access.s3) as store:
        return await _of_bucket(store, Remembered(place.state), access)


async def _of_bucket(
    store: ObjectStore, remembered: Remembered, access: options.Access
) -> dict[str, Any]:
    """Return facts about the objects in a bucket, without writing."""
    superblock, keyring = await _open(store, remembered, access)
    lease = lease_codec.decode(
        lease_codec.KEY, (await store.get(lease_codec.KEY, TEXT_OBJECT_BYTES_MAX)).data
    )
    return {
        "url": store.url,
        "mountpoint": None,
        "uuid": superblock.uuid,
        "label": superblock.label,
        "state": "free" if lease.released else "held",
        "encrypted": superblock.encrypted,
        "block_size_bytes": superblock.block_bytes,
        "page_size_bytes": superblock.page_size,
        "epoch": lease.epoch,
        "holder": {"host": lease.host, "pid": lease.pid, "since_ns": lease.since_ns},
        "txg": await _last_txg(store, lease),
        "image": await _image(store, keyring, lease),
    }


async def _open(
    store: ObjectStore, remembered: Remembered, access: options.Access
) -> tuple[Superblock, Keyring | None]:
    """Return the superblock and the keys; None if the keys need a passphrase that was not given."""
    if access.passphrase_file is None and passphrase_source.from_environment() is None:
        superblock = await peek(store, remembered)
        return superblock, None if superblock.encrypted else unlock_plain(superblock)
    keys = await open_keys(store, remembered, access.secret())
    return keys.superblock, keys.keyring


async def _last_txg(store: ObjectStore, lease: lease_codec.Lease) -> Txg | None:
    """Return the last txg of the chain, from the listed keys; the changelogs are not verified."""
    if lease.head is None:
        return None
    last = lease.head.txg
    for txg in await chain.listed_from(store, last):
        if txg - last > TXG_GAP_MAX:
            break  # probably a foreign object; without keys its content proves nothing
        last = txg
    return last


async def _image(
    store: ObjectStore, keyring: Keyring | None, lease: lease_codec.Lease
) -> dict[str, Any] | None:
    """Return facts about the last image; None without an image or without keys."""
    if lease.head is None or keyring is None:
        return None
    manifest = await image_head.load_manifest(
        store, keyring, lease.head.manifest_key, lease.head.manifest_hash
    )
    return {
        "txg": manifest.txg,
        "last_ns": manifest.created_ns,
        "database_bytes": manifest.database_bytes,
        "pieces": len(manifest.pieces),
    }
