"""Recovery of copied blocks after a power cut: restore an unsynced copy from its origin.

A write to a frozen block makes a copy, and the rows are committed before the copy's file is synced.
So a power cut may leave rows that refer to a copy without content, although the origin's bytes in
it had been durable long before. They still exist in the origin: in its file, which stays until the
copy is synced, or in its pack.

Owns: which bytes of an origin are trusted; which blocks have a row in ``copies``.
Does not know: when copies are made.
``restore_copies`` runs at mount, before any task; ``content_before`` also serves read-only tools.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import trio

from s3fs_meta.cache.block_files import BlockFiles
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import CorruptionError, LostBlockError, ObjectMissingError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_origins, cached_blocks, packs
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.meta.tables.block_origins import Copy
from s3fs_meta.model import BlockId
from s3fs_meta.objects.contract import ObjectStore

_log = logging.getLogger(__name__)

Beginning = Callable[[BlockId, int], bytes]  # first bytes of a block's file: at most that many


class KnownCopies:
    """Rows of ``copies``, and a set of the blocks that have one, in memory."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._known: set[BlockId] = set()

    def load(self) -> None:
        """Read the blocks from the rows."""
        self._known = set(block_origins.blocks(self._db))

    def note(self, block: BlockId, origin: Located, keep_bytes: int) -> None:
        """Record the origin of a new block, for a power cut before the block is synced."""
        block_origins.note(self._db, block, origin, keep_bytes)
        self._known.add(block)

    def note_hole(self, block: BlockId, hole_bytes: int) -> None:
        """Record that a new block begins with a hole of *hole_bytes*."""
        block_origins.note_hole(self._db, block, hole_bytes)
        self._known.add(block)

    def forget(self, wanted: Iterable[BlockId]) -> None:
        """Delete the origins of blocks that were synced, uploaded or removed."""
        known = self._known.intersection(wanted)
        if known:
            block_origins.forget(self._db, known)
            self._known -= known


async def restore_copies(
    db: Database, files: BlockFiles, keyring: Keyring, store: ObjectStore
) -> None:
    """Restore the content of copies that were never synced from their origins.

    Writes to the copies themselves are lost, as after any power cut. A second call does nothing.

    Raises:
        StoreError: an origin exists only in the store, which is unavailable; nothing was lost.
        OSError, DatabaseError: the disk failed.
    """
    beginning = partial(_beginning, files)
    for copy in block_origins.only_here(db):
        data = await content_before(copy, db, beginning, keyring, store)
        await trio.to_thread.run_sync(files.create, copy.block, 0, data)
        await trio.to_thread.run_sync(files.sync, [copy.block])
        db.begin_local()
        cached_blocks.note_synced(db, [(copy.block, len(data))])
    db.begin_local()
    block_origins.forget(db, block_origins.blocks(db))
    db.commit_durable()
    await trio.to_thread.run_sync(db.sync_wal)


def through(copy: Copy, others: Mapping[BlockId, Copy]) -> Copy:
    """Follow a chain of copies to its first origin, for callers that restore no files.

    Args:
        others: all copies that are dirty or sealed, by block.
    """
    origin = others.get(copy.origin)
    while copy.hash is None and origin is not None and origin.block < copy.block:
        copy = origin._replace(keep_bytes=min(_stop(copy), _stop(origin)), holds_bytes=None)
        origin = others.get(copy.origin)
    return copy


def _stop(copy: Copy) -> int:
    """Return how many bytes of its origin a copy may contain."""
    return copy.keep_bytes if copy.holds_bytes is None else min(copy.keep_bytes, copy.holds_bytes)


async def content_before(
    copy: Copy, db: Database, beginning: Beginning, keyring: Keyring, store: ObjectStore
) -> bytes:
    """Return the first bytes of an origin, as many as its copy may contain.

    Changes nothing. If the origin is a copy itself, the content of its file counts.

    Raises:
        StoreError: the origin exists only in the store, which is unavailable.
        LostBlockError: the file of a dirty or sealed origin is unreadable.
    """
    if copy.origin == block_origins.HOLE:
        data = bytes(copy.keep_bytes)
    elif copy.hash is None:
        length = min(copy.keep_bytes, cached_blocks.synced_bytes(db, copy.origin))
        data = await trio.to_thread.run_sync(beginning, copy.origin, length)
    else:
        found = await trio.to_thread.run_sync(_sound, copy, beginning, keyring)
        data = await _fetched(copy, db, keyring, store) if found is None else found
    return data[: _stop(copy)]


def _beginning(files: BlockFiles, block: BlockId, length: int) -> bytes:
    size = files.size(block)
    return b"" if size is None else files.read(block, 0, min(length, size))


def _sound(copy: Copy, beginning: Beginning, keyring: Keyring) -> bytes | None:
    """Return the content of an uploaded origin's file if its hash is right, else None."""
    try:
        data = beginning(copy.origin, copy.plain_bytes)
    except LostBlockError:
        return None
    return data if keyring.block_hash(data) == copy.hash else None


async def _fetched(copy: Copy, db: Database, keyring: Keyring, store: ObjectStore) -> bytes:
    """Return the content of an origin from its pack, empty if that is missing or corrupt."""
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
