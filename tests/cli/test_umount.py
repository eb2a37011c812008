"""Tests of unmounting with the umount command, with other programs and with signals."""

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from s3fs_meta.cli import umount
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.control import plain_call
from s3fs_meta.control.limits import CONTROL_REQUESTS_MAX
from s3fs_meta.control.protocol import SOCKET_NAME, socket_path
from s3fs_meta.errors import ControlError, StoreError
from s3fs_meta.mount.existing import mount_table, targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.requests.control_api import READ_ONLY
from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX, wait_until
from tests.programs import Program, open_files, suspend, wait_until_gone

pytestmark = pytest.mark.mount


def test_sigterm_unmounts_and_uploads_everything(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """After SIGTERM another host has all data, and a later umount succeeds."""
    (mounted.mountpoint / "f").write_bytes(b"y" * 100_000)
    pid = program.status(mounted.mountpoint)["pid"]
    os.kill(pid, signal.SIGTERM)
    wait_until_gone(pid)

    assert mount_table.find(str(mounted.mountpoint)) is None
    program.ok("umount", mounted.mountpoint)
    assert program.status(mounted.url)["state"] == "free"
    elsewhere = Program(tmp_path / "elsewhere")
    elsewhere.ok("mount", "-o", "ro", mounted.url, mounted.mountpoint)
    assert (mounted.mountpoint / "f").read_bytes() == b"y" * 100_000
    elsewhere.ok("umount", mounted.mountpoint)


def test_umount_after_fusermount_waits_for_the_upload(program: Program, mounted: Place) -> None:
    """After fusermount3 -u, the umount command waits until the daemon releases the lease."""
    away = mounted.bucket.with_name("away")
    with contextlib.ExitStack() as outage:
        mounted.bucket.rename(away)  # The daemon cannot finish its upload during the outage.
        outage.callback(away.rename, mounted.bucket)
        (mounted.mountpoint / "f").write_bytes(os.urandom(5_000_000))
        subprocess.run(["fusermount3", "-u", mounted.mountpoint], check=True)
        command = program.begin("umount", mounted.mountpoint, "--cachedir", program.cachedir)
        assert command.stderr is not None
        assert any("uploading" in line for line in command.stderr)
        assert command.poll() is None
    with command:
        _output, errors = command.communicate(timeout=PROCESS_S_MAX)

    assert command.returncode == 0, errors
    assert program.status(mounted.url)["state"] == "free", errors


def test_umount_with_option_force_succeeds_even_if_the_upload_fails(
    program: Program, mounted: Place
) -> None:
    """If an upload fails, umount does not unmount.

    With --force it keeps the changes on this host.
    """
    (mounted.mountpoint / "f").write_bytes(b"unshipped")
    chain = mounted.bucket / "changelog"
    chain.rename(mounted.bucket / "tmp" / "changelog")
    chain.touch()  # If a file replaces this directory, uploads fail.

    stays = program.run("umount", mounted.mountpoint)
    ends = program.run("umount", "--force", mounted.mountpoint)

    assert (stays.returncode, "--force" in stays.stderr) == (10, True)
    assert (ends.returncode, "the rest stays on this host" in ends.stderr) == (9, True)
    assert mount_table.find(str(mounted.mountpoint)) is None
    chain.unlink()
    (mounted.bucket / "tmp" / "changelog").rename(chain)
    program.ok("mount", mounted.url, mounted.mountpoint)
    assert (mounted.mountpoint / "f").read_bytes() == b"unshipped"


def test_umount_succeeds_if_another_process_unmounts_during_its_upload(
    program: Program, mounted: Place
) -> None:
    """If another process unmounts first, umount waits for the daemon's upload."""
    pid = program.status(mounted.mountpoint)["pid"]
    words = (mounted.mountpoint, "--cachedir", program.cachedir)
    suspend(pid)
    with program.begin("umount", *words) as command:
        try:
            # A command opens a socket after it has examined its arguments.
            wait_until(
                lambda: any(name.startswith("socket:") for name in open_files(command.pid)),
                "umount did not request the upload",
            )
            subprocess.run(["umount", "-l", mounted.mountpoint], check=True)
        finally:
            os.kill(pid, signal.SIGCONT)
        _output, errors = command.communicate(timeout=PROCESS_S_MAX)

    assert command.returncode == 0, errors
    assert program.status(mounted.url)["state"] == "free"


def _accepted_flush(listener: socket.socket) -> socket.socket:
    """Return the connection of the flush; on a busy machine, polls of the status precede it."""
    while True:
        client, _address = listener.accept()
        if b'"flush"' in client.recv(1000):
            return client
        client.close()


def test_umount_succeeds_if_the_daemon_exits_before_it_answers(
    program: Program, mounted: Place
) -> None:
    """Another process may unmount before the daemon has read the request."""
    (mounted.mountpoint / "f").write_bytes(b"content")
    state = targets.of_url(mounted.url, program.cachedir).state
    pid = program.status(mounted.mountpoint)["pid"]
    (state / SOCKET_NAME).rename(state / "unused")
    words = (mounted.mountpoint, "--cachedir", program.cachedir)
    with socket.socket(socket.AF_UNIX) as listener, socket_path(state) as path:
        listener.bind(path)
        listener.listen()
        listener.settimeout(PROCESS_S_MAX)
        with program.begin("umount", *words) as command:
            with _accepted_flush(listener):
                subprocess.run(["umount", mounted.mountpoint], check=True)
                wait_until_gone(pid)
                listener.close()
            _output, errors = command.communicate(timeout=PROCESS_S_MAX)

    assert command.returncode == 0, errors
    assert program.status(mounted.url)["state"] == "free"


@pytest.mark.parametrize("request_", [b"", b'{"command":"finished"}\n', b'{"command":"flush"}\n'])
def test_stopped_clients_do_not_block_status_or_umount(
    program: Program, mounted: Place, request_: bytes
) -> None:
    """A stopped client stays connected, but does not send or read any more."""
    state = targets.of_url(mounted.url, program.cachedir).state
    with contextlib.ExitStack() as clients:
        for _ in range(CONTROL_REQUESTS_MAX):
            clients.enter_context(plain_call.connect(state)).sendall(request_)

        assert program.status(mounted.mountpoint)["state"] == "serving"
        program.ok("umount", mounted.mountpoint)

    assert program.status(mounted.url)["state"] == "free"


@pytest.mark.parametrize(
    ("why", "is_busy"),
    [
        ("", False),
        ("umount: /mnt/busybox: target is busy.", True),
        ("fusermount3: failed to unmount /mnt/busybox: Device or resource busy", True),
        ("umount: /mnt/busybox: must be superuser to unmount.", False),
    ],
)
def test_path_that_contains_the_word_busy_does_not_count_as_a_busy_filesystem(
    why: str, is_busy: bool
) -> None:
    assert umount.is_busy(why, "/mnt/busybox") is is_busy


@pytest.mark.parametrize("name", ["plain", "my files", os.fsdecode(b"caf\xe9")])
def test_umount_of_a_busy_filesystem_fails(
    program: Program, place: Place, tmp_path: Path, name: str
) -> None:
    """While a file is open, the mount continues; the path is quoted in the suggested command."""
    mountpoint = tmp_path / name
    mountpoint.mkdir()
    program.ok("mount", place.url, mountpoint)
    try:
        with (mountpoint / "f").open("w"):
            done = program.run("umount", mountpoint)
        assert program.status(mountpoint)["state"] == "serving"
    finally:
        program.ok("umount", mountpoint)

    assert done.returncode == ExitStatus.SETTINGS
    assert "still mounted" in done.stderr
    quoted = shlex.quote(str(mountpoint)).replace("\udce9", "\\xe9")
    assert f"fuser -vm {quoted} lists the processes" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make bind mounts")
def test_umount_error_names_a_bind_mount_that_keeps_the_filesystem_busy(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """The error explains how to unmount the bind mount. The daemon exits after that unmount."""
    other = tmp_path / "other place"
    other.mkdir()
    subprocess.run(["mount", "--bind", mounted.mountpoint, other], check=True)
    try:
        done = program.run("umount", mounted.mountpoint)
        assert mount_table.find(str(mounted.mountpoint)) is None
        assert done.returncode == ExitStatus.IN_USE
        assert f"in use at {other}, where it is also mounted (bind mount)" in done.stderr
        assert f"s3fs-meta umount '{other}'" in done.stderr
    finally:
        program.ok("umount", other)
    assert program.status(mounted.url)["state"] == "free"


def test_flush_and_umount_of_a_read_only_mount_succeed(program: Program, place: Place) -> None:
    """A read-only mount has nothing to upload, so flush and umount succeed."""
    program.ok("mount", "-o", "ro", place.url, place.mountpoint)

    assert program.ok("flush", place.mountpoint) == "the bucket already has all changes\n"
    done = program.run("umount", place.mountpoint)

    assert (done.returncode, done.stderr) == (0, "")


def test_umount_reports_the_unshipped_changes_of_a_killed_mount_only_once(
    program: Program, place: Place
) -> None:
    """Umount prints once how to upload the changes of an earlier mount that was killed."""
    program.ok("mount", "-o", "sync_interval=1h", place.url, place.mountpoint)
    with (place.mountpoint / "f").open("wb") as file:
        file.write(b"on this disk")
        os.fsync(file.fileno())
    program.kill(place.mountpoint)
    program.run("umount", place.mountpoint)
    program.ok("mount", "-o", "ro", place.url, place.mountpoint)

    done = program.run("umount", place.mountpoint)

    assert done.returncode == 9
    assert done.stderr.count("mount the filesystem for writing, then unmount it") == 1


def test_command_for_a_former_mountpoint_is_refused_after_a_later_mount_elsewhere(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    program.ok("umount", mounted.mountpoint)
    later = tmp_path / "later"
    program.ok("mount", "--mkdir", mounted.url, later)

    for words in (("status",), ("flush",), ("set", "cachesize=1G")):
        refused = program.run(words[0], mounted.mountpoint, *words[1:])
        assert refused.returncode == ExitStatus.NOT_MOUNTED
        text = f"{mounted.mountpoint} was unmounted, and the filesystem is now mounted on {later}"
        assert text in refused.stderr
    program.ok("umount", mounted.mountpoint)
    program.ok("umount", later)


@pytest.mark.parametrize("words", [(), ("--force",)])
def test_umount_of_a_dead_mount_does_not_end_a_later_mount(
    program: Program, mounted: Place, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The later mount uses the same state directory, so its daemon has the control socket."""
    program.kill(mounted.mountpoint)
    later = tmp_path / "later"
    program.ok("mount", "--mkdir", mounted.url, later)
    for command in ("status", "flush"):
        refused = program.run(command, mounted.mountpoint)
        assert refused.returncode == ExitStatus.NOT_MOUNTED
        assert f"was killed, and the filesystem is now mounted on {later};" in refused.stderr

    done = program.run("umount", *words, mounted.mountpoint)

    assert done.returncode == 0
    assert f"the filesystem is now mounted on {later}" in done.stderr
    assert mount_table.find(str(mounted.mountpoint)) is None
    assert program.status(later)["state"] == "serving"
    program.run("umount", mounted.mountpoint)
    (later / "new").write_bytes(b"content")
    program.ok("umount", later)


def test_umount_exits_with_8_if_the_path_was_never_mounted(
    program: Program, tmp_path: Path
) -> None:
    assert program.run("umount", tmp_path).returncode == 8


@pytest.mark.parametrize("is_removed", [True, False])
def test_forced_umount_says_that_a_running_daemon_was_not_reached(
    program: Program, mounted: Place, tmp_path: Path, is_removed: bool
) -> None:
    """The state directory was removed, or the command has another --cachedir than the mount."""
    pid = program.status(mounted.mountpoint)["pid"]
    words: tuple[str | Path, ...] = ()
    (mounted.mountpoint / "f").write_bytes(os.urandom(100_000))
    if is_removed:
        shutil.rmtree(program.cachedir)
    else:
        words = ("--cachedir", tmp_path / "other")
    refused = program.run("umount", mounted.mountpoint, *words, here=not words)
    assert refused.returncode == ExitStatus.NOT_MOUNTED
    assert mount_table.find(str(mounted.mountpoint)) is not None

    done = program.run("umount", "--force", mounted.mountpoint, *words, here=not words)
    wait_until_gone(pid)
    again = program.run("umount", mounted.mountpoint, here=False)

    assert done.returncode == ExitStatus.CONTROL
    assert "the daemon does not listen in" in done.stderr
    assert f"run: s3fs-meta umount {mounted.mountpoint}" in done.stderr
    assert "killed" not in done.stderr + again.stderr
    assert again.returncode == (ExitStatus.STORE if is_removed else ExitStatus.DONE)
    assert is_removed == ("the rest is lost, because the state directory" in again.stderr)


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (None, "the rest stays on this host"),
        ("StoreUnavailableError", "the rest stays on this host"),
        ("FencedError", "changes that are not in the bucket stay on this host"),
        (READ_ONLY, "the cause"),
    ],
)
async def test_outcome_says_where_the_changes_are(
    tmp_path: Path, kind: str | None, kept: str
) -> None:
    """They are lost only if the state directory was removed."""
    outcome = {"complete": False, "why": "the cause", "kind": kind}
    place = Target("local:///a", tmp_path / "state")
    with pytest.raises((StoreError, ControlError)) as removed:
        await umount.judge(outcome, place)
    place.state.mkdir()
    with pytest.raises((StoreError, ControlError), match=kept) as present:
        await umount.judge(outcome, place)

    assert "the rest is lost, because the state directory" in str(removed.value)
    assert "on this host" not in str(removed.value)
    assert "lost" not in str(present.value)
