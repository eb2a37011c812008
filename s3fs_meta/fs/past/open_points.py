"""The open points in time of one mount: each has a separate temporary database.

Owns: restoring a database when it is first needed, the limit of open databases, closing idle ones.
Does not know: FUSE, inode numbers that programs see.
Keeps: at most PAST_POINTS_OPEN_MAX databases are on the disk, unless running requests use more.
Nothing in the bucket is changed. An error in a temporary database never affects the mount itself.
Open points never use disk space or request handlers that the mount needs.
Tasks: any task; ``run`` is one background task.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Final

import trio

from s3fs_meta.background_task import in_thread, in_thread_or_here
from s3fs_meta.cache.disk_space import DiskSpace
from s3fs_meta.disk_full import FULL_ERRNOS
from s3fs_meta.errors import (
    DatabaseError,
    DatabaseFullError,
    MetadataError,
    NoSpaceLeftError,
    PastUnavailableError,
    SettingsError,
)
from s3fs_meta.fs.waiting_room import WaitingRoom
from s3fs_meta.limits import (
    PAST_CHECK_S,
    PAST_IDLE_S,
    PAST_POINTS_OPEN_MAX,
    PAST_WAITING_MAX,
    PAST_WINDOWS_MAX,
    RESTORE_APART_BYTES_MIN,
)
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.model import PointInTime, Txg
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.points_in_time import PointsInTime
from s3fs_meta.sync.history.snapshot_mount import Bucket, RestoreOptions, open_snapshot
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import let_go
from s3fs_meta.sync.uncached_reads import FindOtherCopy, UncachedReader
from s3fs_meta.sync.volume import OpenOptions, Volume

_log = logging.getLogger(__name__)

# The temporary database of a past txg has one user, and a new restore replaces it after a crash.
# So it needs neither a journal nor syncs.
_OPTIONS: Final = OpenOptions(pragmas=Pragmas(journal_mode="off", synchronous="off"))


class OpenPoint:
    """One open point in time: its database, and the reader of its content."""

    def __init__(self, volume: Volume, find_other_copy: FindOtherCopy) -> None:
        self.volume = volume
        self.db = volume.db
        self.reader = UncachedReader(
            volume.db,
            volume.store,
            volume.keyring,
            find_other_copy,
            windows_max=PAST_WINDOWS_MAX,
        )
        self.users = 0  # number of running requests that use this point in time
        self.used_s = 0.0  # monotonic time at which the last request began


class OpenPoints:
    """Opens points in time of one filesystem when requests need them."""

    def __init__(
        self,
        volume: Volume,
        disk: DiskSpace,
        state_of: Callable[[Txg], StateDir],
        find_other_copy: FindOtherCopy,
        *,
        is_shared: bool = False,
        may_spawn: bool = True,
        apart_bytes_min: int = RESTORE_APART_BYTES_MIN,
    ) -> None:
        """Prepare to open points in time; open none yet.

        Args:
            volume: the mounted filesystem, of which only the bucket and the keys are used.
            disk: the free space of the local disk, which the mounted filesystem also uses.
            state_of: returns the directory for the temporary state of a txg.
            find_other_copy: finds a block's content if it is no longer at the recorded location.
            is_shared: True if several users may send requests.
            may_spawn: True if a large database may be restored in a separate process.
            apart_bytes_min: the size from which a database is treated as large.
        """
        self._volume = volume
        self._disk = disk
        self._waiting = WaitingRoom(is_shared=is_shared, most=PAST_WAITING_MAX)
        self._state_of = state_of
        self._find_other_copy = find_other_copy
        self._may_spawn = may_spawn
        self._apart_bytes_min = apart_bytes_min
        self._open: dict[Txg, OpenPoint] = {}
        # The last search for a point in time: the txg found, the listings of the bucket, and when.
        self._found: tuple[Txg, Bucket, float] | None = None
        self._lock = trio.Lock()
        # True after ``run`` has ended: then points in use are closed after their last request.
        self._has_ended = False

    @property
    def count(self) -> int:
        """Return the number of open points in time."""
        return len(self._open)

    @property
    def txgs(self) -> list[Txg]:
        """Return the txgs of the open points in time, in ascending order."""
        return sorted(self._open)

    def was_used_within(self, txg: Txg, age_s: float) -> bool:
        """Return whether the point in time of a txg was used in the last *age_s* seconds."""
        point = self._open.get(txg)
        return point is not None and point.used_s > trio.current_time() - age_s

    async def find(self, wanted: PointInTime) -> Link | None:
        """Return the chain position of a point in time, or None if it is not available.

        Raises:
            StoreError, BrokenChainError: the bucket cannot be read.
            BusyError: too many requests for points in time are waiting.
        """
        bucket = self._bucket()
        with self._waiting.entered():
            wanted, now_ns = await bucket.by_store(wanted)
            if wanted.time_ns is not None and wanted.time_ns > now_ns:
                return None
            try:
                link = await bucket.points.find(wanted, now_ns)
            except SettingsError:
                return None
            self._found = (link.txg, bucket, trio.current_time())
            return link

    @contextlib.asynccontextmanager
    async def used(self, txg: Txg) -> AsyncIterator[OpenPoint]:
        """Keep the point in time of a txg open during one request; open it if it is closed.

        Raises:
            StoreError: the bucket cannot be reached.
            PastUnavailableError: the state of that txg cannot be restored.
            NoSpaceLeftError: the disk has no room for it.
            BusyError: too many requests for points in time are waiting.
        """
        with self._waiting.entered():
            async with self.kept_open(txg) as point:
                try:
                    yield point
                except (DatabaseError, MetadataError) as exc:
                    raise self._failure(txg, exc) from exc

    @contextlib.asynccontextmanager
    async def kept_open(self, txg: Txg) -> AsyncIterator[OpenPoint]:
        """Keep the point in time of a txg open for a long operation, not counted as a request.

        Raises the same errors as ``used``, except BusyError.
        Errors in the ``with`` block are raised unchanged.
        """
        point = self._open.get(txg)
        if point is None:
            point = await self._opened(txg)
        point.users += 1
        point.used_s = trio.current_time()
        try:
            yield point
        finally:
            point.users -= 1
            if self._has_ended:
                with trio.CancelScope(shield=True):
                    await self._close([txg])

    async def run(self) -> None:
        """Close idle points in time, until cancelled; then close all points not in use."""
        self._has_ended = False  # True if an earlier run could not start a thread
        try:
            while True:
                await trio.sleep(PAST_CHECK_S)
                idle_since_s = trio.current_time() - PAST_IDLE_S
                async with self._lock:
                    await self._close(
                        [txg for txg, one in self._open.items() if one.used_s < idle_since_s]
                    )
        finally:
            self._has_ended = True
            with trio.CancelScope(shield=True):
                await self._close(list(self._open))

    def _bucket_of(self, txg: Txg) -> Bucket:
        """Return an object that reads the bucket; reuse listings of a recent search for *txg*."""
        found, self._found = self._found, None
        if found is None or found[0] != txg or found[2] < trio.current_time() - PAST_CHECK_S:
            return self._bucket()
        return found[1]

    def _bucket(self) -> Bucket:
        volume = self._volume
        points = PointsInTime(volume.store, volume.keyring, volume.uuid, volume.keeper.lease)
        clock = volume.clock
        return Bucket(volume.store, volume.superblock, volume.keyring, volume.keeper, points, clock)

    async def _opened(self, txg: Txg) -> OpenPoint:
        async with self._lock:
            point = self._open.get(txg)
            if point is not None:
                return point
            oldest = sorted(self._open, key=lambda one: self._open[one].used_s)
            await self._close(oldest[: max(len(oldest) - PAST_POINTS_OPEN_MAX + 1, 0)])
            bucket, wanted = self._bucket_of(txg), PointInTime(f"txg={txg}", txg=txg)
            try:
                state = await in_thread(self._state_of, txg)  # blocks on a sync
                # The size is estimated from the present database, whose file never shrinks.
                # ``hold_more`` corrects the estimate as soon as the size of the image is known.
                size_bytes = self._volume.state_dir.database.stat().st_size
                reserve = partial(self._reserve, state.database)
                apart = self._may_spawn and size_bytes >= self._apart_bytes_min
                how = RestoreOptions(reserve=reserve, apart=apart)
                try:
                    await self._disk.make_room(size_bytes)
                    with self._disk.holding(state.database, size_bytes):
                        volume = await open_snapshot(bucket, state, _OPTIONS, wanted, how)
                except BaseException:
                    with contextlib.suppress(OSError):
                        state.path.rmdir()  # the directory may already be removed
                    raise
            except (DatabaseError, MetadataError, SettingsError, OSError) as exc:
                raise self._failure(txg, exc) from exc
            _log.info("opened the filesystem as of txg %d", txg)
            self._open[txg] = point = OpenPoint(volume, self._find_other_copy)
            point.used_s = trio.current_time()
            return point

    def _failure(self, txg: Txg, exc: Exception) -> PastUnavailableError | NoSpaceLeftError:
        """Return the error to report when the database of a point in time failed.

        If other programs filled the disk during the restore, the point in time itself is intact.
        """
        is_full = isinstance(exc, OSError) and exc.errno in FULL_ERRNOS
        if not is_full and not isinstance(exc, DatabaseFullError):
            return PastUnavailableError(txg, str(exc))
        folder = self._volume.state_dir.path.parent
        return NoSpaceLeftError(
            f"the metadata of txg {txg} does not fit on the disk of {folder}; delete other files on"
            " that disk"
        )

    async def _reserve(self, database: Path, size_bytes: int) -> None:  # noqa: RUF029 - as Restorer
        self._disk.hold_more(database, size_bytes)

    async def _close(self, txgs: list[Txg]) -> None:
        for txg in txgs:
            point = self._open.get(txg)
            if point is not None and not point.users:
                del self._open[txg]
                # A cancelled close would leave the database open and its directory locked.
                with trio.CancelScope(shield=True):
                    await in_thread_or_here(_discard, point.volume)
                _log.info("closed the filesystem as of txg %d", txg)


def _discard(volume: Volume) -> None:
    """Close a temporary database and remove it without writing. The call blocks."""
    try:
        volume.db.close()
    finally:
        let_go(volume)
