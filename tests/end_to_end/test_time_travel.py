"""Tests of read-only mounts that show earlier states of a filesystem."""

import os
import shutil
import sysconfig
from datetime import datetime, timezone
from pathlib import Path

import pytest

from s3fs_meta.mount.existing import mount_table
from tests.cli.conftest import Place
from tests.end_to_end.contents import facts
from tests.programs import Program

pytestmark = pytest.mark.mount

STDLIB = Path(sysconfig.get_path("stdlib"))


def now() -> str:
    """Return the current time, formatted for the mount option ``at``."""
    return datetime.now(timezone.utc).isoformat()


def beside(place: Place, name: str) -> Path:
    """Create a second mountpoint next to that of a filesystem; return it."""
    path = place.mountpoint.with_name(name)
    path.mkdir()
    return path


def state_directories(program: Program) -> list[str]:
    """Return the names of this host's state directories."""
    return sorted(path.name for path in program.cachedir.iterdir())


def bucket_objects(place: Place) -> dict[str, int]:
    """Return the objects in the bucket with their modification times."""
    return {
        str(path): path.stat().st_mtime_ns for path in place.bucket.rglob("*") if path.is_file()
    }


def test_mount_at_an_earlier_time_shows_a_removed_tree(
    mounted: Place, program: Program, tmp_path: Path
) -> None:
    """A mount at an earlier time shows a removed tree, and leaves no local state."""
    shutil.copytree(STDLIB / "json", mounted.mountpoint / "tree" / "json")
    os.link(mounted.mountpoint / "tree/json/decoder.py", mounted.mountpoint / "tree/second name")
    (mounted.mountpoint / "tree" / "link").symlink_to("json/decoder.py")
    program.ok("flush", mounted.mountpoint)
    expected = facts(mounted.mountpoint / "tree")
    then = now()
    shutil.rmtree(mounted.mountpoint / "tree")
    program.ok("umount", mounted.mountpoint)
    before, elsewhere = bucket_objects(mounted), type(program)(tmp_path / "other")

    said = elsewhere.run("mount", "-o", f"at={then}", mounted.url, mounted.mountpoint)

    assert said.returncode == 0, said.stderr
    assert "a point in time is mounted read-only" in said.stderr
    try:
        assert facts(mounted.mountpoint / "tree") == expected
        found = elsewhere.status(mounted.mountpoint)
        assert (found["at"], found["read_only"]) == (then, True)
        assert os.statvfs(mounted.mountpoint).f_flag & os.ST_RDONLY
    finally:
        elsewhere.ok("umount", mounted.mountpoint)
    assert state_directories(elsewhere) == []
    assert bucket_objects(mounted) == before


def test_two_points_in_time_and_the_current_state_can_be_mounted_together(
    mounted: Place, program: Program
) -> None:
    """Each of three mounts shows its own content and uses a separate state directory."""
    mnt, first, second = mounted.mountpoint, beside(mounted, "first"), beside(mounted, "second")
    txgs = []
    for number, content in enumerate((b"one", b"two")):
        (mnt / "f").write_bytes(content)
        (mnt / f"only {number}").touch()
        program.ok("flush", mnt)
        txgs.append(program.status(mnt)["chain"]["txg"])
    txg, then = txgs[0], now()
    (mnt / "f").write_bytes(b"three")
    program.ok("flush", mnt)

    program.ok("mount", "-o", f"ro,txg={txg}", mounted.url, first)
    program.ok("mount", "-o", f"ro,at={then}", mounted.url, second)
    try:
        (mnt / "f").write_bytes(b"four")
        read = [(path / "f").read_bytes() for path in (first, second, mnt)]
        assert read == [b"one", b"two", b"four"]
        assert sorted(os.listdir(first)) == ["f", "only 0"]
        assert program.status(first)["chain"]["txg"] == txg
        assert program.status(mounted.url)["mountpoint"] == str(mnt)
        assert len(state_directories(program)) == 3
    finally:
        program.ok("umount", first)
        program.ok("umount", second)
    assert program.status(mnt)["state"] == "serving"
    assert len(state_directories(program)) == 1


def test_mount_of_a_point_in_time_removes_local_state_of_killed_mounts(
    mounted: Place, program: Program
) -> None:
    first, second = beside(mounted, "first"), beside(mounted, "second")
    program.ok("mount", "-o", "ro,at=0s", mounted.url, first)
    program.ok("mount", "-o", "ro,at=0s", mounted.url, second)
    program.kill(first)
    assert len(state_directories(program)) == 3

    third = beside(mounted, "third")
    program.ok("mount", "-o", "ro,at=0s", mounted.url, third)
    try:
        assert len(state_directories(program)) == 3
        assert os.listdir(second) == []
        program.ok("mount", "-o", "ro,at=0s", mounted.url, first)
    finally:
        for path in (first, second, third):
            program.run("umount", path)
    assert mount_table.find(str(first)) is None
    assert len(state_directories(program)) == 1


def test_unavailable_point_in_time_is_refused_in_one_line(place: Place, program: Program) -> None:
    """For an unavailable point in time, mount prints one line and leaves no local state."""
    done = program.run("mount", "-o", "ro,at=1999-12-31", place.url, place.mountpoint)

    assert done.returncode == 3
    assert "1999-12-31 is before the oldest retained point in time, txg 0 of 20" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert state_directories(program) == []


def test_mount_with_the_at_least_option_refuses_an_older_bucket(
    place: Place, program: Program
) -> None:
    """A mount fails if the bucket is older than the state that the option at_least requires."""
    program.ok("mount", place.url, place.mountpoint)
    mark = program.status(place.mountpoint)["chain"]["mark"]
    program.ok("umount", place.mountpoint)

    program.ok("mount", "--at-least", mark, place.url, place.mountpoint)
    program.ok("umount", place.mountpoint)
    later = f"{int(mark.split(':')[0]) + 50}:{mark.split(':')[1]}"
    done = program.run("mount", "--at-least", later, place.url, place.mountpoint)

    assert (done.returncode, "the bucket's last txg is earlier" in done.stderr) == (12, True)
