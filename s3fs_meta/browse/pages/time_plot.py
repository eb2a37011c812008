"""The plot of the time line: a bar for each run of txgs, gaps, and marks of kept points.

Owns: positions on the plot. Does not know: HTML, how changes are counted.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from s3fs_meta.browse.sources.time_line import KeptIn, Run, gaps
from s3fs_meta.codec.kept_point import KeptPoint

WIDTH: Final = 1000.0
HEIGHT: Final = 100.0
_BAR_WIDTH_MIN: Final = 3.0
_BAR_HEIGHT_MIN: Final = 2.0
_FLAG: Final = 12.0  # width of the flag that marks a kept point
_GAP: Final = 0.85  # width of the symbol for a gap, as a fraction of the distance between bars


class Bar(NamedTuple):
    """The bar of one run; it has the full height if the number of changes is unknown."""

    x: float
    y: float
    width: float
    height: float
    run: Run


class GapMark(NamedTuple):
    """The mark of a period without changes on the plot of the time line."""

    x: float
    width: float
    length_s: float


class PointMark(NamedTuple):
    """The mark of a kept point: a line in the bar of its run, with a flag to the right or left."""

    x: float
    flag: float
    point: KeptPoint


class Plot:
    """A plot of runs: time on the x axis, the logarithm of changed files on the y axis."""

    def __init__(self, runs: Sequence[Run], kept: KeptIn | None = None) -> None:
        """Create the plot, without runs of unknown time.

        Args:
            runs: the runs, latest first.
            kept: the kept points of each run, keyed by the first txg of the run.
        """
        self.bars: list[Bar] = []  # bars of the plot in chronological order
        self.gaps: list[GapMark] = []
        self.marks: list[PointMark] = []
        self.begin_ns = self.end_ns = 0
        known = [
            (run.begin_ns, run.end_ns, run)
            for run in reversed(runs)
            if run.begin_ns is not None and run.end_ns is not None
        ]
        if not known:
            return
        self.begin_ns = min(begin for begin, _, _ in known)
        self.end_ns = max(end for _, end, _ in known)
        most = math.log1p(max(run.changed or 0 for run in runs)) or 1.0
        before = 0.0
        without = gaps(runs)
        for begin_ns, end_ns, run in known:
            left, right = self._x(begin_ns), self._x(end_ns)
            width = max(right - left, _BAR_WIDTH_MIN)
            left = min(left, WIDTH - width)
            part = 1.0 if run.changed is None else math.log1p(run.changed) / most
            height = max(part * HEIGHT, _BAR_HEIGHT_MIN)
            if run.first in without:
                margin = (left - before) * (1 - _GAP) / 2
                gap = (before + margin, max(left - before - 2 * margin, 0.0))
                self.gaps.append(GapMark(*gap, without[run.first]))
            self.bars.append(Bar(left, HEIGHT - height, width, height, run))
            for point in (kept or {}).get(run.first, ()):
                x = left + width / 2 if run.first == run.last else self._x(point.created_ns)
                x = min(max(x, left), left + width)
                self.marks.append(PointMark(x, _FLAG if x + _FLAG <= WIDTH else -_FLAG, point))
            before = left + width

    def _x(self, time_ns: int) -> float:
        length_ns = self.end_ns - self.begin_ns
        return (
            (WIDTH - _BAR_WIDTH_MIN) * (time_ns - self.begin_ns) / length_ns if length_ns else 0.0
        )
