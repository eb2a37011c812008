"""Sealing of dirty blocks after a delay, in batches and slices."""

import itertools

import apsw
import pytest
import trio
from trio.testing import MockClock

from s3fs_meta.errors import DatabaseError
from s3fs_meta.limits import LOOP_SLICE_ROWS, SEAL_AGE_S, SEAL_LINGER_S
from s3fs_meta.model import BlockId, BlockState
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.upload.bounds import UploadBounds
from s3fs_meta.sync.upload.cut import Cut
from tests.polling import WAIT_S_MAX
from tests.sync.conftest import Power, remove_file, write_file
from tests.tasks import running

pytestmark = pytest.mark.thorough

CONTENT = b"hello" * 1000


async def test_few_dirty_blocks_wait_for_a_full_pack(power: Power, mock_clock: MockClock) -> None:
    """Small files that are written one after another share a pack, but do not wait for long."""

    async def sealed(session: Session) -> int:
        return len(await session.uploader.sealer.next_batch(SEAL_AGE_S))

    async with power.session(
        "a", tasks=False, bounds=UploadBounds(pack_bytes=3 * len(CONTENT))
    ) as session:
        for number in range(3):
            assert await sealed(session) == 0
            write_file(session, CONTENT + b"%d" % number)
        assert await sealed(session) == 0
        mock_clock.jump(SEAL_AGE_S)
        assert await sealed(session) == 3

        write_file(session, CONTENT + b"last")
        mock_clock.jump(SEAL_LINGER_S - 1)
        assert await sealed(session) == 0
        mock_clock.jump(1)
        assert await sealed(session) == 1


async def test_sealing_many_blocks_does_not_block_other_tasks(power: Power) -> None:
    """While a large batch is sealed in slices, other blocks can be written."""
    async with power.session("a", tasks=False) as session:
        for number in range(3 * LOOP_SLICE_ROWS):
            write_file(session, b"%d" % number)
        session.db.commit()
        sealed_at_turns: list[int] = []

        async def watch() -> None:
            while True:
                sealed_at_turns.append(session.cache.index.count_in[BlockState.SEALED])
                await trio.lowlevel.checkpoint()

        async with running(watch):
            batch = await session.uploader.sealer.next_batch(0.0)

        assert sealed_at_turns[-1] >= 2 * LOOP_SLICE_ROWS
        steps = [b - a for a, b in itertools.pairwise([0, *sealed_at_turns])]
        assert max(steps) <= 2 * LOOP_SLICE_ROWS  # trio runs ready tasks in random order.
        assert len(batch) == 3 * LOOP_SLICE_ROWS


async def test_sealed_block_without_references_is_not_uploaded(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        inos = [write_file(session, b"%d" % number * 900) for number in range(5)]
        sealer = session.uploader.sealer
        sealer.release(await sealer.next_batch(0.0))
        for ino in inos:
            remove_file(session, ino)
        assert session.uploader.pending == 5

        await session.flush_at_end()

        assert not [key for key in power.store.objects if key.startswith("pack/")]
        assert session.uploader.pending == 0
        assert session.db.one("SELECT count(*) FROM blocks") == (0,)


async def test_flush_uploads_blocks_whose_rows_could_not_be_read_earlier(power: Power) -> None:
    """If the database fails during an upload, a later upload finds the same blocks."""
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        sealer = session.uploader.sealer
        sealer.release(await sealer.next_batch(0.0))
        session.db.commit()
        cut = Cut(set(session.cache.index.sealed), BlockId(session.db.counters.next_block))
        session.db.connection.authorizer = lambda *_: apsw.SQLITE_DENY
        with pytest.raises(DatabaseError):
            await session.uploader.drain(cut)
        session.db.connection.authorizer = None

        with trio.fail_after(WAIT_S_MAX):
            await session.flush()
        assert session.uploader.pending == 0
