"""Tests of the plot of the time line, which has one bar for each run of txgs."""

from dataclasses import replace

from s3fs_meta.browse.pages.time_plot import HEIGHT, WIDTH, Plot
from s3fs_meta.browse.sources.time_line import Move, Run, gaps, kept_in, moves
from s3fs_meta.codec.kept_point import KeptPoint
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.model import Txg
from tests.codec.kept_points import point_of

S = 10**9


def run(first: int, last: int, begin_s: int | None, end_s: int | None, changed: int | None) -> Run:
    """Return a run of consecutive txgs."""
    begin_ns, end_ns = (None if one is None else one * S for one in (begin_s, end_s))
    return Run(Txg(first), Txg(last), begin_ns, end_ns, changed)


RUNS = [
    run(6, 8, 1000, 1000, None),
    run(5, 5, 900, 950, 10),
    run(4, 4, None, None, None),
    run(2, 3, 10, 100, 1000),
    run(0, 1, 0, 5, 0),
]


def test_height_of_a_time_line_bar_shows_the_number_of_changes() -> None:
    plot = Plot(RUNS)
    assert [bar.run.first for bar in plot.bars] == [0, 2, 5, 6]
    lefts = [bar.x for bar in plot.bars]
    assert lefts == sorted(lefts)
    assert (plot.begin_ns, plot.end_ns) == (0, 1000 * S)
    assert all(0 <= bar.x and bar.x + bar.width <= WIDTH + 1e-6 for bar in plot.bars)
    heights = {bar.run.first: bar.height for bar in plot.bars}
    # For txg 6 the number of changes is unknown, and txg 2 has the most changes.
    assert heights[Txg(6)] == heights[Txg(2)] == HEIGHT
    assert 0 < heights[Txg(0)] < heights[Txg(5)] < HEIGHT


def test_time_line_shows_long_periods_without_changes_as_short_gaps() -> None:
    """A txg with an unknown time does not lengthen a gap."""
    assert gaps(RUNS) == {Txg(5): 800.0}
    plot = Plot(RUNS)
    assert [gap.length_s for gap in plot.gaps] == [800.0]
    for gap in plot.gaps:
        assert all(bar.x + bar.width <= gap.x or gap.x + gap.width <= bar.x for bar in plot.bars)


def kept(name: str, txg: int, time_s: int) -> KeptPoint:
    """Return a kept point (a named txg)."""
    point = point_of(Keyring(None, bytes(range(32))), name, txg=txg, image=0)
    return replace(point, created_ns=time_s * S)


def test_time_line_marks_the_kept_points_in_the_bar_of_their_txgs() -> None:
    """Each kept point in the shown runs of txgs has a mark with its name."""
    points = [kept(*one) for one in (("a", 2, 10), ("b", 3, 100), ("c", 3, 100), ("d", 8, 1000))]
    found = kept_in(RUNS, points)
    assert {first: [one.name for one in some] for first, some in found.items()} == {
        Txg(2): ["a", "b", "c"],
        Txg(6): ["d"],
    }
    plot = Plot(RUNS, found)
    assert [mark.point.name for mark in plot.marks] == ["a", "b", "c", "d"]
    bars = {bar.run.first: bar for bar in plot.bars}
    for mark in plot.marks:
        bar = bars[Txg(6) if mark.point.txg == 8 else Txg(2)]
        assert bar.x <= mark.x <= bar.x + bar.width
        assert 0 <= mark.x + mark.flag <= WIDTH
    assert plot.marks[0].x < plot.marks[1].x == plot.marks[2].x
    assert kept_in(RUNS[:1], points[:3]) == kept_in([], points) == {}


def test_time_line_can_be_drawn_for_zero_or_one_txgs() -> None:
    assert Plot([]).bars == []
    [bar] = Plot([run(7, 7, 5, 5, 3)]).bars
    assert (bar.x, bar.height) == (0.0, HEIGHT)
    assert gaps([run(7, 7, 5, 5, 3)]) == gaps([]) == {}


def test_time_line_links_refer_only_to_retained_points_in_time() -> None:
    found = moves(Txg(40), Txg(59), Txg(0), Txg(100))
    assert found == [
        Move("Earlier", Txg(30), Txg(49)),
        Move("Later", Txg(50), Txg(69)),
        Move("Closer", Txg(45), Txg(54)),
        Move("Wider", Txg(30), Txg(69)),
    ]
    assert moves(Txg(0), Txg(100), Txg(0), Txg(100))[0].label == "Earlier"
    assert moves(Txg(5), Txg(5), Txg(5), Txg(5)) == []
    assert [one.label for one in moves(Txg(5), Txg(5), Txg(0), Txg(9))] == [
        "Earlier",
        "Later",
        "Wider",
    ]
