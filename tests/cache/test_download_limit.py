"""Fetches under the option download_limit: waiting times and order of requests."""

import math

import pytest
import trio
import trio.testing

from s3fs_meta.limits import KIB, MIB
from s3fs_meta.model import BlockState
from s3fs_meta.options.rate_limit import rate_limit
from tests.cache.conftest import CacheBench

BLOCK_BYTES = 64 * KIB  # Blocks of 64 KiB are fetched without neighbours.


async def _limited(bench: CacheBench, count: int, rate: str) -> list[bytes]:
    """Store and evict blocks, then limit downloads; return the blocks' contents."""
    contents = await bench.store_evicted(count, BLOCK_BYTES)
    bench.cache.throttles.download.set(rate_limit("download_limit", rate))
    return contents


async def _waited_s(bench: CacheBench, clock: trio.testing.MockClock, *, readers: int = 1) -> float:
    """Fetch block 0 with concurrent readers; return the time until the request starts."""
    gate = bench.store.hold("get_range")
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(readers):
            nursery.start_soon(bench.cache.fetch, bench.located(0))
        await gate.wait_started()
        waited_s = trio.current_time() - began_s
        # The test clock must not jump past the timeout while a thread works.
        clock.autojump_threshold = math.inf
        gate.open()
    return waited_s


async def test_time_spent_waiting_for_the_download_limit_does_not_cause_a_timeout(
    bench: CacheBench, autojump_clock: trio.testing.MockClock
) -> None:
    """The read_timeout of 60 s starts after the wait for the download limit."""
    contents = await _limited(bench, 1, "1K")
    waited_s = await _waited_s(bench, autojump_clock)

    assert waited_s == pytest.approx(BLOCK_BYTES / KIB, rel=0.05)
    assert bench.cache.read_local(bench.located(0), 0, BLOCK_BYTES) == contents[0]


async def test_readers_of_one_block_share_one_limited_download(
    bench: CacheBench, autojump_clock: trio.testing.MockClock
) -> None:
    """If several readers wait for one block, the block is requested and counted only once."""
    await _limited(bench, 1, "1K")
    waited_s = await _waited_s(bench, autojump_clock, readers=10)

    assert waited_s == pytest.approx(BLOCK_BYTES / KIB, rel=0.05)
    assert len(bench.store.calls) == 1


async def test_reader_does_not_wait_for_read_ahead_under_a_download_limit(
    bench: CacheBench, autojump_clock: trio.testing.MockClock
) -> None:
    """Read-ahead skips a delayed block if a reader has fetched the block in the meantime."""
    await _limited(bench, 8, "1K")
    gate = bench.store.hold("get_range")
    began_s = trio.current_time()
    run = [bench.located(index) for index in range(8)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.cache.fetch_run, run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(bench.cache.fetch, run[7])
        await gate.wait_started()
        read_s = trio.current_time() - began_s
        autojump_clock.autojump_threshold = math.inf
        bench.cache.throttles.download.set(rate_limit("download_limit", "off"))
        gate.open()

    assert read_s == pytest.approx(BLOCK_BYTES / KIB, rel=0.05)
    assert all(bench.cache.is_local(bench.located(index)) for index in range(8))
    assert len(bench.store.calls) == 2


async def test_download_limit_does_not_delay_cached_reads(
    bench: CacheBench, autojump_clock: trio.testing.MockClock
) -> None:
    contents = await _limited(bench, 1, "off")
    await bench.cache.fetch(bench.located(0))
    bench.cache.throttles.download.set(rate_limit("download_limit", "1K"))
    bench.cache.throttles.download.charge(MIB)

    assert bench.cache.read_local(bench.located(0), 0, BLOCK_BYTES) == contents[0]


async def test_delayed_download_skips_blocks_that_other_readers_have_fetched(
    bench: CacheBench, autojump_clock: trio.testing.MockClock
) -> None:
    """If a delayed download is skipped, its reserved bytes are available to the next transfer."""
    await _limited(bench, 2, "1K")
    run = [bench.located(0), bench.located(1)]
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.cache.download_run, run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(bench.cache.throttles.download.take, BLOCK_BYTES)
        await trio.testing.wait_all_tasks_blocked()
        for located in run:
            bench.cache.index.put(located.block, BlockState.CLEAN, BLOCK_BYTES)

    assert trio.current_time() - began_s == pytest.approx(2 * BLOCK_BYTES / KIB, rel=0.05)
    assert bench.store.calls == []


async def test_neighbours_of_a_small_block_count_against_the_download_limit(
    bench: CacheBench, autojump_clock: trio.testing.MockClock
) -> None:
    """The download limit applies to all bytes of a request, not only to the requested block."""
    await bench.store_evicted(20, 8 * KIB)
    bench.cache.throttles.download.set(rate_limit("download_limit", "1K"))
    waited_s = await _waited_s(bench, autojump_clock)

    assert bench.cache.fetcher.fetched_blocks == 20
    assert waited_s == pytest.approx(160, rel=0.05)
