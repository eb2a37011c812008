"""The proof that keys belong to the filesystem in the bucket: the keys decrypt one of its objects.

Owns: the choice and the number of objects on which the keys are tried. Does not know: the origin of
the keys.
Keeps: a command writes only under keys that decrypt or verify an object other than the superblock.
A superblock authenticates only its own fields, so any writer of the bucket can replace it with the
superblock of another filesystem.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final, NamedTuple

from s3fs_meta.background_task import in_thread
from s3fs_meta.bucket_errors import LostSuperblockError
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.image import ManifestRef
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import CorruptionError, NewerFormatError, ObjectMissingError
from s3fs_meta.limits import PROOF_OBJECTS_MAX
from s3fs_meta.objects.contract import ObjectInfo, ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.upload.pack_index import read_index


class _Try(NamedTuple):
    """Keys, and the object that they should decrypt or verify."""

    store: ObjectStore
    keyring: Keyring
    uuid: str
    info: ObjectInfo


class _Kind(NamedTuple):
    """A kind of object that can prove that keys belong to the filesystem."""

    prefix: str
    parse: Callable[[str], object | None]
    # function that returns whether an object proves the keys; may raise FormatError
    opens: Callable[[_Try], Awaitable[bool]]
    newest: bool = False  # True to try the last objects of the listing first


async def opens_an_image(store: ObjectStore, keyring: Keyring, uuid: str) -> bool:
    """Return whether the keys decrypt or verify one of the newest images in the bucket."""
    opened, _ = await _try(_MANIFESTS, store, keyring, uuid)
    return opened


async def require_own_keys(store: ObjectStore, keyring: Keyring, uuid: str) -> None:
    """Raise LostSuperblockError if the keys neither decrypt nor verify any object of the bucket.

    A bucket without objects is accepted: ``mkfs`` was interrupted, or all objects are lost.

    Raises:
        LostSuperblockError: the superblock with these keys belongs to another filesystem.
        NewerFormatError: a newer version of the program wrote the objects.
    """
    refused: list[CorruptionError] = []
    for kind in (_MANIFESTS, _CHANGELOGS, _PIECES, _PACKS):
        opened, why = await _try(kind, store, keyring, uuid)
        if opened:
            return
        refused += why
    newer = next((exc for exc in refused if isinstance(exc, NewerFormatError)), None)
    if newer is not None:
        raise newer
    if refused:
        what = "the superblock has keys of another filesystem: they decrypt no other object"
        raise LostSuperblockError(store.url, f"{what} ({refused[0]})")


async def _try(
    kind: _Kind, store: ObjectStore, keyring: Keyring, uuid: str
) -> tuple[bool, list[CorruptionError]]:
    """Return whether the keys verify one of a few objects, and the errors if they do not."""
    chosen: deque[ObjectInfo] = deque(maxlen=PROOF_OBJECTS_MAX)
    async with aclosing(store.list(kind.prefix)) as listing:
        async for info in listing:
            if kind.parse(info.key) is not None:
                chosen.append(info)
            if len(chosen) == PROOF_OBJECTS_MAX and not kind.newest:
                break
    refused: list[CorruptionError] = []
    for info in chosen:
        try:
            if await kind.opens(_Try(store, keyring, uuid, info)):
                return True, []
        except CorruptionError as exc:
            refused.append(exc)
        except ObjectMissingError:  # the object was deleted after the listing
            pass
    return False, refused


async def _opens_manifest(on: _Try) -> bool:
    manifest = await image_head.load_manifest(on.store, on.keyring, ManifestRef(on.info.key))
    return manifest.uuid == on.uuid


async def _opens_changelog(on: _Try) -> bool:
    txg = changelog_codec.parse_key(on.info.key)
    assert txg is not None, "every tried object must have the key of a changelog"
    await chain.fetch(on.store, on.keyring, on.uuid, txg)
    return True


async def _opens_piece(on: _Try) -> bool:
    fetched = await on.store.get(on.info.key, image_codec.PIECE_ENCODED_BYTES_MAX)
    await in_thread(image_codec.decode_unlisted_piece, on.info.key, fetched.data, on.keyring)
    return True


async def _opens_pack(on: _Try) -> bool:
    await read_index(on.store, on.keyring, on.info.key, on.info.size_bytes)
    return True


_MANIFESTS: Final = _Kind("image/", image_codec.parse_manifest_key, _opens_manifest, newest=True)
_CHANGELOGS: Final = _Kind(changelog_codec.PREFIX, changelog_codec.parse_key, _opens_changelog)
_PIECES: Final = _Kind("image/", image_codec.parse_piece_key, _opens_piece)
_PACKS: Final = _Kind("pack/", pack_codec.parse_key, _opens_pack)
