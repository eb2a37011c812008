"""Uploading sealed blocks to the store.

Owns: the choice of the pack in which a block is stored, the order of writes to rows and store. Does
not know: which blocks are sealed and when (``sealing``), names, images.
Keeps: a location is recorded only after the store confirmed its pack. The row of a pack is durable
before the pack can exist, so that this host knows every pack that it uploaded. An upload does not
start a txg, because the write of the block has already caused one.
Tasks: ``run`` is one background task; any task may call ``drain``. The packs of a batch are
uploaded one after another, and at most UPLOADS_MAX batches concurrently, which limits the memory
for packs.
Design: docs/design/durability.md, "From dirty to uploaded".
"""

import contextlib
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.cache.slices import slices
from s3fs_meta.cache.waiting_writers import SentPack
from s3fs_meta.codec.pack import Pack, PackEntry
from s3fs_meta.errors import (
    DatabaseError,
    FencedError,
    FormatError,
    LostBlockError,
    MetadataError,
    PreconditionError,
    S3fsError,
    StoreError,
)
from s3fs_meta.limits import (
    LOOP_SLICE_ROWS,
    UPLOAD_PAUSE_S,
    UPLOAD_RETRY_S_MAX,
    UPLOADS_MAX,
)
from s3fs_meta.meta import placements
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.placements import Duplicate, Placed, Zero, placement_of
from s3fs_meta.meta.tables import blocks, cached_blocks, packs
from s3fs_meta.model import BlockId, BlockIndex, BlockRow, Ino, PackId
from s3fs_meta.mount_state import MountStatus
from s3fs_meta.objects.contact import reporting_sent
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.hooks import Hook
from s3fs_meta.sync.progress import Progress, no_progress
from s3fs_meta.sync.upload import healing
from s3fs_meta.sync.upload.bounds import UploadBounds
from s3fs_meta.sync.upload.cut import Cut, PackRecord
from s3fs_meta.sync.upload.packer import Hashed, Packer, Sealed
from s3fs_meta.sync.upload.sealing import Sealer
from s3fs_meta.sync.upload.throughput import Throughput

_log = logging.getLogger(__name__)


class Uploader:
    """Uploads the blocks of one mount."""

    def __init__(  # noqa: PLR0913 - one argument for each part that it uses
        self,
        db: Database,
        cache: BlockCache,
        store: ObjectStore,
        packer: Packer,
        status: MountStatus,
        *,
        make_durable: Callable[[], Awaitable[None]],
        settle: Callable[[], Awaitable[None]],
        confirm_hold: Callable[[], Awaitable[None]],
        bounds: UploadBounds,
        hook: Hook,
    ) -> None:
        self._db = db
        self._cache = cache
        self._store = store
        self._packer = packer
        self._status = status
        self._make_durable = make_durable
        self._settle = settle
        self._confirm_hold = confirm_hold
        self.bounds = bounds
        self._hook = hook
        self._limiter = trio.CapacityLimiter(UPLOADS_MAX)
        self._landed = trio.Event()
        self._cut: Cut | None = None
        # All-zero blocks in the open cut. Packs contain them, because the cut's rows refer to them.
        # After the cut, they become holes.
        self._zeros: dict[BlockId, Zero] = {}
        self.lost: dict[BlockId, LostBlockError] = {}
        self.sealer = Sealer(db, cache, bounds, self.lost, self._end)
        self._failures: deque[S3fsError | OSError] = deque(maxlen=UPLOADS_MAX)
        self._pause_until_s = -math.inf
        self.last_error = ""
        self.uploaded_packs = 0
        self.throughput = Throughput()

    @property
    def pending(self) -> int:
        """Return the number of blocks that are not yet in the bucket: dirty and sealed blocks."""
        return self._cache.index.pending_count

    @property
    def shippable(self) -> int:
        """Return the number of pending blocks, except blocks whose only copy is known as lost."""
        return self.pending - len(self.lost)

    # --- choose the blocks to upload -----------------------------------------------------------

    async def run(self) -> None:
        """Seal blocks that have not changed for a while, and upload them in packs until cancelled.

        While writers wait for cache space, all blocks are sealed immediately. The rows are then
        synced after each upload, so that the uploaded blocks may be evicted.
        """
        async with trio.open_nursery() as nursery:
            while True:
                await self._cache.upload_signal.wait(self.bounds.seal_age_s / 4)
                while not self._pauses:
                    batch = await self.sealer.next_batch(self.sealer.ripe_after_s())
                    if not batch:
                        break
                    await self.acquire(batch)
                    nursery.start_soon(self.ship_and_release, batch)
                if self._cache.writers.count and not self._pauses:
                    await self._try(self._settle)

    async def acquire(self, batch: Sequence[Sealed]) -> None:
        """Wait for an upload slot; if the task is cancelled, release the blocks of the batch."""
        try:
            await self._limiter.acquire_on_behalf_of(id(batch))
        except trio.Cancelled:
            self.sealer.release(batch)
            raise

    async def ship_and_release(self, batch: Sequence[Sealed]) -> None:
        """Upload one batch; after a failure its blocks stay sealed, for a retry."""

        async def ship() -> None:
            await self._ship(batch)
            if self._cache.writers.count:
                await self._settle()

        try:
            await self._try(ship)
        finally:
            self._limiter.release_on_behalf_of(id(batch))

    async def _try(self, work: Callable[[], Awaitable[None]]) -> None:
        """Call *work*. If it fails, note the error, and make ``run`` pause before the next attempt."""
        try:
            await work()
        except (S3fsError, OSError) as exc:
            self.last_error = str(exc)
            self._failures.append(exc)
            self._pause_until_s = trio.current_time() + UPLOAD_PAUSE_S
            if self.bounds.repeats_packs:  # otherwise ``drain`` raises or logs it
                _log.error("cannot upload blocks, will retry: %s", exc)
            # The failure may have left inconsistent rows, so the mount becomes read-only.
            if isinstance(exc, (DatabaseError, MetadataError)):
                self._status.break_off(f"upload failed: {exc}")
            if isinstance(exc, FencedError):
                self._status.fence(str(exc))

    @property
    def _pauses(self) -> bool:
        return trio.current_time() < self._pause_until_s or not self._status.ships

    def begin_cut(self, cut: Cut) -> None:
        """Start recording locations of a cut's blocks in the cut. Never yields to other tasks."""
        self._cut = cut

    def end_cut(self) -> None:
        """Stop recording locations in the cut. Never yields to other tasks."""
        self._cut = None

    async def drain(self, cut: Cut, progress: Progress = no_progress) -> None:
        """Upload sealed blocks until every block of a cut has a location, without a time limit.

        If the only copy of a block is lost, the cut records the block as lost.

        Raises:
            S3fsError, OSError: a batch failed or could not be chosen; its blocks stay sealed.
        """
        self._failures.clear()
        failure: S3fsError | OSError | None = None
        total = len(cut.pending)
        progress("blocks", 0, total)
        async with trio.open_nursery() as nursery:
            while cut.pending:
                if self._failures:
                    failure = self._failures.pop()
                    break
                landed = self._landed
                try:
                    # Seal no dirty block: it was written after the cut, so the cut does not need it.
                    batch = await self.sealer.next_batch(math.inf)
                except (S3fsError, OSError) as exc:
                    failure = exc  # raise outside the nursery, which wraps exceptions in a group
                    break
                if batch:
                    await self.acquire(batch)
                    nursery.start_soon(self.ship_and_release, batch)
                    continue
                if self.lost.keys() & cut.pending:
                    cut.give_up(self.lost.keys())
                    continue
                await landed.wait()
                progress("blocks", total - len(cut.pending), total)
        if not self.bounds.repeats_packs:  # otherwise each error is logged already
            for other in self._failures:
                _log.error("cannot upload blocks: %s", other)
        if failure is not None:
            raise failure

    def require_no_lost_block(self) -> None:
        """Raise LostBlockError if a file uses a block whose only copy is lost."""
        for block, exc in self.lost.items():
            row = blocks.find(self._db, block)
            if row is not None and row.refs > 0:
                raise exc

    # --- upload one batch ----------------------------------------------------------------------

    async def _ship(self, batch: Sequence[Sealed]) -> None:
        """Upload one batch of sealed blocks, which stay sealed for a retry after a failure."""
        self._hook("blocks sealed")
        try:
            hashed, lost = await in_thread(self._packer.hash_all, batch)
            self._note_lost(lost)
            fresh, doubles = await self._place_known(hashed)
            await self._cache.keep_duplicates()
            await self._place_doubles(doubles, await self._store_packs(fresh))
        finally:
            self.sealer.release(batch)
            self._landed.set()
            self._landed = trio.Event()

    async def _store_packs(self, fresh: Sequence[Hashed]) -> dict[bytes, tuple[Placed, PackRecord]]:
        """Upload blocks in packs, one after another; return the locations by content hash.

        A batch has only one pack in memory: the next pack is made after the upload.
        """
        stored: dict[bytes, tuple[Placed, PackRecord]] = {}
        end = 0
        while end < len(fresh):
            pack, end = await in_thread(self._packer.fill_next, fresh, end)
            record = await self._upload(pack)
            stored.update((one.hash, (_place_of(one, record), record)) for one in pack.entries)
            del pack  # free the memory before making the next pack
        return stored

    def _note_lost(self, lost: Sequence[LostBlockError]) -> None:
        """Record blocks whose only copy is lost; this mount reports them and does not retry."""
        for exc in lost:
            block = BlockId(exc.block)
            row = blocks.find(self._db, block)
            if row is not None and row.pack is not None:
                self._stay(row, is_unreadable=True)
                continue
            held = cached_blocks.get(self._db, block)
            ino = 0 if held is None else held.ino
            self.lost[block] = LostBlockError(
                block,
                f"{exc.what}; reads of this part of inode {ino} fail, but other blocks are"
                " uploaded: rewrite or remove the file, or unmount and run s3fs-meta fsck -y",
            )
            _log.error("cannot upload a block: %s", self.lost[block])

    async def _place_known(self, hashed: Sequence[Hashed]) -> tuple[list[Hashed], list[Hashed]]:
        """Record blocks that are all zeros or whose content is already stored; return the others.

        Returns:
            The blocks to upload, and the duplicates of these blocks.
        """
        fresh: dict[bytes, Hashed] = {}
        doubles: list[Hashed] = []
        moving: list[Hashed] = []
        for number, one in enumerate(hashed):
            if number % LOOP_SLICE_ROWS == 0:
                await trio.lowlevel.checkpoint()
            self._db.begin_local()
            row = blocks.find(self._db, one.sealed.block)
            if row is not None and row.pack is not None:
                if row.hash == one.hash:
                    moving.append(one)
                else:
                    self._stay(row)
            elif self._record_known(one, row):
                continue
            elif one.hash in fresh:
                doubles.append(one)
            else:
                fresh[one.hash] = one
        return [*fresh.values(), *moving], doubles

    def _is_moving(self, block: BlockId) -> bool:
        """Return whether compaction or healing is moving a block to another pack."""
        row = blocks.find(self._db, block)
        return row is not None and row.pack is not None

    def _stay(self, row: BlockRow, *, is_unreadable: bool = False) -> None:
        """Keep the old location of a block, because its cached copy is missing or damaged."""
        _log.warning(
            "block %d stays in its old pack, because its cached copy is damaged or missing",
            row.block,
        )
        self._db.begin_local()
        placement = placement_of(row)
        if placements.apply(self._db, [placement]):
            self._cache.doom(row.block)
        elif is_unreadable and blocks.is_damaged(self._db, row):
            # Keep the cache file, because it may be the last copy and may become readable later.
            self._cache.uploaded(row.block)
            self._cache.suspects.blocks.add(row.block)
        else:
            self._cache.drop_copy(row.block)
        if self._cut is not None:
            self._cut.resolve(placement, self._record_of(placement.pack))

    def _record_of(self, pack: PackId) -> PackRecord:
        row = packs.get(self._db, pack)
        return PackRecord(row.pack, row.object_key, row.object_bytes)

    async def _place_doubles(
        self, doubles: Sequence[Hashed], stored: Mapping[bytes, tuple[Placed, PackRecord]]
    ) -> None:
        """Give duplicates their content's location, even if the stored block was removed."""
        for piece in slices(doubles):
            self._db.begin_local()
            for one in piece:
                if not self._record_known(one, blocks.find(self._db, one.sealed.block)):
                    place, record = stored[one.hash]
                    sealed = one.sealed
                    place = place._replace(block=sealed.block)
                    if not self._record_one(place, record, sealed.ino, sealed.block_index):
                        packs.report(self._db, [record.pack])
            await trio.lowlevel.checkpoint()

    def _record_known(self, one: Hashed, row: BlockRow | None) -> bool:
        """Record a block that need not be uploaded; return False if it must be uploaded.

        Args:
            row: the row of the block, or None if it has no row.
        """
        if row is not None and row.refs <= 0 and self._record_unnamed(row.block):
            return True
        if one.is_zero:
            return self._record_zero(one)
        return self._record_duplicate(one) or self._record_equal(one)

    def _record_unnamed(self, block: BlockId) -> bool:
        """Remove a block if no file and no open cut uses it; return whether it was removed."""
        if self._cut is not None and block in self._cut.pending:
            return False
        self._end(block)
        return True

    def _record_equal(self, one: Hashed) -> bool:
        """Give a block of the cut an identical block's location; return False if none exists."""
        sealed = one.sealed
        found = None if self._cut is None else self._cut.equal(sealed.block, one.hash)
        if found is not None:
            self._record_one(*found, sealed.ino, sealed.block_index)
        return found is not None

    def _end(self, block: BlockId) -> None:
        self._zeros.pop(block, None)
        blocks.delete(self._db, block)
        self._cache.doom(block)

    def _record_zero(self, one: Hashed) -> bool:
        """Turn a zero block into a hole; return False if the open cut needs the block in a pack.

        The rows of the cut refer to the block, so readers of the cut need its content in a pack.
        """
        sealed = one.sealed
        if self._cut is not None and sealed.block in self._cut.pending:
            equal = self._cut.equal(sealed.block, one.hash)
            if equal is None:
                self._zeros[sealed.block] = Zero(sealed.block, sealed.ino, sealed.block_index)
                return False
            self._cut.resolve(*equal)
        self._make_hole(Zero(sealed.block, sealed.ino, sealed.block_index))
        return True

    def _make_hole(self, zero: Zero) -> None:
        self._zeros.pop(zero.block, None)
        placements.apply(self._db, [zero])
        self._cache.doom(zero.block)

    def _record_duplicate(self, one: Hashed) -> bool:
        known = blocks.intact(self._db, one.hash)
        if known is None:
            return False
        sealed = one.sealed
        place = placement_of(known)._replace(block=sealed.block)
        self._share(place, sealed.ino, sealed.block_index, known.block)
        if self._cut is not None:
            self._cut.resolve(place, self._record_of(place.pack))
        return True

    def _share(self, place: Placed, ino: Ino, index: BlockIndex, of: BlockId) -> None:
        """Make a file refer to an identical stored block instead of its own block."""
        placements.apply(self._db, [Duplicate(place, ino, index, of)])
        self._cache.pinned.note_duplicate(place.block, ino, of)
        self._cache.doom(place.block)

    async def _upload(self, pack: Pack) -> PackRecord:
        """Upload one pack: record its row, store the object, record the locations."""
        self._db.begin_local()
        number = packs.create(self._db, pack.key, len(pack.data))
        try:
            await self._make_durable()
            self._hook("pack intended")
            with self._cache.writers.sending(len(pack.data)) as sent:
                await self._put(pack, sent)
        except trio.Cancelled:
            # The object may be in the bucket, but the retry uploads the blocks in another pack.
            self._db.begin_local()
            packs.condemn(self._db, number)
            raise
        self._hook("pack put")
        record = PackRecord(number, pack.key, len(pack.data))
        cut = self._cut
        for piece in slices(pack.entries):
            # A cancellation here would leave blocks without their locations in a stored pack.
            await trio.lowlevel.cancel_shielded_checkpoint()
            self._db.begin_local()
            self._record_placed(record, piece)
        # Committed together with the last slice of locations.
        packs.note_if_dead(self._db, number)
        if cut is not None and number in cut.packs:
            cut.complete.add(number)
        self._hook("locations recorded")
        self.uploaded_packs += 1
        return record

    def _record_placed(self, record: PackRecord, entries: Sequence[PackEntry]) -> None:
        # Each slice records the pack as stored, because the groups of other slices may be lost.
        packs.stored(self._db, record.pack)
        listed = [
            self._record_one(_place_of(entry, record), record, entry.ino, entry.block_index)
            for entry in entries
        ]
        if not all(listed):
            packs.report(self._db, [record.pack])

    def _record_one(self, place: Placed, record: PackRecord, ino: Ino, index: BlockIndex) -> bool:
        """Record the location of one block; a zero block becomes a hole instead.

        Returns:
            True if a changelog lists the location even if the pack is not reported; see ``Cut``.
        """
        zero = self._zeros.get(place.block)
        if zero is not None:
            self._make_hole(zero)
        else:
            self._record_stored(place, ino, index)
        return self._cut is not None and self._cut.resolve(place, record)

    def _record_stored(self, place: Placed, ino: Ino, index: BlockIndex) -> None:
        """Record the location of a block, and of damaged blocks with the same content."""
        healed = healing.move_damaged(self._db, place)
        if healed is not None:
            self._cache.evictor.reconsider()
        if healed is not None and not self._is_moving(place.block):
            self._share(place, ino, index, healed)
        elif placements.apply(self._db, [place]):
            self._cache.doom(place.block)
        else:
            self._cache.uploaded(place.block)

    async def _put(self, pack: Pack, sent: SentPack) -> None:
        """Store a pack, retrying through outages, because only this host may have the content.

        Args:
            sent: records the progress, for writers that wait for room in the cache.

        Raises:
            FencedError: another host has taken over the filesystem; no attempt was confirmed.
            StoreError: the store failed, and a command does not repeat the upload.
        """
        delay_s, throttle = 1.0, self._cache.throttles.upload
        while True:  # an unmount or a command ends it; the store limits each attempt
            taken_bytes = await throttle.take(len(pack.data))
            sent.begin()
            await self._confirm_hold()
            begun_s = trio.current_time()
            try:
                with reporting_sent(sent.note_sent):
                    await self._create(pack)
            except StoreError as exc:
                if not self.bounds.repeats_packs:
                    raise
                self.last_error = str(exc)
                # Give unsent bytes back to the limit, because the next attempt takes all bytes.
                if exc.sent_bytes is not None:
                    throttle.give_back(max(0, taken_bytes - exc.sent_bytes))
                _log.warning("cannot upload a pack, will retry in %.0f s: %s", delay_s, exc)
            else:
                self.last_error = ""
                self.throughput.add(
                    begun_s,
                    trio.current_time(),
                    sent_bytes=len(pack.data),
                    content_bytes=sum(one.plain_bytes for one in pack.entries),
                )
                return
            await trio.sleep(delay_s)
            sent.await_limit()
            delay_s = min(2 * delay_s, UPLOAD_RETRY_S_MAX)

    async def _create(self, pack: Pack) -> None:
        """Store a pack in the bucket, with one attempt.

        Raises:
            FormatError: another object has the pack's random name; a later batch uploads the
                blocks.
        """
        with contextlib.suppress(PreconditionError):
            await self._store.create(pack.key, pack.data)
            return
        # Pack names are random, so this host should have stored the object in an earlier attempt.
        # The content is compared to be sure, because the store's reply to that attempt was lost.
        if (await self._store.get(pack.key, len(pack.data))).data != pack.data:
            raise FormatError(
                pack.key, "the object differs from the pack that this host uploaded with this key"
            )


def _place_of(entry: PackEntry, record: PackRecord) -> Placed:
    return Placed(entry.block, entry.hash, record.pack, entry.offset, entry.stored_bytes)
