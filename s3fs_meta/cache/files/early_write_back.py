"""Write-back of block files that starts soon after large writes, before any sync.

Owns: the blocks whose write-back is due. Does not know: whether a block is durable.
Why: an fsync(2) waits for the content of all files, and the kernel writes a dirty page only when it
is old. During a large copy, an fsync would wait for everything since the last sync. Small writes
are left to the next sync, because programs often overwrite or remove small files.
Tasks: the event loop calls ``note``; ``run`` is one task of the writer.
"""

from functools import partial

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.limits import EARLY_WRITE_BYTES
from s3fs_meta.model import BlockId


class EarlyWriteBack:
    """The blocks with recent large writes."""

    def __init__(self, files: BlockFiles) -> None:
        self._files = files
        self._blocks: dict[BlockId, None] = {}
        self._bytes = 0
        self._wanted = trio.Event()

    def note(self, block: BlockId, size_bytes: int) -> None:
        """Record a write of at least EARLY_WRITE_BYTES_MIN into a block."""
        self._blocks[block] = None
        self._bytes += size_bytes
        if self._bytes >= EARLY_WRITE_BYTES:
            self._wanted.set()

    def take(self) -> list[BlockId]:
        """Return the blocks whose write-back is due, and forget them."""
        blocks = list(self._blocks)
        self._blocks.clear()
        self._bytes = 0
        return blocks

    async def run(self) -> None:
        """Start the write-back of blocks after large writes, until cancelled.

        Raises:
            OSError: the disk failed.
        """
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            start = partial(self._files.start_write_back, self.take())
            await in_thread(start)
