"""Fixtures: the s3fs-meta command as users run it, and filesystems on which tests run it."""

import contextlib
import io
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from s3fs_meta.cli import entry
from s3fs_meta.mount.existing import mount_table
from tests.programs import Program, QuickProgram


class Place(NamedTuple):
    """The URL and bucket of an unencrypted filesystem, and a mountpoint for it."""

    url: str
    bucket: Path
    mountpoint: Path


@pytest.fixture
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Program:
    """Return a runner of the command; only tests with a mount start a separate process."""
    is_mounted = request.node.get_closest_marker("mount") is not None
    return (Program if is_mounted else QuickProgram)(tmp_path / "state")


@pytest.fixture
def quick(tmp_path: Path) -> QuickProgram:
    """Return a runner of the command without local state and with invalid credentials."""
    program = QuickProgram(tmp_path / "state")
    program.environment |= {
        "AWS_ACCESS_KEY_ID": "unknown",
        "AWS_SECRET_ACCESS_KEY": "wrong",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    return program


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Place]:
    """Return a URL without a filesystem; after the test, unmount the mountpoint."""
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    yield Place(f"local://{tmp_path}/bucket", tmp_path / "bucket", mountpoint)
    if mount_table.find(str(mountpoint)) is not None:
        subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=True)


@pytest.fixture
def place(empty: Place, program: Program) -> Place:
    """Return an unencrypted filesystem with the label "photos"."""
    words = ["mkfs", "--plain", "--label", "photos", "--cachedir", str(program.cachedir), empty.url]
    with contextlib.redirect_stdout(io.StringIO()):
        assert entry.main(words) == 0
    return empty


@pytest.fixture
def mounted(place: Place, program: Program) -> Iterator[Place]:
    """Return a mounted filesystem, which is unmounted at the end of the test."""
    program.ok("mount", place.url, place.mountpoint)
    yield place
    if mount_table.find(str(place.mountpoint)) is not None:
        program.run("umount", place.mountpoint)


@pytest.fixture
def unsent(place: Place, program: Program) -> Iterator[Place]:
    """Return a mounted filesystem that uploads changes only if a command requests it.

    With the default interval of 5 s, a slow machine may upload a change before the test ends.
    """
    program.ok("mount", "-o", "sync_interval=1h", place.url, place.mountpoint)
    yield place
    if mount_table.find(str(place.mountpoint)) is not None:
        program.run("umount", place.mountpoint)


def lose_host(program: Program, place: Place) -> None:
    """Kill the daemon of a mount, and delete all local state of its host."""
    program.kill(place.mountpoint)
    subprocess.run(["umount", "-l", place.mountpoint], check=True)
    shutil.rmtree(program.cachedir)
