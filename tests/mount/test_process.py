"""Tests of the process of a mount: its open-file limit, garbage collection, and systemd."""

import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.mount import process
from s3fs_meta.mount.limits import OPEN_FILES_WANTED
from s3fs_meta.mount.process import notify


@pytest.fixture(autouse=True)
def bounds() -> Iterator[tuple[int, int]]:
    """Return the limits of open files, and restore them after the test."""
    found = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield found
    resource.setrlimit(resource.RLIMIT_NOFILE, found)


@pytest.mark.parametrize("soft", [1024, OPEN_FILES_WANTED])
def test_low_limit_of_open_files_is_raised_at_mount(bounds: tuple[int, int], soft: int) -> None:
    """At mount, the soft limit of open files is raised to the number that the mount needs."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, bounds[1]))

    process.raise_open_files()

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (OPEN_FILES_WANTED, bounds[1])


def test_high_limit_of_open_files_is_not_lowered(bounds: tuple[int, int]) -> None:
    """A higher limit of open files that the administrator has set is kept."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES_WANTED + 1, bounds[1]))

    process.raise_open_files()

    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == OPEN_FILES_WANTED + 1


def test_limit_of_open_files_does_not_exceed_the_hard_limit(bounds: tuple[int, int]) -> None:
    process.raise_open_files(bounds[1] + 1)

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (bounds[1], bounds[1])


def test_garbage_collector_ignores_python_objects_created_at_startup() -> None:
    """Python's garbage collector skips objects that exist at the start, but frees new cycles.

    Another process runs the code, because in this process a collection visits all test objects.
    """
    code = (
        "import gc, weakref\nfrom s3fs_meta.mount import process\n"
        "class Node:\n    def __init__(self): self.itself = self\n"
        "garbage = weakref.ref(Node())\ngc.freeze()\nprocess.exempt_objects()\n"
        "assert garbage() is None\nassert gc.get_freeze_count() > 1000\n"
        "assert len(gc.get_objects()) < 1000\n"
        "later = weakref.ref(Node())\ngc.collect()\nassert later() is None\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_fatal_signal_prints_a_python_stack() -> None:
    code = (
        "import os, signal\nfrom s3fs_meta.mount import process\n"
        "def stalled():\n    os.kill(os.getpid(), signal.SIGABRT)\n"
        "process.explain_aborts()\nstalled()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

    assert done.returncode == -signal.SIGABRT
    assert b"in stalled" in done.stderr


def test_daemon_sends_its_state_to_systemd(tmp_path: Path) -> None:
    """The daemon sends its state to systemd as one datagram."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)

        assert notify("READY=1", path)
        assert listener.recv(100) == b"READY=1"


def test_daemon_can_send_to_an_abstract_notify_socket() -> None:
    """An address of systemd that begins with @ is an abstract socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("")  # The kernel chooses the name of the abstract socket.
        name = listener.getsockname().decode()

        assert notify("STOPPING=1", "@" + name[1:])
        assert listener.recv(100) == b"STOPPING=1"


def test_daemon_sends_no_state_without_a_systemd_socket(tmp_path: Path) -> None:
    assert not notify("READY=1", "")
    assert not notify("READY=1", str(tmp_path / "missing"))
