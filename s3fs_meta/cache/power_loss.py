"""After a cut of power: a copy that was not synced gets the content of what it was made from.

A change of a block that may not be changed any more makes another in its place, and the rows are
committed before anybody waits for the disk. So a cut may leave rows that name a block without its
content, although bytes that it was made with had been synced long before. They are still in the
origin: in its file, which stays until the copy was synced, or in its pack.

Owns: which bytes of an origin can be believed; which blocks have a row.
Does not know: when copies are made.
``restore_copies`` runs at mount, before any task; ``content_before`` also serves who only reads.
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

Beginning = Callable[[BlockId, int], bytes]  # of a block's file: so much, or as much as there is


class KnownCopies:
    """Rows of ``copies``, and in memory which blocks have one."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._known: set[BlockId] = set()

    def load(self) -> None:
        """Read the blocks from the rows."""
        self._known = set(block_origins.blocks(self._db))

    def note(self, block: BlockId, origin: Located, keep_bytes: int) -> None:
        """Remember what to go back to if power is lost before a new block was synced."""
        block_origins.note(self._db, block, origin, keep_bytes)
        self._known.add(block)

    def note_hole(self, block: BlockId, hole_bytes: int) -> None:
        """Remember that a new block begins with so many bytes of a hole."""
        block_origins.note_hole(self._db, block, hole_bytes)
        self._known.add(block)

    def forget(self, wanted: Iterable[BlockId]) -> None:
        """Forget what was in the place of blocks: they were synced, stored, or go."""
        known = self._known.intersection(wanted)
        if known:
            block_origins.forget(self._db, known)
            self._known -= known


async def restore_copies(
    db: Database, files: BlockFiles, keyring: Keyring, store: ObjectStore
) -> None:
    """Give copies that were never synced the bytes that were in their place before.

    What was written to them is gone, as after any cut. Does nothing the second time.

    Raises:
        StoreError: an origin is only in the store, which is away; nothing was lost.
        OSError, DatabaseError: the disk refused.
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
    """Return a copy of a copy as one of the oldest origin: for who restores none of them.

    Args:
        others: all that are only here, by block.
    """
    origin = others.get(copy.origin)
    while copy.hash is None and origin is not None and origin.block < copy.block:
        copy = origin._replace(keep_bytes=min(_stop(copy), _stop(origin)), holds_bytes=None)
        origin = others.get(copy.origin)
    return copy


def _stop(copy: Copy) -> int:
    """Return how many bytes of its origin a copy may show."""
    return copy.keep_bytes if copy.holds_bytes is None else min(copy.keep_bytes, copy.holds_bytes)


async def content_before(
    copy: Copy, db: Database, beginning: Beginning, keyring: Keyring, store: ObjectStore
) -> bytes:
    """Return the bytes of an origin that are in the range of its copy, from the first one on.

    Nothing is changed. Of an origin that is a copy itself, what is in its file counts.

    Raises:
        StoreError: the origin is only in the store, which is away.
        LostBlockError: the file of an origin that is only here cannot be read.
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
    """Return the content of an origin's file if it is what was stored."""
    try:
        data = beginning(copy.origin, copy.plain_bytes)
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
