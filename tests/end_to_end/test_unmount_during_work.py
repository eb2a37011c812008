"""Unmounts while a command changes the filesystem: the last upload contains all changes."""

import os
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.programs import QuickProgram, wait_until_gone

pytestmark = pytest.mark.mount

FILES = 1000
COPIES = 40


@pytest.fixture
def trees(mounted: Place, program: QuickProgram) -> Path:
    """Return a directory with so many files that removing or copying it takes a while."""
    top = mounted.mountpoint / "trees"
    (top / "0").mkdir(parents=True)
    for number in range(FILES):
        (top / "0" / str(number)).touch()
    for number in range(1, COPIES):
        program.ok("clone", top / "0", top / str(number))
    return top


def unmount(program: QuickProgram, place: Place) -> None:
    """Unmount with SIGTERM, and require that the lease is released after the daemon's exit."""
    pid = program.status(place.mountpoint)["pid"]
    os.kill(pid, signal.SIGTERM)
    wait_until_gone(pid)
    assert program.status(place.url)["state"] == "free"


def test_unmount_during_a_removal_releases_the_lease(
    program: QuickProgram, mounted: Place, trees: Path, tmp_path: Path
) -> None:
    """The unmount interrupts the removal, and another host continues it."""
    program.ok("rm", trees)

    unmount(program, mounted)

    other = QuickProgram(tmp_path / "other-state")
    other.ok("mount", mounted.url, mounted.mountpoint)
    assert os.listdir(mounted.mountpoint) == []
    other.ok("umount", mounted.mountpoint)
    other.ok("fsck", "-n", mounted.url)
