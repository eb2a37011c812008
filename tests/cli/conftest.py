"""The program as users run it, and places for it to work on."""

import contextlib
import io
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from s3fs_meta.cli import entry
from s3fs_meta.mount import mount_table
from tests.conftest import WITHOUT_EXTENSION

ROOT = Path(__file__).parents[2]
PROCESS_S_MAX = 50


class Program:
    """Runs ``s3fs-meta`` in a process of its own, with local state under one directory."""

    def __init__(self, cachedir: Path) -> None:
        self.cachedir = cachedir
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith("S3FS_META")
        } | {"PYTHONPATH": str(ROOT)}

    def run(
        self, *words: str | Path, module: str = "s3fs_meta", here: bool = True, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run one command; *here* adds --cachedir."""
        command = [sys.executable, "-m", module, *map(str, words)]
        if WITHOUT_EXTENSION and module == "s3fs_meta" and words[0] == "mount":
            command += ["-o", "extension=off"]
        if here:
            command += ["--cachedir", str(self.cachedir)]
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROCESS_S_MAX,
            env=self.environment,
            start_new_session=True,
        )

    def ok(self, *words: str | Path, here: bool = True) -> str:
        """Run one command that must succeed; return what it prints."""
        done = self.run(*words, here=here)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self, target: str | Path) -> dict[str, Any]:
        """Return the figures of a mount or bucket."""
        found = json.loads(self.ok("status", "--json", target))
        assert isinstance(found, dict)
        return found


def wait_until_gone(pid: int) -> None:
    """Wait for a process that is nobody's child; its pidfd becomes readable when it ends."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], PROCESS_S_MAX)[0], "the daemon did not end"
    finally:
        os.close(fd)


class Place(NamedTuple):
    """A filesystem that exists, not encrypted, and where it can be mounted."""

    url: str
    bucket: Path
    mountpoint: Path


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Return the program."""
    return Program(tmp_path / "state")


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Place]:
    """Return a place without a filesystem; what is mounted there at the end is taken away."""
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    yield Place(f"local://{tmp_path}/bucket", tmp_path / "bucket", mountpoint)
    if mount_table.find(str(mountpoint)) is not None:
        subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=True)


@pytest.fixture
def place(empty: Place, program: Program) -> Place:
    """Return a place with a filesystem."""
    words = ["mkfs", "--plain", "--label", "photos", "--cachedir", str(program.cachedir), empty.url]
    with contextlib.redirect_stdout(io.StringIO()):
        assert entry.main(words) == 0
    return empty


@pytest.fixture
def mounted(place: Place, program: Program) -> Iterator[Place]:
    """Return a place with a mounted filesystem; its daemon is waited for at the end."""
    program.ok("mount", place.url, place.mountpoint)
    yield place
    if mount_table.find(str(place.mountpoint)) is not None:
        program.run("umount", place.mountpoint)
