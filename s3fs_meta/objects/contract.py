"""What every object store promises.

Owns: the protocol, key rules, the values that travel. Does not know: any store.
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

ETag = str  # opaque version of one object's content, only good for replace()


class ObjectInfo(NamedTuple):
    """One object in a listing."""

    key: ObjectKey
    size_bytes: int
    modified_ns: int | None = None  # when it was stored, by the store's clock; None: not known


class Fetched(NamedTuple):
    """One whole object with the version to replace it by."""

    data: bytes
    etag: ETag


class ObjectStore(Protocol):
    """A flat namespace of immutable-by-default objects under one prefix.

    All methods: schedule point always; take no locks; must be outside a transaction. All raise
    TransientStoreError (worth another attempt) and PermanentStoreError's kinds; a key that
    ``check_key`` refuses is InvalidRequestError. Buffers passed in are not kept after return.
    Cancellation is honoured; what a cancelled write did is unknown.
    """

    @property
    def url(self) -> str:
        """Return the place as the user named it, without credentials."""
        ...

    @property
    def has_own_clock(self) -> bool:
        """Return whether the store's times are by another clock than this host's."""
        ...

    async def now_ns(self) -> int | None:
        """Return nanoseconds since 1970-01-01 UTC by the store's clock, None if it does not say.

        By the same clock as ``ObjectInfo.modified_ns``; a second may be cut off. Needs the right
        to write: a store of files gives a time only to a file that is written.
        """
        ...

    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        """Return a whole object, which has at most *max_bytes* bytes.

        Raises:
            ObjectMissingError: no such key.
            ObjectTooLargeError: it is larger; memory for it was never taken.
        """
        ...

    async def get_range(self, key: ObjectKey, start: int, stop: int) -> bytes:
        """Return exactly bytes ``[start, stop)``, as ``check_range`` allows.

        Raises:
            ObjectMissingError: no such key.
            TransientStoreError: the answer was short.
            FormatError: the object ends before *stop*, or no object has such a range; nothing is
                invented.
        """
        ...

    async def put(self, key: ObjectKey, data: bytes | memoryview) -> None:
        """Store an object, replacing any. On return it is durable and visible to every reader."""
        ...

    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Store an object only if the key is free.

        Exactly one of any number of concurrent callers returns; the others get the error. After
        TransientStoreError the outcome is unknown: the object may be there. ``retry`` asks again,
        and counts an object that then holds exactly our bytes as ours; so callers put something
        of their own into the bytes.

        Raises:
            PreconditionError: the key is taken, by other bytes; nothing was written.
        """
        ...

    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        """Store an object only if its present version is *etag* (compare-and-set).

        Raises:
            PreconditionError: the version is another, or the object is gone; nothing was written.
        """
        ...

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete objects; keys that do not exist are no error. May be empty.

        After an error some may be gone. A power cut at the store may undo a deletion.
        """
        ...

    def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield every object whose key starts with *prefix*, ascending, no duplicates.

        Objects created or deleted meanwhile may or may not appear. Unfinished writes never do.

        Args:
            prefix: any beginning of a key, not only whole components; may be empty.
            after: only keys greater than this one, to go on where a listing broke off.
        """
        ...

    async def close(self) -> None:
        """Release connections and threads; the store is not used afterwards."""
        ...


def listing_of(prefix: str) -> str:
    """Return what an error about a listing has for a key."""
    return f"listing of {prefix}*"


def check_range(key: str, start: int, stop: int) -> None:
    """Refuse a range that no object of ours has: rows that came from outside may say anything.

    Raises:
        FormatError: it is empty, begins before the object, or is longer than RANGE_BYTES_MAX.
    """
    if not 0 <= start < stop <= OBJECT_BYTES_MAX or stop - start > RANGE_BYTES_MAX:
        raise FormatError(key, f"bytes {start} to {stop} of it are asked for")


def check_size(key: str, size_bytes: int, max_bytes: int, etag: ETag) -> None:
    """Refuse an object that is larger than its reader takes. Raises ObjectTooLargeError."""
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
