"""The longest stall of the daemon's loop while a large database is uploaded.

Measured from outside: statvfs always is a request, and answering it takes no time; so a slow answer
is the loop doing something else. The same probe beside an idle daemon says what the machine adds.
"""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from contrib.bench import fill, machine
from contrib.bench.subjects import PROJECT, S3fsSubject, environment, program

PAUSE_S: Final = 0.0005
NAME_BYTES: Final = 128
BYTES_PER_FILE: Final = 210  # with such names, about


def run(scratch: Path, *, database_mb: int) -> dict[str, object]:
    """Fill a database to about *database_mb*, image it under the probe, then probe an idle mount."""
    subject = S3fsSubject("s3fs-meta", scratch / "subject")
    files = database_mb * 1_000_000 // BYTES_PER_FILE
    fill.make_filled(subject, files=files, per_directory=1000, name_bytes=NAME_BYTES)
    size_bytes = subject.database().stat().st_size
    with subject:
        assert subject.pid is not None, "the subject is mounted"
        machine.settle(subject.pid)
        (subject.mountpoint / "change").touch()
        flush = subprocess.Popen(
            [
                *program(),
                "flush",
                "--image",
                str(subject.mountpoint),
                "--cachedir",
                str(subject.state),
            ],
            env=environment(),
            cwd=PROJECT,
            stdout=subprocess.DEVNULL,
        )
        start = time.monotonic()
        busy = probe(subject.mountpoint, lambda: flush.poll() is None)
        taken_s = time.monotonic() - start
        assert flush.returncode == 0, f"flush: status {flush.returncode}"
        machine.settle(subject.pid)
        end = time.monotonic() + taken_s
        idle = probe(subject.mountpoint, lambda: time.monotonic() < end)
    return {
        "database_bytes": size_bytes,
        "flush_seconds": taken_s,
        "imaging": latencies(busy),
        "idle": latencies(idle),
    }


def probe(mountpoint: Path, going_on: Callable[[], bool]) -> list[float]:
    """Return the seconds of every answer until *going_on* returns false."""
    taken = []
    while going_on():
        start = time.perf_counter()
        os.statvfs(mountpoint)
        taken.append(time.perf_counter() - start)
        time.sleep(PAUSE_S)
    return taken


def latencies(taken: list[float]) -> dict[str, float]:
    """Return median, 99th and 99.9th percentile and the longest, in milliseconds."""
    ordered = sorted(taken)
    return {
        "answers": len(ordered),
        **{
            name: ordered[min(int(len(ordered) * part), len(ordered) - 1)] * 1e3
            for name, part in {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1}.items()
        },
    }
