"""A wrapper of a store that retries requests after transient failures.

Owns: the number, duration and pauses of retries; recognising the write of an earlier attempt.
Only this module retries requests after transient errors. A request is repeated only
after TransientStoreError. Does not know: which store is wrapped.
"""

import random
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeVar

import trio

from s3fs_meta.errors import (
    ObjectMissingError,
    ObjectTooLargeError,
    PreconditionError,
    StoreError,
    StoreUnavailableError,
    TransientStoreError,
)
from s3fs_meta.limits import (
    STORE_ATTEMPTS_MAX,
    STORE_DELAY_S_MAX,
    STORE_DELAY_S_MIN,
    STORE_TOTAL_S_MAX,
    STORE_UNCONNECTED_S_MAX,
)
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contact import NO_OUTAGE, Contact, Outage
from s3fs_meta.objects.contract import (
    ETag,
    Fetched,
    ObjectInfo,
    ObjectStore,
    StoreWrapper,
    listing_of,
)

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The limits of retries and the pauses between them."""

    attempts_max: int = STORE_ATTEMPTS_MAX
    # Maximum time from the start of the first attempt to the start of the last attempt.
    total_s_max: float = STORE_TOTAL_S_MAX
    delay_s_min: float = STORE_DELAY_S_MIN
    delay_s_max: float = STORE_DELAY_S_MAX
    # Maximum time from the first to the last attempt if no server ever accepted a connection.
    unconnected_s_max: float = STORE_UNCONNECTED_S_MAX

    def delay_s(self, attempts_made: int, jitter: float) -> float:
        """Return the pause before the next attempt.

        The upper bound doubles with each attempt. *jitter*, from 0 to 1, determines a pause between
        half of the bound and the bound.

        Source: AWS Architecture Blog, "Exponential Backoff And Jitter" (equal jitter).
        """
        full = min(self.delay_s_max, self.delay_s_min * 2.0 ** (attempts_made - 1))
        return full * (1 + jitter) / 2

    def bound_s(self, attempt_s: float, *, unconnected: bool = False) -> float:
        """Return the maximum time until a request fails if every attempt takes *attempt_s*.

        Args:
            attempt_s: the duration of an attempt.
            unconnected: True if attempts fail because no server accepts a connection.
        """
        pauses_s = sum(self.delay_s(made, 1.0) for made in range(1, self.attempts_max))
        last_s = min(self.total_s_max, self.unconnected_s_max) if unconnected else self.total_s_max
        return min(self.attempts_max * attempt_s + pauses_s, last_s + attempt_s)


class _Attempts:
    """Counts the attempts of one request, and waits between the attempts."""

    def __init__(
        self, key: str, policy: RetryPolicy, jitter: random.Random, contact: Contact
    ) -> None:
        self._key, self._policy, self._jitter, self._contact = key, policy, jitter, contact
        self._began_s = trio.current_time()
        self._made = 0

    async def pause_after(self, error: TransientStoreError) -> None:
        """Wait until the next attempt may begin.

        Raises:
            StoreUnavailableError: the policy allows no further attempt.
        """
        self._made += 1
        if error.unresolved and not self._contact.is_made:
            self._give_up(error, trio.current_time() - self._began_s)
        delay_s = self._policy.delay_s(self._made, self._jitter.random())
        waited_s = trio.current_time() - self._began_s
        is_wrong = error.unconnected and not self._contact.is_made
        limit_s = self._policy.unconnected_s_max if is_wrong else self._policy.total_s_max
        if self._made >= self._policy.attempts_max or waited_s + delay_s > limit_s:
            self._give_up(error, waited_s)
        await trio.sleep(delay_s)

    def _give_up(self, error: TransientStoreError, waited_s: float) -> NoReturn:
        final = StoreUnavailableError(self._key, self._made, waited_s, error.code)
        final.note_transfer(error.sent_bytes, error.received_bytes)
        raise final from error


def ignore_notice(_text: str) -> None:
    """Ignore a message to the user; the default of ``notify``."""


Charge = Callable[[ObjectKey, int, int], None]
"""A function that counts the bytes that a failed attempt sent and received for an object."""


def ignore_charge(_key: ObjectKey, _sent_bytes: int, _received_bytes: int) -> None:
    """Ignore transferred bytes; the default of ``charge``."""


class RetryingStore(StoreWrapper):
    """A store that retries failed requests, and finally raises StoreUnavailableError."""

    def __init__(
        self,
        inner: ObjectStore,
        policy: RetryPolicy | None = None,
        jitter: random.Random | None = None,
        notify: Callable[[str], None] = ignore_notice,
        charge: Charge = ignore_charge,
    ) -> None:
        """Wrap a store to retry its failed requests.

        Args:
            inner: a store that makes one attempt per request.
            policy: limits of retries, and pauses.
            jitter: random numbers for the pauses.
            notify: called with a message if the first response is late, and with a second message
                if a request fails before the first response. Each message is sent at most once.
            charge: called before each retry of a write or of a range read, with the number of bytes
                that the failed attempt transferred.
        """
        super().__init__(inner)
        self._charge = charge
        self._policy = policy or RetryPolicy()
        self._jitter = jitter or random.Random()  # noqa: S311 - jitter only spreads the load
        self._contact = Contact(inner, self._policy, notify)

    @property
    def outage(self) -> Outage:
        """Return the current outage of the store: its duration and reason."""
        return self._contact.outage()

    async def now_ns(self) -> int | None:
        """Return the current time of the store's clock, as the successful attempt reported it."""
        return await self._repeat("the store's clock", self.inner.now_ns)

    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        """Return a complete object."""
        return await self._repeat(key, partial(self.inner.get, key, max_bytes))

    async def get_range(self, key: ObjectKey, start: int, stop: int) -> bytes | memoryview:
        """Return bytes ``[start, stop)`` of an object."""
        request = partial(self.inner.get_range, key, start, stop)
        return await self._repeat(key, request, received_bytes=stop - start)

    async def put(self, key: ObjectKey, data: bytes | memoryview) -> None:
        """Store or replace an object."""
        await self._repeat(key, partial(self.inner.put, key, data), sent_bytes=len(data))

    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Store an object, unless another call has created an object with the key."""
        return await self._conditional(key, data, partial(self.inner.create, key, data))

    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        """Replace an object if its ETag is *etag*, or if an attempt of this call replaced it."""
        return await self._conditional(key, data, partial(self.inner.replace, key, data, etag))

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete objects."""
        key = keys[0] if keys else ""
        await self._repeat(key, partial(self.inner.delete, keys))

    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield objects in key order; after an error, resume after the last key.

        Each yielded object resets the retry limits, so a long listing survives any number of
        errors.
        """
        attempts = self._attempts(listing_of(prefix))
        while True:
            try:
                async with aclosing(self.inner.list(prefix, after=after)) as found:
                    step = partial(anext, found, None)
                    while (info := await self._contact.watched(step)) is not None:
                        after = info.key
                        attempts = self._attempts(listing_of(prefix))
                        yield info
                    return
            except TransientStoreError as exc:
                await attempts.pause_after(exc)

    def _attempts(self, key: str) -> _Attempts:
        return _Attempts(key, self._policy, self._jitter, self._contact)

    async def _repeat(
        self,
        key: str,
        request: Callable[[], Awaitable[_Result]],
        *,
        sent_bytes: int = 0,
        received_bytes: int = 0,
    ) -> _Result:
        attempts = self._attempts(key)
        while True:
            try:
                return await self._contact.watched(request)
            except TransientStoreError as exc:
                await attempts.pause_after(exc)
                self._charge(
                    ObjectKey(key),
                    _transferred(exc.sent_bytes, sent_bytes),
                    _transferred(exc.received_bytes, received_bytes),
                )

    async def _conditional(
        self, key: ObjectKey, data: bytes | memoryview, request: Callable[[], Awaitable[ETag]]
    ) -> ETag:
        """Retry a conditional write; recognise an earlier attempt whose response was lost.

        The store refuses a retry if an earlier attempt with an unknown outcome has succeeded. In
        this case the object contains the bytes of this call, and the write is successful.
        """
        unknown = False

        async def attempt() -> ETag:
            nonlocal unknown
            try:
                return await request()
            except TransientStoreError:
                unknown = True
                raise
            except PreconditionError as exc:
                refused = exc
            try:
                etag = await self._etag_if_ours(key, data) if unknown else None
            except StoreError as exc:  # add the bytes that the write sent to its error
                exc.note_transfer(refused.sent_bytes, exc.received_bytes)
                raise
            if etag is None:
                raise refused
            return etag

        return await self._repeat(key, attempt, sent_bytes=len(data))

    async def _etag_if_ours(self, key: ObjectKey, data: bytes | memoryview) -> ETag | None:
        try:
            stored = await self.inner.get(key, len(data))
        except (ObjectMissingError, ObjectTooLargeError):
            return None
        return stored.etag if stored.data == data else None


def _transferred(counted_bytes: int | None, size_bytes: int) -> int:
    """Return the bytes of a body that a failed attempt transferred; if unknown, the body size."""
    return size_bytes if counted_bytes is None else min(counted_bytes, size_bytes)


def outage_of(store: ObjectStore) -> Outage:
    """Return the outage that the ``RetryingStore`` in a chain of wrappers has detected."""
    found: object = store
    while isinstance(found, StoreWrapper):
        if isinstance(found, RetryingStore):
            return found.outage
        found = found.inner
    return NO_OUTAGE
