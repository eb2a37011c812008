"""Buckets in directories, and sessions on them that run in the process of the benchmark."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from typing_extensions import override

from contrib.bench.subjects import S3fsSubject
from s3fs_meta.clock import Clock, SystemClock
from s3fs_meta.objects.local import LocalStore
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.sync.volume import OpenOptions


class EarlierClock:
    """A clock that starts at an earlier time and that a benchmark advances."""

    def __init__(self, behind_s: float) -> None:
        """Start the clock *behind_s* seconds before the current time."""
        self._clock = SystemClock()
        self._behind_ns = int(behind_s * 1e9)

    def now_ns(self) -> int:
        """Return the simulated time in nanoseconds since 1970-01-01 UTC."""
        return self._clock.now_ns() - self._behind_ns

    def advance(self, seconds: float) -> None:
        """Advance the clock by a duration, but never beyond the current time."""
        self._behind_ns = max(self._behind_ns - int(seconds * 1e9), 0)


class StoreWithoutClock(LocalStore):
    """A store that reports no time, so that the simulated time is not compared with its clock."""

    @override
    async def now_ns(self) -> int | None:
        """Return None: the time of the store is unknown."""
        return None


@asynccontextmanager
async def opened(bucket: Path, kind: type[LocalStore] = LocalStore) -> AsyncIterator[LocalStore]:
    """Open a bucket for a context; then close its files, so that the disk can be unmounted."""
    store = kind(bucket)
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.close()


@asynccontextmanager
async def session_of(writer: S3fsSubject, clock: Clock) -> AsyncIterator[Session]:
    """Open the unmounted filesystem of a subject for writing, and close it after the context.

    Args:
        clock: the time of all changes; it may differ from the time of the store.
    """
    state_dir = StateDir(writer.database().parent)
    async with opened(writer.bucket, StoreWithoutClock) as store:
        volume = await open_filesystem(store, state_dir, Passphrase(bytes), clock, OpenOptions())
        session = Session(volume, SessionOptions(), clock)
        session.recover()
        session.start()
        yield session
        await session.close()
