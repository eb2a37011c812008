"""Tests of a point in time that one command opens and closes again."""

import os
from pathlib import Path

import pytest
import trio

from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.errors import SettingsError
from s3fs_meta.model import NEWEST, PointInTime, Txg
from s3fs_meta.mount.existing.targets import of_url
from s3fs_meta.mount.snapshot_source import Reading, opened_bucket, opened_snapshot
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.state_paths import locate_snapshot_state
from s3fs_meta.sync.host_state.state_dir import StateDir
from tests.cli.conftest import Place


async def use(place: Place, cachedir: Path, wanted: PointInTime) -> list[str]:
    """Open a point in time; return the state directories that exist while the point is open."""
    front = TerminalFront(quiet=True)
    reading = Reading(of_url(place.url, cachedir), S3Options(), None, front)
    async with (
        opened_bucket(reading) as bucket,
        opened_snapshot(reading, bucket, wanted) as opened,
    ):
        assert opened.db.counters.inodes == 1
        return os.listdir(cachedir)


def test_command_on_a_snapshot_leaves_no_local_state(place: Place, tmp_path: Path) -> None:
    """A command removes the local state of its snapshot and of an earlier killed command."""
    cachedir = tmp_path / "c"
    left = StateDir(locate_snapshot_state(of_url(place.url, cachedir).state, "process 0"))
    assert left.try_lock()
    left.unlock()

    meanwhile = trio.run(use, place, cachedir, NEWEST)
    assert [name.rpartition("-")[2] for name in meanwhile] != [left.path.name.rpartition("-")[2]]
    with pytest.raises(SettingsError):
        trio.run(use, place, cachedir, PointInTime("txg=5", txg=Txg(5)))

    assert len(meanwhile) == 1
    assert os.listdir(cachedir) == []
