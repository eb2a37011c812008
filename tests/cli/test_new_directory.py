"""Tests of directories that a command creates, and removes again if it fails."""

import os
from pathlib import Path

import pytest

from s3fs_meta.cli.new_directory import NewDirectory
from s3fs_meta.errors import HeldError, UsageError


def fail(path: Path, meanwhile: Path | None = None) -> None:
    """Create *meanwhile* while the new directory *path* is in use, and then fail."""

    def command() -> None:
        with NewDirectory(path):
            if meanwhile == path:
                path.rmdir()
            if meanwhile is not None:
                meanwhile.mkdir()
            raise HeldError("no")

    with pytest.raises(HeldError):
        command()


def test_failed_command_removes_the_directories_that_it_created(tmp_path: Path) -> None:
    fail(tmp_path / "a" / "b" / "c")

    assert os.listdir(tmp_path) == []


def test_successful_command_keeps_the_directory_that_it_created(tmp_path: Path) -> None:
    with NewDirectory(tmp_path / "a" / "b", mode=0o700):
        pass

    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


def test_failed_command_keeps_existing_directories(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    fail(tmp_path / "a")
    fail(tmp_path / "a" / "b")

    assert (tmp_path / "a").is_dir()
    assert os.listdir(tmp_path / "a") == []


@pytest.mark.parametrize("used", ["a/other", "a/b/other"])
def test_failed_command_keeps_directories_that_another_process_uses(
    tmp_path: Path, used: str
) -> None:
    fail(tmp_path / "a" / "b", meanwhile=tmp_path / used)

    assert (tmp_path / used).is_dir()
    assert (tmp_path / "a" / "b").is_dir()


def test_failed_command_keeps_a_directory_that_another_process_created_again(
    tmp_path: Path,
) -> None:
    """A directory that another process created is kept, even if its inode number is the same."""
    path = tmp_path / "a"
    fail(path, meanwhile=path)

    assert path.is_dir()


def test_failure_to_create_a_directory_leaves_no_parent_directory(tmp_path: Path) -> None:
    path = tmp_path / "a" / ("x" * 300)
    with pytest.raises(UsageError, match=r"cannot create .*: File name too long"):
        NewDirectory(path)

    assert os.listdir(tmp_path) == []


def test_failed_command_keeps_a_later_directory_with_the_same_name(tmp_path: Path) -> None:
    """A directory that was created later belongs to another process, so it is not removed."""
    made = NewDirectory(tmp_path / "a")
    made.remove_unused()
    assert os.listdir(tmp_path) == []
    (tmp_path / "a").mkdir()
    made.remove_unused()
    assert (tmp_path / "a").is_dir()
