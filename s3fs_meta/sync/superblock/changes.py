"""Writing the superblock in the bucket and on this host: changes, missing and damaged copies.

Owns: the order of the writes (first object, second object, this host's copy), and the rules for
overwriting a copy.
Does not know: which copy is used (``selection``).
Keeps: a mount only creates missing objects, or finishes an interrupted change by copying the first
object to the second. Only a change or ``fsck -y`` replaces other objects, by compare-and-set, and
``fsck -y`` saves the replaced bytes on this host. A superblock is written only if it is authentic,
and its keys were used on this host or open another object of the bucket.
Design: docs/design/durability.md, "The superblock".
"""

import contextlib
from collections.abc import Callable
from typing import Final, NamedTuple

from s3fs_meta.background_task import in_thread_or_here
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.errors import FormatError, PreconditionError, StoreAccessError, StoreError
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.hooks import Hook, no_hook
from s3fs_meta.sync.host_state.replaced_objects import ReplacedObjects
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.selection import (
    Keys,
    SuperblockCopy,
    open_first,
    open_keys,
    require_proof,
)
from s3fs_meta.sync.superblock.unlocking import Secret

Mutate = Callable[[Superblock, Keyring], Superblock]

_OUTCOME_UNKNOWN: Final = (
    "it is unknown whether the superblock was changed, so the old or the new passphrase and recovery"
    " key may be valid; repeat the command when the store is available"
)


class Changed(NamedTuple):
    """The result of a change: the new superblock, and the copies that were not changed."""

    superblock: Superblock
    unreached: list[str]  # one line with the reason for each copy that could not be changed


async def change(
    store: ObjectStore,
    remembered: Remembered,
    secret: Secret,
    mutate: Mutate,
    hook: Hook = no_hook,
) -> Changed:
    """Change the superblock in every reachable copy.

    Args:
        store: the bucket of the filesystem.
        remembered: this host's copy.
        secret: unlocks the present superblock.
        mutate: returns the new superblock; the call may be slow, because it may derive a key or ask
            the user.
        hook: called after each step.

    Raises:
        PreconditionError: another process changed the superblock concurrently; nothing was changed.
        StoreError: the store is unavailable. If the first object may nevertheless have changed, the
            message says so.
        The same errors as ``open_keys``, ``require_proof`` and *mutate*.
    """
    keys = await open_keys(store, remembered, secret)
    await require_proof(store, keys)
    superblock = mutate(keys.superblock, keys.keyring)
    return await _publish(store, remembered, keys.copies, superblock, hook)


async def accept_first(store: ObjectStore, remembered: Remembered, secret: Secret) -> Changed:
    """Use the first object in the bucket as the superblock, even if a newer copy is known.

    The new superblock has a higher generation than every known copy, so other hosts accept it.

    Raises:
        The same errors as ``open_first`` and ``require_proof``.
    """
    keys, newest = await open_first(store, remembered, secret)
    await require_proof(store, keys)
    superblock = superblock_codec.succeed(keys.superblock, keys.keyring, newest)
    return await _publish(store, remembered, keys.copies, superblock, no_hook)


async def _publish(
    store: ObjectStore,
    remembered: Remembered,
    copies: tuple[SuperblockCopy, SuperblockCopy],
    superblock: Superblock,
    hook: Hook,
) -> Changed:
    data = superblock_codec.encode(superblock)
    first, second = copies
    unreached = []
    await _write_first(store, first, data)
    hook("superblock put")
    try:
        if second.error is not None:
            raise second.error
        await _write(store, second, data)
    except StoreError as exc:
        unreached.append(f"the object {second.key!r}: {exc}")
    hook("superblock copy put")
    try:
        await in_thread_or_here(remembered.keep, data)
    except OSError as exc:
        unreached.append(f"{remembered.path}: {exc.strerror}")
    hook("superblock remembered")
    return Changed(superblock, unreached)


async def _write_first(store: ObjectStore, copy: SuperblockCopy, data: bytes) -> None:
    """Write the first object; after an error, read it, because the store may have written it.

    Raises:
        PreconditionError: another process changed the object; nothing was changed.
        StoreAccessError: the store refused the write.
        StoreError: another error; the message says that the outcome is unknown.
    """
    try:
        await _write(store, copy, data)
    except PreconditionError:
        raise
    except StoreError as exc:
        failure = exc
    else:
        return
    if await _has(store, copy, data):
        return
    if not isinstance(failure, StoreAccessError):
        # Even if the object still has its old content, the store may apply the write later.
        failure.reword(f"{failure.message}; {_OUTCOME_UNKNOWN}")
    raise failure


async def _has(store: ObjectStore, copy: SuperblockCopy, data: bytes) -> bool:
    """Return whether an object contains *data*; return False if it cannot be read."""
    assert copy.key is not None, "the copy must be an object in the bucket"
    try:
        return (await store.get(copy.key, TEXT_OBJECT_BYTES_MAX)).data == data
    except (StoreError, FormatError):
        return False


async def put_back(store: ObjectStore, keys: Keys, hook: Hook = no_hook) -> list[str]:
    """Create missing superblock objects in the bucket, and finish an interrupted change.

    The caller must hold the lease: ``destroy`` then removes the filesystem only with --takeover.

    Returns:
        One line for the user about each object that was created again.
    """
    first, second = keys.copies
    done = []
    if first.missing and await _create(store, first, keys.data):
        done.append(f"the object {first.key!r} was missing; it was stored again")
    hook("superblock put")
    if second.missing and await _create(store, second, keys.data):
        if keys.faults[1]:
            done.append(f"the object {second.key!r} was missing; it was stored again")
    elif _is_late(keys):
        with contextlib.suppress(PreconditionError):  # another process has written the object
            await _write(store, second, keys.data)
    hook("superblock copy put")
    return done


def _is_late(keys: Keys) -> bool:
    """Return whether the second object is older, because a change was interrupted."""
    first, second = keys.copies
    return (
        not keys.faults[0]
        and first.data == keys.data
        and second.found is not None
        and superblock_codec.is_authentic(second.found, keys.keyring)
        and second.found.generation < keys.superblock.generation
    )


async def mend(store: ObjectStore, replaced: ReplacedObjects, keys: Keys) -> list[str]:
    """Replace each faulty superblock object with the superblock in use; for ``fsck -y``.

    Returns:
        One line for the user for each fault and its repair.

    Raises:
        PreconditionError: another process changed an object concurrently.
        OSError: the old bytes of an object cannot be saved on this host; the object is unchanged.
        ObjectTooLargeError: an object is too large to be saved; it is unchanged.
        The same errors as ``require_proof``.
    """
    await require_proof(store, keys)
    done = []
    for copy, fault in zip(keys.copies, keys.faults, strict=True):
        if not fault:
            continue
        if copy.error is not None:
            raise copy.error
        assert copy.key is not None, "the copy must be an object in the bucket"
        path = None
        if copy.too_large is not None:
            path = await replaced.save_oversized(copy.too_large)
        elif copy.data:
            path = await replaced.save(copy.key, copy.data)
        kept = "" if path is None else f"; the replaced object is kept in {path}"
        await _write(store, copy, keys.data)
        done.append(f"the object {copy.key!r}: {fault}; another copy replaced it{kept}")
    return done


async def _create(store: ObjectStore, copy: SuperblockCopy, data: bytes) -> bool:
    """Create a missing object; return False if another process has created it."""
    assert copy.key is not None, "the copy must be an object in the bucket"
    with contextlib.suppress(PreconditionError):
        await store.create(copy.key, data)
        return True
    return False


async def _write(store: ObjectStore, copy: SuperblockCopy, data: bytes) -> None:
    assert copy.key is not None, "the copy must be an object in the bucket"
    if copy.missing:
        await store.create(copy.key, data)
    elif copy.data != data:
        await store.replace(copy.key, data, copy.etag)
