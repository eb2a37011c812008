"""Metrics of a store: counts of requests and of their bytes."""

import pytest

from s3fs_meta.errors import ObjectMissingError, PreconditionError
from s3fs_meta.limits import PACK_BYTES_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.objects.metrics import METHODS, CountingStore, MethodCounts
from tests.contract.store_contract import keys_of

KEY = ObjectKey("lease")


async def test_requests_and_bytes_are_counted_by_method() -> None:
    """The store counts the bytes that writes send and that reads receive."""
    store = CountingStore(MemoryStore())

    etag = await store.create(KEY, b"12345")
    await store.replace(KEY, memoryview(b"123"), etag)
    await store.put(KEY, b"1234567")
    await store.get(KEY, PACK_BYTES_MAX)
    await store.get_range(KEY, 2, 4)
    await keys_of(store)
    await store.delete([KEY])
    await store.now_ns()

    assert store.counts == {
        "now": MethodCounts(1, 0, 0, 0),
        "create": MethodCounts(1, 0, 5, 0),
        "replace": MethodCounts(1, 0, 3, 0),
        "put": MethodCounts(1, 0, 7, 0),
        "get": MethodCounts(1, 0, 0, 7),
        "get_range": MethodCounts(1, 0, 0, 2),
        "list": MethodCounts(1, 0, 0, 0),
        "delete": MethodCounts(1, 0, 0, 0),
    }


async def test_failed_request_is_counted_without_bytes() -> None:
    store = CountingStore(MemoryStore())
    await store.put(KEY, b"")

    with pytest.raises(ObjectMissingError):
        await store.get_range(ObjectKey("absent"), 0, 1)

    assert store.counts["get_range"] == MethodCounts(requests=1, errors=1)


async def test_unmet_condition_of_a_write_is_not_counted_as_an_error() -> None:
    """An unmet condition is a normal response, because each mount tests two unmet conditions."""
    store = CountingStore(MemoryStore())
    first = await store.create(KEY, b"first")
    await store.replace(KEY, b"second", first)

    with pytest.raises(PreconditionError):
        await store.create(KEY, b"12345")
    with pytest.raises(PreconditionError):
        await store.replace(KEY, b"12345", first)

    assert store.counts["create"] == MethodCounts(requests=2, errors=0, sent_bytes=5)
    assert store.counts["replace"] == MethodCounts(requests=2, errors=0, sent_bytes=6)


async def test_missing_key_is_not_counted_as_an_error() -> None:
    """A missing key is a normal response to a read, because callers poll for keys."""
    store = CountingStore(MemoryStore())

    for _ in range(2):
        with pytest.raises(ObjectMissingError):
            await store.get(KEY, PACK_BYTES_MAX)
    with pytest.raises(ObjectMissingError):
        await store.get_range(KEY, 0, 1)

    assert store.counts["get"] == MethodCounts(requests=2, errors=0)
    assert store.counts["get_range"] == MethodCounts(requests=1, errors=1)


def test_every_store_method_has_a_counter_before_its_first_request() -> None:
    assert tuple(CountingStore(MemoryStore()).counts) == METHODS
