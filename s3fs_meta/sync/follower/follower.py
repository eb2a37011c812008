"""The follower: a read-only mount that shows each new txg of another host atomically.

Owns: when to poll for the next txg; the order of the steps (apply the txg on a second connection,
switch to it, remove blocks); when to restore instead. Does not know: FUSE, leases, rows.
Keeps: no reply mixes two txgs. A second connection commits a txg in a thread, while the mount's
connection reads the previous txg. Then the mount's connection switches without yielding.
Tasks: ``run`` is one background task. One txg is applied at a time; only a task in ``paused`` may
use the second connection.
Design: docs/design/concurrency.md, "A follower switches".
"""

import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import trio

from s3fs_meta.background_task import in_thread, in_thread_or_here
from s3fs_meta.bucket_errors import OlderBucketError
from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.clock import Clock
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.codec.image import NO_HASH, ManifestRef
from s3fs_meta.errors import (
    FormatError,
    NewerFormatError,
    ObjectMissingError,
    S3fsError,
)
from s3fs_meta.limits import (
    FOLLOW_LISTING_POLLS,
    FOLLOW_RESYNC_S,
    FOLLOW_TOUCHED_MAX,
    WAL_CHECKPOINT_BYTES,
)
from s3fs_meta.meta import changesets
from s3fs_meta.meta.changesets import Touched
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.meta.tables import dentries
from s3fs_meta.model import BlockId
from s3fs_meta.objects.billing import Cause, part
from s3fs_meta.state_paths import unfinished
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import FetchedChangelog, Link
from s3fs_meta.sync.chain.replay import NeedsImageError, Replayer
from s3fs_meta.sync.follower import follower_resync
from s3fs_meta.sync.kernel import Kernel, SwitchChanges
from s3fs_meta.sync.volume import Volume

_log = logging.getLogger(__name__)


class Follower:
    """Advances the state that one read-only mount shows, txg by txg."""

    def __init__(
        self,
        volume: Volume,
        cache: BlockCache,
        kernel: Kernel,
        clock: Clock,
        *,
        interval_s: float,
        degrade: Callable[[str], None],
    ) -> None:
        """Create a follower that shows the txg of the opened database.

        Args:
            volume: a filesystem that was opened to follow another host.
            cache: the mount's block cache.
            kernel: drops cached replies that are no longer valid after a txg.
            clock: the clock for the times that ``status`` shows.
            interval_s: the time between two polls for the next txg.
            degrade: called with the reason if the mount can no longer show any txg.
        """
        self._volume = volume
        self._db = volume.db
        self._cache = cache
        self._kernel = kernel
        self._clock = clock
        self._interval_s = interval_s
        self._degrade = degrade
        self._applier: Database | None = None
        # names and inodes changed by the txg that is being applied; None if there are too many
        self._touched: Touched | None = None
        # blocks that applied txgs removed, but whose cache files still exist
        self._removed_blocks: list[BlockId] = []
        # False if the kernel may have replies that are older than the shown txg
        self._is_finished = True
        self._switch_lock = trio.Lock()
        self._ended = trio.Event()
        self._missed = 0  # number of polls without a new txg since the last listing
        self._resync_not_before_s = -math.inf
        self._resync_error = ""  # the reason why the last restore failed
        self._position = volume.position
        # reason for showing only local state; "" if the bucket responds
        self.offline = volume.offline
        self.polled_ns = 0
        self.last_error = ""

    @property
    def link(self) -> Link:
        """Return the chain position of the txg that the mount shows."""
        return self._position.link

    # --- schedule polls ------------------------------------------------------------------------

    async def run(self) -> None:
        """Poll for new txgs at regular intervals and show them, until cancelled or closed."""
        while not self._ended.is_set():
            await self.poll_once()
            with trio.move_on_after(self._interval_s):
                await self._ended.wait()

    @part(Cause.FOLLOWING)
    async def poll_once(self) -> None:
        """Show new txgs; if they are unavailable, keep showing the current txg."""
        async with self._switch_lock:
            if self._ended.is_set():
                return
            try:
                await self.catch_up()
                self.last_error = ""
                if self.offline:
                    _log.warning("the bucket responds again; showing txg %d", self.link.txg)
                    self.offline = ""
            except (S3fsError, OSError) as exc:
                if str(exc) != self.last_error:
                    _log.warning(
                        "cannot read the next txg from the bucket, still showing txg %d: %s",
                        self.link.txg,
                        exc,
                    )
                self.last_error = str(exc)

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Apply no txg during the with-block, so that the caller may use the second connection."""
        async with self._switch_lock:
            yield

    async def close(self) -> None:
        """Stop polling for txgs, and close the second connection."""
        self.end()
        await self.close_applier()

    def end(self) -> None:
        """Stop polling for txgs, now or after the running poll. Never yields to other tasks."""
        self._ended.set()

    async def close_applier(self) -> None:
        """Close the second connection, if it is open; the next txg opens it again."""
        if self._applier is not None:
            await in_thread_or_here(self._applier.close)
            self._applier = None

    async def applier(self) -> Database:
        """Return the second connection, which applies txgs; call this only inside ``paused``."""
        if self._applier is None:
            self._applier = await in_thread(Database.open, self._db.path, self._db.pragmas)
        return self._applier

    # --- apply one txg -------------------------------------------------------------------------

    async def catch_up(self, *, must_list: bool = False) -> None:
        """Show the newest txg of the bucket; the caller must be ``poll_once`` or inside ``paused``.

        Args:
            must_list: list the changelogs if the next changelog is missing, because garbage
                collection may have deleted it while later changelogs still exist.

        Raises:
            S3fsError: a txg is unavailable; the mount shows the complete state of the txg before
                it.
        """
        try:
            await self._show_applied()
            while fetched := await self._poll(must_list=must_list):
                await self._take(fetched)
        except NeedsImageError as exc:
            await self._resync(str(exc), exc.image)
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError) as exc:
            await self._resync(str(exc), None)

    async def _poll(self, *, must_list: bool) -> FetchedChangelog | None:
        """Return the changelog after the shown txg, or None if there is none.

        Sends one request; lists the bucket after FOLLOW_LISTING_POLLS polls without a new txg.
        """
        volume = self._volume
        try:
            fetched = await chain.fetch_next(volume.store, volume.keyring, volume.uuid, self.link)
        except ObjectMissingError:
            self._missed += 1
            if must_list or self._missed >= FOLLOW_LISTING_POLLS:
                await self._require_next()
            fetched = None
        self.polled_ns = self._clock.now_ns()
        return fetched

    async def _require_next(self) -> None:
        """Raise an error if the chain ends before the shown txg, or has a gap right after it."""
        volume = self._volume
        found = await chain.numbers_from(volume.store, volume.keyring, self.link.txg)
        self._missed = 0
        if not found and self.link.hash != NO_HASH:
            url = self._volume.store.url
            raise OlderBucketError(url, self.link.txg, f"{key_of(self.link.txg)} is missing")
        if found and found[-1] > self.link.txg and self.link.next_txg not in found:
            raise ObjectMissingError(key_of(self.link.next_txg))

    async def _take(self, fetched: FetchedChangelog) -> None:
        """Apply one txg on the second connection, then show it."""
        volume, applier = self._volume, await self.applier()
        self._touched = Touched(set(), set(), set(), set())
        replayer = Replayer(volume.store, volume.keyring, volume.uuid, applier, heard=self._hear)
        self._removed_blocks += await replayer.apply(fetched)
        changes = await in_thread(_switch_changes, applier, self._touched)
        await self._show(changes, fetched.link)
        if applier.wal_bytes > WAL_CHECKPOINT_BYTES:
            await in_thread(applier.checkpoint)
            self._db.go_on()  # no connection reads the WAL any more, so the next txg begins it anew

    async def _show_applied(self) -> None:
        """Show the last applied txg if an error or a cancellation prevented that before.

        The txg cannot be applied again, because its changes would no longer fit the rows. If only
        the steps after the switch failed, they are repeated.
        """
        link = None if self._applier is None else chain.recorded(self._applier)
        if link is not None and link != self.link:
            await self._show(None, link)
        elif not self._is_finished:
            await self._finish_switch(None)

    def _hear(self, changeset: bytes) -> None:
        """Collect the rows that a section of a txg changes, up to a limit. The call blocks."""
        known = self._touched
        if known is None:
            return
        new = changesets.touched(changeset)
        known.names.update(new.names)
        known.cookies.update(new.cookies)
        known.inodes.update(new.inodes)
        known.contents.update(new.contents)
        if len(known.names) + len(known.inodes) + len(known.contents) > FOLLOW_TOUCHED_MAX:
            self._touched = None

    async def _resync(self, why: str, image: ManifestRef | None) -> None:
        """Restore the newest txg into a second database, and switch to that database.

        Raises:
            StoreError, CorruptionError: the newest txg is unavailable.
            S3fsError: the last restore began less than FOLLOW_RESYNC_S ago.
        """
        if trio.current_time() < self._resync_not_before_s:
            raise S3fsError(
                self._resync_error
                or f"{why}; the newest txg is restored at most once in {FOLLOW_RESYNC_S:.0f} s"
            )
        self._resync_not_before_s = trio.current_time() + FOLLOW_RESYNC_S
        _log.warning(
            "restoring the newest txg from an image, and showing txg %d until then: %s",
            self.link.txg,
            why,
        )
        self.last_error = f"restoring the newest txg, because {why}"
        self._resync_error = ""
        try:
            await self._restore_and_switch(image)
        except (S3fsError, OSError) as exc:
            self._resync_error = str(exc)
            raise

    async def _restore_and_switch(self, image: ManifestRef | None) -> None:
        path, link = await follower_resync.restore_beside(
            self._volume, await self.applier(), self.link, image, self._cache, self._clock
        )
        await self.close_applier()
        await self._cache.forget_removed(self._cache.index.blocks())
        try:
            await self._kernel.before_switch(None)
            without_row = self._cache.index.blocks()
            failure = self._exchange(path, link)
            self._is_finished = False
        finally:
            self._kernel.at_switch()
        # Remove these files first. If a later step failed, they would be in no list any more.
        await self._cache.evictor.remove_files(without_row)
        if failure is not None:
            await self._cache.forget_removed(self._cache.index.blocks())
        await self._finish_switch(None)
        await in_thread_or_here(
            image_copy.remove, unfinished(self._volume.state_dir.tmp, "gone.db")
        )
        if failure is not None:
            raise failure
        _log.info("restored the newest txg, showing txg %d", link.txg)

    def _exchange(self, path: Path, link: Link) -> S3fsError | None:
        """Switch to another database; on failure keep the current database and return the error.

        If the current database cannot be opened again, the mount is degraded.
        """
        failure = None
        try:
            self._db.exchange(path, self._volume.state_dir.tmp)
        except S3fsError as exc:
            failure = exc
            if self._db.is_closed:
                why = "the local database was lost while a restored database replaced it"
                self._degrade(f"{why}: {exc}; unmount, and mount again")
                raise
        shown = link if failure is None else chain.recorded(self._db)
        if shown is not None:
            self._position.advance(shown)
        self._cache.load()
        self._removed_blocks = []
        return failure

    async def _show(self, changes: SwitchChanges | None, link: Link) -> None:
        try:
            await self._kernel.before_switch(changes)
            self._db.go_on()
            self._cache.evictor.reconsider()  # blocks with healed content may now be evicted
            self._position.advance(link)
        finally:
            self._kernel.at_switch()
        await self._finish_switch(changes)

    async def _finish_switch(self, changes: SwitchChanges | None) -> None:
        """Make the kernel drop replies older than the shown txg, then remove removed blocks."""
        self._is_finished = False
        await self._kernel.after_switch(changes)
        await self._cache.forget_removed(self._removed_blocks)
        self._removed_blocks = []
        self._is_finished = True


def _switch_changes(db: Database, touched: Touched | None) -> SwitchChanges | None:
    """Return the names and inodes that the last applied txg changed, or None if there are too many.

    The call blocks.
    """
    if touched is None:
        return None
    names = touched.names
    for parent, cookie in touched.cookies:
        name = dentries.name_at(db, parent, cookie)
        if name is not None:
            names.add((parent, name))
    return SwitchChanges(names, touched.inodes, touched.contents)
