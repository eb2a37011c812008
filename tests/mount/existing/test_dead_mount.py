"""Tests of distinguishing a running mount from the mount of a killed daemon."""

from pathlib import Path

import pytest
import trio

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.errors import HeldError, SettingsError
from s3fs_meta.mount.existing import dead_mount, targets
from tests.cli.conftest import Place
from tests.programs import Program


@pytest.mark.mount
def test_running_mount_without_a_mount_note_is_not_replaced(
    program: Program, mounted: Place
) -> None:
    """Without a mount note, the mount command asks the kernel whether the daemon still runs."""
    note = targets.of_mountpoint(mounted.mountpoint, None).note
    assert note is not None
    note.unlink()

    done = program.run("mount", "-o", "ro,at=0s", mounted.url, mounted.mountpoint)

    assert done.returncode == ExitStatus.HELD
    assert f"already mounted on {mounted.mountpoint}" in done.stderr
    (mounted.mountpoint / "f").write_text("served")


@pytest.mark.mount
def test_only_a_mount_of_this_url_whose_daemon_was_killed_counts_as_dead(
    program: Program, mounted: Place
) -> None:
    with pytest.raises(HeldError):
        trio.run(dead_mount.is_left, mounted.mountpoint, mounted.url)
    program.kill(mounted.mountpoint)

    assert trio.run(dead_mount.is_left, mounted.mountpoint, mounted.url)
    assert trio.run(dead_mount.is_left, mounted.mountpoint, f"{mounted.url}/")
    with pytest.raises(SettingsError, match="is mounted on"):
        trio.run(dead_mount.is_left, mounted.mountpoint, "local:///another")


async def test_unmounted_directory_is_not_a_dead_mount(tmp_path: Path) -> None:
    assert not await dead_mount.is_left(tmp_path, "local:///x")
