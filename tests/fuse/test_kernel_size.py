"""Tests of reading the size of an open file from the kernel through /proc."""

import os
import subprocess
import sys
from pathlib import Path

from s3fs_meta.fuse.raw_operations import kernel_size
from s3fs_meta.model import Ino


def test_file_size_in_the_kernel_is_found_by_device_and_inode(tmp_path: Path) -> None:
    """The size of an open file is found even if the file has no name."""
    path = tmp_path / "f"
    path.write_bytes(b"x" * 12345)
    status = path.stat()
    ino, device = Ino(status.st_ino), status.st_dev
    assert kernel_size(os.getpid(), device, ino) is None

    with path.open("ab") as file:
        path.unlink()
        assert kernel_size(os.getpid(), device, ino) == 12345
        file.write(b"y")
        file.flush()
        assert kernel_size(os.getpid(), device, ino) == 12346
        assert kernel_size(os.getpid(), device + 1, ino) is None
        assert kernel_size(os.getpid(), device, Ino(ino + 1)) is None
        assert kernel_size(0, device, ino) is None


def test_file_size_in_the_kernel_is_found_among_other_open_descriptors(tmp_path: Path) -> None:
    """The size of a file is found although the process has other descriptors, such as pipes."""
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    status = path.stat()
    script = "import sys; f = open(sys.argv[1]); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert kernel_size(process.pid, status.st_dev, Ino(status.st_ino)) == 3
        process.communicate()


def test_search_for_the_file_size_in_the_kernel_is_bounded(tmp_path: Path) -> None:
    """The search for an open file examines a limited number of descriptors per process."""
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    status = path.stat()
    with path.open("rb"):
        ino, pid = Ino(status.st_ino), os.getpid()
        assert kernel_size(pid, status.st_dev, ino, descriptors_max=1) is None
