"""Tests of a filesystem that is made, mounted, used, unmounted, checked and mounted again."""

import errno
import os
import shutil
import signal
import stat
import subprocess
import sysconfig
from pathlib import Path

import pytest

from s3fs_meta.mount.existing import mount_table
from tests.cli.conftest import Place
from tests.polling import wait_until
from tests.programs import Program

pytestmark = pytest.mark.mount

STDLIB = Path(sysconfig.get_path("stdlib"))


def test_files_survive_unmount_fsck_and_remount(place: Place, program: Program) -> None:
    mnt = place.mountpoint
    program.ok("mount", place.url, mnt)
    (mnt / "d").mkdir()
    with (mnt / "d" / "f").open("wb") as file:
        file.write(b"content")
        os.fsync(file.fileno())
    assert (mnt / "d" / "f").read_bytes() == b"content"
    assert os.listdir(mnt / "d") == ["f"]
    (mnt / "d" / "f").rename(mnt / "g")
    (mnt / "gone").write_bytes(b"x")
    (mnt / "gone").unlink()
    program.ok("umount", mnt)
    assert mount_table.find(str(mnt)) is None

    program.ok("fsck", "-n", place.url)
    program.ok("mount", place.url, mnt)

    assert (mnt / "g").read_bytes() == b"content"
    assert sorted(os.listdir(mnt)) == ["d", "g"]
    assert os.listdir(mnt / "d") == []
    program.ok("umount", mnt)


def test_another_host_restores_the_tree_from_the_bucket(
    mounted: Place, program: Program, tmp_path: Path
) -> None:
    """A host without local state restores a tree with its content and links from the bucket."""
    source = STDLIB / "json"
    shutil.copytree(source, mounted.mountpoint / "json")
    os.link(mounted.mountpoint / "json" / "decoder.py", mounted.mountpoint / "second name")
    (mounted.mountpoint / "link").symlink_to("json/decoder.py")
    program.ok("umount", mounted.mountpoint)

    elsewhere = type(program)(tmp_path / "other-state")
    elsewhere.ok("mount", mounted.url, mounted.mountpoint)

    subprocess.run(["diff", "-r", source, mounted.mountpoint / "json"], check=True)
    assert (mounted.mountpoint / "second name").stat().st_nlink == 2
    assert (mounted.mountpoint / "link").read_bytes() == (source / "decoder.py").read_bytes()
    elsewhere.ok("umount", mounted.mountpoint)
    elsewhere.ok("fsck", "-n", "--deep", mounted.url)


def test_sigterm_under_load_unmounts_the_filesystem_and_loses_no_written_file(
    mounted: Place, program: Program
) -> None:
    mnt = mounted.mountpoint
    pid = program.status(mnt)["pid"]
    script = 'i=0; while :; do echo $i > "$0/$i" || exit; i=$((i+1)); done'
    load = subprocess.Popen(["sh", "-c", script, mnt], stderr=subprocess.DEVNULL)
    try:
        while not (mnt / "20").exists():
            pass
        os.kill(pid, signal.SIGTERM)
        while mount_table.find(str(mnt)) is not None:
            pass
    finally:
        load.kill()
        load.wait()
    # The load wrote these files after the unmount, into the directory that the mount had covered.
    for late in mnt.iterdir():
        late.unlink()

    program.ok("mount", mounted.url, mnt)  # Mount waits until the daemon has exited.
    names = sorted(map(int, os.listdir(mnt)))
    assert names == list(range(len(names)))
    assert len(names) > 20
    program.ok("umount", mnt)
    program.ok("fsck", "-n", mounted.url)


def test_daemon_uploads_in_the_background_after_fusermount(
    mounted: Place, program: Program
) -> None:
    """After fusermount3 -u, a new mount waits for the daemon's uploads and shows all content."""
    (mounted.mountpoint / "f").write_bytes(os.urandom(3_000_000))
    content = (mounted.mountpoint / "f").read_bytes()
    subprocess.run(["fusermount3", "-u", mounted.mountpoint], check=True)

    program.ok("mount", mounted.url, mounted.mountpoint)

    assert (mounted.mountpoint / "f").read_bytes() == content
    program.ok("umount", mounted.mountpoint)


def test_next_mount_recovers_the_state_of_a_killed_daemon(mounted: Place, program: Program) -> None:
    """If the daemon is killed, the next mount needs no fsck and shows all synced data."""
    with (mounted.mountpoint / "f").open("wb") as file:
        file.write(b"x" * 3_000_000)
        os.fsync(file.fileno())
    os.kill(program.status(mounted.mountpoint)["pid"], signal.SIGKILL)
    with pytest.raises(OSError, match=r"connect") as failed:
        os.listdir(mounted.mountpoint)
    assert failed.value.errno in {errno.ENOTCONN, errno.ECONNABORTED}

    program.ok("mount", mounted.url, mounted.mountpoint)

    assert (mounted.mountpoint / "f").read_bytes() == b"x" * 3_000_000
    program.ok("umount", mounted.mountpoint)
    program.ok("fsck", "-n", mounted.url)


def test_second_mount_of_a_filesystem_on_this_host_is_refused(
    mounted: Place, program: Program
) -> None:
    elsewhere = mounted.mountpoint.with_name("second")
    elsewhere.mkdir()

    refused = program.run("mount", mounted.url, elsewhere)

    assert refused.returncode != 0
    assert "already mounted on" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    (mounted.mountpoint / "f").write_bytes(b"goes on")


def test_second_host_is_refused_without_a_takeover(
    mounted: Place, program: Program, tmp_path: Path
) -> None:
    """The error names the holder of the lease. After a takeover, the first mount is read-only."""
    other = type(program)(tmp_path / "other-state")
    elsewhere = mounted.mountpoint.with_name("second")
    elsewhere.mkdir()
    (mounted.mountpoint / "before").write_bytes(b"")
    program.ok("flush", mounted.mountpoint)
    refused = other.run("mount", mounted.url, elsewhere)
    assert "held by host" in refused.stderr

    other.ok("mount", mounted.url, elsewhere, "--takeover")
    try:
        (mounted.mountpoint / "too late").write_bytes(b"x")
        fenced = program.run("flush", mounted.mountpoint)
        assert fenced.returncode != 0
        with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
            (mounted.mountpoint / "refused").write_bytes(b"x")
        assert os.listdir(elsewhere) == ["before"]
    finally:
        other.ok("umount", elsewhere)
    gone = program.run("umount", mounted.mountpoint)
    assert gone.returncode != 0  # Umount reports that not all changes are in the bucket.

    again = program.run("mount", mounted.url, mounted.mountpoint)
    assert again.returncode == 0, again.stderr
    assert "kept in" in again.stderr
    assert os.listdir(mounted.mountpoint) == ["before"]


def test_umount_of_a_read_only_mount_reports_changes_left_by_a_killed_mount(
    unsent: Place, program: Program
) -> None:
    with (unsent.mountpoint / "f").open("wb") as file:
        file.write(b"not in the bucket")
        file.flush()
        os.fsync(file.fileno())
    program.kill(unsent.mountpoint)

    program.ok("mount", "-o", "ro", unsent.url, unsent.mountpoint)
    assert (unsent.mountpoint / "f").read_bytes() == b"not in the bucket"
    gone = program.run("umount", unsent.mountpoint)

    assert gone.returncode == 9
    assert "mount the filesystem for writing" in gone.stderr
    assert "not everything is in the bucket" not in gone.stderr
    program.ok("mount", unsent.url, unsent.mountpoint)
    program.ok("umount", unsent.mountpoint)
    program.ok("mount", "-o", "ro", unsent.url, unsent.mountpoint)
    program.ok("umount", unsent.mountpoint)


def test_read_only_mount_changes_nothing(place: Place, program: Program) -> None:
    """A read-only mount refuses writes with EROFS, and changes no object in the bucket."""
    before = {path: path.stat().st_mtime_ns for path in place.bucket.rglob("*") if path.is_file()}
    program.ok("mount", "-o", "ro", place.url, place.mountpoint)

    with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
        (place.mountpoint / "f").write_bytes(b"")
    assert os.statvfs(place.mountpoint).f_flag & os.ST_RDONLY
    program.ok("umount", place.mountpoint)

    after = {path: path.stat().st_mtime_ns for path in place.bucket.rglob("*") if path.is_file()}
    assert after == before


def test_statfs_shows_the_capacity_which_writes_cannot_exceed(
    place: Place, program: Program
) -> None:
    program.ok("mount", "-o", "capacity=4M", place.url, place.mountpoint)
    figures = os.statvfs(place.mountpoint)
    assert figures.f_blocks * figures.f_frsize == 4 << 20

    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        _write_synced(place.mountpoint / "big", 8 << 20)
    (place.mountpoint / "big").unlink()
    # The kernel releases a removed file some time after unlink(2).
    wait_until(
        lambda: os.statvfs(place.mountpoint).f_bavail,
        "the space of the removed file was not freed",
    )
    (place.mountpoint / "small").write_bytes(b"fits")
    assert (place.mountpoint / "small").read_bytes() == b"fits"
    program.ok("umount", place.mountpoint)


def test_special_files_keep_their_type_and_device_number(mounted: Place, program: Program) -> None:
    """After a new mount, FIFOs and device nodes have the same type and device number as before."""
    os.mkfifo(mounted.mountpoint / "fifo")
    os.mknod(mounted.mountpoint / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    program.ok("umount", mounted.mountpoint)
    program.ok("mount", mounted.url, mounted.mountpoint)

    assert stat.S_ISFIFO((mounted.mountpoint / "fifo").stat().st_mode)
    device = (mounted.mountpoint / "null").stat()
    assert stat.S_ISCHR(device.st_mode)
    assert (os.major(device.st_rdev), os.minor(device.st_rdev)) == (1, 3)


def _write_synced(path: Path, size_bytes: int) -> None:
    with path.open("wb") as file:
        for _ in range(size_bytes >> 20):
            file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
