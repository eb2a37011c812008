"""From an image in the bucket to a metadata database here.

Owns: fetching, verifying and placing the pieces. Does not know: local state, leases.
"""

import os
from functools import partial
from pathlib import Path

import trio

from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec.image import Manifest, Piece
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import S3fsError
from s3fs_meta.limits import CLEANUP_S_MAX, FETCHES_MAX, IMAGE_PIECE_BYTES
from s3fs_meta.meta.local_disk import create_empty
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.progress import Progress


async def restore_image(
    store: ObjectStore, keyring: Keyring, manifest: Manifest, target: Path, progress: Progress
) -> None:
    """Write the database of an image to *target*, which appears complete and synced or not at all.

    Raises:
        StoreError: a piece cannot be had.
        FormatError: a piece is damaged.
    """
    unfinished = target.with_name(target.name + ".restoring")
    try:
        await _fetch_all(store, keyring, manifest, unfinished, progress)
        await trio.to_thread.run_sync(_finish, unfinished, target)
    except BaseException:
        with trio.move_on_after(CLEANUP_S_MAX, shield=True):
            await trio.to_thread.run_sync(partial(unfinished.unlink, missing_ok=True))
        raise


async def _fetch_all(
    store: ObjectStore, keyring: Keyring, manifest: Manifest, unfinished: Path, progress: Progress
) -> None:
    done = 0
    failed: list[S3fsError | OSError] = []
    limiter = trio.CapacityLimiter(FETCHES_MAX)

    async def fetch(number: int, piece: Piece) -> None:
        nonlocal done
        try:
            async with limiter:
                fetched = await store.get(piece.key)
                await trio.to_thread.run_sync(
                    _place, unfinished, number, piece, fetched.data, keyring
                )
        except (S3fsError, OSError) as exc:
            failed.append(exc)
            nursery.cancel_scope.cancel()
            return
        done += 1
        progress("metadata", done, len(manifest.pieces))

    await trio.to_thread.run_sync(_allocate, unfinished, manifest.database_bytes)
    async with trio.open_nursery() as nursery:
        for number, piece in enumerate(manifest.pieces):
            nursery.start_soon(fetch, number, piece)
    if failed:
        raise failed[0]


def _allocate(path: Path, size_bytes: int) -> None:
    path.unlink(missing_ok=True)  # of an interrupted restore
    create_empty(path)
    os.truncate(path, size_bytes)


def _place(path: Path, number: int, piece: Piece, data: bytes, keyring: Keyring) -> None:
    payload = image_codec.open_piece(piece, data, keyring)
    with path.open("r+b") as file:
        file.seek(number * IMAGE_PIECE_BYTES)
        file.write(payload)


def _finish(path: Path, target: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())
    path.rename(target)
    fd = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
