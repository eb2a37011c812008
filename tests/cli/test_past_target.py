"""Tests of command arguments that select a path in the past."""

from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.programs import Program


@pytest.mark.parametrize("command", ["log", "versions"])
def test_error_about_a_path_split_into_two_arguments_shows_the_complete_path(
    program: Program, command: str
) -> None:
    refused = program.run(command, "home", "thesis")
    assert refused.returncode == ExitStatus.USAGE
    assert "'home' is not a URL" in refused.stderr
    assert "'home/thesis'" in refused.stderr


@pytest.mark.parametrize("words", [("log",), ("versions",), ("diff", "1h")])
def test_error_about_a_path_outside_all_mounts_shows_the_path(
    program: Program, tmp_path: Path, words: tuple[str, ...]
) -> None:
    command, *times = words
    refused = program.run(command, tmp_path / "file", *times)
    assert refused.returncode == ExitStatus.NOT_MOUNTED
    assert f"{tmp_path}/file is not on an s3fs-meta filesystem" in refused.stderr


@pytest.mark.parametrize(
    "words",
    [("log", "s3:/b/x"), ("log", "s3:/b/x", "file"), ("versions", "s3:/b/x", "file")],
)
def test_error_about_a_url_with_a_missing_slash_shows_the_url(
    program: Program, words: tuple[str, ...]
) -> None:
    refused = program.run(*words)
    assert refused.returncode == ExitStatus.USAGE
    assert "s3://b/x is a URL, and this command takes" in refused.stderr


def test_versions_command_refuses_a_url_without_a_path(program: Program, tmp_path: Path) -> None:
    refused = program.run("versions", f"local://{tmp_path}/my data")
    assert refused.returncode == ExitStatus.USAGE
    assert "add the path of a file after the URL" in refused.stderr
    assert f"s3fs-meta versions 'local://{tmp_path}/my data' PATH" in refused.stderr


@pytest.mark.mount
def test_path_below_the_snapshot_directory_refers_to_the_path_in_the_mount(
    program: Program, mounted: Place
) -> None:
    """The tested paths exist at the chosen txg, exist only later, or are .snapshots itself."""
    mnt = mounted.mountpoint
    (mnt / "folder").mkdir()
    (mnt / "folder" / "report").write_text("first")
    program.ok("flush", mnt)
    then = f"txg={program.status(mnt)['txg']}"
    (mnt / "folder" / "report").write_text("second")
    (mnt / "folder" / "later").touch()
    program.ok("flush", mnt)

    past = mnt / ".snapshots" / then
    for path in ("folder/report", "folder/later", "folder"):
        assert program.ok("versions", past / path) == program.ok("versions", mnt / path)
        assert program.ok("log", past / path) == program.ok("log", mnt / path)
    for top in (past, mnt / ".snapshots"):
        assert program.ok("diff", top, then) == program.ok("diff", mnt, then)
    pattern = "folder/re*"
    assert program.ok("versions", "--pattern", past / pattern) == program.ok(
        "versions", "--pattern", mnt / pattern
    )
