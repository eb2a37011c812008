"""Requests and answers as the kernel has them, where neither libfuse nor pyfuse3 comes between.

Owns: the layout of these structures, and flags of INIT. Does not know: what they mean.
Source: linux/fuse.h. Handles are left out: a file's is its inode number.
"""

import os
import struct
from typing import Final

from s3fs_meta.fuse.extension import pyfuse3

# Flags of INIT.
DONT_MASK: Final = 1 << 6  # the umask is ours
NO_OPEN: Final = 1 << 17
PARALLEL_DIROPS: Final = 1 << 18
CACHE_SYMLINKS: Final = 1 << 23
NO_OPENDIR: Final = 1 << 24
HANDLE_KILLPRIV_V2: Final = 1 << 28  # a request says when set-user-ID bits go

LSEEK: Final = struct.Struct("=8xqI4x")  # offset, whence
LSEEK_OUT: Final = struct.Struct("=q")
FALLOCATE: Final = struct.Struct("=8xqqI4x")  # offset, length, mode
# offset, inode that is written, offset there, length
COPY_FILE_RANGE: Final = struct.Struct("=8xqQ8xqq8x")
WRITE_OUT: Final = struct.Struct("=I4x")
IOCTL: Final = struct.Struct("=12xI8xI4x")  # command, bytes that follow
IOCTL_OUT: Final = bytes(16)  # the result, and what only unrestricted commands need

# Fields that stay 0: the attributes, which the kernel ignores, the device, which it knows, and
# reserved space. The mask is that of linux/stat.h.
_STATX_OUT: Final = struct.Struct("=QI20xII8xIIIH2xQQQ8x" + 4 * "qI4x" + "II120x")
_STATX_BASIC_STATS: Final = 0x7FF
_STATX_BTIME: Final = 0x800
_SECOND_NS: Final = 1_000_000_000


def statx_out(entry: pyfuse3.EntryAttributes, btime_ns: int) -> bytes:
    """Return the answer to statx: attributes, and the birth time."""
    timeout_s = int(entry.attr_timeout)
    times_ns = (entry.st_atime_ns, btime_ns, entry.st_ctime_ns, entry.st_mtime_ns)
    return _STATX_OUT.pack(
        timeout_s,
        int((entry.attr_timeout - timeout_s) * _SECOND_NS),
        _STATX_BASIC_STATS | _STATX_BTIME,
        entry.st_blksize,
        entry.st_nlink,
        entry.st_uid,
        entry.st_gid,
        entry.st_mode,
        entry.st_ino,
        entry.st_size,
        entry.st_blocks,
        *(part for time_ns in times_ns for part in divmod(time_ns, _SECOND_NS)),
        os.major(entry.st_rdev),
        os.minor(entry.st_rdev),
    )
