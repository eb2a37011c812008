"""``s3fs-meta status``: figures of a mount, or of the objects in a bucket."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_BUCKET, CommandHelp, Example, exits_of
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock, unlock_plain
from s3fs_meta.console import output, passphrase_source
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.errors import ControlError, NotMountedError, UsageError
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX, TXG_GAP_MAX
from s3fs_meta.model import Txg
from s3fs_meta.mount import mount_holders, targets
from s3fs_meta.mount.control_api import request_status, request_unshipped
from s3fs_meta.mount.mount_holders import Holder
from s3fs_meta.mount.stores import opened_store
from s3fs_meta.mount.targets import Target
from s3fs_meta.objects.contract import ObjectStore
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
        Example("s3fs-meta status /mnt/home", "the figures of a mount"),
        Example("s3fs-meta status --unshipped /mnt/home", "files with changes not yet uploaded"),
        Example("s3fs-meta status --json s3://bucket/home", "for a monitoring program"),
    ),
    exits=exits_of(*OF_BUCKET, ExitStatus.NOT_MOUNTED, ExitStatus.CONTROL),
)


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
) -> None:
    """Run ``s3fs-meta status``."""
    if unshipped:
        _show_unshipped(target, access.cachedir, json=json)
        return
    if target is None:
        _show_all(json=json)
        return
    place = targets.of_either(target, access.cachedir)
    figures = trio.run(_figures, place, access)
    if json:
        output.print_json(figures)
    else:
        output.print_table(table_rows(figures))


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


# Texts shown instead of the names of figures, since "file 3 MiB" would be meaningless.
_SIZES: Final[Mapping[str, str]] = {
    "file bytes": "size of all files",
    "block bytes": "of it distinct data",
    "stored bytes": "stored in packs",
    "cache bytes": "cache used",
    "cache bytes max": "cache limit",
}


def table_rows(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return the figures as names and values for users."""
    rows: dict[str, str] = {}
    for name, value in _flat(figures):
        last = name.rsplit(" ", 1)[-1]
        if value is None or value == "" or name.startswith("store "):
            continue
        if name == "capacity bytes" and value == 0:
            rows["capacity"] = "unlimited"
        elif name in _SIZES:
            rows[_SIZES[name]] = output.human_bytes(value)
        elif last == "bytes" or " bytes" in f" {name}":
            rows[name.removesuffix(" bytes")] = output.human_bytes(value)
        elif last == "ns":
            rows[name.removesuffix(" ns")] = output.human_time(value) if value else "never"
        elif isinstance(value, list):
            if value:
                rows[name] = mount_holders.described([Holder(**one) for one in value], 0)
        elif isinstance(value, bool):
            rows[name] = "yes" if value else "no"
        else:
            rows[name] = str(value)
    return rows


def _flat(figures: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in figures.items():
        name = before + key.replace("_", " ")
        if isinstance(value, Mapping):
            found += _flat(value, f"{name} ")
        else:
            found.append((name, value))
    return found
