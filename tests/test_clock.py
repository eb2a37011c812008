"""The machine's clock against what the kernel stamps files with."""

import os
import subprocess
import sys
import time
from pathlib import Path

from s3fs_meta.clock import SystemClock


def test_time_and_stamps_of_the_kernel_never_go_back(tmp_path: Path) -> None:
    """Also between two ticks, where the kernel stamps what was looked at with a finer clock."""
    clock, file = SystemClock(), tmp_path / "file"
    file.touch()
    seen = []
    for _ in range(500):
        os.utime(file)
        seen += [file.stat().st_ctime_ns, clock.now_ns()]

    assert seen == sorted(seen)
    assert abs(seen[-1] - time.time_ns()) < 10 * 1_000_000_000


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


def test_clock_survives_what_a_daemon_does_to_its_descriptors() -> None:
    """Also when it was started without them, as some supervisors do."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", _DAEMON], check=False, env=environment)
    assert done.returncode == 0
