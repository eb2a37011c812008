"""Fetches under ``download_limit``: who waits, and for how long."""

import math

import pytest
import trio
import trio.testing

from s3fs_meta.limits import KIB, MIB
from s3fs_meta.model import BlockState
from s3fs_meta.rate_limit import rate_limit
from tests.cache.conftest import CacheBench

BLOCK_BYTES = 64 * KIB  # such blocks are fetched without neighbours


async def _limited(bench: CacheBench, count: int, rate: str) -> list[bytes]:
    """Store blocks, evict them, and limit downloads from now on; return the contents."""
    contents = await bench.store_evicted(count, BLOCK_BYTES)
    bench.cache.throttles.download.set(rate_limit("download_limit", rate))
    return contents


async def test_read_waits_longer_than_its_timeout(
    bench: CacheBench, autojump_clock: trio.testing.MockClock
) -> None:
    """A read waits as long as the limit requires; read_timeout (60 s) begins afterwards."""
    contents = await _limited(bench, 1, "1K")
    gate = bench.store.hold("get_range")
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.cache.fetch, bench.located(0))
        await gate.wait_started()
        waited_s = trio.current_time() - began_s
        autojump_clock.autojump_threshold = math.inf  # threads would let the timeout pass
        gate.open()

    assert waited_s == pytest.approx(BLOCK_BYTES / KIB, rel=0.05)
    assert bench.cache.read_local(bench.located(0), 0, BLOCK_BYTES) == contents[0]


async def test_readers_of_one_block_share_its_wait(
    bench: CacheBench, autojump_clock: trio.testing.MockClock
) -> None:
    """The block is requested and counted once; its readers do not time out while it waits."""
    await _limited(bench, 1, "1K")
    gate = bench.store.hold("get_range")
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(bench.cache.fetch, bench.located(0))
        await gate.wait_started()
        waited_s = trio.current_time() - began_s
        autojump_clock.autojump_threshold = math.inf
        gate.open()

    assert waited_s == pytest.approx(BLOCK_BYTES / KIB, rel=0.05)
    assert len(bench.store.calls) == 1


async def test_reader_does_not_wait_for_read_ahead(
    bench: CacheBench, autojump_clock: trio.testing.MockClock
) -> None:
    """A block of a run that still waits is fetched for its reader, and not by the run again."""
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
    """Content in the cache costs nothing of the limit."""
    contents = await _limited(bench, 1, "off")
    await bench.cache.fetch(bench.located(0))
    bench.cache.throttles.download.set(rate_limit("download_limit", "1K"))
    bench.cache.throttles.download.charge(MIB)

    assert bench.cache.read_local(bench.located(0), 0, BLOCK_BYTES) == contents[0]


async def test_waiting_run_does_not_request_what_arrived_meanwhile(
    bench: CacheBench, autojump_clock: trio.testing.MockClock
) -> None:
    """Its bytes are free for the next transfer."""
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


async def test_neighbours_of_a_small_block_count(
    bench: CacheBench, autojump_clock: trio.testing.MockClock
) -> None:
    """The limit applies to all bytes of a request, not only to those of the wanted block."""
    await bench.store_evicted(20, 8 * KIB)
    bench.cache.throttles.download.set(rate_limit("download_limit", "1K"))
    gate = bench.store.hold("get_range")
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.cache.fetch, bench.located(0))
        await gate.wait_started()
        waited_s = trio.current_time() - began_s
        autojump_clock.autojump_threshold = math.inf
        gate.open()

    assert bench.cache.fetched_blocks == 20
    assert waited_s == pytest.approx(160, rel=0.05)
