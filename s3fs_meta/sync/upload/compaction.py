"""Compaction: moving the live blocks of mostly dead packs into new packs.

Owns: choosing a pack, fetching its live blocks, passing these blocks to the uploader.
Does not know: how the new pack is made, when the old pack may be deleted (``reclaim``).
Keeps: the old location stays in the rows until the new location is confirmed, so that every block
is readable after a crash at any point. A cached block that differs from the pack is never moved,
because the uploader compares hashes.
"""

import logging
from collections.abc import Callable

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.cache.fetching.fetcher import has_superblock
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.cache.slices import slices
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.errors import (
    BadRowError,
    DamagedDatabaseError,
    FencedError,
    FormatError,
    NewerFormatError,
    ObjectMissingError,
    S3fsError,
)
from s3fs_meta.limits import (
    CLEANUP_S_MAX,
    COMPACT_CANDIDATES_MAX,
    COMPACT_FAILURES_MAX,
    COMPACT_LIVE_FRACTION,
    COMPACT_PACKS_MAX,
    INDEX_ENTRY_BYTES,
    PACK_BYTES_MAX,
    PACK_OVERHEAD_BYTES,
)
from s3fs_meta.meta.tables import blocks, packs
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.meta.tables.packs import PackRow
from s3fs_meta.model import BlockIndex, BlockRow, Ino
from s3fs_meta.objects.billing import Cause, part
from s3fs_meta.sync.upload.pack_index import block_in
from s3fs_meta.sync.volume import Volume

_log = logging.getLogger(__name__)


class Compactor:
    """Moves the live blocks of mostly dead packs, a few packs per call."""

    def __init__(
        self,
        volume: Volume,
        cache: BlockCache,
        files: BlockFiles,
        mark: Callable[[Mark, str], None],
    ) -> None:
        """Create the compactor; ``run`` moves blocks.

        Args:
            mark: ``DamageMarker.mark``, which marks proven damage.
        """
        self._db = volume.db
        self._cache = cache
        self._files = files
        self._store = volume.store
        self._keyring = volume.keyring
        self._mark = mark
        # The last pack that the previous call examined, if that call reached its limit.
        # The next call continues after it: packs that cannot be emptied must not block others.
        self._examined: PackRow | None = None
        self.last_error = ""

    async def run(self) -> None:
        """Compact a few packs with ``run_once``; after a failure the next call retries.

        Raises:
            FencedError: another host has taken over the filesystem.
        """
        try:
            await self.run_once()
        except FencedError:
            raise
        except (S3fsError, OSError) as exc:
            self.last_error = str(exc)
            _log.warning("cannot compact packs, will retry: %s", exc)

    @part(Cause.COMPACTION)
    async def run_once(
        self,
        *,
        packs_max: int = COMPACT_PACKS_MAX,
        candidates_max: int = COMPACT_CANDIDATES_MAX,
    ) -> int:
        """Seal the live blocks of some packs for the uploader to move; return the number of blocks.

        Garbage collection deletes the old packs once no retained txg or kept point needs them. A
        missing or damaged pack is marked, reported and skipped.

        Args:
            packs_max: the maximum number of packs to compact.
            candidates_max: the maximum number of packs to examine.

        Raises:
            StoreError: the store is unavailable.
            NoSpaceLeftError: the disk has no free space except the reserve.
        """
        self.last_error = ""
        moved = emptied = failed = 0
        after, self._examined = self._examined, None
        candidates = await self._candidates(candidates_max, after)
        for row in candidates:
            if emptied == packs_max or failed == COMPACT_FAILURES_MAX:
                break
            if row is candidates[-1] and len(candidates) == candidates_max:
                self._examined = row
            try:
                count = await self._empty(row)
            except (ObjectMissingError, FormatError, BadRowError) as exc:
                failed += 1
                await self._skip(row, exc)
                continue
            moved += count
            emptied += bool(count)
            await trio.lowlevel.checkpoint()
        return moved

    async def _candidates(self, limit: int, after: PackRow | None) -> list[PackRow]:
        """Return the packs with the most dead bytes, searched in slices."""
        found: list[PackRow] = []
        for within in packs.slices(self._db):
            more = packs.mostly_dead(self._db, within, COMPACT_LIVE_FRACTION, limit, after)
            if more:
                found = packs.with_most_dead_bytes([*found, *more], limit)
            await trio.lowlevel.checkpoint()
        return found

    async def _skip(
        self, pack: PackRow, exc: ObjectMissingError | FormatError | BadRowError
    ) -> None:
        """Log a pack whose blocks cannot be moved; mark it if its object is missing or damaged."""
        self.last_error = str(exc)
        _log.error("compaction skips %s, whose blocks cannot be moved: %s", pack.object_key, exc)
        if isinstance(exc, (NewerFormatError, DamagedDatabaseError, BadRowError)):
            return  # the pack itself may be intact
        is_missing = isinstance(exc, ObjectMissingError)
        if not is_missing or await has_superblock(self._store):
            self._mark(Mark(pack.pack, None), "is missing" if is_missing else "is damaged")

    async def _empty(self, pack: PackRow) -> int:
        live = blocks.in_pack(self._db, pack.pack)
        if _worthless(pack, live):
            return 0
        if sum(row.plain_bytes for row in live) > self._cache.spare_bytes:
            return 0  # the cache has no room for the pack's blocks now
        self._cache.disk.spend(sum(row.plain_bytes for row in live))
        missing = [row for row in live if row.block not in self._cache.index]
        moved = 0
        try:
            places = await self._fetch(pack, missing)
            _require_listed(pack, live, places)
            for piece in slices(live):
                # Use begin(), not begin_local(), because the next txg must ship the new locations.
                self._db.begin()
                moved += sum(self._freeze(pack, row, places) for row in piece)
                await trio.lowlevel.checkpoint()
        finally:
            with trio.move_on_after(CLEANUP_S_MAX, shield=True):
                await self._remove_strays(missing)
        _log.info("compaction moves %d blocks out of %s", moved, pack.object_key)
        return moved

    async def _fetch(
        self, pack: PackRow, missing: list[BlockRow]
    ) -> dict[int | None, tuple[Ino, BlockIndex]]:
        """Fetch and unpack a pack; if it is missing or damaged, fetch it a second time."""
        try:
            return await self._fetch_once(pack, missing)
        except (ObjectMissingError, FormatError) as exc:
            _log.info(
                "fetching the pack %s again for compaction after an error: %s", pack.object_key, exc
            )
        return await self._fetch_once(pack, missing)

    async def _fetch_once(
        self, pack: PackRow, missing: list[BlockRow]
    ) -> dict[int | None, tuple[Ino, BlockIndex]]:
        await self._cache.throttles.download.take(pack.object_bytes)
        fetched = await self._store.get(pack.object_key, PACK_BYTES_MAX)
        return await in_thread(self._unpack, pack, fetched.data, missing)

    async def _remove_strays(self, brought: list[BlockRow]) -> None:
        """Remove files of fetched blocks that have no row: their move failed or became obsolete."""
        index = self._cache.index
        strays = [row.block for row in brought if row.block not in index]
        await self._cache.evictor.remove_files(strays)

    def _freeze(
        self, pack: PackRow, row: BlockRow, places: dict[int | None, tuple[Ino, BlockIndex]]
    ) -> bool:
        """Seal a block for the uploader; return False if the block is no longer in the pack."""
        now = blocks.find(self._db, row.block)
        if now is not None and now.pack == pack.pack:
            ino, index = places[row.pack_offset]
            self._cache.seal_for_move(row, ino, index)
            return True
        return False  # the block was deleted while its pack was fetched

    def _unpack(
        self, pack: PackRow, data: bytes, missing: list[BlockRow]
    ) -> dict[int | None, tuple[Ino, BlockIndex]]:
        """Write uncached blocks to the cache. The call blocks.

        Returns:
            The inode and the block index of each block, by its offset in the pack.
        """
        entries = pack_codec.read_index(self._keyring, pack.object_key, data, len(data))
        for row in missing:
            self._files.adopt(row.block, block_in(self._keyring, pack.object_key, data, row))
        return {entry.offset: (entry.ino, entry.block_index) for entry in entries}


def _require_listed(
    pack: PackRow, live: list[BlockRow], places: dict[int | None, tuple[Ino, BlockIndex]]
) -> None:
    """Raise FormatError if the row of a block has an offset that is not in the pack's index."""
    for row in live:
        if row.pack_offset not in places:
            raise FormatError(
                pack.object_key,
                f"the pack's index has no record at the offset of block {row.block}",
            )


def _worthless(pack: PackRow, live: list[BlockRow]) -> bool:
    """Return whether a move saves too little, because the new pack would be nearly as large."""
    new_bytes = sum(row.stored_bytes or 0 for row in live) + len(live) * INDEX_ENTRY_BYTES
    return new_bytes > COMPACT_LIVE_FRACTION * (pack.object_bytes - PACK_OVERHEAD_BYTES)
