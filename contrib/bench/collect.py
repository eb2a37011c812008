"""The cost of collecting dirty data in open files from the kernel.

A mount with ``commit=1`` and a long ``sync_interval`` collects dirty data once a second. Under each
load, the benchmark counts the kernel's requests for ten seconds, and measures the CPU time of the
daemon and of the collecting process. *Beside* is the number of 100-byte appends that a thread
makes in this time. *Longest ms* is the maximum latency of an append; it shows whether a collection
blocks writers.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from contrib.bench import machine
from contrib.bench.subjects import S3fsSubject, call

WARM_UP_S: Final = 2.0  # Start-up time of the collecting process.
# Number of open files, and seconds between two appends, for each load.
LOADS: Final[dict[str, tuple[int, float | None]]] = {
    "none": (0, None),
    "1 idle": (1, None),
    "1,000 idle": (1000, None),
    "1, appended every 10 ms": (1, 0.01),
    "1,000, appended in turn every 10 ms": (1000, 0.01),
    "1, appended without a pause": (1, 0.0),
}


def run(scratch: Path, *, watched_s: int) -> dict[str, Any]:
    """Measure one mount under each load."""
    options = {"commit": "1", "sync_interval": "1h"}
    subject = S3fsSubject("collecting", scratch / "subject", options=options)
    subject.make()
    with subject:
        found = {name: _watched(subject, name, *load, watched_s) for name, load in LOADS.items()}
    return {"watched_s": watched_s, "per_second": found}


@contextlib.contextmanager
def _appending(files: list[int], pause_s: float | None) -> Iterator[list[float]]:
    """Append 100 bytes to each file in turn, in a thread; yield the list of latencies."""
    ending, taken = threading.Event(), list[float]()

    def append() -> None:
        while not ending.wait(pause_s):
            file = files[len(taken) % len(files)]
            began_s = time.perf_counter()
            os.write(file, bytes(100))
            taken.append(time.perf_counter() - began_s)

    thread = threading.Thread(target=append)
    if pause_s is not None:
        thread.start()
    try:
        yield taken
    finally:
        ending.set()
        if pause_s is not None:
            thread.join()


def _watched(
    subject: S3fsSubject, name: str, count: int, pause_s: float | None, watched_s: int
) -> dict[str, float]:
    """Return the requests and CPU time per second under one load."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [os.open(subject.mountpoint / f"{name}-{each}", flags) for each in range(count)]
    try:
        with _appending(files, pause_s) as taken:
            time.sleep(WARM_UP_S)
            before = _status(subject)
            pids = {"daemon": before["pid"], "collector": before["kernel"]["collector_pid"]}
            before_s = _cpu_s(pids)
            time.sleep(watched_s)
            after_s, after = _cpu_s(pids), _status(subject)
    finally:
        for file in files:
            os.close(file)
    grown = {kind: n - before["requests"][kind] for kind, n in after["requests"].items()}
    return {
        **{f"{each}, ms": (after_s[each] - before_s[each]) / watched_s * 1e3 for each in pids},
        **{kind: n / watched_s for kind, n in grown.items() if n},
        **({"beside": len(taken), "longest ms": max(taken) * 1e3} if taken else {}),
    }


def _cpu_s(pids: dict[str, int | None]) -> dict[str, float]:
    return {name: machine.cpu_s(pid, alone=True) if pid else 0.0 for name, pid in pids.items()}


def _status(subject: S3fsSubject) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call(*subject.words("status", "--json")))
    return found
