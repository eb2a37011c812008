"""The longest stall of the daemon's event loop while a large database is uploaded.

The benchmark calls statvfs repeatedly. The daemon can answer each call immediately, so a slow reply
shows that the event loop is busy. The same calls to an idle daemon show the latency of the machine.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from contrib.bench import fill, samples
from contrib.bench.subjects import S3fsSubject, begin

PAUSE_S: Final = 0.0005
NAME_BYTES: Final = 128
BYTES_PER_FILE: Final = 210  # Approximate database size per file with a 128-byte name.


def run(scratch: Path, *, database_mb: int) -> dict[str, object]:
    """Measure replies while an image of a database of *database_mb* MB is made, and while idle."""
    subject = S3fsSubject("s3fs-meta", scratch / "subject")
    files = database_mb * 1_000_000 // BYTES_PER_FILE
    fill.make_filled(subject, files=files, per_directory=1000, name_bytes=NAME_BYTES)
    size_bytes = subject.database().stat().st_size
    with subject:
        subject.rest()
        (subject.mountpoint / "change").touch()
        flush = begin(*subject.words("flush", "--image"))
        start = time.monotonic()
        busy = probe(subject.mountpoint, lambda: flush.poll() is None)
        taken_s = time.monotonic() - start
        assert flush.returncode == 0, f"flush: status {flush.returncode}"
        subject.rest()
        end = time.monotonic() + taken_s
        idle = probe(subject.mountpoint, lambda: time.monotonic() < end)
    return {
        "database_bytes": size_bytes,
        "flush_seconds": taken_s,
        "imaging": samples.latencies(busy),
        "idle": samples.latencies(idle),
    }


def probe(mountpoint: Path, going_on: Callable[[], bool]) -> list[float]:
    """Call statvfs until *going_on* returns false; return the seconds of each call."""
    taken = []
    while going_on():
        start = time.perf_counter()
        os.statvfs(mountpoint)
        taken.append(time.perf_counter() - start)
        time.sleep(PAUSE_S)
    return taken
