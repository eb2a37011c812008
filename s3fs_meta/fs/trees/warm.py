"""Warming: downloading the content of trees into the cache, pack by pack.

Owns: finding the missing blocks of trees, checking that they fit, the download. Does not know: names,
the control socket, pins (``pins``).
Blocks are downloaded in the order of their packs, in runs with small gaps, by WARM_WORKERS tasks. The
size of a run depends on the speed of the previous run, because a reader waits for a complete run.
Tasks: one per request ``warm``, and one of ``pins``. A cancelled call keeps the downloaded blocks.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import trio

from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.cache.fetching.read_coalescing import runs
from s3fs_meta.cache.slices import slices
from s3fs_meta.errors import (
    BadRowError,
    CorruptionError,
    DamagedDatabaseError,
    NoSpaceLeftError,
    ObjectMissingError,
    S3fsError,
)
from s3fs_meta.fs.trees.tree_walk import walk
from s3fs_meta.limits import (
    CACHED_BLOCKS_MAX,
    WARM_GAP_BYTES,
    WARM_RUN_BYTES,
    WARM_RUN_BYTES_MIN,
    WARM_RUN_S,
    WARM_WORKERS,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import blocks
from s3fs_meta.meta.tables.block_map import Located, of_row
from s3fs_meta.meta.trees.tree_content import TreeBlock
from s3fs_meta.model import BlockId, BlockRow, BlockState, Ino, PackId

_log = logging.getLogger(__name__)


class Warmed(NamedTuple):
    """The result of warming trees; equal blocks are counted once."""

    total_bytes: int
    cached_bytes: int  # number of cached bytes, including dirty blocks
    fetched_bytes: int
    error: S3fsError | None  # first error of the downloads


class TreeContent:
    """The blocks of trees, and the blocks that are missing in the cache."""

    def __init__(
        self,
        cache: BlockCache,
        *,
        may_exceed: bool = False,
        blocks_max: int = CACHED_BLOCKS_MAX,
    ) -> None:
        """Create an empty list of blocks.

        Args:
            cache: the cache.
            may_exceed: add the sizes of blocks that a cache cannot hold to ``over_bytes``, instead
                of raising NoSpaceLeftError.
            blocks_max: the maximum number of blocks in a cache.
        """
        self._cache = cache
        self._blocks_max = blocks_max
        self._may_exceed = may_exceed
        self.over_bytes = 0
        self.sizes: dict[BlockId, int] = {}
        # For each pack, the offsets and numbers of the blocks to download from it.
        self.missing: dict[PackId, list[tuple[int, BlockId]]] = {}
        self.missing_bytes = 0
        self.lost_bytes = 0  # number of bytes that are neither cached nor uploaded
        self.total_bytes = 0
        self.evictable_bytes = 0  # number of bytes in cached blocks that may be evicted

    @property
    def cached_bytes(self) -> int:
        """Return the number of bytes that were cached at the time of the walk."""
        return self.total_bytes - self.missing_bytes - self.lost_bytes

    def take(self, found: Sequence[TreeBlock]) -> None:
        """Add blocks that are not in the list yet.

        Raises:
            NoSpaceLeftError: there are more blocks than any cache can have.
        """
        for one in found:
            if one.block in self.sizes:
                continue
            if len(self.sizes) < self._blocks_max:
                self.sizes[one.block] = one.plain_bytes
                self.total_bytes += one.plain_bytes
                self._count(one)
            elif self._may_exceed:
                self.over_bytes += one.plain_bytes
            else:
                raise NoSpaceLeftError(
                    f"a cache can hold at most {self._blocks_max} blocks, and each small file needs a"
                    " block; warm a part of the tree"
                )

    def _count(self, one: TreeBlock) -> None:
        index = self._cache.index
        held = index.get(one.block)
        if held is not None:
            if held.state is BlockState.CLEAN and not index.is_pinned(one.block):
                self.evictable_bytes += one.plain_bytes
        elif one.pack is None or one.pack_offset is None:
            self.lost_bytes += one.plain_bytes
        else:
            self.missing.setdefault(one.pack, []).append((one.pack_offset, one.block))
            self.missing_bytes += one.plain_bytes


async def content_of(
    db: Database,
    cache: BlockCache,
    roots: Iterable[Ino],
    *,
    may_exceed: bool = False,
    blocks_max: int = CACHED_BLOCKS_MAX,
) -> TreeContent:
    """Return the blocks of trees.

    Raises the same errors as ``TreeContent.take``.
    Yields to other tasks between slices.
    """
    content = TreeContent(cache, may_exceed=may_exceed, blocks_max=blocks_max)
    await walk(db, roots, content.take)
    return content


async def cached_of(db: Database, cache: BlockCache, roots: Iterable[Ino]) -> set[BlockId]:
    """Return the cached blocks in trees of any size. Yields to other tasks between slices."""
    found: set[BlockId] = set()

    def take(some: Sequence[TreeBlock]) -> None:
        found.update(one.block for one in some if one.block in cache.index)

    await walk(db, roots, take)
    return found


class Incomplete(NamedTuple):
    """The number of files that are not completely cached, and the first of these files."""

    files: int
    inos: list[Ino]  # inode numbers of the first files that are not completely cached


async def incomplete(
    db: Database, cache: BlockCache, roots: Iterable[Ino], limit: int
) -> Incomplete:
    """Return the number of files in trees that are not completely cached, and the first *limit*."""
    found: dict[Ino, None] = {}

    def take(some: Sequence[TreeBlock]) -> None:
        found.update((one.ino, None) for one in some if one.block not in cache.index)

    await walk(db, roots, take)
    return Incomplete(len(found), list(found)[:limit])


def mib(size_bytes: int) -> str:
    """Return a size in MiB for a message."""
    return f"{size_bytes / (1 << 20):,.1f} MiB"


def require_room(content: TreeContent, cache: BlockCache) -> None:
    """Raise NoSpaceLeftError if the blocks of trees do not fit into the cache.

    Raises:
        NoSpaceLeftError: the blocks in use leave too little space in the cache or on the disk.
    """
    others_bytes = cache.index.evictable_bytes - content.evictable_bytes
    room_bytes = max(cache.bytes_max - (cache.index.total_bytes - others_bytes), 0)
    if content.missing_bytes > room_bytes:
        raise NoSpaceLeftError(
            f"{mib(content.missing_bytes)} must be downloaded ({mib(content.cached_bytes)} of"
            f" {mib(content.total_bytes)} are cached), but the cache has room for"
            f" {mib(room_bytes)}; raise cachesize (now {mib(cache.bytes_max)}) with s3fs-meta set,"
            " or warm a part of the tree"
        )
    disk_bytes = max(cache.disk.unheld_bytes() + others_bytes, 0)
    if content.missing_bytes > disk_bytes:
        raise NoSpaceLeftError(
            f"{mib(content.missing_bytes)} must be downloaded, but the disk of the cache has only"
            f" {mib(disk_bytes)} free"
        )


def _ignore(_done: int, _total: int) -> None:
    """Ignore the progress; the default of ``on_progress``."""


def _any(_block: BlockId) -> bool:
    return True


async def download(
    db: Database,
    cache: BlockCache,
    content: TreeContent,
    on_progress: Callable[[int, int], None] = _ignore,
    wanted: Callable[[BlockId], bool] = _any,
) -> Warmed:
    """Download the missing blocks of trees; the result contains the first failure.

    If the store is unavailable or the disk is full, the download stops. Damaged blocks are skipped.

    Args:
        db: the database of the mount.
        cache: its cache.
        content: the result of a recent call of ``content_of``.
        on_progress: called with the number of bytes processed so far, and the total.
        wanted: returns whether a missing block is to be downloaded.

    Always yields to other tasks.
    """
    one = _Download(db, cache, content, on_progress, wanted)
    await one.run()
    return await one.result()


class _Download:
    """The download of the blocks of trees that are missing in the cache."""

    def __init__(
        self,
        db: Database,
        cache: BlockCache,
        content: TreeContent,
        on_progress: Callable[[int, int], None],
        wanted: Callable[[BlockId], bool],
    ) -> None:
        self._db = db
        self._cache = cache
        self._content = content
        self._on_progress = on_progress
        self._wanted = wanted
        self._run_bytes = WARM_RUN_BYTES_MIN
        self._done_bytes = 0
        self._error: S3fsError | None = None

    async def run(self) -> None:
        """Download the blocks; stop at an error that would occur with every request."""
        self._on_progress(0, self._content.missing_bytes)
        send, receive = trio.open_memory_channel[list[Located]](0)
        async with trio.open_nursery() as nursery:
            for _ in range(WARM_WORKERS):
                nursery.start_soon(self._work, receive.clone(), nursery.cancel_scope)
            await receive.aclose()
            async with send:
                for pack in sorted(self._content.missing):
                    await self._send_pack(send, self._content.missing[pack])

    async def _send_pack(
        self, send: trio.MemorySendChannel[list[Located]], missing: list[tuple[int, BlockId]]
    ) -> None:
        """Send the missing blocks of a pack to the download workers, in runs."""
        missing.sort()
        for piece in slices([block for _offset, block in missing]):
            left = self._rows(piece)
            while left:
                run = next(
                    runs(left, plain_bytes_max=self._run_bytes, gap_bytes_max=WARM_GAP_BYTES)
                )
                del left[: len(run)]
                await send.send(run)
            await trio.lowlevel.checkpoint()

    def _rows(self, wanted: Sequence[BlockId]) -> list[Located]:
        """Return the current locations of the blocks that are still missing."""
        rows = [self._find(block) for block in wanted if self._wanted(block)]
        return [
            of_row(row)
            for row in rows
            if row is not None and row.pack is not None and row.block not in self._cache.index
        ]

    def _find(self, block: BlockId) -> BlockRow | None:
        """Return the row of a block; note the error if it cannot be read."""
        try:
            return blocks.find(self._db, block)
        except (BadRowError, DamagedDatabaseError) as exc:
            self._error = self._error or exc
            return None

    async def _work(
        self, mine: trio.MemoryReceiveChannel[list[Located]], scope: trio.CancelScope
    ) -> None:
        async with mine:
            async for run in mine:
                try:
                    await self._fetch(run)
                except S3fsError as exc:
                    self._error = self._error or exc
                    scope.cancel()

    async def _fetch(self, run: Sequence[Located]) -> None:
        """Download one run; if the run contains damaged blocks, request its blocks one by one.

        Raises:
            S3fsError: all further runs would also fail.
        """
        began_s = trio.current_time()
        size_bytes = sum(each.plain_bytes for each in run)
        try:
            await self._cache.download_run(run, waits=False)
        except (ObjectMissingError, CorruptionError) as exc:
            _log.info("cannot download a run of blocks from block %d on: %s", run[0].block, exc)
        else:
            took_s = max(trio.current_time() - began_s, 1e-3)
            run_bytes = int(size_bytes / took_s * WARM_RUN_S)
            self._run_bytes = min(max(run_bytes, WARM_RUN_BYTES_MIN), WARM_RUN_BYTES)
        for each in run:
            if each.block not in self._cache.index:
                await self._fetch_alone(each.block)
        self._done_bytes += size_bytes
        self._on_progress(self._done_bytes, self._content.missing_bytes)

    async def _fetch_alone(self, block: BlockId) -> None:
        row = self._find(block)
        if row is None or row.pack is None:
            return  # the block was deleted after the walk, or its row cannot be read
        try:
            await self._cache.fetch(of_row(row))
        except (ObjectMissingError, CorruptionError) as exc:
            self._error = self._error or exc

    async def result(self) -> Warmed:
        """Add up the sizes of the cached blocks, in slices.

        Each of these blocks moves to the end of the eviction order, because it was just requested.
        """
        content, index = self._content, self._cache.index
        cached_bytes = fetched_bytes = 0
        for piece in slices(list(content.sizes.items())):
            for block, size_bytes in piece:
                if block in index:
                    index.used(block)
                    cached_bytes += size_bytes
            await trio.lowlevel.checkpoint()
        for missing in content.missing.values():
            arrived = [block for _offset, block in missing if block in index]
            fetched_bytes += sum(content.sizes[block] for block in arrived)
            await trio.lowlevel.checkpoint()
        return Warmed(content.total_bytes, cached_bytes, fetched_bytes, self._error)
