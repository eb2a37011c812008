"""A store that keeps objects in a dictionary, for tests and experiments.

The memory store passes the same contract tests as the stores on disk and in buckets.
"""

import hashlib
from collections.abc import AsyncGenerator, Sequence

import trio

from s3fs_meta.clock import Clock, SystemClock
from s3fs_meta.errors import FormatError, ObjectMissingError, PreconditionError
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import (
    ETag,
    Fetched,
    ObjectInfo,
    check_key,
    check_range,
    check_size,
)


class MemoryStore:
    """An object store in memory; every method is atomic."""

    def __init__(self, url: str = "memory:") -> None:
        self._url = url
        self.objects: dict[ObjectKey, bytes] = {}
        self.modified_ns: dict[ObjectKey, int] = {}  # time of the last write to each object
        self.clock: Clock = SystemClock()  # clock of the store; a test may replace it
        self.has_own_clock = True

    @property
    def url(self) -> str:
        """Return the URL given at construction."""
        return self._url

    @property
    def endpoint(self) -> str:
        """Return "", because a dictionary has no server."""
        return ""

    async def now_ns(self) -> int | None:
        """Return the current time of the store's clock."""
        await trio.lowlevel.checkpoint()
        return self.clock.now_ns()

    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        """Return a complete object."""
        await trio.lowlevel.checkpoint()
        data = self._find(key)
        check_size(key, len(data), max_bytes, _etag(data))
        return Fetched(data, _etag(data))

    async def get_range(self, key: ObjectKey, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)`` of an object."""
        check_range(key, start, stop)
        await trio.lowlevel.checkpoint()
        data = self._find(key)
        if stop > len(data):
            raise FormatError(
                key, f"the range ends at byte {stop}, but the object has only {len(data)} bytes"
            )
        return data[start:stop]

    async def put(self, key: ObjectKey, data: bytes | memoryview) -> None:
        """Store or replace an object."""
        check_key(key)
        await trio.lowlevel.checkpoint()
        self._store(key, data)

    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Store an object only if its key is still free."""
        check_key(key)
        await trio.lowlevel.checkpoint()
        if key in self.objects:
            raise PreconditionError(key)
        self._store(key, data)
        return _etag(data)

    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        """Store an object only if its current version is *etag*."""
        check_key(key)
        await trio.lowlevel.checkpoint()
        present = self.objects.get(key)
        if present is None or _etag(present) != etag:
            raise PreconditionError(key)
        self._store(key, data)
        return _etag(data)

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete objects."""
        for key in keys:
            check_key(key)
        await trio.lowlevel.checkpoint()
        for key in keys:
            self.objects.pop(key, None)
            self.modified_ns.pop(key, None)

    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield objects as they were when the listing began."""
        await trio.lowlevel.checkpoint()
        found = sorted(
            (key, len(data)) for key, data in self.objects.items() if key.startswith(prefix)
        )
        for key, size_bytes in found:
            if key > after:
                await trio.lowlevel.checkpoint()
                yield ObjectInfo(key, size_bytes, self.modified_ns.get(key))

    async def close(self) -> None:
        """Do nothing, so that a test can use the store again."""
        await trio.lowlevel.checkpoint()

    def _store(self, key: ObjectKey, data: bytes | memoryview) -> None:
        self.objects[key] = bytes(data)
        self.modified_ns[key] = self.clock.now_ns()

    def _find(self, key: ObjectKey) -> bytes:
        check_key(key)
        data = self.objects.get(key)
        if data is None:
            raise ObjectMissingError(key)
        return data


def _etag(data: bytes | memoryview) -> ETag:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
