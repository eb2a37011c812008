"""Functions that find the programs of the suites, and run programs with a time limit."""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

CARGO_BIN: Final = Path.home() / ".cargo" / "bin"

HOW_TO_INSTALL: Final = {
    "pjdfstest": "apt-get install acl libacl1-dev && cargo install pjdfstest --version 0.2.2",
    "fsx": "cargo install fsx --version 0.3.2",
    "stress-ng": "apt-get install stress-ng",
    "fio": "apt-get install fio",
    "ext4": "apt-get install e2fsprogs",
}
# Programs whose names differ from the names of their suites.
PROGRAMS: Final = {"ext4": "mkfs.ext4"}


HOW_TO_FIND: Final = {
    "xfstests": "xfstests is missing: apt-get install acl attr bc gawk quota uuid-dev xfslibs-dev"
    " libacl1-dev libaio-dev libattr1-dev libgdbm-dev libtool-bin automake gettext xfsprogs,"
    " clone https://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git, make, and set XFSTESTS=/path",
    "ltp": "LTP is missing: clone https://github.com/linux-test-project/ltp, make autotools,"
    " ./configure --prefix=/path, make, make install, and set LTP=/path",
}


class MissingProgramError(Exception):
    """A program is not installed; the message contains the command that installs it."""


class Finished(NamedTuple):
    """The result of a program that exited, or was killed after its time limit."""

    status: int | None  # Exit status of the program; None if the program was killed.
    output: str
    seconds: float


def find(name: str) -> str:
    """Return the path of a suite's program.

    Raises:
        MissingProgramError: the program is neither in PATH nor in cargo's directory.
    """
    program = PROGRAMS.get(name, name)
    found = shutil.which(program) or shutil.which(program, path=str(CARGO_BIN))
    if found is None:
        raise MissingProgramError(f"the program {program} is not installed: {HOW_TO_INSTALL[name]}")
    return found


def run(
    command: Sequence[str], *, directory: Path, seconds_max: float, environment: Mapping[str, str]
) -> Finished:
    """Run *command* in *directory*; return standard output and standard error as one text.

    If the command runs longer than *seconds_max*, it is killed with its process group, which
    includes its children.
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


def pieces(
    command: Sequence[str], *, directory: Path, seconds_max: float, environment: Mapping[str, str]
) -> Generator[str | None, None, None]:
    """Run *command* in *directory*, and yield its output piece by piece.

    If the command prints nothing for *seconds_max*, it is killed with its process group, and None
    is yielded last.
    """
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None, "the process was started with a pipe"
    descriptor = process.stdout.fileno()
    try:
        while select.select([descriptor], [], [], seconds_max)[0]:
            piece = os.read(descriptor, 65536)
            if not piece:
                return
            yield piece.decode(errors="replace")
        yield None
    finally:
        # Kill the group even after a normal exit: its processes could disturb the next program.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()


def remove_tree(directory: Path) -> None:
    """Remove the files of a test; ignore files that cannot be removed."""
    subprocess.run(["rm", "-rf", str(directory)], capture_output=True, check=False)


def tail(text: str, lines: int = 12) -> str:
    """Return the last lines of *text*."""
    return "\n".join(text.strip().splitlines()[-lines:])
