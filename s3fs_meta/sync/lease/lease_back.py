"""Storing the lost lease of a running writer again if no other host has written.

Owns: the proof that no other host has written. Does not know: how the loss is detected
(``lease.keeper``).
Keeps: the lease is stored only if this host wrote the last changelog of the chain. Another writer
would first append a fence record, which makes this host's next append fail. The write is
conditional if the store supports this, and then never overwrites another host's lease. Otherwise
the lease is first read again. Nothing is stored after destroy removed the superblock.
Tasks: the shipper's task under its lock, or any task in ``require_shipped``.
Design: docs/design/durability.md, "One writer".
"""

import contextlib
import logging
from typing import Final

from s3fs_meta.bucket_errors import LostLeaseError, OlderBucketError
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import ObjectMissingError, ObjectTooLargeError, PreconditionError
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from s3fs_meta.model import Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.chain.chain_watch import ChainWatch
from s3fs_meta.sync.lease.keeper import LeaseKeeper

_log = logging.getLogger(__name__)

_KEPT: Final = "the mount is read-only and keeps its changes on this host"
_ADVICE: Final = (
    f"{_KEPT}; unmount it, run s3fs-meta fsck -y here, which makes a lease, and mount it again"
)


async def put_back(
    store: ObjectStore,
    keyring: Keyring,
    keeper: LeaseKeeper,
    watch: ChainWatch,
    link: Link,
    attempt: tuple[Txg, bytes] | None,
    lost: LostLeaseError,
) -> None:
    """Store the lost lease of this writer again.

    Args:
        store: the bucket that lost the lease.
        keyring: the keys of the filesystem.
        keeper: the keeper of the lost lease.
        watch: checks that the bucket has the last changelog of this writer.
        link: the chain position of the last changelog of this writer.
        attempt: a txg and changelog of this writer that may come right after *link*.
        lost: the error that reported the loss.

    Raises:
        FencedError: another host has the lease, or has written.
        LostLeaseError: the filesystem was removed, or the bucket lost this writer's last changelog,
            too; the message says what to do.
        StoreError: the store is unavailable; the next txg retries.
    """
    if await _is_removed(store):
        why = f"{lost.why}, and the superblock is removed, as after s3fs-meta destroy"
        raise LostLeaseError(lost.url, why, lost.etag, _KEPT)
    try:
        await watch.require(link)
    except OlderBucketError as exc:
        why = f"{lost.why}, and {key_of(link.txg)}, this host's last changelog, is also lost"
        raise LostLeaseError(lost.url, why, lost.etag, _ADVICE) from exc
    for txg in await chain.numbers_after(store, keyring, link.txg, 2):
        if attempt is None or txg != attempt[0] or not await chain.append(store, *attempt):
            raise keeper.ended_by_object(key_of(txg))
    # If another host has written a lease meanwhile, ``require_hold`` below raises the error.
    with contextlib.suppress(PreconditionError):
        await keeper.put_back(lost)
        _log.error("%s; this host stored the lease again, because no other host has written", lost)
    await keeper.require_hold()


async def _is_removed(store: ObjectStore) -> bool:
    """Return whether the superblock is a tombstone, or both superblock objects are missing.

    The chain does not show a removal: a txg that this writer has shipped since ``destroy`` listed
    the objects stays in the bucket.
    """
    for key in (superblock_codec.KEY, superblock_codec.COPY_KEY):
        try:
            data = (await store.get(key, TEXT_OBJECT_BYTES_MAX)).data
        except ObjectMissingError:
            continue
        except ObjectTooLargeError:
            return False
        return superblock_codec.tombstone_label(data) is not None
    return True
