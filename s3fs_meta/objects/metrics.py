"""A wrapper that counts the requests to a store.

Owns: the counts per method, which ``status`` reports. Requests and results stay unchanged.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Final

from s3fs_meta.errors import ObjectMissingError, PreconditionError, StoreError
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.billing import Meter
from s3fs_meta.objects.contract import ETag, Fetched, ObjectInfo, ObjectStore, StoreWrapper

METHODS: Final = ("now", "get", "get_range", "put", "create", "replace", "delete", "list")


@dataclass(slots=True)
class MethodCounts:
    """The calls, errors and bytes of one method since the store was opened."""

    requests: int = 0
    errors: int = 0  # calls that raised StoreError; missing objects do not count
    sent_bytes: int = 0  # bytes that successful requests sent
    received_bytes: int = 0


class CountingStore(StoreWrapper):
    """A store that counts requests; ``list`` counts listings, not pages.

    ``meter`` of the inner store counts the billed requests: each attempt and each page.
    """

    def __init__(self, inner: ObjectStore, meter: Meter | None = None) -> None:
        super().__init__(inner)
        self.meter = meter or Meter()
        self.counts: Mapping[str, MethodCounts] = {method: MethodCounts() for method in METHODS}

    async def now_ns(self) -> int | None:
        """Return the current time of the store's clock."""
        with self._counted("now"):
            return await self.inner.now_ns()

    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        """Return a complete object."""
        with self._counted("get", answers=ObjectMissingError) as counts:
            fetched = await self.inner.get(key, max_bytes)
            counts.received_bytes += len(fetched.data)
        return fetched

    async def get_range(self, key: ObjectKey, start: int, stop: int) -> bytes | memoryview:
        """Return bytes ``[start, stop)`` of an object."""
        with self._counted("get_range") as counts:
            data = await self.inner.get_range(key, start, stop)
            counts.received_bytes += len(data)
        return data

    async def put(self, key: ObjectKey, data: bytes | memoryview) -> None:
        """Store or replace an object."""
        with self._counted("put") as counts:
            await self.inner.put(key, data)
            counts.sent_bytes += len(data)

    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Store an object only if its key is still free."""
        with self._counted("create", answers=PreconditionError) as counts:
            etag = await self.inner.create(key, data)
            counts.sent_bytes += len(data)
        return etag

    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        """Store an object only if its current version is *etag*."""
        with self._counted("replace", answers=PreconditionError) as counts:
            new_etag = await self.inner.replace(key, data, etag)
            counts.sent_bytes += len(data)
        return new_etag

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete objects."""
        with self._counted("delete"):
            await self.inner.delete(keys)

    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield objects in key order."""
        with self._counted("list"):
            async with aclosing(self.inner.list(prefix, after=after)) as found:
                async for info in found:
                    yield info

    @contextmanager
    def _counted(
        self, method: str, answers: type[StoreError] | tuple[()] = ()
    ) -> Iterator[MethodCounts]:
        counts = self.counts[method]
        counts.requests += 1
        try:
            yield counts
        except answers:
            raise
        except StoreError:
            counts.errors += 1
            raise
