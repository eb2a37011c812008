"""Tests of removing and cloning complete directory trees on a real mount."""

import errno
import os
import subprocess
import time
from pathlib import Path

import pytest

from s3fs_meta.mount.existing import mount_table
from tests.cli.conftest import Place
from tests.end_to_end.system_calls import refused
from tests.polling import PROCESS_S_MAX, wait_until
from tests.programs import QuickProgram

pytestmark = pytest.mark.mount

KILLS_MAX = 20


def _make_tree(top: Path, directories: int = 4, files: int = 25) -> None:
    for number in range(directories):
        below = top / f"d{number}" / "below"
        below.mkdir(parents=True)
        for each in range(files):
            (below / f"f{each}").touch()
        (below.parent / "full").write_text("content")


def _inodes(mnt: Path) -> int:
    figures = os.statvfs(mnt)
    return figures.f_files - figures.f_ffree


def _wait_for_inodes(mnt: Path, count: int) -> None:
    """Wait until the filesystem has at most *count* inodes."""
    wait_until(lambda: _inodes(mnt) <= count, f"more than {count} inodes are left")


def test_removed_tree_accepts_no_new_entries(program: QuickProgram, mounted: Place) -> None:
    """No entry can be created in a removed tree, even in a directory that is still open."""
    mnt = mounted.mountpoint
    _make_tree(mnt / "tree")
    (mnt / "other").touch()
    deep = os.open(mnt / "tree" / "d0" / "below", os.O_RDONLY | os.O_DIRECTORY)
    try:
        program.ok("rm", mnt / "tree")
        assert os.listdir(mnt) == ["other"]
        for _ in range(2):
            with refused(errno.ENOENT):
                os.mkdir("new", dir_fd=deep)
            with refused(errno.ENOENT):
                os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=deep)
            with refused(errno.ENOENT):
                os.link(mnt / "other", "new", dst_dir_fd=deep)
            with refused(errno.ENOENT):
                os.rename(mnt / "other", "new", dst_dir_fd=deep)
            _wait_for_inodes(mnt, 5)  # The kernel now caches the parent directories.
        assert os.listdir(deep) == []
    finally:
        os.close(deep)


def test_open_files_of_a_removed_tree_remain_usable(program: QuickProgram, mounted: Place) -> None:
    """Open files of a removed tree can be read and written. close(2) frees their inodes."""
    mnt = mounted.mountpoint
    _make_tree(mnt / "tree")
    deep = os.open(mnt / "tree" / "d0" / "below", os.O_RDONLY | os.O_DIRECTORY)
    full = os.open(mnt / "tree" / "d1" / "full", os.O_RDWR)
    try:
        program.ok("rm", mnt / "tree")
        assert os.pread(full, 99, 0) == b"content"
        _wait_for_inodes(mnt, 6)
        os.pwrite(full, b"CONTENT", 0)
        os.fsync(full)
        assert os.pread(full, 99, 0) == b"CONTENT"
        assert os.fstat(full).st_nlink == 0
    finally:
        os.close(deep)
        os.close(full)
    _wait_for_inodes(mnt, 1)


def test_next_mount_completes_a_removal_that_was_interrupted_by_a_kill(
    program: QuickProgram, mounted: Place
) -> None:
    """After a kill during a removal, the next mount shows no name, and fsck finds no damage."""
    mnt = mounted.mountpoint
    _make_tree(mnt / "tree", directories=40)
    (mnt / "survivor").hardlink_to(mnt / "tree" / "d7" / "full")
    inodes = _inodes(mnt)
    program.ok("rm", mnt / "tree")
    wait_until(lambda: _inodes(mnt) < inodes, "the background removal did not begin")
    subprocess.run(["kill", "-9", str(program.status(mnt)["pid"])], check=True)
    program.ok("mount", mounted.url, mnt)

    assert os.listdir(mnt) == ["survivor"]
    _wait_for_inodes(mnt, 2)
    assert (mnt / "survivor").stat().st_nlink == 1
    assert (mnt / "survivor").read_text() == "content"
    program.ok("umount", mnt)
    assert mount_table.find(str(mnt)) is None
    assert program.ok("fsck", "-n", mounted.url).splitlines()[-1].endswith("clean")


def _wait_until_copying(program: QuickProgram, mnt: Path, command: "subprocess.Popen[str]") -> bool:
    """Wait until a copy begins; return false if the command exits before the copy is visible."""
    deadline_s = time.monotonic() + PROCESS_S_MAX
    while command.poll() is None:
        assert time.monotonic() < deadline_s, "the copy did not begin or end in time"
        if program.status(mnt)["trees"]["copying"] is not None:
            return True
    return False


def test_cloned_tree_is_complete_or_missing_after_a_kill(
    program: QuickProgram, mounted: Place
) -> None:
    """If a kill interrupts a clone at any step, the next mount shows a complete copy or no copy."""
    mnt = mounted.mountpoint
    _make_tree(mnt / "tree", directories=8, files=500)
    (mnt / "tree" / "linked").hardlink_to(mnt / "tree" / "d7" / "full")
    program.ok("flush", mnt)
    inodes = _inodes(mnt)
    were_copying = kills = 0
    while kills < 3 or not were_copying:
        assert kills < KILLS_MAX, "every clone ended before its copy was visible"
        kills += 1
        words: list[str | Path] = ["clone", mnt / "tree", mnt / "copy"]
        words += ["--cachedir", program.cachedir]
        command = program.begin(*words)
        were_copying += _wait_until_copying(program, mnt, command)
        subprocess.run(["kill", "-9", str(program.status(mnt)["pid"])], check=True)
        command.communicate()
        program.ok("mount", mounted.url, mnt)
        if (mnt / "copy").exists():
            subprocess.run(["diff", "-r", mnt / "tree", mnt / "copy"], check=True)
            program.ok("rm", "--wait", mnt / "copy")
        _wait_for_inodes(mnt, inodes)
        assert os.listdir(mnt) == ["tree"]
    program.ok("umount", mnt)
    assert program.ok("fsck", "-n", mounted.url).splitlines()[-1].endswith("clean")
