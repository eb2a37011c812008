"""Unmounting while the daemon no longer answers."""

import os
import signal
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.mount.existing import mount_table
from tests.cli.conftest import Place
from tests.programs import Program

pytestmark = pytest.mark.mount


def test_umount_does_not_wait_forever_if_the_daemon_stops_after_the_upload(
    place: Place, tmp_path: Path
) -> None:
    """The stand-in for umount(8) and fusermount3(1) stops the daemon, and then hangs."""
    program = Program(tmp_path / "state")
    program.ok("mount", place.url, place.mountpoint)
    pid = int(program.status(place.mountpoint)["pid"])
    hanging = tmp_path / "hanging"
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("umount", "fusermount3"):
        (folder / name).write_text(
            f"#!/bin/sh\nkill -STOP {pid}\necho $$ > {hanging}\nexec sleep 600\n"
        )
        (folder / name).chmod(0o755)
    path = os.environ["PATH"]
    program.environment["PATH"] = f"{folder}:{path}"

    done = program.run("umount", place.mountpoint)

    os.kill(int(hanging.read_text()), signal.SIGKILL)
    os.kill(pid, signal.SIGCONT)
    program.environment["PATH"] = path
    assert done.returncode == ExitStatus.CONTROL, done.stderr
    assert f"{place.mountpoint} stays mounted: the daemon" in done.stderr
    assert "did not answer within 30 s" in done.stderr
    assert mount_table.find(str(place.mountpoint)) is not None
    program.ok("umount", place.mountpoint)
