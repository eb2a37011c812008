"""The clone command, which copies files and directory trees within a filesystem."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.programs import Program

pytestmark = pytest.mark.mount


def _tree(mnt: Path) -> Path:
    tree = mnt / "tree"
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "f").write_text("content")
    (tree / "linked").hardlink_to(tree / "deep" / "f")
    (tree / "link").symlink_to("deep")
    os.setxattr(tree / "deep", "user.colour", b"blue")
    os.utime(tree / "linked", ns=(1_500_000_000_000_000_001, 1_400_000_000_000_000_002))
    return tree


def test_clone_copies_a_tree(program: Program, mounted: Place) -> None:
    """The clone has the names, hard links, times and attributes of its source.

    The clone also contains data that is still in the kernel's page cache.
    """
    mnt = mounted.mountpoint
    tree = _tree(mnt)
    # After this lookup, the kernel caches a negative dentry.
    assert not os.path.lexists(mnt / "copy")
    with (tree / "open").open("wb") as file:
        file.write(b"written")
        file.flush()
        done = json.loads(program.ok("clone", "--json", tree, mnt / "copy"))

    assert done == {"path": str(mnt / "copy"), "entries": 7}
    subprocess.run(["diff", "-r", tree, mnt / "copy"], check=True)
    copy = mnt / "copy"
    assert (copy / "open").read_bytes() == b"written"
    assert (copy / "linked").samefile(copy / "deep" / "f")
    assert not (copy / "linked").samefile(tree / "linked")
    assert (copy / "linked").stat().st_mtime_ns == 1_400_000_000_000_000_002
    assert os.getxattr(copy / "deep", "user.colour") == b"blue"
    (copy / "linked").write_text("changed")
    assert (tree / "linked").read_text() == "content"


def test_clone_is_visible_on_another_host_after_a_flush(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    tree = _tree(mounted.mountpoint)
    program.ok("flush", mounted.mountpoint)
    program.ok("clone", tree, mounted.mountpoint / "copy")
    program.ok("flush", mounted.mountpoint)
    elsewhere = Program(tmp_path / "elsewhere")
    (tmp_path / "look").mkdir()
    elsewhere.ok("mount", "-o", "ro", mounted.url, tmp_path / "look")
    try:
        subprocess.run(["diff", "-r", tree, tmp_path / "look" / "copy"], check=True)
    finally:
        elsewhere.ok("umount", tmp_path / "look")


def test_clone_with_an_invalid_source_or_target_is_refused(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """A clone fails if the source is missing, if the target exists or if its parent is missing."""
    tree = _tree(mounted.mountpoint)
    for source, target in (
        (tree, tree / "deep"),
        (tree, tmp_path / "copy"),
        (tree / "missing", mounted.mountpoint / "copy"),
        (tree, mounted.mountpoint / "missing" / "copy"),
    ):
        done = program.run("clone", source, target)
        assert done.returncode in {ExitStatus.USAGE, ExitStatus.NOT_MOUNTED}, done.stderr
    assert os.listdir(mounted.mountpoint) == ["tree"]


@pytest.mark.parametrize("at", [[], ["--at=now"]])
def test_only_the_paths_of_directories_may_end_with_a_slash(
    program: Program, mounted: Place, at: list[str]
) -> None:
    """As in cp(1), this applies to both paths; neither path may end with a dot."""
    mnt = mounted.mountpoint
    (mnt / "d").mkdir()
    (mnt / "file").touch()
    for source, target, why in (
        ("file/", "new", " a directory"),
        ("file", "new/", " a directory"),
        ("d/.", "new", "must end with the name of a file or directory, not with '.' or '..'"),
        ("d", "new/.", "must end with the name of a file or directory, not with '.' or '..'"),
    ):
        done = program.run("clone", *at, f"{mnt}/{source}", f"{mnt}/{target}")
        assert done.returncode == ExitStatus.USAGE, done.stderr
        assert why in done.stderr

    assert sorted(os.listdir(mnt)) == ["d", "file"]
    program.ok("clone", *at, f"{mnt}/d/", f"{mnt}/new/")
    assert sorted(os.listdir(mnt)) == ["d", "file", "new"]


def test_clone_refuses_an_empty_point_in_time(program: Program, mounted: Place) -> None:
    """The clone command refuses an empty --at, because a script may pass an unset variable."""
    _tree(mounted.mountpoint)
    copy = mounted.mountpoint / "copy"
    done = program.run("clone", "--at=", mounted.mountpoint / "tree", copy)
    assert done.returncode == ExitStatus.USAGE
    assert "--at= is not a point in time" in done.stderr
    assert not copy.exists()
