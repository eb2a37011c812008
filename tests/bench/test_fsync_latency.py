"""The benchmark ``fsync_latency``, which measures how long fsync takes."""

import os
from pathlib import Path

import pytest

from contrib.bench import fsync_latency
from contrib.bench.names import DISK, OURS
from contrib.bench.subjects import PlainDirectory

pytestmark = pytest.mark.thorough


def test_fsync_latency_is_measured_on_an_idle_filesystem_and_during_copies(tmp_path: Path) -> None:
    """A benchmark of fsync combines the samples of all rounds, and only s3fs-meta has a target."""
    source = tmp_path / "large"
    source.write_bytes(os.urandom(1 << 20))
    subjects = [PlainDirectory(name, tmp_path / name) for name in (DISK, OURS)]

    figures = fsync_latency.measured(subjects, source, 5, 2)

    for name in (DISK, OURS):
        row = figures["fsync"][name]
        assert row["idle, answers"] == 10
        assert row["copying, answers"] >= 2
        assert row["ratio"] == row["copying, p99_ms"] / row["idle, p99_ms"]
        assert len(row["copy, s"]["values"]) == 2
        assert not list((tmp_path / name).rglob("copy"))
    (target,) = figures["targets"]
    assert target["measured"] == figures["fsync"][OURS]["ratio"]


def test_failed_copy_makes_the_fsync_benchmark_fail(tmp_path: Path) -> None:
    disk = PlainDirectory(DISK, tmp_path / "disk")

    with pytest.raises(AssertionError, match="the copy failed"):
        # The source is a directory, so copying fails.
        fsync_latency.measured([disk], tmp_path, 1, 1)
