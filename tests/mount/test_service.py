"""Tests of one mount with all its parts and options."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.control import plain_call
from s3fs_meta.errors import ControlError
from s3fs_meta.mount import process
from s3fs_meta.mount.existing import mount_table, targets
from s3fs_meta.mount.kernel_side import KernelSide
from s3fs_meta.mount.plan import make_plan
from s3fs_meta.mount.requests import control_api
from s3fs_meta.mount.service import Mount, Sides
from s3fs_meta.mount_errors import NotMountedError
from s3fs_meta.objects.billing import Meter
from s3fs_meta.options.settings import parse_mount_options
from s3fs_meta.sync import known_points
from s3fs_meta.sync.host_state.request_log import RequestLog
from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX, wait_until
from tests.programs import Program, suspend
from tests.sync.conftest import Power, write_file

# The program mounts a filesystem. It sends itself a signal when a notice contains a given text.
# During the start, the program sends the signal twice, as a closed terminal does.
_SIGNALLED: Final = """
import os, signal, sys, trio, trio.testing
from pathlib import Path
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.mount.plan import make_plan
from s3fs_meta.mount.service import run_mount
from s3fs_meta.options.settings import parse_mount_options

url, mountpoint, cachedir, text, number = sys.argv[1:]

class Front(TerminalFront):
    def notice(self, shown):
        if text in shown:
            os.kill(os.getpid(), int(number))
            if "is mounted" not in text:
                trio.lowlevel.spawn_system_task(send_again)

async def send_again():
    await trio.testing.wait_all_tasks_blocked()
    os.kill(os.getpid(), int(number))

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup(1) lets child processes ignore the signal.
options = parse_mount_options([f"cachedir={cachedir}", "synchronous=off"])
trio.run(run_mount, make_plan(url, Path(mountpoint), options), Front())
"""


def _signalled(
    program: Program, place: Place, text: str, number: signal.Signals
) -> "subprocess.CompletedProcess[str]":
    words = [place.url, str(place.mountpoint), str(program.cachedir), text, str(int(number))]
    return subprocess.run(
        [sys.executable, "-c", _SIGNALLED, *words],
        env=program.environment,
        capture_output=True,
        text=True,
        timeout=PROCESS_S_MAX,
        check=False,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_during_the_start_releases_the_lease(
    program: Program, place: Place, number: signal.Signals
) -> None:
    """The mount has acquired the lease when it shows its warnings.

    The same signal arrives twice, as from a closed terminal or a service manager.
    """
    done = _signalled(program, place, "synchronous=off", number)

    assert done.returncode == -number, done.stderr
    found = program.status(place.url)
    assert (found["state"], found["epoch"]) == ("free", 1)


@pytest.mark.mount
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_before_the_first_request_unmounts(
    program: Program, place: Place, number: signal.Signals
) -> None:
    """A mount does not ignore a signal that arrives before it waits for signals."""
    done = _signalled(program, place, "is mounted on", number)

    assert done.returncode == 0, done.stderr
    assert mount_table.find(str(place.mountpoint)) is None
    assert program.status(place.url)["state"] == "free"


@pytest.mark.mount
def test_options_set_the_capacity_owner_and_mode_of_a_mount(program: Program, place: Place) -> None:
    """The mount has the given capacity, owner and mode, and creates a control socket."""
    options = "capacity=1G,uid=12,gid=13,umask=027"
    program.ok("mount", "-o", options, place.url, place.mountpoint)
    (place.mountpoint / "f").touch()

    shown = (place.mountpoint / "f").stat()
    space = os.statvfs(place.mountpoint)

    assert (shown.st_uid, shown.st_gid, shown.st_mode & 0o777) == (12, 13, 0o640)
    assert space.f_blocks * space.f_frsize == 1 << 30
    assert list(program.cachedir.glob("*/control.sock"))
    program.ok("umount", place.mountpoint)
    assert not list(program.cachedir.glob("*/control.sock"))


@pytest.mark.mount
def test_new_mount_waits_for_the_upload_of_the_previous_daemon(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """After fusermount3 -u, a new mount waits for the previous daemon and begins a new epoch."""
    (mounted.mountpoint / "f").write_bytes(os.urandom(20_000_000))
    (tmp_path / "again").mkdir()
    subprocess.run(["fusermount3", "-u", mounted.mountpoint], check=True)

    program.ok("mount", mounted.url, tmp_path / "again")

    assert (tmp_path / "again" / "f").stat().st_size == 20_000_000
    assert program.status(tmp_path / "again")["epoch"] == 2
    program.ok("umount", tmp_path / "again")


@pytest.mark.mount
@pytest.mark.parametrize("again", [["-o", "ro,at=0s"], ["--cachedir", "other"]])
def test_mount_does_not_replace_a_running_mount(
    program: Program, mounted: Place, tmp_path: Path, again: list[str]
) -> None:
    """A running mount is recognised even if the new mount has a different state directory."""
    (mounted.mountpoint / "f").write_text("served")
    words = [word if word != "other" else str(tmp_path / "other") for word in again]

    done = program.run("mount", *words, mounted.url, mounted.mountpoint, here="at=" in words[1])

    assert done.returncode == ExitStatus.HELD
    assert f"already mounted on {mounted.mountpoint}" in done.stderr
    assert (mounted.mountpoint / "f").read_text() == "served"


@pytest.mark.mount
def test_mount_fails_before_any_change_if_the_metrics_port_is_in_use(
    program: Program, place: Place
) -> None:
    """If the port of the metrics is in use, the mount fails before it acquires the lease."""
    before = {path: path.stat().st_mtime_ns for path in place.bucket.rglob("*")}
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        done = program.run("mount", "-o", f"metrics={port}", place.url, place.mountpoint)

    assert done.returncode == ExitStatus.SETTINGS
    assert f"cannot listen on metrics=127.0.0.1:{port}" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in place.bucket.rglob("*")} == before


@pytest.mark.mount
def test_mount_of_a_point_in_time_preserves_the_list_of_known_points(
    program: Program, place: Place
) -> None:
    """After a mount of the past, later points in time are still in the list of known points."""
    program.ok("mount", place.url, place.mountpoint)
    (place.mountpoint / "f").touch()
    program.ok("umount", place.mountpoint)
    before = known_points.read(targets.of_url(place.url, program.cachedir).state)

    program.ok("mount", "-o", "ro,at=txg=1", place.url, place.mountpoint)
    program.ok("umount", place.mountpoint)

    assert before is not None
    assert before.points[-1].txg > 1
    assert known_points.read(targets.of_url(place.url, program.cachedir).state) == before


@pytest.mark.mount
def test_mountpoint_of_a_killed_daemon_stays_occupied_until_the_next_mount_succeeds(
    program: Program, mounted: Place
) -> None:
    """If the next mount fails, the dead mount still prevents writes below its mountpoint."""
    mountpoint, hidden = mounted.mountpoint, mounted.bucket.with_name("hidden")
    with (mountpoint / "f").open("w") as file:
        file.write("synced")
        file.flush()
        os.fsync(file.fileno())
    program.kill(mountpoint)
    mounted.bucket.rename(hidden)

    assert program.run("mount", mounted.url, mountpoint).returncode != 0
    with pytest.raises(OSError, match="not connected"):
        (mountpoint / "below").write_text("x")

    hidden.rename(mounted.bucket)
    assert "detaching" in program.run("mount", mounted.url, mountpoint).stderr
    assert (mountpoint / "f").read_text() == "synced"


@pytest.mark.mount
def test_starting_mount_refuses_a_request_to_end(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """If a starting mount accepted a request to end, it would stay in state "stopping" forever."""
    state = targets.of_url(mounted.url, program.cachedir).state
    program.kill(mounted.mountpoint)
    name = "umount" if os.geteuid() == 0 else "fusermount3"
    gate, slow = tmp_path / "gate", tmp_path / "bin" / name
    os.mkfifo(gate)
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nread line < {gate}\nexec {shutil.which(name)} "$@"\n')
    slow.chmod(0o755)
    program.environment["PATH"] = f"{slow.parent}:{os.environ['PATH']}"
    words = ("--cachedir", program.cachedir, mounted.url, mounted.mountpoint)
    starting = program.begin("mount", *words)  # The mount waits until *slow* exits.
    try:
        wait_until(lambda: _listens(state), "the mount did not start")
        with pytest.raises(ControlError, match="still starting"):
            plain_call.call(state, control_api.END, {"keep": False})
    finally:
        gate.write_text("\n")
        starting.communicate(timeout=PROCESS_S_MAX)
        del program.environment["PATH"]  # Another unmount would wait for the gate again.

    assert program.status(mounted.mountpoint)["state"] == "serving"


def _listens(state: Path) -> bool:
    """Return whether a mount accepts control requests."""
    try:
        plain_call.connect(state).close()
    except NotMountedError:
        return False
    return True


@pytest.mark.mount
def test_mountpoint_may_contain_unusual_line_breaks(program: Program, place: Place) -> None:
    mountpoint = place.mountpoint / "a\rb\fc\u2028d"
    mountpoint.mkdir()
    program.ok("mount", place.url, mountpoint)
    try:
        (mountpoint / "f").touch()
        assert program.status(mountpoint)["state"] == "serving"
    finally:
        program.ok("umount", mountpoint)
    assert program.status(place.url)["state"] == "free"


@pytest.mark.mount
def test_mountpoint_may_be_a_symbolic_link(program: Program, place: Place) -> None:
    """Commands find the mount through the link and the directory, even if the mount hangs."""
    link = place.mountpoint.with_name("link")
    link.symlink_to(place.mountpoint)
    program.ok("mount", place.url, link)
    (place.mountpoint / "f").touch()
    pid = program.status(link)["pid"]
    assert program.status(place.mountpoint)["pid"] == pid
    suspend(pid)
    try:
        assert mount_table.resolve(link) == str(place.mountpoint)
    finally:
        os.kill(pid, signal.SIGCONT)
    program.ok("umount", link)
    assert program.status(place.url)["state"] == "free"


@pytest.mark.parametrize("is_late", [True, False])
async def test_unmount_reports_a_change_that_the_last_upload_does_not_contain(
    plain: Power, tmp_path: Path, is_late: bool
) -> None:
    """The outcome is "complete" only if the bucket has all changes."""
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    options = parse_mount_options([f"cachedir={tmp_path / 'state'}"])
    plan = make_plan(f"local://{tmp_path}/bucket", mountpoint, options)
    changes: list[Callable[[], object]] = []

    def hook(step: str) -> None:
        if step == "txg confirmed" and changes:
            changes[0]()

    async with plain.session(hook=hook, tasks=False) as session:
        write_file(session, b"early")
        if is_late:
            changes.append(lambda: write_file(session, b"late"))
        counts = RequestLog(tmp_path, Meter(), lambda: 0)
        sides = Sides(KernelSide(), session.throttles, None, process.Signals())
        mount = Mount(plan, session, TerminalFront(quiet=True), sides, counts)

        outcome = await mount.last_flush()

        why = "the filesystem was changed during the last upload" if is_late else ""
        assert outcome == {"complete": not is_late, "why": why}
