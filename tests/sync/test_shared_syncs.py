"""Operations that begin or commit during a sync of the WAL need another sync."""

import threading

import pytest
import trio
import trio.testing

from s3fs_meta.sync.session import Session
from tests.sync.conftest import Power


class SlowLog:
    """Syncs of the WAL that do not return until the test permits it."""

    def __init__(self, session: Session) -> None:
        self.count = 0
        self.go_on = threading.Event()
        self._sync = session.db.sync_wal
        session.db.sync_wal = self._slow  # type: ignore[method-assign]

    def _slow(self) -> None:
        self.count += 1
        self._sync()
        assert self.go_on.wait(10)


def _change(session: Session) -> None:
    """Begin an operation that changes only rows."""
    session.db.begin()


@pytest.mark.parametrize("is_open", [False, True], ids=["committed", "open"])
async def test_change_during_a_wal_sync_needs_another_sync(power: Power, is_open: bool) -> None:
    """A running sync covers only groups that were committed before it began."""
    async with power.session("a", tasks=False) as session:
        await session.durability.sync_all()
        log = SlowLog(session)
        async with trio.open_nursery() as nursery:
            _change(session)
            nursery.start_soon(session.durability.sync)
            await trio.testing.wait_all_tasks_blocked()
            _change(session)
            nursery.start_soon(session.durability.sync)  # The task waits for the first sync.
            await trio.testing.wait_all_tasks_blocked()
            if is_open:
                _change(session)
            log.go_on.set()
        assert log.count == 2

        await session.durability.sync()
        assert log.count == 2 + is_open
