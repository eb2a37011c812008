"""Proving from the content of an object that this filesystem wrote it.

Owns: the proof. Does not know: why a caller needs the proof.
Keeps: this filesystem wrote an object if its cryptographic keys decrypt or verify the object under
its name. One verified object of an image proves all objects of the image. A verified manifest also
proves the pieces of other images that it lists. Checksums of a plain filesystem are also keyed, so
objects of another filesystem fail verification. The lease, the superblock objects and the objects
of a probe have no such proof: the lease and probes are recognised by their content, and the caller
checks the superblock objects.
"""

from collections.abc import Sequence
from typing import Final

from s3fs_meta.background_task import in_thread, run_concurrently
from s3fs_meta.codec import envelope, text_object
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, ObjectMissingError
from s3fs_meta.limits import REMOVAL_FETCHES_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects import probe
from s3fs_meta.objects.contract import ObjectInfo, ObjectStore
from s3fs_meta.sync.progress import Progress, no_progress
from s3fs_meta.sync.upload.pack_index import is_ours

_SUPERBLOCKS: Final = (superblock_codec.KEY, superblock_codec.COPY_KEY)


async def own_objects(
    store: ObjectStore,
    keyring: Keyring,
    named: Sequence[ObjectInfo],
    progress: Progress = no_progress,
    fetches: int = REMOVAL_FETCHES_MAX,
) -> list[ObjectKey]:
    """Return the objects that the filesystem with these keys wrote.

    Sends one request for each object, except for pieces that a verified manifest lists.

    Args:
        store: the bucket.
        keyring: the keys of the filesystem.
        named: objects whose keys look like keys of a filesystem.
        progress: called with the number of objects read.
        fetches: the number of objects that are read concurrently.

    Raises:
        StoreError: an object cannot be read now, so its writer is unknown.
    """
    judge = _OwnershipCheck(store, keyring, fetches)
    pieces = [info for info in named if image_codec.parse_piece_key(info.key) is not None]
    others = [info for info in named if image_codec.parse_piece_key(info.key) is None]
    await judge.read_all(others, progress)
    unproven = [info for info in pieces if image_codec.image_of(info.key) not in judge.images]
    await judge.read_all(unproven, progress)
    return [info.key for info in named if judge.knows(info.key)]


class _OwnershipCheck:
    """Reads objects and records the objects that this filesystem wrote."""

    def __init__(self, store: ObjectStore, keyring: Keyring, fetches: int) -> None:
        self._store = store
        self._keyring = keyring
        self._fetches = fetches
        self._own: set[ObjectKey] = set()
        # Key prefixes of the images that this filesystem wrote.
        self.images: set[str] = set()

    def knows(self, key: ObjectKey) -> bool:
        """Return whether the objects read so far prove that this filesystem wrote an object."""
        return key in self._own or (
            key.startswith(image_codec.PREFIX) and image_codec.image_of(key) in self.images
        )

    async def read_all(self, infos: Sequence[ObjectInfo], progress: Progress) -> None:
        """Read objects in several tasks, and record the objects that this filesystem wrote."""
        waiting = iter(infos)
        done = 0

        async def work() -> None:
            nonlocal done
            for info in waiting:
                if await self._is_own(info):
                    self._own.add(info.key)
                done += 1
                progress("objects read", done, len(infos))

        await run_concurrently([work] * self._fetches)

    async def _is_own(self, info: ObjectInfo) -> bool:
        if info.key in _SUPERBLOCKS:
            return True  # the caller refuses a superblock that belongs to another filesystem
        if pack_codec.parse_key(info.key) is not None:
            return await is_ours(self._store, self._keyring, info)
        try:
            data = (await self._store.get(info.key, envelope.ENCODED_BYTES_MAX)).data
            await in_thread(self._require_own, info.key, data)
        except (FormatError, ObjectMissingError):
            return False
        return True

    def _require_own(self, key: ObjectKey, data: bytes) -> None:
        """Raise FormatError if this filesystem did not write an object."""
        if key == lease_codec.KEY:
            text_object.version_of("lease", key, data)
        elif key.startswith(probe.PREFIX):
            if data not in probe.CONTENTS:
                raise FormatError(key, "the object does not have the content of a probe object")
        elif image_codec.parse_manifest_key(key) is not None:
            manifest = image_codec.decode(key, data, self._keyring)
            self.images.update(image_codec.image_of(one.key) for one in manifest.pieces)
            self.images.add(image_codec.image_of(key))
        else:
            envelope.require_authentic(key, data, self._keyring)
            if image_codec.parse_piece_key(key) is not None:
                self.images.add(image_codec.image_of(key))
