"""Copies out of kept points older than the retention, on real mounts."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Place, wait_until_gone
from tests.outlived import outlive, stored_bytes
from tests.programs import Program

pytestmark = pytest.mark.mount

Contents = dict[str, bytes]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Return the command as separate processes, because a thread uses it, too."""
    return Program(tmp_path / "state")


@pytest.fixture
def small_bucket(tmp_path: Path, as_root: None) -> Iterator[Path]:
    """Return a bucket's directory that is a tmpfs of 32 MiB."""
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
    """Make a folder with several packs, keep it, remove it, and let the retention pass."""
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
    """Fill a disk completely with a file; return the file."""
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
    """Delete garbage repeatedly."""
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
    """Require that fsck --deep is clean, and that another machine reads the copy."""
    program = Program(tmp_path / "elsewhere")
    program.ok("fsck", "-n", "--deep", place.url)
    look = tmp_path / "look"
    look.mkdir(exist_ok=True)
    program.ok("mount", "-o", "ro", place.url, look)
    try:
        assert contents_of(look / name) == contents
    finally:
        program.ok("umount", look)


def test_copies_of_a_kept_point_stay_while_garbage_is_deleted(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """Also after the point is dropped; when the last copy is removed, its packs are deleted."""
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


def test_copy_into_a_full_bucket_survives_a_kill(
    program: Program, tight: Place, tmp_path: Path
) -> None:
    """The txg with the copy cannot be stored until there is room, and the daemon is killed before."""
    mnt = tight.mountpoint
    program.ok("mount", tight.url, mnt)
    contents = make_kept_folder(program, tight)
    foreign = fill(tight.bucket)
    program.ok("clone", "--at=then", mnt / "folder", mnt / "copy")
    assert contents_of(mnt / "copy") == contents
    pid = int(program.status(mnt)["pid"])
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    subprocess.run(["fusermount3", "-u", "-z", mnt], check=True)
    foreign.unlink()

    program.ok("mount", tight.url, mnt)
    program.ok("keep", mnt, "--drop", "then")
    outlive(program, tight)
    assert contents_of(mnt / "copy") == contents
    program.ok("umount", mnt)
    require_elsewhere(tight, tmp_path, "copy", contents)
