"""Tests of unmounts that must leave no process, and of store errors during a mount."""

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.mount.existing import mount_table
from tests.cli.conftest import Place
from tests.end_to_end.another_user import AnotherUser
from tests.end_to_end.contents import MIB, contents, differing, write_synced
from tests.polling import PROCESS_S_MAX, wait_until
from tests.programs import QuickProgram, wait_until_gone

pytestmark = pytest.mark.mount


@pytest.fixture
def program(tmp_path: Path) -> QuickProgram:
    """Return a runner that starts the command with execve(2), so its command line shows the URL."""
    program = QuickProgram(tmp_path / "state")
    program.executes = True
    return program


def processes_of(url: str) -> list[int]:
    """Return the ids of the processes that have a URL among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue  # The process has already exited.
        if url.encode() in words:
            found.append(int(path.parent.name))
    return found


def threads_of(pid: int) -> int:
    """Return the number of threads in a process."""
    return len(os.listdir(f"/proc/{pid}/task"))


def end(way: str, mountpoint: Path, pid: int, program: QuickProgram) -> None:
    """Unmount with a command, or end the daemon with a signal."""
    if way == "s3fs-meta umount":
        program.ok("umount", mountpoint)
    elif way.startswith("SIG"):
        os.kill(pid, signal.Signals[way])
    else:
        subprocess.run([*way.split(), mountpoint], check=True)


def test_all_daemon_processes_exit_after_the_unmount(place: Place, program: QuickProgram) -> None:
    """After umount, fusermount3 or a signal, the daemon uploads all data and exits."""
    ways = ["s3fs-meta umount", "umount", "fusermount3 -u", "SIGTERM", "SIGINT", "SIGHUP"]
    for number, way in enumerate(ways):
        program.ok("mount", place.url, place.mountpoint)
        assert len(os.listdir(place.mountpoint)) == number
        (place.mountpoint / way).write_bytes(os.urandom(MIB))
        pid = program.status(place.mountpoint)["pid"]
        assert processes_of(place.url) == [pid]

        end(way, place.mountpoint, pid, program)
        wait_until_gone(pid)

        assert processes_of(place.url) == []
        assert mount_table.find(str(place.mountpoint)) is None
        assert program.status(place.url)["state"] == "free"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can unmount without fusermount3")
def test_root_can_end_a_mount_without_fusermount3(
    place: Place, program: QuickProgram, tmp_path: Path
) -> None:
    """The package fuse3 is needed only by users other than root."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "umount").symlink_to(shutil.which("umount") or "umount is missing")
    program.environment["PATH"] = str(tmp_path / "bin")
    file = place.mountpoint / "f"

    for number, way in enumerate(["SIGTERM", "SIGTERM", "s3fs-meta umount --force"]):
        program.ok("mount", place.url, place.mountpoint)
        assert len(os.listdir(place.mountpoint)) == (number > 0)
        pid = program.status(place.mountpoint)["pid"]
        with file.open("ab") if number else contextlib.nullcontext():
            if not number:
                file.touch()
            if way.startswith("SIG"):
                os.kill(pid, signal.SIGTERM)
                wait_until(lambda: mount_table.find(str(place.mountpoint)) is None, way)
            else:
                program.ok("umount", "--force", place.mountpoint)
        wait_until_gone(pid)

        assert mount_table.find(str(place.mountpoint)) is None
        assert program.status(place.url)["state"] == "free"


def test_daemon_runs_in_its_own_session_and_inherits_no_pipe(
    place: Place, program: QuickProgram
) -> None:
    command = [sys.executable, "-m", "s3fs_meta", "mount", place.url, str(place.mountpoint)]
    command += ["--cachedir", str(program.cachedir)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=program.environment
    ) as mounting:
        # communicate() hangs if the daemon has inherited the pipe.
        output, _ = mounting.communicate(timeout=PROCESS_S_MAX)

    pid = program.status(place.mountpoint)["pid"]
    assert mounting.returncode == 0
    # The last line of the output reports the mountpoint.
    assert b" is mounted on " in output.splitlines()[-1]
    assert os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    program.ok("umount", place.mountpoint)
    wait_until_gone(pid)


# TIOCSCTTY gives a new process the terminal on its standard input as its controlling terminal.
_ON_TERMINAL: Final = (
    "import fcntl, os, signal, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "action = signal.SIG_IGN if sys.argv[1] == 'nohup' else signal.SIG_DFL\n"
    "signal.signal(signal.SIGHUP, action)\n"
    "os.execv(sys.executable, [sys.executable, '-m', 's3fs_meta', *sys.argv[2:]])\n"
)


@contextlib.contextmanager
def mounted_on_terminal(
    place: Place, program: QuickProgram, way: str = ""
) -> Iterator[tuple["subprocess.Popen[bytes]", Callable[[], None]]]:
    """Mount in the foreground; yield the process, and a function that closes the terminal."""
    ours, theirs = pty.openpty()
    with contextlib.ExitStack() as terminal:
        terminal.callback(os.close, ours)
        words: list[str | Path] = ["mount", "--foreground", place.url, place.mountpoint]
        words += ["--cachedir", program.cachedir]
        mounting = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, way, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=program.environment,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            shown = b""
            while b" is mounted on " not in shown:
                shown += os.read(ours, 4096)
            yield mounting, terminal.close
        finally:
            mounting.send_signal(signal.SIGTERM)
            mounting.wait(PROCESS_S_MAX)


def test_foreground_mount_uploads_everything_after_its_terminal_is_closed(
    place: Place, program: QuickProgram
) -> None:
    """SIGHUP from the kernel and then from the shell causes an unmount with a complete upload."""
    content = os.urandom(20 * MIB)
    with mounted_on_terminal(place, program) as (mounting, close_terminal):
        (place.mountpoint / "f").write_bytes(content)

        close_terminal()
        mounting.send_signal(signal.SIGHUP)
        mounting.wait(PROCESS_S_MAX)

    assert mounting.returncode == 0
    assert mount_table.find(str(place.mountpoint)) is None
    assert program.status(place.url)["state"] == "free"
    other = QuickProgram(program.cachedir.with_name("other-state"))
    other.ok("mount", place.url, place.mountpoint)
    assert (place.mountpoint / "f").read_bytes() == content
    other.ok("umount", place.mountpoint)


def test_mount_under_nohup_continues_after_its_terminal_is_closed(
    place: Place, program: QuickProgram
) -> None:
    with mounted_on_terminal(place, program, "nohup") as (mounting, close_terminal):
        close_terminal()

        status = Path(f"/proc/{mounting.pid}/status").read_text()
        ignored = next(line.split()[1] for line in status.splitlines() if "SigIgn" in line)
        assert int(ignored, 16) & 1 << (signal.SIGHUP - 1)
        assert program.status(place.mountpoint)["state"] == "serving"


def test_numbers_of_threads_and_descriptors_of_the_daemon_stay_constant(
    mounted: Place, program: QuickProgram
) -> None:
    """Writing and removing hundreds of files adds no thread and no descriptor to the daemon."""
    pid = program.status(mounted.mountpoint)["pid"]

    def work() -> None:
        for number in range(150):
            file = mounted.mountpoint / str(number)
            file.write_bytes(b"x" * 10_000)
            assert file.read_bytes() == b"x" * 10_000
            file.unlink()
        program.ok("flush", mounted.mountpoint)

    work()
    before = threads_of(pid), len(os.listdir(f"/proc/{pid}/fd"))
    work()
    work()

    # Idle threads end after a while, and a command may still close its connection.
    wait_until(lambda: threads_of(pid) <= before[0] + 4, "the daemon keeps new threads")
    wait_until(
        lambda: len(os.listdir(f"/proc/{pid}/fd")) <= before[1] + 2,
        "the daemon keeps new descriptors",
    )


def test_mount_continues_if_a_file_replaces_the_pack_directory(
    mounted: Place, program: QuickProgram
) -> None:
    """If a file replaces the pack directory, uploads fail but the mount continues."""
    mnt, packs = mounted.mountpoint, mounted.bucket / "pack"
    expected = {"first": os.urandom(MIB)}
    write_synced(mnt / "first", expected["first"])
    assert not packs.exists()
    packs.write_bytes(b"in the way")

    flush = program.begin("flush", mnt)
    assert flush.stderr is not None
    assert any("uploading" in line for line in flush.stderr)
    expected["second"] = os.urandom(MIB)
    write_synced(mnt / "second", expected["second"])
    (mnt / "d").mkdir()
    assert differing(contents(mnt), expected) == []
    assert program.status(mnt)["state"] == "serving"
    packs.unlink()
    flush.communicate(timeout=PROCESS_S_MAX)
    assert flush.returncode == 0
    program.ok("umount", mnt)

    other = QuickProgram(program.cachedir.with_name("other-state"))
    other.ok("mount", mounted.url, mnt)
    assert differing(contents(mnt), expected) == []
    other.ok("umount", mnt)
    other.ok("fsck", "-n", mounted.url)


def test_mount_continues_if_the_lease_is_deleted(mounted: Place, program: QuickProgram) -> None:
    """If a directory replaces the lease object, flush fails and reads succeed.

    The umount command reports that changes stay on this host.
    """
    mnt, lease = mounted.mountpoint, mounted.bucket / "lease"
    write_synced(mnt / "f", b"content")
    lease.unlink()
    lease.mkdir()

    done = program.run("flush", mnt)

    assert (done.returncode != 0, done.stderr.count("\n")) == (True, 1)
    assert (mnt / "f").read_bytes() == b"content"
    pid = program.status(mnt)["pid"]
    assert processes_of(mounted.url) == [pid]
    gone = program.run("umount", mnt)  # Umount waits for the daemon's last upload attempt.
    assert (gone.returncode, "stays on this host" in gone.stderr) == (9, True)
    wait_until_gone(pid)  # The daemon unlocks the state directory before it exits.
    lease.rmdir()


def test_umount_of_a_fenced_mount_reports_the_quarantined_changes(
    mounted: Place, program: QuickProgram, tmp_path: Path
) -> None:
    """The sync interval is so long that no change is uploaded before the takeover."""
    program.ok("umount", mounted.mountpoint)
    program.ok("mount", "-o", "sync_interval=1h", mounted.url, mounted.mountpoint)
    (mounted.mountpoint / "f").write_bytes(b"mine")
    pid = program.status(mounted.mountpoint)["pid"]
    other, elsewhere = QuickProgram(tmp_path / "other-state"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    other.ok("mount", "--takeover", mounted.url, elsewhere)
    try:
        (elsewhere / "f").write_bytes(b"theirs")

        done = program.run("umount", mounted.mountpoint)
        wait_until_gone(pid)

        assert (done.returncode, "uploads it" in done.stderr) == (13, False)
        assert "quarantines the changes" in done.stderr
        again = program.run("umount", mounted.mountpoint)
        assert (again.returncode, again.stderr) == (13, done.stderr.splitlines(keepends=True)[-1])
    finally:
        other.ok("umount", elsewhere)
    mounting = program.run("mount", mounted.url, mounted.mountpoint)
    assert "kept in" in mounting.stderr
    assert (mounted.mountpoint / "f").read_bytes() == b"theirs"


def test_lost_block_prevents_neither_unmount_nor_other_uploads(
    unsent: Place, program: QuickProgram
) -> None:
    """If cache files of dirty blocks are lost, umount reports them and uploads the other blocks.

    Another host can read all other files.
    """
    mnt, pid = unsent.mountpoint, program.status(unsent.mountpoint)["pid"]
    write_synced(mnt / "lost", b"gone")
    for path in program.cachedir.glob("*/blocks/*/*"):
        path.unlink()
    (mnt / "kept").write_bytes(b"here")

    done = program.run("umount", mnt)
    wait_until_gone(pid)

    assert (done.returncode, "fsck -y" in done.stderr) == (12, True)
    other = QuickProgram(program.cachedir.with_name("other-state"))
    other.ok("mount", unsent.url, mnt)
    assert (mnt / "kept").read_bytes() == b"here"
    with pytest.raises(OSError, match="Input/output error"):
        (mnt / "lost").read_bytes()
    (mnt / "lost").unlink()
    other.ok("umount", mnt)
    other.ok("fsck", "-n", unsent.url)


def test_interrupted_mount_command_leaves_no_mount_and_no_process(
    place: Place, program: QuickProgram
) -> None:
    fifo = place.mountpoint.with_name("passphrase")
    os.mkfifo(fifo)
    encrypted = f"{place.url}-encrypted"
    program.environment["S3FS_META_PASSPHRASE"] = "secret"
    program.ok("mkfs", encrypted)
    del program.environment["S3FS_META_PASSPHRASE"]
    options = ("-o", f"passphrase_file={fifo}", "--cachedir", program.cachedir)
    mounting = program.begin("mount", *options, encrypted, place.mountpoint)
    with fifo.open("wb"):  # The mount command is now waiting for the passphrase.
        mounting.send_signal(signal.SIGINT)
        mounting.communicate(timeout=PROCESS_S_MAX)

    assert mounting.returncode == 130
    assert mount_table.find(str(place.mountpoint)) is None
    for pid in processes_of(encrypted):
        wait_until_gone(pid)


def test_root_cannot_unmount_the_filesystem_of_another_user(
    another_user: AnotherUser, program: QuickProgram
) -> None:
    """Umount by root is refused, because only the user of the mount can wait for its upload."""
    mountpoint = str(another_user.mountpoint)
    another_user.program("mount", another_user.url, mountpoint)

    refused = program.run("umount", mountpoint)

    assert refused.returncode == ExitStatus.NOT_MOUNTED
    assert "run this command as that user" in refused.stderr
    assert mount_table.find(mountpoint) is not None
    another_user.program("umount", mountpoint)
