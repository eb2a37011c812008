"""Processes that keep the processors awake while a benchmark runs.

An idle processor halts and takes long to wake, above all in a virtual machine: a request to an idle
filesystem may take three times as long as a request to a busy filesystem. So a ratio of two single
operations would depend on background work. Therefore each processor gets a process that always
runs, with the scheduling policy SCHED_IDLE and the lowest priority: the scheduler preempts this
process at once for every other process.

``python -m contrib.bench.awake PARENT PROCESSOR`` is such a process. The kernel kills it when the
thread that started it ends.
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
LOAD_WINDOW_S: Final = 60.0  # the kernel's one-minute load average decays by 1/e in 60 s
NICEST: Final = 19
_PDEATHSIG: Final = 1  # PR_SET_PDEATHSIG, linux/prctl.h


class Awake:
    """The running processes, by default one for each usable processor."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "contrib.bench.awake", str(os.getpid()), str(processor)],
                stdin=subprocess.DEVNULL, cwd=PROJECT,
            )
            for processor in sorted(os.sched_getaffinity(0))
        ]  # fmt: skip

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()

    def other_load(self, *, window_s: float = LOAD_WINDOW_S) -> float:
        """Return the load average of *window_s* without the processes of this class."""
        share = 1 - math.exp((self._begun_s - time.monotonic()) / window_s)
        return max(os.getloadavg()[0] - len(self.processes) * share, 0.0)


def describe() -> str:
    """Return a description of these processes for the facts about the machine."""
    return f"{len(os.sched_getaffinity(0))} processes with SCHED_IDLE"


@contextlib.contextmanager
def kept() -> Iterator[Awake]:
    """Keep all processors awake for the duration of a context."""
    awake = Awake()
    try:
        yield awake
    finally:
        awake.close()


def main(parent: int, processor: int) -> None:
    """Occupy one processor until the process *parent* ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C prints no traceback
    if ctypes.CDLL(None, use_errno=True).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    os.sched_setaffinity(0, {processor})
    os.nice(NICEST)  # /proc/stat then counts the time separately, as "nice"
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if os.getppid() != parent:  # the parent exited before the call of prctl
        return
    while True:
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
