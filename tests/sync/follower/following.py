"""A follower, run beside its writer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from s3fs_meta.limits import MIB
from s3fs_meta.sync.follower.follower import Follower, Turned
from s3fs_meta.sync.session import Session, SessionOptions
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import Power

READS = OpenOptions(read_only=True, follow=True)
FOLLOWS = SessionOptions(cache_bytes=256 * MIB, follow=True, poll_interval_s=0.01)


class Listener:
    """Records switches to a new txg, and the txg shown at that time."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self.turns: list[Turned | None] = []
        self._waiting: dict[int, trio.Event] = {}
        follower.audience = self

    async def before_turn(self, turned: Turned | None) -> None:
        """Record the announced changes."""
        self.turns.append(turned)

    def at_turn(self) -> None:
        """Do nothing."""

    async def after_turn(self, turned: Turned | None) -> None:
        """Wake the tasks that wait for this txg."""
        assert turned is self.turns[-1]
        for txg, event in self._waiting.items():
            if self._follower.link.txg >= txg:
                event.set()

    async def wait_for(self, txg: int) -> None:
        """Wait until the follower shows a txg."""
        if self._follower.link.txg >= txg:
            return
        event = self._waiting[txg] = trio.Event()
        with trio.fail_after(10):
            await event.wait()


@asynccontextmanager
async def following(power: Power, host: str = "b") -> AsyncIterator[tuple[Session, Listener]]:
    """Run a session that follows."""
    async with power.session(host, options=READS, session_options=FOLLOWS) as session:
        assert session.follower is not None
        yield session, Listener(session.follower)


async def ship(session: Session) -> int:
    """Upload everything; return the txg."""
    link = await session.flush()
    assert link is not None
    return link.txg
