"""Processes that keep the processors awake while a benchmark runs.

A processor without work halts, and takes long to wake, above all in a virtual machine: there a
request to an idle filesystem may take three times as long as one to a busy filesystem. So a ratio
of two single operations would depend on whose background work kept the processors awake. Therefore
each processor gets a process that always runs, with the scheduling policy SCHED_IDLE and the
lowest priority: the scheduler preempts it at once for every other process.

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
    """The running processes; by default one for each processor that may be used."""

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

    def other_load(self) -> float:
        """Return the load average of one minute without these processes."""
        share = 1 - math.exp((self._begun_s - time.monotonic()) / LOAD_WINDOW_S)
        return max(os.getloadavg()[0] - len(self.processes) * share, 0.0)


def describe() -> str:
    """Return what keeps the processors awake, for the description of the machine."""
    return f"{len(os.sched_getaffinity(0))} processes with SCHED_IDLE"


@contextlib.contextmanager
def kept() -> Iterator[Awake]:
    """Keep all processors awake within the context."""
    awake = Awake()
    try:
        yield awake
    finally:
        awake.close()


def main(parent: int, processor: int) -> None:
    """Use one processor until *parent* ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C prints no traceback
    if ctypes.CDLL(None, use_errno=True).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    os.sched_setaffinity(0, {processor})
    os.nice(NICEST)  # /proc/stat then counts the time separately, as "nice"
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if os.getppid() != parent:  # the parent ended before the call of prctl
        return
    while True:
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
