"""One filesystem for the pages: its points in time, its files and their content.

Owns: the open bucket, the newest txg that pages show, reading content. Does not know: HTTP.
Keeps: the bucket is only read. At most PAST_POINTS_OPEN_MAX databases are on the disk, unless more
are in use. Content that the bucket has lost raises an error, and never reads as zeros.
Tasks: any task; ``opened`` runs a background task.
"""

import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import trio

from s3fs_meta.browse.limits import (
    BROWSE_CHANGED_MAX,
    BROWSE_FRESH_S,
    BROWSE_RUNS_MAX,
    BROWSE_SIZES_MAX,
)
from s3fs_meta.browse.sources.cached import Cached
from s3fs_meta.cache.disk_space import DiskSpace
from s3fs_meta.cache.fetching.fetcher import Found
from s3fs_meta.errors import NoEntryError, NoInodeError, PastUnavailableError, quoted
from s3fs_meta.fs.past.open_points import OpenPoint, OpenPoints
from s3fs_meta.limits import CONTENT_RUN_BYTES
from s3fs_meta.meta.tables import block_map, dentries, inodes, properties
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.meta.trees import tree_paths
from s3fs_meta.meta.trees.folder_sizes import FolderSizes
from s3fs_meta.meta.trees.tree_diff import Difference
from s3fs_meta.model import NEWEST, ROOT_INO, Attributes, BlockIndex, Ino, PointInTime, Txg
from s3fs_meta.mount.http_server import Send
from s3fs_meta.mount.past_points import temporary_state
from s3fs_meta.mount.snapshot_source import Reading, opened_bucket, opened_snapshot
from s3fs_meta.objects.contact import Outage
from s3fs_meta.objects.retry import outage_of
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.index.index_search import HistorySearch
from s3fs_meta.sync.history.kept.kept_points import KeptPointReader
from s3fs_meta.sync.history.newest_locations import intact_location
from s3fs_meta.sync.history.snapshot_mount import Bucket
from s3fs_meta.sync.history.versions.changelog_reader import ChangelogReader
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.volume import Volume

_RUNS_MAX: Final = 32 * BROWSE_RUNS_MAX  # maximum number of cached runs; a run needs 200 bytes


class RetainedRange(NamedTuple):
    """The oldest and the newest retained point in time."""

    oldest: Link
    newest: Link


class Source:
    """The files and the history of one filesystem, as the pages show them."""

    def __init__(self, reading: Reading, bucket: Bucket, first: Volume) -> None:
        """Create a source of data for the pages.

        Args:
            reading: the location of the filesystem, and the options for reading it.
            bucket: the open bucket of the filesystem.
            first: any opened point in time; only its bucket and keys are used.
        """
        self.reading = reading
        self.place = reading.place
        self.label = bucket.superblock.label
        self.bucket = bucket
        self._bounds: RetainedRange | None = None
        self._known_s = 0.0  # time at which the bounds of the history were read
        self._search: HistorySearch | None = None
        disk = DiskSpace(first.state_dir.path)
        self._points = OpenPoints(first, disk, self._state_of, self._find_other_copy)
        self._sizes: Cached[Link, FolderSizes] = Cached(BROWSE_SIZES_MAX)
        # The last comparison of an earlier txg with the newest one; None if it exceeds a limit.
        self.compared: Cached[tuple[Txg, Link], list[Difference] | None] = Cached(
            1, lambda found: found is None or len(found) <= BROWSE_CHANGED_MAX
        )
        # Start time, end time and number of changed inodes per run, keyed by first and last txg.
        self.counted: dict[tuple[Txg, Txg], tuple[int, int, int]] = {}
        self.changelogs = ChangelogReader(bucket.store, bucket.keyring, bucket.uuid)
        self.kept = KeptPointReader(bucket.store, bucket.keyring, bucket.uuid)

    @property
    def outage(self) -> Outage:
        """Return the duration and the reason of the bucket's outage."""
        return outage_of(self.bucket.store)

    # --- read points in time -------------------------------------------------------------------

    async def run(self) -> None:
        """Close idle databases until cancelled, then close all databases that no request uses."""
        await self._points.run()

    async def bounds(self) -> RetainedRange:
        """Return the oldest and the newest point in time, at most BROWSE_FRESH_S old.

        Raises:
            StoreError, FormatError: the bucket cannot be read.
        """
        known = self._bounds
        if known is None or trio.current_time() - self._known_s > BROWSE_FRESH_S:
            newest = await self.bucket.find(NEWEST)
            if known is not None and newest.txg < known.newest.txg:
                # fsck -y has abandoned txgs, or the bucket was restored from a copy
                self.counted.clear()
            if known is None or newest != known.newest:
                self._search = None
                known = RetainedRange(await self.bucket.points.oldest(newest), newest)
            self._bounds, self._known_s = known, trio.current_time()
        return known

    async def search(self) -> HistorySearch:
        """Return a search of the history index up to the newest txg.

        Raises the same errors as ``bounds``.
        """
        newest, bucket = (await self.bounds()).newest, self.bucket
        if self._search is None:
            self._search = HistorySearch(bucket.store, bucket.keyring, bucket.uuid, newest)
        return self._search

    def count(self, run: tuple[Txg, Txg], found: tuple[int, int, int]) -> None:
        """Cache the changes of a run for the next page with the time line."""
        if len(self.counted) >= _RUNS_MAX:
            self.counted.clear()
        self.counted[run] = found

    async def link(self, txg: Txg) -> Link:
        """Return the chain position of a txg, possibly from a cache; raise the errors of ``find``."""
        bounds = await self.bounds()
        if bounds.oldest.txg <= txg <= bounds.newest.txg:
            known = await self.bucket.points.readable(txg)
            if known is not None:
                return known
        return await self.find(PointInTime(f"txg={txg}", txg=txg))

    async def find(self, wanted: PointInTime) -> Link:
        """Return the chain position of a point in time.

        Raises:
            SettingsError: the point in time is not retained; the message lists retained points.
            StoreError, FormatError: the bucket cannot be read.
        """
        return await self.bucket.find(wanted)

    @asynccontextmanager
    async def used(self, txg: Txg) -> AsyncIterator[OpenPoint]:
        """Open the state of a txg, as ``OpenPoints.used`` does; raises the same errors."""
        async with self._points.used((await self.link(txg)).txg) as point:
            yield point

    async def sizes_of(self, point: OpenPoint) -> FolderSizes:
        """Return the folder sizes at a point in time; other requests run meanwhile.

        Raises the same errors as ``FolderSizes.read``.
        """

        async def read() -> FolderSizes:
            found = FolderSizes()
            for _ in found.read(point.db):
                await trio.lowlevel.checkpoint()
            return found

        return await self._sizes.of(point.volume.link, read)

    def _state_of(self, txg: Txg) -> StateDir:
        return StateDir(temporary_state(self.place.state, txg, os.getpid()))

    async def _find_other_copy(self, located: Located) -> Found | None:
        newest = (await self.bounds()).newest
        async with self._points.used(newest.txg) as point:
            return intact_location(point.db, located)


@asynccontextmanager
async def opened(reading: Reading) -> AsyncIterator[Source]:
    """Open a filesystem for the duration of a context.

    Raises:
        The errors of ``opened_bucket`` and ``opened_snapshot``.
    """
    async with (
        opened_bucket(reading) as bucket,
        opened_snapshot(reading, bucket, NEWEST) as volume,
        trio.open_nursery() as nursery,
    ):
        source = Source(reading, bucket, volume)
        nursery.start_soon(source.run)
        yield source
        nursery.cancel_scope.cancel()


def find(point: OpenPoint, names: list[bytes]) -> Attributes:
    """Return the inode at a path; symbolic links are not followed.

    Raises:
        NoEntryError: the path did not exist at the point in time.
    """
    found = inodes.get(point.db, ROOT_INO)
    for name in names:
        below = None
        if stat.S_ISDIR(found.mode):
            below = dentries.find_attributes(point.db, found.ino, name)
        if below is None:
            missing = NoEntryError(found.ino, name)
            missing.reword(f"the path {quoted(b'/'.join(names))} did not exist")
            raise missing
        found = below
    return found


def path_of(point: OpenPoint, ino: Ino) -> list[bytes]:
    """Return the components of an inode's path; search the parent directory for the name.

    Raises:
        NoInodeError: the inode did not exist, or had no path.
    """
    path = tree_paths.bytes_of(point.db.connection, ino)
    if path is None:
        raise NoInodeError(ino)
    return [name for name in path.split(b"/") if name]


async def beginning(point: OpenPoint, attributes: Attributes, length: int) -> bytes:
    """Return the first *length* bytes of a file, or all of a shorter file.

    Raises the same errors as ``send``.
    """
    parts: list[bytes] = []

    async def take(data: bytes) -> None:  # noqa: RUF029 - the caller awaits this function
        parts.append(data)

    await send(point, attributes._replace(size_bytes=min(length, attributes.size_bytes)), take)
    return b"".join(parts)


async def send(
    point: OpenPoint, attributes: Attributes, put: Send, start: int = 0, stop: int | None = None
) -> None:
    """Pass the content of a file, or a part of the content, piece by piece to a function.

    Args:
        point: the point in time.
        attributes: the attributes of the file.
        put: receives each piece.
        start: the first byte to pass.
        stop: the first byte after the part; None for the end of the file.

    Raises:
        PastUnavailableError: the bucket has lost a part of the content.
        StoreError: the bucket cannot be reached.
    """
    block_bytes = int(properties.get(point.db, "block_bytes"))
    count = max(1, CONTENT_RUN_BYTES // block_bytes)
    end = attributes.size_bytes if stop is None else min(stop, attributes.size_bytes)
    last_block = -(-end // block_bytes)
    for first in range(start // block_bytes, last_block, count):
        last = min(first + count, last_block) - 1
        located = block_map.locate_range(
            point.db, attributes.ino, BlockIndex(first), BlockIndex(last)
        )
        contents = await point.reader.read(list(located.values()))
        data = dict(zip(located, contents, strict=True))
        for index in range(first, last + 1):
            skipped = max(start - index * block_bytes, 0)
            length = min(block_bytes, end - index * block_bytes)
            content, block = data.get(BlockIndex(index)), located.get(BlockIndex(index))
            if content is None or block is None:
                await put(bytes(length - skipped))
                continue
            if len(content.data) < block.plain_bytes:
                why = f"the bucket has lost the content of block {block.block}"
                raise PastUnavailableError(point.volume.link.txg, why)
            await put(content.data[:length].ljust(length, b"\0")[skipped:])
