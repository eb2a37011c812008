"""Tests of the write-back process, which makes the kernel write back its dirty data."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.fuse.collection import write_back_process
from tests.polling import PROCESS_S_MAX
from tests.programs import wait_until_gone

SCRIPT = write_back_process.__file__


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """Return the mountpoint of a filesystem that no daemon serves."""
    if os.geteuid() != 0:
        pytest.skip("the test needs root privileges")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path], check=True)
    (tmp_path / "barrier").touch()
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", tmp_path], check=False, capture_output=True)


def started(place: Path, parent: int) -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """Start the write-back process as the daemon does."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", SCRIPT, place, "barrier", str(parent)],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
        )
    return process, ours


def test_write_back_process_answers_requests_in_order(tmp_path: Path) -> None:
    """One message contains several requests. An error is a number and a text."""
    (tmp_path / "barrier").touch()
    device = tmp_path.stat().st_dev
    process, ours = started(tmp_path, os.getpid())
    with process, ours, ours.makefile("rb") as answers:
        ours.sendall(b"1 0\n2 %d\n3 %d\n" % (device, os.makedev(0xFFF, 0xFFFFF)))
        assert answers.readline() == b"1 done\n"
        assert answers.readline() == b"2 done\n"
        failed = answers.readline()
        assert failed.startswith(b"3 failed 6 ")
        assert os.fsencode(tmp_path) in failed
        ours.shutdown(socket.SHUT_WR)
        assert process.wait(PROCESS_S_MAX) == 0


def test_signals_of_a_shutdown_do_not_end_the_write_back_process(tmp_path: Path) -> None:
    """A shutdown signals the daemon and its write-back process, which the daemon still needs."""
    (tmp_path / "barrier").touch()
    process, ours = started(tmp_path, os.getpid())
    with process, ours, ours.makefile("rb") as answers:
        ours.sendall(b"1 0\n")
        assert answers.readline() == b"1 done\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        ours.sendall(b"2 0\n")
        assert answers.readline() == b"2 done\n"


def test_write_back_process_with_the_wrong_parent_exits(tmp_path: Path) -> None:
    """A write-back process whose parent exited before the first check also exits."""
    process, ours = started(tmp_path, 1)
    with process, ours:
        assert process.wait(PROCESS_S_MAX) == 0
        assert ours.recv(1) == b""


_PARENT = """
import os, socket, subprocess, sys
ours, theirs = socket.socketpair()
child = subprocess.Popen(
    [sys.executable, "-I", "-S", *sys.argv[1:], str(os.getpid())],
    stdin=theirs.fileno(), stdout=theirs.fileno(), pass_fds=[ours.fileno()])
ours.sendall(b"1 0\\n")
ours.recv(99)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_write_back_process_exits_with_its_parent(tmp_path: Path) -> None:
    """If its parent exits, the write-back process exits, even if another process has the socket."""
    (tmp_path / "barrier").touch()
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, SCRIPT, tmp_path, "barrier"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    wait_until_gone(child)


@pytest.mark.mount
def test_write_back_process_does_not_keep_the_mountpoint_busy(mount: Path) -> None:
    root = write_back_process.open_root(os.fsencode(mount))
    try:
        assert os.listdir(root) == ["barrier"]
        subprocess.run(["umount", mount], check=True)
    finally:
        os.close(root)


@pytest.mark.mount
def test_moved_mount_is_found_by_its_device_number(mount: Path, tmp_path: Path) -> None:
    device = mount.stat().st_dev
    (mount / "elsewhere é").mkdir()
    with pytest.raises(FileNotFoundError):
        write_back_process.collect(os.fsencode(mount / "elsewhere é"), b"barrier", 0)
    write_back_process.collect(os.fsencode(mount.parent), b"barrier", device)
    assert tmp_path == mount


def test_messages_to_the_write_back_process_can_arrive_in_pieces() -> None:
    """The write-back process accepts parts of a line, and several lines at once."""
    asked: list[int] = []
    requests, feed = os.pipe()
    result, answers = os.pipe()
    for piece in (b"1 ", b"7\n2 8\n3", b" 9\n"):
        os.write(feed, piece)
    os.close(feed)
    write_back_process.serve(requests, answers, asked.append)
    os.close(answers)
    assert asked == [7, 8, 9]
    assert os.read(result, 99) == b"1 done\n2 done\n3 done\n"
    os.close(requests)
    os.close(result)
