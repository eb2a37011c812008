"""Properties of the store in memory that other stores do not have."""

from s3fs_meta.limits import PACK_BYTES_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.memory import MemoryStore


async def test_objects_in_a_memory_store_survive_closing_the_store() -> None:
    """A test can close a store in memory and mount its objects a second time."""
    store = MemoryStore("memory:test")
    await store.put(ObjectKey("a"), b"content")
    await store.close()

    assert (await store.get(ObjectKey("a"), PACK_BYTES_MAX)).data == b"content"
    assert store.url == "memory:test"


async def test_listing_is_a_consistent_snapshot() -> None:
    """Objects that are added or deleted during a listing do not change the listing."""
    store = MemoryStore()
    store.objects = {ObjectKey(key): b"" for key in "abc"}
    keys = []

    async for info in store.list(""):
        keys.append(info.key)
        await store.delete([ObjectKey("c")])
        await store.put(ObjectKey("d"), b"")

    assert keys == ["a", "b", "c"]
