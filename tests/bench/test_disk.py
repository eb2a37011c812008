"""The disk image of a benchmark."""

import os
import subprocess
from pathlib import Path

import pytest

from contrib.bench import disk

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/loop-control").exists(), reason="needs loop devices"
)


def test_space_of_the_disk_is_free_when_a_late_program_ends() -> None:
    """The next benchmark finds as much room, although a program still used the disk at the end."""
    with disk.new(bytes_min=1 << 20, bytes_max=64 << 20) as place:
        device = subprocess.check_output(
            ["findmnt", "-no", "SOURCE", "--target", place], text=True
        ).strip()
        late = subprocess.Popen(["sleep", "1"], cwd=place)
    assert not Path("/sys/block", Path(device).name, "loop").exists()
    assert late.wait() == 0
