"""Snapshots: opening a bucket read-only at any available point in time, without writing to it.

Owns: the order of the steps (unlock the superblock, find the txg, restore it); opening a snapshot
in a separate state directory.
Does not know: FUSE, which files are read.
Keeps: the bucket is not changed, not even the lease. This host's state directory of the filesystem
is not used, except for the superblock copy in it. The state directory of a snapshot is removed when
the snapshot is closed.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from s3fs_meta.background_task import in_thread
from s3fs_meta.clock import Clock
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock, superblock_facts
from s3fs_meta.errors import (
    CorruptionError,
    FormatError,
    ObjectMissingError,
    SettingsError,
    UnfinishedFilesystemError,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.meta.tables import properties
from s3fs_meta.meta.tables.pending import ChangeRecorder
from s3fs_meta.model import PointInTime
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.points_in_time import PointsInTime, require_at_least
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.image.restore import Reserve, Restorer
from s3fs_meta.sync.image.restore_process import ProcessRestorer
from s3fs_meta.sync.lease.keeper import LeaseKeeper
from s3fs_meta.sync.lease.lease_repair import read_or_derive
from s3fs_meta.sync.progress import Progress, no_progress
from s3fs_meta.sync.store_clock import StoreClock
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.selection import open_keys
from s3fs_meta.sync.superblock.unlocking import Secret
from s3fs_meta.sync.volume import KnownSuperblock, OpenOptions, Position, Volume


class RestoreOptions(NamedTuple):
    """The options for restoring one point in time."""

    progress: Progress = no_progress  # not called if a separate process restores the metadata
    reserve: Reserve | None = None  # reserves disk space before the download
    apart: bool = False  # True to restore the metadata in a separate process
    # An open snapshot to start from: its database is copied, and later changelogs are applied.
    earlier: Volume | None = None


RESTORED_HERE: Final = RestoreOptions()


@dataclass(slots=True)
class Bucket:
    """A filesystem whose bucket is read without local state, and without taking the lease."""

    store: ObjectStore
    superblock: Superblock
    keyring: Keyring
    keeper: LeaseKeeper  # lease keeper that has not acquired the lease
    points: PointsInTime
    clock: Clock
    # reason why the lease was derived from other objects; None if the lease was read
    lease_fault: str | None = None

    @property
    def uuid(self) -> str:
        """Return the UUID of the filesystem."""
        return self.superblock.uuid

    async def find(self, wanted: PointInTime) -> Link:
        """Return the chain position of a point in time. Raises the errors of ``PointsInTime.find``.

        A relative time is counted back from the store's clock if this host's clock disagrees with
        it.
        """
        wanted, now_ns = await self.by_store(wanted)
        return await self.points.find(wanted, now_ns)

    async def by_store(self, wanted: PointInTime) -> tuple[PointInTime, int]:
        """Return a point in time based on the store's clock, and the present time.

        Raises:
            StoreError: the store's clock cannot be read.
        """
        clock = StoreClock(self.store, self.clock)
        if wanted.time_ns is None:
            return wanted, clock.now_ns()
        await clock.measure_for_reading()
        offset_ns, difference = clock.offset_ns, clock.difference
        if isinstance(self.clock, StoreClock):
            # The age was subtracted from this host's uncorrected time; the mount's clock has a
            # correction.
            offset_ns += self.clock.offset_ns
            difference = difference or self.clock.difference
        if difference and wanted.is_ago:
            wanted = wanted._replace(time_ns=wanted.time_ns + offset_ns)
            notice = f"{difference}: {wanted.text!r} counts back from the store's time"
        elif difference:
            notice = f"{difference}: the requested time is read as the store's time; set the clock"
        else:
            return wanted, clock.now_ns()
        if notice not in self.points.notices:
            self.points.notices.append(notice)
        return wanted, clock.now_ns()

    async def restore(
        self,
        link: Link,
        target: Path,
        how: RestoreOptions = RESTORED_HERE,
    ) -> list[str]:
        """Restore the database of a txg to the file *target*; return notices for the user.

        The database is not synced, because it is not used after a crash.

        Args:
            link: the chain position of the txg to restore.
            target: a path at which no file exists.
            how: the options of the restore.

        Raises:
            SettingsError: the txg is no longer retained.
            The same errors as ``Restorer.restore`` or, if *how.apart* is set,
                ``ProcessRestorer.restore``.
        """
        head = self.keeper.lease.head
        newest = head and head.manifest
        reserve, earlier = how.reserve, how.earlier
        here = Restorer(
            self.store, self.keyring, self.uuid, how.progress, reserve=reserve, is_temporary=True
        )
        if earlier is not None and earlier.link.txg <= link.txg:
            source = earlier.state_dir.database
            advanced = await here.advance(source, earlier.link, target, link.txg)
            if advanced == link:
                return here.notices
            await in_thread(image_copy.remove, target)
        restorer: Restorer | ProcessRestorer = here
        if how.apart:
            restorer = ProcessRestorer(self.store, self.keyring, self.uuid, reserve=reserve)
        try:
            restored = await restorer.restore(newest, target, upto=link.txg)
        except (CorruptionError, ObjectMissingError, UnfinishedFilesystemError) as exc:
            failure = exc
        else:
            if restored.hash == link.hash:
                return restorer.notices
            raise FormatError(
                changelog_codec.key_of(link.txg),
                "the restored chain has another hash for this changelog than the point in time;"
                " try again, and if this error recurs, run s3fs-meta fsck -n",
            )
        await self._require_retained(link)
        raise failure

    async def _require_retained(self, link: Link) -> None:
        """Raise SettingsError if a txg may have been deleted since it was found."""
        floor = await chain.floor_after(self.store, self.keyring, self.uuid, link.txg)
        if link.txg < floor and not await self.points.is_kept(link.txg):
            raise SettingsError(
                f"txg {link.txg} is no longer retained: the oldest retained txg is {floor}"
            )


async def read_bucket(
    store: ObjectStore, remembered: Remembered, secret: Secret, clock: Clock
) -> Bucket:
    """Unlock a filesystem and read its lease, without opening it.

    Args:
        store: the bucket.
        remembered: the superblock copy in the filesystem's state directory on this host; it is only
            read.
        secret: unlocks the superblock.
        clock: the clock used to search for a time.

    Raises:
        UnfinishedFilesystemError: the bucket has no lease and no complete image.
        The same errors as ``open_keys``.
    """
    keys = await open_keys(store, remembered, secret)
    superblock, keyring = keys.superblock, keys.keyring
    keeper = LeaseKeeper(store, clock)
    damage = await read_or_derive(keeper, store, keyring, clock)
    points = PointsInTime(store, keyring, superblock.uuid, keeper.lease)
    points.notices += [*keys.notices, *([] if damage is None else [damage])]
    return Bucket(store, superblock, keyring, keeper, points, clock, damage)


async def open_snapshot(
    bucket: Bucket,
    state_dir: StateDir,
    options: OpenOptions,
    wanted: PointInTime,
    how: RestoreOptions = RESTORED_HERE,
) -> Volume:
    """Open a snapshot at a past point in time; close it with ``close_filesystem``.

    Args:
        bucket: the bucket of the filesystem.
        state_dir: a directory that only this snapshot uses; leftovers of a killed process in it are
            removed.
        options: only the pragmas, ``at_least`` and the timeout of the lock are used.
        wanted: the snapshot is the last txg that is not later than this point in time.
        how: the options of the restore.

    Raises:
        SettingsError: the point in time is unavailable; the message names the available points.
        OlderBucketError: the bucket is older than ``at_least``.
        HeldError: another process uses the directory.
        StoreError, FormatError: an object is unavailable or damaged.
    """
    await state_dir.lock(wait_s=options.lock_wait_s)
    db: Database | None = None
    try:
        link = await bucket.find(wanted)
        unsure = None
        if options.at_least is not None:
            unsure = await require_at_least(
                bucket.store, bucket.keyring, bucket.uuid, options.at_least, bucket.points.end
            )
        state_dir.drop_contents()
        notices = await bucket.restore(link, state_dir.database, how)
        # The database needs no sync: after a crash it is restored again.
        pragmas = replace(options.pragmas, synchronous="off")
        db = await in_thread(Database.open, state_dir.database, pragmas)
        properties.require(db, superblock_facts(bucket.superblock))
    except BaseException:
        if db is not None:
            db.close()
        state_dir.remove()
        state_dir.unlock()
        raise
    db.counters.begin_txg(link.next_txg)
    return Volume(
        store=bucket.store,
        known=KnownSuperblock(bucket.superblock),
        keyring=bucket.keyring,
        state_dir=state_dir,
        db=db,
        recorder=ChangeRecorder(db, bucket.clock.now_ns),
        keeper=bucket.keeper,
        position=Position(link),
        options=replace(options, read_only=True),
        crashed=False,
        power_lost=False,
        notices=(*bucket.points.notices, *([unsure] if unsure else []), *notices),
        clock=StoreClock(bucket.store, bucket.clock),
        temporary=True,
    )
