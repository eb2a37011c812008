"""An ext4 filesystem on a loop device, whose power a test can cut.

The cut is EXT4_IOC_SHUTDOWN of fs/ext4/ioctl.c. Afterwards nothing reaches the disk, and every call
fails with EIO. With LOGFLUSH, ext4 writes its journal first; with NOLOGFLUSH, it does not.
"""

import fcntl
import functools
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.polling import wait_until

_SHUTDOWN: Final = 0x8004587D  # The number of the ioctl request EXT4_IOC_SHUTDOWN.
_LOGFLUSH: Final = 1
_NOLOGFLUSH: Final = 2
IMAGE_BYTES: Final = 200 << 20  # The disk image is a sparse file.


class LoopDisk:
    """A sparse file that contains an ext4 filesystem, and its mountpoint."""

    def __init__(self, image: Path, mountpoint: Path) -> None:
        self.image, self.mountpoint = image, mountpoint
        self._is_cut = False
        mountpoint.mkdir()
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)

    def mount(self) -> None:
        """Mount the disk; after a power cut, ext4 replays its journal."""
        subprocess.run(["mount", "-o", "loop", self.image, self.mountpoint], check=True)

    def cut(self, *, journal_written: bool) -> None:
        """Discard all data not yet on the disk; with *journal_written*, write the journal first."""
        fd = os.open(self.mountpoint, os.O_RDONLY)
        try:
            how = _LOGFLUSH if journal_written else _NOLOGFLUSH
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("i", how))
        finally:
            os.close(fd)
        self._is_cut = True

    def unmount(self) -> None:
        """Unmount the disk if it is mounted, and remove its loop device.

        After a cut, the image is copied, because the mount namespace of another program may hold
        the old device, whose ext4 refuses all requests.
        """
        if self.mountpoint.is_mount():
            self._detach()
        if self._is_cut:
            copy = self.image.with_suffix(".copy")
            subprocess.run(["cp", "--sparse=always", self.image, copy], check=True)
            copy.replace(self.image)
            self._is_cut = False

    def _detach(self) -> None:
        """Unmount the disk, and wait for the processes of a killed daemon that still use it."""

        def is_unmounted() -> bool:
            return subprocess.run(["umount", self.mountpoint], check=False).returncode == 0

        wait_until(is_unmounted, "the disk stayed busy")


@functools.cache
def why_no_loop_disk() -> str:
    """Return the reason why loop devices are unavailable, or an empty string."""
    if os.geteuid() != 0:
        return "loop devices need root"
    if shutil.which("mkfs.ext4") is None:
        return "mkfs.ext4 is not installed (Debian package e2fsprogs)"
    with tempfile.TemporaryDirectory() as home:
        disk = LoopDisk(Path(home) / "image", Path(home) / "mnt")
        try:
            disk.mount()
            disk.cut(journal_written=False)
        except (OSError, subprocess.CalledProcessError) as exc:
            return f"no ext4 on a loop device can be shut down: {exc}"
        finally:
            disk.unmount()
    return ""
