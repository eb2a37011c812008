"""The mount and umount commands, on real mounts."""

import contextlib
import fcntl
import filecmp
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.mount.existing import mount_table
from s3fs_meta.options.option_table import OPTIONS
from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX
from tests.programs import Program, open_files
from tests.servers import running_s3

pytestmark = pytest.mark.mount


def test_files_survive_umount_and_mount(program: Program, place: Place) -> None:
    """Files are unchanged after an unmount and a mount without local state."""
    program.ok("mount", place.url, place.mountpoint)
    (place.mountpoint / "d").mkdir()
    (place.mountpoint / "d" / "f").write_bytes(b"content")
    program.ok("umount", place.mountpoint)
    assert list(place.mountpoint.iterdir()) == []

    program.cachedir.rename(program.cachedir.with_name("lost"))
    program.ok("mount", place.url, place.mountpoint)

    assert (place.mountpoint / "d" / "f").read_bytes() == b"content"
    program.ok("umount", place.mountpoint)


def test_mount_table_shows_the_url_and_the_read_only_flag(program: Program, place: Place) -> None:
    """The mount table lists the URL as the source.

    The kernel refuses writes to a read-only mount.
    """
    program.ok("mount", "-o", "ro,noexec", place.url, place.mountpoint)

    found = mount_table.find(str(place.mountpoint))
    assert found is not None
    assert found.source == place.url
    with pytest.raises(OSError, match="Read-only"):
        (place.mountpoint / "f").touch()
    program.ok("umount", place.mountpoint)


def test_error_of_a_second_mount_names_the_first_mountpoint(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """Mounting a filesystem twice fails, and the error names the first mountpoint."""
    (tmp_path / "other").mkdir()

    done = program.run("mount", mounted.url, tmp_path / "other")

    assert done.returncode == 7
    assert f"already mounted on {mounted.mountpoint}" in done.stderr


def test_mount_with_a_passphrase_refuses_an_unencrypted_filesystem(
    program: Program, place: Place, tmp_path: Path
) -> None:
    """With a passphrase, mount refuses an unencrypted filesystem, which may be forged."""
    (tmp_path / "pass").write_text("secret\n")

    done = program.run("mount", "--passphrase-file", tmp_path / "pass", place.url, place.mountpoint)

    assert done.returncode == 4
    assert "is not encrypted" in done.stderr
    assert program.status(place.url)["epoch"] == 0


def test_mount_after_a_kill_shows_all_synced_data(program: Program, mounted: Place) -> None:
    """If the daemon is killed, the next mount detaches the dead mount and shows synced data."""
    (mounted.mountpoint / "f").write_bytes(b"x" * 300_000)
    with (mounted.mountpoint / "f").open("rb+") as file:
        os.fsync(file.fileno())
    program.kill(mounted.mountpoint)

    program.ok("mount", mounted.url, mounted.mountpoint)

    assert (mounted.mountpoint / "f").read_bytes() == b"x" * 300_000
    program.ok("umount", mounted.mountpoint)
    assert program.run("fsck", "-n", mounted.url).returncode == 0


def test_mount_command_prints_the_error_of_the_daemon(program: Program, empty: Place) -> None:
    empty.bucket.mkdir()

    done = program.run("mount", empty.url, empty.mountpoint)

    assert done.returncode == 5
    assert done.stderr.startswith("s3fs-meta: no filesystem at")
    assert done.stderr.count("\n") == 1


def test_journal_mode_off_prints_a_warning_at_mount(program: Program, place: Place) -> None:
    done = program.run("mount", "-o", "journal_mode=off", place.url, place.mountpoint)

    assert done.returncode == 0
    assert "journal_mode=off" in done.stderr
    program.ok("umount", place.mountpoint)


def test_foreground_mount_exits_with_0_after_sigterm(program: Program, place: Place) -> None:
    """A mount with --foreground logs to standard error and exits with 0 at SIGTERM."""
    words = ("mount", "--foreground", place.url, place.mountpoint, "--cachedir", program.cachedir)
    with program.begin(*words) as daemon:
        assert daemon.stderr is not None
        for line in daemon.stderr:
            if "serving" in line:
                break
        (place.mountpoint / "f").touch()
        began = time.monotonic()
        daemon.send_signal(signal.SIGTERM)
        daemon.stderr.read()

    assert daemon.returncode == 0
    assert time.monotonic() - began < PROCESS_S_MAX
    assert program.status(place.url)["state"] == "free"


@pytest.mark.s3
def test_bucket_on_a_real_s3_server_can_be_mounted_on_another_host(
    program: Program, empty: Place, tmp_path: Path
) -> None:
    """A host without local state mounts an encrypted filesystem on S3, and fsck finds no damage."""
    url = "s3://bucket/home"
    (tmp_path / "server").mkdir()
    with running_s3(tmp_path / "server") as server:
        server.make_bucket("bucket")
        program.environment |= {**server.environment(), "S3FS_META_PASSPHRASE": "x"}
        program.environment["AWS_ENDPOINT_URL"] = server.endpoint_url
        program.ok("mkfs", url)
        program.ok("mount", url, empty.mountpoint)
        shutil.copytree(Path(__file__).parent, empty.mountpoint / "copy")
        program.ok("umount", empty.mountpoint)

        program.cachedir.rename(program.cachedir.with_name("lost"))
        program.ok("mount", "-o", "ro", url, empty.mountpoint)
        compared = filecmp.dircmp(Path(__file__).parent, empty.mountpoint / "copy")
        same = filecmp.cmpfiles(compared.left, compared.right, compared.common_files, shallow=False)
        assert (same[1], same[2], compared.left_only, compared.right_only) == ([], [], [], [])
        program.ok("umount", empty.mountpoint)
        assert program.run("fsck", "-y", "--deep", url).returncode == 0


def test_mount_reports_an_unreachable_endpoint_before_it_retries(
    program: Program, empty: Place
) -> None:
    """The mount command prints a line before its first retry.

    For an unknown host name it fails immediately.
    """
    program.environment |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    words = ["--region", "x", "s3://bucket/home", str(empty.mountpoint)]

    unknown = program.run("mount", "--endpoint-url", "http://nowhere.invalid:9", *words)
    with socket.socket() as silent:  # A bound socket that does not listen refuses connections.
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        refused = program.run("mount", "--endpoint-url", f"http://127.0.0.1:{port}", *words)

    assert (unknown.returncode, refused.returncode) == (ExitStatus.STORE, ExitStatus.STORE)
    line = unknown.stderr.splitlines()[-1]
    assert "attempts" not in line
    assert "the server's name in http://nowhere.invalid:9 cannot be resolved" in line
    # On a loaded machine, mount may first report that the store has not responded yet.
    *_silent, failed, last = refused.stderr.splitlines()
    assert "cannot reach s3://bucket/home, trying for up to" in failed
    assert f"cannot connect to http://127.0.0.1:{port} (Connection refused)" in last


@pytest.mark.mount
@pytest.mark.parametrize("mount_point_stays", [False, True])
def test_read_only_mount_succeeds_while_the_bucket_directory_is_missing(
    program: Program, place: Place, mount_point_stays: bool
) -> None:
    """If the directory of the bucket is missing or empty, only a mount with ro succeeds."""
    url, mnt = place.url, place.mountpoint
    program.ok("mount", url, mnt)
    (mnt / "f").write_bytes(b"content")
    program.ok("umount", mnt)
    there = Path(url.removeprefix("local://"))
    away = there.with_name("away")
    there.rename(away)
    if mount_point_stays:
        there.mkdir()

    done = program.run("mount", "-o", "ro", url, mnt)
    assert done.returncode == 0, done.stderr
    try:
        assert "mounted offline, from local state alone" in done.stderr
        assert "is its disk mounted?" in done.stderr
        assert (mnt / "f").read_bytes() == b"content"
        assert program.status(mnt)["offline"]
    finally:
        program.ok("umount", mnt)
    for options in ("rw", "ro,at=txg=1"):
        refused = program.run("mount", "-o", options, url, mnt)
        assert refused.returncode == ExitStatus.NO_FILESYSTEM
        assert ("mount it with -o ro" in refused.stderr) == (options == "rw")
    if mount_point_stays:
        there.rmdir()  # rmdir succeeds, because no mount wrote into the directory.
    assert not there.exists()
    away.rename(there)
    program.ok("mount", url, mnt)
    program.ok("umount", mnt)


@pytest.mark.s3
@pytest.mark.mount
def test_read_only_mount_succeeds_while_the_store_is_unreachable(
    program: Program, empty: Place, tmp_path: Path
) -> None:
    """With complete local state, a mount with ro or ro,follow succeeds without the store."""
    url, mnt = "s3://bucket/home", empty.mountpoint
    (tmp_path / "server").mkdir()
    with running_s3(tmp_path / "server") as server:
        server.make_bucket("bucket")
        program.environment |= {**server.environment(), "S3FS_META_PASSPHRASE": "x"}
        program.environment["AWS_ENDPOINT_URL"] = server.endpoint_url
        program.ok("mkfs", url)
        program.ok("mount", url, mnt)
        (mnt / "f").write_bytes(b"content")
        program.ok("umount", mnt)

    program.environment["AWS_ENDPOINT_URL"] = "http://nowhere.invalid:9"
    done = program.run("mount", "-o", "ro", url, mnt)
    assert done.returncode == 0, done.stderr
    try:
        assert "mounted offline, from local state alone" in done.stderr
        assert (mnt / "f").read_bytes() == b"content"
        with pytest.raises(OSError, match="Read-only"):
            (mnt / "g").touch()
        assert program.status(mnt)["offline"]
    finally:
        program.ok("umount", mnt)
    done = program.run("mount", "-o", "ro,follow", url, mnt)
    assert done.returncode == 0, done.stderr
    try:
        assert "it will follow the writer as soon as the bucket responds" in done.stderr
        assert (mnt / "f").read_bytes() == b"content"
        status = program.status(mnt)
        assert status["offline"]
        assert status["state"] == "following"
    finally:
        program.ok("umount", mnt)
    refused = program.run("mount", url, mnt)
    assert refused.returncode == ExitStatus.STORE
    assert "the local state of this host without the bucket, mount it" in refused.stderr


@pytest.mark.mount
def test_mount_with_option_mkdir_creates_the_mountpoint(program: Program, place: Place) -> None:
    mountpoint = place.mountpoint / "a" / "b"
    program.ok("mount", "--mkdir", place.url, mountpoint)
    program.ok("umount", mountpoint)

    refused = program.run("mount", "--mkdir", place.url, "/proc/no/such")
    assert refused.returncode == ExitStatus.USAGE
    assert "cannot create '/proc/no/such'" in refused.stderr


def _has_open(pid: int, path: Path) -> bool:
    """Return whether a process or one of its children has a file open.

    Only these processes are searched, because a search of all processes takes too long on a busy
    machine.
    """
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for process in (pid, *map(int, children)):
        with contextlib.suppress(FileNotFoundError):  # The child has exited in the meantime.
            if str(path) in open_files(process):
                return True
    return False


@pytest.mark.mount
def test_mount_waits_until_a_killed_daemon_has_exited(program: Program, mounted: Place) -> None:
    """A killed daemon keeps its lock until it has exited, and mount waits for the lock."""
    [state] = program.cachedir.glob("*/meta.db")
    lock = state.with_name("lock")
    program.kill(mounted.mountpoint)
    with lock.open("rb") as exiting:  # The test holds the lock as an exiting daemon does.
        fcntl.flock(exiting, fcntl.LOCK_EX)
        words = ("mount", mounted.url, mounted.mountpoint, "--cachedir", program.cachedir)
        with program.begin(*words, stderr=subprocess.DEVNULL) as again:
            while not _has_open(again.pid, lock):
                assert again.poll() is None, "the mount command did not wait for the lock"
            fcntl.flock(exiting, fcntl.LOCK_UN)
            again.wait(timeout=PROCESS_S_MAX)
    assert again.returncode == 0
    assert program.status(mounted.mountpoint)["state"] == "serving"


def test_mount_with_option_list_options_describes_every_mount_option(program: Program) -> None:
    listed = program.run("mount", "--list-options", here=False).stdout

    assert [one.word for one in OPTIONS if f"\n{one.word}" not in f"\n{listed}"] == []
    assert "\ncommit=SECONDS  default: 5\n    " in listed
    assert "`" not in listed
    assert max(map(len, listed.splitlines())) <= 100
