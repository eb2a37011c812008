"""Openings, promotions and session ends that fail or are cancelled at one of their requests."""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import pytest
import trio
from typing_extensions import override

from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.model import Ino, ObjectKey
from s3fs_meta.objects.contract import ETag, Fetched, ObjectStore
from s3fs_meta.testing.faulty_store import Fault, FaultyStore
from tests.sync.conftest import Power, read_file, unmount, write_file
from tests.sync.follower.following import FOLLOWS, READS

pytestmark = pytest.mark.thorough

_T = TypeVar("_T")
CONTENT = b"hello" * 1000
NEVER = 1 << 60  # A request with this number is never sent.
WAYS = ["cancelled before", "cancelled after", "fails"]


class InterruptingStore(FaultyStore):
    """A store whose request number *at* fails, or is cancelled.

    As with a server, a request may take effect although its caller is cancelled.
    """

    def __init__(self, inner: ObjectStore, at: int, way: str) -> None:
        super().__init__(inner)
        self.scope = trio.CancelScope()
        self._at = at
        self._way = way
        self._is_answer_lost = False

    def begin(self, at: int) -> None:
        """Forget earlier calls and choose the call to interrupt."""
        self.calls.clear()
        self._at = at

    @property
    def is_reached(self) -> bool:
        """Return True if the chosen request was sent."""
        return len(self.calls) >= self._at

    @override
    async def enter(self, method: str, key: str) -> Fault | None:
        """Record a call; interrupt the chosen call before it takes effect."""
        fault = await super().enter(method, key)
        if len(self.calls) == self._at:
            if self._way == "fails":
                raise StoreUnavailableError(key, 1, 0.0, "away")
            self._is_answer_lost = self._way == "cancelled after"
            if not self._is_answer_lost:
                self.scope.cancel()
                await trio.lowlevel.checkpoint()
        return fault

    async def _answer(self, request: Callable[[], Awaitable[_T]]) -> _T:
        result = await request()
        if self._is_answer_lost:
            self._is_answer_lost = False
            self.scope.cancel()
            await trio.lowlevel.checkpoint()
        return result

    @override
    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        """Return an object."""
        return await self._answer(partial(super().get, key, max_bytes))

    @override
    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Store an object if no object has the key."""
        return await self._answer(partial(super().create, key, data))

    @override
    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        """Store an object if the key's current object has the version *etag*."""
        return await self._answer(partial(super().replace, key, data, etag))

    @override
    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete objects."""
        await self._answer(partial(super().delete, keys))


def is_released(power: Power) -> bool:
    """Return True if any host may acquire the lease."""
    return lease_codec.decode(lease_codec.KEY, power.store.objects[lease_codec.KEY]).released


async def _written(power: Power) -> Ino:
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        await unmount(session)
    return ino


async def _require_content(power: Power, host: str, ino: Ino) -> None:
    async with power.session(host, tasks=False) as session:
        assert await read_file(session, ino) == CONTENT
        assert session.volume.notices == ()
        await unmount(session)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_local", [True, False])
async def test_interrupted_opening_releases_the_lease(
    power: Power, is_local: bool, way: str
) -> None:
    """After an interrupted opening, this host and another host can mount the filesystem."""
    ino = await _written(power)
    objects = dict(power.store.objects)
    at, is_open = 0, False
    while not is_open:
        at += 1
        # Restore the bucket, so that no attempt replays the fence records of earlier attempts.
        if not is_local:
            power.store.objects = objects.copy()
        store = InterruptingStore(power.store, at, way)
        host = "a" if is_local else f"new{at}"
        with store.scope, contextlib.suppress(StoreUnavailableError):
            async with power.session(host, store=store, tasks=False) as session:
                is_open = not store.is_reached
                store.begin(NEVER)
                with trio.CancelScope(shield=True):
                    await unmount(session)
        assert is_released(power), f"the opening was interrupted at {store.calls[-10:]}"
    await _require_content(power, "c", ino)
    await _require_content(power, "a", ino)
    assert at > 10


async def test_cancelled_end_releases_the_lease(power: Power) -> None:
    """A mount limits the time of its end, because a busy disk may take minutes to sync."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        await session.flush_at_end()
        with trio.CancelScope() as scope:
            scope.cancel()
            await session.close()
        assert scope.cancelled_caught
    assert is_released(power)
    await _require_content(power, "c", ino)
    await _require_content(power, "a", ino)


async def test_lease_that_is_not_released_in_time_is_reported(
    power: Power, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that does not reply cannot block the end of a mount; a warning advises what to do."""
    store = FaultyStore(power.store)
    async with power.session("a", store=store, tasks=False) as session:
        ino = write_file(session, CONTENT)
        await session.flush_at_end()
        store.hold("replace")
        with trio.CancelScope() as scope:
            scope.cancel()
            await session.close()
        assert scope.cancelled_caught
    assert not is_released(power)
    assert "the lease was not released" in caplog.text
    await _require_content(power, "a", ino)


async def test_cancelled_release_of_the_lease_waits_for_the_reply(power: Power) -> None:
    store = InterruptingStore(power.store, NEVER, "cancelled before")
    async with power.session("a", store=store, tasks=False) as session:
        await session.flush_at_end()
        store.begin(1)
        with store.scope:
            await session.close()
        assert store.is_reached
    assert is_released(power)


@pytest.mark.parametrize("way", WAYS)
async def test_unmount_after_an_interrupted_promotion_releases_the_lease(
    power: Power, way: str
) -> None:
    ino = await _written(power)
    at, is_promoted = 0, False
    while not is_promoted:
        at += 1
        store = InterruptingStore(power.store, NEVER, way)
        async with power.session(
            "b", options=READS, session_options=FOLLOWS, store=store, tasks=False
        ) as session:
            store.begin(at)
            with store.scope, contextlib.suppress(StoreUnavailableError):
                await session.promote()
                is_promoted = not store.is_reached
            calls = store.calls.copy()
            store.begin(NEVER)
            await session.close()
        assert is_released(power), f"the promotion was interrupted at {calls}"
    await _require_content(power, "c", ino)
    await _require_content(power, "b", ino)
    assert at > 10
