"""Read-ahead: fetching the next blocks for a sequential reader before it requests them.

Owns: the choice of blocks, and the bound on queued blocks. Does not know: requests.
Tasks: handlers of read call ``note``; ``run`` fetches with READAHEAD_WORKERS tasks.
"""

import trio

from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.cache.fetching.read_coalescing import runs
from s3fs_meta.fs.open_files import OpenFiles, OpenInode
from s3fs_meta.limits import (
    RANGE_BUFFERS_IDLE_S,
    READAHEAD_GROWTH,
    READAHEAD_REQUESTS_MAX,
    READAHEAD_RUN_BYTES,
    READAHEAD_WORKERS,
)
from s3fs_meta.memory_allocator import range_buffers
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import BlockIndex, Ino


class ReadAhead:
    """The read-ahead of one mount. While its queue is full, no blocks are added."""

    def __init__(
        self, db: Database, cache: BlockCache, open_files: OpenFiles, block_bytes: int
    ) -> None:
        self._db = db
        self._cache = cache
        self._open_files = open_files
        self._block_bytes = block_bytes
        self._fetched = trio.Event()  # set each time a run of blocks has been fetched
        self._send, self._receive = trio.open_memory_channel[list[Located]](READAHEAD_REQUESTS_MAX)

    @property
    def window_blocks_max(self) -> int:
        """Return the maximum number of blocks to read ahead for one file."""
        return max(self._cache.ahead_bytes_max // self._block_bytes, 1)

    @property
    def run_blocks(self) -> int:
        """Return the number of blocks to fetch together, which depends on the size of the cache."""
        return max(min(READAHEAD_RUN_BYTES // self._block_bytes, self.window_blocks_max // 2), 1)

    def note(self, ino: Ino, offset: int, stop: int) -> None:
        """Record a read of ``[offset, stop)``; if reads are sequential, queue the next blocks.

        A second call for the same read has no effect. Never yields to other tasks.
        """
        record = self._open_files.being_read(ino)
        if record is None or stop == record.read_position:
            return
        before, record.read_position = record.read_position, stop
        length = stop - offset
        # The kernel's own read-ahead may send two requests that arrive in reverse order.
        if before < 0 or not -2 * length <= offset - before <= length:
            record.ahead_blocks = record.requested_until = 0
            return
        index = (stop - 1) // self._block_bytes
        if index + record.ahead_blocks >= record.requested_until:
            self._ask(ino, record, index)

    def _ask(self, ino: Ino, record: OpenInode, index: int) -> None:
        """Queue the uncached blocks of the read-ahead window, and enlarge the window.

        The window ends at the end of a run. Runs start at multiples of their length in the file, like
        the packs of a file that was written sequentially. So blocks are queued once per run; all
        other reads only compare two numbers.
        """
        run_blocks = self.run_blocks
        record.ahead_blocks = min(
            max(READAHEAD_GROWTH * record.ahead_blocks, run_blocks), self.window_blocks_max
        )
        first = max(index + 1, record.requested_until)
        last = (index + record.ahead_blocks) // run_blocks * run_blocks
        last += run_blocks - 1
        record.requested_until = last + 1
        found = block_map.locate_range(self._db, ino, BlockIndex(first), BlockIndex(last))
        wanted = [each for each in found.values() if each.state is None and each.pack is not None]
        try:
            for run in runs(wanted, plain_bytes_max=run_blocks * self._block_bytes):
                self._send.send_nowait(run)
        except trio.WouldBlock:
            record.requested_until = 0

    async def run(self) -> None:
        """Fetch the queued runs of blocks, up to READAHEAD_WORKERS at a time, until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(READAHEAD_WORKERS):
                    nursery.start_soon(self._work)
                await self._free_idle()
        finally:
            self._free()

    async def _work(self) -> None:
        async for run in self._receive:
            range_buffers.keep(READAHEAD_WORKERS)
            await self._cache.fetch_run(run)
            self._fetched.set()

    async def _free_idle(self) -> None:
        """Free the buffers of read-ahead after RANGE_BUFFERS_IDLE_S without a fetch."""
        while True:
            await self._fetched.wait()
            while self._fetched.is_set():
                self._fetched = trio.Event()
                await trio.sleep(RANGE_BUFFERS_IDLE_S)
            self._free()

    def _free(self) -> None:
        self._cache.fetcher.arrived_content.clear()
        range_buffers.free()
