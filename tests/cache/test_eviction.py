"""Eviction of clean blocks."""

import threading

import pytest
import trio

from s3fs_meta.cache import eviction
from s3fs_meta.limits import EVICTED_AT_ONCE_MAX
from tests.cache.conftest import CacheBench


async def test_many_small_blocks_make_room_without_stalling_the_loop(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few are evicted at once; a writer that needs more waits while a thread removes the files."""
    for index in range(100):
        bench.write(index, bytes([index]) * 100)
    await bench.upload(*range(100))
    cache = bench.new_cache(bytes_max=10_000)
    loop, removed_by = threading.get_ident(), bench.watch_removals(monkeypatch)

    assert cache.find_room(500)
    assert removed_by == [loop] * 5
    assert not cache.find_room(9000)
    await cache.wait_for_room(9000)

    assert removed_by.count(loop) <= 5 + 2 * EVICTED_AT_ONCE_MAX
    assert len(removed_by) == 90
    assert len(list(bench.files.numbers())) == cache.index.total_count == 10


async def test_cancelled_eviction_leaves_no_file(bench: CacheBench) -> None:
    """Rows and files are removed together, even if the writer is cancelled."""
    for index in range(100):
        bench.write(index, bytes([index]) * 100)
    await bench.upload(*range(100))
    cache = bench.new_cache(bytes_max=10_000)

    with trio.CancelScope() as scope:
        scope.cancel()
        await cache.wait_for_room(9000)

    assert len(list(bench.files.numbers())) == cache.index.total_count


async def test_many_blocks_are_evicted_although_their_bytes_fit(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of cached blocks is bounded, too; those used least recently are evicted."""
    monkeypatch.setattr(eviction, "CACHED_BLOCKS_MAX", 2)
    made = [bench.write(index, b"content") for index in range(4)]
    await bench.upload(*range(4))

    await bench.cache.evictor.evict(0)

    assert sorted(bench.cache.index.blocks()) == made[2:]
