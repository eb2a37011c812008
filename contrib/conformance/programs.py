"""The foreign programs: found, never installed; run with a bound on their time."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

CARGO_BIN: Final = Path.home() / ".cargo" / "bin"

HOW_TO_INSTALL: Final = {
    "pjdfstest": "apt-get install acl libacl1-dev && cargo install pjdfstest --version 0.2.2",
    "fsx": "cargo install fsx --version 0.3.2",
    "stress-ng": "apt-get install stress-ng",
    "fio": "apt-get install fio",
}


class MissingProgramError(Exception):
    """A program is not installed; the text says how to install it."""


class Finished(NamedTuple):
    """A program that came to its end, or was ended."""

    status: int | None  # None: ended by us after its time
    output: str
    seconds: float


def find(name: str) -> str:
    """Return the path of *name*.

    Raises:
        MissingProgramError: it is neither on PATH nor where cargo puts it.
    """
    found = shutil.which(name) or shutil.which(name, path=str(CARGO_BIN))
    if found is None:
        raise MissingProgramError(f"{name} is missing: {HOW_TO_INSTALL[name]}")
    return found


def run(
    command: Sequence[str], *, directory: Path, seconds_max: float, environment: Mapping[str, str]
) -> Finished:
    """Run *command* in *directory*; both output streams are returned as one text.

    After its time it is ended with all its children: it leads a process group of its own.
    """
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    late = False
    try:
        output, _ = process.communicate(timeout=seconds_max)
    except subprocess.TimeoutExpired:
        late = True
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    status = None if late else process.returncode
    return Finished(status, output.decode(errors="replace"), time.monotonic() - start)


def tail(text: str, lines: int = 12) -> str:
    """Return the last lines of *text*."""
    return "\n".join(text.strip().splitlines()[-lines:])
