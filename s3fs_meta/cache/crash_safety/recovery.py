"""Recovery of the cache directory after a crash.

Owns: how many bytes of a file are trusted after a power cut; files without a row; the bytes that
restore a copied block; the rows of the table ``copies``. Does not know: when blocks are copied.
Keeps: a file without a row is removed if it is empty, if an intact pack has its content, or if it
was written after the last commit of the database. Otherwise a readable file is quarantined.
Tasks: these functions run at mount, before any other task; read-only tools also call
``content_before``. ``KnownCopies`` is used on the event loop of a mount.

A write to a sealed or uploaded block creates a copy of the block. The rows of the copy are
committed before its file is synced. After a power cut, the rows may refer to a copy without
content. The durable bytes of its origin are still in the file of the origin, which exists until the
copy is synced, or in a pack.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Final

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.crash_safety import intent_replay
from s3fs_meta.cache.crash_safety.intent_log import LoggedPiece
from s3fs_meta.cache.files.block_files import BlockFiles
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
_NOTHING_LOGGED: Final[Mapping[BlockId, Sequence[LoggedPiece]]] = {}
_log = logging.getLogger(__name__)

# A function that returns up to a given number of bytes from the start of a block's file.
Beginning = Callable[[BlockId, int], bytes]


def distrust(db: Database, files: BlockFiles) -> None:
    """Truncate each block file after its synced bytes; reading the removed bytes fails with EIO.

    The removed bytes may have reached the disk, but lost bytes cannot be distinguished from zeros.
    The kernel writes pages in any order, a file size before its pages, and pages that are partly
    filled. A search for holes does not help, because a partly filled page is not a hole.
    """
    for tail in cached_blocks.unsynced_tails(db):
        files.cut_after(tail.block, tail.synced_bytes)


def settle_strays(
    db: Database,
    files: BlockFiles,
    quarantine: Path,
    block_hash: Callable[[bytes], bytes] | None,
    *,
    first: BlockId = _FIRST,
    undone_ns: range | None = None,
) -> int:
    """Remove files without a row if the bucket has their content; quarantine all others.

    A file that fsck may need, or that the disk can no longer read, is neither removed nor moved.

    A commit group undone by a crash leaves files without a row. A database restored from a
    backup also leaves files without a row, and these files may be the only copies. The times of the
    files distinguish the two cases. The group undone by a kill was the last group, so its files
    are newer than the last commit; a restored database is newer than all files. Both mtime and
    ctime must be newer: copying a file or changing its owner changes only the ctime, and a
    clock that was set back leaves times in the future.
    Runs in a thread: the time grows with the number of files, which is bounded.

    Args:
        db: the database, which no other task uses during the call.
        files: the block files of the database.
        quarantine: a directory for block files on the same disk, created if needed.
        block_hash: hashes the content of a block; None if no content can be verified.
        first: the lowest block number to check; files with lower numbers are ignored.
        undone_ns: after a kill, the time range since the last commit of the database. If the times
            of all files that would be quarantined are in the range, and none of their blocks has a
            row, the undone group wrote all of them, and they are removed. None to ignore times.

    Returns:
        The number of quarantined files.
    """
    known = {block for block, _state, _size in cached_blocks.rows_with_size(db)}
    strays = [
        block
        for block in files.numbers(first)
        if block not in known and not _may_be_needed(db, block) and not files.is_unreadable(block)
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
    """Return whether a file is empty, or has the content of an intact block in a pack."""
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
    """Return whether an undone group wrote a file: its times match, and its block has no row."""
    return blocks.find(db, block) is None and all(
        time_ns in undone_ns for time_ns in files.times_ns(block)
    )


def _may_be_needed(db: Database, block: BlockId) -> bool:
    """Return whether fsck may need a file: its block has a row but is in no pack."""
    row = blocks.find(db, block)
    return row is not None and row.pack is None


class KnownCopies:
    """Changes the rows of the table ``copies``, and remembers the ``keep_bytes`` of each row.

    Every sequential write into a sparse part of a file calls ``note_gap``. The remembered numbers
    show, without an SQL statement, whether the row already includes the zeros.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        # For each copied block, the number of bytes to restore.
        self._known: dict[BlockId, int] = {}
        # For each block, the content length that the running sync or log entry makes durable.
        self._expected: Mapping[BlockId, int] = {}
        # Start and end of the gap that directly follows the bytes in ``_expected``, for each block.
        self._gaps: dict[BlockId, tuple[int, int]] = {}

    def load(self) -> None:
        """Read the rows of the table ``copies``; forget the gaps that a rollback has undone."""
        self._known = block_origins.kept_bytes(self._db)
        self._gaps = {
            block: (start, end)
            for block, (start, end) in self._gaps.items()
            if self._known.get(block, 0) >= end
        }

    def expect(self, lengths: Mapping[BlockId, int]) -> None:
        """Record the content lengths that the sync or log entry which starts now makes durable."""
        self._expected = lengths

    def note(self, block: BlockId, origin: Located, keep_bytes: int) -> None:
        """Record from which block a new block is restored if power fails before its first sync."""
        block_origins.note(self._db, block, origin, keep_bytes)
        self._known[block] = keep_bytes

    def note_hole(self, block: BlockId, hole_bytes: int) -> None:
        """Record that a new block replaces a hole, of which *hole_bytes* were inside the file."""
        block_origins.note_hole(self._db, block, hole_bytes)
        self._known[block] = hole_bytes

    def note_gap(
        self, block: BlockId, content_bytes: int, gap_end: int, *, is_logged: bool
    ) -> None:
        """Record that the file has zeros between the content of a dirty block and *gap_end*.

        These bytes were zeros before a write, and must be zeros if a power cut undoes the write.

        Args:
            block: the dirty block.
            content_bytes: the length of its content before the write.
            gap_end: the end of the zeros.
            is_logged: True if the intent log makes content of this length durable, so that the
                earlier record of a hole or gap is no longer needed.
        """
        is_expected = self._expected.get(block) == content_bytes
        if is_expected:
            self._gaps[block] = content_bytes, gap_end
        if block in self._known and not is_logged:
            self._extend(block, content_bytes, gap_end)
        elif (
            is_logged or is_expected or cached_blocks.synced_bytes(self._db, block) == content_bytes
        ):
            self._note_gap(block, content_bytes, gap_end)

    def _extend(self, block: BlockId, content_bytes: int, gap_end: int) -> None:
        """Add a gap to the row of a copied block if the gap directly follows the recorded bytes."""
        if self._known[block] != content_bytes:
            return
        if block_origins.extend(self._db, block, content_bytes, gap_end):
            self._known[block] = gap_end

    def _note_gap(self, block: BlockId, content_bytes: int, gap_end: int) -> None:
        block_origins.note_gap(self._db, block, content_bytes, gap_end)
        self._known[block] = gap_end

    def note_cut(self, block: BlockId, size_bytes: int) -> None:
        """Record that a file now ends *size_bytes* into a block, at or after the content's end.

        If the block replaces a hole, a power cut must not restore zeros after the new end. Requires
        an open transaction.
        """
        if self._known.get(block, 0) <= size_bytes:
            return
        if block_origins.shorten_hole(self._db, block, size_bytes):
            self._known[block] = size_bytes

    def synced(self, lengths: Iterable[tuple[BlockId, int]]) -> None:
        """Delete the recorded origins of synced blocks, but record gaps made during the sync.

        The content before such a gap is durable now. The bytes that were written after the gap may
        still be lost.
        """
        durable = dict(lengths)
        known = self._known.keys() & durable.keys()
        if not known:
            return
        self._delete(known)
        for block in known & self._gaps.keys():
            start, end = self._gaps.pop(block)
            if start == durable[block]:
                self._note_gap(block, start, end)

    def forget(self, wanted: Iterable[BlockId]) -> None:
        """Delete the recorded origins of blocks that were uploaded or removed."""
        known = self._known.keys() & set(wanted)
        if known:
            self._delete(known)
            for block in known:
                self._gaps.pop(block, None)

    def _delete(self, known: Set[BlockId]) -> None:
        block_origins.forget(self._db, known)
        for block in known:
            del self._known[block]


async def restore_content(
    db: Database, files: BlockFiles, keyring: Keyring, store: ObjectStore, *, power_lost: bool
) -> None:
    """Restore content that is missing from the files of dirty and sealed blocks after a crash.

    The log is replayed first, because a copied block may have an origin whose content only the log
    has. The logged content of a restored block is written again directly, because the block may
    itself be an origin.
    A second call has no effect.

    Args:
        db: the database.
        files: its block files.
        keyring: the keys of the filesystem.
        store: the bucket.
        power_lost: True if the machine has lost its memory. If only the daemon was killed, the
            files contain every write.

    Raises:
        StoreError: an origin exists only in the store, which is unavailable; nothing was lost.
        OSError, DatabaseError: the disk failed.
    """
    if power_lost:
        logged = await intent_replay.replay(db, files)
        await restore_copies(db, files, keyring, store, logged)
    await intent_replay.settle(db, files, power_lost=power_lost)


async def restore_copies(
    db: Database,
    files: BlockFiles,
    keyring: Keyring,
    store: ObjectStore,
    logged: Mapping[BlockId, Sequence[LoggedPiece]] = _NOTHING_LOGGED,
) -> None:
    """Restore the content of copied blocks that were never synced, from their origins.

    Later writes to the copied blocks are lost, as after any power cut, unless the intent log has
    them. A second call has no effect.

    Args:
        logged: the content of blocks in the intent log.

    Raises:
        StoreError: an origin exists only in the store, which is unavailable; nothing was lost.
        OSError, DatabaseError: the disk failed.
    """
    beginning = partial(_beginning, files)
    durable_bytes = partial(cached_blocks.synced_bytes, db)
    for copy in block_origins.not_uploaded(db):
        data = await content_before(
            copy, db, beginning, keyring, store, durable_bytes=durable_bytes
        )
        pieces = logged.get(copy.block, ())
        end = await in_thread(_restore_file, files, copy, data, pieces)
        db.begin_local()
        synced_bytes = end if copy.holds_bytes is None else min(end, copy.holds_bytes)
        cached_blocks.note_synced(db, [(copy.block, synced_bytes)])
    db.begin_local()
    block_origins.forget(db, block_origins.blocks(db))
    db.commit_durable()
    await in_thread(db.sync_wal)


def _restore_file(files: BlockFiles, copy: Copy, data: bytes, pieces: Sequence[LoggedPiece]) -> int:
    """Write the durable content of a copied block, then its logged pieces, and sync its file.

    Return the number of bytes that are durable now. Runs in a thread.
    """
    if copy.origin == copy.block:
        files.cut_after(copy.block, min(copy.plain_bytes, len(data)))
        if data:  # without durable content, the block may have no file
            files.extend(copy.block, len(data))
    elif copy.origin == block_origins.HOLE:
        files.create(copy.block, 0, b"")
        files.extend(copy.block, len(data))
    else:
        files.create(copy.block, 0, data)
    end = max(len(data), intent_replay.put_all(files, pieces))
    files.sync([copy.block])
    return end


def through(copy: Copy, others: Mapping[BlockId, Copy]) -> Copy:
    """Follow a chain of copied blocks to its first origin, for a caller that restores no files.

    Args:
        others: all copied blocks that are dirty or sealed, by block number, except blocks with
            content in the intent log.
    """
    origin = others.get(copy.origin)
    while copy.hash is None and origin is not None and origin.block < copy.block:
        copy = origin._replace(keep_bytes=min(_stop(copy), _stop(origin)), holds_bytes=None)
        origin = others.get(copy.origin)
    return copy


def _stop(copy: Copy) -> int:
    """Return how many of the origin's first bytes the copied block may contain."""
    return copy.keep_bytes if copy.holds_bytes is None else min(copy.keep_bytes, copy.holds_bytes)


async def content_before(
    copy: Copy,
    db: Database,
    beginning: Beginning,
    keyring: Keyring,
    store: ObjectStore,
    *,
    durable_bytes: Callable[[BlockId], int],
) -> bytes:
    """Return the leading bytes of a block's origin that may be in the block.

    No file or row is changed. If the origin is itself a copied block, the bytes come from its file.

    Args:
        copy: the block and its origin.
        db: the database.
        beginning: reads the beginning of a block's file.
        keyring: the keys of the filesystem.
        store: the bucket.
        durable_bytes: returns the number of durable bytes at the beginning of a block's file.

    Raises:
        StoreError: the origin exists only in the store, which is unavailable.
        LostBlockError: the file of a dirty or sealed origin is unreadable.
    """
    if copy.origin == block_origins.HOLE:
        data = bytes(copy.keep_bytes)
    elif copy.hash is None:
        length = min(copy.keep_bytes, durable_bytes(copy.origin))
        data = await in_thread(beginning, copy.origin, length)
    else:
        found = await in_thread(_intact_content, copy, beginning, keyring)
        data = await _fetched(copy, db, keyring, store) if found is None else found
    if len(data) == copy.plain_bytes:
        data = data.ljust(copy.keep_bytes, b"\0")
    return data[: _stop(copy)]


def _beginning(files: BlockFiles, block: BlockId, length: int) -> bytes:
    size = files.size(block)
    return b"" if size is None else files.read(block, 0, min(length, size))


def _intact_content(copy: Copy, beginning: Beginning, keyring: Keyring) -> bytes | None:
    """Return an uploaded origin's content from the cache, or None if the hash does not match."""
    try:
        data = beginning(copy.origin, copy.plain_bytes)
    except LostBlockError:
        return None
    return data if keyring.block_hash(data) == copy.hash else None


async def _fetched(copy: Copy, db: Database, keyring: Keyring, store: ObjectStore) -> bytes:
    """Return an uploaded origin's content from its pack, or b"" if it is missing or corrupt."""
    offset, length = copy.pack_offset, copy.stored_bytes
    assert copy.pack is not None, "an uploaded block has a pack"
    assert copy.hash is not None, "an uploaded block has a hash"
    assert offset is not None, "an uploaded block has an offset"
    assert length is not None, "an uploaded block has a stored length"
    try:
        key = packs.object_key(db, copy.pack)
        stored = await store.get_range(key, offset, offset + length)
        return await in_thread(
            pack_codec.open_block, keyring, key, stored, offset, copy.plain_bytes, copy.hash
        )
    except (ObjectMissingError, CorruptionError) as exc:
        _log.error(
            "the pack with the copied content of block %d is lost, so the block cannot be restored:"
            " %s; unmount, and run s3fs-meta fsck -y",
            copy.block,
            exc,
        )
        return b""
