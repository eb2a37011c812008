"""Tests of the cache for slow computations about points in time."""

from functools import partial

import trio
import trio.testing

from s3fs_meta.browse.sources.cached import Cached
from s3fs_meta.model import Txg
from s3fs_meta.sync.chain.chain import Link


class Comparison:
    """A slow comparison that counts how often it runs."""

    def __init__(self, found: list[int] | None) -> None:
        self.found = found
        self.begun = self.running = self.most_running = 0

    async def __call__(self) -> list[int] | None:
        """Let other tasks run; return the differences."""
        self.begun += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await trio.testing.wait_all_tasks_blocked()
        self.running -= 1
        return self.found


async def test_pages_about_the_same_point_in_time_share_one_computation() -> None:
    for found in ([1], None):
        cached, compare = Cached[int, list[int] | None](1), Comparison(found)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(partial(cached.of, 2, compare))
        assert await cached.of(2, compare) == found
        assert compare.begun == 1


async def test_computations_for_different_points_in_time_run_one_after_another() -> None:
    """After ``fsck -y`` has abandoned txgs, a txg may belong to another history."""
    cached, compare = Cached[Link, list[int] | None](3), Comparison([1])
    links = [Link(Txg(2), "a", 0), Link(Txg(3), "a", 0), Link(Txg(3), "another history", 0)]
    async with trio.open_nursery() as nursery:
        for link in links:
            nursery.start_soon(partial(cached.of, link, compare))
    assert (compare.begun, compare.most_running) == (3, 1)


async def test_result_that_is_too_large_is_not_cached() -> None:
    cached: Cached[int, list[int] | None] = Cached(1, lambda found: found is None)
    compare = Comparison([1, 2])
    for _ in range(2):
        assert await cached.of(2, compare) == [1, 2]
    assert compare.begun == 2


async def test_least_recently_used_result_is_forgotten() -> None:
    cached, compare = Cached[int, list[int] | None](2), Comparison([1])
    for key in (1, 2, 1, 3, 1):
        await cached.of(key, compare)
    assert compare.begun == 3
    await cached.of(2, compare)
    assert compare.begun == 4
