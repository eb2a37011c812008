"""The block cache on this host: dirty → sealed → uploaded → clean → evicted.

Owns: the set of cached blocks, their states, and how writers wait for room.
Does not know: names, file sizes, how packs are written, which blocks are evicted (``eviction``).
Keeps: a block in use is evicted only once its pack is confirmed (UPLOADED) and its location is then
synced (CLEAN). A DOOMED block is removed when the deletion of its row is durable.
Tasks: any request handler. Every change of state happens on the event loop, inside the caller's
group of operations, without a schedule point.
Design: docs/design/durability.md, "Life of a block".
"""

import logging
from collections.abc import Iterable, Sequence
from typing import NoReturn

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.crash_safety.block_sync import BlockSync
from s3fs_meta.cache.crash_safety.recovery import KnownCopies
from s3fs_meta.cache.crash_safety.suspects import Suspects
from s3fs_meta.cache.disk_space import DiskSpace
from s3fs_meta.cache.eviction import Evictor
from s3fs_meta.cache.fetching import read_coalescing
from s3fs_meta.cache.fetching.arrived_content import Content
from s3fs_meta.cache.fetching.fetcher import NO_HANDLERS, DamageHandlers, Fetcher
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.cache.files.files_ahead import Numbers
from s3fs_meta.cache.index import NOT_UPLOADED, CacheIndex
from s3fs_meta.cache.pinned_trees import PinnedTrees
from s3fs_meta.cache.slices import slices
from s3fs_meta.cache.waiting_writers import UploadSignal, WaitingWriters
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import LostBlockError, NoSpaceLeftError, NotLocalError, S3fsError
from s3fs_meta.limits import (
    CACHED_BLOCKS_MAX,
    DIRTY_BLOCKS_MAX,
    EARLY_WRITE_BYTES_MIN,
    NEIGHBOURS_MAX,
    READAHEAD_BYTES_MAX,
    READAHEAD_CACHE_PART,
    SMALL_BLOCK_BYTES,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.group_listeners import LossStep
from s3fs_meta.meta.tables import block_map, blocks, cached_blocks, packs
from s3fs_meta.meta.tables.block_map import Located, of_row
from s3fs_meta.model import BlockId, BlockIndex, BlockRow, BlockState, Ino, PackId
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.retry import outage_of
from s3fs_meta.objects.throttle import Throttles, throttles_of
from s3fs_meta.options.settings import CacheOptions

_log = logging.getLogger(__name__)


class BlockCache:
    """The cached blocks of one mount, up to a maximum number of bytes."""

    def __init__(
        self,
        db: Database,
        store: ObjectStore,
        keyring: Keyring,
        files: BlockFiles,
        options: CacheOptions,
        damage: DamageHandlers = NO_HANDLERS,
        *,
        throttles: Throttles | None = None,
    ) -> None:
        self._db = db
        self.throttles = throttles = throttles or throttles_of(options)
        self._files = files
        self.bytes_max = options.cache_bytes
        self.upload_signal = UploadSignal()  # wakes the uploader when a writer starts waiting
        self.writers = WaitingWriters(
            options.write_timeout_s, self.upload_signal, lambda: bool(outage_of(store).why)
        )
        self.index = CacheIndex()
        self.pinned = PinnedTrees(db, self.index, options.cache_bytes)
        self.evictor = Evictor(
            db, files, self.index, self.pinned, options.cache_bytes, self._let_go, self.writers.wake
        )
        self.disk = DiskSpace(files.root, self.evictor.evict_bytes, self.evictor.evict_some)
        self.fetcher = Fetcher(
            store,
            keyring,
            files,
            options,
            arrived=self._arrived,
            arrived_unrequested=self._arrived_unrequested,
            throttle=throttles.download,
            damage=damage,
        )
        self.hits = self.misses = 0
        self.suspects = Suspects(db, files, keyring, self.drop_copy)
        self.copies = KnownCopies(db)
        self.block_sync = BlockSync(db, self.index, files, self.copies)
        db.listeners.when_lost(LossStep.RELOAD, self.load)

    def load(self) -> None:
        """Fill the index from the rows, at mount and after a commit group was rolled back.

        The files of dirty and sealed blocks are treated as unsynced: the rows do not show that all
        bytes of the files were synced.
        """
        self.index.clear()
        now_s = trio.current_time()
        for block, state, size_bytes in cached_blocks.rows_with_size(self._db):
            self.index.put(block, state, size_bytes, now_s)
            if state in NOT_UPLOADED:
                self.index.note_write(block)
                self._files.distrust_closed()
        self.block_sync.unlogged.give_up()
        self.copies.load()

    # --- read blocks ---------------------------------------------------------------------------

    def is_local(self, located: Located) -> bool:
        """Return whether a block is cached and needs no verification. Never yields."""
        return located.state is not None and located.block not in self.suspects.blocks

    def is_readable(self, located: Located) -> bool:
        """Return whether ``read_local`` finds a block in the cache, or (disk full) in memory."""
        is_local = located.state is not None and located.block not in self.suspects.blocks
        return is_local or self.fetcher.uncached.has(located)

    def read_local(self, located: Located, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)`` of a readable block; bytes after its content are zeros.

        Raises:
            LostBlockError: the file of a dirty or sealed block, its only copy, is missing or torn.
            NotLocalError: the file of an uploaded block is missing or damaged; fetch it again.

        Never yields to other tasks.
        """
        end = min(stop, located.plain_bytes)
        if end <= start:
            return bytes(stop - start)
        if located.state is None or located.block in self.suspects.blocks:
            return self.fetcher.uncached.read(located, start, end) + bytes(stop - end)
        try:
            data = self._files.read_on_loop(located.block, start, end)
        except LostBlockError as exc:
            self._lost_local(located, exc)
        self.hits += 1
        self.index.used(located.block)
        return data if end == stop else data + bytes(stop - end)

    def open_local(self, located: Located, stop: int) -> int | Content | None:
        """Return a block's content for a read that ends at *stop*, or its file's descriptor.

        Only the event loop may use the descriptor. If the result is None, the caller must call
        ``read_local``, which checks for lost content.
        """
        source: int | Content | None = self.fetcher.arrived_content.take(located, stop)
        if source is None:
            source = self._files.open_on_loop(located.block)
        if source is not None:
            self.hits += 1
            self.index.used(located.block)
        return source

    def _lost_local(self, located: Located, exc: LostBlockError) -> NoReturn:
        if exc.block != located.block:
            raise exc  # the lost file is that of a new copy of this block
        if located.state in NOT_UPLOADED and located.pack is None:
            raise exc
        if located.state in NOT_UPLOADED or self.evictor.is_last_copy(located.block):
            # Keep the file: the block is being packed again, or its location is marked as damaged.
            self.suspects.blocks.add(located.block)
            raise NotLocalError(located.block) from exc
        _log.warning(
            "fetching block %d again, because its cache file is damaged or missing", located.block
        )
        self._db.begin_local()
        self.drop_copy(located.block)
        raise NotLocalError(located.block) from exc

    async def fetch(self, located: Located, *, for_read: bool = False) -> None:
        """Download an uploaded block, and the neighbours of a small block, into the cache.

        Afterwards the caller must check that the block is cached: if another task was fetching the
        block as a neighbour, that fetch may have failed. With *for_read*, a full or failed disk is
        accepted: the block is then ``is_readable``, but not cached.

        Raises:
            NoSpaceLeftError, OSError: the disk is full or failed, and *for_read* is false.
            StoreError: the store was unavailable until the read timeout, or lacks the pack.
            CorruptionError: the block in the store is corrupt, or was never uploaded.

        Always yields to other tasks, so rows that the caller has read may be outdated afterwards.
        """
        if located.block in self.suspects.blocks and await self.suspects.verify(located):
            return
        if located.pack is None:
            raise LostBlockError(located.block, "neither the cache nor the bucket has the block")
        self.misses += 1
        object_key = packs.object_key(self._db, located.pack)
        try:
            self.disk.spend(located.plain_bytes)
            await self.evictor.evict(located.plain_bytes)
            await self.fetcher.fetch(located, object_key, self._neighbours(located, located.pack))
        except (NoSpaceLeftError, LostBlockError, OSError) as exc:  # disk full or failed
            if not for_read:
                raise
            await self.fetcher.fetch_uncached(located, object_key, exc)

    def _neighbours(self, located: Located, pack: PackId) -> Sequence[Located]:
        """Return the neighbours to fetch with a small block, as many as fit into the cache.

        The neighbours may use free room and replace evictable blocks, but only in a small part of
        the cache.
        """
        if located.plain_bytes >= SMALL_BLOCK_BYTES:
            return ()
        room_bytes = min(
            self.evictor.unrequested_bytes_max,
            self.spare_bytes - located.plain_bytes,
            self.disk.unheld_bytes() - located.plain_bytes,
        )
        candidates = [
            of_row(row)
            for row in blocks.near_in_pack(self._db, pack, located.block, NEIGHBOURS_MAX)
            if row.block not in self.index
        ]
        chosen = read_coalescing.choose(located, candidates, plain_bytes_max=room_bytes)
        self.disk.spend(sum(each.plain_bytes for each in chosen))
        return chosen

    async def fetch_run(self, run: Sequence[Located]) -> None:
        """Read ahead blocks that are adjacent in a pack; log errors instead of raising them.

        If a block is unavailable, its next reader receives the error.
        """
        try:
            await self.download_run(run)
        except S3fsError as exc:
            _log.info("cannot read ahead from block %d: %s", run[0].block, exc)

    async def download_run(self, run: Sequence[Located], *, waits: bool = True) -> None:
        """Wait for the download limit, then download the blocks of a run that are not cached.

        Args:
            run: blocks of one pack, ascending.
            waits: True to wait for an unavailable store until the read timeout, as in
                ``Fetcher.fetch_run``.

        Raises:
            NoSpaceLeftError: the disk has only its reserve left.
            StoreError, CorruptionError: as in ``Fetcher.fetch_run``; some blocks may be cached.

        May yield to other tasks, so rows that the caller has read may be outdated afterwards.
        """
        taken_bytes = await self.throttles.download.take(read_coalescing.stored_bytes(run))
        run = [each for each in run if each.block not in self.index]
        self.throttles.download.give_back(max(0, taken_bytes - read_coalescing.stored_bytes(run)))
        if not run:
            return
        assert run[0].pack is not None, "only uploaded blocks are in a pack"
        size_bytes = sum(each.plain_bytes for each in run)
        self.disk.spend(size_bytes)
        await self.evictor.evict(size_bytes)
        await self.fetcher.fetch_run(run, packs.object_key(self._db, run[0].pack), waits=waits)

    @property
    def ahead_bytes_max(self) -> int:
        """Return how many bytes read-ahead may cache for one sequential reader."""
        return min(READAHEAD_BYTES_MAX, self.bytes_max // READAHEAD_CACHE_PART)

    def _arrived(self, located: Located) -> None:
        """Insert the row of a fetched block; if the block was deleted meanwhile, remove its file.

        If the block is already cached, only its file was replaced; its row and state stay the same.
        """
        if located.block in self.index:
            self.suspects.discard(located.block)
            return
        if not blocks.has_hash(self._db, located.block, located.hash):
            self._files.remove(located.block)
            return
        self._db.begin_local()
        cached_blocks.put(self._db, located.block, BlockState.CLEAN, Ino(0), BlockIndex(0))
        self.index.add_clean(located.block, located.plain_bytes)

    def _arrived_unrequested(self, located: Located) -> None:
        """Insert the row of a neighbour, which was fetched together with a requested block."""
        if located.block in self.index:
            return
        self._arrived(located)
        if located.block in self.index:
            self.index.put_unrequested(located.block, located.plain_bytes)
            self.evictor.make_room(0)

    async def keep_duplicates(self) -> None:
        """After deduplication, cache the blocks that replaced cached blocks of pinned files.

        The content is copied from the file of the replaced block, and verified at its first use. If
        that file is already removed, or the disk has no room, the block must be downloaded later.
        """
        for block, of in self.pinned.take_replaced():
            row = blocks.find(self._db, of)
            if row is None or of in self.index:
                continue
            try:
                self.disk.spend(row.plain_bytes)
                await in_thread(self._files.copy_clean, block, of, row.plain_bytes)
            except S3fsError:  # the disk is full, or the file cannot be read now
                continue
            self._arrived(of_row(row))
            if of in self.index:  # the block may have been deleted during the copy
                self.suspects.blocks.add(of)
                self.pinned.pin(of, row.plain_bytes)

    # --- write blocks --------------------------------------------------------------------------

    def write_new(
        self,
        ino: Ino,
        index: BlockIndex,
        offset: int,
        data: bytes | memoryview,
        *,
        replaced: Located | None = None,
        file_bytes: int = 0,
    ) -> BlockId:
        """Map a part of a file to a new dirty block: zeros up to *offset*, then *data*.

        Args:
            replaced: the block to which the part was mapped; *data* overwrites all its bytes. None
                for a hole.
            file_bytes: number of bytes of the part that were inside the file before the write.

        Raises:
            NoSpaceLeftError: the disk is full; nothing was changed.

        Never yields to other tasks. Requires an open transaction.
        """
        block = self._db.counters.take_block()
        is_named = self._files.create(block, offset, data)
        plain_bytes = offset + len(data)
        if replaced is None:
            blocks.fill_hole(self._db, block, ino, index, plain_bytes, hole_bytes=offset)
            if offset or file_bytes > 0:
                self.copies.note_hole(block, max(offset, file_bytes))
        else:
            blocks.create_dirty(self._db, block, ino, index, plain_bytes, hole_bytes=offset)
            self._note_origin(block, replaced, max(replaced.plain_bytes, file_bytes))
            block_map.replace(self._db, ino, index, replaced.block, block)
            self.release(replaced.block)
        self.index.made(block, plain_bytes, trio.current_time(), is_named=is_named)
        self.block_sync.unlogged.add(block, offset, plain_bytes)
        if len(data) >= EARLY_WRITE_BYTES_MIN:
            self.block_sync.early.note(block, len(data))
        return block

    def copy_on_write(
        self, located: Located, ino: Ino, index: BlockIndex, keep_bytes: int, file_bytes: int = 0
    ) -> BlockId:
        """Make a dirty block from the first *keep_bytes* of a cached block, for the caller to map.

        The new block takes over the file of a clean block that has no other reference; the clean
        block is then no longer cached. Copying the file instead would block the event loop
        for a millisecond and write all bytes again. Any other block is copied and stays cached,
        even a clean block that may be the last intact copy.

        Args:
            file_bytes: as in ``write_new``: how many old bytes must be restored if power fails
                before the new block is synced. 0 if the file is truncated.

        Raises:
            NoSpaceLeftError, LostBlockError, NotLocalError: no block was created.

        Never yields to other tasks. Requires an open transaction.
        """
        keep_bytes = min(keep_bytes, located.plain_bytes)
        block, is_named = self._db.counters.take_block(), False
        try:
            if (
                located.state is BlockState.CLEAN
                and blocks.get(self._db, located.block).refs == 1
                and not self.evictor.is_last_copy(located.block)
            ):
                self._files.take_over(located.block, block, keep_bytes)
                self._let_go(located.block)
            else:
                is_named = self._files.copy(located.block, block, keep_bytes)
        except LostBlockError as exc:
            self._lost_local(located, exc)
        blocks.create_dirty(self._db, block, ino, index, keep_bytes)
        self._note_origin(block, located, max(keep_bytes, file_bytes))
        self.index.made(block, keep_bytes, trio.current_time(), is_named=is_named)
        return block

    def _note_origin(self, block: BlockId, origin: Located, keep_bytes: int) -> None:
        """Record the origin of a copied block; the next fsync then syncs the block files.

        The next fsync does not use the intent log, because recovering a logged copy might require a
        download of the origin.
        """
        self.copies.note(block, origin, keep_bytes)
        self.block_sync.unlogged.give_up()

    def write_in_place(
        self, located: Located, offset: int, data: bytes | memoryview, file_bytes: int = 0
    ) -> None:
        """Write into a dirty block; fill a gap between its content and the new data with zeros.

        Args:
            file_bytes: as in ``write_new``.

        Raises:
            NoSpaceLeftError: the disk is full; as with write(2), part of *data* may have been
                written; rows are unchanged.
            LostBlockError: the file, or some of its content before *offset*, is missing.

        Never yields to other tasks. Requires an open transaction.
        """
        assert located.state is BlockState.DIRTY, "only dirty blocks are written in place"
        block, plain_bytes, end = located.block, located.plain_bytes, offset + len(data)
        self._files.write_within(block, offset, data, plain_bytes)
        if max(offset, min(end, file_bytes)) > plain_bytes:
            is_logged = self.block_sync.unlogged.covers(block, plain_bytes)
            self.copies.note_gap(block, plain_bytes, max(offset, file_bytes), is_logged=is_logged)
        self.block_sync.unlogged.add(block, min(offset, plain_bytes), end)
        if len(data) >= EARLY_WRITE_BYTES_MIN:
            self.block_sync.early.note(block, len(data))
        if end > plain_bytes:
            blocks.resize(self._db, block, plain_bytes, end)
        self.index.wrote(block, max(plain_bytes, end), trio.current_time())

    def release(self, block: BlockId, row: BlockRow | None = None) -> None:
        """Drop one reference to a block. Delete a block without references, unless it is sealed.

        Args:
            block: a block that a file refers to.
            row: the row of the block, if the caller has just read it.

        Never yields to other tasks. Requires an open transaction.
        """
        row, held = row or blocks.get(self._db, block), self.index.get(block)
        is_sealed = held is not None and held.state is BlockState.SEALED
        if row.refs != 1 or is_sealed:
            if blocks.drop_ref(self._db, block) == 0:
                self.index.unnamed.add(block)
                # Leave the block to the uploader, because a new pack or an image may refer to it.
            return
        if held is not None and held.state is BlockState.CLEAN and self.evictor.is_last_copy(block):
            # Keep the block as UPLOADED until the next sync: a crash may restore its deleted row.
            self.index.move(block, BlockState.UPLOADED)
        blocks.delete_read(self._db, row)
        self.doom(block)

    def doom(self, block: BlockId) -> None:
        """Remove a deleted block from the cache: a clean block now, others after the next sync."""
        held = self.index.get(block)
        if held is None:
            return
        if held.state is BlockState.CLEAN:
            self.drop_copy(block)
            return
        cached_blocks.set_state(self._db, block, BlockState.DOOMED)
        self.index.move(block, BlockState.DOOMED)

    async def make_files_ahead(self) -> None:
        """Create empty files for future blocks until cancelled; raise OSError if the disk fails."""
        counters = self._db.counters
        numbers = Numbers(lambda: counters.next_block, lambda one: one in self.index)
        # The kernel reports a lost directory entry only once, so ``syncing`` records the failure.
        with self._files.syncing():
            await self._files.ahead.run(numbers)

    # --- change the states of blocks -----------------------------------------------------------

    def seal(self, wanted: Iterable[BlockId]) -> None:
        """Mark dirty blocks as sealed, so that a later write changes a copy of the block.

        Requires an open transaction.
        """
        chosen = list(wanted)
        cached_blocks.set_states(self._db, chosen, BlockState.SEALED)
        for block in chosen:
            self.index.move(block, BlockState.SEALED)

    def seal_for_move(self, row: BlockRow, ino: Ino, index: BlockIndex) -> None:
        """Seal a cached block that is already uploaded, so that it is packed again."""
        cached_blocks.put(self._db, row.block, BlockState.SEALED, ino, index)
        self.index.seal_again(row.block, row.plain_bytes)

    async def forget_removed(self, removed: Iterable[BlockId]) -> None:
        """Remove cached blocks whose rows were deleted by another host's changes."""
        for piece in slices([block for block in removed if block in self.index]):
            self._db.begin_local()
            for block in piece:
                self._let_go(block)
            await self.evictor.remove_files(piece)

    @property
    def spare_bytes(self) -> int:
        """Return how many bytes fit into the cache once all evictable blocks are evicted."""
        index = self.index
        return self.bytes_max - index.pending_bytes - index.spared_bytes - index.kept_bytes

    def uploaded(self, block: BlockId) -> None:
        """Mark a block as uploaded; call this in the commit group that records its location."""
        self.copies.forget([block])
        cached_blocks.set_state(self._db, block, BlockState.UPLOADED)
        self.index.move(block, BlockState.UPLOADED)
        if self.writers.count:
            self.writers.note_upload()

    async def settle(self, confirmed: Sequence[BlockId], doomed: Sequence[BlockId]) -> None:
        """Mark uploaded blocks as clean and remove doomed blocks, after a sync of their rows.

        Yields to other tasks between slices.
        """
        for piece in slices(confirmed):
            self._db.begin_local()
            uploaded = [one for one in piece if self.index.can_settle(one)]
            cached_blocks.set_states(self._db, uploaded, BlockState.CLEAN)
            for block in uploaded:
                self.index.move(block, BlockState.CLEAN)
            await trio.lowlevel.checkpoint()
        for piece in slices(doomed):
            await self.evictor.remove_files(piece)
            self._db.begin_local()
            for block in piece:
                self._let_go(block)
        await self.evictor.evict(0)
        if self.writers.count:
            self.writers.wake()

    # --- make room in the cache ----------------------------------------------------------------

    def has_room(self, size_bytes: int) -> bool:
        """Return whether *size_bytes* fit into the cache without eviction.

        Never yields to other tasks.
        """
        count_in = self.index.count_in
        return (
            self.index.total_bytes + size_bytes <= self.bytes_max
            and self.index.total_count <= CACHED_BLOCKS_MAX
            and count_in[BlockState.DIRTY] + count_in[BlockState.SEALED] < DIRTY_BLOCKS_MAX
        )

    def find_room(self, size_bytes: int) -> bool:
        """Return whether *size_bytes* fit into the cache; evict a few blocks if needed.

        Raises:
            NoSpaceLeftError: the disk has only its reserve left.

        Never yields to other tasks.
        """
        self.disk.spend(size_bytes)
        self.evictor.make_room(size_bytes)
        return self.index.fits(size_bytes, self.bytes_max)

    async def wait_for_room(self, size_bytes: int) -> None:
        """Wait until *size_bytes* fit into the cache, to slow writers down to the upload speed.

        Raises:
            NoSpaceLeftError: no upload has made room within the write timeout, or the disk has only
                its reserve left.
        """

        async def has_room() -> bool:
            await self.evictor.evict(size_bytes)
            return self.index.fits(size_bytes, self.bytes_max)

        if self.find_room(size_bytes) or await has_room():
            return
        with self.throttles.upload.lifted():
            if not await self.writers.wait(has_room):
                raise NoSpaceLeftError("the cache is full of blocks that are not uploaded yet")

    async def resize(self, bytes_max: int) -> None:
        """Change the maximum size of the cache; evict clean blocks if it is smaller now.

        Blocks that cannot be evicted may exceed the new size; writers wait until they are uploaded.
        Yields to other tasks only if blocks must be examined for eviction.
        """
        self.bytes_max = bytes_max
        self.evictor.resize(bytes_max)
        self.pinned.resize(bytes_max)
        self.writers.wake()
        self.upload_signal.set()
        await self.evictor.evict(0)

    def drop_copy(self, block: BlockId) -> None:
        """Remove the row and the file of a cached block. Requires an open transaction."""
        self._let_go(block)
        self._files.remove(block)

    def _let_go(self, block: BlockId) -> None:
        """Remove the row of a cached block, whose file the caller then removes or renames."""
        self.copies.forget([block])
        cached_blocks.delete(self._db, block)
        self.index.drop(block)
        self.suspects.discard(block)
