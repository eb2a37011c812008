"""The record of lost data: parts of files whose bytes are neither in the cache nor in the bucket.

Owns: the extended attribute that lists the lost ranges of a file.
Does not know: the cause of the loss.
Keeps: lost bytes are never silently replaced by zeros. Each part of a file that becomes a hole is
listed in the attribute and reported with its path. All other parts of the file are unchanged.
"""

from itertools import groupby
from typing import Final

from s3fs_meta.check.context import Examination
from s3fs_meta.counted import counted
from s3fs_meta.limits import XATTR_VALUE_BYTES_MAX
from s3fs_meta.meta import lost_ranges
from s3fs_meta.meta.lost_ranges import ATTRIBUTE
from s3fs_meta.meta.tables import inodes, xattrs
from s3fs_meta.model import Ino

# Maximum number of ranges that fit into an extended attribute's value.
_RANGES_MAX: Final = XATTR_VALUE_BYTES_MAX // len(b"0-1\n")


def record(exam: Examination, places_query: str) -> None:
    """Record the missing ends of blocks as lost; turn completely lost blocks into holes.

    Requires an open transaction.

    Args:
        exam: the run of fsck.
        places_query: a query for the blocks: (ino, block_index, number of available bytes).
    """
    size = exam.block_bytes
    rows = exam.collected(f"SELECT * FROM ({places_query}) ORDER BY 1, 2")
    for ino, places in groupby(rows, key=lambda row: Ino(row[0])):
        lost = _Ranges()
        for _, index, available in places:
            if not available:
                exam.run("DELETE FROM block_map WHERE ino = ? AND block_index = ?", (ino, index))
            lost.add(index * size + available, (index + 1) * size)
        _remember(exam, ino, lost)


class _Ranges:
    """A list of ascending byte ranges; merges adjacent ranges and drops ranges above a limit."""

    def __init__(self) -> None:
        self.blocks = 0
        self._ranges: list[range] = []
        self._more = False

    def add(self, start: int, stop: int) -> None:
        """Append the byte range of one block; ranges must be added in ascending order."""
        self.blocks += 1
        if self._ranges and self._ranges[-1].stop == start:
            self._ranges[-1] = range(self._ranges[-1].start, stop)
        elif len(self._ranges) < _RANGES_MAX:
            self._ranges.append(range(start, stop))
        else:
            self._more = True

    def all(self) -> list[range]:
        """Return the ranges; if some were dropped, include all bytes after the last range."""
        return lost_ranges.and_all_after(self._ranges) if self._more else self._ranges


def _remember(exam: Examination, ino: Ino, lost: _Ranges) -> None:
    exam.touched()
    file = inodes.find(exam.db, ino)
    if file is None:
        return
    ranges = lost.all()
    if not _has_block_after(exam, ino, file.size_bytes):
        ranges = lost_ranges.cut_at(ranges, file.size_bytes)
    known = lost_ranges.parse(xattrs.find(exam.db, ino, ATTRIBUTE) or b"")
    xattrs.set(exam.db, ino, ATTRIBUTE, lost_ranges.encoded([*known, *ranges]))
    exam.report.remember(
        f"lost, now read as zeros: {counted(lost.blocks, 'block')} of inode {ino};"
        f" attribute {ATTRIBUTE.decode()} lists the lost bytes"
    )


def _has_block_after(exam: Examination, ino: Ino, size_bytes: int) -> bool:
    """Return whether a file has a block after its end, so that I59 will extend the file."""
    sql = "SELECT 1 FROM block_map WHERE ino = ? AND block_index * ? >= ? LIMIT 1"
    return exam.db.one(sql, (ino, exam.block_bytes, size_bytes)) is not None
