"""The machine's clock against what the kernel stamps files with."""

import os
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
