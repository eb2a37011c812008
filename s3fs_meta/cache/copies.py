"""After a cut of power: a copy that was not synced gets the content of what it was made from.

A change of a block that may not be changed any more makes another in its place, and the rows are
committed before anybody waits for the disk. So a cut may leave rows that name a block without its
content, although bytes that it was made with had been synced long before. They are still in the
origin: in its file, which stays until the copy was synced, or in its pack.

Owns: which bytes of an origin can be believed. Does not know: when copies are made.
Runs at mount, before any task.
"""

import logging

import trio

from s3fs_meta.cache.block_files import BlockFiles
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import CorruptionError, LostBlockError, ObjectMissingError
from s3fs_meta.meta import cached, copies, packs
from s3fs_meta.meta.copies import Copy
from s3fs_meta.meta.database import Database
from s3fs_meta.objects.contract import ObjectStore

_log = logging.getLogger(__name__)


async def restore_copies(
    db: Database, files: BlockFiles, keyring: Keyring, store: ObjectStore
) -> None:
    """Give copies that were never synced the bytes that were in their place before.

    What was written to them is gone, as after any cut. Does nothing the second time.

    Raises:
        StoreError: an origin is only in the store, which is away; nothing was lost.
        OSError, DatabaseError: the disk refused.
    """
    unsynced = copies.only_here(db)
    for copy in unsynced:
        data = await _kept(copy, db, files, keyring, store)
        await trio.to_thread.run_sync(files.create, copy.block, 0, data)
        await trio.to_thread.run_sync(files.sync, [copy.block])
        db.begin_local()
        cached.note_synced(db, [(copy.block, len(data))])
    db.begin_local()
    copies.forget(db, copies.blocks(db))
    db.commit_durable()
    await trio.to_thread.run_sync(db.sync_wal)


async def _kept(
    copy: Copy, db: Database, files: BlockFiles, keyring: Keyring, store: ObjectStore
) -> bytes:
    """Return the bytes of an origin that are in the range of its copy, from the first one on."""
    if copy.origin == copies.HOLE:
        data = bytes(copy.keep_bytes)
    elif copy.hash is None:
        length = min(copy.keep_bytes, cached.synced_bytes(db, copy.origin))
        data = await trio.to_thread.run_sync(_as_far_as_it_reaches, copy, files, length)
    else:
        found = await trio.to_thread.run_sync(_sound, copy, files, keyring)
        data = await _fetched(copy, db, keyring, store) if found is None else found
    stop = copy.keep_bytes
    return data[: stop if copy.holds_bytes is None else min(stop, copy.holds_bytes)]


def _as_far_as_it_reaches(copy: Copy, files: BlockFiles, length: int) -> bytes:
    size = files.size(copy.origin)
    return b"" if size is None else files.read(copy.origin, 0, min(length, size))


def _sound(copy: Copy, files: BlockFiles, keyring: Keyring) -> bytes | None:
    """Return the content of an origin's file if it is what was stored."""
    try:
        data = files.read(copy.origin, 0, copy.plain_bytes)
    except LostBlockError:
        return None
    return data if keyring.block_hash(data) == copy.hash else None


async def _fetched(copy: Copy, db: Database, keyring: Keyring, store: ObjectStore) -> bytes:
    """Return the content of an origin from its pack, nothing if that is gone or damaged."""
    offset, length = copy.pack_offset, copy.stored_bytes
    assert copy.pack is not None, "what has a hash has a pack"
    assert copy.hash is not None, "only what was uploaded is fetched"
    assert offset is not None, "what has a pack has a place in it"
    assert length is not None, "what has a pack has a place in it"
    try:
        key = packs.object_key(db, copy.pack)
        stored = await store.get_range(key, offset, offset + length)
        return await trio.to_thread.run_sync(
            pack_codec.open_block, keyring, key, stored, offset, copy.plain_bytes, copy.hash
        )
    except (ObjectMissingError, CorruptionError) as exc:
        _log.error("block %d lost what it was copied from: %s", copy.block, exc)
        return b""
