"""The memory of daemons while a benchmark runs: the PSS of all their processes.

The PSS (proportional set size) of a process divides the size of each shared page by the number of
processes that share it. So the sum over a daemon's processes counts each page at most once. A
separate process reads the PSS several times a second, because reading in the benchmark's process
would need its interpreter lock. A peak between two readings may be missed.

``python -m contrib.bench.memory`` reads commands from its standard input, one per line.
``watch PID`` begins to watch a daemon. ``peak PID`` prints the largest PSS in bytes since the last
``peak``, and ``end PID`` since ``watch``. The program exits when its standard input is closed.
"""

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from contrib.bench import machine

SAMPLE_S: Final = 0.2
PROJECT: Final = Path(__file__).resolve().parents[2]
_COMMAND_BYTES_MAX: Final = 4096


class Peak(NamedTuple):
    """The peak memory of all daemons with the same name."""

    pss_bytes: int
    counts: bool  # True if the target for peak memory applies to the daemons.


class Sampler:
    """The process that reads memory, and the recorded peaks of daemons that have exited."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "contrib.bench.memory"]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT,
            start_new_session=True,  # Signals to the benchmark must not reach this process.
        )  # fmt: skip
        self.peaks: dict[str, Peak] = {}

    def watch(self, pid: int) -> None:
        """Start to read the memory of a daemon."""
        self._send(f"watch {pid}")

    def peak_bytes(self, pid: int) -> int:
        """Return a daemon's largest PSS since the last call to this method."""
        return self._ask(f"peak {pid}")

    def end(self, pid: int, name: str, *, counts: bool) -> None:
        """Record the peak memory of a daemon under a name, and stop reading the daemon's memory."""
        before = self.peaks.get(name, Peak(0, counts=counts))
        pss_bytes = max(before.pss_bytes, self._ask(f"end {pid}"))
        self.peaks[name] = Peak(pss_bytes, counts=before.counts and counts)

    def close(self) -> None:
        """Stop the memory-reading process."""
        assert self._process.stdin is not None, "it was started with a pipe"
        assert self._process.stdout is not None, "it was started with a pipe"
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None, "it was started with a pipe"
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _ask(self, line: str) -> int:
        self._send(line)
        assert self._process.stdout is not None, "it was started with a pipe"
        return int(self._process.stdout.readline())


_running: list[Sampler] = []


@contextlib.contextmanager
def sampled() -> Iterator[Sampler]:
    """Read the memory of all daemons that a benchmark starts, until the context ends."""
    sampler = Sampler()
    _running.append(sampler)
    try:
        yield sampler
    finally:
        _running.remove(sampler)
        sampler.close()


def sampler() -> Sampler | None:
    """Return the sampler of the running benchmark; None outside of ``sampled``."""
    return _running[-1] if _running else None


def pss_bytes(pid: int) -> int:
    """Return the PSS of a process and its descendants; 0 if the process has exited."""
    return sum(map(_pss_bytes, machine.family(pid)))


def _pss_bytes(pid: int) -> int:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "Pss":
                return int(value.split()[0]) * 1024
    return 0


# --- memory of a process -----------------------------------------------------------------------


class _Readings:
    """The largest PSS of each watched daemon."""

    def __init__(self) -> None:
        self._since_peak: dict[int, int] = {}
        self._since_watch: dict[int, int] = {}

    def read(self) -> None:
        for pid in self._since_watch:
            found = pss_bytes(pid)
            self._since_peak[pid] = max(self._since_peak[pid], found)
            self._since_watch[pid] = max(self._since_watch[pid], found)

    def do(self, command: str) -> int | None:
        """Execute one input line; return the number to print, or None."""
        verb, _, text = command.partition(" ")
        pid = int(text)
        if verb == "watch":
            self._since_peak[pid] = self._since_watch[pid] = 0
            return None
        self.read()
        peak_bytes, self._since_peak[pid] = self._since_peak[pid], 0
        if verb == "peak":
            return peak_bytes
        del self._since_peak[pid]
        return self._since_watch.pop(pid)


def main() -> None:
    """Read memory and execute commands until the standard input is closed."""
    readings, unread = _Readings(), b""
    while True:
        readings.read()
        if not select.select([sys.stdin], [], [], SAMPLE_S)[0]:
            continue
        data = os.read(sys.stdin.fileno(), _COMMAND_BYTES_MAX)
        if not data:
            return
        *commands, unread = (unread + data).split(b"\n")
        for command in commands:
            printed = readings.do(command.decode())
            if printed is not None:
                print(printed, flush=True)


if __name__ == "__main__":
    main()
