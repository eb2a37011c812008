"""The s3fs-meta command, run in a separate process or in this process."""

import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final
from unittest import mock

from typing_extensions import override

from s3fs_meta.cli import entry
from tests import forked
from tests.polling import PROCESS_S_MAX, wait_until

ROOT: Final = Path(__file__).parents[1]


def wait_until_gone(pid: int) -> None:
    """Wait until the pidfd of a process is readable, which means that the process has exited."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], PROCESS_S_MAX)[0], "the daemon did not exit in time"
    finally:
        os.close(fd)


def open_files(pid: int) -> set[str]:
    """Return the targets of a process's descriptors, such as paths and ``socket:[…]``."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # The descriptor was closed in the meantime.
            found.add(os.readlink(link))
    return found


def suspend(pid: int) -> None:
    """Stop a process with SIGSTOP, and wait until none of its threads can run."""
    os.kill(pid, signal.SIGSTOP)

    def may_run() -> bool:
        states = []
        for task in Path(f"/proc/{pid}/task").iterdir():
            # A thread may end before it can be stopped.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
        return not {"R", "S"}.isdisjoint(states)

    wait_until(lambda: not may_run(), "the process did not stop in time")


class Program:
    """A runner of ``s3fs-meta`` in separate processes, with local state of its own.

    A command is forked from a process that has imported the program. If ``executes`` is true, the
    command is started with execve(2), for tests of its command line and of its initial environment.
    """

    def __init__(self, cachedir: Path) -> None:
        self.cachedir = cachedir
        self.executes = False
        # PYTHONUNBUFFERED is removed, because it would hide a missing flush of the output.
        self.environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("S3FS_META") and key != "PYTHONUNBUFFERED"
        } | {"PYTHONPATH": str(ROOT)}

    def run(
        self, *words: str | Path, module: str = "s3fs_meta", here: bool = True, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run one command. If *here* is true, add the option --cachedir."""
        arguments = [*map(str, words), *(["--cachedir", str(self.cachedir)] if here else [])]
        if not self.executes:
            return forked.run(module, arguments, self.environment, text, PROCESS_S_MAX)
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            input=text,
            capture_output=True,
            text=True,
            errors="surrogateescape",  # status lists the mounts of other tests, too
            check=False,
            timeout=PROCESS_S_MAX,
            env=self.environment,
            start_new_session=True,
        )

    def begin(
        self,
        *words: str | Path,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int = subprocess.PIPE,
    ) -> "subprocess.Popen[str]":
        """Start a command in a new process, without adding --cachedir or waiting for its end."""
        return subprocess.Popen(
            [sys.executable, "-m", "s3fs_meta", *map(str, words)],
            env=self.environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="surrogateescape",
        )

    def ok(self, *words: str | Path, here: bool = True) -> str:
        """Run one command, which must succeed, and return its output."""
        done = self.run(*words, here=here)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self, target: str | Path) -> dict[str, Any]:
        """Return the JSON output of status for a mount or a URL."""
        found = json.loads(self.ok("status", "--json", target))
        assert isinstance(found, dict)
        return found

    def kill(self, target: str | Path) -> int:
        """Kill a mount's daemon with SIGKILL and wait until it exits; return its process id."""
        pid = int(self.status(target)["pid"])
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)
        return pid


class QuickProgram(Program):
    """A runner of commands in this process, which is faster than a separate process.

    The mount command runs in a separate process, because it forks, which is not safe in a process
    with threads.
    """

    @override
    def run(
        self, *words: str | Path, module: str = "s3fs_meta", here: bool = True, text: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """Run one command. If *here* is true, add the option --cachedir."""
        if words[0] == "mount" or module != "s3fs_meta" or text:
            return super().run(*words, module=module, here=here, text=text)
        arguments = [*map(str, words), *(["--cachedir", str(self.cachedir)] if here else [])]
        printed, said = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(said),
            mock.patch.dict(os.environ, self.environment, clear=True),
        ):
            status = entry.main(arguments)
        return subprocess.CompletedProcess(arguments, status, printed.getvalue(), said.getvalue())
