"""One opened filesystem with its cache and its background tasks: what a mount runs on.

Owns: putting the parts together, recovery after a crash, the order of starting and stopping.
Does not know: FUSE, the command line.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from s3fs_meta.cache import recovery
from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.cache.block_files import BlockFiles
from s3fs_meta.clock import Clock
from s3fs_meta.codec.lease import Head
from s3fs_meta.errors import FencedError, ReadOnlyStateError, S3fsError
from s3fs_meta.limits import (
    CACHE_BYTES_DEFAULT,
    COMMIT_INTERVAL_S_DEFAULT,
    IMAGE_INTERVAL_S_DEFAULT,
    READ_TIMEOUT_S_DEFAULT,
    WRITE_TIMEOUT_S_DEFAULT,
)
from s3fs_meta.meta import cached, local_state, packs
from s3fs_meta.mount_state import MountState, MountStatus
from s3fs_meta.sync.compaction import Compactor
from s3fs_meta.sync.durability import Durability
from s3fs_meta.sync.hooks import Hook, no_hook
from s3fs_meta.sync.imager import Imager
from s3fs_meta.sync.opening import Opened, close_filesystem
from s3fs_meta.sync.packer import Packer
from s3fs_meta.sync.progress import Progress, no_progress
from s3fs_meta.sync.reclaim import Reclaimer
from s3fs_meta.sync.uploader import Uploader

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a mounted filesystem behaves between its database and the bucket."""

    cache_bytes: int = CACHE_BYTES_DEFAULT
    compression: str = "zstd-1"
    commit_interval_s: float = COMMIT_INTERVAL_S_DEFAULT
    image_interval_s: float = IMAGE_INTERVAL_S_DEFAULT
    read_timeout_s: float = READ_TIMEOUT_S_DEFAULT
    write_timeout_s: float = WRITE_TIMEOUT_S_DEFAULT


class Session:
    """The parts of one mount below the filesystem semantics."""

    def __init__(
        self, opened: Opened, options: SessionOptions, clock: Clock, hook: Hook = no_hook
    ) -> None:
        self.opened = opened
        self.options = options
        self.db = opened.db
        self.status = MountStatus(read_only=opened.read_only)
        self.files = BlockFiles(opened.state_dir.blocks, opened.state_dir.tmp)
        self.cache = BlockCache(
            opened.db,
            opened.store,
            opened.keyring,
            self.files,
            bytes_max=options.cache_bytes,
            read_timeout_s=options.read_timeout_s,
            write_timeout_s=options.write_timeout_s,
        )
        self.durability = Durability(
            opened.db, self.cache, self.status, commit_interval_s=options.commit_interval_s
        )
        packer = Packer(self.files, opened.keyring, options.compression, opened.keeper.epoch)
        self.uploader = Uploader(
            opened.db,
            self.cache,
            opened.store,
            packer,
            make_durable=self.durability.sync,
            settle=self.durability.sync_all,
            may_ship=lambda: self.status.ships,
            confirm_hold=self._confirm_hold,
            break_off=self.status.break_off,
            hook=hook,
        )
        self.imager = Imager(
            opened, self.cache.disk, self.uploader, self.durability, self.status, clock, hook
        )
        self.compactor = Compactor(opened.db, self.cache, self.files, opened.store, opened.keyring)
        self.reclaimer = Reclaimer(
            opened.db, opened.store, opened.keyring, self.durability, hook=hook
        )

    def recover(self) -> None:
        """Bring rows of an earlier run into a state that this one can go on from.

        Runs before any task. After a clean unmount there is nothing to do, and it finds nothing.
        Nothing goes here: what the rows say may not be on the disk yet. The first sync does that.
        """
        self.db.begin_local()
        cached.unseal_all(self.db)
        for pack, _key in packs.uploading(self.db):
            packs.condemn(self.db, pack)
        self.files.clear_tmp()
        self.opened.state_dir.spool.unlink(missing_ok=True)
        if self.opened.crashed:
            recovery.let_strays_go(self.db, self.files)
        if self.opened.power_lost:
            recovery.distrust(self.db, self.files)
            local_state.put(self.db, "suspect", "1")
            local_state.delete(self.db, "power_lost")
        self.db.commit_durable()
        self.cache.load()
        if local_state.get(self.db, "suspect") == "1":
            self.cache.suspect_copies()

    def start(self) -> None:
        """Begin to serve: from now on changes are taken, unless mounted read-only."""
        if self.status.state is MountState.STARTING:  # else a background task has failed already
            self.status.enter(MountState.SERVING)

    async def run(self) -> None:
        """Run the background tasks until cancelled; a failing one never ends the others."""
        tasks: dict[str, Callable[[], Awaitable[None]]] = {
            "group commit": self.durability.run_group_commit,
            "background sync": self.durability.run_background_sync,
        }
        if self.cache.has_suspects:
            tasks["verification"] = self._verify_copies
        if not self.opened.read_only:
            tasks |= {"upload": self.uploader.run, "image": self._run_images}
        async with trio.open_nursery() as nursery:
            for name, task in tasks.items():
                nursery.start_soon(self.supervise, name, task)

    async def supervise(self, name: str, task: Callable[[], Awaitable[None]]) -> None:
        """Run one background task; if it fails, the mount serves reads and keeps everything."""
        try:
            await task()
        except Exception:  # noqa: BLE001 - a supervisor: logged, and the mount turns read-only
            _log.exception("background task %r failed", name)
            self.status.break_off(f"background task {name!r} failed; see the log")

    async def _verify_copies(self) -> None:
        """After a cut of power: compare every copy with its hash, and remember that it was done."""
        await self.cache.verify_copies()
        self.db.begin_local()
        local_state.delete(self.db, "suspect")

    async def _confirm_hold(self) -> None:
        """Turn read-only if another host has taken the filesystem over; raises FencedError then."""
        try:
            await self.opened.keeper.confirm()
        except FencedError as exc:
            self.status.fence(str(exc))
            raise

    async def _run_images(self) -> None:
        """Publish an image at every interval in which something changed."""
        while True:
            await trio.sleep(self.options.image_interval_s)
            if not self.status.writable:
                continue
            try:
                if await self.publish() is not None:
                    await self.compactor.run_once()
            except FencedError:
                return
            except (S3fsError, OSError) as exc:
                self.imager.last_error = str(exc)
                _log.warning("image put off to the next interval: %s", exc)

    async def flush(self, progress: Progress = no_progress) -> Head | None:
        """Carry everything to the bucket; see ``Imager.publish``.

        Raises:
            ReadOnlyStateError: mounted read-only, so without the lease.
            LostBlockError: everything is there but blocks whose only copies are gone.
        """
        head = await self.publish(progress)
        self.uploader.require_whole()
        return head

    async def publish(self, progress: Progress = no_progress) -> Head | None:
        """As ``flush``, without a word on blocks whose only copies are gone."""
        if self.opened.read_only:
            raise ReadOnlyStateError("mounted read-only")
        head = await self.imager.publish(progress)
        if head is not None:
            await self.reclaimer.after_image(head)
        return head

    async def close(self) -> None:
        """Stop: what the bucket does not hold yet stays here for the next mount.

        Raises:
            OSError, DatabaseError: the disk refused, or operations were lost; the next mount
                takes this one for a crash.
            StoreError: the lease was not given back; all else is well.
        """
        if self.status.state is not MountState.STOPPING:
            self.status.enter(MountState.STOPPING, "unmounting")
        try:
            await self._sync_at_end()
        except BaseException:
            self.opened.db.close()
            self.opened.state_dir.unlock()
            raise
        everything_there = not self.db.changed and not self.uploader.shippable
        holds = self.opened.keeper.fenced is None
        try:
            await close_filesystem(self.opened, release=everything_there and holds)
        except FencedError as exc:
            _log.warning("nothing to give back: %s", exc)  # and nothing here that is not there

    async def _sync_at_end(self) -> None:
        """Sync everything, also fetched copies, which the next mount trusts unseen."""
        await trio.to_thread.run_sync(self.files.sync_everything)
        await self.durability.sync()
