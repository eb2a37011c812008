"""Completion scripts for shells, as the program itself prints them.

Owns: asking it. Source: Typer, "CLI Option autocompletion"; a variable of the environment named
after the program turns a run into an answer for the shell.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "_S3FS_META_COMPLETE"

# Where packages put them: bash-completion(7) and the shells' own directories.
_FILES: Final[Mapping[str, str]] = {
    "bash": "s3fs-meta",
    "zsh": "_s3fs-meta",
    "fish": "s3fs-meta.fish",
}


def scripts() -> dict[str, str]:
    """Return file names and scripts."""
    return {file: _script(shell) for shell, file in _FILES.items()}


def _script(shell: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "s3fs_meta"],
        env={**os.environ, VARIABLE: f"source_{shell}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip() + "\n"
