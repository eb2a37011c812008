"""Which way the program goes; ``test_rm`` has what comes of it."""

import subprocess
import sys
from pathlib import Path

import pytest

from s3fs_meta.cli.exits import ExitStatus
from s3fs_meta.cli.start import is_plain_removal
from tests.cli.conftest import Program


@pytest.mark.parametrize("words", [["rm", "a"], ["rm", "a b", "", "/c"]])
def test_rm_with_paths_is_plain(words: list[str]) -> None:
    """Whatever the paths are."""
    assert is_plain_removal(words)


@pytest.mark.parametrize(
    "words",
    [[], ["rm"], ["rm", "--wait", "a"], ["rm", "a", "--", "-b"], ["rm", "-h"], ["lock", "a"]],
)
def test_all_else_goes_through_the_command_line(words: list[str]) -> None:
    """It knows the options, and what to say to somebody who gives nothing."""
    assert not is_plain_removal(words)


def test_interpreter_without_assertions_is_refused_there_too(
    program: Program, tmp_path: Path
) -> None:
    """They are needed; see ``boundary``."""
    done = subprocess.run(
        [sys.executable, "-O", "-m", "s3fs_meta", "rm", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        env=program.environment,
    )

    assert done.returncode == ExitStatus.USAGE
    assert "python -O" in done.stderr
