"""The disk image that a benchmark uses as its disk."""

import os
import subprocess
from pathlib import Path

import pytest

from contrib.bench import disk

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/loop-control").exists(),
    reason="the test needs root privileges and loop devices",
)


def test_disk_image_is_freed_when_no_process_uses_it_any_more() -> None:
    with disk.new(bytes_min=1 << 20, bytes_max=64 << 20) as place:
        device = subprocess.check_output(
            ["findmnt", "-no", "SOURCE", "--target", place], text=True
        ).strip()
        late = subprocess.Popen(["sleep", "1"], cwd=place)
    assert not Path("/sys/block", Path(device).name, "loop").exists()
    assert late.wait() == 0
