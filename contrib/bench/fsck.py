"""fsck (not deep) of many files, relative to one count over inodes joined with dentries."""

import os
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Final

from contrib.bench import fill, samples, targets
from contrib.bench.subjects import PROJECT, S3fsSubject, environment, program

TIMES_MAX: Final = 20
COUNT: Final = "SELECT count(*) FROM dentries JOIN inodes ON inodes.ino = dentries.ino"


def run(scratch: Path, *, many: int, rounds: int) -> dict[str, object]:
    """Fill a filesystem, upload it, check and count it in turns."""
    subject = S3fsSubject("s3fs-meta", scratch / "subject")
    fill.make_filled(subject, files=many, per_directory=1000, name_bytes=16)
    with subject:
        (subject.mountpoint / "last").touch()  # a change, so that unmounting ships an image
    check_s = []
    count_s = []
    peak_bytes = []
    for _ in range(rounds):
        count_s.append(count_rows_s(subject.database()))
        taken_s, peak = check(subject)
        check_s.append(taken_s)
        peak_bytes.append(peak)
    times = 1 / samples.ratio(count_s, check_s)
    return {
        "files": many,
        "fsck_seconds": samples.summary(check_s),
        "count_seconds": samples.summary(count_s),
        "peak_bytes": max(peak_bytes),
        "times": times,
        "targets": [targets.at_most("time in units of one count", times, TIMES_MAX, "times")],
    }


def count_rows_s(database: Path) -> float:
    """Return how long the count takes with the pages in memory."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        connection.execute(COUNT).fetchone()
        start = time.perf_counter()
        connection.execute(COUNT).fetchone()
        return time.perf_counter() - start
    finally:
        connection.close()


def check(subject: S3fsSubject) -> tuple[float, int]:
    """Return the seconds and the peak memory of one fsck, which must find nothing."""
    command = [*program(), "fsck", "-n", subject.url, "--cachedir", str(subject.state)]
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment(), cwd=PROJECT
    )
    assert process.stderr is not None, "asked for above"
    messages = process.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    taken_s = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"fsck: status {process.returncode}: {messages}"
    return taken_s, usage.ru_maxrss * 1024
