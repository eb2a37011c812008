"""Sealing: selecting the dirty blocks that are frozen for upload.

Owns: the age at which a block is sealed, the wait until blocks fill a pack, the choice of sealed
blocks for the next batch. Does not know: packs, the store, the state of a block
(``cache.block_cache``).
Keeps: a block is in at most one batch; a block whose only copy is lost is in no batch.
Tasks: the uploader's tasks; a cut calls ``seal_most`` and ``seal_all``.
Design: docs/design/durability.md, "From dirty to uploaded".
"""

from collections.abc import Callable, Iterable, Sequence

import trio

from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.cache.slices import slices
from s3fs_meta.errors import LostBlockError
from s3fs_meta.limits import LOOP_SLICE_ROWS
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import blocks, cached_blocks
from s3fs_meta.model import BlockId, BlockState
from s3fs_meta.sync.upload.bounds import UploadBounds
from s3fs_meta.sync.upload.packer import Sealed


class Sealer:
    """Seals the blocks of one mount, and takes batches of them for uploads."""

    def __init__(
        self,
        db: Database,
        cache: BlockCache,
        bounds: UploadBounds,
        lost: dict[BlockId, LostBlockError],
        remove: Callable[[BlockId], None],
    ) -> None:
        """Create a sealer; no block is in a batch yet.

        Args:
            bounds: the age at which blocks are sealed, the size of a batch.
            lost: blocks whose only copy is lost; ``seal_all`` removes those that no file uses.
            remove: removes a block that no file uses.
        """
        self._db = db
        self._cache = cache
        self._bounds = bounds
        self._lost = lost
        self._remove = remove
        self._in_flight: set[BlockId] = set()

    # --- seal batches --------------------------------------------------------------------------

    def ripe_after_s(self) -> float:
        """Return the age at which dirty blocks are sealed: 0 while writers wait for cache space."""
        return 0.0 if self._cache.writers.count else self._bounds.seal_age_s

    async def next_batch(self, age_s: float) -> list[Sealed]:
        """Take a batch of blocks to upload; the result may be empty.

        These are sealed blocks that are in no batch. If there are none, dirty blocks of at least
        the given age are sealed first, in small steps. The result is empty if no block is old
        enough, or if another task takes all these blocks between two steps.
        """
        chosen = self._waiting()
        if not chosen:
            ripe = self._ripe(age_s)
            if not ripe:
                return []
            await self._seal(ripe)
            chosen = self._waiting()
        batch = [Sealed(*row) for row in cached_blocks.sealed_rows(self._db, chosen)]
        self._in_flight.update(chosen)
        return batch

    def release(self, batch: Iterable[Sealed]) -> None:
        """Allow other batches to take the blocks of a batch. Never yields to other tasks."""
        self._in_flight.difference_update(row.block for row in batch)

    async def _seal(self, ripe: Sequence[BlockId]) -> None:
        """Seal the blocks that are still dirty, in small steps between which other tasks run."""
        for piece in slices(ripe):
            self._db.begin_local()
            self._cache.seal(block for block in piece if self._cache.index.is_dirty(block))
            await trio.lowlevel.checkpoint()

    def _ripe(self, age_s: float) -> list[BlockId]:
        """Return the dirty blocks of the next batch, or [] if they wait until they fill a pack."""
        ripe = self._cache.index.dirty_before(trio.current_time() - age_s, self._bounds.batch_bytes)
        return [] if age_s and ripe and self._waits_for_more(ripe) else ripe

    def _waits_for_more(self, ripe: Sequence[BlockId]) -> bool:
        """Return whether blocks that are old enough can wait until they fill a pack."""
        index, bounds = self._cache.index, self._bounds
        if len(ripe) == bounds.batch_blocks or index.dirty_before(
            trio.current_time() - bounds.seal_linger_s, 1
        ):
            return False
        held = (index.get(block) for block in ripe)
        return sum(one.size_bytes for one in held if one is not None) < bounds.pack_bytes

    def _waiting(self) -> list[BlockId]:
        """Return sealed blocks that are in no batch, at most as many as fit into a batch."""
        chosen, bounds = list[BlockId](), self._bounds
        total = 0
        for block in self._cache.index.sealed:
            if block in self._in_flight or block in self._lost:
                continue
            held = self._cache.index.get(block)
            assert held is not None, "the index must contain every listed block"
            total += held.size_bytes
            if chosen and (total > bounds.batch_bytes or len(chosen) == bounds.batch_blocks):
                break
            chosen.append(block)
        return chosen

    # --- seal the blocks of a cut --------------------------------------------------------------

    async def seal_most(self) -> None:
        """Seal dirty blocks in small steps before a cut, which seals the rest without interruption.

        Sealed blocks that no file uses are removed, because no later cut contains them.
        """
        index, batch_bytes = self._cache.index, self._bounds.batch_bytes
        for piece in slices([one for one in index.unnamed if one not in self._in_flight]):
            self._db.begin_local()
            for block in piece:
                if block in index.unnamed and block not in self._in_flight:
                    self._remove(block)
            await trio.lowlevel.checkpoint()
        while index.count_in[BlockState.DIRTY] > LOOP_SLICE_ROWS:
            oldest = index.dirty_before(trio.current_time(), batch_bytes, LOOP_SLICE_ROWS)
            self._db.begin_local()
            self._cache.seal(oldest)
            await trio.lowlevel.checkpoint()

    def seal_all(self) -> set[BlockId]:
        """Seal every dirty block; return all sealed blocks. Requires an open transaction."""
        self._end_lost()
        self._cache.seal(cached_blocks.in_state(self._db, BlockState.DIRTY))
        return set(self._cache.index.sealed)

    def _end_lost(self) -> None:
        """Remove lost blocks that no file uses. Requires an open transaction."""
        for block in list(self._lost):
            row = blocks.find(self._db, block)
            if row is not None and row.refs > 0:
                continue
            if row is not None:
                blocks.delete(self._db, block)
                self._cache.doom(block)
            del self._lost[block]
