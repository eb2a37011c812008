"""Tests of mounts under full load, which must not block background tasks or signals."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.polling import wait_until
from tests.programs import QuickProgram, wait_until_gone

pytestmark = pytest.mark.mount

_LOAD = """
import os, sys
number = 0
while True:
    path = f"{sys.argv[1]}/{number}"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    os.rename(path, path + "x")
    os.unlink(path + "x")
    number += 1
"""


@contextmanager
def load(mountpoint: Path) -> Iterator[None]:
    """Load the mount from two processes, and kill these processes at the end of the context."""
    busy = []
    try:
        for number in range(2):
            directory = mountpoint / f"busy-{number}"
            directory.mkdir()
            command = [sys.executable, "-c", _LOAD, str(directory)]
            busy.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


def test_background_tasks_continue_under_full_load(place: Place, program: QuickProgram) -> None:
    """While two processes load the mount, txgs are uploaded and commands are answered."""
    program.ok("mount", "-o", "sync_interval=0.5", place.url, place.mountpoint)
    with load(place.mountpoint):
        first = program.status(place.mountpoint)
        wait_until(
            lambda: program.status(place.mountpoint)["chain"]["txg"] >= first["chain"]["txg"] + 3,
            "the daemon uploads no txgs",
        )
        last = program.status(place.mountpoint)
    assert last["requests"]["create"] > first["requests"]["create"]
    program.ok("umount", place.mountpoint)


def test_sigterm_unmounts_a_busy_mount(place: Place, program: QuickProgram) -> None:
    """SIGTERM unmounts a mount under load, and the next mount shows all earlier changes."""
    program.ok("mount", place.url, place.mountpoint)
    (place.mountpoint / "f").write_bytes(b"x" * 5000)
    pid = program.status(place.mountpoint)["pid"]
    with load(place.mountpoint):
        time.sleep(0.3)
        os.kill(pid, signal.SIGTERM)
        time.sleep(0.3)
    wait_until_gone(pid)

    program.ok("mount", place.url, place.mountpoint)
    assert (place.mountpoint / "f").read_bytes() == b"x" * 5000
    program.ok("umount", place.mountpoint)
    assert json.loads(program.ok("fsck", "-n", "--json", place.url))["exit_status"] == 0
