"""The contract of every object store.

Owns: the protocol, the rules for keys, the types of results, the base class of stores that wrap
another store. Does not know: any store.
Implementations: ``local``, ``s3``, ``memory``; decorators with the same contract: ``retry``,
``metrics``. All pass the test suite ``tests/contract/store_contract.py``.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Final, NamedTuple, Protocol

from s3fs_meta.errors import FormatError, InvalidRequestError, ObjectTooLargeError
from s3fs_meta.limits import (
    KEY_BYTES_MAX,
    KEY_COMPONENT_BYTES_MAX,
    OBJECT_BYTES_MAX,
    RANGE_BYTES_MAX,
)
from s3fs_meta.model import ObjectKey

ETag = str  # opaque identifier of one version of an object; only replace() uses it
# Largest size or time that a listing may report: the largest number in a column of SQLite.
NUMBER_MAX: Final = (1 << 63) - 1
STORE_FULL: Final = "the store is full or its quota is used up; free space there or raise the quota"


class ObjectInfo(NamedTuple):
    """One entry of a listing: the key, the size and the time of an object."""

    key: ObjectKey
    size_bytes: int
    modified_ns: int | None = None  # time of the last write by the store's clock; None if unknown


class Fetched(NamedTuple):
    """One complete object and its ETag; ``replace`` compares ETags."""

    data: bytes
    etag: ETag


class ObjectStore(Protocol):
    """A flat namespace of objects under one prefix; only ``put`` and ``replace`` overwrite objects.

    Every async method yields to other tasks, and must be called outside a transaction. Each may
    raise TransientStoreError (a retry may succeed) and the subclasses of PermanentStoreError. A key
    that ``check_key`` rejects raises InvalidRequestError. A method keeps no buffer of its caller
    after it returns. Requests can be cancelled; the outcome of a cancelled write is unknown.
    """

    @property
    def url(self) -> str:
        """Return the store's URL as the user gave it, without credentials."""
        ...

    @property
    def has_own_clock(self) -> bool:
        """Return whether a clock other than this host's sets the times of objects."""
        ...

    @property
    def endpoint(self) -> str:
        """Return the scheme, host and port of the server, or "" if unknown or without a server."""
        ...

    async def now_ns(self) -> int | None:
        """Return the store's time in nanoseconds since 1970-01-01 UTC, or None if unavailable.

        ``ObjectInfo.modified_ns`` uses the same clock. The time may be truncated to a second. The
        call needs write permission, because a local store takes the time from a file that it
        writes.
        """
        ...

    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        """Return a complete object of at most *max_bytes* bytes.

        Raises:
            ObjectMissingError: no object has the key.
            ObjectTooLargeError: the object is larger; it was not read into memory completely.
        """
        ...

    async def get_range(self, key: ObjectKey, start: int, stop: int) -> bytes | memoryview:
        """Return exactly the bytes ``[start, stop)`` of an object; see ``check_range``.

        A returned memoryview is read-only, and its buffer is shared with no other caller.

        Raises:
            ObjectMissingError: no object has the key.
            TransientStoreError: the response was too short.
            FormatError: the object ends before *stop*, or the range is invalid.
        """
        ...

    async def put(self, key: ObjectKey, data: bytes | memoryview) -> None:
        """Store or replace an object, which is then durable and visible to every reader."""
        ...

    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Store an object only if its key is still free.

        If several callers create the object at the same time, one call succeeds; all other calls
        raise PreconditionError.
        After TransientStoreError the outcome is unknown: the object may exist. Then ``retry`` tries
        again, and the call succeeds if the object contains exactly *data*. So *data* must contain
        bytes that no other caller sends.

        Raises:
            PreconditionError: an object with the key has other bytes; nothing was written.
        """
        ...

    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        """Store an object only if its current version is *etag* (compare-and-set).

        As with ``create``, *data* must contain bytes that no other caller sends.

        Raises:
            PreconditionError: the version differs, or the object is missing; nothing was written.
        """
        ...

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete objects; ignore missing objects. *keys* may be empty.

        After an error, some of the objects may already be deleted. A power cut at the store may
        undo a deletion.
        """
        ...

    def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield every object whose key starts with *prefix*, sorted, without duplicates.

        Objects created or deleted concurrently may or may not appear; unfinished writes never
        appear.

        Args:
            prefix: the beginning of keys; may end inside a component and may be empty.
            after: only keys greater than *after* are listed, to resume an interrupted listing.
        """
        ...

    async def close(self) -> None:
        """Release connections and threads; the store must not be used afterwards."""
        ...


class StoreWrapper:
    """A store that wraps another store; subclasses implement the requests."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        """Return the URL of the inner store."""
        return self.inner.url

    @property
    def has_own_clock(self) -> bool:
        """Return whether the inner store has its own clock."""
        return self.inner.has_own_clock

    @property
    def endpoint(self) -> str:
        """Return the address of the inner store's server."""
        return self.inner.endpoint

    async def close(self) -> None:
        """Close the inner store."""
        await self.inner.close()


def described(store: ObjectStore) -> str:
    """Return a text for messages: the URL of a store, and its server if it has one."""
    return f"{store.url} at {store.endpoint}" if store.endpoint else store.url


def listing_of(prefix: str) -> str:
    """Return the text that replaces the key in error messages about a listing."""
    return f"the list of objects {prefix}*" if prefix else "the list of objects"


def possible_time(time_ns: int) -> int | None:
    """Return the time of an object, or None if it is impossible: before 1970 or after 2262."""
    return time_ns if 0 <= time_ns <= NUMBER_MAX else None


def check_range(key: str, start: int, stop: int) -> None:
    """Raise FormatError for an impossible byte range, which a corrupt row may contain.

    Raises:
        FormatError: the range is empty, begins before byte 0, ends after OBJECT_BYTES_MAX, or is
            longer than RANGE_BYTES_MAX.
    """
    if not 0 <= start < stop <= OBJECT_BYTES_MAX or stop - start > RANGE_BYTES_MAX:
        raise FormatError(
            key, f"the requested range is invalid or too long: bytes {start} to {stop}"
        )


def check_size(key: str, size_bytes: int, max_bytes: int, etag: ETag) -> None:
    """Raise ObjectTooLargeError if an object has more than *max_bytes* bytes."""
    if size_bytes > max_bytes:
        raise ObjectTooLargeError(key, size_bytes, max_bytes, etag)


def check_key(key: str) -> None:
    """Raise InvalidRequestError for a key that is not valid in every store.

    Raises:
        InvalidRequestError: the key or a component is empty or too long; or the key has ``//``,
            ``.``, ``..``, a leading or trailing slash, a backslash, or a byte outside printable
            ASCII.
    """
    components = key.split("/")
    if (
        len(key) > KEY_BYTES_MAX
        or not key.isascii()
        or not key.isprintable()
        or "\\" in key
        or any(
            part in {"", ".", ".."} or len(part) > KEY_COMPONENT_BYTES_MAX for part in components
        )
    ):
        raise InvalidRequestError("invalid object key", key)
