"""Tests of writes to files that stay open, without a close or fsync."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from s3fs_meta.mount.existing import mount_table
from tests.cli.conftest import Place
from tests.end_to_end.another_user import AS_ANOTHER_USER, AnotherUser
from tests.polling import PROCESS_S_MAX
from tests.programs import QuickProgram, suspend, wait_until_gone

pytestmark = pytest.mark.mount


LINES = 5

# This program executes each line of its input, prints a result, and keeps its files open.
_WRITER = """
import mmap, os, sys
log = open(sys.argv[1], "ab", buffering=0)
mapped = open(sys.argv[2], "w+b")
mapped.truncate(8192)
pages = mmap.mmap(mapped.fileno(), 8192)
gone = open(sys.argv[1] + ".gone", "w+b", buffering=0)
os.unlink(gone.name)
print("open", flush=True)
for number, _ in enumerate(sys.stdin):
    log.write(b"line %d\\n" % number)
    gone.write(b"line %d\\n" % number)
    pages[4096 + number] = 65 + number
    print("written", flush=True)
"""


class Writer:
    """A program that appends to a file and writes into a mapped file."""

    def __init__(self, log: Path, mapped: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(log), str(mapped)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._wait_for_answer()
        self.written = 0

    def write(self, lines: int = LINES) -> None:
        """Tell the program to write a number of lines."""
        assert self.process.stdin is not None
        for _ in range(lines):
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            self._wait_for_answer()
            self.written += 1

    def _wait_for_answer(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline()

    def expected(self) -> tuple[bytes, bytes]:
        """Return the expected contents of the appended file and the mapped file."""
        log = b"".join(b"line %d\n" % number for number in range(self.written))
        return log, bytes(65 + number for number in range(self.written))


@contextlib.contextmanager
def writing(mnt: Path) -> Iterator[Writer]:
    """Start a program that writes. At the end of the context, kill it while its files are open."""
    writer = Writer(mnt / "log", mnt / "mapped")
    try:
        yield writer
    finally:
        writer.process.kill()
        writer.process.communicate()


def found(mnt: Path, lines: int) -> tuple[bytes, bytes]:
    """Return the current contents of the appended file and the mapped file."""
    return (mnt / "log").read_bytes(), (mnt / "mapped").read_bytes()[4096:][:lines]


def until(
    program: QuickProgram, mnt: Path, holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Poll the status of a mount until a condition holds; return the status."""
    deadline_s = time.monotonic() + PROCESS_S_MAX
    while not holds(figures := program.status(mnt)):
        assert time.monotonic() < deadline_s, figures
    return figures


def until_collected(program: QuickProgram, mnt: Path) -> dict[str, Any]:
    """Wait until the daemon has collected all writes that were made before this call."""
    called_s = time.monotonic()
    asked_s = called_s

    def is_collected(now: dict[str, Any]) -> bool:
        nonlocal asked_s
        before_s, asked_s = asked_s, time.monotonic()
        return bool(now["kernel"]["age_s"] < before_s - called_s)

    return until(program, mnt, is_collected)


def kill(figures: dict[str, Any]) -> None:
    """Kill a daemon, and require that its write-back process also exits."""
    os.kill(figures["pid"], signal.SIGKILL)
    wait_until_gone(figures["pid"])
    if figures["kernel"]["collector_pid"] is not None:
        wait_until_gone(figures["kernel"]["collector_pid"])


def take_over(place: Place, program: QuickProgram, tmp_path: Path) -> QuickProgram:
    """Delete all local state of this host, and take over the filesystem as another host."""
    subprocess.run(["umount", "-l", place.mountpoint], check=True)
    assert mount_table.find(str(place.mountpoint)) is None
    shutil.rmtree(program.cachedir)
    other = QuickProgram(tmp_path / "other-state")
    other.ok("mount", "--takeover", place.url, place.mountpoint)
    return other


def test_data_of_an_open_file_survives_a_kill_after_the_commit_interval(
    place: Place, program: QuickProgram
) -> None:
    """Appended and mapped bytes are on the local disk after the interval of the option commit."""
    mnt = place.mountpoint
    program.ok("mount", "-o", "commit=0.2,sync_interval=1h", place.url, mnt)
    with writing(mnt) as writer:
        writer.write()
        until_collected(program, mnt)
        figures = until_collected(
            program,
            mnt,
            # The second wait returns after the first collection is committed.
        )
        assert figures["kernel"]["open_for_writing"] == 3
        assert figures["kernel"]["last_error"] == ""
        kill(figures)

    program.ok("mount", place.url, mnt)
    assert found(mnt, LINES) == writer.expected()
    program.ok("umount", mnt)
    program.ok("fsck", "-n", place.url)


def test_flush_reports_that_the_kernel_did_not_send_data_of_an_open_file(
    place: Place, program: QuickProgram
) -> None:
    mnt = place.mountpoint
    program.ok("mount", "-o", "commit=0.2,sync_interval=1h", place.url, mnt)
    with writing(mnt) as writer:
        writer.write()
        until_collected(program, mnt)
        collector = program.status(mnt)["kernel"]["collector_pid"]
        suspend(collector)
        try:
            writer.write()
            flushed = program.run("flush", mnt)
        finally:
            os.kill(collector, signal.SIGCONT)
        assert flushed.returncode == 0
        assert "the bucket may lack recent data of open files: the kernel did" in flushed.stderr
        again = program.run("flush", mnt)
        assert (again.returncode, again.stderr) == (0, "")

    program.ok("umount", mnt)
    program.ok("fsck", "-n", place.url)


def _fsyncs(program: QuickProgram, mnt: Path) -> tuple[int, int]:
    requests = program.status(mnt)["requests"]
    return requests["fsync"], requests["fsyncdir"]


def test_sync_system_call_does_not_commit_data_before_the_commit_interval(
    place: Place, program: QuickProgram
) -> None:
    """The kernel does not forward sync(2), so the daemon collects data at its own intervals."""
    mnt = place.mountpoint
    program.ok("mount", "-o", "commit=0.2,sync_interval=1h", place.url, mnt)
    with writing(mnt) as writer:
        writer.write()
        before = _fsyncs(program, mnt)
        subprocess.run(["sync"], check=True, timeout=PROCESS_S_MAX)
        assert _fsyncs(program, mnt) == before
        until_collected(program, mnt)
        # The second wait ends after the first collection is committed.
        kill(until_collected(program, mnt))
        expected = writer.expected()

    program.ok("mount", place.url, mnt)
    assert found(mnt, LINES) == expected
    program.ok("umount", mnt)


def test_data_of_an_open_file_survives_the_loss_of_the_host_after_the_sync_interval(
    place: Place, program: QuickProgram, tmp_path: Path
) -> None:
    """The daemon collects writes of open files before it cuts a txg, so the txg contains them."""
    mnt = place.mountpoint
    program.ok("mount", "-o", "commit=3600,sync_interval=1", place.url, mnt)
    with writing(mnt) as writer:
        writer.write()
        written_ns = time.time_ns()
        kill(until(program, mnt, lambda now: now["chain"]["created_ns"] > written_ns))

    other = take_over(place, program, tmp_path)
    assert found(mnt, LINES) == writer.expected()
    other.ok("umount", mnt)


def test_daemon_of_an_unprivileged_user_collects_writes_of_open_files(
    another_user: AnotherUser,
) -> None:
    """The daemon of an unprivileged user, who cannot make a detached mount, collects writes."""
    program, mnt = another_user.program, another_user.mountpoint
    program("mount", "-o", "commit=0.2,sync_interval=1h", another_user.url, str(mnt))
    hold = "import sys; f = open(sys.argv[1], 'wb', 0); f.write(b'x'); print(flush=True); input()"
    with subprocess.Popen(
        [*AS_ANOTHER_USER, sys.executable, "-c", hold, str(mnt / "f")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline()
        written_s = time.monotonic()
        deadline_s = written_s + PROCESS_S_MAX
        while True:
            asked_s = time.monotonic()
            kernel = json.loads(program("status", "--json", str(mnt)))["kernel"]
            if kernel["age_s"] < asked_s - written_s:
                break
            assert time.monotonic() < deadline_s, kernel
        assert kernel["last_error"] == ""
        writer.kill()
    program("umount", str(mnt))


def test_flush_uploads_writes_of_open_files(
    place: Place, program: QuickProgram, tmp_path: Path
) -> None:
    """After a flush, the bucket contains all writes that were made before the flush began."""
    mnt = place.mountpoint
    program.ok("mount", "-o", "commit=3600,sync_interval=1h", place.url, mnt)
    with writing(mnt) as writer:
        for _ in range(2):  # Flush without and with a running write-back process.
            writer.write()
            program.ok("flush", mnt)
        kill(program.status(mnt))

    other = take_over(place, program, tmp_path)
    assert found(mnt, 2 * LINES) == writer.expected()
    other.ok("umount", mnt)


def test_killed_write_back_process_is_restarted(place: Place, program: QuickProgram) -> None:
    mnt = place.mountpoint
    program.ok("mount", "-o", "commit=3600,sync_interval=1h", place.url, mnt)
    with writing(mnt) as writer:
        writer.write()
        program.ok("flush", mnt)
        first = program.status(mnt)["kernel"]["collector_pid"]
        os.kill(first, signal.SIGKILL)
        wait_until_gone(first)
        for _ in range(2):  # The first collection fails, because its process is dead.
            writer.write()
            program.ok("flush", mnt)
        figures = program.status(mnt)
        assert figures["kernel"]["collector_pid"] != first
        assert figures["kernel"]["last_error"] == ""
        kill(figures)

    program.ok("mount", place.url, mnt)
    assert found(mnt, 3 * LINES) == writer.expected()
    program.ok("umount", mnt)


def test_sigterm_collects_data_of_open_files_before_the_unmount(
    place: Place, program: QuickProgram
) -> None:
    mnt = place.mountpoint
    program.ok("mount", "-o", "commit=3600,sync_interval=1h", place.url, mnt)
    with writing(mnt) as writer:
        writer.write()
        pid = program.status(mnt)["pid"]
        for _ in range(2):  # The second signal ends the wait for open files.
            os.kill(pid, signal.SIGTERM)
        wait_until_gone(pid)

    program.ok("mount", place.url, mnt)
    assert found(mnt, LINES)[0] == writer.expected()[0]
    program.ok("umount", mnt)
