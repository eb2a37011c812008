"""Tests of copies from kept points that are older than the retention, on real mounts."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.outlived import outlive, stored_bytes
from tests.programs import Program

pytestmark = pytest.mark.mount

Contents = dict[str, bytes]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Return a runner of the command in separate processes, because two threads use it."""
    return Program(tmp_path / "state")


@pytest.fixture
def small_bucket(tmp_path: Path, as_root: None) -> Iterator[Path]:
    """Return the mountpoint of a tmpfs with 32 MiB, as the directory of the bucket."""
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "test", bucket], check=True)
    yield bucket
    subprocess.run(["umount", bucket], check=True)


@pytest.fixture
def tight(small_bucket: Path, place: Place) -> Place:
    """Return a filesystem in a small bucket."""
    return place


def make_kept_folder(program: Program, place: Place) -> Contents:
    """Create a folder, keep this point in time, remove the folder, and let its retention end."""
    contents: Contents = {}
    for number in range(4):
        contents[f"{number}"] = os.urandom(200_000)
        (place.mountpoint / "folder").mkdir(exist_ok=True)
        (place.mountpoint / "folder" / f"{number}").write_bytes(contents[f"{number}"])
        program.ok("flush", place.mountpoint)
    program.ok("keep", place.mountpoint, "then")
    subprocess.run(["rm", "-r", place.mountpoint / "folder"], check=True)
    outlive(program, place)
    return contents


def fill(disk: Path) -> Path:
    """Fill all free space of a disk with one file; return its path."""
    file = disk / "foreign"
    with file.open("wb", buffering=0) as writer, contextlib.suppress(OSError):
        while True:
            writer.write(bytes(4096))
    return file


def contents_of(folder: Path) -> Contents:
    """Return the contents of all files in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@contextmanager
def reclaiming(program: Program, mountpoint: Path) -> Iterator[None]:
    """Run reclaim repeatedly until the context ends; every run must succeed."""
    ending = threading.Event()
    failed: list[str] = []

    def work() -> None:
        while not ending.is_set():
            done = program.run("reclaim", mountpoint)
            failed.extend([done.stderr] if done.returncode else [])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
    assert failed == []


def require_elsewhere(place: Place, tmp_path: Path, name: str, contents: Contents) -> None:
    """Require that fsck --deep finds no damage, and that another host can read the copy."""
    program = Program(tmp_path / "elsewhere")
    program.ok("fsck", "-n", "--deep", place.url)
    look = tmp_path / "look"
    look.mkdir(exist_ok=True)
    program.ok("mount", "-o", "ro", place.url, look)
    try:
        assert contents_of(look / name) == contents
    finally:
        program.ok("umount", look)


def test_copies_from_a_kept_point_stay_intact_during_garbage_collection(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """Copies stay readable after the kept point is dropped.

    Packs are deleted after the last copy.
    """
    mnt = mounted.mountpoint
    contents = make_kept_folder(program, mounted)
    with reclaiming(program, mnt):
        for number in range(3):
            program.ok("clone", "--at=then", mnt / "folder", mnt / f"copy{number}")
        program.ok("keep", mnt, "--drop", "then")
        program.ok("rm", mnt / "copy0")
        outlive(program, mounted)
    assert contents_of(mnt / "copy1") == contents
    program.ok("umount", mnt)
    require_elsewhere(mounted, tmp_path, "copy2", contents)

    program.ok("mount", mounted.url, mnt)
    before = stored_bytes(mounted)
    program.ok("rm", mnt / "copy1", mnt / "copy2")
    outlive(program, mounted)
    program.ok("umount", mnt)
    assert stored_bytes(mounted) < before - 700_000
    program.ok("fsck", "-n", "--deep", mounted.url)


def test_copy_from_a_kept_point_survives_a_kill_while_the_bucket_is_full(
    program: Program, tight: Place, tmp_path: Path
) -> None:
    """The daemon may be killed before the bucket has room for the txg with the copy."""
    mnt = tight.mountpoint
    program.ok("mount", tight.url, mnt)
    contents = make_kept_folder(program, tight)
    foreign = fill(tight.bucket)
    program.ok("clone", "--at=then", mnt / "folder", mnt / "copy")
    assert contents_of(mnt / "copy") == contents
    program.kill(mnt)
    subprocess.run(["fusermount3", "-u", "-z", mnt], check=True)
    foreign.unlink()

    program.ok("mount", tight.url, mnt)
    program.ok("keep", mnt, "--drop", "then")
    outlive(program, tight)
    assert contents_of(mnt / "copy") == contents
    program.ok("umount", mnt)
    require_elsewhere(tight, tmp_path, "copy", contents)
