"""The local filesystem that contains the database file: its type, and copy-on-write.

Owns: refusing WAL on filesystems where its shared memory does not work, and NOCOW for Btrfs.
Does not know: SQLite.
Source: statfs(2), ioctl_iflags(2), https://www.sqlite.org/wal.html ("all processes using a
database must be on the same host computer").
"""

import array
import ctypes
import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from s3fs_meta.errors import UsageError

# f_type values of filesystems that other hosts can change, or whose mmap is not coherent.
NETWORK_FILESYSTEMS: Final[Mapping[int, str]] = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB2",
    0xFF534D42: "CIFS",
    0x564C: "NCP",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x73757245: "Coda",
    0x01021997: "9p",
    0x65735546: "FUSE",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
    0x786F4256: "a VirtualBox shared folder",
    0xBACBACBC: "a VMware shared folder",
}

_STATFS_BYTES: Final = 256  # struct statfs has 120 bytes, and f_type is its first word
_FS_IOC_GETFLAGS: Final = 0x80086601
_FS_IOC_SETFLAGS: Final = 0x40086602
_FS_NOCOW_FL: Final = 0x00800000


def filesystem_type(path: Path) -> int:
    """Return statfs(2)'s f_type for the nearest existing parent of *path*."""
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = (ctypes.c_ulong * (_STATFS_BYTES // ctypes.sizeof(ctypes.c_ulong)))()
    if libc.statfs(os.fsencode(existing), ctypes.byref(buffer)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(existing))
    return int(buffer[0]) & 0xFFFFFFFF


def refuse_wal_on_network(path: Path) -> None:
    """Raise UsageError if a write-ahead log is unsafe on the filesystem of a path.

    Raises:
        UsageError: the path is on a network filesystem; the message suggests an alternative.
    """
    name = NETWORK_FILESYSTEMS.get(filesystem_type(path))
    if name is not None:
        raise UsageError(
            f"journal_mode=wal does not work on {name}, the filesystem of {str(path)!r};"
            " choose a --cachedir on a local disk, or journal_mode=truncate"
        )


def create_empty(path: Path) -> None:
    """Create the empty database file, with NOCOW if the filesystem supports it.

    Must run before SQLite opens the file, because closing a descriptor releases SQLite's locks.

    Raises:
        FileExistsError: the file already exists.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        set_nocow(fd)
    finally:
        os.close(fd)


def set_nocow(fd: int) -> bool:
    """Disable copy-on-write for an empty file; return whether the filesystem supports this.

    Only Btrfs accepts the flag. The database is then overwritten in place instead of being
    fragmented into a million extents. It loses the checksums of Btrfs, but packs and images have
    their own checksums.
    """
    # The ioctl number encodes the size of a long, but the kernel reads an int.
    flags = array.array("i", [0, 0])
    try:
        fcntl.ioctl(fd, _FS_IOC_GETFLAGS, flags)
        flags[0] |= _FS_NOCOW_FL
        fcntl.ioctl(fd, _FS_IOC_SETFLAGS, flags)
    except OSError:  # ENOTTY or EOPNOTSUPP: the filesystem does not support the flag
        return False
    return True


def sync_directory(path: Path) -> None:
    """Sync a directory, so that the names in it are durable. This call blocks."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
