"""Processes that keep the processors awake while a benchmark runs.

An idle processor halts and takes a long time to wake up, especially in a virtual machine. A request
to an idle filesystem may take three times as long as a request to a busy filesystem. The ratio of
two results would therefore depend on background work. To prevent this, a process keeps each
processor busy, with the scheduling policy SCHED_IDLE and the lowest priority. The scheduler
preempts this process immediately when any other process is ready to run.

In a virtual machine such a process also takes processor time from the host's threads that serve the
disk, so a flush of the disk takes several times as long. Steps that wait for the disk therefore run
in the context ``paused``.

``python -m contrib.bench.awake PARENT PROCESSOR`` runs one such process. When the thread that
started the process exits, the kernel kills the process.
"""

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[2]
LOAD_WINDOW_S: Final = 60.0  # The one-minute load average decays by a factor of e in 60 s.
NICEST: Final = 19
_PDEATHSIG: Final = 1  # PR_SET_PDEATHSIG, linux/prctl.h


_kept: Final[list["Awake"]] = []  # At most one Awake object exists per process.


class Awake:
    """The processes that keep the processors awake, one for each usable processor."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "contrib.bench.awake", str(os.getpid()), str(processor)],
                stdin=subprocess.DEVNULL, cwd=PROJECT,
            )
            for processor in sorted(os.sched_getaffinity(0))
        ]  # fmt: skip

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all keep-awake processes."""
        for process in self.processes:
            process.send_signal(number)

    def close(self) -> None:
        """Kill all keep-awake processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()

    def other_load(self, *, window_s: float = LOAD_WINDOW_S) -> float:
        """Return the load average over *window_s* seconds, without the keep-awake processes."""
        share = 1 - math.exp((self._begun_s - time.monotonic()) / window_s)
        return max(os.getloadavg()[0] - len(self.processes) * share, 0.0)


def describe() -> str:
    """Return the number of keep-awake processes and their scheduling policy, for the results."""
    return f"{len(os.sched_getaffinity(0))} processes with SCHED_IDLE"


@contextlib.contextmanager
def kept() -> Iterator[Awake]:
    """Keep all processors awake until the context ends."""
    awake = Awake()
    _kept.append(awake)
    try:
        yield awake
    finally:
        _kept.remove(awake)
        awake.close()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Pause the keep-awake processes until the context ends, so that idle processors halt."""
    stopped = list(_kept)
    for each in stopped:
        each.send(signal.SIGSTOP)
    try:
        yield
    finally:
        for each in stopped:
            each.send(signal.SIGCONT)


def main(parent: int, processor: int) -> None:
    """Occupy one processor until the process *parent* exits."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C must not print a traceback.
    if ctypes.CDLL(None, use_errno=True).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    os.sched_setaffinity(0, {processor})
    os.nice(NICEST)  # /proc/stat then counts the CPU time of this process separately, as "nice".
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if os.getppid() != parent:  # The parent exited before prctl(2) was called.
        return
    while True:
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
