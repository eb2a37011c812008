"""Rebuilding a filesystem without images from its chain, its packs and intact image pieces.

Owns: the choice of objects, and the order in which the new image and lease are stored. Only
``fsck --rebuild`` rebuilds a filesystem, and only if no image can be restored. The rows come from
the intact pieces of the newest image whose first piece is intact. If the first changelog exists,
the chain can be replayed (``from_chain``). The rows then come from the chain if it reaches the
image's txg, or if the image has lost many pieces (``SalvagedImage.lacks_much``).
Does not know: rows (``meta.offline.rebuild``).
Keeps: no object is deleted. The lease is replaced only if it has not changed in the meantime, so
a host that acquires the lease meanwhile keeps it. The new epoch is higher than any plausible epoch
in an object's name.
"""

import logging
import os
import secrets
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from s3fs_meta.background_task import in_thread, in_thread_or_here
from s3fs_meta.check.from_chain import ChainReader
from s3fs_meta.check.fsck import NO_BLOCK_ROW, check_database
from s3fs_meta.check.report import Mode, Report
from s3fs_meta.clock import Clock
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock, superblock_facts
from s3fs_meta.errors import (
    CorruptionError,
    DatabaseError,
    DatabaseFullError,
    FormatError,
    NewerFormatError,
    ObjectMissingError,
    ObjectTooLargeError,
)
from s3fs_meta.limits import (
    CLEANUP_S_MAX,
    EPOCH_LEAP_MAX,
    TEXT_OBJECT_BYTES_MAX,
    TXG_LEAP_MAX,
)
from s3fs_meta.meta.db.database import COOKIE_KEY_BYTES, Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.offline import image_copy, image_rows
from s3fs_meta.meta.offline import rebuild as rebuilt_rows
from s3fs_meta.meta.offline.image_rows import ImageRows
from s3fs_meta.meta.offline.salvage import DamagedDatabase
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.contract import ETag, ObjectInfo, ObjectStore
from s3fs_meta.state_paths import unfinished
from s3fs_meta.sync.chain import chain, names
from s3fs_meta.sync.history.kept.kept_points import KeptPointReader
from s3fs_meta.sync.image import pieces as image_pieces
from s3fs_meta.sync.image.salvage import SalvagedImage, Salvager
from s3fs_meta.sync.lease.keeper import released
from s3fs_meta.sync.progress import Progress
from s3fs_meta.sync.upload.pack_index import read_index
from s3fs_meta.sync.upload.pack_salvage import copy_intact

_log = logging.getLogger(__name__)


class Rebuilt(NamedTuple):
    """The result of rebuilding a filesystem."""

    files: int
    packs: int
    unreadable: list[ObjectKey]  # packs whose indexes cannot be read
    # Key of the object that provides the names: a damaged image's manifest, or the last changelog.
    source: ObjectKey | None = None
    txg: Txg | None = None  # the txg of *source*; all names that were created later are lost
    named: int = 0  # number of files outside lost+found
    missing_pieces: int = 0  # number of unreadable pieces in the salvaged image
    lost_blocks: int = 0  # number of blocks that no readable pack contains, and that became holes
    # Number of blocks that were copied from packs with unreadable indexes into new packs.
    copied_blocks: int = 0


class _Traces(NamedTuple):
    """The packs, the latest epoch and the next txg, derived from the object names in the bucket."""

    packs: list[ObjectInfo]  # all pack objects, ordered by descending epoch
    epoch: Epoch
    txg: Txg
    lease: ETag | None  # ETag of the lease, or None if the lease is missing


async def rebuild(
    store: ObjectStore,
    keyring: Keyring,
    superblock: Superblock,
    tmp: Path,
    clock: Clock,
    progress: Progress,
    quarantine: Callable[[], None],
) -> Rebuilt:
    """Rebuild a filesystem from packs and the remaining metadata in the bucket, and publish it.

    Files whose names are lost are put into lost+found, named by inode number.

    Args:
        quarantine: quarantines the local state; called just before the new image is published.

    Raises:
        NewerFormatError: a newer version of the program wrote the lease, the end of the chain or an
            image; or no rows were found, and an image claims a newer version. Nothing was changed.
        FormatError: no pack can be read with these keys; nothing in the bucket was changed.
        StoreError: the store is unavailable; a second call starts again.
        PreconditionError: another process stored a lease concurrently; that lease is unchanged.
    """
    traces = await _list_traces(store)
    path, old_path, chain_path = (
        unfinished(tmp, f"{name}.db") for name in ("rebuilt", "damaged", "chain")
    )
    await in_thread(image_copy.remove, path)
    try:
        new = _New(path, superblock, traces, clock, progress)
        made = await _make_from_metadata(store, keyring, new, old_path, chain_path)
        if made is None:
            made = await _make_database(store, keyring, new, None, None)
        if traces.packs and not made.packs and not made.copied_blocks:
            raise FormatError(
                superblock_codec.KEY,
                f"none of the {len(made.unreadable)} packs in the bucket can be read with the keys of"
                " this superblock, which may belong to another filesystem; nothing in the bucket"
                " was changed",
            )
        await in_thread(image_copy.finish, path, (), ())
        image = image_pieces.new_image(traces.txg, traces.epoch)
        pieces = await image_pieces.put_pieces(store, keyring, image, path, (), progress)
        head, manifest = await image_pieces.describe(
            keyring, image, path, pieces, created_ns=clock.now_ns()
        )
    finally:
        with trio.move_on_after(CLEANUP_S_MAX, shield=True):
            for one in (path, old_path, chain_path):
                await in_thread_or_here(image_copy.remove, one)
    quarantine()
    await store.create(head.manifest_key, manifest)
    lease = released(Epoch(traces.epoch + 1), head, clock)
    data = lease_codec.encode(lease)
    if traces.lease is None:
        await store.create(lease_codec.KEY, data)
    else:
        await store.replace(lease_codec.KEY, data, traces.lease)
    return made


async def _list_traces(store: ObjectStore) -> _Traces:
    packs: list[tuple[Epoch, ObjectInfo]] = []
    last_epoch, last_txg = Epoch(0), Txg(0)
    lease_epoch, lease = await _lease(store)
    async with aclosing(store.list("")) as listing:
        async for info in listing:
            epoch, txg = _epoch_of(info.key), names.txg_of(info.key)
            # Ignore huge numbers, because object names are not authenticated.
            # After a forged name with a huge epoch or txg, no higher numbers would be left.
            if epoch <= EPOCH_LEAP_MAX:
                last_epoch = max(last_epoch, epoch)
            if txg <= TXG_LEAP_MAX:
                last_txg = max(last_txg, txg)
            if pack_codec.parse_key(info.key) is not None:
                packs.append((epoch, info))
    if lease_epoch - last_epoch <= EPOCH_LEAP_MAX:
        last_epoch = max(last_epoch, lease_epoch)
    packs.sort(key=lambda pack: pack[0], reverse=True)
    return _Traces([info for _epoch, info in packs], last_epoch, Txg(last_txg + 1), lease)


def _epoch_of(key: ObjectKey) -> Epoch:
    """Return the epoch in the name of an object, or 0 if the name contains no epoch."""
    image = image_codec.parse_manifest_key(key) or image_codec.parse_piece_key(key)
    if image is not None:
        return image.epoch
    part = changelog_codec.part_name(key)
    return pack_codec.parse_key(key) or Epoch(0) if part is None else part[1]


async def _lease(store: ObjectStore) -> tuple[Epoch, ETag | None]:
    """Return the lease's epoch and ETag; the epoch of an unreadable lease is 0.

    If the lease is missing, the ETag is None.
    """
    try:
        fetched = await store.get(lease_codec.KEY, TEXT_OBJECT_BYTES_MAX)
    except ObjectMissingError:
        return Epoch(0), None
    except ObjectTooLargeError as exc:
        return Epoch(0), exc.etag
    try:
        return lease_codec.decode(lease_codec.KEY, fetched.data).epoch, fetched.etag
    except NewerFormatError:
        raise
    except CorruptionError:
        return Epoch(0), fetched.etag


async def _make_from_metadata(
    store: ObjectStore, keyring: Keyring, new: "_New", old_path: Path, chain_path: Path
) -> Rebuilt | None:
    """Create the database from the image or the chain, depending on which has the newer rows.

    Return None if neither the image nor the chain has usable rows.

    Raises:
        NewerFormatError: no rows are usable, and an image claims a newer version.
    """
    uuid = new.superblock.uuid
    reader = ChainReader(store, keyring, uuid, partial(_create_empty, new), new.progress)
    chain_txg = await reader.lay_out(chain_path)
    replayed = (
        None
        if chain_txg is None
        else SalvagedImage(changelog_codec.key_of(chain_txg), chain_txg, 0, 0)
    )
    old = await _images_of_old_points(store, keyring, uuid, new.traces.txg)
    salvager = Salvager(store, keyring, uuid, new.progress, old)
    async with aclosing(salvager.lay_out(old_path)) as images:
        async for remains in images:
            if replayed is not None and (replayed.txg >= remains.txg or remains.lacks_much):
                made = await _try_to_make(store, keyring, new, replayed, chain_path)
                if made is not None:
                    return made
                replayed = None
            made = await _try_to_make(store, keyring, new, remains, old_path)
            if made is not None:
                return made
    made = None
    if replayed is not None:
        made = await _try_to_make(store, keyring, new, replayed, chain_path)
    if made is None and salvager.newer is not None:
        raise salvager.newer
    return made


async def _images_of_old_points(
    store: ObjectStore, keyring: Keyring, uuid: str, next_txg: Txg
) -> set[ObjectKey]:
    """Return the manifests of images that only kept points need.

    The changelogs after these images were deleted, so a rebuild prefers names from later images.
    The kept points themselves can still be restored after the rebuild.
    """
    points = (await KeptPointReader(store, keyring, uuid).all()).points
    if not points:
        return set()
    first = min(point.image_txg for point in points)
    numbers = await chain.numbers_from(store, keyring, first)
    floor = await chain.floor_after(store, keyring, uuid, first)
    missing_after: dict[int, int] = {}  # for each txg with a changelog, the next txg without one
    for number in reversed(numbers):
        missing_after[number] = missing_after.get(number + 1, number + 1)
    found: set[ObjectKey] = set()
    for point in points:
        missing = missing_after.get(point.image_txg + 1, point.image_txg + 1)
        no_more = missing > max(numbers, default=0)
        if missing < (next_txg if no_more else floor):
            found.add(point.image.key)
    return found


async def _try_to_make(
    store: ObjectStore, keyring: Keyring, new: "_New", remains: SalvagedImage, path: Path
) -> Rebuilt | None:
    try:
        return await _make_from_image(store, keyring, new, remains, path)
    except (DatabaseFullError, NewerFormatError):
        raise
    except (CorruptionError, DatabaseError) as exc:
        _log.warning("the rows recovered from %s are unusable: %s", remains.key, exc)
        await in_thread_or_here(image_copy.remove, new.path)
        return None


async def _make_from_image(
    store: ObjectStore, keyring: Keyring, new: "_New", remains: SalvagedImage, path: Path
) -> Rebuilt:
    damaged = await in_thread(DamagedDatabase, path, remains.key)
    try:
        if not remains.listed:
            await in_thread(damaged.require_intact)
        return await _make_database(store, keyring, new, remains, damaged)
    finally:
        damaged.close()


class _New(NamedTuple):
    """The path of the rebuilt database, and the values from which the database is created."""

    path: Path
    superblock: Superblock
    traces: _Traces
    clock: Clock
    progress: Progress


async def _make_database(
    store: ObjectStore,
    keyring: Keyring,
    new: _New,
    remains: SalvagedImage | None,
    damaged: DamagedDatabase | None,
) -> Rebuilt:
    db = await in_thread(_create, new, damaged)
    packs = new.traces.packs
    block_bytes = new.superblock.block_bytes
    unreadable: list[ObjectKey] = []
    rows: ImageRows | None = None
    copied = 0
    try:
        if damaged is not None:
            rows = await in_thread(image_rows.adopt, db, damaged)
        for done, info in enumerate(packs):
            new.progress("packs", done, len(packs))
            try:
                entries = await read_index(store, keyring, info.key, info.size_bytes)
                rebuilt_rows.require_range(info.key, entries, block_bytes)
            except (FormatError, ObjectMissingError):
                unreadable.append(info.key)
                continue
            await in_thread(rebuilt_rows.add_pack, db, info.key, info.size_bytes, entries)
        made = Rebuilt(0, len(packs) - len(unreadable), unreadable)
        if rows is not None and unreadable:
            new_packs, copied = await copy_intact(store, keyring, db, unreadable)
            packs.extend(new_packs)  # also for the next rows, if these prove unusable
        now_ns = new.clock.now_ns()
        files = await in_thread(rebuilt_rows.finish, db, block_bytes, now_ns, unreadable, rows)
        if remains is None or rows is None:
            return made._replace(files=files)
        lost_blocks = await in_thread(partial(_mend, db, new.clock))
        files, named = image_rows.count_files(db)
    finally:
        db.close()
    return made._replace(
        files=files,
        source=remains.key,
        txg=remains.txg,
        named=named,
        missing_pieces=remains.missing,
        lost_blocks=lost_blocks,
        copied_blocks=copied,
    )


def _create(new: _New, damaged: DamagedDatabase | None) -> Database:
    db = _create_empty(new, new.path, None if damaged is None else damaged.cookie_key())
    # Packs without live blocks die in the txg of the new image; earlier txgs may need them.
    db.counters.begin_txg(new.traces.txg)
    return db


def _create_empty(new: _New, path: Path, cookie_key: bytes | None = None) -> Database:
    """Create the database of an empty filesystem, with a new cookie key if none is given."""
    if cookie_key is None or len(cookie_key) != COOKIE_KEY_BYTES:
        cookie_key = secrets.token_bytes(COOKIE_KEY_BYTES)
    facts = {**superblock_facts(new.superblock), "cookie_key": cookie_key}
    pragmas = Pragmas(journal_mode="off", synchronous="off", page_size=new.superblock.page_size)
    return Database.create(path, pragmas, facts, uid=os.getuid(), gid=os.getgid())


def _mend(db: Database, clock: Clock) -> int:
    """Repair the rebuilt rows with fsck, so that they form a tree; return the number of new holes.

    Only the index of a pack provides the location of a block. A block that is in the index of no
    readable pack, nor in a new pack of ``copy_intact``, becomes a hole, which the attribute of its
    file lists.

    Raises:
        FormatError: fsck cannot repair the rows; the rebuilt database is unusable.
    """
    report = check_database(db, repair=Mode.ALL, report=Report(), searched=True, clock=clock)
    left = [verdict.invariant for verdict in report.verdicts if verdict.left]
    if left:
        raise FormatError(
            str(db.path),
            f"the rebuilt rows violate invariants that fsck cannot repair: {', '.join(left)}",
        )
    return sum(verdict.found for verdict in report.verdicts if verdict.invariant == NO_BLOCK_ROW)
