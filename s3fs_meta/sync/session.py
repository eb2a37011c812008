"""A session: one opened filesystem with its cache and its background tasks, without FUSE.

Owns: the construction and connection of the parts, recovery after a crash, the order of starts and
stops.
Does not know: FUSE, the command line.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio

from s3fs_meta.background_task import continuing, in_thread_or_here, is_orderly
from s3fs_meta.bucket_errors import LostLeaseError
from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.cache.crash_safety import recovery
from s3fs_meta.cache.fetching.fetcher import DamageHandlers
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.clock import Clock
from s3fs_meta.codec.lease import Head
from s3fs_meta.errors import (
    DatabaseError,
    FencedError,
    ReadOnlyStateError,
    S3fsError,
    UsageError,
)
from s3fs_meta.limits import (
    IMAGE_CHECK_S,
    RECLAIM_INTERVAL_S,
)
from s3fs_meta.meta.tables import cached_blocks, local_state, packs, pending
from s3fs_meta.model import Ino
from s3fs_meta.mount_state import MountState, MountStatus
from s3fs_meta.objects.throttle import Throttles
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.chain import abandoned_txgs, chain
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.changelog.level_writer import Leveler
from s3fs_meta.sync.changelog.pending_merge import Condenser
from s3fs_meta.sync.changelog.writer import Shipper
from s3fs_meta.sync.durability import Durability
from s3fs_meta.sync.follower import promotion
from s3fs_meta.sync.follower.follower import Follower
from s3fs_meta.sync.history.garbage.older_bucket import Publisher
from s3fs_meta.sync.history.garbage.reclaim import Reclaimer
from s3fs_meta.sync.history.index.index_writer import Indexer
from s3fs_meta.sync.history.newest_locations import newest_state
from s3fs_meta.sync.hooks import Hook, no_hook
from s3fs_meta.sync.image.writer import Imager
from s3fs_meta.sync.kernel import Kernel, NoKernel
from s3fs_meta.sync.opening.opening import (
    can_give_back,
    close_filesystem,
    let_go,
    note_kept_lease,
    release_after_error,
)
from s3fs_meta.sync.progress import Progress, no_progress
from s3fs_meta.sync.replication_lag import ReplicationLag
from s3fs_meta.sync.superblock_watch import put_back_missing, tend
from s3fs_meta.sync.upload.bounds import DEFAULT_BOUNDS, UploadBounds
from s3fs_meta.sync.upload.compaction import Compactor
from s3fs_meta.sync.upload.healing import DamageMarker, Healer
from s3fs_meta.sync.upload.packer import Packer
from s3fs_meta.sync.upload.uploader import Uploader
from s3fs_meta.sync.volume import Volume

_log = logging.getLogger(__name__)
_NO_KERNEL: Final = NoKernel()


class Session:
    """One opened filesystem with its cache and tasks: a mount without request handlers."""

    def __init__(
        self,
        volume: Volume,
        options: SessionOptions,
        clock: Clock,
        hook: Hook = no_hook,
        *,
        kernel: Kernel = _NO_KERNEL,
        bounds: UploadBounds = DEFAULT_BOUNDS,
        throttles: Throttles | None = None,
    ) -> None:
        """Create the parts of a session, without starting a task.

        Args:
            volume: the opened filesystem.
            options: the mount options.
            clock: the clock for the times in ``status``.
            hook: called after each named step.
            kernel: the kernel of the mountpoint.
            bounds: maximum sizes of batches of blocks and of changelog objects.
            throttles: the rate limits; None to use the options.
        """
        self.volume = volume
        self.options = options
        self._hook = hook
        self._is_recovered = False
        self.db = volume.db
        self.status = MountStatus(
            read_only=volume.options.read_only,
            rows_changed=volume.db.rows_changed,
            undo=volume.db.rollback,
        )
        self.damage = DamageMarker(volume.db, self.status)
        self.newest = newest_state(volume) if volume.temporary else None
        handlers = DamageHandlers(self.damage.note)
        if self.newest is not None:
            handlers = handlers._replace(find_other_copy=self.newest.find)
        self.files = BlockFiles(volume.state_dir.blocks, volume.state_dir.tmp)
        self.cache = BlockCache(
            volume.db,
            volume.store,
            volume.keyring,
            self.files,
            options,
            handlers,
            throttles=throttles,
        )
        self.throttles = self.cache.throttles
        self.durability = Durability(
            volume.db,
            self.cache,
            self.status,
            commit_interval_s=options.commit_interval_s,
            recorder=volume.recorder,
            collect=kernel.collect,
        )
        self._make_upload(bounds)
        self._make_upkeep()
        self.follower: Follower | None = None
        if options.follow:
            self.follower = Follower(
                volume,
                self.cache,
                kernel,
                clock,
                interval_s=options.poll_interval_s,
                degrade=self.status.degrade,
            )

    def _make_upload(self, bounds: UploadBounds) -> None:
        """Create the parts that upload blocks and changes."""
        volume, options, status = self.volume, self.options, self.status
        self.uploader = Uploader(
            volume.db,
            self.cache,
            volume.store,
            Packer(
                self.files,
                volume.keyring,
                options.compression,
                lambda: volume.keeper.epoch,
                pack_bytes=bounds.pack_bytes,
            ),
            status,
            make_durable=self.durability.sync,
            settle=self.durability.sync_all,
            confirm_hold=volume.keeper.confirm,
            bounds=bounds,
            hook=self._hook,
        )
        self.shipper = Shipper(
            volume,
            self.uploader,
            self.durability,
            status,
            interval_s=options.sync_interval_s,
            publish_as_txg=self._publish_older,
            hook=self._hook,
        )
        self.imager = Imager(volume, self.cache, self.shipper, self.durability, status, self._hook)
        self.condenser = Condenser(volume.db, volume.recorder, lambda: self.shipper.frozen_seq)
        self.unshipped = ReplicationLag(
            volume.db,
            lambda: self.shipper.confirmed_seq,
            lambda: self.durability.synced_mark,
        )

    def _make_upkeep(self) -> None:
        """Create the parts that delete garbage, compact packs and heal damage."""
        volume, status = self.volume, self.status
        self._upkeep = trio.CancelScope()
        self._upkeep_ended = trio.Event()
        self._upkeep_ended.set()
        self.healer = Healer(volume.db, self.cache, status, self.damage)
        self.compactor = Compactor(volume, self.cache, self.files, self.damage.mark)
        self.reclaimer = Reclaimer(volume, self.shipper, self.durability, hook=self._hook)
        self._publisher = Publisher(
            volume.db, volume.store, self.damage, self.healer, self.imager.publish_as_txg
        )
        self.indexer = Indexer(volume, status, self._hook)
        self.leveler = Leveler(volume, status, self._hook, self.indexer.take)

    async def _publish_older(self, progress: Progress) -> None:
        """Publish the local state as the next txg, for example after the bucket was reset."""
        await self._publisher.publish(progress)

    @property
    def link(self) -> Link:
        """Return the chain position of the txg that a follower shows or a writer shipped last."""
        return self.volume.position.link

    @property
    def offline(self) -> str:
        """Return why the mount shows only local state, or "" if the bucket is reachable."""
        return self.volume.offline if self.follower is None else self.follower.offline

    def recover(self) -> None:
        """Repair the rows after an unclean shutdown of an earlier run.

        This method must be called before any task starts. After a clean unmount that has uploaded
        all blocks, it changes no row. It removes no block file, because the rows may not be on the
        disk yet; the first sync removes obsolete files.
        """
        self.db.begin_local()
        cached_blocks.unseal_all(self.db)
        for pack, _key in packs.uploading(self.db):
            packs.condemn(self.db, pack)
        self.files.clear_tmp()
        self.volume.state_dir.clear_unfinished()
        if self.volume.power_lost:
            recovery.distrust(self.db, self.files)
            local_state.put(self.db, "suspect", "1")
            local_state.delete(self.db, "power_lost")
        self.db.commit_durable()
        self.cache.load()
        if local_state.get(self.db, "suspect") == "1":
            self.cache.suspects.mark_all()
        if self.follower is not None:
            self.db.mark_changed(False)
            self.db.follow()
        self._is_recovered = True

    def start(self) -> None:
        """Start serving requests, including changes unless the filesystem is mounted read-only."""
        if self.status.state is not MountState.STARTING:
            return  # a background task failed before the start
        serves = MountState.SERVING if self.follower is None else MountState.FOLLOWING
        self.status.enter(serves)
        self.damage.wake()  # cached blocks may heal blocks that fsck marked as damaged

    async def run(self) -> None:
        """Run the background tasks until cancelled; if one fails, the others continue."""
        tasks: dict[str, Callable[[], Awaitable[None]]] = {
            "group commit": self.durability.run_group_commit,
            "background sync": self.durability.run_background_sync,
        }
        if self.follower is not None:
            tasks["following"] = self._follow
        # A follower does not run this task, but verifies each suspect block before its first use.
        elif self.cache.suspects.are_marked:
            tasks["verification"] = self.verify_copies
        if self.newest is not None:
            tasks["lost content"] = self.newest.run
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_all, tasks)
            if not self.status.read_only:
                nursery.start_soon(self._write)

    async def _write(self) -> None:
        """Run a writer's tasks: uploads until cancelled, upkeep tasks until ``flush_at_end``."""
        upkeep: dict[str, Callable[[], Awaitable[None]]] = {
            "changelog": self.shipper.run,
            "condensing": self.condenser.run,
            "image": self._run_images,
            "reclaim": self._run_reclaim,
            "levels": self.leveler.run,
            "history index": self.indexer.run,
            "healing": self.healer.run,
            "block files": self.cache.make_files_ahead,
            "log room": self.durability.run_log_room,
            "early write-back": self.cache.block_sync.early.run,
        }
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.supervise, "upload", self.uploader.run)
            nursery.start_soon(self.run_upkeep, upkeep)

    async def run_upkeep(self, tasks: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
        """Run tasks that must finish before the last upload, which ships their changes."""
        self._upkeep_ended = trio.Event()
        try:
            with self._upkeep:
                await self._run_all(tasks)
        finally:
            self._upkeep_ended.set()

    async def _run_all(self, tasks: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
        async with trio.open_nursery() as nursery:
            for name, task in tasks.items():
                nursery.start_soon(self.supervise, name, task)

    async def _follow(self) -> None:
        """Follow another host's writer; after a promotion, run the tasks of a writer."""
        assert self.follower is not None, "only a follower runs this task"
        await self.follower.run()
        async with self.follower.paused():  # wait until a running promotion has finished
            promoted = not self.status.read_only
        if promoted:
            await self._write()

    async def promote(self, *, force: bool = False, unsafe: bool = False) -> Link:
        """Make a follower the writer; return the chain position of its fence record.

        Raises:
            The same errors as ``promotion.take_over``.
            UsageError: this mount is not, or no longer, a follower.
            ReadOnlyStateError: the mount began to end, or became read-only, during the promotion.
                The mount is the writer, but accepts no changes; its end releases the lease.
        """
        follower = self.follower
        if follower is None:
            raise UsageError("only a mount with -o ro,follow can be promoted")
        async with follower.paused():
            if self.status.state is not MountState.FOLLOWING:
                raise UsageError(
                    f"the mount is no longer a follower: its state is {self.status.state.value}"
                )
            link = await promotion.take_over(
                self.volume, follower, self._hook, force=force, unsafe=unsafe
            )
            await follower.close_applier()
            self._lead(link)
            follower.end()  # not earlier: after an error above, the mount continues as a follower
        if not self.status.writable:
            raise ReadOnlyStateError(self.status.why or self.status.state.value)
        return link

    def _lead(self, link: Link) -> None:
        """Turn a follower's session into a writer's session, without a schedule point.

        Raises:
            DatabaseError: the local disk is full or failed; the session is still a follower's.
        """
        self.db.lead()
        self.db.counters.begin_txg(link.next_txg)
        self.volume.position.advance(link)
        self.status.promote()
        self.damage.wake()
        _log.info(
            "promoted from follower to writer; the first txg of this writer is %d", link.next_txg
        )

    async def supervise(self, name: str, task: Callable[[], Awaitable[None]]) -> None:
        """Run a background task; if it fails, the mount becomes read-only, but loses no change."""
        try:
            await continuing(name, task)
        except Exception:  # noqa: BLE001 - a supervisor: logged, and the mount turns read-only
            _log.exception("the background task %r failed; the mount becomes read-only", name)
            self.status.break_off(f"the background task {name!r} failed; see the log")

    async def verify_copies(self) -> None:
        """Compare each suspect cached block with its hash; once all are verified, record that.

        Cached blocks are suspect after a power cut or a failed sync. If a block cannot be verified,
        each later mount verifies all blocks again. Either the block is torn and moving to another
        pack, or its file is unreadable and may be the last copy.
        """
        await self.cache.suspects.verify_all()
        if self.cache.suspects:
            return
        self.db.begin_local()
        local_state.delete(self.db, "suspect")

    async def _run_images(self) -> None:
        """Make an image when one is due; then delete garbage and compact packs."""
        while True:
            await trio.sleep(min(IMAGE_CHECK_S, self.options.image_interval_s))
            if not self.status.writable:
                continue
            try:
                if not await self.image_is_due():
                    continue
                await self.make_image()
                await self.compactor.run()
            except FencedError:
                return
            except (S3fsError, OSError) as exc:
                self.imager.put_off(exc)

    async def _run_reclaim(self) -> None:
        """Delete garbage at regular intervals, even if no image is due."""
        while True:
            await trio.sleep(RECLAIM_INTERVAL_S)
            if self.status.ships:
                await self.reclaimer.run(unless_idle=True)

    async def image_is_due(self) -> bool:
        """Return whether a new image should be made now.

        An image is due if the changelogs since the last image are large compared to that image.
        An image is also due at regular intervals if more than block locations changed, or if only a
        new image allows the deletion of dead packs.
        """
        age_s = (self.volume.clock.now_ns() - self.imager.last_ns) / 1e9
        wanted = self.shipper.since_image.has_news or self.reclaimer.wants_image
        return await self.imager.is_due() or (wanted and age_s > self.options.image_interval_s)

    async def make_image(self, progress: Progress = no_progress) -> Head:
        """Ship all changes, make an image of them, and delete garbage.

        Raises:
            The same errors as ``Imager.make``.
        """
        if self.status.read_only:
            raise ReadOnlyStateError("mounted read-only")
        head = await self.imager.make(progress)
        await self.reclaimer.run()
        return head

    async def flush(self, progress: Progress = no_progress) -> Link | None:
        """Ship all changes that were acknowledged to programs before the call.

        Raises:
            ReadOnlyStateError: the mount is read-only, or became read-only because the disk failed.
            LostBlockError: the only copies of some blocks are lost; all other changes are shipped.
        """
        if self.status.read_only:
            raise ReadOnlyStateError("mounted read-only")
        try:
            link = await self.shipper.ship(progress)
        except (OSError, DatabaseError) as exc:
            # Otherwise the error would depend on whether the group commit has noticed the failure.
            self.durability.commit()
            if not self.status.ships:
                raise ReadOnlyStateError(self.status.why) from exc
            raise
        if link is None:
            await self.shipper.require_shipped(progress)
        self.uploader.require_no_lost_block()
        return link

    async def flush_now(self, progress: Progress = no_progress) -> Link | None:
        """Ship all changes with ``flush``, and restore missing superblock objects."""
        link = await self.flush(progress)
        await self._tend_superblock(put_back_missing)
        return link

    async def _tend_superblock(self, work: Callable[[Volume], Awaitable[None]]) -> None:
        try:
            await work(self.volume)
        except (S3fsError, OSError) as exc:
            _log.warning("cannot check the superblock, will retry at the next flush: %s", exc)

    async def sync_file(self, ino: Ino, *, data_only: bool = False) -> None:
        """Make a file and its names durable, as the ``fsync`` option requires.

        Args:
            data_only: timestamps need not become durable, as with fdatasync(2).

        Raises:
            OSError, DatabaseError: the file is not on the disk.
            S3fsError: with fsync=remote, the file is on the disk but not in the bucket.
        """
        await self.durability.sync_file(ino, data_only=data_only)
        if self.options.fsync == "remote":
            with self.throttles.upload.lifted():
                await self.shipper.wait_until_shipped(self.options.write_timeout_s)

    async def state_of(self, ino: Ino) -> bytes:
        """Return the replication state of a file, as the value of an extended attribute."""
        return (await self.unshipped.state_of(ino)).value.encode()

    async def flush_at_end(self, progress: Progress = no_progress) -> None:
        """Ship all changes, even if only block locations changed.

        Upkeep tasks such as garbage collection end first, including their threads, so that the
        last upload contains their changes and the lease can be released afterwards.
        """
        self._upkeep.cancel()
        await self._upkeep_ended.wait()
        with self.throttles.upload.lifted():
            await self._flush_last(progress)

    async def _flush_last(self, progress: Progress) -> None:
        await self.flush(progress)
        if image_head.is_image_wanted(self.db):
            try:
                await self.make_image(progress)
            except (S3fsError, OSError) as exc:
                _log.warning("cannot create an image now; the next mount will create one: %s", exc)
        await self.shipper.ship(progress, anyway=True)
        await self._tend_superblock(tend)

    async def publish_as_txg(self, progress: Progress = no_progress) -> Head:
        """Publish an image of the local state as the next txg."""
        head = await self.imager.publish_as_txg(progress)
        # Ship the block locations that were recorded after the cut of the image.
        await self.shipper.ship(progress, anyway=True)
        return head

    async def close(self) -> None:
        """Stop the session; unshipped changes stay on this host for the next mount.

        Raises:
            OSError, DatabaseError: the disk failed, or operations were lost; the next mount treats
                this session as crashed.
            StoreError: the lease was not released; the local state is complete.
        """
        was_starting = self.status.state is MountState.STARTING
        if self.status.state is not MountState.STOPPING:
            self.status.enter(MountState.STOPPING, "unmounting")
        if not self._is_recovered:
            await self._close_unrecovered()
            return
        try:
            await self._lead_at_end()
            await self._sync_at_end()
            is_shipped = self.is_everything_shipped or (
                # Check the rows: after a crash, ``db.changed`` is True even for a read-only mount.
                was_starting and can_give_back(self.volume.keeper, self.db, self.volume.keyring)
            )
        except BaseException as exc:
            if not isinstance(exc, Exception):
                _log.warning(
                    "the local state was not synced to the disk in time; the next mount on this"
                    " host treats this end as a crash"
                )
            try:
                if is_orderly(exc):
                    await self._release_if_shipped()  # noqa: ASYNC102 - shields itself
            finally:
                self.volume.db.close()
                let_go(self.volume)
            raise
        if self.volume.keeper.is_held and not is_shipped:
            note_kept_lease()
        try:
            await close_filesystem(self.volume, release=is_shipped)
        except (FencedError, LostLeaseError) as exc:
            # The lease is lost or held by another host, so this host cannot release it.
            _log.warning("cannot release the lease, which was already lost: %s", exc)

    async def _close_unrecovered(self) -> None:
        """Close after a failed recovery; the state stays unclean, so the next mount recovers again.

        No block file is synced, because block files may contain wrong bytes after a power cut.
        """
        try:
            self.db.rollback()
            if can_give_back(self.volume.keeper, self.db, self.volume.keyring):
                await release_after_error(self.volume.keeper)
            elif self.volume.keeper.is_held:
                note_kept_lease()
        finally:
            self.db.close()
            let_go(self.volume)

    async def _release_if_shipped(self) -> None:
        """Release the lease after an error or a cancellation, if the bucket has all changes."""
        try:
            is_unneeded = self.volume.keeper.is_held and self.is_everything_shipped
        except S3fsError as exc:
            _log.warning("the lease is kept, because the local state cannot be read: %s", exc)
            return
        if is_unneeded:
            await release_after_error(self.volume.keeper)

    @property
    def is_everything_shipped(self) -> bool:
        """Return whether the bucket has all changes. Never yields to other tasks."""
        return (
            not self.db.changed
            and not self.uploader.shippable
            and pending.outbox(self.db) is None
            and abandoned_txgs.wanted(self.db) is None
        )

    async def _lead_at_end(self) -> None:
        """Make a follower's rows of cached blocks durable, for the next mount.

        If a failed promotion acquired the lease, release it. The fence record of the promotion may
        be missing from the bucket, but contains no changes.
        """
        if self.follower is not None:
            await self.follower.close()
        if self.db.follows:
            self.db.lead()
            if self.volume.keeper.is_held:
                self.db.begin_local()
                chain.drop_fence(self.db)

    async def _sync_at_end(self) -> None:
        """Sync all block files, so that the next mount need not verify them."""
        await in_thread_or_here(self.files.sync_everything)
        await self.durability.sync()
