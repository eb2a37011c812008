"""Tests of a mount in the foreground, as a service manager starts it."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.mount.existing import mount_table
from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX
from tests.programs import QuickProgram

pytestmark = pytest.mark.mount


class Service:
    """A daemon in the foreground, and the messages that it sends to the service manager."""

    def __init__(self, process: "subprocess.Popen[bytes]", listener: socket.socket) -> None:
        self.process = process
        self.lines: list[str] = []  # The lines of all received messages.
        self._listener = listener

    def wait_for(self, wanted: str) -> None:
        """Receive messages until one contains the line *wanted*."""
        while wanted not in self.lines:
            self.lines += self._listener.recv(4096).decode().split("\n")


@pytest.fixture
def service(place: Place, program: QuickProgram, tmp_path: Path) -> Iterator[Service]:
    """Return a running daemon whose watchdog expects a message every 0.4 s."""
    path = str(tmp_path / "notify")
    command = [sys.executable, "-m", "s3fs_meta", "mount", "--foreground", place.url]
    command += [str(place.mountpoint), "--cachedir", str(program.cachedir)]
    environment = program.environment | {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "400000"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        listener.settimeout(PROCESS_S_MAX)
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
            try:
                yield Service(process, listener)
            finally:
                process.kill()


def test_systemd_receives_the_state_of_a_mount(service: Service, place: Place) -> None:
    """The daemon sends READY and WATCHDOG. After a signal it sends STOPPING."""
    service.wait_for("READY=1")
    assert mount_table.find(str(place.mountpoint)) is not None
    service.wait_for("WATCHDOG=1")
    service.wait_for("STATUS=serving; everything is in the bucket")
    (place.mountpoint / "f").write_bytes(os.urandom(1 << 20))

    service.process.send_signal(signal.SIGTERM)

    service.wait_for("STOPPING=1")
    assert service.lines[-1].startswith("EXTEND_TIMEOUT_USEC=")
    assert service.process.wait(PROCESS_S_MAX) == 0
    assert mount_table.find(str(place.mountpoint)) is None


def test_daemon_aborted_by_a_watchdog_prints_the_stacks_of_its_threads(service: Service) -> None:
    service.wait_for("READY=1")

    service.process.send_signal(signal.SIGABRT)
    _, printed = service.process.communicate(timeout=PROCESS_S_MAX)

    assert service.process.returncode == -signal.SIGABRT
    assert b"Current thread" in printed
