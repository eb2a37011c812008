"""Tests of unmounts during a command: the last upload must contain all changes."""

import fcntl
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.mount.existing import targets
from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX, wait_until
from tests.programs import Program, QuickProgram, wait_until_gone

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
    """Unmount with SIGTERM; require that the lease is released when the daemon has exited."""
    pid = program.status(place.mountpoint)["pid"]
    os.kill(pid, signal.SIGTERM)
    wait_until_gone(pid)
    assert program.status(place.url)["state"] == "free"


def begun(program: Program, *words: str | Path) -> "subprocess.Popen[str]":
    """Start a command with the local state of *program*."""
    return program.begin(*words, "--cachedir", program.cachedir)


def wait_until_running(command: "subprocess.Popen[str]", is_running: Callable[[], object]) -> None:
    """Wait until the daemon executes the request of a command, or the command has ended."""
    wait_until(lambda: command.poll() is not None or is_running(), "the command did not begin")


def test_unmount_during_a_removal_releases_the_lease(
    program: QuickProgram, mounted: Place, trees: Path, tmp_path: Path
) -> None:
    """The unmount interrupts the removal, and another host continues the removal."""
    program.ok("rm", trees)

    unmount(program, mounted)

    other = QuickProgram(tmp_path / "other-state")
    other.ok("mount", mounted.url, mounted.mountpoint)
    assert os.listdir(mounted.mountpoint) == []
    other.ok("umount", mounted.mountpoint)
    other.ok("fsck", "-n", mounted.url)


def test_unmount_during_a_clone_uploads_the_complete_copy_or_no_copy(
    program: QuickProgram, mounted: Place, trees: Path, tmp_path: Path
) -> None:
    """The unmount cancels the clone, whose client gets an error."""
    copy = mounted.mountpoint / "copy"
    command = begun(program, "clone", trees, copy)
    wait_until_running(command, lambda: program.status(trees.parent)["trees"]["copying"])

    unmount(program, mounted)

    _output, errors = command.communicate(timeout=PROCESS_S_MAX)
    other = QuickProgram(tmp_path / "other-state")
    other.ok("mount", mounted.url, mounted.mountpoint)
    if command.returncode:
        assert command.returncode == ExitStatus.REQUEST, errors
        assert "the filesystem was unmounted before the request was complete" in errors
        assert os.listdir(mounted.mountpoint) == ["trees"]
    else:
        assert len(os.listdir(copy)) == COPIES
    other.ok("umount", mounted.mountpoint)
    other.ok("fsck", "-n", mounted.url)


def test_unmount_during_a_promotion_releases_the_lease(
    program: QuickProgram, place: Place, tmp_path: Path
) -> None:
    """The unmount waits for a promotion that is about to acquire the lease."""
    program.ok("mount", "-o", "ro,follow", place.url, place.mountpoint)
    pid = program.status(place.mountpoint)["pid"]
    lock = place.bucket / "tmp" / "replace.lock"
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # This lock prevents any change of the lease.
        command = begun(program, "promote", place.mountpoint)
        waiter = f":{lock.stat().st_ino} "
        wait_until(lambda: _is_waited_for(waiter), "the promotion did not reach the lease")
        subprocess.run(["fusermount3", "-u", place.mountpoint], check=True)
        wait_until(
            lambda: program.status(place.mountpoint)["state"] == "ending",
            "the daemon did not notice the unmount",
        )
        assert targets.of_mountpoint(place.mountpoint, None).outcome is None
    wait_until_gone(pid)

    command.communicate(timeout=PROCESS_S_MAX)
    assert program.status(place.url)["state"] == "free"
    other = QuickProgram(tmp_path / "other-state")
    other.ok("mount", place.url, place.mountpoint)
    other.ok("umount", place.mountpoint)


def test_unmount_waits_for_an_image_that_a_command_has_requested(
    program: QuickProgram, mounted: Place
) -> None:
    """``flush --image`` records the image in the lease before the unmount releases the lease."""
    pid = program.status(mounted.mountpoint)["pid"]
    (mounted.mountpoint / "f").write_bytes(b"x")
    before = program.status(mounted.mountpoint)["image"]["txg"]
    lock = mounted.bucket / "tmp" / "replace.lock"
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # This lock prevents any change of the lease.
        command = begun(program, "flush", "--image", mounted.mountpoint)
        waiter = f":{lock.stat().st_ino} "
        wait_until(lambda: _is_waited_for(waiter), "the image did not reach the lease")
        subprocess.run(["fusermount3", "-u", mounted.mountpoint], check=True)
        wait_until(
            lambda: program.status(mounted.mountpoint)["state"] == "ending",
            "the daemon did not notice the unmount",
        )
        assert targets.of_mountpoint(mounted.mountpoint, None).outcome is None
    _output, errors = command.communicate(timeout=PROCESS_S_MAX)
    wait_until_gone(pid)

    assert command.returncode == ExitStatus.DONE, errors
    status = program.status(mounted.url)
    assert (status["state"], status["image"]["txg"] > before) == ("free", True)


def test_signal_during_the_release_of_the_lease_does_not_end_the_daemon(
    program: QuickProgram, mounted: Place
) -> None:
    """After the last upload, SIGTERM and SIGINT are ignored until the lease is released."""
    pid = program.status(mounted.mountpoint)["pid"]
    lock = mounted.bucket / "tmp" / "replace.lock"
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        subprocess.run(["fusermount3", "-u", mounted.mountpoint], check=True)
        waiter = f":{lock.stat().st_ino} "
        wait_until(lambda: _is_waited_for(waiter), "the daemon did not release the lease")
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    wait_until_gone(pid)

    assert program.status(mounted.url)["state"] == "free"


def _is_waited_for(inode: str) -> bool:
    """Return whether a process waits for a lock on a file (proc_locks(5))."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and inode in line for line in lines)
