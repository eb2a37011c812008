"""Eviction of clean blocks from the cache, the least recently used first.

Owns: which clean blocks are evicted for more room, and in which slices.
Does not know: why room is needed, dirty blocks, waiting writers (``block_cache``).
Keeps: only clean blocks are evicted, and none whose location in the bucket is marked as damaged: its
file may be the only intact copy. Such blocks leave the order of eviction until ``reconsider``.
A crash may restore the row of an evicted block, whose next reader fetches it again (I44).
Tasks: any handler; ``evict`` removes files in a thread, the others on the event loop.
"""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from s3fs_meta.cache.block_files import BlockFiles
from s3fs_meta.cache.index import CacheIndex
from s3fs_meta.limits import (
    CACHED_BLOCKS_MAX,
    EVICTED_AT_ONCE_MAX,
    LOOP_SLICE_ROWS,
    NEIGHBOUR_CACHE_PART,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import blocks, damage_marks
from s3fs_meta.model import BlockId


class Evictor:
    """Removes clean blocks from one cache."""

    def __init__(
        self,
        db: Database,
        files: BlockFiles,
        index: CacheIndex,
        cache_bytes: int,
        let_go: Callable[[BlockId], None],
    ) -> None:
        """Prepare eviction.

        Args:
            db: has the rows of the cached blocks.
            files: their files.
            index: of the cache.
            cache_bytes: the size that the cache may have.
            let_go: removes the row of a block, inside a group.
        """
        self._db = db
        self._files = files
        self._index = index
        self._bytes_max = cache_bytes
        self.unasked_bytes_max: Final = cache_bytes // NEIGHBOUR_CACHE_PART
        self._let_go = let_go

    def make_room(self, size_bytes: int) -> None:
        """Evict up to EVICTED_AT_ONCE_MAX clean blocks if *size_bytes* do not fit; on the loop."""
        for block in self._take_victims(size_bytes, EVICTED_AT_ONCE_MAX):
            self._files.remove(block)

    async def evict(self, size_bytes: int) -> None:
        """Evict clean blocks until *size_bytes* more fit, or none is left.

        A block may be fetched again before its old file is removed. If that removes the new file,
        its reader notices, as with any missing file. Schedule point: only if a block is evicted.
        """
        while self._lacks(size_bytes) and self._oldest() is not None:
            victims = self._take_victims(size_bytes, LOOP_SLICE_ROWS)
            # The rows are deleted already, so the files must be deleted too.
            with trio.CancelScope(shield=True):
                await self.remove_files(victims)

    async def remove_files(self, blocks_gone: Sequence[BlockId]) -> None:
        """Remove files of blocks that have no row in the cache."""
        self._files.let_go(blocks_gone)
        await trio.to_thread.run_sync(self._files.remove_all, blocks_gone)
        self._files.close_removed()

    def _take_victims(self, size_bytes: int, count_max: int) -> list[BlockId]:
        """Delete rows of clean blocks until *size_bytes* more fit; the caller removes the files.

        At most *count_max* blocks are looked at.
        """
        victims: list[BlockId] = []
        for _ in range(count_max):
            block = self._oldest() if self._lacks(size_bytes) else None
            if block is None:
                break
            if not self._spares(block):
                self._db.begin_local()
                self._let_go(block)
                victims.append(block)
        return victims

    def _oldest(self) -> BlockId | None:
        return self._index.oldest_clean(self.unasked_bytes_max)

    def _spares(self, block: BlockId) -> bool:
        """Take a block out of the order of eviction if it may be the last copy; return whether."""
        is_spared = self.is_last_copy(block)
        if is_spared:
            self._index.spare(block)
        return is_spared

    def is_last_copy(self, block: BlockId) -> bool:
        """Return whether the location of an uploaded block is marked as damaged."""
        if not damage_marks.exist(self._db):
            return False
        row = blocks.find(self._db, block)
        return row is not None and blocks.is_damaged(self._db, row)

    def reconsider(self) -> None:
        """Let blocks be evicted whose location was damaged; those that still are will be spared."""
        self._index.reconsider()

    def _lacks(self, size_bytes: int) -> bool:
        """Return whether *size_bytes* more do not fit."""
        return (
            self._index.total_bytes + size_bytes > self._bytes_max
            or self._index.total_count > CACHED_BLOCKS_MAX
        )

    def evict_bytes(self, wanted_bytes: int) -> None:
        """Evict clean blocks at once, because the disk is at its reserve."""
        freed = 0
        while freed < wanted_bytes:
            block = self._oldest()
            if block is None:
                return
            if self._spares(block):
                continue
            held = self._index.get(block)
            assert held is not None, "the LRU names only held blocks"
            freed += held.size_bytes
            self._db.begin_local()
            self._let_go(block)
            self._files.remove(block)
