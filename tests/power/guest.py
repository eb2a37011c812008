"""The program that ``test_user_mode_linux`` runs in user-mode Linux until it is killed.

It prints a line on its console at the start and at the end of each change. Run it as a module with
the URL of a filesystem, mount options and a seed.
"""

import contextlib
import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.power.numbered_changes import NumberedChanges

DISK: Final = Path("/run/disk")
MOUNTPOINT: Final = Path("/run/mnt")
_FINIT_MODULE: Final = 313  # The number of the system call finit_module(2) on x86_64.


def say(text: str) -> None:
    """Print a line to the console and flush it."""
    os.write(1, f"{text}\n".encode())


def load_fuse() -> None:
    """Load the kernel's FUSE module if FUSE is not built in; the virtual machine has no kmod."""
    for path in Path("/usr/lib/uml/modules", os.uname().release).rglob("fuse.ko"):
        with path.open("rb") as file:
            ctypes.CDLL(None).syscall(_FINIT_MODULE, file.fileno(), b"", 0)


def main(url: str, options: str, seed: int) -> None:
    """Mount the filesystem, and make changes until the virtual machine is killed."""
    load_fuse()
    DISK.mkdir()
    MOUNTPOINT.mkdir()
    subprocess.run(["mount", "-t", "ext4", "/dev/ubda", DISK], check=True)
    command = [sys.executable, "-m", "s3fs_meta", "mount", "-o", options, url, str(MOUNTPOINT)]
    subprocess.run([*command, "--cachedir", str(DISK / "state")], check=True)
    (MOUNTPOINT / "d").mkdir()
    fd = os.open(MOUNTPOINT, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    NumberedChanges(seed).perform(
        MOUNTPOINT,
        lambda number: say(f"began {number}"),
        lambda number: say(f"ended {number}"),
    )


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
