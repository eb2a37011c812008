"""The written parts of blocks that are neither in the intent log nor synced with their files.

Owns: the ranges, up to a maximum number and size. If there are more, the ranges are unknown until
the next sync of the files.
Does not know: files, rows, the log.
Tasks: the event loop.
"""

from collections.abc import Iterable

from s3fs_meta.limits import INTENT_CONTENT_BYTES_MAX, INTENT_PIECES_MAX
from s3fs_meta.model import BlockId

Range = tuple[BlockId, int, int]  # a byte range: block, first offset, offset after the last byte


class UnloggedRanges:
    """The ranges that were written since the last log entry or the last sync of files."""

    def __init__(self) -> None:
        """Start with unknown ranges, because a killed daemon may have written blocks."""
        self._ranges: list[Range] = []
        self._bytes = 0
        # length of each block that log entries have made durable since the last sync
        self._logged: dict[BlockId, int] = {}
        self.are_known = False

    def add(self, block: BlockId, start: int, stop: int) -> None:
        """Record a write; a write that continues the last range extends that range."""
        if not self.are_known:
            return
        ranges = self._ranges
        if ranges and ranges[-1][0] == block and ranges[-1][1] <= start <= ranges[-1][2]:
            first, end = ranges[-1][1], max(ranges[-1][2], stop)
            self._bytes += end - ranges[-1][2]
            ranges[-1] = (block, first, end)
        else:
            ranges.append((block, start, stop))
            self._bytes += stop - start
        if self._bytes > INTENT_CONTENT_BYTES_MAX or len(ranges) > INTENT_PIECES_MAX:
            self.give_up()

    def give_up(self) -> None:
        """Forget the ranges; then only a sync of the files can make the content durable."""
        self.are_known = False
        self._clear()

    def begin_sync(self) -> None:
        """Forget all ranges, because a sync of all written files begins."""
        self.are_known = True
        self._clear()

    def end_sync(self) -> None:
        """Forget the logged lengths, because the rows have the synced lengths of all files."""
        self._logged.clear()

    def take(self) -> list[Range]:
        """Return the ranges to log, in the order of their writes, and forget them."""
        taken = self._ranges
        self._clear()
        return taken

    def note_logged(self, ranges: Iterable[Range]) -> None:
        """Record that ranges returned by ``take`` are now durable in the log."""
        for block, _start, stop in ranges:
            self._logged[block] = max(self._logged.get(block, 0), stop)

    def covers(self, block: BlockId, content_bytes: int) -> bool:
        """Return whether the logged content of a block ends exactly at *content_bytes*."""
        return self._logged.get(block) == content_bytes

    def _clear(self) -> None:
        self._ranges = []
        self._bytes = 0
