"""Rebuilding a filesystem whose metadata is lost from its packs.

Owns: which objects are used, and the order in which the new image and lease are stored. Only
``fsck --rebuild`` does this, and only if no better state is available.
Does not know: rows (``meta.offline.rebuild``).
Keeps: no object is deleted or replaced but a lease that names nothing; the new epoch is above any
that left a trace, so a host that still writes is fenced.
"""

import os
import secrets
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

import trio

from s3fs_meta.clock import Clock
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import level as level_codec
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.errors import (
    CorruptionError,
    FormatError,
    NewerFormatError,
    ObjectMissingError,
    ObjectTooLargeError,
)
from s3fs_meta.limits import CLEANUP_S_MAX, TEXT_OBJECT_BYTES_MAX
from s3fs_meta.meta.db.database import COOKIE_KEY_BYTES, Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.meta.offline import rebuild as rebuilt_rows
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectInfo, ObjectStore
from s3fs_meta.sync.image import pieces as image_pieces
from s3fs_meta.sync.lease.lease import released
from s3fs_meta.sync.mkfs import superblock_facts
from s3fs_meta.sync.progress import Progress
from s3fs_meta.sync.upload.pack_index import read_index


class Rebuilt(NamedTuple):
    """The result of a rebuild."""

    files: int
    packs: int
    unreadable: list[ObjectKey]  # packs whose indexes cannot be read


class _Traces(NamedTuple):
    """The packs, and the latest epoch and txg, that a listing shows."""

    packs: list[ObjectInfo]  # of the latest epoch first
    epoch: Epoch
    txg: Txg


async def rebuild(
    store: ObjectStore,
    keyring: Keyring,
    superblock: Superblock,
    tmp: Path,
    clock: Clock,
    progress: Progress,
    quarantine: Callable[[], None],
) -> Rebuilt:
    """Rebuild a filesystem from the packs in the bucket, and publish it.

    The files that are found are in lost+found, by inode number.

    Args:
        quarantine: moves local state away; called just before the new image is published.

    Raises:
        NewerFormatError: the lease is of a newer program; nothing was changed.
        FormatError: no pack can be read with these keys; nothing in the bucket was changed.
        StoreError: the store is unavailable; nothing was changed.
        PreconditionError: another process stored a lease meanwhile.
    """
    traces = await _look(store)
    path = tmp / "rebuilt.db"
    await trio.to_thread.run_sync(image_copy.remove, path)
    try:
        made = await _make_database(store, keyring, superblock, path, traces, clock, progress)
        if traces.packs and not made.packs:
            raise FormatError(
                superblock_codec.KEY,
                f"none of the {len(traces.packs)} packs in the bucket can be read with its keys, so"
                " it may be that of another filesystem; nothing in the bucket was changed",
            )
        await trio.to_thread.run_sync(image_copy.finish, path, (), ())
        image = image_pieces.new_image(traces.txg, traces.epoch)
        pieces = await image_pieces.put_pieces(store, keyring, image, path, (), progress)
        head, manifest = await image_pieces.describe(
            keyring,
            image,
            path,
            pieces,
            created_ns=clock.now_ns(),
            previous=None,
            changelog=image_codec.NO_HASH,
        )
    finally:
        with trio.move_on_after(CLEANUP_S_MAX, shield=True):
            await trio.to_thread.run_sync(image_copy.remove, path)
    quarantine()
    await store.create(head.manifest_key, manifest)
    lease = released(Epoch(traces.epoch + 1), head, clock)
    await _put_lease(store, lease_codec.encode(lease))
    return made


async def _look(store: ObjectStore) -> _Traces:
    packs: list[tuple[Epoch, ObjectInfo]] = []
    last_epoch, last_txg = await _lease_epoch(store), Txg(0)
    async with aclosing(store.list("")) as listing:
        async for info in listing:
            epoch, txg = _trace(info.key)
            last_epoch, last_txg = max(last_epoch, epoch), max(last_txg, txg)
            if pack_codec.parse_key(info.key) is not None:
                packs.append((epoch, info))
    packs.sort(key=lambda pack: pack[0], reverse=True)
    return _Traces([info for _epoch, info in packs], last_epoch, Txg(last_txg + 1))


def _trace(key: ObjectKey) -> tuple[Epoch, Txg]:
    """Return the epoch and the txg in the name of an object, 0 for each that it lacks."""
    image = image_codec.parse_manifest_key(key) or image_codec.parse_piece_key(key)
    if image is not None:
        return image.epoch, image.txg
    part = changelog_codec.part_name(key)
    if part is not None:
        return part[1], part[0]
    level = level_codec.parse_key(key)
    if level is not None:
        return Epoch(0), level[1]
    return pack_codec.parse_key(key) or Epoch(0), changelog_codec.parse_key(key) or Txg(0)


async def _lease_epoch(store: ObjectStore) -> Epoch:
    try:
        data = (await store.get(lease_codec.KEY, TEXT_OBJECT_BYTES_MAX)).data
        return lease_codec.decode(lease_codec.KEY, data).epoch
    except NewerFormatError:
        raise
    except (CorruptionError, ObjectMissingError):
        return Epoch(0)


async def _make_database(
    store: ObjectStore,
    keyring: Keyring,
    superblock: Superblock,
    path: Path,
    traces: _Traces,
    clock: Clock,
    progress: Progress,
) -> Rebuilt:
    facts = {**superblock_facts(superblock), "cookie_key": secrets.token_bytes(COOKIE_KEY_BYTES)}
    pragmas = Pragmas(journal_mode="off", synchronous="off", page_size=superblock.page_size)
    db = Database.create(path, pragmas, facts, uid=os.getuid(), gid=os.getgid())
    unreadable: list[ObjectKey] = []
    try:
        for done, info in enumerate(traces.packs):
            progress("packs", done, len(traces.packs))
            try:
                entries = await read_index(store, keyring, info.key, info.size_bytes)
            except (FormatError, ObjectMissingError):
                unreadable.append(info.key)
                continue
            await trio.to_thread.run_sync(
                rebuilt_rows.add_pack, db, info.key, info.size_bytes, entries
            )
        files = await trio.to_thread.run_sync(
            rebuilt_rows.finish, db, superblock.block_bytes, clock.now_ns(), unreadable
        )
    finally:
        db.close()
    return Rebuilt(files, len(traces.packs) - len(unreadable), unreadable)


async def _put_lease(store: ObjectStore, data: bytes) -> None:
    try:
        etag = (await store.get(lease_codec.KEY, TEXT_OBJECT_BYTES_MAX)).etag
    except ObjectMissingError:
        await store.create(lease_codec.KEY, data)
        return
    except ObjectTooLargeError as exc:
        etag = exc.etag
    await store.replace(lease_codec.KEY, data, etag)
