"""The content of blocks that the disk had no room to cache, in memory for their readers.

Owns: the content, within a bound. Does not know: the store, rows, why the disk is full.
Tasks: only the event loop calls this module.
"""

from typing import Final

from s3fs_meta.cache.fetching.arrived_content import Content
from s3fs_meta.errors import NotLocalError
from s3fs_meta.limits import ARRIVED_BYTES_MAX
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import BlockId

_KEPT_BLOCKS_MIN: Final = 2  # even a small read may need two blocks


class UncachedContent:
    """Content of the newest blocks: at most ARRIVED_BYTES_MAX bytes, or two larger blocks."""

    def __init__(self) -> None:
        self._contents: dict[BlockId, tuple[bytes | None, bytes]] = {}  # content hash, content
        self.size_bytes = 0

    def add(self, located: Located, content: Content) -> None:
        """Keep the verified content of a block; drop the oldest content beyond the bound."""
        self.drop(located.block)
        self._contents[located.block] = located.hash, bytes(content)
        self.size_bytes += len(content)
        while self.size_bytes > ARRIVED_BYTES_MAX and len(self._contents) > _KEPT_BLOCKS_MIN:
            self.drop(next(iter(self._contents)))

    def has(self, located: Located) -> bool:
        """Return whether the content of a block is in memory."""
        found = self._contents.get(located.block)
        return found is not None and found[0] == located.hash

    def read(self, located: Located, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)`` of a block.

        Raises:
            NotLocalError: the content is no longer in memory; the caller fetches the block again.
        """
        if not self.has(located):
            raise NotLocalError(located.block)
        return self._contents[located.block][1][start:stop]

    def drop(self, block: BlockId) -> None:
        """Drop the content of a block, if it is in memory."""
        found = self._contents.pop(block, None)
        if found is not None:
            self.size_bytes -= len(found[1])

    def clear(self) -> None:
        """Drop all content, because the disk now has room for block files."""
        self._contents.clear()
        self.size_bytes = 0
