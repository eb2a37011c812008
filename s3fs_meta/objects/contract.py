"""The contract of every object store.

Owns: the protocol, key rules, the types of results. Does not know: any store.
Implementations: ``local``, ``s3``, ``memory``; decorators with the same contract: ``retry``,
``metrics``. The suite that all of them pass is ``tests/contract/store_contract.py``.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol

from s3fs_meta.errors import FormatError, InvalidRequestError, ObjectTooLargeError
from s3fs_meta.limits import (
    KEY_BYTES_MAX,
    KEY_COMPONENT_BYTES_MAX,
    OBJECT_BYTES_MAX,
    RANGE_BYTES_MAX,
)
from s3fs_meta.model import ObjectKey

ETag = str  # opaque version of one object's content, only for replace()


class ObjectInfo(NamedTuple):
    """One object in a listing."""

    key: ObjectKey
    size_bytes: int
    modified_ns: int | None = None  # time of its last write, by the store's clock; None: unknown


class Fetched(NamedTuple):
    """One complete object and its ETag, which ``replace`` takes."""

    data: bytes
    etag: ETag


class ObjectStore(Protocol):
    """A flat namespace of immutable-by-default objects under one prefix.

    All methods: schedule point always; take no locks; must be outside a transaction. All raise
    TransientStoreError (worth a retry) and the subclasses of PermanentStoreError; a key that
    ``check_key`` refuses is InvalidRequestError. Buffers passed in are not kept after return.
    Cancellation is honoured; the outcome of a cancelled write is unknown.
    """

    @property
    def url(self) -> str:
        """Return the store's URL as the user gave it, without credentials."""
        ...

    @property
    def has_own_clock(self) -> bool:
        """Return whether the store's times are by another clock than this host's."""
        ...

    async def now_ns(self) -> int | None:
        """Return nanoseconds since 1970-01-01 UTC by the store's clock, None if unavailable.

        By the same clock as ``ObjectInfo.modified_ns``; may be truncated to a second. Needs
        permission to write: a store of files takes the time from a file that it writes.
        """
        ...

    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        """Return a complete object of at most *max_bytes* bytes.

        Raises:
            ObjectMissingError: no such key.
            ObjectTooLargeError: it is larger; no memory was allocated for it.
        """
        ...

    async def get_range(self, key: ObjectKey, start: int, stop: int) -> bytes:
        """Return exactly bytes ``[start, stop)``, as ``check_range`` allows.

        Raises:
            ObjectMissingError: no such key.
            TransientStoreError: the answer was short.
            FormatError: the object ends before *stop*, or no object can have such a range.
        """
        ...

    async def put(self, key: ObjectKey, data: bytes | memoryview) -> None:
        """Store an object, replacing any. On return it is durable and visible to every reader."""
        ...

    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Store an object only if the key is free.

        Exactly one of any number of concurrent callers returns; the others get the error. After
        TransientStoreError the outcome is unknown: the object may exist. ``retry`` tries again,
        and if the object then holds exactly these bytes, it counts as created by this call. So
        callers include bytes that no other caller sends.

        Raises:
            PreconditionError: the key is taken, by other bytes; nothing was written.
        """
        ...

    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        """Store an object only if its current version is *etag* (compare-and-set).

        Raises:
            PreconditionError: the version differs, or the object is missing; nothing was written.
        """
        ...

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete objects; keys that do not exist are no error. *keys* may be empty.

        After an error some may be deleted. A power cut at the store may undo a deletion.
        """
        ...

    def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield every object whose key starts with *prefix*, ascending, no duplicates.

        Objects created or deleted meanwhile may or may not appear. Unfinished writes never do.

        Args:
            prefix: any beginning of a key, may end inside a component; may be empty.
            after: only keys greater than this one, to resume an interrupted listing.
        """
        ...

    async def close(self) -> None:
        """Release connections and threads; the store is not used afterwards."""
        ...


def listing_of(prefix: str) -> str:
    """Return the text that an error about a listing shows instead of a key."""
    return f"listing of {prefix}*"


def check_range(key: str, start: int, stop: int) -> None:
    """Refuse a range that no object of ours can have; rows from the bucket may be corrupt.

    Raises:
        FormatError: it is empty, begins before the object, ends after OBJECT_BYTES_MAX, or is
            longer than RANGE_BYTES_MAX.
    """
    if not 0 <= start < stop <= OBJECT_BYTES_MAX or stop - start > RANGE_BYTES_MAX:
        raise FormatError(
            key, f"the requested range is invalid or too long: bytes {start} to {stop}"
        )


def check_size(key: str, size_bytes: int, max_bytes: int, etag: ETag) -> None:
    """Refuse an object of more than *max_bytes*. Raises ObjectTooLargeError."""
    if size_bytes > max_bytes:
        raise ObjectTooLargeError(key, size_bytes, max_bytes, etag)


def check_key(key: str) -> None:
    """Refuse a key that some store cannot hold.

    Raises:
        InvalidRequestError: empty or over-long key or component, ``//``, ``.``, ``..``, leading
            or trailing slash, a byte outside printable ASCII.
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
        raise InvalidRequestError("object key", key)
