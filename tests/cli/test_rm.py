"""The rm command, which removes files and directory trees on a mount."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.programs import Program

pytestmark = pytest.mark.mount


@pytest.fixture(params=["plain", "with options"])
def here(request: pytest.FixtureRequest) -> bool:
    """Return true to run rm with options, and false to run the fast path without options."""
    return bool(request.param == "with options")


def test_rm_without_options_imports_no_slow_modules(program: Program, mounted: Place) -> None:
    """Without options, rm does not import trio, typer, rich or the settings."""
    (mounted.mountpoint / "tree" / "below").mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "s3fs_meta", "rm", mounted.mountpoint / "tree"],
        capture_output=True,
        text=True,
        check=True,
        env=program.environment,
    )

    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert os.listdir(mounted.mountpoint) == []
    assert "s3fs_meta.mount.existing.mount_paths" in loaded
    assert not loaded & {"trio", "typer", "rich", "s3fs_meta.options.settings"}


def test_rm_is_refused_if_python_ignores_assertions(program: Program, mounted: Place) -> None:
    """With python -O, rm fails and removes nothing, because the program needs its assertions."""
    file = mounted.mountpoint / "f"
    file.touch()
    done = subprocess.run(
        [sys.executable, "-O", "-m", "s3fs_meta", "rm", file],
        capture_output=True,
        text=True,
        check=False,
        env=program.environment,
    )

    assert done.returncode == ExitStatus.USAGE
    assert "python -O" in done.stderr
    assert file.exists()


def test_rm_without_paths_or_with_option_help_skips_the_fast_path(program: Program) -> None:
    assert "Missing argument" in program.run("rm", here=False).stderr
    assert "Examples" in program.ok("rm", "--help", here=False)


def test_rm_removes_only_the_given_entries(program: Program, mounted: Place, here: bool) -> None:
    """rm removes a tree, a file, a symlink, an empty directory and a name that is not UTF-8."""
    mnt = mounted.mountpoint
    for name in ("tree", "stays"):
        (mnt / name / "deep" / "er").mkdir(parents=True)
        (mnt / name / "deep" / "f").write_text("content")
    (mnt / "file").touch()
    (mnt / "link").symlink_to("stays")
    (mnt / "empty").mkdir()
    odd = os.fsdecode(b"odd \xff\n")
    (mnt / odd).touch()
    gone = [mnt / name for name in ("tree", "file", "link", "empty", odd)]

    assert program.ok("rm", *gone, here=here) == ""

    assert os.listdir(mnt) == ["stays"]
    assert (mnt / "stays" / "deep" / "f").read_text() == "content"


def test_rm_lists_the_removed_names_as_json(program: Program, mounted: Place) -> None:
    """The JSON output of rm lists the removed paths in the order of the arguments."""
    (mounted.mountpoint / "one").touch()
    (mounted.mountpoint / "two").touch()
    gone = [mounted.mountpoint / "two", mounted.mountpoint / "one"]

    done = json.loads(program.ok("rm", "--json", *gone))

    assert done == {"removed": [str(path) for path in gone]}


def test_rm_with_option_wait_returns_after_all_rows_are_deleted(
    program: Program, mounted: Place
) -> None:
    """After rm --wait, statfs counts only the root inode, and status reports no running removal."""
    mnt = mounted.mountpoint
    for number in range(20):
        (mnt / "tree" / f"d{number}" / "below").mkdir(parents=True)
        (mnt / "tree" / f"d{number}" / "below" / "f").write_text("content")
    os.stat(mnt / "tree")

    program.ok("rm", "--wait", mnt / "tree")

    figures = os.statvfs(mnt)
    assert figures.f_files - figures.f_ffree == 1
    nothing = {"copying": None, "locking": None, "removing": None}
    assert program.status(mnt)["trees"] == nothing


def test_rm_removes_nothing_if_one_path_is_invalid(
    program: Program, mounted: Place, here: bool
) -> None:
    """The rm command checks all paths before the first removal."""
    (mounted.mountpoint / "f").touch()
    missing = mounted.mountpoint / "missing"
    done = program.run("rm", mounted.mountpoint / "f", missing, here=here)

    assert done.returncode == ExitStatus.USAGE
    assert done.stderr == f"s3fs-meta: {missing}: No such file or directory\n"
    assert (mounted.mountpoint / "f").exists()


def test_rm_removes_a_file_only_by_its_name(program: Program, mounted: Place, here: bool) -> None:
    """As rm(1), the command accepts a slash after a directory, but not after a file."""
    mnt = mounted.mountpoint
    (mnt / "d" / "e").mkdir(parents=True)
    (mnt / "file").touch()
    for path, why in (
        ("file/", ": Not a directory"),
        ("d/.", "must end with the name of a file or directory, not with '.' or '..'"),
    ):
        done = program.run("rm", f"{mnt}/{path}", here=here)
        assert done.returncode == ExitStatus.USAGE
        assert why in done.stderr

    assert sorted(os.listdir(mnt)) == ["d", "file"]
    program.ok("rm", f"{mnt}/d/", here=here)
    assert os.listdir(mnt) == ["file"]


def test_rm_on_a_read_only_mount_is_refused(program: Program, mounted: Place, here: bool) -> None:
    (mounted.mountpoint / "d" / "e").mkdir(parents=True)
    program.ok("umount", mounted.mountpoint)
    program.ok("mount", "-o", "ro", mounted.url, mounted.mountpoint)

    done = program.run("rm", mounted.mountpoint / "d", here=here)

    assert done.returncode == ExitStatus.REQUEST
    assert "read-only" in done.stderr
    assert (mounted.mountpoint / "d" / "e").exists()


def test_rm_on_another_filesystem_is_refused(program: Program, tmp_path: Path, here: bool) -> None:
    (tmp_path / "d").mkdir()
    assert program.run("rm", tmp_path / "d", here=here).returncode == ExitStatus.NOT_MOUNTED
    assert (tmp_path / "d").exists()
