"""Tests of tree maps: rectangles whose areas are proportional to sizes."""

import itertools
import random

import pytest

from s3fs_meta.browse.pages.tree_map import Tile, tiles


def overlap(one: Tile, other: Tile) -> float:
    """Return the area that two rectangles have in common."""
    width = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
    height = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
    return max(width, 0.0) * max(height, 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_tree_map_rectangles_have_areas_proportional_to_sizes(seed: int) -> None:
    chosen = random.Random(seed)
    sizes = sorted((chosen.expovariate(1) ** 3 + 1e-9 for _ in range(50)), reverse=True)
    found = tiles(sizes, 1000, 440)
    assert len(found) == len(sizes)
    for size, tile in zip(sizes, found, strict=True):
        assert tile.width * tile.height == pytest.approx(1000 * 440 * size / sum(sizes))
        assert -1e-6 <= tile.x <= tile.x + tile.width <= 1000 + 1e-6
        assert -1e-6 <= tile.y <= tile.y + tile.height <= 440 + 1e-6
    assert all(overlap(*pair) < 1e-3 for pair in itertools.combinations(found, 2))


def test_tree_map_rectangles_of_equal_sizes_are_nearly_square() -> None:
    found = tiles([1.0] * 8, 1000, 500)
    assert max(max(one.width / one.height, one.height / one.width) for one in found) < 2.1


def test_tree_map_can_be_drawn_for_zero_or_one_sizes() -> None:
    assert tiles([5.0], 10, 20) == [Tile(0.0, 0.0, 10.0, 20.0)]
    assert tiles([], 10, 20) == []
