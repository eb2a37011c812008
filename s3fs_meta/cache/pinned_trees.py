"""The pinned trees of the cache: their roots, and the bound on pinned bytes.

Owns: the bound on pinned bytes; pins of blocks that this host wrote into a pinned tree; the list of
such blocks that deduplication replaced with equal but uncached blocks.
Does not know: paths, the list of pins, which other blocks the trees contain (``fs.trees.pins``).
Keeps: pins leave at least 1/PIN_RESERVE_PART of the cache to other content, so that writers and
readers find room.
Writers spend no time on pins: eviction pins a new block when it examines the block.
Tasks: the event loop. No method is a schedule point.
"""

from collections.abc import Iterable
from typing import Final

from s3fs_meta.cache.index import CacheIndex
from s3fs_meta.limits import (
    CACHED_BLOCKS_MAX,
    PIN_DEPTH_MAX,
    PIN_RESERVE_BYTES_MIN,
    PIN_RESERVE_PART,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, cached_blocks, inodes
from s3fs_meta.model import ROOT_INO, BlockId, Ino

PINNED_BLOCKS_MAX: Final = CACHED_BLOCKS_MAX - CACHED_BLOCKS_MAX // PIN_RESERVE_PART


def pinned_bytes_max(cache_bytes: int) -> int:
    """Return the maximum total size of pinned blocks in a cache of *cache_bytes*."""
    return cache_bytes - max(cache_bytes // PIN_RESERVE_PART, PIN_RESERVE_BYTES_MIN)


class PinnedTrees:
    """The pinned trees of one cache."""

    def __init__(self, db: Database, index: CacheIndex, cache_bytes: int) -> None:
        self._db = db
        self._index = index
        self._roots: frozenset[Ino] = frozenset()
        self._replaced: list[tuple[BlockId, BlockId]] = []
        self.resize(cache_bytes)

    def resize(self, cache_bytes: int) -> None:
        """Adapt the bound on pinned bytes to a new cache size."""
        self.bytes_max = pinned_bytes_max(cache_bytes)

    def set_roots(self, roots: Iterable[Ino]) -> None:
        """Set the root inodes of the pinned trees; the trees' blocks are pinned separately."""
        self._roots = frozenset(roots)

    def pin(self, block: BlockId, size_bytes: int) -> bool:
        """Pin a block, unless the bound is reached; return whether it is pinned."""
        index = self._index
        if not index.is_pinned(block):
            if index.pinned_bytes + size_bytes > self.bytes_max:
                return False
            if index.pinned_count >= PINNED_BLOCKS_MAX:
                return False
            index.pin(block, size_bytes)
        return True

    def adopt(self, block: BlockId) -> bool:
        """Pin a cached block if this host wrote it into a pinned tree; return whether it is pinned.

        A block is not pinned if its part of the file was overwritten later.
        """
        if not self._roots:
            return False
        written, held = cached_blocks.get(self._db, block), self._index.get(block)
        if written is None or held is None or not self._is_below_a_root(written.ino):
            return False
        if block_map.find(self._db, written.ino, written.block_index) != block:
            return False
        return self.pin(block, held.size_bytes)

    def note_duplicate(self, block: BlockId, ino: Ino, of: BlockId) -> None:
        """Record that deduplication replaced a cached block of a file with an equal block."""
        if self._roots and of not in self._index and self._is_below_a_root(ino):
            self._replaced.append((block, of))

    def take_replaced(self) -> list[tuple[BlockId, BlockId]]:
        """Return the replaced blocks of pinned trees, each with its new block, and forget them."""
        replaced, self._replaced = self._replaced, []
        return replaced

    def _is_below_a_root(self, ino: Ino) -> bool:
        for _ in range(PIN_DEPTH_MAX):
            if ino in self._roots:
                return True
            found = inodes.find(self._db, ino) if ino else None
            if found is None or ino == ROOT_INO:
                return False
            ino = found.parent
        return False
