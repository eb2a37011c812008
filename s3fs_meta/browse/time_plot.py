"""The time line as a plot: a bar for each run of txgs, and the gaps between them.

Owns: positions on the plot. Does not know: HTML, how changes are counted.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from s3fs_meta.browse.time_line import Run, gaps

WIDTH: Final = 1000.0
HEIGHT: Final = 100.0
_BAR_WIDTH_MIN: Final = 3.0
_BAR_HEIGHT_MIN: Final = 2.0
_GAP: Final = 0.85  # part of the distance between two bars that is marked


class Bar(NamedTuple):
    """One run; a run whose number of changes is unknown is as high as the plot."""

    x: float
    y: float
    width: float
    height: float
    run: Run


class Gap(NamedTuple):
    """A time without changes."""

    x: float
    width: float
    length_s: float


class Plot:
    """The plot of some runs: time from left to right, the logarithm of changed files upwards."""

    def __init__(self, runs: Sequence[Run]) -> None:
        """Place the runs, the latest first; runs whose time is unknown are left out."""
        self.bars: list[Bar] = []  # the earliest first
        self.gaps: list[Gap] = []
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
                self.gaps.append(Gap(*gap, without[run.first]))
            self.bars.append(Bar(left, HEIGHT - height, width, height, run))
            before = left + width

    def _x(self, time_ns: int) -> float:
        length_ns = self.end_ns - self.begin_ns
        return (
            (WIDTH - _BAR_WIDTH_MIN) * (time_ns - self.begin_ns) / length_ns if length_ns else 0.0
        )
