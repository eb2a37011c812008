"""Candidates that the completion of a shell offers, also through a real bash."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from contrib.docs import reference
from s3fs_meta.cli import completion
from s3fs_meta.option_table import OPTIONS, WITHOUT_EFFECT
from tests.cli.conftest import Place

# A command line is completed as bash does: with its words, which "=" and ":" separate, too.
_COMPLETE: Final = r"""
s3fs-meta() { "$PYTHON" -m s3fs_meta "$@"; }
COMP_LINE=$1 COMP_POINT=${#1}
_s3fs_meta s3fs-meta
printf '%s\n' "${COMPREPLY[@]}"
"""


def completed(line: str, directory: Path | None = None) -> list[str]:
    """Return the words that bash offers for the end of a command line."""
    script = reference.completion_scripts()["s3fs-meta"]
    done = subprocess.run(
        ["bash", "--norc", "-c", script + _COMPLETE, "bash", line],
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(reference.ROOT)},
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_every_option_that_is_not_given_is_offered() -> None:
    words = completion.mount_options("ro,cachesize=5G,")

    assert len(words) == len(OPTIONS) - len(WITHOUT_EFFECT) - 2
    assert "ro,cachesize=5G,allow_other" in words
    assert "ro,cachesize=5G,commit=" in words


def test_only_the_command_that_is_completed_is_loaded() -> None:
    """Without a shell there is nothing to complete."""
    assert completion.words_to_complete({"COMP_WORDS": "s3fs-meta mount"}) is None
    assert completion.words_to_complete(
        {completion.VARIABLE: "complete_bash", "COMP_WORDS": "s3fs-meta mount -o ro"}
    ) == ["mount", "-o", "ro"]


def test_url_is_no_mountpoint() -> None:
    assert completion.mountpoints("local:///") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("s3fs-meta umo", ["umount"]),
        ("s3fs-meta mount --fore", ["--foreground"]),
        ("s3fs-meta mount -o ro,cachedi", ["ro,cachedir="]),
        ("s3fs-meta mount -o commit=1,cachedi", ["1,cachedir="]),  # "commit=" stays
        ("s3fs-meta mount -o cachedir=/tm", []),  # bash completes files then
        ("s3fs-meta umount local:///", []),
    ],
)
def test_bash_completes_a_command_line(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


@pytest.mark.mount
def test_bash_completes_mountpoints(mounted: Place) -> None:
    """The absolute path of a mount, or a relative one."""
    mountpoint = mounted.mountpoint
    beginning = str(mountpoint)[:-1]

    assert completed(f"s3fs-meta umount {beginning}") == [str(mountpoint)]
    assert completed("s3fs-meta status m", mountpoint.parent) == [mountpoint.name]
    assert str(mountpoint) in completed("s3fs-meta flush ")
