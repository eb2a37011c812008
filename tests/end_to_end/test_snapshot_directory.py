"""Tests of the directories .snapshots/TIME of a mount, which show points in time."""

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from s3fs_meta.limits import PAST_INO_MIN, PAST_POINTS_OPEN_MAX
from s3fs_meta.state_paths import SNAPSHOT_INFIX
from tests.cli.conftest import Place
from tests.end_to_end.system_calls import RENAME_EXCHANGE, as_user, renameat2
from tests.polling import wait_until
from tests.programs import Program

pytestmark = pytest.mark.mount


def refused(function: Callable[..., object], *arguments: object) -> int | None:
    """Return the errno of a failed call, or None if the call succeeds."""
    try:
        function(*arguments)
    except OSError as exc:
        return exc.errno
    return None


def test_past_files_can_be_read_in_the_snapshot_directory(program: Program, mounted: Place) -> None:
    mnt = mounted.mountpoint
    (mnt / "d").mkdir()
    content = os.urandom(3 << 20) + bytes(100_000) + b"end"
    (mnt / "d" / "f").write_bytes(content)
    (mnt / "link").symlink_to("d/f")
    os.setxattr(mnt / "d" / "f", "user.comment", b"first")
    program.ok("flush", mnt)
    (mnt / "d" / "f").write_bytes(b"other")
    shutil.copy(mnt / "d" / "f", mnt / "added")
    program.ok("flush", mnt)

    past = mnt / ".snapshots" / "txg=2"
    assert (past / "d" / "f").read_bytes() == content
    with (past / "d" / "f").open("rb") as file:
        file.seek(len(content) - 50_000)
        assert file.read() == content[-50_000:]
    assert (past / "link").read_bytes() == content
    assert os.getxattr(past / "d" / "f", "user.comment") == b"first"
    assert sorted(os.listdir(past)) == ["d", "link"]
    assert sorted(os.listdir(mnt / ".snapshots" / "txg=3")) == ["added", "d", "link"]
    assert (mnt / ".snapshots" / "0s-ago" / "d" / "f").read_bytes() == b"other"
    assert not (mnt / ".snapshots" / "txg=3" / "d" / ".." / "nothing").exists()
    assert subprocess.run(["cp", "-a", past / "d", mnt / "back"], check=False).returncode == 0
    assert (mnt / "back" / "f").read_bytes() == content


def test_root_listing_omits_the_snapshot_directory(program: Program, mounted: Place) -> None:
    """The listing of the root omits .snapshots, so a recursive search finds no past files."""
    mnt = mounted.mountpoint
    (mnt / "f").touch()
    program.ok("flush", mnt)
    assert (mnt / ".snapshots" / "txg=2" / "f").exists()
    assert os.listdir(mnt) == ["f"]
    assert subprocess.check_output(["find", mnt, "-name", "f"]).splitlines() == [
        os.fsencode(mnt / "f")
    ]
    assert os.listdir(mnt / ".snapshots") == ["txg=2"]


def test_snapshot_directory_shows_only_retained_points_in_time(mounted: Place) -> None:
    snapshots = mounted.mountpoint / ".snapshots"
    for name in ("nonsense", "txg=999", "1999-01-01", "2999-01-01", ".git", "x" * 255, "\udcff"):
        assert not (snapshots / name).exists()
    (snapshots / "newest").stat()
    assert refused(os.mkdir, snapshots / "new") == errno.EROFS
    assert refused(os.rmdir, snapshots) is not None


def test_point_in_time_appears_although_its_name_was_looked_up_before(
    program: Program, mounted: Place
) -> None:
    """The kernel caches for one second that a point in time is missing, even for txg=N."""
    mnt = mounted.mountpoint
    assert not (mnt / ".snapshots" / "txg=2").exists()
    (mnt / "f").touch()
    program.ok("flush", mnt)
    wait_until((mnt / ".snapshots" / "txg=2" / "f").exists, "txg=2 is still missing")


def test_access_system_call_does_not_report_that_the_snapshot_directory_is_read_only(
    program: Program, mounted: Place
) -> None:
    """The kernel answers access(2) from the mode. Only a mount with at= is entirely read-only."""
    mnt = mounted.mountpoint
    (mnt / "f").write_bytes(b"content")
    program.ok("flush", mnt)
    past = mnt / ".snapshots" / "txg=2" / "f"
    assert os.access(past, os.W_OK)
    assert refused(past.write_bytes, b"x") == errno.EROFS

    program.ok("umount", mnt)
    program.ok("mount", "-o", "ro,at=txg=2", mounted.url, mnt)
    assert not os.access(mnt / "f", os.W_OK)


def test_files_in_the_snapshot_directory_cannot_be_changed(
    program: Program, mounted: Place
) -> None:
    mnt = mounted.mountpoint
    (mnt / "d").mkdir()
    (mnt / "f").write_bytes(b"content")
    program.ok("flush", mnt)
    past, now = mnt / ".snapshots" / "txg=2", mnt / "now"
    now.touch()

    assert refused((past / "f").write_bytes, b"x") == errno.EROFS
    assert refused((past / "new").touch) == errno.EROFS
    assert refused(os.truncate, past / "f", 0) == errno.EROFS
    for change in (
        lambda: os.mkdir(past / "new"),
        lambda: os.mknod(past / "new"),
        lambda: os.symlink("x", past / "new"),
        lambda: os.unlink(past / "f"),
        lambda: os.rmdir(past / "d"),
        lambda: os.rename(past / "f", past / "g"),
        lambda: os.chmod(past / "f", 0o777),
        lambda: os.utime(past / "f", (1, 1)),
        lambda: os.setxattr(past / "f", "user.x", b"1"),
    ):
        assert refused(change) == errno.EROFS
    assert refused(os.rename, past / "f", mnt / "g") == errno.EXDEV
    assert refused(os.rename, now, past / "g") == errno.EXDEV
    assert refused(os.link, past / "f", mnt / "g") == errno.EXDEV
    assert refused(os.link, now, past / "g") == errno.EXDEV
    assert sorted(os.listdir(past)) == ["d", "f"]
    assert (past / "f").read_bytes() == b"content"
    assert sorted(os.listdir(mnt)) == ["d", "f", "now"]


def test_copy_file_range_copies_content_from_the_snapshot_directory(
    program: Program, mounted: Place
) -> None:
    mnt = mounted.mountpoint
    (mnt / "f").write_bytes(b"content")
    program.ok("flush", mnt)
    with (mnt / ".snapshots" / "txg=2" / "f").open("rb") as old, (mnt / "g").open("wb") as new:
        assert os.copy_file_range(old.fileno(), new.fileno(), 100) == len(b"content")
    assert (mnt / "g").read_bytes() == b"content"


def test_snapshot_directory_cannot_be_removed_or_renamed(mounted: Place) -> None:
    """All requests that would remove .snapshots fail with the same error as changes below it."""
    mnt = mounted.mountpoint
    past, other = mnt / ".snapshots", mnt / "d"
    other.mkdir()

    assert refused(os.rmdir, past) == errno.EROFS
    assert refused(os.rename, past, mnt / "other") == errno.EROFS
    assert refused(renameat2, past, other, RENAME_EXCHANGE) == errno.EROFS
    assert refused(renameat2, other, past, RENAME_EXCHANGE) == errno.EROFS

    assert os.listdir(mnt) == ["d"]
    past.stat()


def test_mode_of_the_snapshot_directory_follows_the_mode_of_the_root(mounted: Place) -> None:
    mnt = mounted.mountpoint
    mnt.chmod(0o755)
    assert stat.S_IMODE((mnt / ".snapshots").stat().st_mode) == 0o555

    mnt.chmod(0o700)

    wait_until(
        lambda: stat.S_IMODE((mnt / ".snapshots").stat().st_mode) == 0o511,
        "the kernel still shows the previous mode",
    )


def test_rename_onto_the_snapshot_directory_is_refused(program: Program, mounted: Place) -> None:
    """A rename onto .snapshots is refused, because it would hide all points in time."""
    mnt = mounted.mountpoint
    (mnt / "d").mkdir()
    program.ok("flush", mnt)
    assert refused(os.rename, mnt / "d", mnt / ".snapshots") == errno.EEXIST
    assert os.listdir(mnt) == ["d"]
    assert os.listdir(mnt / ".snapshots" / "txg=2") == ["d"]
    (mnt / "d" / ".snapshots").mkdir()
    os.rename(mnt / "d" / ".snapshots", mnt / "d" / "other")
    os.rename(mnt / "d" / "other", mnt / "d" / ".snapshots")


def test_files_in_the_snapshot_directory_have_unique_inode_numbers(
    program: Program, mounted: Place
) -> None:
    mnt = mounted.mountpoint
    (mnt / "f").write_bytes(b"x")
    program.ok("flush", mnt)
    (mnt / "g").write_bytes(b"x")
    program.ok("flush", mnt)
    paths = [
        mnt,
        mnt / "f",
        mnt / "g",
        mnt / ".snapshots",
        *(mnt / ".snapshots" / name for name in ("txg=2", "txg=3")),
        *(mnt / ".snapshots" / name for name in ("txg=2/f", "txg=3/f", "txg=3/g")),
    ]
    numbers = [os.lstat(path).st_ino for path in paths]
    assert len(set(numbers)) == len(numbers)
    assert [number >= PAST_INO_MIN for number in numbers] == [False] * 3 + [True] * 6
    listed = {entry.name: entry.inode() for entry in os.scandir(mnt / ".snapshots" / "txg=3")}
    assert listed == {"f": numbers[-2], "g": numbers[-1]}


def test_suid_bits_and_devices_in_the_snapshot_directory_have_no_effect(
    program: Program, mounted: Place
) -> None:
    mnt = mounted.mountpoint
    shutil.copy("/bin/true", mnt / "tool")
    os.chmod(mnt / "tool", 0o6755)
    os.setxattr(mnt / "tool", "security.capability", bytes.fromhex("01000002" + "ff" * 16))
    os.mknod(mnt / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    program.ok("flush", mnt)
    past = mnt / ".snapshots" / "txg=2"

    assert stat.S_IMODE((past / "tool").stat().st_mode) == 0o755
    assert refused(os.getxattr, past / "tool", "security.capability") == errno.ENODATA
    assert os.listxattr(past / "tool") == []
    assert (past / "null").stat().st_rdev == 0
    assert refused((past / "null").read_bytes) is not None
    assert subprocess.run([past / "tool"], check=False).returncode == 0


def test_open_past_file_stays_readable_after_its_point_in_time_is_closed(
    program: Program, mounted: Place
) -> None:
    """If the point in time of an open file was closed, the next read opens the point again."""
    mnt = mounted.mountpoint
    content = os.urandom(1 << 20)
    (mnt / "f").write_bytes(content)
    program.ok("flush", mnt)
    for number in range(PAST_POINTS_OPEN_MAX + 1):
        (mnt / "n").write_bytes(b"%d" % number)
        program.ok("flush", mnt)
    snapshots = mnt / ".snapshots"
    with (snapshots / "txg=2" / "f").open("rb", buffering=0) as file:
        begin = file.read(1000)
        for txg in range(3, 3 + PAST_POINTS_OPEN_MAX + 1):
            assert (snapshots / f"txg={txg}" / "n").read_bytes() == b"%d" % (txg - 3)
        assert len(os.listdir(snapshots)) == PAST_POINTS_OPEN_MAX
        assert begin + file.read(len(content)) == content
    states = [path for path in program.cachedir.iterdir() if SNAPSHOT_INFIX in path.name]
    assert 0 < len(states) <= PAST_POINTS_OPEN_MAX


def test_temporary_state_of_snapshots_is_removed_at_unmount(
    program: Program, mounted: Place
) -> None:
    mnt = mounted.mountpoint
    (mnt / "f").write_bytes(b"x")
    program.ok("flush", mnt)
    (mnt / ".snapshots" / "txg=2" / "f").read_bytes()
    during = sorted(path.name for path in program.cachedir.iterdir())
    program.ok("umount", mnt)
    after = sorted(path.name for path in program.cachedir.iterdir())
    assert len(during) == len(after) + 1


def test_user_directory_named_snapshots_hides_the_snapshot_directory(
    program: Program, place: Place
) -> None:
    mnt = place.mountpoint
    program.ok("mount", "-o", "snapdir=.past", place.url, mnt)
    (mnt / ".snapshots").mkdir()
    (mnt / ".snapshots" / "own").touch()
    program.ok("flush", mnt)
    assert os.listdir(mnt / ".past" / "txg=2" / ".snapshots") == ["own"]
    program.ok("umount", mnt)
    program.ok("mount", place.url, mnt)
    assert os.listdir(mnt / ".snapshots") == ["own"]
    assert not (mnt / ".past").exists()
    program.ok("umount", mnt)
    refused_name = program.run("mount", "-o", "snapdir=a/b", place.url, mnt)
    assert "snapdir=a/b is not a valid file name" in refused_name.stderr


def test_mount_of_a_point_in_time_has_no_snapshot_directory(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    mnt = mounted.mountpoint
    (mnt / "f").write_bytes(b"x")
    program.ok("flush", mnt)
    then = tmp_path / "then"
    then.mkdir()
    program.ok("mount", "-o", "ro,at=txg=2", mounted.url, then)
    try:
        assert os.listdir(then) == ["f"]
        assert not (then / ".snapshots").exists()
    finally:
        program.ok("umount", then)
    program.ok("umount", mnt)
    program.ok("mount", "-o", "ro", mounted.url, mnt)
    assert (mnt / ".snapshots" / "txg=2" / "f").read_bytes() == b"x"
    assert os.listdir(mnt / ".snapshots" / "txg=2") == ["f"]


def test_lost_content_in_a_snapshot_makes_only_one_file_unreadable(
    program: Program, mounted: Place
) -> None:
    mnt = mounted.mountpoint
    (mnt / "lost").write_bytes(os.urandom(100_000))
    program.ok("flush", mnt)
    for pack in (mounted.bucket / "pack").rglob("*-*"):
        pack.unlink()
    (mnt / "lost").unlink()
    (mnt / "kept").write_bytes(b"kept")
    program.ok("flush", mnt)
    past = mnt / ".snapshots" / "txg=2"

    assert refused((past / "lost").read_bytes) == errno.EIO
    assert (past / "lost").stat().st_size == 100_000
    assert (mnt / ".snapshots" / "txg=3" / "kept").read_bytes() == b"kept"
    (mnt / "still writable").write_bytes(b"1")
    assert "serving" in program.ok("status", mnt)


def test_trusted_xattr_names_in_snapshots_are_hidden_from_unprivileged_users(
    program: Program, place: Place
) -> None:
    mnt = place.mountpoint
    program.ok("mount", "-o", "allow_other", place.url, mnt)
    (mnt / "f").touch()
    os.setxattr(mnt / "f", "trusted.secret", b"x")
    os.setxattr(mnt / "f", "user.open", b"x")
    program.ok("flush", mnt)
    past = mnt / ".snapshots" / "txg=2" / "f"
    assert sorted(os.listxattr(past)) == ["trusted.secret", "user.open"]
    for folder in (mnt, past.parent):

        def names(folder: Path = folder) -> None:
            assert os.listxattr("f") == ["user.open"], folder

        as_user(1000, folder, names)
