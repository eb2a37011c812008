"""Downloading blocks from the store to the cache directory.

Owns: the rule that all readers of a block share one fetch, the limit on fetches, read timeouts.
Does not know: which files use a block, which blocks are neighbours. ``block_cache`` writes rows.
Keeps: an object or block counts as damaged only after a second request. A timeout, a refused
request, or a missing object in a store without a superblock never counts as damage.

One request may fetch a block and its neighbours; the readers of all these blocks wait for it. If a
neighbour is corrupt, its reader sees no error, and fetches the block alone.
A *run* is a read-ahead of adjacent blocks. The limit on fetches does not apply to runs, because
their caller limits their number.
If the disk is full, a reader fetches a block into memory only (``fetch_uncached``). This memory is
freed when the disk has room for the file of a block again.
A fetch first waits for the download limit; then the timeout of its readers begins. For a run, the
caller (``block_cache``) waits before the run begins, so that no reader waits for the limit.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import trio

from s3fs_meta.background_task import ShortageLog, in_thread
from s3fs_meta.cache.fetching.arrived_content import ArrivedContent, ArrivedRange, Content
from s3fs_meta.cache.fetching.read_coalescing import extent, stored_bytes
from s3fs_meta.cache.fetching.uncached_content import UncachedContent
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.cache.slices import slices
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import (
    CorruptionError,
    FormatError,
    NoSpaceLeftError,
    ObjectMissingError,
    S3fsError,
    ShortageError,
    StoreError,
    StoreUnavailableError,
)
from s3fs_meta.limits import (
    FETCHES_MAX,
    RUN_SLICE_BLOCKS,
    RUN_SLICE_SMALL_BLOCKS,
    SMALL_BLOCK_BYTES,
    STORE_DELAY_S_MAX,
)
from s3fs_meta.memory_allocator import range_buffers
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import BlockId, ObjectKey
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.throttle import Rank, Throttle
from s3fs_meta.options.settings import CacheOptions

_log = logging.getLogger(__name__)


# Verifies a block in a range of a pack; the range begins at the given offset.
_Unpack = Callable[[Located, ObjectKey, int, bytes | memoryview], Content]


class Found(NamedTuple):
    """The location of a block's content in a pack other than the block's own pack."""

    object_key: ObjectKey
    pack_offset: int
    stored_bytes: int


def _ignore(_located: Located, _is_gone: bool) -> None:
    """Ignore the report of a damaged block."""


async def _no_other_copy(_located: Located) -> None:
    """Return None: by default, no other location of a block is known."""


class DamageHandlers(NamedTuple):
    """The functions to call for a block that is missing or damaged in its pack."""

    # called with a damaged block, and with True if its pack is missing
    note: Callable[[Located, bool], None] = _ignore
    find_other_copy: Callable[[Located], Awaitable[Found | None]] = _no_other_copy


NO_HANDLERS: Final = DamageHandlers()


async def has_superblock(store: ObjectStore) -> bool:
    """Return whether a store has a superblock that can be read now.

    A store without a superblock may be the wrong one, so a missing object does not prove damage.
    """
    try:
        await store.get_range(superblock_codec.KEY, 0, 1)
    except (StoreError, CorruptionError):
        return False
    return True


class _Fetch:
    """One running fetch. *done* is set when it ends; *error* is set if it failed."""

    def __init__(self) -> None:
        # set when the download limit admits the request or the fetch ends
        self.begun = trio.Event()
        self.done = trio.Event()
        self.error: S3fsError | None = None


class Fetcher:
    """Fetches blocks, no block twice at a time; at most FETCHES_MAX fetches, not counting runs."""

    def __init__(  # noqa: PLR0913 - one argument for each part that it uses
        self,
        store: ObjectStore,
        keyring: Keyring,
        files: BlockFiles,
        options: CacheOptions,
        *,
        arrived: Callable[[Located], None],
        arrived_unrequested: Callable[[Located], None],
        throttle: Throttle,
        damage: DamageHandlers = NO_HANDLERS,
    ) -> None:
        self._store = store
        self._throttle = throttle
        self._keyring = keyring
        self._files = files
        self._read_timeout_s = options.read_timeout_s
        self._arrived = arrived
        self._arrived_unrequested = arrived_unrequested
        self._damage = damage
        self._under_way: dict[BlockId, _Fetch] = {}
        self._limiter = trio.CapacityLimiter(FETCHES_MAX)
        self.arrived_content = ArrivedContent()
        self.uncached = UncachedContent()
        self.fetched_blocks = 0
        self._failed_disk = ShortageLog()

    async def fetch(
        self, located: Located, object_key: ObjectKey, neighbours: Sequence[Located] = ()
    ) -> None:
        """Download one uploaded block, and its neighbours that are intact.

        If another task is already fetching the block, wait for that task and return. If that task
        fetched the block only as a neighbour, or was cancelled, the block may not be cached
        afterwards.

        Raises:
            StoreUnavailableError: the read timeout expired.
            StoreError, FormatError: the object is missing or damaged, or the store refuses the
                request.
            NoSpaceLeftError, LostBlockError: the file of the block cannot be written.
        """
        present = self._under_way.get(located.block)
        if present is not None:
            await self._wait_for(present, object_key)
            return
        fetch, unasked = _Fetch(), _Fetch()
        self._under_way[located.block] = fetch
        neighbours = [each for each in neighbours if each.block not in self._under_way]
        self._under_way.update((each.block, unasked) for each in neighbours)
        try:
            await self._throttle.take(stored_bytes([located, *neighbours]), Rank.WANTED)
            fetch.begun.set()
            unasked.begun.set()
            with trio.move_on_after(self._read_timeout_s) as scope:
                await self._transfer(located, neighbours, object_key, scope)
            if scope.cancelled_caught:
                raise self._timeout(object_key)
        except S3fsError as exc:
            fetch.error = exc
            if isinstance(exc, StoreUnavailableError):
                # Readers of neighbours also get the error, because they waited nearly as long.
                unasked.error = exc
            raise
        finally:  # after a cancellation, waiting readers fetch the block themselves
            self._end(fetch, [located])
            self._end(unasked, neighbours)

    async def fetch_uncached(self, located: Located, object_key: ObjectKey, why: Exception) -> None:
        """Download one uploaded block into memory, because its file cannot be written.

        Raises the same errors as ``fetch``, and shares a running fetch in the same way.

        Args:
            why: the error of the disk; an OSError is logged, because the disk may have failed.
        """
        if isinstance(why, OSError):
            self._failed_disk.warn("blocks that are read cannot be cached", why)
        present = self._under_way.get(located.block)
        if present is not None:
            await self._wait_for(present, object_key)
            return
        fetch = self._under_way[located.block] = _Fetch()
        try:
            await self._throttle.take(stored_bytes([located]), Rank.WANTED)
            fetch.begun.set()
            with trio.move_on_after(self._read_timeout_s) as scope:
                async with self._limiter:
                    content = await self._get_into_memory(located, object_key)
            if scope.cancelled_caught:
                raise self._timeout(object_key)
            self.uncached.add(located, content)
            self.fetched_blocks += 1
        except S3fsError as exc:
            fetch.error = exc
            raise
        finally:
            self._end(fetch, [located])

    async def fetch_run(
        self, run: Sequence[Located], object_key: ObjectKey, *, waits: bool = True
    ) -> None:
        """Download a run of adjacent uploaded blocks with one request.

        A reader that waits for a block continues as soon as that block is verified. Blocks that
        another task is fetching are skipped. Corrupt blocks are also skipped; their readers report
        them.

        Args:
            run: the blocks, ascending.
            object_key: key of their pack.
            waits: True for a run that a reader will soon request: its content is kept in memory,
                and requests to an unavailable store are retried until the read timeout. If False,
                no request is repeated after the retries of the ``ObjectStore``, and a slow transfer
                has no time limit.

        Raises:
            StoreUnavailableError: the read timeout expired, or the store is unavailable.
            StoreError, FormatError: the object is missing or too short, or the store refuses the
                request.
        """
        wanted = [each for each in run if each.block not in self._under_way]
        fetches = {each.block: _Fetch() for each in wanted}
        for fetch in fetches.values():
            fetch.begun.set()
        self._under_way.update(fetches)
        try:
            get_range = self._get_range if waits else self._store.get_range
            with trio.move_on_after(self._read_timeout_s if waits else math.inf) as scope:
                await self._transfer_run(wanted, object_key, get_range, keeps_content=waits)
            if scope.cancelled_caught:
                raise self._timeout(object_key)
        except StoreUnavailableError as exc:
            for fetch in fetches.values():
                # All readers get the error, because they waited nearly as long as the first reader.
                fetch.error = exc
            raise
        finally:
            for each in wanted:
                self._end(fetches[each.block], [each])

    async def _transfer_run(
        self,
        wanted: Sequence[Located],
        object_key: ObjectKey,
        get_range: Callable[[ObjectKey, int, int], Awaitable[bytes | memoryview]],
        *,
        keeps_content: bool,
    ) -> None:
        if not wanted:
            return
        start, stop = extent(wanted)
        stored = await get_range(object_key, start, stop)
        memory_bytes = range_buffers.memory_bytes(stop - start)
        source = ArrivedRange(memory_bytes, trio.current_time())
        are_small = all(each.plain_bytes < SMALL_BLOCK_BYTES for each in wanted)
        for piece in slices(wanted, RUN_SLICE_SMALL_BLOCKS if are_small else RUN_SLICE_BLOCKS):
            unpacked = await in_thread(self._unpack_quietly, piece, object_key, start, stored)
            for located, content in unpacked:
                self._arrived(located)
                # Do not keep the content in memory if readers wait: they will read the file.
                waiting = self._under_way[located.block].done.statistics().tasks_waiting
                if keeps_content and not waiting:
                    self.arrived_content.add(located, content, source)
            for located in piece:
                self._end(self._under_way[located.block], [located])
            self.fetched_blocks += len(unpacked)

    async def _wait_for(self, present: _Fetch, object_key: ObjectKey) -> None:
        await present.begun.wait()
        with trio.move_on_after(self._read_timeout_s) as scope:
            await present.done.wait()
        if scope.cancelled_caught:
            raise self._timeout(object_key)
        if present.error is not None:
            raise present.error

    def _end(self, fetch: _Fetch, blocks: Sequence[Located]) -> None:
        """End a fetch of blocks and wake their readers; a second call has no effect."""
        for located in blocks:
            if self._under_way.get(located.block) is fetch:
                del self._under_way[located.block]
        fetch.begun.set()
        fetch.done.set()

    async def _transfer(
        self,
        located: Located,
        neighbours: Sequence[Located],
        object_key: ObjectKey,
        scope: trio.CancelScope,
    ) -> None:
        """Fetch a block with its neighbours; the timeout applies until the block has arrived."""
        async with self._limiter:
            try:
                neighbours, first, stored = await self._get_with(located, neighbours, object_key)
                await in_thread(self._unpack, located, object_key, first, stored)
            except (ObjectMissingError, FormatError) as exc:
                await self._get_again(located, object_key, self._unpack, exc)
                neighbours, first, stored = (), 0, b""
            self.fetched_blocks += 1
            self._arrived(located)
            self.uncached.clear()  # the disk has room for files again, so free the memory
            scope.deadline = math.inf
            for piece in slices(neighbours):
                unpacked = await in_thread(self._unpack_quietly, piece, object_key, first, stored)
                for each, _content in unpacked:
                    self._arrived_unrequested(each)
                self.fetched_blocks += len(unpacked)

    async def _get_into_memory(self, located: Located, object_key: ObjectKey) -> Content:
        try:
            return await self._get_alone(located, object_key, self._verify, is_retry=False)
        except (ObjectMissingError, FormatError) as exc:
            return await self._get_again(located, object_key, self._verify, exc)

    async def _get_again(
        self, located: Located, object_key: ObjectKey, unpack: _Unpack, failure: S3fsError
    ) -> Content:
        """Fetch a block alone after a failure; if that also fails, fetch it from another pack.

        Raises:
            ObjectMissingError, FormatError: the block is damaged, and has no other intact location.
        """
        _log.info(
            "requesting block %d from the store again, after an error: %s", located.block, failure
        )
        try:
            return await self._get_alone(located, object_key, unpack)
        except (ObjectMissingError, FormatError) as exc:
            damage: ObjectMissingError | FormatError = exc
        is_missing = isinstance(damage, ObjectMissingError)
        if not is_missing or await has_superblock(self._store):
            self._damage.note(located, is_missing)
        found = await self._damage.find_other_copy(located)
        if found is None:
            raise damage
        _log.info(
            "fetching block %d from pack %s, which has the same content, after an error: %s",
            located.block,
            found.object_key,
            damage,
        )
        other = located._replace(pack_offset=found.pack_offset, stored_bytes=found.stored_bytes)
        return await self._get_alone(other, found.object_key, unpack)

    async def _get_alone(
        self, located: Located, object_key: ObjectKey, unpack: _Unpack, *, is_retry: bool = True
    ) -> Content:
        first, stop = extent([located])
        if is_retry:
            self._throttle.charge(stop - first)
        stored = await self._get_range(object_key, first, stop)
        return await in_thread(unpack, located, object_key, first, stored)

    async def _get_with(
        self, located: Located, neighbours: Sequence[Located], object_key: ObjectKey
    ) -> tuple[Sequence[Located], int, bytes | memoryview]:
        """Fetch a block with its neighbours, or the block alone if neighbours are unavailable.

        Returns:
            The neighbours in the fetched bytes, the offset of the bytes in the pack, and the bytes.
        """
        if neighbours:
            start, stop = extent([located, *neighbours])
            try:
                return neighbours, start, await self._get_range(object_key, start, stop)
            except FormatError as exc:  # the pack may end after the block but before a neighbour
                _log.info(
                    "fetching block %d without its neighbours, which are unavailable: %s",
                    located.block,
                    exc,
                )
        start, stop = extent([located])
        return (), start, await self._get_range(object_key, start, stop)

    async def _get_range(self, object_key: ObjectKey, start: int, stop: int) -> bytes | memoryview:
        """Fetch a range of an object; retry while the store is unavailable, until cancelled."""
        while True:
            try:
                return await self._store.get_range(object_key, start, stop)
            except StoreUnavailableError as exc:
                _log.info("a read waits until the store is available: %s", exc)
            await trio.sleep(STORE_DELAY_S_MAX / 10)

    def _unpack(
        self, located: Located, object_key: ObjectKey, first: int, stored: bytes | memoryview
    ) -> Content:
        """Verify a block as in ``_verify``, and write its file. Runs in a thread."""
        data = self._verify(located, object_key, first, stored)
        self._files.adopt(located.block, data)
        return data

    def _verify(
        self, located: Located, object_key: ObjectKey, first: int, stored: bytes | memoryview
    ) -> Content:
        """Verify a block, and return its content. Runs in a thread.

        Args:
            stored: bytes of the pack from offset *first* on, which include the block.
        """
        offset, length = located.pack_offset, located.stored_bytes
        assert offset is not None, "an uploaded block has an offset"
        assert length is not None, "an uploaded block has a stored length"
        assert located.hash is not None, "an uploaded block has a hash"
        record = memoryview(stored)[offset - first : offset - first + length]
        return pack_codec.view_block(
            self._keyring, object_key, record, offset, located.plain_bytes, located.hash
        )

    def _unpack_quietly(
        self,
        wanted: Sequence[Located],
        object_key: ObjectKey,
        first: int,
        stored: bytes | memoryview,
    ) -> list[tuple[Located, Content]]:
        """Verify blocks that no reader requested, write their files; return the valid blocks."""
        intact: list[tuple[Located, Content]] = []
        for located in wanted:
            try:
                content = self._unpack(located, object_key, first, stored)
            except (NoSpaceLeftError, ShortageError):
                break
            except S3fsError as exc:
                # A reader of the damaged block will fetch it again, and will get the error then.
                _log.info("block %d, which was read ahead, is damaged: %s", located.block, exc)
            else:
                intact.append((located, content))
        return intact

    def _timeout(self, object_key: ObjectKey) -> StoreUnavailableError:
        return StoreUnavailableError(object_key, 1, self._read_timeout_s, "read_timeout")
