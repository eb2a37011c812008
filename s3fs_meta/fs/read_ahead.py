"""Blocks that a sequential reader will want, fetched before it asks.

Owns: which blocks, and the bound on how many wait. Does not know: requests.
Tasks: handlers of read call ``sequential``; READAHEAD_WORKERS of ``run`` fetch.
"""

import trio

from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.fs.open_files import OpenInode
from s3fs_meta.limits import READAHEAD_BLOCKS_MAX, READAHEAD_REQUESTS_MAX, READAHEAD_WORKERS
from s3fs_meta.meta import block_map
from s3fs_meta.meta.block_map import Located
from s3fs_meta.meta.database import Database
from s3fs_meta.model import BlockIndex, Ino


class ReadAhead:
    """The read-ahead of one mount. Requests that find the queue full are dropped."""

    def __init__(self, db: Database, cache: BlockCache) -> None:
        self._db = db
        self._cache = cache
        self._send, self._receive = trio.open_memory_channel[list[Located]](READAHEAD_REQUESTS_MAX)

    def sequential(self, ino: Ino, record: OpenInode, index: BlockIndex) -> None:
        """Note that a sequential reader is in block *index*; ask for what follows.

        It asks once for each half of the window, so most reads cost one comparison.
        Schedule point: never.
        """
        if index + READAHEAD_BLOCKS_MAX // 2 < record.asked_until:
            return
        first = max(index + 1, record.asked_until)
        last = index + READAHEAD_BLOCKS_MAX
        record.asked_until = last + 1
        found = block_map.locate_range(self._db, ino, BlockIndex(first), BlockIndex(last))
        wanted = [each for each in found.values() if not self._cache.is_local(each)]
        if wanted:
            try:
                self._send.send_nowait(wanted)
            except trio.WouldBlock:
                record.asked_until = 0

    async def run(self) -> None:
        """Fetch what was asked for, until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(READAHEAD_WORKERS):
                nursery.start_soon(self._work)

    async def _work(self) -> None:
        async for wanted in self._receive:
            await self._cache.read_ahead(wanted)
