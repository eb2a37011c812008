"""objects.probe: recognising stores that do not honour conditions."""

import pytest
import trio
from typing_extensions import override

from s3fs_meta.errors import StoreError, TransientStoreError, UnexpectedStoreError
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ETag
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.objects.probe import probe
from s3fs_meta.objects.retry import RetryingStore
from s3fs_meta.testing.faulty_store import FaultyStore


@pytest.fixture
def faulty() -> FaultyStore:
    """Return a store that works correctly by default."""
    return FaultyStore(MemoryStore())


async def is_empty(store: FaultyStore) -> bool:
    """Return whether nothing is stored."""
    return [info async for info in store.list("")] == []


async def test_correct_store_passes(faulty: FaultyStore) -> None:
    """The probe leaves no object in the store."""
    assert await probe(faulty, "c0ffee")
    assert await is_empty(faulty)


async def test_store_that_ignores_every_condition_fails(faulty: FaultyStore) -> None:
    """The second create of the same key succeeds."""
    faulty.ignores_conditions = True

    assert not await probe(faulty, "c0ffee")
    assert await is_empty(faulty)


async def test_store_that_ignores_versions_fails() -> None:
    """Some servers know If-None-Match and not If-Match."""

    class HalfHonest(MemoryStore):
        @override
        async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
            await self.put(key, data)
            return (await self.get(key, len(data))).etag

    assert not await probe(HalfHonest(), "c0ffee")


async def test_store_that_does_not_support_conditions_fails(faulty: FaultyStore) -> None:
    """The store answers NotImplemented."""
    faulty.fail("create", UnexpectedStoreError("probe/c0ffee", "NotImplemented: header"))

    assert not await probe(faulty, "c0ffee")


async def test_failing_store_is_an_error(faulty: FaultyStore) -> None:
    """A failing store is distinguished from one without conditions."""
    faulty.fail("create", UnexpectedStoreError("probe/c0ffee", "Teapot"))
    with pytest.raises(UnexpectedStoreError):
        await probe(faulty, "c0ffee")

    faulty.down = TransientStoreError("probe/c0ffee", "down")
    with pytest.raises(StoreError):
        await probe(faulty, "c0ffee")


@pytest.mark.parametrize("method", ["create", "replace"])
async def test_lost_reply_does_not_mislead_the_probe(
    autojump_clock: trio.testing.MockClock, faulty: FaultyStore, method: str
) -> None:
    """A repeated write that finds its own bytes is no second success."""
    faulty.lose_reply(method)

    assert await probe(RetryingStore(faulty), "c0ffee")


async def test_cancelled_probe_removes_its_object(faulty: FaultyStore) -> None:
    """An interrupted mkfs must not leave the object of the probe."""
    gate = faulty.hold("replace")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe, faulty, "c0ffee")
        await gate.wait_started()
        assert not await is_empty(faulty)
        nursery.cancel_scope.cancel()

    assert await is_empty(faulty)
