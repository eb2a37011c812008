"""The objects of an image: pieces of a database file, and the manifest that lists them.

Owns: splitting a finished copy into pieces, reusing pieces of the last image, the manifest.
Does not know: cuts of a txg, leases, when an image is due.
"""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

from s3fs_meta.background_task import in_thread
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec.image import Manifest, Piece
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Head
from s3fs_meta.errors import ObjectMissingError
from s3fs_meta.limits import IMAGE_PIECE_BYTES
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.progress import Progress, no_progress

Take = Callable[[int], Awaitable[object]]
"""A function that waits until the rate limit allows the upload of a number of bytes."""


async def at_once(_size_bytes: int) -> None:
    """Return immediately, because uploads are not limited."""


class NewImage(NamedTuple):
    """A new image: its txg, the epoch of its writer and the prefix of its keys."""

    txg: Txg
    epoch: Epoch
    prefix: str


def new_image(txg: Txg, epoch: Epoch) -> NewImage:
    """Return a new image whose keys no other attempt uses."""
    random_bytes = secrets.token_bytes(image_codec.RANDOM_BYTES)
    return NewImage(txg, epoch, image_codec.image_prefix(txg, epoch, random_bytes))


async def put_pieces(
    store: ObjectStore,
    keyring: Keyring,
    image: NewImage,
    copy: Path,
    old: Sequence[Piece] = (),
    progress: Progress = no_progress,
    take: Take = at_once,
) -> tuple[Piece, ...]:
    """Upload the pieces of a database file that differ from the *old* ones at the same offsets.

    Args:
        old: pieces that are in the store (``require_pieces``).
        take: waits until the upload limit allows a number of bytes.

    Raises:
        StoreError: some pieces may be in the store, but no manifest refers to them.
    """
    size_bytes = (await in_thread(copy.stat)).st_size
    total = -(-size_bytes // IMAGE_PIECE_BYTES)
    pieces: list[Piece] = []
    for number in range(total):
        payload = await in_thread(_read_piece, copy, number)
        content = await in_thread(image_codec.content_hash, payload)
        if number < len(old) and old[number].hash == content:
            pieces.append(old[number])
        else:
            key = image_codec.piece_key(image.prefix, number)
            encoded = await in_thread(image_codec.encode_piece, key, payload, keyring)
            await take(len(encoded))
            await store.create(key, encoded)
            pieces.append(Piece(key=key, plain_bytes=len(payload), hash=content))
        progress("metadata", number + 1, total)
    return tuple(pieces)


async def require_pieces(store: ObjectStore, pieces: Sequence[Piece]) -> None:
    """Check that the pieces of an image are in the store.

    Raises:
        ObjectMissingError: a piece is missing.
    """
    missing = {piece.key for piece in pieces}
    async with aclosing(store.list("image/")) as listing:
        async for info in listing:
            missing.discard(info.key)
    if missing:
        raise ObjectMissingError(min(missing))


async def describe(
    keyring: Keyring,
    image: NewImage,
    copy: Path,
    pieces: tuple[Piece, ...],
    *,
    created_ns: int,
    previous: Head | None = None,
    changelog: str = image_codec.NO_HASH,
) -> tuple[Head, bytes]:
    """Return the head and the encoded manifest for an image of a finished database copy.

    The defaults describe the first image of a filesystem. The manifest is not stored yet.
    """
    facts = await in_thread(image_copy.describe, copy)
    manifest = Manifest(
        txg=image.txg,
        epoch=image.epoch,
        uuid=facts.uuid,
        schema_version=facts.schema_version,
        page_size=facts.page_size,
        database_bytes=facts.database_bytes,
        created_ns=created_ns,
        previous=None if previous is None else previous.manifest,
        pieces=pieces,
        inodes=facts.inodes,
        file_bytes=facts.file_bytes,
        changelog=changelog,
    )
    key = ObjectKey(f"{image.prefix}/manifest")
    data = await in_thread(image_codec.encode, manifest, key, keyring)
    return Head(txg=image.txg, manifest_key=key, manifest_hash=image_codec.content_hash(data)), data


def _read_piece(copy: Path, number: int) -> bytes:
    with copy.open("rb") as file:
        file.seek(number * IMAGE_PIECE_BYTES)
        return file.read(IMAGE_PIECE_BYTES)
