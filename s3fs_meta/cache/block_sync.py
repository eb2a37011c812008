"""Syncing the files of cached blocks, and recording how much of each file is durable.

Owns: the order of a sync: files first, then the rows with the synced lengths. Does not know: when a
sync is due, the write-ahead log.
Keeps: a block counts as synced only after a sync that began after its last write has succeeded.
Tasks: any task on the event loop; a lock keeps syncs apart, and a thread runs the blocking calls.
Design: docs/design/durability.md, "From write to fsync".
"""

from collections.abc import Callable, Sequence
from functools import partial

import trio

from s3fs_meta.cache.block_files import BlockFiles
from s3fs_meta.cache.index import CacheIndex
from s3fs_meta.cache.quick_thread import QuickThread
from s3fs_meta.cache.recovery import KnownCopies
from s3fs_meta.cache.slices import slices
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import cached_blocks
from s3fs_meta.model import BlockId


class BlockSync:
    """Makes the written files of cached blocks durable."""

    def __init__(
        self, db: Database, index: CacheIndex, files: BlockFiles, copies: KnownCopies
    ) -> None:
        self._db = db
        self._index = index
        self._files = files
        self._copies = copies
        self._lock = trio.Lock()
        self._thread = QuickThread()

    async def sync_files(self, *, meanwhile: Callable[[], None] | None = None) -> None:
        """Make the files of all unsynced blocks durable: content, names, directories.

        Args:
            meanwhile: called on the event loop while a thread syncs files; not called otherwise.

        Raises:
            OSError: the sync failed; the blocks stay marked as unsynced, as after a cancellation.

        Schedule point: always.  Locks: waits for a running sync, which may include blocks written
        before this call.  Transaction: outside a group.
        """
        async with self._lock:
            if not (unsynced := self._index.take_unsynced()):
                return
            lengths = self._index.lengths_to_note(unsynced)
            named = {block for block in unsynced if self._index.was_synced(block)}
            try:
                sync = partial(self._files.sync, unsynced, named)
                await self._thread.run(sync, meanwhile=meanwhile)
                await self._note_synced(lengths)
            except BaseException:
                for block in unsynced:
                    self._index.note_write(block)
                raise

    async def _note_synced(self, lengths: Sequence[tuple[BlockId, int]]) -> None:
        """Record in the rows of cached blocks how many bytes of each file are durable."""
        for piece in slices(lengths):
            self._db.begin_local()
            cached_blocks.note_synced(self._db, piece)
            self._copies.forget(block for block, _length in piece)
            for block, length in piece:
                self._index.note_synced(block, length)
            await trio.lowlevel.checkpoint()
