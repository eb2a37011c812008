"""Tests that compare the system clock with the timestamps of the kernel."""

import os
import subprocess
import sys
import time
from pathlib import Path

from s3fs_meta.clock import SystemClock

SECOND_NS = 10**9


def test_clock_and_kernel_timestamps_never_decrease(tmp_path: Path) -> None:
    """The clock never returns a time before an earlier reading or kernel timestamp."""
    clock, file = SystemClock(), tmp_path / "file"
    file.touch()
    began_ns = time.time_ns()
    seen = []
    for _ in range(500):
        os.utime(file)
        seen += [file.stat().st_ctime_ns, clock.now_ns()]

    assert seen == sorted(seen)
    assert began_ns - SECOND_NS <= seen[-1] <= time.time_ns() + SECOND_NS


_DAEMON = """
import os, sys
os.closerange(0, 3)
from s3fs_meta.clock import SystemClock
before = SystemClock().now_ns()
kept = os.stat("/dev/null").st_ctime_ns
for fd in (0, 1, 2):
    null = os.open("/dev/null", os.O_RDWR)
    if null != fd:
        os.dup2(null, fd)
assert SystemClock().now_ns() >= before
os._exit(os.stat("/dev/null").st_ctime_ns != kept)
"""


def test_clock_works_after_standard_streams_are_replaced() -> None:
    """A daemon may start without standard streams, for example under some supervisors."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", _DAEMON], check=False, env=environment)
    assert done.returncode == 0
