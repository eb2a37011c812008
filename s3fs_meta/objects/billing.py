"""The billed requests of a store: price classes, purposes, and a meter that counts them per day.

Owns: the price class of a request, and its cause. Does not know: prices, files.
Tasks: any thread may use the meter.

The key prefix of an object determines the cause of a write. Reads, listings and deletions of one
kind of object serve several purposes: followers, merges of levels, fsck and restores read
changelogs with the same functions. So the code for such a purpose sets the cause with ``part``.
Tasks and threads that this code starts inherit the cause (contextvars). A request outside of such
code gets its cause from its key.
Source: https://aws.amazon.com/s3/pricing/, "Requests & data retrievals".
"""

import enum
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, TypeVar

from typing_extensions import ParamSpec

from s3fs_meta.clock import Clock, SystemClock
from s3fs_meta.limits import DELETE_BATCH_KEYS, LIST_PAGE_KEYS
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ETag, Fetched, ObjectInfo, ObjectStore, StoreWrapper

_P = ParamSpec("_P")
_R = TypeVar("_R")

DAY_NS: Final = 86_400 * 1_000_000_000


class RequestClass(enum.Enum):
    """The price classes in which a store bills requests."""

    PUT = "put"  # PUT, POST, COPY, and each part of a multipart upload
    LIST = "list"  # one request for each page of a listing
    GET = "get"  # GET and HEAD
    DELETE = "delete"  # DELETE, and each abort of a multipart upload


class Cause(enum.Enum):
    """The purpose of a request; requests are counted by purpose."""

    DATA = "data"
    CHANGELOGS = "changelogs"
    LEVELS = "levels"
    HISTORY = "history"
    IMAGES = "images"
    LEASE = "lease"
    READS = "reads"
    FOLLOWING = "following"
    COMPACTION = "compaction"
    GARBAGE = "garbage"
    FSCK = "fsck"
    MOUNT = "mount"  # opening, restoring, reading superblocks, testing conditional writes


# The purpose of each write, by key prefix; see format.md, "Keys".
_WRITES: Final[Mapping[str, Cause]] = {
    "pack/": Cause.DATA,
    "changelog": Cause.CHANGELOGS,  # changelogs and their parts
    "level/": Cause.LEVELS,
    "history/": Cause.HISTORY,
    "image/": Cause.IMAGES,
    "lease": Cause.LEASE,
}
_READS: Final[Mapping[str, Cause]] = {"pack/": Cause.READS, "lease": Cause.LEASE}
_PROBE: Final = "probe/"

_part: ContextVar[Cause | None] = ContextVar("part", default=None)


def part(
    cause: Cause,
) -> Callable[[Callable[_P, Coroutine[Any, Any, _R]]], Callable[_P, Coroutine[Any, Any, _R]]]:
    """Return a decorator that assigns a function's reads, listings and deletions to a cause."""

    def decorated(
        function: Callable[_P, Coroutine[Any, Any, _R]],
    ) -> Callable[_P, Coroutine[Any, Any, _R]]:
        @functools.wraps(function)
        async def call(*arguments: _P.args, **options: _P.kwargs) -> _R:
            token = _part.set(cause)
            try:
                return await function(*arguments, **options)
            finally:
                _part.reset(token)

        return call

    return decorated


def cause_of(kind: RequestClass, key: str) -> Cause:
    """Return the cause of a request for a key or for a key prefix."""
    if kind is RequestClass.PUT:
        return _by_key(_WRITES, key)
    reader = _part.get()
    if reader is not None:
        return reader
    if kind is RequestClass.DELETE and not key.startswith(_PROBE):
        return Cause.GARBAGE
    return _by_key(_READS, key) if kind is RequestClass.GET else Cause.MOUNT


def _by_key(causes: Mapping[str, Cause], key: str) -> Cause:
    return next((cause for start, cause in causes.items() if key.startswith(start)), Cause.MOUNT)


class Billed(NamedTuple):
    """The number and the body bytes of the requests of one price class and one cause."""

    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def plus(self, other: "Billed") -> "Billed":
        """Return the sum of this count and another count."""
        return Billed(*map(sum, zip(self, other, strict=True)))


NOTHING: Final = Billed()

# Counts by day (days since 1970-01-01 UTC), then by cause and price class.
# Causes and classes are strings, so that counts from a newer program can be kept.
Usage = dict[int, dict[tuple[str, str], Billed]]


def merge(into: Usage, other: Usage) -> None:
    """Add the counts of *other* to *into*."""
    for day, counts in other.items():
        present = into.setdefault(day, {})
        for name, billed in counts.items():
            present[name] = present.get(name, NOTHING).plus(billed)


class Meter:
    """Counts the billed requests of one store; thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._usage: Usage = {}
        self._totals: dict[tuple[str, str], Billed] = {}

    def count(
        self,
        kind: RequestClass,
        key: str,
        requests: int = 1,
        *,
        sent_bytes: int = 0,
        received_bytes: int = 0,
    ) -> None:
        """Count requests for a key or a key prefix, and the bytes of their bodies."""
        name = (cause_of(kind, key).value, kind.value)
        billed, today = Billed(requests, sent_bytes, received_bytes), self.today()
        with self._guard:
            merge(self._usage, {today: {name: billed}})
            self._totals[name] = self._totals.get(name, NOTHING).plus(billed)

    def now_ns(self) -> int:
        """Return the current time, in nanoseconds since 1970-01-01 UTC."""
        # Create the clock at the first use, because most short commands need no clock.
        if self._clock is None:
            self._clock = SystemClock()
        return self._clock.now_ns()

    def today(self) -> int:
        """Return the current day, in days since 1970-01-01 UTC."""
        return self.now_ns() // DAY_NS

    def add(self, usage: Usage) -> None:
        """Add counts to the meter, for example counts from ``take`` that could not be saved."""
        with self._guard:
            merge(self._usage, usage)

    def take(self) -> Usage:
        """Return all counts, and reset them to zero."""
        with self._guard:
            taken, self._usage = self._usage, {}
        return taken

    def seen(self) -> Usage:
        """Return a copy of all counts since the last ``take``."""
        with self._guard:
            return {day: dict(counts) for day, counts in self._usage.items()}

    def totals(self) -> dict[tuple[str, str], Billed]:
        """Return a copy of all counts by cause and class; ``take`` does not reset these counts."""
        with self._guard:
            return dict(self._totals)


class MeteredStore(StoreWrapper):
    """A store without HTTP whose calls are counted as a bucket would bill them."""

    def __init__(self, inner: ObjectStore, meter: Meter) -> None:
        super().__init__(inner)
        self._meter = meter

    async def now_ns(self) -> int | None:
        """Return the current time of the store's clock; the call counts as one listing."""
        self._meter.count(RequestClass.LIST, "")
        return await self.inner.now_ns()

    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        """Return a complete object."""
        self._meter.count(RequestClass.GET, key)
        fetched = await self.inner.get(key, max_bytes)
        self._meter.count(RequestClass.GET, key, 0, received_bytes=len(fetched.data))
        return fetched

    async def get_range(self, key: ObjectKey, start: int, stop: int) -> bytes | memoryview:
        """Return bytes ``[start, stop)`` of an object."""
        self._meter.count(RequestClass.GET, key)
        data = await self.inner.get_range(key, start, stop)
        self._meter.count(RequestClass.GET, key, 0, received_bytes=len(data))
        return data

    async def put(self, key: ObjectKey, data: bytes | memoryview) -> None:
        """Store or replace an object."""
        self._meter.count(RequestClass.PUT, key, sent_bytes=len(data))
        await self.inner.put(key, data)

    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Store an object only if its key is still free."""
        self._meter.count(RequestClass.PUT, key, sent_bytes=len(data))
        return await self.inner.create(key, data)

    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        """Store an object only if its current version is *etag*."""
        self._meter.count(RequestClass.PUT, key, sent_bytes=len(data))
        return await self.inner.replace(key, data, etag)

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete objects; each thousand keys count as one request."""
        if keys:
            self._meter.count(RequestClass.DELETE, keys[0], -(-len(keys) // DELETE_BATCH_KEYS))
        await self.inner.delete(keys)

    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield objects in key order; each thousand objects count as one request."""
        self._meter.count(RequestClass.LIST, prefix)
        yielded = 0
        async with aclosing(self.inner.list(prefix, after=after)) as found:
            async for info in found:
                if yielded and yielded % LIST_PAGE_KEYS == 0:
                    self._meter.count(RequestClass.LIST, prefix)
                yielded += 1
                yield info
