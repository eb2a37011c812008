"""Commands with a time limit, and the journal of a run."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from contrib.soak import hand
from contrib.soak.states import Observed, Operation

ROOT: Final = Path(__file__).parents[2]
# Time after which a command is regarded as hung, even on a busy machine.
COMMAND_S_MAX: Final = 150.0
OPERATION_S_MAX: Final = 100.0


class FindingError(Exception):
    """The filesystem violated a guarantee. The purpose of the run is to find violations."""


class Journal:
    """The journal of a run: a file and, if *loud*, a copy on standard output."""

    def __init__(self, path: Path, *, loud: bool) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._began_s = time.monotonic()
        self._loud = loud
        self.step = 0

    def note(self, text: str) -> None:
        """Append one line to the journal."""
        line = f"{time.monotonic() - self._began_s:8.2f} {self.step:4d}  {text}"
        self._file.write(line + "\n")
        if self._loud:
            print(line, flush=True)


class Done(NamedTuple):
    """The result of a command."""

    status: int
    out: str
    err: str


class Commands:
    """A runner of programs, which must exit in time and without a traceback."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def run(
        self,
        words: list[str],
        shown: str,
        environment: dict[str, str],
        folder: Path,
        expected: Collection[int] | None = (0,),
    ) -> Done:
        """Run one command.

        Args:
            words: the command and its arguments.
            shown: the name of the command in the journal.
            environment: the environment of the command.
            folder: the directory for its output.
            expected: the allowed exit statuses; None allows every status.

        Raises:
            FindingError: the command hangs, exits with an unexpected status, or reports a bug.
        """
        began_s = time.monotonic()
        with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                cwd=ROOT,
                start_new_session=True,
            )
            self._wait(process, shown)
            done = Done(process.returncode, _text(out), _text(err))
        taken_s = time.monotonic() - began_s
        last = " | ".join(done.err.strip().splitlines()[-3:])
        self._journal.note(f"{shown} -> {done.status} ({taken_s:.1f} s) {last[:600]}")
        if "Traceback (most recent call last)" in done.err or "this is a bug" in done.err:
            raise FindingError(
                f"the command {shown} printed a traceback on standard error:\n{done.err}"
            )
        if expected is not None and done.status not in expected:
            raise FindingError(
                f"the command {shown}\nexited with status {done.status}, expected "
                f"{sorted(expected)}:\n"
                f"{done.out[-3000:]}{done.err}"
            )
        return done

    def _wait(self, process: "subprocess.Popen[bytes]", shown: str) -> None:
        try:
            process.wait(COMMAND_S_MAX)
        except subprocess.TimeoutExpired:
            stacks = _stacks()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise FindingError(
                f"the command {shown}\ndid not exit within {COMMAND_S_MAX} s\n{stacks}"
            ) from None
        except BaseException:
            process.kill()
            raise


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _stacks() -> str:
    """Return each process of this namespace with the kernel function in which it waits."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            where = (folder / "wchan").read_text()
            found.append(f"{folder.name} {where} {words[:200]}")
    return "\n".join(found)


class Hand:
    """A client that accesses mounts through a separate process, because an access may hang."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, message: tuple[Any, ...]) -> None:
        """Begin an operation on a mount; the method ``answer`` returns its outcome."""
        if self._process is None:
            command = [sys.executable, "-m", "contrib.soak.hand"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
            )
        assert self._process.stdin is not None
        hand.send(self._process.stdin, message)

    def answer(self) -> tuple[str, Any]:
        """Return ``done`` and the result, or ``error`` and an errno.

        Raises: FindingError: the operation on the mount hangs.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], OPERATION_S_MAX)[0]:
            stacks = _stacks()
            self.end()
            raise FindingError(
                f"an operation on a mount did not end within {OPERATION_S_MAX:g} s\n{stacks}"
            )
        kind, result = hand.receive(self._process.stdout)
        return str(kind), result

    def do(self, root: Path, operation: Operation) -> int:
        """Perform one operation on a mount; return 0 or an errno."""
        self.start(("do", str(root), operation))
        kind, result = self.answer()
        self._journal.note(f"  {operation}" + (f" -> {_name(result)}" if kind == "error" else ""))
        return int(result) if kind == "error" else 0

    def ask(self, kind: str, *arguments: str | bytes) -> Any:
        """Perform an operation on a mount, which must succeed.

        Raises: FindingError: the operation fails or hangs.
        """
        self.start((kind, *arguments))
        how, result = self.answer()
        if how == "error":
            raise FindingError(f"operation {kind} of {arguments[0]!r} failed: {_name(result)}")
        return result

    def see(self, root: Path) -> Observed:
        """Return all entries below a directory, with their content.

        Raises: FindingError: an entry cannot be read. An EIO while reading content is recorded
        instead.
        """
        result = self.ask("see", str(root))
        assert isinstance(result, Observed)
        return result

    def end(self) -> None:
        """Kill the process that accesses mounts."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _name(code: int) -> str:
    return os.strerror(code)
