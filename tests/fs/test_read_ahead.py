"""Sequential readers find what they want."""

import random
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.limits import READAHEAD_BLOCKS_MAX, READAHEAD_REQUESTS_MAX
from s3fs_meta.model import Ino

from .conftest import BLOCK_BYTES, USER, Volume, make_file

STEP = BLOCK_BYTES // 2
BLOCKS = READAHEAD_BLOCKS_MAX + 4


@pytest.fixture
async def evicted(fs: Filesystem, volume: Volume) -> AsyncIterator[Ino]:
    """Return an open file that is only in the store; the background tasks run."""
    ino = make_file(fs, b"f")
    await fs.write(ino, 0, random.Random(1).randbytes(BLOCKS * BLOCK_BYTES))
    await volume.evict()
    await fs.open(ino, USER)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fs.run)
        yield ino
        nursery.cancel_scope.cancel()


def fetched(volume: Volume) -> int:
    """Return how many blocks came from the store."""
    return volume.session.cache._fetcher.fetched_blocks


async def test_sequential_reads_fetch_a_window(
    fs: Filesystem, volume: Volume, evicted: Ino
) -> None:
    """The second read in a row asks for the blocks that follow."""
    await fs.read(evicted, 0, STEP)
    await trio.testing.wait_all_tasks_blocked()
    before = fetched(volume)
    await fs.read(evicted, STEP, STEP)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert before < READAHEAD_BLOCKS_MAX <= fetched(volume) < BLOCKS


async def test_random_reads_fetch_only_what_they_need(
    fs: Filesystem, volume: Volume, evicted: Ino
) -> None:
    """No window for a reader that jumps."""
    await fs.read(evicted, 0, 10)
    before = fetched(volume)
    for index in (5, 2, 9):
        await fs.read(evicted, index * BLOCK_BYTES, 10)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert fetched(volume) <= before + 3


async def test_requests_that_find_the_queue_full_are_dropped(fs: Filesystem) -> None:
    """A reader never waits for read-ahead."""
    read_ahead = fs.data.read_ahead
    for _ in range(READAHEAD_REQUESTS_MAX):
        read_ahead._send.send_nowait([])
    ino = make_file(fs, b"f")
    await fs.open(ino, USER)
    record = fs.open_files.find(ino)
    assert record is not None
    read_ahead.sequential(ino, record, 0)  # type: ignore[arg-type]  # a block index
    assert record.asked_until == READAHEAD_BLOCKS_MAX + 1
