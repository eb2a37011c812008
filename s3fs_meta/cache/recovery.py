"""Recovery of the cache directory after a crash.

Owns: how much of a file is trusted after a power cut; files without a row; which bytes restore a
copied block; which blocks have a row in ``copies``. Does not know: when copies are made.
Keeps: a file without a row is removed only if a pack has its content, and no mark says that it is
damaged there, or if it was written after the database last changed; else it is quarantined.
All but ``content_before``, which also serves read-only tools, runs at mount, before any task.

A write to a frozen block makes a copy, and the rows are committed before the copy's file is synced.
So a power cut may leave rows that refer to a copy without content, although the origin's bytes in
it had been durable long before. They still exist in the origin: in its file, which stays until the
copy is synced, or in its pack.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import trio

from s3fs_meta.cache.block_files import BlockFiles
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import CorruptionError, LostBlockError, ObjectMissingError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_origins, blocks, cached_blocks, packs
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.meta.tables.block_origins import Copy
from s3fs_meta.model import BlockId
from s3fs_meta.objects.contract import ObjectStore

_FIRST: Final = BlockId(0)
_log = logging.getLogger(__name__)

Beginning = Callable[[BlockId, int], bytes]  # first bytes of a block's file: at most that many


def distrust(db: Database, files: BlockFiles) -> None:
    """Truncate each file after its synced bytes; reading the removed rest fails with EIO.

    The rest may have reached the disk, but it cannot be distinguished from zeros: the kernel
    writes pages in any order, a size before its pages, and a page before it is full. Searching for
    holes does not help: a page that was half full when it was first written is no hole.
    """
    for tail in cached_blocks.unsynced_tails(db):
        files.cut_after(tail.block, tail.synced_bytes)


def let_strays_go(
    db: Database,
    files: BlockFiles,
    quarantine: Path,
    block_hash: Callable[[bytes], bytes] | None,
    *,
    first: BlockId = _FIRST,
    undone_ns: range | None = None,
) -> int:
    """Remove files without a row if the bucket has their content; quarantine all others.

    A group that was rolled back leaves such files. So does restoring the database from a backup,
    and then the files may be the only copies. Their times distinguish the two: the group that a kill
    undid was the last, so its files are newer than the database and its log; a database that was
    put back is newer than all files. A copy or a change of owner gives files another ctime, but not
    another mtime, and a clock that was set back leaves files of the future: so both times of each
    file must agree. The time grows with the number of files, which is bounded; in a thread.

    Args:
        db: not used by other tasks meanwhile.
        files: the block files of this database.
        quarantine: a directory for block files on the same disk, made if needed.
        block_hash: the keyring's; None: no content can be verified.
        first: files of smaller numbers are ignored.
        undone_ns: after a kill, the times since the last change of the database. If those of all
            stray files are in it, and none of their blocks has a row, one undone group made all of
            them, and they are removed. None: times prove nothing.

    Returns:
        How many files were quarantined.
    """
    known = {block for block, _state, _size in cached_blocks.rows_with_size(db)}
    strays = [
        block
        for block in files.numbers(first)
        if block not in known and not _may_be_needed(db, block)
    ]
    kept = [block for block in strays if not is_stored(db, files, block, block_hash)]
    if undone_ns is not None and all(_is_undone(db, files, block, undone_ns) for block in kept):
        kept = []
    for block in set(strays).difference(kept):
        files.remove(block)
    files.quarantine(kept, quarantine)
    return len(kept)


def is_stored(
    db: Database,
    files: BlockFiles,
    block: BlockId,
    block_hash: Callable[[bytes], bytes] | None,
) -> bool:
    """Return whether an intact pack has the content of a file, by its hash; true for an empty file."""
    size_bytes = files.size(block)
    row = blocks.find(db, block)
    if not size_bytes or block_hash is None or row is None or row.hash is None:
        return not size_bytes
    if size_bytes != row.plain_bytes or blocks.is_damaged(db, row):
        return False
    try:
        return block_hash(files.read(block, 0, size_bytes)) == row.hash
    except LostBlockError:
        return False


def _is_undone(db: Database, files: BlockFiles, block: BlockId, undone_ns: range) -> bool:
    """Return whether a group that a kill undid can have made a file: its block has no row."""
    return blocks.find(db, block) is None and all(
        time_ns in undone_ns for time_ns in files.times_ns(block)
    )


def _may_be_needed(db: Database, block: BlockId) -> bool:
    """Return whether fsck could use a file: its block has a row, but is in no pack."""
    row = blocks.find(db, block)
    return row is not None and row.pack is None


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
    for copy in block_origins.not_uploaded(db):
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
        _log.error(
            "block %d lost the block that it was copied from: %s; unmount, and run fsck -y",
            copy.block,
            exc,
        )
        return b""
