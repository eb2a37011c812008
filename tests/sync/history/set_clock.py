"""Sessions and readers whose clock the test sets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history import snapshot_mount
from s3fs_meta.sync.history.snapshot_mount import Bucket
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import close_filesystem, open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import Power, write_file

SECOND_NS = 10**9


class SetClock:
    """A clock that shows the time that the test sets."""

    def __init__(self, now_ns: int) -> None:
        self.time_ns = now_ns

    def now_ns(self) -> int:
        """Return the time that the test set."""
        return self.time_ns


@asynccontextmanager
async def session_at(power: Power, clock: SetClock, host: str = "a") -> AsyncIterator[Session]:
    """Run a session without background tasks, and close it cleanly."""
    options = OpenOptions(force_takeover=True)
    power.store.clock = clock  # The store and the session share one clock.
    opened = await open_filesystem(
        power.store, StateDir(power.home / host), power.secret, clock, options
    )
    session = Session(opened, SessionOptions(), clock)
    session.recover()
    session.start()
    yield session
    await close_filesystem(opened, release=True)


async def bucket_at(power: Power, now_ns: int = 0, store: ObjectStore | None = None) -> Bucket:
    """Return the filesystem in the bucket, as read at a given time."""
    return await snapshot_mount.read_bucket(
        store or power.store, power.remembered("-"), power.secret, SetClock(now_ns)
    )


FAR = 10**19 // 5  # This time is later than the time of mkfs, which used the real clock.


async def nine_txgs(power: Power, *, image_at: int = 6, levels: bool = False) -> dict[int, Link]:
    """Ship txgs 1 to 9 and return their positions in the chain.

    Txg 1 is the fence record of the first mount. The txg *image_at* is an image. Each other txg
    adds a file with its number as content. From txg 2 on, consecutive txgs are a second apart.
    """
    clock = SetClock(FAR)
    links: dict[int, Link] = {}
    async with session_at(power, clock) as session:
        links[1] = session.volume.link
        for txg in range(2, 10):
            clock.time_ns = FAR + txg * SECOND_NS
            if txg == image_at:
                await session.imager.make()
            else:
                write_file(session, b"%d" % txg)
                await session.flush()
            links[txg] = session.link
            assert session.link.txg == txg
            if levels:
                await session.leveler.make_due()
    return links
