"""The probe: it detects stores that ignore the conditions of conditional writes."""

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
from tests.tasks import running


@pytest.fixture
def faulty() -> FaultyStore:
    """Return a store that honours conditions."""
    return FaultyStore(MemoryStore())


async def is_empty(store: FaultyStore) -> bool:
    """Return whether the store contains no objects."""
    return [info async for info in store.list("")] == []


async def test_probe_accepts_a_correct_store(faulty: FaultyStore) -> None:
    """The probe succeeds and leaves no object."""
    assert await probe(faulty, "c0ffee")
    assert await is_empty(faulty)


async def test_probe_rejects_a_store_that_ignores_all_conditions(faulty: FaultyStore) -> None:
    """The probe fails if the store accepts a second create of the same key."""
    faulty.ignores_conditions = True

    assert not await probe(faulty, "c0ffee")
    assert await is_empty(faulty)


async def test_probe_rejects_a_store_that_ignores_versions() -> None:
    """The probe fails if a store honours If-None-Match but not If-Match."""

    class HalfHonest(MemoryStore):
        @override
        async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
            await self.put(key, data)
            return (await self.get(key, len(data))).etag

    assert not await probe(HalfHonest(), "c0ffee")


async def test_probe_rejects_a_store_without_conditional_writes(faulty: FaultyStore) -> None:
    faulty.fail("create", UnexpectedStoreError("probe/c0ffee", "NotImplemented: header"))

    assert not await probe(faulty, "c0ffee")


async def test_probe_raises_errors_of_the_store(faulty: FaultyStore) -> None:
    """The probe raises an error of the store instead of reporting ignored conditions."""
    faulty.fail("create", UnexpectedStoreError("probe/c0ffee", "Teapot"))
    with pytest.raises(UnexpectedStoreError):
        await probe(faulty, "c0ffee")

    faulty.down = TransientStoreError("probe/c0ffee", "down")
    with pytest.raises(StoreError):
        await probe(faulty, "c0ffee")


@pytest.mark.parametrize("method", ["create", "replace"])
async def test_lost_reply_does_not_change_the_result_of_the_probe(
    autojump_clock: trio.testing.MockClock, faulty: FaultyStore, method: str
) -> None:
    """If a response is lost, the probe does not count the retry as a second success."""
    faulty.lose_reply(method)

    assert await probe(RetryingStore(faulty), "c0ffee")


async def test_cancelled_probe_deletes_its_object(faulty: FaultyStore) -> None:
    gate = faulty.hold("replace")

    async with running(probe, faulty, "c0ffee"):
        await gate.wait_started()
        assert not await is_empty(faulty)

    assert await is_empty(faulty)
