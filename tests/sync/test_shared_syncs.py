"""Changes and uploads during a sync, which may not be covered by this sync."""

import threading
from collections.abc import Collection, Sequence
from typing import Final

import pytest
import trio
import trio.testing

from s3fs_meta.meta.tables import block_map, blocks
from s3fs_meta.model import BlockId, BlockIndex, BlockState
from s3fs_meta.sync.session import Session
from tests.polling import WAIT_S_MAX
from tests.sync.conftest import Power, write_file

CONTENT: Final = b"content" * 100


class SlowLog:
    """Delays syncs of the WAL until the test permits them to return."""

    def __init__(self, session: Session) -> None:
        self.count = 0
        self.go_on = threading.Event()
        self._sync = session.db.sync_wal
        session.db.sync_wal = self._slow  # type: ignore[method-assign]

    def _slow(self) -> None:
        self.count += 1
        self._sync()
        assert self.go_on.wait(WAIT_S_MAX)


def _change(session: Session) -> None:
    """Begin an operation that changes only rows."""
    session.db.begin()


@pytest.mark.parametrize("is_open", [False, True], ids=["committed", "open"])
async def test_change_during_a_wal_sync_needs_another_sync(power: Power, is_open: bool) -> None:
    """A sync covers only commit groups that were committed before the sync began."""
    async with power.session("a", tasks=False) as session:
        await session.durability.sync_all()
        log = SlowLog(session)
        async with trio.open_nursery() as nursery:
            _change(session)
            nursery.start_soon(session.durability.sync)
            await trio.testing.wait_all_tasks_blocked()
            _change(session)
            nursery.start_soon(session.durability.sync)  # The task is waiting for the first sync.
            await trio.testing.wait_all_tasks_blocked()
            if is_open:
                _change(session)
            log.go_on.set()
        assert log.count == 2

        await session.durability.sync()
        assert log.count == 2 + is_open


async def test_extension_of_the_wal_waits_for_the_sync_of_an_fsync(power: Power) -> None:
    """If two syncs of one file run at the same time, the kernel reports a lost page to only one."""
    async with power.session("a", tasks=False) as session:
        await session.durability.sync_all()
        assert session.db.wal is not None
        assert session.db.wal.lacks_room
        log = SlowLog(session)
        threads = trio.to_thread.current_default_thread_limiter()
        async with trio.open_nursery() as nursery:
            _change(session)
            nursery.start_soon(session.durability.sync)
            await trio.testing.wait_all_tasks_blocked()
            syncing = threads.borrowed_tokens
            nursery.start_soon(session.durability.make_log_room)
            await trio.testing.wait_all_tasks_blocked()
            assert threads.borrowed_tokens == syncing, "no thread has begun the second sync"
            log.go_on.set()
        assert log.count == 2
        assert not session.db.wal.lacks_room


async def test_block_that_is_uploaded_again_during_a_sync_is_kept_until_the_next_sync(
    power: Power,
) -> None:
    """The old location of a block is needed until a sync covers the new location."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        await session.flush()
        found = block_map.locate(session.db, ino, BlockIndex(0))
        assert found is not None
        sync, token = session.files.sync, trio.lowlevel.current_trio_token()

        def upload_again() -> None:
            session.db.begin()
            row = blocks.get(session.db, found.block)
            session.cache.seal_for_move(row, ino, BlockIndex(0))
            session.cache.uploaded(found.block)

        def sync_meanwhile(wanted: Sequence[BlockId], named: Collection[BlockId] = ()) -> None:
            sync(wanted, named)
            trio.from_thread.run_sync(upload_again, trio_token=token)

        upload_again()
        write_file(session, CONTENT)
        session.files.sync = sync_meanwhile  # type: ignore[method-assign, assignment]
        await session.durability.sync_all()
        session.files.sync = sync  # type: ignore[method-assign]
        held = session.cache.index.get(found.block)
        assert held is not None
        assert held.state is BlockState.UPLOADED

        await session.durability.sync_all()
        held = session.cache.index.get(found.block)
        assert held is not None
        assert held.state is BlockState.CLEAN
