"""Sessions whose clock a test sets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.settings import SessionOptions
from s3fs_meta.sync.history import snapshot_mount
from s3fs_meta.sync.history.snapshot_mount import Bucket
from s3fs_meta.sync.opening.opening import close_filesystem, open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.state_dir import StateDir
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import Power

SECOND_NS = 10**9


class SetClock:
    """A clock with a fixed time."""

    def __init__(self, now_ns: int) -> None:
        self.time_ns = now_ns

    def now_ns(self) -> int:
        """Return the time."""
        return self.time_ns


@asynccontextmanager
async def session_at(power: Power, clock: SetClock, host: str = "a") -> AsyncIterator[Session]:
    """Run a session without tasks; close it cleanly."""
    options = OpenOptions(force_takeover=True)
    power.store.clock = clock  # correct, whatever the clock of the test shows
    opened = await open_filesystem(
        power.store, StateDir(power.home / host), power.secret, clock, options
    )
    session = Session(opened, SessionOptions(), clock)
    session.recover()
    session.start()
    yield session
    await close_filesystem(opened, release=True)


async def bucket_at(power: Power, now_ns: int = 0, store: ObjectStore | None = None) -> Bucket:
    """Return the filesystem as a reader has it."""
    return await snapshot_mount.read_bucket(
        store or power.store, power.remembered("-"), power.secret, SetClock(now_ns)
    )


FAR = 10**19 // 5  # a time after the real clock, which mkfs used
