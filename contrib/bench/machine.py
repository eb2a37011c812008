"""The CPU time and memory of processes, kernel caches, and facts about the machine.

Owns: reading /proc. Does not know: the benchmarks.
"""

import contextlib
import os
import platform
import time
from pathlib import Path
from typing import Final

TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
SETTLE_WINDOW_S: Final = 0.1
SETTLE_CPU_S: Final = 0.002  # An idle process uses less CPU time than this in SETTLE_WINDOW_S.
SCHEDULER_CLOCK: Final = 2  # CPUCLOCK_SCHED, linux/posix-timers.h
SETTLE_S_MAX: Final = 20.0
GONE_S_MAX: Final = 600.0
GONE_POLL_S: Final = 0.01


def cpu_s(pid: int, *, alone: bool = False) -> float:
    """Return the user and system time of *pid* and, unless *alone* is true, of its descendants.

    The clock counts nanoseconds. Its number is computed as in glibc's clock_getcpuclockid(3).
    """
    return sum(
        time.clock_gettime((~each << 3) | SCHEDULER_CLOCK)
        for each in ([pid] if alone else family(pid))
    )


def family(pid: int) -> list[int]:
    """Return the PIDs of a process and its descendants; a descendant may serve the mount."""
    below: list[int] = []
    threads = Path(f"/proc/{pid}/task")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # The process has exited.
        for thread in os.listdir(threads):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # thread ended
                below += map(int, (threads / thread / "children").read_text().split())
    return [pid, *(each for child in below for each in family(child))]


def loop_cpu_s(pid: int) -> float:
    """Return user and system time of the first thread in *pid*, which runs the event loop."""
    text = Path(f"/proc/{pid}/task/{pid}/stat").read_text()
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def memory_bytes(pid: int) -> dict[str, int]:
    """Return the resident, peak and anonymous memory of *pid* and its descendants."""
    wanted = {"VmRSS": "resident", "VmHWM": "resident_peak", "RssAnon": "anonymous"}
    answer = dict.fromkeys(wanted.values(), 0)
    for each in family(pid):
        for line in Path(f"/proc/{each}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in wanted:
                answer[wanted[name]] += int(value.split()[0]) * 1024
    return answer


def drop_kernel_caches(pages: bool = True) -> None:
    """Drop clean dentries and inodes from the kernel caches, and pages if *pages* is true.

    Needs root.
    """
    if pages:
        os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3" if pages else "2")


def settle(pid: int) -> None:
    """Wait until *pid* has finished earlier work and is idle, at most SETTLE_S_MAX seconds."""
    deadline = time.monotonic() + SETTLE_S_MAX
    before = cpu_s(pid)
    while time.monotonic() < deadline:
        time.sleep(SETTLE_WINDOW_S)
        now = cpu_s(pid)
        if now - before < SETTLE_CPU_S:
            return
        before = now


def inodes(root: Path) -> int:
    """Return the number of used inodes on a filesystem, from statfs(2)."""
    figures = os.statvfs(root)
    return figures.f_files - figures.f_ffree


def wait_gone(root: Path, left: int) -> None:
    """Wait until a background removal leaves at most *left* inodes."""
    deadline = time.monotonic() + GONE_S_MAX
    while inodes(root) > left:
        assert time.monotonic() < deadline, "the background removal takes too long"
        time.sleep(GONE_POLL_S)


def facts() -> dict[str, object]:
    """Return a description of the machine: processor, memory, kernel and Python version."""
    return {
        "processor": _first("/proc/cpuinfo", "model name"),
        "processors": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _first(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"
