"""The arguments that name a path in the past."""

from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.programs import Program


@pytest.mark.parametrize("command", ["log", "versions"])
def test_path_after_a_path_is_refused_with_the_path_to_write(
    program: Program, command: str
) -> None:
    refused = program.run(command, "home", "thesis")
    assert refused.returncode == ExitStatus.USAGE
    assert "'home' is not a URL" in refused.stderr
    assert "'home/thesis'" in refused.stderr


@pytest.mark.parametrize("words", [("log",), ("versions",), ("diff", "1h")])
def test_message_names_the_path_that_is_in_no_mount(
    program: Program, tmp_path: Path, words: tuple[str, ...]
) -> None:
    command, *times = words
    refused = program.run(command, tmp_path / "file", *times)
    assert refused.returncode == ExitStatus.NOT_MOUNTED
    assert f"{tmp_path}/file is not on a filesystem of s3fs-meta" in refused.stderr


def test_versions_of_a_url_without_a_path_are_refused(program: Program, tmp_path: Path) -> None:
    refused = program.run("versions", f"local://{tmp_path}")
    assert refused.returncode == ExitStatus.USAGE
    assert "give a path, too" in refused.stderr
