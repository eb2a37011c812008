"""The content of blocks that read-ahead has fetched, in memory until it is read.

Owns: the content, within a bound. Does not know: the store, rows, block files.
Each block is also in its file, so any content may be dropped at any time.
The content is a view of the range that was received, so memory is freed only when the content of all
blocks of that range was dropped. Therefore the bound counts complete ranges.
A sequential reader needs the oldest range first. So while the bound is reached, later ranges are not
kept, unless the oldest range was not read for ARRIVED_S_MAX.
Tasks: only the event loop calls this module.
"""

from s3fs_meta.limits import ARRIVED_BYTES_MAX, ARRIVED_S_MAX
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import BlockId

Content = bytes | memoryview


class ArrivedRange:
    """One received range, and the blocks of which the content is kept."""

    def __init__(self, size_bytes: int, now_s: float) -> None:
        self.size_bytes = size_bytes
        self.since_s = now_s
        self.blocks: set[BlockId] = set()


class ArrivedContent:
    """Content of at most ARRIVED_BYTES_MAX in ranges, in the order of their arrival."""

    def __init__(self) -> None:
        self._contents: dict[BlockId, tuple[bytes | None, Content, ArrivedRange]] = {}
        self._ranges: dict[ArrivedRange, None] = {}
        self.size_bytes = 0

    def add(self, located: Located, content: Content, source: ArrivedRange) -> None:
        """Keep the verified content of a block if the bound permits it.

        Args:
            located: the block.
            content: the complete content; a view of the range.
            source: the range; the same object for all blocks of the range.
        """
        self.drop(located.block)
        if source not in self._ranges:
            if not self._has_room(source):
                return
            self._ranges[source] = None
            self.size_bytes += source.size_bytes
        self._contents[located.block] = located.hash, content, source
        source.blocks.add(located.block)

    def _has_room(self, source: ArrivedRange) -> bool:
        """Return whether a range may be kept; first drop old ranges that no reader needs."""
        for oldest in list(self._ranges):
            if source.since_s - oldest.since_s <= ARRIVED_S_MAX:
                break
            self._drop_range(oldest)
        return self.size_bytes + source.size_bytes <= ARRIVED_BYTES_MAX

    def take(self, located: Located, stop: int) -> Content | None:
        """Return the content of a block for a read that ends at *stop*, or None.

        A read of the last byte drops the content, because the kernel keeps what it has read.
        """
        found = self._contents.get(located.block)
        if found is None:
            return None
        if stop == located.plain_bytes:
            self.drop(located.block)
        return found[1] if found[0] == located.hash else None

    def drop(self, block: BlockId) -> None:
        """Drop the content of a block; ignore other blocks."""
        found = self._contents.pop(block, None)
        if found is None:
            return
        source = found[2]
        source.blocks.remove(block)
        if not source.blocks:
            self._drop_range(source)

    def clear(self) -> None:
        """Drop all content."""
        for source in list(self._ranges):
            self._drop_range(source)

    def _drop_range(self, source: ArrivedRange) -> None:
        del self._ranges[source]
        self.size_bytes -= source.size_bytes
        for block in source.blocks:
            del self._contents[block]
        source.blocks.clear()
