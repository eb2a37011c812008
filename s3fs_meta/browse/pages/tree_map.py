"""The layout of a tree map: nearly square rectangles with areas proportional to sizes.

Owns: the layout. Does not know: folders, HTML.
Source: Bruls, Huizing and van Wijk, Squarified Treemaps, 2000.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Tile(NamedTuple):
    """One rectangle of the tree map."""

    x: float
    y: float
    width: float
    height: float


def tiles(sizes: Sequence[float], width: float, height: float) -> list[Tile]:
    """Return one rectangle for each size; together they fill a given rectangle.

    Args:
        sizes: positive sizes in descending order.
        width: the width of the rectangle to fill.
        height: the height of the rectangle to fill.
    """
    total = sum(sizes)
    areas = [one * width * height / total for one in sizes] if total else []
    free = Tile(0.0, 0.0, width, height)
    found: list[Tile] = []
    while len(found) < len(areas):
        count = _row(areas[len(found) :], min(free.width, free.height))
        row = areas[len(found) : len(found) + count]
        placed, free = _place(row, free)
        found += placed
    return found


def _row(areas: Sequence[float], side: float) -> int:
    """Return how many of the areas form a row along a side in which they are nearly square."""
    best, total = float("inf"), 0.0
    for count, area in enumerate(areas):
        total += area
        # The areas are sorted, so the first or the last rectangle is the least square.
        thick = total / side if side else 0.0
        worst = max(_shape(one, thick) for one in (areas[0], area))
        if worst > best:
            return count
        best = worst
    return len(areas)


def _shape(area: float, thick: float) -> float:
    """Return the ratio of the longer to the shorter side of a rectangle."""
    if not area or not thick:
        return 1.0
    length = area / thick
    return max(length / thick, thick / length)


def _place(row: Sequence[float], free: Tile) -> tuple[list[Tile], Tile]:
    """Return the rectangles of a row along the shorter side, and the remaining rectangle."""
    x, y, width, height = free
    side = min(width, height)
    thick = sum(row) / side if side else 0.0
    placed: list[Tile] = []
    for area in row:
        length = area / thick if thick else 0.0
        if width >= height:
            placed.append(Tile(x, y, thick, length))
            y += length
        else:
            placed.append(Tile(x, y, length, thick))
            x += length
    if width >= height:
        return placed, Tile(free.x + thick, free.y, max(width - thick, 0.0), height)
    return placed, Tile(free.x, free.y + thick, width, max(height - thick, 0.0))
