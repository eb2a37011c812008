"""Ends of mounts: every process ends, and no broken store ends a mount."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from s3fs_meta.mount import mount_table
from tests.cli.conftest import Place, wait_until_gone
from tests.end_to_end.contents import MIB, contents, differing, write_synced
from tests.programs import QuickProgram

pytestmark = pytest.mark.mount


@pytest.fixture
def program(tmp_path: Path) -> QuickProgram:
    """Return the program, in processes that are found by their command lines."""
    program = QuickProgram(tmp_path / "state")
    program.executes = True
    return program


def processes_of(url: str) -> list[int]:
    """Return the processes that have a URL among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue  # the process has ended
        if url.encode() in words:
            found.append(int(path.parent.name))
    return found


def threads_of(pid: int) -> int:
    """Return how many threads a process has."""
    return len(os.listdir(f"/proc/{pid}/task"))


def end(way: str, mountpoint: Path, pid: int, program: QuickProgram) -> None:
    """End a mount in one of the possible ways."""
    if way == "s3fs-meta umount":
        program.ok("umount", mountpoint)
    elif way.startswith("SIG"):
        os.kill(pid, signal.Signals[way])
    else:
        subprocess.run([*way.split(), mountpoint], check=True)


def test_every_process_ends_with_the_mount(place: Place, program: QuickProgram) -> None:
    """After every kind of end the daemon exits, with everything in the bucket."""
    ways = ["s3fs-meta umount", "umount", "fusermount3 -u", "SIGTERM", "SIGINT"]
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


def test_daemon_is_a_session_of_its_own_without_inherited_files(
    place: Place, program: QuickProgram
) -> None:
    """A pipe that the command wrote to ends with the command, not with the mount."""
    command = [sys.executable, "-m", "s3fs_meta", "mount", place.url, str(place.mountpoint)]
    command += ["--cachedir", str(program.cachedir)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=program.environment
    ) as mounting:
        # Would hang if the daemon had inherited the pipe.
        output, _ = mounting.communicate(timeout=30)

    pid = program.status(place.mountpoint)["pid"]
    assert mounting.returncode == 0
    assert b"--at-least" in output.splitlines()[-1]  # where the chain ends is told last
    assert os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    program.ok("umount", place.mountpoint)
    wait_until_gone(pid)


def test_threads_and_descriptors_do_not_accumulate(mounted: Place, program: QuickProgram) -> None:
    """Hundreds of files leave the daemon's counts unchanged."""
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

    assert threads_of(pid) <= before[0] + 4  # the number of idle workers varies
    assert len(os.listdir(f"/proc/{pid}/fd")) <= before[1] + 2


def test_broken_pack_directory_does_not_end_the_mount(
    mounted: Place, program: QuickProgram
) -> None:
    """A file replaces the pack directory: uploads fail with a message, the mount lives, repair helps."""
    mnt, packs = mounted.mountpoint, mounted.bucket / "pack"
    expected = {"first": os.urandom(MIB)}
    write_synced(mnt / "first", expected["first"])
    assert not packs.exists()
    packs.write_bytes(b"in the way")

    flush = program.begin("flush", mnt)
    expected["second"] = os.urandom(MIB)
    write_synced(mnt / "second", expected["second"])
    (mnt / "d").mkdir()
    assert differing(contents(mnt), expected) == []
    assert program.status(mnt)["state"] == "serving"
    packs.unlink()
    flush.communicate(timeout=50)
    program.ok("umount", mnt)

    other = QuickProgram(program.cachedir.with_name("other-state"))
    other.ok("mount", mounted.url, mnt)
    assert differing(contents(mnt), expected) == []
    other.ok("umount", mnt)
    other.ok("fsck", "-n", mounted.url)


def test_lost_lease_object_does_not_end_the_mount(mounted: Place, program: QuickProgram) -> None:
    """No image can be published without it: this is reported, reads work, nothing is dropped."""
    mnt, lease = mounted.mountpoint, mounted.bucket / "lease"
    write_synced(mnt / "f", b"content")
    lease.unlink()
    lease.mkdir()

    done = program.run("flush", mnt)

    assert (done.returncode != 0, done.stderr.count("\n")) == (True, 1)
    assert (mnt / "f").read_bytes() == b"content"
    pid = program.status(mnt)["pid"]
    assert processes_of(mounted.url) == [pid]
    gone = program.run("umount", mnt)  # waits for the last attempt of the daemon
    assert (gone.returncode, "stays on this host" in gone.stderr) == (9, True)
    wait_until_gone(pid)  # the daemon releases the state directory shortly before it exits
    lease.rmdir()


def test_fenced_mount_reports_it_at_its_end(
    mounted: Place, program: QuickProgram, tmp_path: Path
) -> None:
    """The last message must not promise anything that another host may have invalidated."""
    (mounted.mountpoint / "f").write_bytes(b"mine")
    pid = program.status(mounted.mountpoint)["pid"]
    other, elsewhere = QuickProgram(tmp_path / "other-state"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    other.ok("mount", "--takeover", mounted.url, elsewhere)
    (elsewhere / "f").write_bytes(b"theirs")

    done = program.run("umount", mounted.mountpoint)
    wait_until_gone(pid)

    assert (done.returncode, "uploads it" in done.stderr) == (13, False)
    assert "quarantines them" in done.stderr
    again = program.run("umount", mounted.mountpoint)
    assert (again.returncode, again.stderr) == (13, done.stderr.splitlines(keepends=True)[-1])
    other.ok("umount", elsewhere)
    mounting = program.run("mount", mounted.url, mounted.mountpoint)
    assert "kept in" in mounting.stderr
    assert (mounted.mountpoint / "f").read_bytes() == b"theirs"


def test_lost_block_does_not_prevent_unmount_or_other_uploads(
    mounted: Place, program: QuickProgram
) -> None:
    """A user deleted the cache files of dirty blocks: reported, and repaired by fsck -y."""
    mnt, pid = mounted.mountpoint, program.status(mounted.mountpoint)["pid"]
    write_synced(mnt / "lost", b"gone")
    for path in program.cachedir.glob("*/blocks/*/*"):
        path.unlink()
    (mnt / "kept").write_bytes(b"here")

    done = program.run("umount", mnt)
    wait_until_gone(pid)

    assert (done.returncode, "fsck -y" in done.stderr) == (12, True)
    other = QuickProgram(program.cachedir.with_name("other-state"))
    other.ok("mount", mounted.url, mnt)
    assert (mnt / "kept").read_bytes() == b"here"
    with pytest.raises(OSError, match="Input/output error"):
        (mnt / "lost").read_bytes()
    (mnt / "lost").unlink()
    other.ok("umount", mnt)
    other.ok("fsck", "-n", mounted.url)


def test_interrupted_mount_command_leaves_no_mount(place: Place, program: QuickProgram) -> None:
    """Ctrl-C before it is ready: no mount, no process."""
    fifo = place.mountpoint.with_name("passphrase")
    os.mkfifo(fifo)
    encrypted = f"{place.url}-encrypted"
    program.environment["S3FS_META_PASSPHRASE"] = "secret"
    program.ok("mkfs", encrypted)
    del program.environment["S3FS_META_PASSPHRASE"]
    options = ("-o", f"passphrase_file={fifo}", "--cachedir", program.cachedir)
    mounting = program.begin("mount", *options, encrypted, place.mountpoint)
    with fifo.open("wb"):  # the command now waits for the passphrase
        mounting.send_signal(signal.SIGINT)
        mounting.communicate(timeout=30)

    assert mounting.returncode == 130
    assert mount_table.find(str(place.mountpoint)) is None
    for pid in processes_of(encrypted):
        wait_until_gone(pid)
