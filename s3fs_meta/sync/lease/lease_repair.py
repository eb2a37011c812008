"""Replacing a lost or damaged lease with a lease derived from images and epochs in the bucket.

Owns: the choice of the image to which the new lease refers. Only ``fsck -y`` stores the new lease;
other commands use only the name of the image.
Keeps: the new epoch is not below any plausible epoch of an object in the bucket. A host that still
holds the old lease is fenced.
"""

import logging
from contextlib import aclosing

from s3fs_meta.background_task import in_thread
from s3fs_meta.bucket_errors import LostLeaseError
from s3fs_meta.clock import Clock
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.envelope import ENCODED_BYTES_MAX
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Head, Lease
from s3fs_meta.errors import (
    CorruptionError,
    NewerFormatError,
    UnfinishedFilesystemError,
)
from s3fs_meta.limits import EPOCH_LEAP_MAX
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.contract import ETag, ObjectStore
from s3fs_meta.sync.chain import names
from s3fs_meta.sync.lease.keeper import LeaseKeeper, released

_log = logging.getLogger(__name__)


async def mend_lease(
    store: ObjectStore, keyring: Keyring, clock: Clock, *, needs_image: bool = True
) -> str | None:
    """Store a new, released lease if the lease is missing or unreadable.

    Args:
        needs_image: false if the lease need not refer to an image, because the local state is
            published next.

    Returns:
        A line about the fault and the new lease; None if the present lease is valid.

    Raises:
        UnfinishedFilesystemError: the bucket has no complete image; nothing was changed.
        NewerFormatError: a newer version of the program wrote the lease or the last changelog.
        PreconditionError: another process stored a lease concurrently.
    """
    etag: ETag | None
    try:
        lease, etag = await LeaseKeeper(store, clock).find()
    except LostLeaseError as exc:
        etag, why = exc.etag, str(exc)
    else:
        too_high = await why_too_high(store, keyring, clock, lease)
        if too_high is None:
            return None
        why = too_high
    lease = await _lease_of_images(store, keyring, clock, needs_image=needs_image)
    data = lease_codec.encode(lease)
    if etag is None:
        await store.create(lease_codec.KEY, data)
    else:
        await store.replace(lease_codec.KEY, data, etag)
    named = "no image" if lease.head is None else lease.head.manifest_key
    return f"{why}; a new lease was made, with {named} as its head"


async def why_too_high(
    store: ObjectStore, keyring: Keyring, clock: Clock, lease: Lease
) -> str | None:
    """Return why the epoch of a lease cannot be right, or None if it can."""
    if lease.epoch <= EPOCH_LEAP_MAX:
        return None
    last = (await _lease_of_images(store, keyring, clock, needs_image=False)).epoch
    if lease.epoch - last <= EPOCH_LEAP_MAX:
        return None
    return f"the lease's epoch {lease.epoch} is far above {last}, the latest in the bucket"


async def read_or_derive(
    keeper: LeaseKeeper, store: ObjectStore, keyring: Keyring, clock: Clock
) -> str | None:
    """Read the lease without writing, for a caller that only reads the filesystem.

    If the lease is missing or damaged, a lease is derived from the newest complete image in the
    bucket. The real epoch may be higher.

    Returns:
        A line about the fault of the lease; None if the lease is valid.

    Raises:
        UnfinishedFilesystemError: the bucket has neither a lease nor a complete image.
        NewerFormatError: a newer version of the program wrote the lease or all complete images.
        StoreError: the store is unavailable, so the state of the lease is unknown.
    """
    try:
        await keeper.read()
    except NewerFormatError:
        raise
    except (CorruptionError, UnfinishedFilesystemError) as exc:
        damage = exc
    else:
        return None
    keeper.assume(await _lease_of_images(store, keyring, clock, prefix=image_codec.PREFIX))
    if isinstance(damage, UnfinishedFilesystemError):
        return "the lease is missing; s3fs-meta fsck -y makes a new lease"
    return str(damage)


async def _lease_of_images(
    store: ObjectStore,
    keyring: Keyring,
    clock: Clock,
    *,
    prefix: str = "",
    needs_image: bool = True,
) -> Lease:
    """Return a released lease that refers to the newest complete image.

    Its epoch is the latest plausible epoch of the objects with a prefix.
    """
    epochs, manifests, pieces, txgs = {Epoch(0)}, [], set(), []
    async with aclosing(store.list(prefix)) as listing:
        async for info in listing:
            if (name := image_codec.parse_manifest_key(info.key)) is not None:
                manifests.append((name.epoch, name.txg, info.key))
                epochs.add(name.epoch)
            elif (name := image_codec.parse_piece_key(info.key)) is not None:
                pieces.add(info.key)
                epochs.add(name.epoch)
            elif (epoch := pack_codec.parse_key(info.key)) is not None:
                epochs.add(epoch)
            elif (part := changelog_codec.part_name(info.key)) is not None:
                epochs.add(part[1])
            elif (txg := changelog_codec.parse_key(info.key)) is not None:
                txgs.append(txg)
    end = await names.reached(
        store, keyring, Txg(0), [(txg, changelog_codec.key_of(txg)) for txg in txgs]
    )
    last = await _last_epoch(store, keyring, [txg for txg in txgs if txg <= end])
    # Any user of the bucket can create object names, so ignore an impossible epoch in a name.
    epoch = max((found for found in epochs if found - last <= EPOCH_LEAP_MAX), default=last)
    keys = [key for _, _, key in sorted(manifests, reverse=True)]
    head = await _newest_complete(store, keyring, keys, pieces)
    if head is None and needs_image:
        raise UnfinishedFilesystemError(store.url)
    return released(max(epoch, last), head, clock)


async def _newest_complete(
    store: ObjectStore, keyring: Keyring, keys: list[ObjectKey], pieces: set[ObjectKey]
) -> Head | None:
    """Return the first complete image of *keys* as a head, or None if no image is complete.

    An image that claims a newer format version is skipped if another image is complete: no object
    refers to it, and this program can read the last changelog.

    Raises:
        NewerFormatError: no image is complete, and an image claims a newer version.
    """
    newer: NewerFormatError | None = None
    for key in keys:
        try:
            head = await _complete(store, keyring, key, pieces)
        except NewerFormatError as exc:
            newer = newer or exc
            continue
        if head is not None:
            if newer is not None:
                _log.warning(
                    "no object in the bucket refers to this image, so it is ignored: %s", newer
                )
            return head
    if newer is not None:
        raise newer
    return None


async def _last_epoch(store: ObjectStore, keyring: Keyring, txgs: list[Txg]) -> Epoch:
    """Return an estimate of the chain's last epoch.

    The estimate is the epoch of the last readable changelog, plus 1 for each later unreadable
    changelog, because each may be the fence record of a new epoch. It is too low if a host acquired
    the lease, crashed before it appended its fence record, and a later fence record is unreadable.
    Then the next mount uses the epoch of an earlier hold again; its nonce distinguishes the two.
    """
    damaged = 0
    for txg in sorted(txgs, reverse=True):
        key = changelog_codec.key_of(txg)
        try:
            data = (await store.get(key, ENCODED_BYTES_MAX)).data
            changelog = await in_thread(changelog_codec.decode, key, data, keyring)
        except NewerFormatError:
            raise
        except CorruptionError:
            damaged += 1
        else:
            return Epoch(changelog.epoch + damaged)
    return Epoch(damaged)


async def _complete(
    store: ObjectStore, keyring: Keyring, key: ObjectKey, pieces: set[ObjectKey]
) -> Head | None:
    """Return an image as a head, or None if the image is damaged or a piece is missing."""
    try:
        data = (await store.get(key, ENCODED_BYTES_MAX)).data
        manifest = await in_thread(image_codec.decode, key, data, keyring)
    except NewerFormatError:
        raise
    except CorruptionError:
        return None
    if any(piece.key not in pieces for piece in manifest.pieces):
        return None
    return Head(manifest.txg, key, image_codec.content_hash(data))
