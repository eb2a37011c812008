"""Blocks from the store to the cache directory.

Owns: one fetch per block however many ask, the bound on fetches, the timeout of readers.
Does not know: which files want the block. Rows are written by ``block_cache``.
"""

import logging
from collections.abc import Callable

import trio

from s3fs_meta.cache.block_files import BlockFiles
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import S3fsError, StoreUnavailableError
from s3fs_meta.limits import FETCHES_MAX, STORE_DELAY_S_MAX
from s3fs_meta.meta.block_map import Located
from s3fs_meta.model import BlockId, ObjectKey
from s3fs_meta.objects.contract import ObjectStore

_log = logging.getLogger(__name__)


class _Fetch:
    """One fetch under way: done is set when it ended, error says how if it failed."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: S3fsError | None = None


class Fetcher:
    """Fetches blocks; at most FETCHES_MAX at once, each block once."""

    def __init__(
        self,
        store: ObjectStore,
        keyring: Keyring,
        files: BlockFiles,
        *,
        read_timeout_s: float,
        arrived: Callable[[Located], None],
    ) -> None:
        self._store = store
        self._keyring = keyring
        self._files = files
        self._read_timeout_s = read_timeout_s
        self._arrived = arrived
        self._under_way: dict[BlockId, _Fetch] = {}
        self._limiter = trio.CapacityLimiter(FETCHES_MAX)
        self.fetched_blocks = 0

    async def fetch(self, located: Located, object_key: ObjectKey) -> None:
        """Make one uploaded block local; returns at once when another task's fetch did.

        Raises:
            StoreUnavailableError: not within the read timeout.
            StoreError, FormatError: the object is missing, refused or damaged.
        """
        present = self._under_way.get(located.block)
        if present is not None:
            with trio.move_on_after(self._read_timeout_s) as scope:
                await present.done.wait()
            if scope.cancelled_caught:
                raise self._timeout(object_key)
            if present.error is not None:
                raise present.error
            return
        fetch = self._under_way[located.block] = _Fetch()
        try:
            with trio.move_on_after(self._read_timeout_s) as scope:
                await self._transfer(located, object_key)
            if scope.cancelled_caught:
                raise self._timeout(object_key)
        except S3fsError as exc:
            fetch.error = exc
            raise
        except trio.Cancelled:
            fetch.error = StoreUnavailableError(object_key, 1, 0.0, "the reader went away")
            raise
        finally:
            del self._under_way[located.block]
            fetch.done.set()

    async def _transfer(self, located: Located, object_key: ObjectKey) -> None:
        offset, length = located.pack_offset, located.stored_bytes
        assert offset is not None, "only uploaded blocks are fetched"
        assert length is not None, "only uploaded blocks are fetched"
        async with self._limiter:
            stored = await self._get_range(object_key, offset, offset + length)
            await trio.to_thread.run_sync(self._unpack, located, object_key, stored)
        self.fetched_blocks += 1
        self._arrived(located)

    async def _get_range(self, object_key: ObjectKey, start: int, stop: int) -> bytes:
        """Ask again and again while the store is away: the caller's timeout is the bound."""
        while True:
            try:
                return await self._store.get_range(object_key, start, stop)
            except StoreUnavailableError as exc:
                _log.info("a reader waits for the store: %s", exc)
            await trio.sleep(STORE_DELAY_S_MAX / 10)

    def _unpack(self, located: Located, object_key: ObjectKey, stored: bytes) -> None:
        """Verify and place one block; in a thread."""
        assert located.pack_offset is not None, "only uploaded blocks are fetched"
        assert located.hash is not None, "only uploaded blocks are fetched"
        data = pack_codec.open_block(
            self._keyring,
            object_key,
            stored,
            located.pack_offset,
            located.plain_bytes,
            located.hash,
        )
        self._files.adopt(located.block, data)

    def _timeout(self, object_key: ObjectKey) -> StoreUnavailableError:
        return StoreUnavailableError(object_key, 1, self._read_timeout_s, "read_timeout")
