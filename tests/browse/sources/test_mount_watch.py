"""Tests of the browse page that plots the statistics of a mount over time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from s3fs_meta.browse import templates
from s3fs_meta.browse.limits import BROWSE_SAMPLE_S, BROWSE_SAMPLES_MAX
from s3fs_meta.browse.pages.mount_page import SERIES, line_of, mount
from s3fs_meta.browse.sources.mount_watch import MountWatch, Sample, rates
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.statistics import prices
from s3fs_meta.mount.statistics.latency import Histogram
from tests.programs import Program
from tests.tasks import running


def figures(factor: int, pid: int = 1) -> dict[str, Any]:
    """Return statistics of a mount, with each number multiplied by a factor."""
    return {
        "pid": pid,
        "upload": {"sent_bytes": 1000 * factor},
        "cache": {"hits": 3 * factor, "misses": factor},
        "store": {"get": {"requests": 2 * factor}, "put": {"requests": 3 * factor}},
        "billed": {"data": {"put": {"requests": 1000 * factor, "received_bytes": 0}}},
        "latency": {
            "bounds_s": [0.001, 0.01],
            "operations": {
                "read": {"counts": [10 * factor, 0, 0], "total_s": 0.0},
                "write": {"counts": [0, 10 * factor, 0], "total_s": 0.0},
            },
        },
    }


def test_mount_page_computes_rates_from_two_readings() -> None:
    table = prices.default()
    found = rates(figures(1), figures(3), 10.0, table)
    assert found["sent"] == 200.0
    assert found["store"] == 1.0
    assert found["hits"] == 0.75
    assert found["requests"] == 4.0
    assert found["median"] == pytest.approx(0.001)
    assert 0.009 < found["slowest"] <= 0.01
    assert found["cost"] == pytest.approx(2000 * table.requests["put"] * 8640)


def test_mount_page_shows_the_rates_of_a_daemon_that_does_not_count_requests() -> None:
    """After an upgrade of the package, a mount may still have a daemon of an earlier version."""
    before, now = figures(1), figures(3)
    del before["billed"], now["billed"]
    found = rates(before, now, 10.0, prices.default())
    assert (found["store"], found["cost"]) == (1.0, 0.0)


async def test_mount_page_names_a_daemon_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def request(_place: Target) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"state": "serving"}

    monkeypatch.setattr("s3fs_meta.browse.sources.mount_watch.request_status", request)
    watch = MountWatch(Target("local:///somewhere", tmp_path, "/mnt"))
    await watch.read()
    assert "another version" in watch.samples[-1].state
    assert watch.samples[-1].values == {}


def test_mount_page_shows_no_rates_after_a_restart_of_the_mount() -> None:
    assert rates(figures(3), figures(1, pid=2), 10.0, prices.default()) == {}
    assert "hits" not in rates(figures(1), figures(1), 10.0, prices.default())


async def test_mount_page_reports_that_the_filesystem_was_unmounted(tmp_path: Path) -> None:
    watch = MountWatch(Target("local:///nowhere", tmp_path, "/mnt"))
    for _ in range(3):
        await watch.read()
    assert (len(watch.samples), watch.samples.maxlen) == (3, BROWSE_SAMPLES_MAX)
    assert "no s3fs-meta filesystem is mounted" in watch.samples[-1].state
    assert watch.samples[-1].values == {}
    page = (
        await mount(watch, templates.load(root="/r", place="x", target="x", has_mount=True))
    ).content.decode()
    assert "no s3fs-meta filesystem is mounted" in page
    assert "<polyline" not in page


async def test_statistics_of_a_mount_are_read_at_fixed_intervals(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    watch = MountWatch(Target("local:///nowhere", tmp_path, "/mnt"))
    counts: list[int] = []
    async with running(watch.run):
        for count in (1, 2):
            while len(watch.samples) < count:
                await trio.to_thread.run_sync(int)
            for _ in range(10):  # No sample may be taken until the clock jumps.
                await trio.to_thread.run_sync(int)
            counts.append(len(watch.samples))
            mock_clock.jump(BROWSE_SAMPLE_S)

    assert counts == [1, 2]


def test_mount_page_plots_a_gap_where_a_value_is_unknown() -> None:
    values: list[dict[str, float]] = [{"cache": 5}, {"cache": 10}, {}, {"cache": 0}]
    samples = [Sample(number * 10**9, "serving", one) for number, one in enumerate(values)]
    cache = next(one for one in SERIES if one.name == "cache")
    line = line_of(cache, samples)
    assert line.parts == ["0.0,30.0 100.0,2.0", "300.0,58.0"]
    assert (line.now, line.most) == ("0 B", "10 B")
    assert line_of(cache, []).now == "unknown"
    assert line_of(cache, samples[2:3]).parts == []


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Target]:
    """Return the location of a mounted filesystem."""
    program, mnt = Program(tmp_path / "state"), tmp_path / "mnt"
    mnt.mkdir()
    url = f"local://{tmp_path}/bucket"
    program.ok("mkfs", "--plain", url)
    program.ok("mount", url, mnt)
    try:
        yield targets.of_either(str(mnt), program.cachedir)
    finally:
        program.ok("umount", mnt)


@pytest.mark.mount
async def test_statistics_of_a_mount_are_read_from_its_daemon(place: Target) -> None:
    watch = MountWatch(place)
    for _ in range(2):
        await watch.read()
    assert watch.samples[-1].state == "serving"
    assert {one.name for one in SERIES} - set(watch.samples[-1].values) <= {
        "hits",
        "median",
        "slowest",
    }


def test_latencies_since_a_reading_without_requests_cover_all_requests() -> None:
    found = Histogram((0.1, 1.0), (1, 2, 3), 4.0)

    assert found.since(Histogram((0.0,), (0, 0), 0.0)) == found
