"""Durability of operations on this host: group commit, fsync, background sync.

Owns: the order of a sync (block files, then COMMIT, then the WAL); the times at which groups of
operations are committed; the ``commit=`` interval. Does not know: the store.
Keeps: an fsync or a background sync makes the content of every file durable, then the rows. Rows
may become durable before the content to which they refer: by another sync, for example when the WAL
is extended, or if data is written during a sync. After a crash, the next mount checks this content.
Tasks: ``run_group_commit`` and ``run_background_sync`` run as one task each per mount; any fsync
handler may call ``sync_file``.
Design: docs/design/durability.md, "From write to fsync".
"""

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.cache.crash_safety.quick_thread import QuickThread
from s3fs_meta.errors import DatabaseError
from s3fs_meta.limits import (
    GROUP_AGE_S_MAX,
    GROUP_DELAY_S,
    INTENT_LOG_BYTES,
    WAL_BYTES_MAX,
    WAL_ROOM_BYTES,
    WAL_ROOM_PIECE_BYTES,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.group_listeners import LossStep
from s3fs_meta.meta.db.wal import Wal
from s3fs_meta.meta.tables import cached_blocks
from s3fs_meta.meta.tables.pending import ChangeRecorder
from s3fs_meta.model import Ino
from s3fs_meta.mount_state import MountStatus

_log = logging.getLogger(__name__)


class _Commit(NamedTuple):
    """A commit that becomes durable with a sync of the WAL."""

    begun: tuple[int, int]  # numbers of the last change and the last timestamp change in it
    mark: int  # number of the last change record in the commit
    settled: int  # the files contain all intent log entries up to this number


class Durability:
    """Commits and syncs the changes of one mount."""

    def __init__(
        self,
        db: Database,
        cache: BlockCache,
        status: MountStatus,
        *,
        commit_interval_s: float,
        recorder: ChangeRecorder,
        collect: Callable[[], Awaitable[object]],
    ) -> None:
        """Store the arguments; the ``run_…`` methods commit and sync.

        Args:
            db: the mount's database.
            cache: the mount's block cache.
            status: the state of the mount; becomes degraded if a write to the disk fails.
            commit_interval_s: the time between two background syncs.
            recorder: records the changes of each commit group.
            collect: makes the kernel write back dirty pages.
        """
        self._db = db
        self._cache = cache
        self._status = status
        self._commit_interval_s = commit_interval_s
        self._opened = trio.lowlevel.ParkingLot()  # ``run_group_commit`` waits here for a group
        self._room_wanted = trio.Event()
        self._sync_lock = trio.Lock()
        self._recorder = recorder
        self.collect = collect
        self.synced_mark = 0  # number of the last change record that is on the disk
        # Numbers of the last change and the last timestamp change that are on the disk.
        self._synced = -1, -1
        # Numbers of the last change and the last timestamp change that ``sync`` has committed.
        self._committed = -1, -1
        self._log_lock = trio.Lock()
        self._log_thread = QuickThread()
        self._broken = ""  # reason why every later sync fails; "" before the first failure
        db.listeners.when_opened(self._opened.unpark_all)
        db.listeners.when_lost(LossStep.REFUSE, self._group_lost)

    def _group_lost(self) -> None:
        self._give_up("the last operations were lost")

    def _give_up(self, why: str) -> None:
        """Refuse all later changes and syncs, because some operations may not be durable."""
        self._broken = self._broken or why
        self._status.degrade(why)

    def _require_not_broken(self) -> None:
        self._notice_log()
        if self._broken:
            raise DatabaseError(self._broken)

    def _notice_log(self) -> None:
        """Refuse later changes and syncs if the WAL has failed for good, as after a failed sync."""
        if self._db.wal is not None and self._db.wal.failure and not self._broken:
            self._give_up(f"the local disk failed to sync: {self._db.wal.failure}")

    async def run_group_commit(self) -> None:
        """Commit each group once it is idle or has reached its maximum age, until cancelled.

        A commit costs as much as ten operations, so successive operations share a group.
        """
        while True:
            if not self._db.in_group:
                await self._opened.park()
            end_s, operations = trio.current_time() + GROUP_AGE_S_MAX, -1
            while self._db.group_operations != operations:
                operations = self._db.group_operations
                await trio.sleep(min(GROUP_DELAY_S, max(end_s - trio.current_time(), 0.0)))
                if trio.current_time() >= end_s:
                    break
            self.commit()
            if self._db.in_group:  # the commit failed, and the commit group stays open
                await trio.sleep(self._commit_interval_s)

    def commit(self) -> None:
        """Commit the open group; on failure the mount becomes read-only.

        The group is then lost, or stays open if a statement before its COMMIT failed. The
        operations of the next group measure free disk space again.
        """
        self._cache.disk.expire()
        try:
            self._db.commit()
        except DatabaseError as exc:
            _log.error(
                "cannot commit operations to the database; the mount becomes read-only: %s", exc
            )
            self._give_up(f"the last operations were lost: {exc}")
        self._notice_log()

    async def run_background_sync(self) -> None:
        """Sync all changes every ``commit=`` seconds, until cancelled.

        This includes data that programs have written to files that are still open.
        """
        while True:
            await trio.sleep(self._commit_interval_s)
            await self.collect()
            try:
                await self.sync_all()
            except (OSError, DatabaseError) as exc:
                self._status.degrade(f"background sync failed: {exc}")

    async def sync_file(self, _ino: Ino, *, data_only: bool = False) -> None:
        """Make the content, name and attributes of one file durable, as fsync(2) requires.

        Earlier operations on all other files become durable, too.

        Args:
            data_only: timestamps need not become durable, as with fdatasync(2).

        Raises:
            OSError, DatabaseError: the file is not durable; the mount is read-only from now on.
        """
        await self.sync(data_only=data_only, may_log=True)
        wal = self._db.wal
        if wal is None:
            return
        self._recorder.expect_few_rows()
        if not self._db.pragmas.survives_power_loss:
            return
        if wal.lacks_room or self._cache.block_sync.wants_log:
            self._room_wanted.set()

    async def run_log_room(self) -> None:
        """Keep space allocated for the WAL and the intent log while programs call fsync.

        Runs until cancelled. Without allocated space, each sync of a log also waits for the journal
        of the disk's filesystem.
        """
        while True:
            await self._room_wanted.wait()
            self._room_wanted = trio.Event()
            try:
                await self.make_log_room()
            except (OSError, DatabaseError) as exc:
                self._give_up(f"the local disk failed to sync: {exc}")

    async def make_log_room(self) -> None:
        """Allocate space for the WAL and the intent log if the disk has enough free space."""
        wal, block_sync = self._db.wal, self._cache.block_sync
        assert wal is not None, "the database must use a write-ahead log"
        if wal.lacks_room and self._cache.disk.unheld_bytes() < WAL_ROOM_BYTES:
            wal.forgo_room()
        elif wal.lacks_room:
            await self._make_room(wal)
        if block_sync.wants_log and self._cache.disk.unheld_bytes() >= INTENT_LOG_BYTES:
            await block_sync.prepare_log()

    async def _make_room(self, wal: Wal) -> None:
        """Allocate space at the end of the WAL in pieces, then sync the WAL.

        The open group is committed before each piece. Otherwise its block files could be older than
        the WAL, and after a kill the next mount would not recognise that these files belong to an
        uncommitted group.
        """
        for room_bytes in range(WAL_ROOM_PIECE_BYTES, WAL_ROOM_BYTES + 1, WAL_ROOM_PIECE_BYTES):
            self.commit()
            self._require_not_broken()
            wal.append_room(room_bytes)
            await trio.lowlevel.checkpoint()
        async with self._log_lock:  # wait for the sync of a running fsync
            await in_thread(self._db.sync_wal)

    async def sync_all(self) -> None:
        """Make every acknowledged operation durable.

        Afterwards uploaded blocks become clean, and doomed blocks are removed.
        """
        async with self._sync_lock:
            self._cache.index.sealed_again.clear()
            uploaded, doomed = cached_blocks.settling(self._db)
            await self.sync()
            await self._cache.settle(uploaded, doomed)
            if self._db.wal_bytes > WAL_BYTES_MAX:
                await self._shorten_log()

    async def _shorten_log(self) -> None:
        """Copy the write-ahead log into the database; if this fails, the log continues to grow.

        Raises:
            DatabaseError: a sync of the log failed, so all later syncs fail, too.
        """
        try:
            await in_thread(self._db.checkpoint)
        except DatabaseError as exc:
            if self._db.wal is None or self._db.wal.failure:
                raise
            _log.warning("the checkpoint failed; the next background sync retries it: %s", exc)
        finally:
            self._notice_log()

    async def sync(self, *, data_only: bool = False, may_log: bool = False) -> None:
        """Make every operation before this call durable: first the content of files, then rows.

        Rows that are already durable are not synced again. Calls that wait at the same time share
        one sync of the log.

        Args:
            data_only: operations that change only timestamps need not become durable.
            may_log: content may be written to the intent log instead of the block files.

        Raises:
            OSError, DatabaseError: operations are not durable. The mount is read-only from now on,
                and every later call also fails, because the kernel reports a lost page only once.
        """
        self._require_not_broken()
        try:
            if may_log and self._db.wal is not None:
                commit = await self._log_content(data_only=data_only)
            else:
                await self._sync_files()
                commit = None
            self._require_not_broken()
            if commit is None and self._is_synced(data_only=data_only):
                return
            if commit is None:
                self._db.commit_durable()
                commit = self._note_commit()
                await self._sync_log(commit.begun)
            self._cache.block_sync.note_durable(commit.settled)
        except (OSError, DatabaseError) as exc:
            self._give_up(f"the local disk failed to sync: {exc}")
            raise
        self._require_not_broken()
        self.synced_mark = max(self.synced_mark, commit.mark)

    async def _sync_files(self) -> None:
        """Sync the files of all blocks; in WAL mode, also commit the group.

        The commit runs during the sync of the content, because it takes as long as syncing a small
        file.
        """
        meanwhile = None if self._db.wal is None else self._db.commit
        await self._cache.block_sync.sync_files(meanwhile=meanwhile)

    async def _log_content(self, *, data_only: bool) -> _Commit | None:
        """Make the content of all blocks durable, in the intent log if possible.

        Returns:
            The commit whose rows became durable together with the content; None if the caller must
            still check and sync the rows.
        """
        block_sync, commits = self._cache.block_sync, list[_Commit]()

        def commit() -> None:
            self._db.commit()
            if not self._is_synced(data_only=data_only):
                commits.append(self._note_commit())

        def sync_rows() -> None:
            if commits:
                self._db.sync_wal()

        # Of two concurrent syncs of the WAL, only one would learn from the kernel of a lost page.
        async with self._log_lock:
            is_logged = await block_sync.log_writes(meanwhile=commit, afterwards=sync_rows)
            if commits:
                self._synced = max(self._synced, commits[0].begun)
                return commits[0]
        if not is_logged:
            await self._sync_files()
        return None

    def _note_commit(self) -> _Commit:
        """Record the commit that has just finished, and return the changes that it contains."""
        self._committed = begun = self._db.changes_begun, self._db.times_begun
        return _Commit(begun, self._recorder.last_seq, self._cache.block_sync.settled)

    async def _sync_log(self, begun: tuple[int, int]) -> None:
        """Sync the WAL if no other call has synced it since these operations were committed."""
        async with self._log_lock:
            self._require_not_broken()
            if self._synced < begun:
                covered = self._committed
                await self._log_thread.run(self._db.sync_wal)
                self._synced = max(self._synced, covered)

    def _is_synced(self, *, data_only: bool) -> bool:
        """Return whether the rows of all previous operations are on the disk."""
        changes, times = self._synced
        has_times = data_only or times == self._db.times_begun
        return has_times and changes == self._db.changes_begun
