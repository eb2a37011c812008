"""Tests of a full local disk: no synced data is lost, and no process crashes.

The disk is a small tmpfs, so these tests need root.
"""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.limits import DISK_RESERVE_BYTES
from tests.cli.conftest import Place
from tests.end_to_end.contents import MIB, contents, differing, write_synced, write_until_refused
from tests.end_to_end.system_calls import refused
from tests.polling import PROCESS_S_MAX, wait_until
from tests.programs import QuickProgram

pytestmark = [pytest.mark.mount, pytest.mark.usefixtures("as_root")]

DISK_MIB = 96
DISK_INODES = 20_000


@pytest.fixture
def small_disk(tmp_path: Path, as_root: None) -> Iterator[Path]:
    """Return the mountpoint of a tmpfs with a size of DISK_MIB and DISK_INODES inodes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    limits = f"size={DISK_MIB}m,nr_inodes={DISK_INODES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", limits, "test", disk], check=True)
    yield disk
    # A process of a killed daemon may use the disk a little longer.
    wait_until(
        lambda: subprocess.run(["umount", disk], check=False).returncode == 0,
        "the disk is still in use",
    )


@pytest.fixture
def program(small_disk: Path, program: QuickProgram) -> QuickProgram:
    """Return a runner of the command, with its local state on the small disk."""
    program.cachedir = small_disk / "state"
    return program


@pytest.fixture
def tight(small_disk: Path, mounted: Place) -> Place:
    """Return a mount whose local state is on the small disk."""
    return mounted


def free_bytes(disk: Path) -> int:
    """Return the free space of a disk."""
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def fill(disk: Path) -> Path:
    """Write a file that fills all free space of a disk; return its path."""
    file = disk / "foreign"
    with file.open("wb", buffering=0) as writer, refused(errno.ENOSPC):
        while True:
            writer.write(bytes(MIB))
    with file.open("ab", buffering=0) as writer, refused(errno.ENOSPC):
        while True:
            writer.write(b"x")
    return file


def leave(disk: Path, size_bytes: int) -> None:
    """Extend the file ``foreign`` until only *size_bytes* of the disk are free.

    Free space can grow between two calls, because the mount frees the space of a removed file only
    after the kernel's FORGET request.
    """
    with (disk / "foreign").open("ab") as writer:
        writer.write(bytes(max(free_bytes(disk) - size_bytes, 0)))


def assert_kept(place: Place, program: QuickProgram, expected: dict[str, bytes]) -> None:
    """Unmount, run fsck, and compare the contents on a host with enough free disk space."""
    program.ok("umount", place.mountpoint)
    program.ok("fsck", "-n", place.url)
    other = QuickProgram(place.bucket.with_name("other-state"))
    other.ok("mount", "-o", "ro", place.url, place.mountpoint)
    found = contents(place.mountpoint)
    other.ok("umount", place.mountpoint)
    assert differing(found, expected) == []


def test_writes_are_refused_before_the_disk_reserve_is_used(
    tight: Place, program: QuickProgram, small_disk: Path
) -> None:
    """On a full disk writes and mkdir fail with ENOSPC. Reads and unlink succeed."""
    mnt, away = tight.mountpoint, tight.bucket.with_name("away")
    tight.bucket.rename(away)
    try:
        taken = write_until_refused(mnt, DISK_MIB)
        assert len(taken) > 30
        assert free_bytes(small_disk) > DISK_RESERVE_BYTES // 2
        assert program.status(mnt)["state"] == "serving"
        with refused(errno.ENOSPC):
            for number in range(1000):
                leave(small_disk, DISK_RESERVE_BYTES)
                (mnt / f"d{number}").mkdir()
        assert differing(contents(mnt), taken) == []
        (mnt / "full-0").unlink()
        del taken["full-0"]
    finally:
        away.rename(tight.bucket)
    program.ok("flush", mnt)

    taken["after"] = os.urandom(5 * MIB)
    write_synced(mnt / "after", taken["after"])
    (mnt / "names work again").mkdir()
    assert program.status(mnt)["state"] == "serving"
    assert_kept(tight, program, taken)


def test_uncached_data_can_be_read_while_another_program_fills_the_disk(
    tight: Place, program: QuickProgram, small_disk: Path
) -> None:
    """If a block cannot be cached, a read returns the data from the bucket; a write gets ENOSPC."""
    mnt, expected = tight.mountpoint, {"uploaded": os.urandom(5 * MIB + 17)}
    write_synced(mnt / "uploaded", expected["uploaded"])
    program.ok("umount", mnt)  # This step also drops the pages in the kernel's cache.
    program.ok("mount", tight.url, mnt)
    program.ok("dropcache", mnt)
    leave(small_disk, DISK_RESERVE_BYTES)

    assert differing(contents(mnt), expected) == []
    with refused(errno.ENOSPC):
        (mnt / "new").write_bytes(bytes(MIB))
    assert program.status(mnt)["cache"]["bytes"] == 0
    assert program.status(mnt)["state"] == "serving"

    (small_disk / "foreign").unlink()
    assert_kept(tight, program, expected)


def test_status_reports_a_disk_on_which_every_write_fails(
    tight: Place, program: QuickProgram, small_disk: Path
) -> None:
    """Cached blocks that can be evicted count as free space, because a write evicts them."""
    mnt = tight.mountpoint
    write_synced(mnt / "cached", os.urandom(2 * MIB))
    program.ok("flush", mnt)
    leave(small_disk, DISK_RESERVE_BYTES)
    evictable = program.run("status", "--check", mnt)
    program.ok("dropcache", mnt)
    leave(small_disk, DISK_RESERVE_BYTES)
    full = program.run("status", "--check", mnt)
    state = program.ok("status", mnt)
    with refused(errno.ENOSPC):
        (mnt / "new").write_bytes(b"x")

    assert (evictable.returncode, evictable.stdout.split(":")[0]) == (0, "OK")
    assert (full.returncode, full.stdout.split(":")[0]) == (2, "CRITICAL")
    assert "the local disk is full, and writes fail" in full.stdout
    assert "serving, the local disk is full" in state


def _is_written(path: Path) -> bool:
    """Try to write a file; return whether the disk had space for it."""
    try:
        path.write_bytes(b"content")
    except OSError as exc:
        if exc.errno != errno.ENOSPC:
            raise
        return False
    return True


def test_mount_stays_writable_if_many_files_are_read_on_a_full_disk(
    tight: Place, program: QuickProgram, small_disk: Path
) -> None:
    """The access times of 6,000 symbolic links need more space than the disk has left.

    The space that is left suffices for the rows that each txg writes in the background.
    """
    mnt = tight.mountpoint
    links = [mnt / f"d{number % 40}" / f"l{number}" for number in range(6000)]
    for number in range(40):
        (mnt / f"d{number}").mkdir()
    for link in links:
        link.symlink_to("target")
    program.ok("umount", mnt)  # This step also drops the pages in the kernel's cache.
    program.ok("mount", tight.url, mnt)
    leave(small_disk, MIB)

    assert {link.readlink() for link in links} == {Path("target")}

    (small_disk / "foreign").unlink()
    wait_until(lambda: _is_written(mnt / "new"), "the mount still refuses files")
    program.ok("flush", mnt)
    assert program.status(mnt)["state"] == "serving"


def test_mount_after_a_kill_reports_a_disk_without_free_inodes(
    tight: Place, program: QuickProgram, small_disk: Path
) -> None:
    """The mount succeeds after other files on the disk were deleted."""
    (tight.mountpoint / "file").write_bytes(b"content")
    subprocess.run(["sync", "-f", tight.mountpoint], check=True)
    program.kill(tight.mountpoint)
    foreign = [small_disk / f"foreign-{number}" for number in range(DISK_INODES)]
    with refused(errno.ENOSPC):
        for path in foreign:
            path.touch()

    failed = program.run("mount", tight.url, tight.mountpoint)
    for path in foreign:
        path.unlink(missing_ok=True)
    program.ok("mount", tight.url, tight.mountpoint)

    assert failed.returncode == ExitStatus.LOCAL
    assert "is full, or has no free inodes" in failed.stderr
    assert (tight.mountpoint / "file").read_bytes() == b"content"


def test_uploads_continue_while_the_local_disk_is_full(tight: Place, program: QuickProgram) -> None:
    """More data than the local disk can hold may be written, because clean blocks are evicted."""
    expected = {}
    for number in range(6):
        data = os.urandom(16 * MIB)
        write_synced(tight.mountpoint / f"big-{number}", data)
        expected[f"big-{number}"] = data
        program.ok("flush", tight.mountpoint)

    assert differing(contents(tight.mountpoint), expected) == []
    assert_kept(tight, program, expected)


def test_sqlite_error_on_a_full_disk_loses_only_one_commit_group_without_fsync(
    tight: Place, program: QuickProgram, small_disk: Path
) -> None:
    """If another program uses up the disk reserve, SQLite rolls back one commit group.

    The mount becomes read-only and shows the remaining state. The next mount shows all changes up
    to one point in time, and no later change.
    """
    mnt = tight.mountpoint
    expected = {f"synced-{number}": os.urandom(1000) for number in range(20)}
    for name, data in expected.items():
        write_synced(mnt / name, data)
    made = make_directories_until_degraded(mnt, small_disk)
    found = program.status(mnt)
    assert found["state"] == "degraded"
    assert "the last operations were lost" in found["why"]
    assert differing(contents(mnt), expected) == []
    left = directories(mnt)
    assert left == made[: len(left)]

    (small_disk / "foreign").unlink()
    program.run("umount", mnt)
    program.ok("mount", tight.url, mnt)
    assert directories(mnt) == left
    (mnt / "writable again").mkdir()
    assert_kept(tight, program, expected)


def make_directories_until_degraded(root: Path, disk: Path) -> list[int]:
    """Make directories with large attributes until the mount is degraded; return their numbers.

    After every few MiB, the mount measures the free space, and refuses directories with ENOSPC if
    there is too little. This function therefore fills the disk only directly after a measurement.
    """
    made: list[int] = []
    code = errno.ENOSPC
    while code == errno.ENOSPC:
        (disk / "foreign").unlink(missing_ok=True)
        code = make_directory(root, made)
        fill(disk)
        while not code:
            code = make_directory(root, made)
    assert code in {errno.EIO, errno.EROFS}
    return made


def make_directory(root: Path, made: list[int]) -> int:
    """Make the next directory with an attribute; return the errno, or 0 on success."""
    path = root / f"n-{len(made)}"
    try:
        path.mkdir()
        made.append(len(made))
        # If the commit group is lost, the directory is lost too, and the next mkdir is refused.
        with suppress(FileNotFoundError):
            os.setxattr(path, "user.filler", os.urandom(60_000))
    except OSError as exc:
        return exc.errno or errno.EIO
    return 0


def directories(root: Path) -> list[int]:
    """Return the numbers of all directories that ``make_directories_until_degraded`` made."""
    return sorted(int(name.rpartition("-")[2]) for name in os.listdir(root) if name[0] == "n")


def test_full_disk_of_the_bucket_only_delays_uploads(
    tmp_path: Path, small_disk: Path, empty: Place, program: QuickProgram
) -> None:
    """While the bucket's disk is full, writes and mkdir succeed, and a flush waits."""
    program.cachedir = tmp_path / "state"
    url = f"local://{small_disk}/bucket"
    program.ok("mkfs", "--plain", url)
    program.ok("mount", url, empty.mountpoint)
    foreign = fill(small_disk)
    data = os.urandom(4 * MIB)
    write_synced(empty.mountpoint / "f", data)
    flush = program.begin("flush", empty.mountpoint)
    assert flush.stderr is not None
    assert any("uploading" in line for line in flush.stderr)
    (empty.mountpoint / "d").mkdir()
    assert flush.poll() is None
    foreign.unlink()
    flush.communicate(timeout=PROCESS_S_MAX)

    assert flush.returncode == 0
    assert_kept(Place(url, empty.bucket, empty.mountpoint), program, {"f": data})
