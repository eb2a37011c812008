"""Opening a filesystem at a past point in time for one command, without a mount.

Owns: the passphrase, the store, and the temporary database. Does not know: its callers.
"""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import trio

from s3fs_meta import memory_allocator
from s3fs_meta.background_task import in_thread
from s3fs_meta.clock import SystemClock
from s3fs_meta.console import passphrase_source
from s3fs_meta.console.ui import Front
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.model import PointInTime
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.stores import opened_store, options_of_mount, with_options
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.state_paths import locate_snapshot_state
from s3fs_meta.sync.history.snapshot_mount import Bucket, RestoreOptions, open_snapshot, read_bucket
from s3fs_meta.sync.host_state.state_dir import StateDir, remove_stale_snapshots
from s3fs_meta.sync.opening.opening import close_filesystem
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.volume import OpenOptions, Volume

# A temporary database with one reader needs no WAL, which some disks do not support.
_PRAGMAS = Pragmas(journal_mode="off", synchronous="off")


@dataclass(frozen=True, slots=True)
class Reading:
    """The filesystem to read, and the options for reading it."""

    place: Target
    s3: S3Options
    passphrase_file: Path | None
    front: Front

    @property
    def options(self) -> S3Options:
        """Return the user's S3 options, supplemented by the S3 options of the mount."""
        mount = options_of_mount(self.place)
        return S3Options(*(one or two for one, two in zip(self.s3, mount, strict=True)))


@contextlib.asynccontextmanager
async def opened_bucket(reading: Reading) -> AsyncIterator[Bucket]:
    """Open a filesystem for reading, for the duration of a context.

    Raises:
        The same errors as ``read_bucket``.
    """
    memory_allocator.bound_free_memory()
    secret = passphrase_source.secret(reading.passphrase_file, reading.front.ask)
    remembered = Remembered(reading.place.state)
    async with opened_store(
        reading.place.url, reading.options, counts=reading.place.state
    ) as store:
        yield await read_bucket(store, remembered, secret, SystemClock())


@contextlib.asynccontextmanager
async def opened_snapshot(
    reading: Reading,
    bucket: Bucket,
    wanted: PointInTime,
    part: str = "",
    earlier: Volume | None = None,
) -> AsyncIterator[Volume]:
    """Open a point in time for the duration of a context, then remove its database.

    Args:
        reading: the filesystem.
        bucket: its bucket.
        wanted: the point in time.
        part: a name that is unique among the points in time that this process has open; it selects
            the directory of the temporary state.
        earlier: an open point in time; its database is copied if changelogs lead from it to
            *wanted*.

    Raises:
        The same errors as ``open_snapshot``.
    """
    own = locate_snapshot_state(reading.place.state, f"process {os.getpid()} {part}".rstrip())
    await in_thread(remove_stale_snapshots, reading.place.state, own)
    options, front = OpenOptions(pragmas=_PRAGMAS), reading.front
    how = RestoreOptions(front.progress, earlier=earlier)
    volume = await open_snapshot(bucket, StateDir(own), options, wanted, how)
    try:
        shown = () if earlier is None else earlier.notices
        for notice in [one for one in volume.notices if one not in shown]:
            front.notice(
                with_options(notice, reading.place.url, reading.options, reading.place.state)
            )
        yield volume
    finally:
        # Closing a past point in time is quick, because there is no lease to release.
        with trio.CancelScope(shield=True):
            await close_filesystem(volume, release=False)
