"""Copies of objects in the bucket that a repair replaces."""

import os
from pathlib import Path

import pytest
from typing_extensions import override

from s3fs_meta.clock import SystemClock
from s3fs_meta.errors import ObjectTooLargeError, StoreError
from s3fs_meta.limits import OBJECT_BYTES_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.host_state.replaced_objects import ReplacedObjects

KEY = ObjectKey("pack/00/1-00")


async def _too_large(store: MemoryStore) -> ObjectTooLargeError:
    with pytest.raises(ObjectTooLargeError) as caught:
        await store.get(KEY, 1)
    return caught.value


async def test_large_and_small_replaced_objects_are_saved_completely(tmp_path: Path) -> None:
    store = MemoryStore()
    store.objects[KEY] = bytes(range(256)) * 9 + b"end"
    replaced = ReplacedObjects(store, tmp_path, SystemClock(), range_bytes=1000)

    large = await replaced.save_oversized(await _too_large(store))
    small = await replaced.save(KEY, b"damaged")

    assert large.read_bytes() == store.objects[KEY]
    assert small.read_bytes() == b"damaged"
    assert {large.name, small.name} == set(os.listdir(tmp_path))
    assert all(path.name.startswith("replaced-pack-00-1-00-") for path in (large, small))


async def test_object_larger_than_every_valid_object_is_not_saved(tmp_path: Path) -> None:
    replaced = ReplacedObjects(MemoryStore(), tmp_path, SystemClock())
    largest = OBJECT_BYTES_MAX
    with pytest.raises(ObjectTooLargeError, match=f"{largest + 1} bytes, more than the maximum"):
        await replaced.save_oversized(ObjectTooLargeError(KEY, largest + 1, 1, "etag"))
    assert os.listdir(tmp_path) == []


class _EndsEarly(MemoryStore):
    """A store that becomes unavailable after the first range of an object."""

    @override
    async def get_range(self, key: ObjectKey, start: int, stop: int) -> bytes:
        if start > 0:
            raise StoreError("unavailable")
        return await super().get_range(key, start, stop)


async def test_failed_copy_of_a_replaced_object_leaves_no_file(tmp_path: Path) -> None:
    store = _EndsEarly()
    store.objects[KEY] = bytes(1001)
    replaced = ReplacedObjects(store, tmp_path, SystemClock(), range_bytes=1000)
    with pytest.raises(StoreError):
        await replaced.save_oversized(await _too_large(store))
    assert os.listdir(tmp_path) == []
