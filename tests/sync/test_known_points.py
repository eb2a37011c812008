"""Known points: the points in time that shell completion offers."""

import itertools
import json
import os
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from s3fs_meta.limits import (
    KNOWN_NAMES_MAX,
    KNOWN_POINTS_BYTES_MAX,
    KNOWN_POINTS_LATEST,
    KNOWN_POINTS_MAX,
    KNOWN_POINTS_S,
)
from s3fs_meta.model import Txg
from s3fs_meta.sync import known_points
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.host_state.json_file import NewerFileError
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.known_points import Known, KnownPoints, Point, with_link
from tests.tasks import running

MINUTE_NS = 60 * 10**9
HOUR_NS = 60 * MINUTE_NS
DAY_NS = 24 * HOUR_NS
START_NS = 20_000 * DAY_NS


def link(txg: int, time_ns: int = START_NS, floor: int = 0) -> Link:
    """Return a chain position with a txg and a time."""
    return Link(Txg(txg), "0" * 64, time_ns, Txg(floor))


def after(*steps_ns: int) -> Known:
    """Return the known points after a mount has seen txgs at the given intervals."""
    known, time_ns = Known("u", ()), START_NS
    for txg, step_ns in enumerate(steps_ns, 1):
        time_ns += step_ns
        known = with_link(known, link(txg, time_ns))
    return known


def test_older_known_points_are_kept_at_longer_intervals() -> None:
    """Of older known points, one per hour, then one per day, then one per 30 days is kept."""
    points = after(*[12 * HOUR_NS] * 500, *[30 * MINUTE_NS] * 48 * 7).points
    ages_ns = [points[-1].time_ns - one.time_ns for one in reversed(points)]
    gaps_ns = [older - newer for newer, older in itertools.pairwise(ages_ns)]
    hours = [gap for gap, age in zip(gaps_ns, ages_ns, strict=False) if age < 47 * HOUR_NS]
    days = [gap for gap, age in zip(gaps_ns, ages_ns, strict=False) if age < 59 * DAY_NS]

    assert gaps_ns[: KNOWN_POINTS_LATEST - 1] == [30 * MINUTE_NS] * (KNOWN_POINTS_LATEST - 1)
    assert set(hours[KNOWN_POINTS_LATEST:]) == {HOUR_NS}
    assert set(days[len(hours) + 1 :]) == {DAY_NS}
    assert set(gaps_ns[len(days) + 2 : -1]) == {30 * DAY_NS}
    assert len(points) < KNOWN_POINTS_MAX
    assert points[0].txg == 1


def test_number_of_known_points_is_limited(tmp_path: Path) -> None:
    """The number of known points is limited even if the clock runs backwards."""
    assert len(after(*[-40 * DAY_NS] * 300).points) <= KNOWN_POINTS_MAX
    many = Known("u", tuple(Point(txg, START_NS + txg * DAY_NS) for txg in range(500)))
    known_points.write(tmp_path, many)

    found = known_points.read(tmp_path)

    assert found is not None
    assert found.points == many.points[-KNOWN_POINTS_MAX:]
    assert (tmp_path / "points.json").stat().st_size < KNOWN_POINTS_BYTES_MAX / 2


def test_unavailable_points_are_removed_from_the_known_points() -> None:
    """Known points below the retention floor or of another history are removed."""
    known = Known("u", tuple(Point(txg, START_NS + txg) for txg in (1, 2, 3, 7, 9)))

    found = with_link(known, link(8, START_NS + 8, floor=2))

    assert [one.txg for one in found.points] == [2, 3, 7, 8]


async def test_mount_adds_its_txg_to_the_known_points_of_earlier_mounts(tmp_path: Path) -> None:
    present = link(4)
    points = KnownPoints(StateDir(tmp_path / "s").path, "u", lambda: present)
    await points.save()
    present = link(5, START_NS + 1)
    await KnownPoints(tmp_path / "s", "u", lambda: present).save()

    found = known_points.read(tmp_path / "s")

    assert found == Known("u", (Point(4, START_NS), Point(5, START_NS + 1)))
    StateDir(tmp_path / "s")


async def test_known_points_of_another_filesystem_are_dropped(tmp_path: Path) -> None:
    known_points.write(tmp_path, Known("other", (Point(1, START_NS),)))

    await KnownPoints(tmp_path, "u", lambda: link(5)).save()

    assert known_points.read(tmp_path) == Known("u", (Point(5, START_NS),))


async def test_changed_names_of_kept_points_are_saved_for_shell_completion(tmp_path: Path) -> None:
    """Names of kept points are saved until kept points are listed again, up to a limit."""
    names: list[str] | None = None
    points = KnownPoints(tmp_path, "u", lambda: link(5), lambda: names)
    for names in (["first", "second"], ["second"], []):
        await points.save()
        assert known_points.read(tmp_path) == Known("u", (Point(5, START_NS),), tuple(names))
    names = [f"n{number}" + "x" * 58 for number in range(KNOWN_NAMES_MAX + 5)]
    await points.save()
    await KnownPoints(tmp_path, "u", lambda: link(6)).save()
    known = known_points.read(tmp_path)
    assert known is not None
    assert known.kept == tuple(names[5:])
    assert (tmp_path / "points.json").stat().st_size < KNOWN_POINTS_BYTES_MAX / 2


async def test_save_without_new_known_points_writes_no_file(tmp_path: Path) -> None:
    await KnownPoints(tmp_path, "u", lambda: link(0, 0)).save()
    assert os.listdir(tmp_path) == []
    await KnownPoints(tmp_path, "u", lambda: link(5)).save()
    before = (tmp_path / "points.json").stat().st_ino

    await KnownPoints(tmp_path, "u", lambda: link(5)).save()

    assert (tmp_path / "points.json").stat().st_ino == before


async def test_newest_known_point_is_saved_at_intervals(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    txg = 1

    async def until(wanted: int) -> None:
        """Let intervals pass until the saved known points include a txg."""
        while (found := known_points.read(tmp_path)) is None or (  # noqa: ASYNC110 - a thread writes the file
            found.points[-1].txg < wanted
        ):
            mock_clock.jump(KNOWN_POINTS_S)
            await trio.lowlevel.checkpoint()

    async with running(KnownPoints(tmp_path, "u", lambda: link(txg, START_NS + txg)).run):
        await until(1)
        txg = 2
        await until(2)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 60_000,
        b" " * (KNOWN_POINTS_BYTES_MAX + 1),
        b'{"version": 1, "uuid": "u", "points": 7}',
        b'{"version": 1, "uuid": "u", "points": [[1]]}',
        b'{"version": 1, "uuid": "u", "points": [[1, -1]]}',
        b'{"version": "1", "uuid": "u", "points": []}',
        b'{"version": 1, "uuid": "u", "points": [], "kept": ["a b"]}',
    ],
)
async def test_damaged_file_of_known_points_is_replaced(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "points.json").write_bytes(data)

    assert known_points.read(tmp_path) is None
    await KnownPoints(tmp_path, "u", lambda: link(5)).save()

    assert known_points.read(tmp_path) == Known("u", (Point(5, START_NS),))


async def test_known_points_file_of_a_newer_program_is_not_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newer = json.dumps({"version": 2}).encode()
    (tmp_path / "points.json").write_bytes(newer)

    await KnownPoints(tmp_path, "u", lambda: link(5)).save()

    assert (tmp_path / "points.json").read_bytes() == newer
    assert "cannot save the list of known points in time" in caplog.text
    with pytest.raises(NewerFileError):
        known_points.read(tmp_path)


async def test_failed_save_of_known_points_is_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    points = KnownPoints(tmp_path, "u", lambda: link(5))
    (tmp_path / "points.json.new").mkdir()
    await points.save()
    assert "cannot save the list of known points in time" in caplog.text
    (tmp_path / "points.json.new").rmdir()

    await points.save()

    assert known_points.read(tmp_path) == Known("u", (Point(5, START_NS),))
    (tmp_path / "points.json").unlink()
    await points.save()
    assert os.listdir(tmp_path) == []
