"""Eviction of clean blocks from the cache, least recently used first.

Owns: the choice of the clean blocks to evict, and the splitting of long evictions into slices.
Does not know: why room is needed, dirty blocks, waiting writers (``block_cache``).
Keeps: only clean blocks are evicted, and only ``drop`` can evict pinned blocks. A block whose
location is marked as damaged is kept until ``reconsider``, because its file may be the only intact
copy. The blocks that a running request needs are kept until its end (``keeping``). A crash may
restore the row of an evicted block; the next reader then fetches the block again (I44).
Tasks: any request handler. ``evict`` removes files in a thread; other methods use the event loop.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import trio

from s3fs_meta.background_task import in_thread_or_here
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.cache.index import CacheIndex
from s3fs_meta.cache.pinned_trees import PinnedTrees
from s3fs_meta.cache.slices import slices
from s3fs_meta.limits import (
    CACHED_BLOCKS_MAX,
    EVICTED_AT_ONCE_MAX,
    LOOP_SLICE_ROWS,
    NEIGHBOUR_CACHE_PART,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import blocks, damage_marks
from s3fs_meta.model import BlockId, BlockState

LAST_COPIES: Final = "last_copies"
NEEDED: Final = "needed"
PINNED: Final = "pinned"
# For each state except clean, the reason why ``drop`` keeps a block in this state.
_WHY_KEPT: Final[Mapping[BlockState, str]] = {
    BlockState.DIRTY: "not_uploaded",
    BlockState.SEALED: "not_uploaded",
    BlockState.UPLOADED: "not_synced",
    BlockState.DOOMED: "being_removed",
}


class Dropped(NamedTuple):
    """The result of ``Evictor.drop``: the evicted blocks and bytes, and kept bytes by reason."""

    blocks: int
    bytes: int
    kept: Mapping[str, int]  # total size of the blocks that were kept, by reason


class Evictor:
    """Evicts clean blocks from one cache."""

    def __init__(
        self,
        db: Database,
        files: BlockFiles,
        index: CacheIndex,
        pinned: PinnedTrees,
        cache_bytes: int,
        let_go: Callable[[BlockId], None],
        note_room: Callable[[], None],
    ) -> None:
        """Prepare eviction from one cache.

        Args:
            db: the database with the rows of the cached blocks.
            files: the files of the cached blocks.
            index: the index of the cache.
            pinned: the pinned trees.
            cache_bytes: the maximum size of the cache.
            let_go: removes the row of a cached block, inside a commit group.
            note_room: wakes writers that wait for room.
        """
        self._db = db
        self._files = files
        self._index = index
        self._pinned = pinned
        self._let_go = let_go
        self._note_room = note_room
        self._needed: list[set[BlockId]] = []  # for each running request, the blocks that it needs
        self.resize(cache_bytes)

    def resize(self, cache_bytes: int) -> None:
        """Change the maximum size of the cache; the caller evicts blocks beyond it."""
        self._bytes_max = cache_bytes
        self.unrequested_bytes_max = cache_bytes // NEIGHBOUR_CACHE_PART

    @contextlib.contextmanager
    def keeping(self) -> Iterator[set[BlockId]]:
        """Yield a set; blocks that the caller adds to it are not evicted during the ``with`` block.

        A request may need several blocks at the same time. Without this protection, downloading one
        of these blocks could evict another block of the same request.
        """
        needed: set[BlockId] = set()
        self._needed.append(needed)
        try:
            yield needed
        finally:
            self._needed = [one for one in self._needed if one is not needed]
            if [block for block in needed if self._index.unspare(block)]:
                self._note_room()

    def make_room(self, size_bytes: int) -> None:
        """Evict up to EVICTED_AT_ONCE_MAX clean blocks if *size_bytes* do not fit."""
        for block in self._take_victims(size_bytes, EVICTED_AT_ONCE_MAX):
            self._files.remove(block)

    async def evict(self, size_bytes: int, *, slice_rows: int = LOOP_SLICE_ROWS) -> None:
        """Evict clean blocks until *size_bytes* more fit, or no clean block is left.

        If an evicted block is fetched again before its file is removed, the new file may be
        removed; the reader then fetches the block once more. Yields to other tasks only if room is
        lacking and it examines a block.

        Args:
            size_bytes: the size of the blocks that the caller adds.
            slice_rows: the number of blocks to examine between two schedule points.
        """
        while self._lacks(size_bytes) and self._oldest() is not None:
            await self.remove_files(self._take_victims(size_bytes, slice_rows))

    async def drop(self, wanted: Sequence[BlockId], *, pinned: bool = False) -> Dropped:
        """Evict all clean blocks among *wanted*, in slices.

        Possible last copies, and blocks that a running request needs, are kept.

        Args:
            wanted: the blocks to evict; blocks that are not cached are ignored.
            pinned: True to evict pinned blocks, too.

        Yields to other tasks between slices.
        """
        kept: dict[str, int] = {}
        count = total_bytes = 0
        for piece in slices(wanted):
            victims: list[BlockId] = []
            for block in piece:
                held = self._index.get(block)
                if held is None:
                    continue
                why = self._why_kept(block, held.state, pinned=pinned)
                if why:
                    kept[why] = kept.get(why, 0) + held.size_bytes
                    continue
                self._db.begin_local()
                self._let_go(block)
                victims.append(block)
                total_bytes += held.size_bytes
            count += len(victims)
            await self.remove_files(victims)
            await trio.lowlevel.checkpoint()
        return Dropped(count, total_bytes, kept)

    def _why_kept(self, block: BlockId, state: BlockState, *, pinned: bool) -> str:
        if state is not BlockState.CLEAN:
            return _WHY_KEPT[state]
        if self.is_last_copy(block):
            return LAST_COPIES
        if self._is_needed(block):
            return NEEDED
        is_kept = not pinned and (self._index.is_pinned(block) or self._pinned.adopt(block))
        return PINNED if is_kept else ""

    async def remove_files(self, blocks_gone: Sequence[BlockId]) -> None:
        """Remove the cache files of blocks without a row in ``cached_blocks``.

        A cancellation does not interrupt the removal, because the rows are already deleted. If no
        thread can be started, the event loop removes the files.
        """
        self._files.let_go(blocks_gone)
        with trio.CancelScope(shield=True):
            await in_thread_or_here(self._files.remove_all, blocks_gone)
        self._files.close_removed()

    def _take_victims(self, size_bytes: int, count_max: int) -> list[BlockId]:
        """Delete rows of clean blocks until *size_bytes* fit; the caller removes the files.

        At most *count_max* blocks are considered.
        """
        examined = self._take(lambda: self._lacks(size_bytes))
        return [block for block in itertools.islice(examined, count_max) if block is not None]

    def _take(self, lacks: Callable[[], bool]) -> Iterator[BlockId | None]:
        """Delete rows of clean blocks while *lacks* returns True and a clean block is left.

        Yields each of these blocks, whose file the caller removes, and None for each spared block.
        """
        while lacks() and (block := self._oldest()) is not None:
            if self._spares(block):
                yield None
                continue
            self._db.begin_local()
            self._let_go(block)
            yield block

    def _oldest(self) -> BlockId | None:
        return self._index.oldest_clean(self.unrequested_bytes_max)

    def _spares(self, block: BlockId) -> bool:
        """Return whether a block must stay: it is pinned, needed by a request, or the last copy."""
        if self._pinned.adopt(block):
            return True
        is_spared = self._is_needed(block) or self.is_last_copy(block)
        if is_spared:
            self._index.spare(block)
        return is_spared

    def _is_needed(self, block: BlockId) -> bool:
        return any(block in one for one in self._needed)

    def is_last_copy(self, block: BlockId) -> bool:
        """Return whether the cached copy may be the last: the block's location is marked as damaged."""
        if not damage_marks.exist(self._db):
            return False
        row = blocks.find(self._db, block)
        return row is not None and blocks.is_damaged(self._db, row)

    def reconsider(self) -> None:
        """Let the next eviction examine spared blocks again: their damage may be healed."""
        self._index.reconsider()

    def _lacks(self, size_bytes: int) -> bool:
        """Return whether the cache lacks room for *size_bytes* more bytes."""
        return (
            self._index.total_bytes + size_bytes > self._bytes_max
            or self._index.total_count > CACHED_BLOCKS_MAX
        )

    def evict_bytes(self, wanted_bytes: int) -> None:
        """Evict at least *wanted_bytes* of clean blocks: the disk has only its reserve left.

        Fewer bytes are evicted if no other block can be evicted.
        """
        for block in self._take_bytes(wanted_bytes):
            self._files.remove(block)

    async def evict_some(self, wanted_bytes: int) -> bool:
        """Evict one slice of blocks towards *wanted_bytes*; return whether more can be evicted."""
        wanted = self._take_bytes(wanted_bytes)
        await self.remove_files(list(itertools.islice(wanted, LOOP_SLICE_ROWS)))
        return self._oldest() is not None

    def _take_bytes(self, wanted_bytes: int) -> Iterator[BlockId]:
        """Delete rows of at least *wanted_bytes* of clean blocks; the caller removes the files."""
        bytes_max = self._index.total_bytes - wanted_bytes
        examined = self._take(lambda: self._index.total_bytes > bytes_max)
        return (block for block in examined if block is not None)
