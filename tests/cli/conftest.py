"""Fixtures: the program as users run it, and filesystems for it."""

import contextlib
import io
import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from s3fs_meta.cli import entry
from s3fs_meta.mount import mount_table
from tests.programs import PROCESS_S_MAX, Program, QuickProgram


def wait_until_gone(pid: int) -> None:
    """Wait for a process that is not our child; its pidfd becomes readable when it ends."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], PROCESS_S_MAX)[0], "the daemon did not end"
    finally:
        os.close(fd)


class Place(NamedTuple):
    """A plain filesystem and its mountpoint."""

    url: str
    bucket: Path
    mountpoint: Path


@pytest.fixture
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Program:
    """Return the program: a separate process in tests of mounts, this process in all others."""
    is_mounted = request.node.get_closest_marker("mount") is not None
    return (Program if is_mounted else QuickProgram)(tmp_path / "state")


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Place]:
    """Return a URL without a filesystem; unmount at the end."""
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    yield Place(f"local://{tmp_path}/bucket", tmp_path / "bucket", mountpoint)
    if mount_table.find(str(mountpoint)) is not None:
        subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=True)


@pytest.fixture
def place(empty: Place, program: Program) -> Place:
    """Return a filesystem."""
    words = ["mkfs", "--plain", "--label", "photos", "--cachedir", str(program.cachedir), empty.url]
    with contextlib.redirect_stdout(io.StringIO()):
        assert entry.main(words) == 0
    return empty


@pytest.fixture
def mounted(place: Place, program: Program) -> Iterator[Place]:
    """Return a mounted filesystem; wait for its daemon at the end."""
    program.ok("mount", place.url, place.mountpoint)
    yield place
    if mount_table.find(str(place.mountpoint)) is not None:
        program.run("umount", place.mountpoint)
