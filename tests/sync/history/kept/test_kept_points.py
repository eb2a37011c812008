"""Kept points as objects in the bucket."""

import pytest

from s3fs_meta.codec import kept_point
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, SettingsError, TransientStoreError
from s3fs_meta.limits import MIB
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.history.kept import kept_points
from s3fs_meta.sync.history.kept.kept_points import KeptPointReader, KeptPoints
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.codec.kept_points import UUID, point_of
from tests.damage import flipped

KEYRING = Keyring.from_master(bytes(range(32)))


def store_with(*names: str) -> MemoryStore:
    """Return a store with a kept point for each name, at txg 42 and at the following txgs."""
    store = MemoryStore()
    for number, name in enumerate(names):
        point = point_of(KEYRING, name, txg=42 + number, random=number)
        store.objects[point.key] = kept_point.encode(point, KEYRING)
    return store


def key_of(store: MemoryStore, number: int = 0) -> ObjectKey:
    """Return the key of a kept point by its index; the oldest point has index 0."""
    return sorted(key for key in store.objects if key.startswith("kept/"))[number]


async def test_kept_points_are_sorted_by_txg_and_found_by_name() -> None:
    store = store_with("a", "b")
    reader = KeptPointReader(store, KEYRING, UUID)
    kept = await reader.all()
    assert [point.name for point in kept.points] == ["a", "b"]
    assert kept.unreadable == ()
    assert (await reader.find("b")).txg == 43
    with pytest.raises(SettingsError, match="'c' is not a point in time: there is no kept point"):
        await reader.find("c")


async def test_unchanged_kept_point_is_read_only_once() -> None:
    store = FaultyStore(store_with("a", "b"))
    reader = KeptPointReader(store, KEYRING, UUID)
    first = await reader.all()
    store.calls.clear()
    assert await reader.all() == first
    assert [call.method for call in store.calls] == ["list"]


async def test_kept_point_is_found_by_name_with_a_listing_and_one_request() -> None:
    store = FaultyStore(store_with("a", "b", "c"))
    await KeptPointReader(store, KEYRING, UUID).find("b")
    assert [call.method for call in store.calls] == ["list", "get"]


@pytest.mark.parametrize("harm", ["flipped", "empty", "huge", "of another name"])
async def test_damaged_kept_point_is_listed_at_the_txg_in_its_key(harm: str) -> None:
    store = store_with("a", "b")
    key, other = key_of(store), key_of(store, 1)
    store.objects[key] = {
        "flipped": flipped(store.objects[key], -1),
        "empty": b"",
        "huge": bytes(MIB),
        "of another name": store.objects[other],
    }[harm]
    reader = KeptPointReader(store, KEYRING, UUID)
    kept = await reader.all()
    assert [point.name for point in kept.points] == ["b"]
    assert [(one.key, one.txg) for one in kept.unreadable] == [(key, 42)]
    with pytest.raises(FormatError):
        await reader.find("a")


async def test_kept_point_of_another_filesystem_is_unreadable() -> None:
    store = store_with("a")
    kept = await KeptPointReader(store, KEYRING, UUID.replace("0b", "0c")).all()
    assert kept.points == ()
    assert len(kept.unreadable) == 1


async def test_foreign_objects_are_not_listed_as_kept_points() -> None:
    store = store_with("a")
    store.objects[ObjectKey("kept/readme.txt")] = b"mine"
    store.objects[ObjectKey("kept/a")] = b"mine"
    kept = await KeptPointReader(store, KEYRING, UUID).all()
    assert len(kept.points) == 1
    assert kept.unreadable == ()


@pytest.mark.parametrize("method", ["list", "get"])
async def test_listing_kept_points_of_an_unavailable_store_fails(method: str) -> None:
    store = FaultyStore(store_with("a", "b"))
    store.fail(method)
    reader = KeptPointReader(store, KEYRING, UUID)
    with pytest.raises(TransientStoreError):
        await reader.all()
    assert len((await reader.all()).points) == 2


async def test_kept_points_beyond_the_maximum_are_counted_but_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_points, "KEPT_POINTS_MAX", 1)
    store = FaultyStore(store_with("a", "b", "c"))
    kept = await KeptPointReader(store, KEYRING, UUID).all()
    assert [point.name for point in kept.points] == ["a"]
    assert [one.txg for one in kept.unreadable] == [43, 44]
    assert [call.method for call in store.calls] == ["list", "get"]


def test_kept_points_with_equal_names_are_listed_latest_first() -> None:
    """Two kept points can have one name if a host stored a point after it lost the lease."""
    both = [point_of(KEYRING, "a", txg=txg, random=txg) for txg in (42, 43)]
    assert [point.txg for point in KeptPoints(tuple(both)).named("a")] == [43, 42]
