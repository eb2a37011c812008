"""Removing a filesystem: which objects are its own, and their deletion, the superblock last.

Owns: the proof that an object is of the filesystem that is removed, the order of the removal.
Does not know: who asked, local state.
Keeps: an object goes only if it opens with the keys of this filesystem under its own name, or if an
object that does names it and random digits in its name were drawn for that; all others are foreign.
What an interrupted removal leaves is refused by all but the next removal.
Design: docs/design/durability.md, "The superblock".
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import trio

from s3fs_meta.codec import envelope, text_object
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import (
    FormatError,
    LostSuperblockError,
    ObjectMissingError,
    ObjectTooLargeError,
    StoreError,
    UsageError,
)
from s3fs_meta.limits import DELETE_BATCH_KEYS, REMOVAL_FETCHES_MAX, TEXT_OBJECT_BYTES_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects import probe
from s3fs_meta.objects.contract import ObjectInfo, ObjectStore
from s3fs_meta.sync.creation import SUPERBLOCK_KEYS, is_own
from s3fs_meta.sync.hooks import Hook, no_hook
from s3fs_meta.sync.pack_index import is_ours
from s3fs_meta.sync.progress import Progress, no_progress
from s3fs_meta.sync.remembered import Remembered
from s3fs_meta.sync.superblocks import Keys
from s3fs_meta.sync.unlocking import Secret

LAST: Final = frozenset({*SUPERBLOCK_KEYS, lease_codec.KEY})  # deleted after all others


class Contents(NamedTuple):
    """What a place holds."""

    named: list[ObjectInfo]  # with names that a filesystem gives
    foreign: list[ObjectKey]  # all others

    @property
    def keys(self) -> list[ObjectKey]:
        """Return the names that a filesystem gives."""
        return [info.key for info in self.named]


async def look(store: ObjectStore) -> Contents:
    """List a place. Raises StoreError."""
    found = Contents([], [])
    async for info in store.list(""):
        if is_own(info.key):
            found.named.append(info)
        else:
            found.foreign.append(info.key)
    return found


async def keys_of_removed(
    store: ObjectStore, remembered: Remembered, secret: Secret
) -> tuple[Keyring, bytes] | None:
    """Return the keys of a filesystem whose removal was interrupted, and its superblock.

    The second superblock goes after all other objects, so without it none of them is left: None.

    Raises:
        LostSuperblockError: it is damaged, and this host has no copy.
        PassphraseError: the secret does not open it.
    """
    try:
        data = (await store.get(superblock_codec.COPY_KEY, TEXT_OBJECT_BYTES_MAX)).data
    except ObjectMissingError:
        return None
    except ObjectTooLargeError:
        data = b""
    local = await trio.to_thread.run_sync(remembered.read)
    fault = ""
    for one in (data, local):
        if one is None:
            continue
        try:
            found = superblock_codec.decode(superblock_codec.COPY_KEY, one)
            return await secret.open(found), one
        except FormatError as exc:
            fault = fault or exc.what
    raise LostSuperblockError(store.url, f"{superblock_codec.COPY_KEY!r}: {fault}")


def require_own_superblock(keys: Keys) -> None:
    """Refuse to write over the superblock of another filesystem.

    Raises:
        UsageError: there is one under a name of ours.
    """
    for copy in keys.copies:
        if copy.found is not None and copy.found.uuid != keys.superblock.uuid:
            raise UsageError(
                f"{copy.key!r} is the superblock of another filesystem, {copy.found.uuid}; nothing "
                "was removed. Move that object away, or use --by-name if it may be deleted, too"
            )


async def own_objects(
    store: ObjectStore,
    keyring: Keyring,
    named: Sequence[ObjectInfo],
    progress: Progress = no_progress,
) -> list[ObjectKey]:
    """Return which objects are of the filesystem that has these keys.

    Costs a request for each, but for pieces of images that a manifest names.

    Args:
        store: where they are.
        keyring: of the filesystem.
        named: as ``look`` found them.
        progress: told objects.

    Raises:
        StoreError: some cannot be read now, so that is not known.
    """
    judge = _Judge(store, keyring)
    pieces = [info for info in named if image_codec.parse_piece_key(info.key) is not None]
    others = [info for info in named if image_codec.parse_piece_key(info.key) is None]
    await judge.read_all(others, progress)
    unproven = [info for info in pieces if image_codec.image_of(info.key) not in judge.images]
    await judge.read_all(unproven, progress)
    return [info.key for info in named if judge.knows(info.key)]


class _Judge:
    """Reads objects and keeps those that are ours."""

    def __init__(self, store: ObjectStore, keyring: Keyring) -> None:
        self._store = store
        self._keyring = keyring
        self._own: set[ObjectKey] = set()
        self.images: set[str] = set()  # by the random digits in the names of their objects

    def knows(self, key: ObjectKey) -> bool:
        """Return whether an object is ours: it opened, or its image did, or one that names it."""
        return key in self._own or (
            key.startswith(image_codec.PREFIX) and image_codec.image_of(key) in self.images
        )

    async def read_all(self, infos: Sequence[ObjectInfo], progress: Progress) -> None:
        """Judge these; a fixed number of tasks, however many there are."""
        failed: list[StoreError] = []
        waiting = iter(infos)
        done = 0

        async def work() -> None:
            nonlocal done
            for info in waiting:
                try:
                    if await self._is_own(info):
                        self._own.add(info.key)
                except StoreError as exc:  # raised below as itself, in no group
                    failed.append(exc)
                    nursery.cancel_scope.cancel()
                    return
                done += 1
                progress("objects read", done, len(infos))

        async with trio.open_nursery() as nursery:
            for _ in range(REMOVAL_FETCHES_MAX):
                nursery.start_soon(work)
        if failed:
            raise failed[0]

    async def _is_own(self, info: ObjectInfo) -> bool:
        if info.key in SUPERBLOCK_KEYS:
            return True  # another filesystem's was refused before
        if pack_codec.parse_key(info.key) is not None:
            return await is_ours(self._store, self._keyring, info)
        try:
            data = (await self._store.get(info.key, envelope.SEALED_BYTES_MAX)).data
            await trio.to_thread.run_sync(self._require_own, info.key, data)
        except (FormatError, ObjectMissingError, ObjectTooLargeError):
            return False
        return True

    def _require_own(self, key: ObjectKey, data: bytes) -> None:
        """Raise FormatError if an object is not ours."""
        if key == lease_codec.KEY:
            text_object.version_of("lease", key, data)
        elif key.startswith(probe.PREFIX):
            if data not in probe.CONTENTS:
                raise FormatError(key, "it is no probe")
        elif image_codec.parse_manifest_key(key) is not None:
            manifest = image_codec.decode(key, data, self._keyring)
            self.images.update(image_codec.image_of(one.key) for one in manifest.pieces)
            self.images.add(image_codec.image_of(key))
        else:
            envelope.require_authentic(key, data, self._keyring)
            if image_codec.parse_piece_key(key) is not None:
                self.images.add(image_codec.image_of(key))


async def remove(
    store: ObjectStore,
    own: Iterable[ObjectKey],
    label: str,
    progress: Callable[[int, int], None],
    hook: Hook = no_hook,
    *,
    superblock: bytes | None = None,
) -> None:
    """Delete the objects of a filesystem, its superblock last.

    Until then a tombstone stands in its place, so that no host puts another copy there, and none
    opens what is left. The second superblock stays until all others are gone: only its keys show
    the next try which objects are the filesystem's.

    Args:
        store: where it is.
        own: its objects.
        label: what the filesystem is called, for the next try if this one is interrupted.
        progress: called with how many are gone, and of how many.
        hook: called after each step.
        superblock: what the second one holds from now on; None: it stays as it is.
    """
    keys = set(own)
    if superblock is not None:
        await store.put(superblock_codec.COPY_KEY, superblock)
        keys.add(superblock_codec.COPY_KEY)
        hook("removal prepared")
    await store.put(superblock_codec.KEY, superblock_codec.encode_tombstone(label))
    keys.add(superblock_codec.KEY)
    hook("removal noted")
    others = sorted(keys - LAST)
    for start in range(0, len(others), DELETE_BATCH_KEYS):
        await store.delete(others[start : start + DELETE_BATCH_KEYS])
        progress(min(start + DELETE_BATCH_KEYS, len(others)), len(keys))
    hook("objects removed")
    await store.delete(sorted((keys & LAST) - {superblock_codec.KEY}))
    hook("keys removed")
    await store.delete([superblock_codec.KEY])
    progress(len(keys), len(keys))
    hook("superblock removed")
