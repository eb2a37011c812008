"""The length that the kernel has of a file, asked without a request to this daemon.

Owns: finding the file among the open ones of a process. Does not know: why it is asked.
With a writeback cache the kernel knows the length, and the daemon learns it with the last page that
is written back. A system call on the mount would ask the daemon back, and a daemon that is killed
while a thread of it waits for itself cannot end. So the file is found in /proc, and statx(2) is
told not to ask (AT_STATX_DONT_SYNC): the kernel then answers out of its memory.
Source: statx(2); proc_pid_fd(5); fs/fuse/dir.c, fuse_update_get_attr.
"""

import ctypes
import os
import struct
from typing import Final

from s3fs_meta.limits import DESCRIPTORS_EXAMINED_MAX
from s3fs_meta.model import Ino

_libc: Final = ctypes.CDLL(None, use_errno=True)

_AT_FDCWD: Final = -100
_DONT_SYNC: Final = 0x4000
_INO_AND_SIZE: Final = 0x300  # STATX_INO, STATX_SIZE
_STATX: Final = struct.Struct("=32xQQ88xII112x")  # of struct statx: inode, size, device


def kernel_size(pid: int, device: int, ino: Ino) -> int | None:
    """Return the length of a file that a process has open, None if it is not found. Blocking.

    Args:
        pid: of the process, or of one of its threads.
        device: of the mount.
        ino: of the file.
    """
    folder = f"/proc/{pid}/fd"
    try:
        descriptors = os.listdir(folder)[:DESCRIPTORS_EXAMINED_MAX]
    except OSError:
        return None  # it has ended, or is not ours to see
    wanted = (ino, os.major(device), os.minor(device))
    buffer = ctypes.create_string_buffer(_STATX.size)
    for descriptor in descriptors:
        path = f"{folder}/{descriptor}".encode()
        if _libc.statx(_AT_FDCWD, path, _DONT_SYNC, _INO_AND_SIZE, buffer) != 0:
            continue  # closed meanwhile
        found, size_bytes, *its_device = _STATX.unpack(buffer.raw)
        if (found, *its_device) == wanted:
            return int(size_bytes)
    return None
