"""Removing trees of a mount."""

import json
import os
from pathlib import Path

import pytest

from s3fs_meta.cli.exits import ExitStatus
from tests.cli.conftest import Place, Program

pytestmark = pytest.mark.mount


def test_named_things_go_and_others_stay(program: Program, mounted: Place) -> None:
    """Files, links, empty directories, trees; names of any bytes."""
    mnt = mounted.mountpoint
    for name in ("tree", "stays"):
        (mnt / name / "deep" / "er").mkdir(parents=True)
        (mnt / name / "deep" / "f").write_text("content")
    (mnt / "file").touch()
    (mnt / "link").symlink_to("stays")
    (mnt / "empty").mkdir()
    odd = os.fsdecode(b"odd \xff\n")
    (mnt / odd).touch()
    gone = [mnt / name for name in ("tree", "file", "link", "empty", odd)]

    done = json.loads(program.ok("rm", "--json", *gone))

    assert done == {"removed": [str(path) for path in gone]}
    assert os.listdir(mnt) == ["stays"]
    assert (mnt / "stays" / "deep" / "f").read_text() == "content"


def test_waiting_ends_when_nothing_is_left(program: Program, mounted: Place) -> None:
    """Statfs counts no inode of it any more, and nothing is being removed."""
    mnt = mounted.mountpoint
    for number in range(20):
        (mnt / "tree" / f"d{number}" / "below").mkdir(parents=True)
        (mnt / "tree" / f"d{number}" / "below" / "f").write_text("content")
    os.stat(mnt / "tree")

    program.ok("rm", "--wait", mnt / "tree")

    figures = os.statvfs(mnt)
    assert figures.f_files - figures.f_ffree == 1
    nothing = {"copying": None, "locking": None, "removing": None, "held_back": 0}
    assert program.status(mnt)["trees"] == nothing


def test_nothing_goes_if_one_path_is_wrong(program: Program, mounted: Place) -> None:
    """All are looked at first."""
    (mounted.mountpoint / "f").touch()
    missing = mounted.mountpoint / "missing"
    done = program.run("rm", mounted.mountpoint / "f", missing)

    assert done.returncode == ExitStatus.USAGE
    assert str(missing) in done.stderr
    assert (mounted.mountpoint / "f").exists()


def test_read_only_mount_refuses(program: Program, mounted: Place) -> None:
    """As unlink(2) would."""
    (mounted.mountpoint / "d" / "e").mkdir(parents=True)
    program.ok("umount", mounted.mountpoint)
    program.ok("mount", "-o", "ro", mounted.url, mounted.mountpoint)

    done = program.run("rm", mounted.mountpoint / "d")

    assert done.returncode == ExitStatus.REQUEST
    assert "read-only" in done.stderr
    assert (mounted.mountpoint / "d" / "e").exists()


def test_path_elsewhere_is_refused(program: Program, tmp_path: Path) -> None:
    """A directory of another filesystem is not touched."""
    (tmp_path / "d").mkdir()
    assert program.run("rm", tmp_path / "d").returncode == ExitStatus.NOT_MOUNTED
    assert (tmp_path / "d").exists()
