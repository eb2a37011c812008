"""Damage in the bucket: marking proven damage, and healing it with intact copies.

    mark: records that the store lost the content of a location; no new block shares the location.
    heal: records the location of identical content for a damaged block. Files still refer to the
          same block, so the next txg repairs every file that shares it, on every host.

The identical content comes from a new upload (``move_damaged``), a clean cached copy, or a block in
another pack.

Owns: the conditions for a mark, and the choice of the blocks to heal. Does not know: how damage is
proven (``cache.fetching.fetcher``), which marks are obsolete (fsck).
Keeps: only a writer sets marks, because they are rows of a replicated table.
Tasks: ``run`` is one background task; any handler that fetches a block may call ``note``.
"""

import logging
from collections.abc import Sequence

import trio

from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.cache.slices import slices
from s3fs_meta.limits import DAMAGE_SCAN_ROWS
from s3fs_meta.meta import placements
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.placements import Placed, placement_of
from s3fs_meta.meta.tables import block_map, blocks, cached_blocks, damage_marks, packs
from s3fs_meta.meta.tables.block_map import FilePart, Located
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import BlockId, BlockIndex, BlockRow, BlockState, Ino
from s3fs_meta.mount_state import MountStatus

_log = logging.getLogger(__name__)

_FIRST = FilePart(Ino(0), BlockIndex(0))


def move_damaged(db: Database, placed: Placed) -> BlockId | None:
    """Give damaged blocks the location of identical content; return the first healed block.

    Returns None if no block was healed. Requires an open transaction, which the next txg ships.
    """
    if not damage_marks.exist(db):
        return None
    found = [
        row.block
        for row in blocks.by_hash(db, placed.hash)
        if row.block != placed.block and row.refs > 0 and blocks.is_damaged(db, row)
    ]
    if not found:
        return None
    db.begin()
    placements.apply(db, [placed._replace(block=block) for block in found])
    packs.report(db, [placed.pack])
    _log.warning(
        "healed %d damaged blocks with identical content from another pack: %s",
        len(found),
        found,
    )
    return found[0]


class DamageMarker:
    """Marks the damage that one mount finds, and wakes the healer."""

    def __init__(self, db: Database, status: MountStatus) -> None:
        self._db = db
        self._status = status
        self._due = trio.Event()

    def note(self, located: Located, is_missing: bool) -> None:
        """Mark the pack of a missing or damaged block, unless this mount is read-only.

        If one record of a pack is damaged, the complete object may be truncated or replaced. So no
        new block shares a location in the pack until fsck has read the complete pack.
        """
        row = blocks.find(self._db, located.block)
        if row is None or row.pack is None or not self._status.writable:
            return
        if (row.pack, row.pack_offset) != (located.pack, located.pack_offset):
            return  # the block has moved to a new location
        what = "is missing" if is_missing else f"is damaged at offset {row.pack_offset}"
        self.mark(Mark(row.pack, None), what)

    def mark(self, mark: Mark, what: str) -> None:
        """Mark proven damage, and make the healer search for copies."""
        self._db.begin()
        if damage_marks.add(self._db, mark):
            _log.error(
                "the pack %s %s: writing the same content again stores it in another pack and heals"
                " the damaged files; s3fs-meta fsck -n --deep lists all damage, and"
                " s3fs-meta fsck -y repairs it after an unmount",
                packs.object_key(self._db, mark.pack),
                what,
            )
            self.wake()

    def wake(self) -> None:
        """Make the healer search for copies that heal marked blocks."""
        self._due.set()

    async def wait(self) -> None:
        """Wait until ``wake`` is called."""
        await self._due.wait()
        self._due = trio.Event()


class Healer:
    """Heals blocks whose damage is marked."""

    def __init__(
        self, db: Database, cache: BlockCache, status: MountStatus, marker: DamageMarker
    ) -> None:
        self._db = db
        self._cache = cache
        self._status = status
        self._marker = marker

    async def run(self) -> None:
        """Heal marked damage after each call of ``DamageMarker.wake``, until cancelled."""
        while True:
            await self._marker.wait()
            if self._status.writable:
                await self.heal()

    async def heal(self, *, scan_rows: int = DAMAGE_SCAN_ROWS) -> int:
        """Heal marked blocks with an intact duplicate, seal other cached ones; return their number.

        The uploader heals the sealed blocks: it uploads them again.

        Args:
            scan_rows: the number of blocks of files to read between two schedule points.
        """
        from_cache: list[BlockRow] = []
        count = 0
        for mark in damage_marks.marks(self._db):
            for piece in slices(self._blocks_at(mark)):
                for row in piece:
                    if self._take_equal(row):
                        count += 1
                    elif self._is_cached(row.block):
                        from_cache.append(row)
                await trio.lowlevel.checkpoint()
        self._cache.evictor.reconsider()
        return count + await self._upload_again(from_cache, scan_rows)

    def _blocks_at(self, mark: Mark) -> list[BlockRow]:
        found = blocks.readable_in_pack(self._db, mark.pack)
        offset = mark.pack_offset
        return [row for row in found if row.refs > 0 and offset in {None, row.pack_offset}]

    def _take_equal(self, row: BlockRow) -> bool:
        """Give a block the location of an intact, identical block; return False if none exists."""
        now = self._still_damaged(row)
        equal = None if now is None or now.hash is None else blocks.intact(self._db, now.hash)
        return equal is not None and move_damaged(self._db, placement_of(equal)) is not None

    def _still_damaged(self, row: BlockRow) -> BlockRow | None:
        now = blocks.find(self._db, row.block)
        return now if now is not None and blocks.is_damaged(self._db, now) else None

    def _is_cached(self, block: BlockId) -> bool:
        held = self._cache.index.get(block)
        return held is not None and held.state in {BlockState.CLEAN, BlockState.UPLOADED}

    async def _upload_again(self, rows: Sequence[BlockRow], scan_rows: int) -> int:
        """Seal cached copies for the uploader, which compares each copy with its hash first."""
        places = await self._places_of(rows, scan_rows)
        count = 0
        for piece in slices(rows):
            # Use begin(), not begin_local(), because the next txg must ship the new locations.
            self._db.begin()
            for row in piece:
                now, place = self._still_damaged(row), places.get(row.block)
                if now is not None and place is not None and self._is_cached(row.block):
                    self._cache.seal_for_move(now, place.ino, place.block_index)
                    count += 1
            await trio.lowlevel.checkpoint()
        if count:
            _log.warning(
                "uploading cached copies of %d blocks that are damaged in the bucket", count
            )
            self._cache.upload_signal.set()
        return count

    async def _places_of(self, rows: Sequence[BlockRow], scan_rows: int) -> dict[BlockId, FilePart]:
        """Return, for each block that a file uses, one such file and the block's index in it."""
        found: dict[BlockId, FilePart] = {}
        wanted = {row.block for row in rows}
        for block in list(wanted):
            held = cached_blocks.get(self._db, block)
            if held is not None and block_map.find(self._db, held.ino, held.block_index) == block:
                found[block] = FilePart(held.ino, held.block_index)
                wanted.discard(block)
        after: FilePart | None = _FIRST
        while wanted and after is not None:
            after, piece = block_map.blocks_after(self._db, after, scan_rows)
            found.update((block, place) for block, place in piece if block in wanted)
            wanted.difference_update(block for block, _place in piece)
            await trio.lowlevel.checkpoint()
        return found
