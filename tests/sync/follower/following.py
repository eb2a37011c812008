"""A follower that runs concurrently with its writer."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
from typing_extensions import override

from s3fs_meta.limits import MIB
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.follower.follower import Follower
from s3fs_meta.sync.kernel import NoKernel, SwitchChanges
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from tests.polling import WAIT_S_MAX
from tests.sync.conftest import Power

READS = OpenOptions(read_only=True, follow=True)
FOLLOWS = SessionOptions(cache_bytes=256 * MIB, follow=True, poll_interval_s=0.01)


class Listener(NoKernel):
    """A substitute for the kernel: it records announced changes and wakes waiting tests."""

    def __init__(self) -> None:
        self.follower: Follower | None = None
        # The listener awaits *react* before it announces each txg.
        self.react: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint
        self.turns: list[SwitchChanges | None] = []
        self._waiting: dict[int, trio.Event] = {}

    @override
    async def before_switch(self, changes: SwitchChanges | None) -> None:
        """Record the changes that the follower announces."""
        self.turns.append(changes)
        await self.react()

    @override
    async def after_switch(self, changes: SwitchChanges | None) -> None:
        """Wake the tests that wait for this txg or an earlier txg."""
        assert changes is self.turns[-1]
        for txg, event in self._waiting.items():
            if self._shown() >= txg:
                event.set()

    def _shown(self) -> int:
        assert self.follower is not None
        return self.follower.link.txg

    async def wait_for(self, txg: int) -> None:
        """Wait until the follower shows this txg."""
        if self._shown() >= txg:
            return
        event = self._waiting[txg] = trio.Event()
        with trio.fail_after(WAIT_S_MAX):
            await event.wait()


@asynccontextmanager
async def following(
    power: Power, host: str = "b", *, tasks: bool = True
) -> AsyncIterator[tuple[Session, Listener]]:
    """Run a follower session; yield the session and its listener."""
    listener = Listener()
    async with power.session(
        host, options=READS, session_options=FOLLOWS, tasks=tasks, kernel=listener
    ) as session:
        assert session.follower is not None
        listener.follower = session.follower
        yield session, listener
