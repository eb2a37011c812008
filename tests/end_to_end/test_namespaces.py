"""Tests of a filesystem that is still mounted in another mount namespace."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.mount.existing import mount_table
from tests import private_mounts
from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX
from tests.programs import QuickProgram, wait_until_gone

pytestmark = [pytest.mark.mount, pytest.mark.usefixtures("as_root")]

# This program appends each line of its input to a file, and prints "done" or an errno.
_HOLDER = """
import os, sys
log = open(sys.argv[1], "ab", buffering=0) if len(sys.argv) > 1 else None
print(os.getpid(), flush=True)
for line in sys.stdin:
    try:
        if log is None:
            raise OSError(0, "")
        log.write(line.encode())
        os.fsync(log.fileno())
        print("written", flush=True)
    except OSError as exc:
        print(exc.errno, flush=True)
"""


class Holder:
    """A process with an open file on the mount, optionally in a separate mount namespace."""

    def __init__(self, *words: str | Path) -> None:
        self._process = subprocess.Popen(
            [*words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = int(self._read())

    def write(self, line: str) -> str:
        """Tell the process to write a line; return the answer of the process."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._read()

    def end(self) -> None:
        """End the process, and with it its namespace."""
        self._process.kill()
        self._process.communicate()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextlib.contextmanager
def holding(mnt: Path, *, writes: bool = True) -> Iterator[Holder]:
    """Start a process in a separate mount namespace, as in a container."""
    unshare = shutil.which("unshare")
    assert unshare is not None
    log = [mnt / "log"] if writes else []
    holder = Holder(
        unshare, "--mount", "--propagation", "private", sys.executable, "-c", _HOLDER, *log
    )
    try:
        yield holder
    finally:
        holder.end()


def test_mounts_of_the_test_suite_do_not_keep_other_mounts_of_this_host_busy(
    place: Place, program: QuickProgram
) -> None:
    """A user can unmount during the tests, because their namespace has no copy of the mount."""
    program.ok("mount", place.url, place.mountpoint)
    script = (
        "from tests import private_mounts; from s3fs_meta.mount.existing import mount_table;"
        " private_mounts.make_private();"
        " print(private_mounts.are_private, [one for one in mount_table.read()"
        " if one.fs_type == mount_table.FS_TYPE])"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    here = mount_table.find(str(place.mountpoint))
    program.ok("umount", place.mountpoint)
    if done.stdout.startswith(b"False"):
        pytest.skip("no permission to make a mount namespace")
    assert done.stdout == b"True []\n"
    assert here is not None


def test_mounts_of_the_test_suite_are_private(place: Place, program: QuickProgram) -> None:
    """Mounts of the test suite do not appear in the mount namespace of process 1."""
    if not private_mounts.are_private:
        pytest.skip("no permission to create a mount namespace")
    mnt = place.mountpoint
    program.ok("mount", place.url, mnt)
    assert mount_table.find(str(mnt)) is not None
    assert str(mnt) not in Path("/proc/1/mountinfo").read_text()
    program.ok("umount", mnt)


def test_command_in_another_pid_namespace_keeps_the_record_of_a_running_mount(
    place: Place, program: QuickProgram
) -> None:
    """A command in a container that shares /run cannot see the daemon, but keeps its record."""
    mnt = place.mountpoint
    probe = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*probe, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no permission to create a PID namespace")
    program.ok("mount", place.url, mnt)
    try:
        # A command on a path that is not mounted removes the records of dead mounts.
        command = [*probe, sys.executable, "-m", "s3fs_meta", "status", str(place.bucket)]
        asked = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=PROCESS_S_MAX
        )
        assert "filesystem is mounted on" in asked.stderr

        # Without --cachedir, only the record of the mount contains the path of the state directory.
        without = [sys.executable, "-m", "s3fs_meta", "status", "--json", str(mnt)]
        found = subprocess.run(
            without, check=True, capture_output=True, text=True, timeout=PROCESS_S_MAX
        )

        assert json.loads(found.stdout)["state"] == "serving"
    finally:
        program.ok("umount", mnt)


def test_umount_reports_processes_in_another_namespace_that_use_the_mount(
    place: Place, program: QuickProgram
) -> None:
    """The mount keeps the lease until the last process in another namespace has exited."""
    mnt = place.mountpoint
    program.ok("mount", "-o", "sync_interval=1h,commit=3600", place.url, mnt)
    figures = program.status(mnt)
    assert (figures["state"], figures["holders"]) == ("serving", [])
    with holding(mnt) as holder:
        assert holder.write("one") == "written"

        done = program.run("umount", mnt)

        assert done.returncode == ExitStatus.IN_USE
        assert f"(pid {holder.pid}) on {mnt}" in done.stderr
        assert mount_table.find(str(mnt)) is None
        figures = program.status(mnt)
        assert figures["state"] == "detached"
        assert figures["holders"][0]["pid"] == holder.pid
        assert figures["holders"][0]["mountpoint"] == str(mnt)
        # Umount returns only after all changes are uploaded.
        assert figures["chain"]["unshipped_age_s"] == 0.0
        assert holder.write("two") == "written"
        # Flush also uploads data of files that are open in another mount namespace.
        program.ok("flush", mnt)
        refused = program.run("mount", place.url, mnt)
        assert refused.returncode == ExitStatus.HELD
        assert f"(pid {holder.pid})" in refused.stderr
        assert program.run("umount", mnt).returncode == ExitStatus.IN_USE
        assert str(holder.pid) in program.ok("status", mnt)
    wait_until_gone(figures["pid"])
    program.ok("umount", mnt)

    program.ok("mount", place.url, mnt)
    assert (mnt / "log").read_text() == "one\ntwo\n"
    program.ok("umount", mnt)


def test_forced_umount_uploads_and_releases_the_lease(place: Place, program: QuickProgram) -> None:
    """A forced umount loses no acknowledged write. Processes in other namespaces get errors."""
    mnt = place.mountpoint
    program.ok("mount", "-o", "sync_interval=1h,commit=3600", place.url, mnt)
    with holding(mnt) as holder:
        assert holder.write("one") == "written"
        assert program.run("umount", mnt).returncode == ExitStatus.IN_USE
        assert holder.write("two") == "written"

        program.ok("umount", "--force", mnt)

        assert holder.write("three").isdigit()
        assert program.status(place.url)["state"] == "free"
        program.ok("mount", place.url, mnt)  # The dead mount still exists in the other namespace.
        assert (mnt / "log").read_text() == "one\ntwo\n"
        program.ok("umount", mnt)


def test_umount_with_force_unmounts_a_busy_mountpoint(place: Place, program: QuickProgram) -> None:
    """While a file is open, umount fails but umount --force succeeds."""
    mnt = place.mountpoint
    program.ok("mount", "-o", "sync_interval=1h,commit=3600", place.url, mnt)
    holder = Holder(sys.executable, "-c", _HOLDER, mnt / "log")
    try:
        assert holder.write("one") == "written"
        assert program.run("umount", mnt).returncode == ExitStatus.SETTINGS

        program.ok("umount", "--force", mnt)

        assert holder.write("two").isdigit()
    finally:
        holder.end()
    assert program.status(place.url)["state"] == "free"


def test_umount_reports_open_files_of_a_detached_mount(place: Place, program: QuickProgram) -> None:
    """After umount -l, the command s3fs-meta umount reports the number of open files and fails."""
    mnt = place.mountpoint
    program.ok("mount", place.url, mnt)
    pid = program.status(mnt)["pid"]
    holder = Holder(sys.executable, "-c", _HOLDER, mnt / "log")
    try:
        subprocess.run(["umount", "-l", mnt], check=True)

        done = program.run("umount", mnt)

        assert done.returncode == ExitStatus.IN_USE
        assert "by 1 open file" in done.stderr
    finally:
        holder.end()
    wait_until_gone(pid)


def test_mount_waits_if_the_last_open_file_of_a_detached_mount_is_about_to_be_closed(
    place: Place, program: QuickProgram
) -> None:
    """The kernel may report late to the daemon that the last file was closed."""
    mnt = place.mountpoint
    program.ok("mount", place.url, mnt)
    holder = Holder(sys.executable, "-c", _HOLDER, mnt / "log")
    try:
        subprocess.run(["umount", "-l", mnt], check=True)
        with program.begin("mount", "--cachedir", program.cachedir, place.url, mnt) as mounting:
            time.sleep(1)  # Meanwhile the new mount finds the detached mount.
            holder.end()
            _, said = mounting.communicate(timeout=PROCESS_S_MAX)
        assert mounting.returncode == 0, said
        program.ok("umount", mnt)
    finally:
        holder.end()


def test_sigterm_does_not_unmount_another_filesystem_on_the_former_mountpoint(
    place: Place, program: QuickProgram
) -> None:
    mnt = place.mountpoint
    program.ok("mount", place.url, mnt)
    pid = program.status(mnt)["pid"]
    with holding(mnt, writes=False):
        subprocess.run(["umount", mnt], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mnt], check=True)
        try:
            for _ in range(2):  # The second signal ends the wait for open files.
                os.kill(pid, 15)
            wait_until_gone(pid)
            assert os.path.ismount(mnt)
        finally:
            subprocess.run(["umount", mnt], check=True)
