"""Removing a filesystem by deleting its objects, the superblock last.

Owns: the order of deletions. Does not know: which objects the filesystem wrote (``own_objects``).
After an interrupted removal, no filesystem can be opened or created at the URL until ``destroy``
has deleted the remaining objects.
Design: docs/design/durability.md, "The superblock".
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from s3fs_meta.background_task import in_thread
from s3fs_meta.bucket_errors import LostSuperblockError
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import (
    FormatError,
    NewerFormatError,
    ObjectMissingError,
    ObjectTooLargeError,
    PreconditionError,
    UsageError,
)
from s3fs_meta.limits import DELETE_BATCH_KEYS, TEXT_OBJECT_BYTES_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ETag, ObjectInfo, ObjectStore
from s3fs_meta.sync.administration.mkfs import SUPERBLOCK_KEYS, is_own
from s3fs_meta.sync.hooks import Hook, no_hook
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.selection import Keys
from s3fs_meta.sync.superblock.unlocking import Secret

# keys of the objects that are deleted last
LAST: Final = frozenset({*SUPERBLOCK_KEYS, lease_codec.KEY})


class SuperblockVersions(NamedTuple):
    """The ETags of the two superblock objects; None if an object is missing."""

    first: ETag | None
    second: ETag | None


class Contents(NamedTuple):
    """The objects of a bucket, grouped by the form of their keys."""

    named: list[ObjectInfo]  # objects whose keys have a form that s3fs-meta uses
    foreign: list[ObjectKey]  # keys of all other objects

    @property
    def keys(self) -> list[ObjectKey]:
        """Return the keys of the objects in ``named``."""
        return [info.key for info in self.named]


async def list_contents(store: ObjectStore) -> Contents:
    """List all objects of a bucket; raise StoreError if this fails."""
    found = Contents([], [])
    async for info in store.list(""):
        if is_own(info.key):
            found.named.append(info)
        else:
            found.foreign.append(info.key)
    return found


async def superblock_versions(store: ObjectStore) -> SuperblockVersions:
    """Return the present versions of the superblock objects, for ``remove``.

    Call this before listing the objects. If another process creates a filesystem afterwards, the
    versions change, and ``remove`` fails.
    """
    first, second = SUPERBLOCK_KEYS
    return SuperblockVersions(await _etag(store, first), await _etag(store, second))


async def _etag(store: ObjectStore, key: ObjectKey) -> ETag | None:
    try:
        return (await store.get(key, TEXT_OBJECT_BYTES_MAX)).etag
    except ObjectMissingError:
        return None
    except ObjectTooLargeError as exc:
        return exc.etag


async def keys_of_removed(
    store: ObjectStore, remembered: Remembered, secret: Secret
) -> tuple[Keyring, bytes] | None:
    """Return the keys and the superblock of a filesystem whose removal was interrupted.

    The second superblock object is deleted after the objects that its keys identify. If it is
    missing, only the tombstone and perhaps the lease remain, and the result is None.

    Raises:
        LostSuperblockError: the superblock is damaged, and this host has no copy.
        NewerFormatError: a newer version of the program wrote the superblock.
        PassphraseError: the secret does not unlock the superblock.
    """
    try:
        data = (await store.get(superblock_codec.COPY_KEY, TEXT_OBJECT_BYTES_MAX)).data
    except ObjectMissingError:
        return None
    except ObjectTooLargeError:
        data = b""
    local = await in_thread(remembered.read)
    fault = ""
    for one in (data, local):
        if one is None:
            continue
        try:
            found = superblock_codec.decode(superblock_codec.COPY_KEY, one)
            return await secret.open(found), one
        except NewerFormatError:
            raise
        except FormatError as exc:
            fault = fault or exc.what
    raise LostSuperblockError(store.url, f"{superblock_codec.COPY_KEY!r}: {fault}")


def require_own_superblock(keys: Keys) -> None:
    """Raise UsageError if one of the superblock objects belongs to another filesystem."""
    for copy in keys.copies:
        if copy.found is not None and copy.found.uuid != keys.superblock.uuid:
            raise UsageError(
                f"the object {copy.key!r} is the superblock of another filesystem, "
                f"{copy.found.uuid}; nothing was removed. Move this object away, or use --by-name "
                "if it may also be deleted"
            )


async def remove(
    store: ObjectStore,
    own: Iterable[ObjectKey],
    label: str,
    progress: Callable[[int, int], None],
    hook: Hook = no_hook,
    *,
    before: SuperblockVersions,
    superblock: bytes | None = None,
) -> None:
    """Delete all objects of a filesystem, the superblock last.

    Before any deletion, a tombstone replaces the superblock, so that no host restores the
    superblock from a copy or opens the remaining objects. The lease and the second superblock
    object are deleted after the other objects, because after an interruption only the keys in the
    second superblock object prove which objects belong to the filesystem. The tombstone is deleted
    last. Both superblock objects are written by compare-and-set, because the server may apply a
    delayed PUT after another process created a new filesystem in the bucket.

    Args:
        store: the bucket.
        own: the object keys of the filesystem.
        label: the label of the filesystem; if this run is interrupted, the next run needs the
            label.
        progress: called with the number of deleted objects, and the total.
        hook: called after each step.
        before: the versions of the superblock objects before *own* was determined.
        superblock: new content of the second superblock object; None: leave it unchanged.

    Raises:
        UsageError: another process changed a superblock object. Either no object was deleted yet,
            or the other process has removed the filesystem.
    """
    keys = set(own)
    if superblock is not None:
        await _write(store, superblock_codec.COPY_KEY, superblock, before.second)
        keys.add(superblock_codec.COPY_KEY)
        hook("removal prepared")
    tombstone = superblock_codec.encode_tombstone(label)
    await _write(store, superblock_codec.KEY, tombstone, before.first)
    keys.add(superblock_codec.KEY)
    hook("removal noted")
    others = sorted(keys - LAST)
    for start in range(0, len(others), DELETE_BATCH_KEYS):
        await _delete(store, others[start : start + DELETE_BATCH_KEYS], tombstone)
        progress(min(start + DELETE_BATCH_KEYS, len(others)), len(keys))
    hook("objects removed")
    await _delete(store, sorted((keys & LAST) - {superblock_codec.KEY}), tombstone)
    hook("keys removed")
    await _delete(store, [superblock_codec.KEY], tombstone)
    progress(len(keys), len(keys))
    hook("superblock removed")


async def _delete(store: ObjectStore, keys: Sequence[ObjectKey], tombstone: bytes) -> None:
    """Delete objects if the superblock is still the tombstone.

    Every filesystem uses the same names for changelogs, lease and superblock. If another process
    completed the removal and mkfs then created a filesystem, these names belong to the new one.
    If the store retries a failed request, this check is not repeated.
    """
    try:
        found = (await store.get(superblock_codec.KEY, TEXT_OBJECT_BYTES_MAX)).data
    except (ObjectMissingError, ObjectTooLargeError):
        found = None
    if found != tombstone:
        raise UsageError(
            f"another process removed the filesystem at {store.url} while this command ran, and may"
            " have created a new one; this command deletes no more objects"
        )
    await store.delete(keys)


async def _write(store: ObjectStore, key: ObjectKey, data: bytes, before: ETag | None) -> None:
    """Replace an object if its version is still *before*; create it if *before* is None."""
    try:
        if before is None:
            await store.create(key, data)
        else:
            await store.replace(key, data, before)
    except PreconditionError as exc:
        raise UsageError(
            f"another process changed the object {key!r} in {store.url} while this command ran; "
            "no object was deleted; run the command again"
        ) from exc
