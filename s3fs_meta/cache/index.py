"""An in-memory index of cached blocks: bytes per state, LRU order, unsynced blocks.

Owns: totals and orders derived from ``cached_blocks``, loaded at mount, updated by ``block_cache``.
Does not know: files, rows, the store. The row of a block is the authority on its state.
Keeps: a clean block is only a key and a size in one of four dictionaries, without an object of its
own. A cache may contain CACHED_BLOCKS_MAX clean blocks, and Python's garbage collector examines
every object while it holds the interpreter lock.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from s3fs_meta.limits import (
    CACHED_BLOCKS_MAX,
    DIRTY_BLOCKS_MAX,
    NEIGHBOUR_CACHE_PART,
    SEAL_BATCH_BLOCKS_MAX,
)
from s3fs_meta.model import BlockId, BlockState

# The states of blocks whose content is only on this host.
NOT_UPLOADED: Final = frozenset({BlockState.DIRTY, BlockState.SEALED})


class Held(NamedTuple):
    """The state and the size of one cached block."""

    state: BlockState
    size_bytes: int


class Unsynced(NamedTuple):
    """The blocks with unsynced files, their new lengths, and whose file names are durable."""

    blocks: list[BlockId]
    lengths: list[tuple[BlockId, int]]  # block lengths that differ from the synced lengths
    named: set[BlockId]  # blocks whose file has a durable name


class CacheIndex:
    """The cached blocks by state, and totals of their bytes and numbers."""

    def __init__(self) -> None:
        # Sizes of all pinned blocks, cached or not. Only ``Evictor.drop`` can evict a pinned block.
        self._pinned: dict[BlockId, int] = {}
        self.pinned_bytes = 0
        # Blocks that were sealed again, for upload to a new location, after the last sync began.
        # The last sync may have missed the rows with the new locations of these blocks.
        self.sealed_again: set[BlockId] = set()
        self.clear()

    def clear(self) -> None:
        """Remove all blocks from the index; keep the pins."""
        self._unclean: dict[BlockId, Held] = {}  # all blocks that are not clean
        self.total_bytes = 0  # total size of the cached blocks in bytes
        self.total_count = 0
        self.bytes_in: dict[BlockState, int] = dict.fromkeys(BlockState, 0)
        self.count_in: dict[BlockState, int] = dict.fromkeys(BlockState, 0)
        # The next four dictionaries contain the sizes of clean blocks.
        # ``_clean`` and ``_unrequested`` (blocks that no reader has used) are in eviction order.
        self._clean: OrderedDict[BlockId, int] = OrderedDict()
        self._unrequested: OrderedDict[BlockId, int] = OrderedDict()
        self.unasked_bytes = 0
        # blocks that ``spare`` excludes from eviction
        self._spared: dict[BlockId, int] = {}
        self.spared_bytes = 0
        self._kept: dict[BlockId, int] = {}  # pinned clean blocks
        self.kept_bytes = 0
        # times of the last writes to dirty blocks, oldest first
        self._dirty: OrderedDict[BlockId, float] = OrderedDict()
        self.sealed: dict[BlockId, None] = {}  # sealed blocks, in the order of sealing
        self.unnamed: set[BlockId] = set()  # sealed blocks that are in no block map
        self._unsynced: set[BlockId] = set()
        # lengths that blocks had at the last sync, until the blocks are clean
        self._synced: dict[BlockId, int] = {}

    @property
    def pending_bytes(self) -> int:
        """Return the bytes of dirty and sealed blocks."""
        return self.bytes_in[BlockState.DIRTY] + self.bytes_in[BlockState.SEALED]

    @property
    def pending_count(self) -> int:
        """Return the number of dirty and sealed blocks."""
        return self.count_in[BlockState.DIRTY] + self.count_in[BlockState.SEALED]

    @property
    def evictable_bytes(self) -> int:
        """Return the total size of clean blocks that are neither pinned nor spared (``spare``)."""
        return self.bytes_in[BlockState.CLEAN] - self.spared_bytes - self.kept_bytes

    def fits(self, size_bytes: int, bytes_max: int) -> bool:
        """Return whether *size_bytes* of new blocks exceed neither *bytes_max* nor DIRTY_BLOCKS_MAX."""
        return self.total_bytes + size_bytes <= bytes_max and self.pending_count < DIRTY_BLOCKS_MAX

    def get(self, block: BlockId) -> Held | None:
        """Return a block's state and size, or None if it is not cached."""
        held = self._unclean.get(block)
        if held is not None:
            return held
        size_bytes = self._clean.get(block)
        for others in (self._unrequested, self._spared, self._kept):
            if size_bytes is not None:
                break
            size_bytes = others.get(block)
        return None if size_bytes is None else Held(BlockState.CLEAN, size_bytes)

    def __contains__(self, block: BlockId) -> bool:
        """Return whether a block is cached."""
        return (
            block in self._clean
            or block in self._unclean
            or block in self._unrequested
            or block in self._spared
            or block in self._kept
        )

    def blocks(self) -> list[BlockId]:
        """Return all cached blocks."""
        return [*self._unclean, *self._clean, *self._unrequested, *self._spared, *self._kept]

    def put(self, block: BlockId, state: BlockState, size_bytes: int, now_s: float = 0.0) -> None:
        """Set the state and size of a block; add the block if it is not in the index."""
        self._take_out(block)
        if state is BlockState.CLEAN:
            self._synced.pop(block, None)
            self.add_clean(block, size_bytes)
            return
        self._count(state, size_bytes)
        self._unclean[block] = Held(state, size_bytes)
        if state is BlockState.DIRTY:
            self._dirty[block] = now_s
        elif state is BlockState.SEALED:
            self.sealed[block] = None

    def add_clean(self, block: BlockId, size_bytes: int) -> None:
        """Add a clean block that is not in the index."""
        self._count(BlockState.CLEAN, size_bytes)
        if block in self._pinned:
            self._kept[block] = size_bytes
            self.kept_bytes += size_bytes
        else:
            self._clean[block] = size_bytes

    def made(
        self, block: BlockId, size_bytes: int, now_s: float, *, is_named: bool = False
    ) -> None:
        """Add a new dirty block with an unsynced file.

        *is_named* is True if the name of the file is durable.
        """
        self._count(BlockState.DIRTY, size_bytes)
        self._unclean[block] = Held(BlockState.DIRTY, size_bytes)
        self._dirty[block] = now_s
        self._unsynced.add(block)
        if is_named:
            self._synced[block] = 0

    def wrote(self, block: BlockId, size_bytes: int, now_s: float) -> None:
        """Record a write into a dirty block: its new size and time; mark the block as unsynced."""
        grown = size_bytes - self._unclean[block].size_bytes
        if grown:
            self._unclean[block] = Held(BlockState.DIRTY, size_bytes)
            self.total_bytes += grown
            self.bytes_in[BlockState.DIRTY] += grown
        self._dirty[block] = now_s
        self._dirty.move_to_end(block)
        self._unsynced.add(block)

    def _count(self, state: BlockState, size_bytes: int) -> None:
        self.total_bytes += size_bytes
        self.total_count += 1
        self.bytes_in[state] += size_bytes
        self.count_in[state] += 1

    def move(self, block: BlockId, state: BlockState) -> None:
        """Change the state of a cached block; ignore a block that is not cached."""
        held = self._unclean.get(block) or self.get(block)
        if held is not None:
            self.put(block, state, held.size_bytes)

    def seal_again(self, block: BlockId, size_bytes: int) -> None:
        """Seal a block that is already uploaded, so that it is uploaded again to a new location."""
        self.sealed_again.add(block)
        self.put(block, BlockState.SEALED, size_bytes)

    def can_settle(self, block: BlockId) -> bool:
        """Return whether a block is UPLOADED and the last sync made its location durable."""
        held = self._unclean.get(block)
        is_uploaded = held is not None and held.state is BlockState.UPLOADED
        return is_uploaded and block not in self.sealed_again

    def drop(self, block: BlockId) -> None:
        """Remove a block from the index of cached blocks."""
        self._take_out(block)
        self._synced.pop(block, None)

    def _take_out(self, block: BlockId) -> None:
        held = self._unclean.pop(block, None)
        if held is None:
            self._take_out_clean(block)
            return
        self.total_bytes -= held.size_bytes
        self.total_count -= 1
        self.bytes_in[held.state] -= held.size_bytes
        self.count_in[held.state] -= 1
        self._dirty.pop(block, None)
        self.sealed.pop(block, None)
        self.unnamed.discard(block)

    def _take_out_clean(self, block: BlockId) -> None:
        if block in self._clean:
            size_bytes = self._clean.pop(block)
        elif block in self._unrequested:
            size_bytes = self._ask(block)
        elif block in self._spared:
            size_bytes = self._spared.pop(block)
            self.spared_bytes -= size_bytes
        elif block in self._kept:
            size_bytes = self._kept.pop(block)
            self.kept_bytes -= size_bytes
        else:
            return
        self.total_bytes -= size_bytes
        self.total_count -= 1
        self.bytes_in[BlockState.CLEAN] -= size_bytes
        self.count_in[BlockState.CLEAN] -= 1

    def put_unrequested(self, block: BlockId, size_bytes: int) -> None:
        """Add a clean block that was fetched as a neighbour, and that no reader has used."""
        self.put(block, BlockState.CLEAN, size_bytes)
        if block in self._pinned:
            return
        self._unrequested[block] = self._clean.pop(block)
        self.unasked_bytes += size_bytes

    def _ask(self, block: BlockId) -> int:
        """Remove a block from ``_unrequested``, because a reader uses it; return its size."""
        size_bytes = self._unrequested.pop(block)
        self.unasked_bytes -= size_bytes
        return size_bytes

    def used(self, block: BlockId) -> None:
        """Move a clean block to the end of the eviction order."""
        if block in self._clean:
            self._clean.move_to_end(block)
        elif block in self._unrequested:
            self._clean[block] = self._ask(block)

    def oldest_clean(self, unrequested_bytes_max: int = 0) -> BlockId | None:
        """Return the clean block to evict next, the least recently used; None if there is none.

        Blocks that no reader has used yet are evicted first if they have more than
        *unrequested_bytes_max* bytes, if their number exceeds 1/NEIGHBOUR_CACHE_PART of
        CACHED_BLOCKS_MAX, or if there are no others.
        """
        if (
            self.unasked_bytes > unrequested_bytes_max
            or len(self._unrequested) > CACHED_BLOCKS_MAX // NEIGHBOUR_CACHE_PART
            or not self._clean
        ):
            return next(iter(self._unrequested), None)
        return next(iter(self._clean))

    def spare(self, block: BlockId) -> None:
        """Exclude a clean block from eviction until ``unspare`` or ``reconsider``."""
        size_bytes = self._ask(block) if block in self._unrequested else self._clean.pop(block)
        self._spared[block] = size_bytes
        self.spared_bytes += size_bytes

    def unspare(self, block: BlockId) -> bool:
        """Allow the eviction of a block that ``spare`` excluded; it will be evicted last.

        Return False if the block was not excluded.
        """
        if block not in self._spared:
            return False
        size_bytes = self._spared.pop(block)
        self.spared_bytes -= size_bytes
        self._clean[block] = size_bytes
        return True

    def reconsider(self) -> None:
        """Move all blocks that ``spare`` excluded to the beginning of the eviction order."""
        for block, size_bytes in self._spared.items():
            self._clean[block] = size_bytes
            self._clean.move_to_end(block, last=False)
        self._spared.clear()
        self.spared_bytes = 0

    @property
    def pinned_count(self) -> int:
        """Return the number of pinned blocks, cached or not."""
        return len(self._pinned)

    def pinned(self) -> list[BlockId]:
        """Return all pinned blocks, cached or not."""
        return list(self._pinned)

    def pin(self, block: BlockId, size_bytes: int) -> None:
        """Exclude a block from eviction, even if the block is not yet cached or clean."""
        self.pinned_bytes += size_bytes - self._pinned.get(block, 0)
        self._pinned[block] = size_bytes
        held = self.get(block)
        if held is not None and held.state is BlockState.CLEAN and block not in self._kept:
            self.put(block, BlockState.CLEAN, held.size_bytes)

    def unpin(self, block: BlockId) -> None:
        """Undo ``pin``; move a cached clean block to the end of the eviction order."""
        self.pinned_bytes -= self._pinned.pop(block, 0)
        if block in self._kept:
            self.put(block, BlockState.CLEAN, self._kept[block])

    def is_pinned(self, block: BlockId) -> bool:
        """Return whether a block is pinned; the block need not be cached."""
        return block in self._pinned

    def is_dirty(self, block: BlockId) -> bool:
        """Return whether a block is dirty, so that it may be written in place."""
        return block in self._dirty

    def dirty_before(
        self, before_s: float, bytes_max: int, count_max: int = SEAL_BATCH_BLOCKS_MAX
    ) -> list[BlockId]:
        """Return dirty blocks whose last write was before a time, oldest first.

        The result has at most *count_max* blocks and *bytes_max* bytes, but at least one block if
        any block is old enough.
        """
        chosen: list[BlockId] = []
        total = 0
        for block, written_s in self._dirty.items():
            size = self._unclean[block].size_bytes
            full = chosen and total + size > bytes_max
            if written_s > before_s or full or len(chosen) == count_max:
                break
            chosen.append(block)
            total += size
        return chosen

    def note_write(self, block: BlockId) -> None:
        """Record that the file of a block has unsynced bytes."""
        self._unsynced.add(block)

    def take_unsynced(self) -> Unsynced:
        """Return the blocks with unsynced bytes, and forget that they are unsynced."""
        blocks, self._unsynced = list(self._unsynced), set()
        lengths: list[tuple[BlockId, int]] = []
        for block in blocks:
            held = self._unclean.get(block)
            if held is not None and self._synced.get(block) != held.size_bytes:
                lengths.append((block, held.size_bytes))
        return Unsynced(blocks, lengths, {block for block in blocks if block in self._synced})

    def note_synced(self, block: BlockId, length: int) -> None:
        """Record that a block's row has a new synced length."""
        if block in self._unclean:
            self._synced[block] = length
