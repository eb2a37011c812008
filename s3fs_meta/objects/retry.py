"""Another attempt where the error says that it is worth one.

Owns: how often, how long and with what pauses a request is repeated, and recognising a write of
ours whose answer was lost. The only retry loop there is: the stores below try once.
Does not know: stores. Repeats exactly TransientStoreError.
"""

import random
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeVar

import trio

from s3fs_meta.errors import (
    ObjectMissingError,
    ObjectTooLargeError,
    PreconditionError,
    S3fsError,
    StoreUnavailableError,
    TransientStoreError,
)
from s3fs_meta.limits import (
    STORE_ATTEMPTS_MAX,
    STORE_CONNECT_TIMEOUT_S,
    STORE_DELAY_S_MAX,
    STORE_DELAY_S_MIN,
    STORE_SILENCE_S_MAX,
    STORE_TOTAL_S_MAX,
)
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ETag, Fetched, ObjectInfo, ObjectStore, listing_of

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to give up."""

    attempts_max: int = STORE_ATTEMPTS_MAX
    total_s_max: float = STORE_TOTAL_S_MAX  # no attempt begins later than this after the first
    delay_s_min: float = STORE_DELAY_S_MIN
    delay_s_max: float = STORE_DELAY_S_MAX

    def delay_s(self, attempts_made: int, jitter: float) -> float:
        """Return the pause before the next attempt: doubled each time, halved by *jitter* in 0..1.

        Source: AWS Architecture Blog, "Exponential Backoff And Jitter" (equal jitter).
        """
        full = min(self.delay_s_max, self.delay_s_min * 2.0 ** (attempts_made - 1))
        return full * (1 + jitter) / 2

    def bound_s(self, attempt_s: float) -> float:
        """Return how long a request is tried at most if every attempt takes so long."""
        pauses_s = sum(self.delay_s(made, 1.0) for made in range(1, self.attempts_max))
        return min(self.attempts_max * attempt_s + pauses_s, self.total_s_max + attempt_s)


class _Attempts:
    """The attempts at one request so far."""

    def __init__(
        self, key: str, policy: RetryPolicy, jitter: random.Random, contact: "_Contact"
    ) -> None:
        self._key, self._policy, self._jitter, self._contact = key, policy, jitter, contact
        self._began_s = trio.current_time()
        self._made = 0

    async def pause_after(self, error: TransientStoreError) -> None:
        """Wait until the next attempt may begin.

        Raises:
            StoreUnavailableError: there will be none.
        """
        self._made += 1
        if error.unresolved and not self._contact.is_made:
            self._give_up(error, trio.current_time() - self._began_s)
        delay_s = self._policy.delay_s(self._made, self._jitter.random())
        waited_s = trio.current_time() - self._began_s
        if self._made >= self._policy.attempts_max or waited_s + delay_s > self._policy.total_s_max:
            self._give_up(error, waited_s)
        await trio.sleep(delay_s)

    def _give_up(self, error: TransientStoreError, waited_s: float) -> NoReturn:
        raise StoreUnavailableError(self._key, self._made, waited_s, error.code) from error


class _Contact:
    """Whether a store has ever answered; until then the user is not left waiting in silence."""

    def __init__(self, url: str, policy: RetryPolicy, tell: Callable[[str], None]) -> None:
        self._url, self._policy, self._tell = url, policy, tell
        self._is_told = False
        self.is_made = False

    async def watched(self, request: Callable[[], Awaitable[_Result]]) -> _Result:
        """Make one attempt; report a first one that fails or takes long. Raises as *request*."""
        if self.is_made:
            return await request()
        began_s = trio.current_time()
        with self._watching():
            try:
                async with _alarm(STORE_SILENCE_S_MAX, self._report_silence):
                    result = await request()
            except TransientStoreError as exc:
                self._report_failure(exc, trio.current_time() - began_s)
                raise
        return result

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Note whether the store has answered, be it with a refusal."""
        try:
            yield
        except TransientStoreError:
            raise
        except S3fsError:
            self.is_made = True
            raise
        self.is_made = True

    def _report_silence(self) -> None:
        bound_s = self._policy.bound_s(STORE_CONNECT_TIMEOUT_S)
        self._report(f"{self._url} has not answered yet, trying for up to {bound_s:.0f} s")

    def _report_failure(self, error: TransientStoreError, attempt_s: float) -> None:
        if error.unresolved:
            return  # that is the end, and the error says so
        bound_s = self._policy.bound_s(attempt_s)
        self._report(f"cannot reach {self._url}, trying for up to {bound_s:.0f} s: {error.code}")

    def _report(self, text: str) -> None:
        if not self._is_told:
            self._is_told = True
            self._tell(text)


@asynccontextmanager
async def _alarm(after_s: float, call: Callable[[], None]) -> AsyncIterator[None]:
    """Call a function if the block has not ended after some time.

    An error of the block is raised as it was, not in a group.
    """

    async def wait() -> None:
        await trio.sleep(after_s)
        call()

    error: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        try:
            yield
        except Exception as exc:  # noqa: BLE001 - raised below
            error = exc
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error


def tell_nobody(_text: str) -> None:
    """Report nothing."""


class RetryingStore:
    """A store that repeats what failed for a moment; then StoreUnavailableError."""

    def __init__(
        self,
        inner: ObjectStore,
        policy: RetryPolicy | None = None,
        jitter: random.Random | None = None,
        tell: Callable[[str], None] = tell_nobody,
    ) -> None:
        """Wrap a store.

        Args:
            inner: tries once.
            policy: when to give up.
            jitter: of the pauses.
            tell: told once if the store is silent or fails before it has ever answered.
        """
        self.inner = inner
        self.retries = 0  # attempts after a first one, over all requests
        self._policy = policy or RetryPolicy()
        self._jitter = jitter or random.Random()  # noqa: S311 - spreads load, hides nothing
        self._contact = _Contact(inner.url, self._policy, tell)

    @property
    def url(self) -> str:
        """Return the inner store's."""
        return self.inner.url

    @property
    def has_own_clock(self) -> bool:
        """Return the inner store's."""
        return self.inner.has_own_clock

    async def now_ns(self) -> int | None:
        """Return the time by the store's clock, of the attempt that succeeded."""
        return await self._repeat("the store's clock", self.inner.now_ns)

    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        """Return a whole object."""
        return await self._repeat(key, partial(self.inner.get, key, max_bytes))

    async def get_range(self, key: ObjectKey, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)`` of an object."""
        return await self._repeat(key, partial(self.inner.get_range, key, start, stop))

    async def put(self, key: ObjectKey, data: bytes | memoryview) -> None:
        """Store an object, replacing any."""
        await self._repeat(key, partial(self.inner.put, key, data))

    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Store an object only if the key is free; one attempt of ours may be the one that won."""
        return await self._conditional(key, data, partial(self.inner.create, key, data))

    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        """Store an object only if its present version is *etag*, or ours since an attempt."""
        return await self._conditional(key, data, partial(self.inner.replace, key, data, etag))

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete objects."""
        key = keys[0] if keys else ""
        await self._repeat(key, partial(self.inner.delete, keys))

    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield objects, ascending; after an error go on behind the last one yielded.

        The bounds count from the last object, so a long listing may meet any number of errors.
        """
        attempts = self._attempts(listing_of(prefix))
        while True:
            try:
                async with aclosing(self.inner.list(prefix, after=after)) as found:
                    async for info in found:
                        after = info.key
                        attempts = self._attempts(listing_of(prefix))
                        yield info
                    return
            except TransientStoreError as exc:
                await attempts.pause_after(exc)
                self.retries += 1

    async def close(self) -> None:
        """Close the inner store."""
        await self.inner.close()

    def _attempts(self, key: str) -> _Attempts:
        return _Attempts(key, self._policy, self._jitter, self._contact)

    async def _repeat(self, key: str, request: Callable[[], Awaitable[_Result]]) -> _Result:
        attempts = self._attempts(key)
        while True:
            try:
                return await self._contact.watched(request)
            except TransientStoreError as exc:
                await attempts.pause_after(exc)
                self.retries += 1

    async def _conditional(
        self, key: ObjectKey, data: bytes | memoryview, request: Callable[[], Awaitable[ETag]]
    ) -> ETag:
        """Repeat a conditional write, whose earlier attempt may have been done unseen.

        An attempt that is refused after one with an unknown outcome may be refused because of
        it: then the object has our bytes.
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
            etag = await self._etag_if_ours(key, data) if unknown else None
            if etag is None:
                raise refused
            return etag

        return await self._repeat(key, attempt)

    async def _etag_if_ours(self, key: ObjectKey, data: bytes | memoryview) -> ETag | None:
        try:
            stored = await self.inner.get(key, len(data))
        except (ObjectMissingError, ObjectTooLargeError):
            return None
        return stored.etag if stored.data == data else None
