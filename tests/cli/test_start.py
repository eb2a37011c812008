"""Choosing between the fast path and the full command line; test_rm tests the effect."""

import subprocess
import sys

import pytest

from s3fs_meta.cli.start import is_plain_removal
from s3fs_meta.console.exits import ExitStatus
from tests.programs import Program


@pytest.mark.parametrize("words", [["rm", "a"], ["rm", "a b", "", "/c"]])
def test_rm_with_paths_takes_the_fast_path(words: list[str]) -> None:
    """Any rm with only paths takes the fast path."""
    assert is_plain_removal(words)


@pytest.mark.parametrize(
    "words",
    [[], ["rm"], ["rm", "--wait", "a"], ["rm", "a", "--", "-b"], ["rm", "-h"], ["lock", "a"]],
)
def test_all_other_commands_use_the_full_command_line(words: list[str]) -> None:
    """All other commands, also without arguments, use the full command line."""
    assert not is_plain_removal(words)


_INTERRUPTED = """
import os, signal, sys
from s3fs_meta.mount import mount_paths as entries
from s3fs_meta.cli import start
entries.existing = lambda *_: os.kill(os.getpid(), signal.SIGINT)
sys.argv = ["s3fs-meta", "rm", "a"]
start.program()
"""


def test_interrupt_gives_one_line_and_the_usual_status(program: Program) -> None:
    """An interrupt prints one line and gives the usual exit status."""
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED],
        capture_output=True,
        text=True,
        check=False,
        env=program.environment,
    )

    assert done.returncode == ExitStatus.INTERRUPTED
    assert done.stderr == "s3fs-meta: interrupted\n"
