"""Tests of cached differences between the last viewed point in time and the newest txg."""

from functools import partial

import trio
import trio.testing

from s3fs_meta.browse.limits import BROWSE_CHANGED_MAX
from s3fs_meta.browse.sources.compared import Compared
from s3fs_meta.meta.trees.tree_diff import ADDED, Difference
from s3fs_meta.model import Txg
from s3fs_meta.sync.chain.chain import Link

NEWEST = Link(Txg(7), "a", 0)
ONE = Difference(b"one", ADDED, None, 0o100644, None, 1, True)


class Comparison:
    """A slow comparison that counts how often it runs."""

    def __init__(self, found: list[Difference] | None) -> None:
        self.found = found
        self.begun = self.running = self.most_running = 0

    async def __call__(self) -> list[Difference] | None:
        """Let other tasks run; return the differences."""
        self.begun += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await trio.testing.wait_all_tasks_blocked()
        self.running -= 1
        return self.found


async def test_pages_about_the_same_points_in_time_share_one_comparison() -> None:
    for found in ([ONE], None):
        compared, compare = Compared(), Comparison(found)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(partial(compared.of, (Txg(2), NEWEST), compare))
        assert await compared.of((Txg(2), NEWEST), compare) == found
        assert compare.begun == 1


async def test_comparisons_of_different_points_in_time_run_one_after_another() -> None:
    compared, compare = Compared(), Comparison([ONE])
    other = Link(Txg(7), "another history", 0)
    async with trio.open_nursery() as nursery:
        for points in ((Txg(2), NEWEST), (Txg(3), NEWEST), (Txg(3), other)):
            nursery.start_soon(partial(compared.of, points, compare))
    assert (compare.begun, compare.most_running) == (3, 1)


async def test_comparison_with_too_many_differences_is_not_cached() -> None:
    compared, compare = Compared(), Comparison([ONE] * (BROWSE_CHANGED_MAX + 1))
    for _ in range(2):
        found = await compared.of((Txg(2), NEWEST), compare)
        assert found is not None
        assert len(found) > BROWSE_CHANGED_MAX
    assert compare.begun == 2
