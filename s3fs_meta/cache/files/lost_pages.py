"""The pages of a file that the kernel could not write to the disk, and has dropped from memory.

Owns: finding such pages. Does not know: block files, the repair of lost bytes.
Why: after a failed write the kernel marks the page as clean, and may drop it from memory at any
time. If the disk's filesystem has allocated the extent of the page without writing it, the page
then reads as zeros. ext4 and XFS report such an extent as unwritten. Btrfs reports a hole, as for a
gap in the file, so on Btrfs no lost page is found.
Sources: Documentation/filesystems/fiemap.rst; lseek(2), SEEK_HOLE: a page in memory is not a hole.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from typing import Final

_FIEMAP: Final = 0xC020660B  # request number of FS_IOC_FIEMAP
# fields of a request: start, length, flags, mapped extents, maximum extents, reserved
_REQUEST: Final = struct.Struct("=QQIIII")
# fields of an extent: offset in the file, offset on the disk, length, flags
_EXTENT: Final = struct.Struct("=QQQ16xI12x")
_EXTENTS_AT_ONCE: Final = 64
_LAST: Final = 0x1
_UNWRITTEN: Final = 0x800


def first_lost_byte(fd: int, trusted_bytes: int) -> int | None:
    """Return the offset of the first byte known to be lost, or None. The call blocks.

    Args:
        fd: an open file without dirty pages.
        trusted_bytes: leading bytes of the file that are durable.
    """
    size_bytes = os.fstat(fd).st_size
    for start, stop in _unwritten(fd, trusted_bytes, size_bytes):
        hole = os.lseek(fd, start, os.SEEK_HOLE)
        if hole < stop:
            return hole
    return None


def _unwritten(fd: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range that the filesystem has allocated but not written."""
    while start < stop:
        buffer = bytearray(_REQUEST.size + _EXTENTS_AT_ONCE * _EXTENT.size)
        _REQUEST.pack_into(buffer, 0, start, stop - start, 0, 0, _EXTENTS_AT_ONCE, 0)
        try:
            fcntl.ioctl(fd, _FIEMAP, buffer, True)
        except OSError:  # EOPNOTSUPP: the filesystem of the disk has no extents
            return
        count, after = _REQUEST.unpack_from(buffer)[3], stop
        for number in range(count):
            offset, _place, length, flags = _EXTENT.unpack_from(
                buffer, _REQUEST.size + number * _EXTENT.size
            )
            if flags & _UNWRITTEN:
                yield max(offset, start), min(offset + length, stop)
            if flags & _LAST:
                return
            after = offset + length
        start = after
