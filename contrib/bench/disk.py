"""A new ext4 filesystem in an image file, for measurements.

For about a minute after a file is deleted, ext4 does not reuse its inode, but examines this inode
whenever a file is created. After thousands of deletions, creating a file takes ten times as long as
usual. A new ext4 filesystem has no deleted inodes.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FREE_SHARE: Final = 0.6  # The largest share of the free disk space that the image may use.
BYTES_MAX: Final = 48 << 30
BYTES_MIN: Final = 8 << 30
FREED_S_MAX: Final = 60.0
POLL_S: Final = 0.1
SEARCHABLE: Final = 0o711  # The mode that lets other users search a directory.


@contextlib.contextmanager
def new(*, bytes_min: int = BYTES_MIN, bytes_max: int = BYTES_MAX) -> Iterator[Path]:
    """Yield the root of a new ext4 filesystem, then remove it; needs root and loop devices.

    Args:
        bytes_min: the minimum size of the disk image.
        bytes_max: the maximum size of the disk image.

    Raises:
        OSError, CalledProcessError: the image cannot be made or mounted. With the option --scratch
            the benchmarks use a directory instead.
    """
    with tempfile.TemporaryDirectory(prefix="bench-disk-") as folder:
        os.chmod(folder, SEARCHABLE)
        image, place = Path(folder, "image"), Path(folder, "disk")
        space = os.statvfs(folder)
        size_bytes = min(int(FREE_SHARE * space.f_bavail * space.f_frsize), bytes_max)
        if size_bytes < bytes_min:
            raise OSError(
                f"the disk of {folder} has too little space for an image of {bytes_min >> 30} GiB"
            )
        with image.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
        _run("mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=1", image)
        place.mkdir()
        # Direct I/O avoids a second page cache; noinit_itable avoids writes in the background.
        device = _run("losetup", "--find", "--show", "--direct-io=on", image).strip()
        try:
            _run("mount", "-o", "noinit_itable", device, place)
            try:
                yield place
            finally:
                _run("umount", "--lazy", place)
        finally:
            _run("losetup", "--detach", device)
            _wait_until_freed(device)


def _wait_until_freed(device: str) -> None:
    """Wait until no process uses the disk, so that removing the image file frees its space."""
    attached = Path("/sys/block", Path(device).name, "loop")
    deadline = time.monotonic() + FREED_S_MAX
    while attached.exists():
        if time.monotonic() > deadline:
            print(f"{device} is still in use, so its image still takes up space", file=sys.stderr)
            return
        time.sleep(POLL_S)


def _run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
