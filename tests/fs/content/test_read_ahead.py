"""Tests of read-ahead for programs that read sequentially."""

import os
import random
from collections.abc import AsyncIterator, Iterator

import pytest
import trio
import trio.testing

from s3fs_meta.fs.content import read_ahead
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.limits import (
    LARGE_BUFFER_BYTES_MIN,
    MIB,
    READAHEAD_BYTES_MAX,
    READAHEAD_CACHE_PART,
    READAHEAD_REQUESTS_MAX,
    READAHEAD_RUN_BYTES,
)
from s3fs_meta.memory_allocator import range_buffers
from s3fs_meta.model import Ino
from tests.fs.conftest import BLOCK_BYTES, Volume, make_file
from tests.polling import WAIT_S_MAX, until
from tests.tasks import running

STEP = BLOCK_BYTES // 2
CACHE_BYTES = 16 * MIB
WINDOW_BLOCKS = CACHE_BYTES // READAHEAD_CACHE_PART // BLOCK_BYTES
RUN_BLOCKS = WINDOW_BLOCKS // 2
BLOCKS = 4 * RUN_BLOCKS


@pytest.fixture(autouse=True)
def _no_kept_buffers() -> Iterator[None]:
    """Free the buffers that the entire process shares, before and after each test."""
    range_buffers.free()
    yield
    range_buffers.free()


@pytest.fixture
async def fs(volume: Volume) -> AsyncIterator[Filesystem]:
    """Return a filesystem with a small cache, so that its read-ahead windows are small."""
    async with volume.mounted(cache_bytes=CACHE_BYTES) as fs:
        yield fs


@pytest.fixture
async def evicted(fs: Filesystem, volume: Volume) -> AsyncIterator[Ino]:
    """Open a file without cached blocks, and run the background tasks."""
    ino = make_file(fs, b"f")
    await fs.write(ino, 0, random.Random(1).randbytes(BLOCKS * BLOCK_BYTES))
    await volume.evict()
    fs.open(ino)
    async with running(fs.run):
        yield ino


def fetched(volume: Volume) -> int:
    """Return the number of blocks that were fetched from the store."""
    return volume.session.cache.fetcher.fetched_blocks


async def until_fetched(volume: Volume, blocks: int) -> None:
    """Wait until a given number of blocks was fetched, which takes long on a loaded machine."""
    with trio.fail_after(WAIT_S_MAX):
        while fetched(volume) < blocks:
            await trio.testing.wait_all_tasks_blocked(0.01)
    await trio.testing.wait_all_tasks_blocked(0.01)


async def read_first_run(fs: Filesystem, volume: Volume, ino: Ino) -> None:
    """Read twice in order, and wait until read-ahead has fetched and cached the first run."""
    await fs.read(ino, 0, STEP)
    await fs.read(ino, STEP, STEP)
    await until_fetched(volume, RUN_BLOCKS)
    index = volume.session.cache.index
    await until(lambda: index.total_count >= RUN_BLOCKS)


def requests(volume: Volume) -> int:
    """Return the number of range requests that the store received."""
    return sum(call.method == "get_range" for call in volume.store.calls)


async def test_second_sequential_read_triggers_read_ahead(
    fs: Filesystem, volume: Volume, evicted: Ino
) -> None:
    """The second sequential read fetches all blocks of a run in advance."""
    await fs.read(evicted, 0, STEP)
    await trio.testing.wait_all_tasks_blocked()
    assert fetched(volume) == 1
    await fs.read(evicted, STEP, STEP)
    await until_fetched(volume, RUN_BLOCKS)
    assert RUN_BLOCKS <= fetched(volume) <= 2 * RUN_BLOCKS


async def test_read_ahead_window_grows_to_its_limit(
    fs: Filesystem, volume: Volume, evicted: Ino
) -> None:
    """Read-ahead fetches each block once, and its window does not exceed the maximum."""
    record = fs.open_files.find(evicted)
    assert record is not None
    windows = []
    for position in range(0, (BLOCKS - WINDOW_BLOCKS + 1) * BLOCK_BYTES, STEP):
        await fs.read(evicted, position, STEP)
        windows.append(record.ahead_blocks)
    assert windows == sorted(windows)
    assert windows[-1] == WINDOW_BLOCKS
    await until_fetched(volume, BLOCKS)
    assert fetched(volume) == BLOCKS
    # The first block and each boundary between two packs need one more request.
    assert requests(volume) <= BLOCKS // RUN_BLOCKS + 3


async def test_read_ahead_window_is_limited_to_a_fraction_of_the_cache(volume: Volume) -> None:
    """The read-ahead window is a fraction of a small cache.

    In a large cache its size is limited.
    """
    async with volume.mounted(cache_bytes=CACHE_BYTES) as fs:
        assert fs.data.read_ahead.window_blocks_max == WINDOW_BLOCKS
    async with volume.mounted(cache_bytes=1 << 40) as fs:
        assert fs.data.read_ahead.window_blocks_max * BLOCK_BYTES == READAHEAD_BYTES_MAX
        assert fs.data.read_ahead.run_blocks * BLOCK_BYTES == READAHEAD_RUN_BYTES


async def test_sequential_reads_are_detected_if_the_kernel_reorders_requests(
    fs: Filesystem, volume: Volume, evicted: Ino
) -> None:
    """If two requests of one reader arrive out of order, they are still treated as sequential."""
    for number in (1, 0, 3, 2):
        await fs.read(evicted, number * STEP, STEP)
    await until_fetched(volume, RUN_BLOCKS)


async def test_random_reads_cause_no_read_ahead(
    fs: Filesystem, volume: Volume, evicted: Ino
) -> None:
    for index in (0, 5, 2, 9):
        await fs.read(evicted, index * BLOCK_BYTES, 10)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert fetched(volume) == 4


async def test_read_ahead_request_is_dropped_if_the_queue_is_full(
    fs: Filesystem, volume: Volume
) -> None:
    """A dropped request is not recorded as requested, so that a later read requests it again."""
    ino = make_file(fs, b"f")
    await fs.write(ino, 0, random.Random(1).randbytes(4 * BLOCK_BYTES))
    await volume.evict()
    fs.open(ino)
    read_ahead, record = fs.data.read_ahead, fs.open_files.find(ino)
    assert record is not None
    for number in range(READAHEAD_REQUESTS_MAX + 1):  # No task fetches the queued blocks.
        read_ahead.note(ino, 0, STEP)
        read_ahead.note(ino, STEP, 2 * STEP)
        assert (record.requested_until == 0) is (number == READAHEAD_REQUESTS_MAX)
        read_ahead.note(ino, 6 * STEP, 7 * STEP)


async def test_block_from_read_ahead_is_read_from_memory_only_once(
    fs: Filesystem, volume: Volume, evicted: Ino, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later read may use the cache file, because the kernel usually has the bytes cached."""
    monkeypatch.setattr(read_ahead, "RANGE_BUFFERS_IDLE_S", 3600.0)
    await read_first_run(fs, volume, evicted)
    at = 2 * BLOCK_BYTES

    first = fs.data.find_cached(evicted, at, BLOCK_BYTES)
    second = fs.data.find_cached(evicted, at, BLOCK_BYTES)

    assert first is not None
    assert second is not None
    assert not isinstance(first[0], int)
    assert isinstance(second[0], int)
    assert first[0] == os.pread(second[0], BLOCK_BYTES, 0)
    assert first[1:] == second[1:] == (0, BLOCK_BYTES)


async def test_memory_of_a_released_range_is_kept_for_the_next_read_ahead(
    fs: Filesystem, volume: Volume, evicted: Ino, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is kept after a run of blocks was fetched in advance."""
    monkeypatch.setattr(read_ahead, "RANGE_BUFFERS_IDLE_S", 3600.0)
    await read_first_run(fs, volume, evicted)

    range_buffers.new(LARGE_BUFFER_BYTES_MIN).release()

    assert range_buffers.kept_count == 1


async def test_memory_of_ranges_is_freed_when_read_ahead_stops(
    fs: Filesystem, volume: Volume, evicted: Ino, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a mount no longer reads ahead, it keeps no memory for later ranges."""
    monkeypatch.setattr(read_ahead, "RANGE_BUFFERS_IDLE_S", 0.0)
    range_buffers.keep(1)
    range_buffers.new(LARGE_BUFFER_BYTES_MIN).release()
    await read_first_run(fs, volume, evicted)

    content = volume.session.cache.fetcher.arrived_content
    await until(lambda: range_buffers.kept_count == content.size_bytes == 0)
