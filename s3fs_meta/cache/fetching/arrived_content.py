"""The content of blocks that read-ahead has fetched, in memory until it is read.

Owns: the content, within a bound. Does not know: the store, rows, block files.
The file of each block has the same content, so content in memory may be dropped at any time.
Uncompressed content is a view of the received range, so the bound counts complete ranges. A reader
needs the oldest range first, so once the bound is reached, later ranges are not kept. An unread
range is dropped when a range arrives more than ARRIVED_S_MAX after it.
Tasks: only the event loop calls this module.
"""

from s3fs_meta.limits import ARRIVED_BYTES_MAX, ARRIVED_S_MAX
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import BlockId

Content = bytes | memoryview


class ArrivedRange:
    """One received range, and its blocks whose content is in memory."""

    def __init__(self, memory_bytes: int, now_s: float) -> None:
        self.memory_bytes = memory_bytes  # size of the range, which views keep allocated
        self.since_s = now_s
        self.blocks: set[BlockId] = set()
        self.has_views = False
        self.counted_bytes = 0  # size of decompressed content, plus *memory_bytes* if views exist

    def needed_bytes(self, content: Content) -> int:
        """Return how many more bytes of memory are needed to keep *content*."""
        if isinstance(content, bytes):
            return len(content)
        return 0 if self.has_views else self.memory_bytes


class ArrivedContent:
    """The content of ranges in the order of arrival, at most ARRIVED_BYTES_MAX in total."""

    def __init__(self) -> None:
        self._contents: dict[BlockId, tuple[bytes | None, Content, ArrivedRange]] = {}
        self._ranges: dict[ArrivedRange, None] = {}
        self.size_bytes = 0

    def add(self, located: Located, content: Content, source: ArrivedRange) -> None:
        """Keep the verified content of a block if the bound permits it.

        Args:
            located: the block.
            content: the complete content: a view of the range, or decompressed bytes.
            source: the range; the same object for all blocks of the range.
        """
        self.drop(located.block)
        needed_bytes = source.needed_bytes(content)
        if not self._has_room(source, needed_bytes):
            return
        self._ranges[source] = None
        source.has_views |= not isinstance(content, bytes)
        source.counted_bytes += needed_bytes
        self.size_bytes += needed_bytes
        self._contents[located.block] = located.hash, content, source
        source.blocks.add(located.block)

    def _has_room(self, source: ArrivedRange, needed_bytes: int) -> bool:
        """Drop ranges that were unread for too long; return whether new content may be kept."""
        for oldest in list(self._ranges):
            if source.since_s - oldest.since_s <= ARRIVED_S_MAX:
                break
            self._drop_range(oldest)
        return self.size_bytes + needed_bytes <= ARRIVED_BYTES_MAX

    def take(self, located: Located, stop: int) -> Content | None:
        """Return the content of a block for a read that ends at *stop*, or None.

        A read of the last byte drops the content, because the kernel caches the bytes it has read.
        """
        found = self._contents.get(located.block)
        if found is None:
            return None
        if stop == located.plain_bytes:
            self.drop(located.block)
        return found[1] if found[0] == located.hash else None

    def drop(self, block: BlockId) -> None:
        """Drop the content of a block, if it is in memory."""
        found = self._contents.pop(block, None)
        if found is None:
            return
        source = found[2]
        source.blocks.remove(block)
        if not source.blocks:
            self._drop_range(source)

    def clear(self) -> None:
        """Drop the content of all ranges."""
        for source in list(self._ranges):
            self._drop_range(source)

    def _drop_range(self, source: ArrivedRange) -> None:
        del self._ranges[source]
        self.size_bytes -= source.counted_bytes
        source.counted_bytes, source.has_views = 0, False
        for block in source.blocks:
            del self._contents[block]
        source.blocks.clear()
