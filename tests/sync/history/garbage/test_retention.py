"""Retention: which points in time and images are kept."""

import itertools

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from s3fs_meta.codec import envelope
from s3fs_meta.codec.changelog import Changelog, Kind, encode, key_of
from s3fs_meta.codec.image import NO_HASH, content_hash
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import NewerFormatError
from s3fs_meta.limits import IMAGES_KEPT
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.history.garbage.retention import (
    Image,
    TxgStamp,
    TxgTimes,
    base_of,
    floor_of,
    kept,
    may_rise,
    newest,
)
from s3fs_meta.testing.faulty_store import FaultyStore

PLAIN = Keyring(None, bytes(32))
UUID = "01234567-89ab-cdef-0123-456789abcdef"


def image(txg: int, created_ns: int) -> Image:
    """Return an image with a txg and a time."""
    return Image(Txg(txg), ObjectKey(f"image/{txg:012d}-1-0123456789abcdef/manifest"), created_ns)


async def chain_of(times: dict[int, int]) -> MemoryStore:
    """Return a store with one changelog per txg and time; each changelog has a separate epoch."""
    store = MemoryStore()
    before = NO_HASH
    for txg, created_ns in times.items():
        link = Changelog(
            kind=Kind.FENCE,
            txg=Txg(txg),
            epoch=Epoch(txg),
            nonce="00" * 16,
            uuid=UUID,
            schema_version=1,
            created_ns=created_ns,
            previous=before,
        )
        data = encode(link, PLAIN)
        before = content_hash(data)
        await store.create(key_of(Txg(txg)), data)
    return store


@settings(derandomize=True, max_examples=60)
@given(st.data())
def test_retention_floor_is_the_newest_txg_that_is_old_enough(data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=40))
    times = {number + 1: sum(steps[: number + 1]) for number in range(len(steps))}
    low = data.draw(st.integers(0, len(times)))
    high = data.draw(st.integers(low, len(times)))
    stamp = data.draw(st.integers(0, sum(steps) + 1))

    async def find() -> Txg:
        finder = TxgTimes(await chain_of(times), PLAIN, UUID)
        return await finder.newest_before(stamp, Txg(low), Txg(high))

    fitting = [txg for txg, time in times.items() if low < txg <= high and time <= stamp]
    assert trio.run(find) == max(fitting, default=low)


async def test_unreadable_changelogs_lower_the_retention_floor() -> None:
    """A changelog whose time cannot be read counts as too young to be deleted."""
    store = await chain_of({txg: txg * 10 for txg in range(1, 21)})
    finder = TxgTimes(store, PLAIN, UUID)
    for txg in (9, 10, 11):
        store.objects[key_of(Txg(txg))] = b"damaged"
    assert await finder.newest_before(155, Txg(0), Txg(20)) == 15
    assert await finder.newest_before(105, Txg(0), Txg(20)) == 8
    assert await finder.stamp(Txg(10)) is None
    assert await finder.stamp(Txg(12)) == TxgStamp(120, Epoch(12))


async def test_search_for_the_retention_floor_reads_each_changelog_at_most_once() -> None:
    """The retention floor is found by a binary search over the times of changelogs."""
    store = FaultyStore(await chain_of({txg: txg for txg in range(1, 513)}))
    finder = TxgTimes(store, PLAIN, UUID)
    assert await finder.newest_before(300, Txg(0), Txg(512)) == 300
    read = len(store.calls)
    assert 1 <= read <= 11
    assert await finder.newest_before(300, Txg(0), Txg(512)) == 300
    assert len({call.key for call in store.calls}) == len(store.calls)


async def test_changelog_of_a_newer_version_prevents_garbage_collection() -> None:
    """A changelog of a newer format prevents deletions, because its meaning is unknown."""
    store, key = MemoryStore(), key_of(Txg(1))
    link = Changelog(Kind.FENCE, Txg(1), Epoch(1), "00" * 16, UUID, 1, 5, NO_HASH)
    payload = envelope.decode(b"changes", key, encode(link, PLAIN), PLAIN)
    newer = payload.replace(b'"version": 1', b'"version": 3')
    assert newer != payload
    await store.create(key, envelope.encode(b"changes", key, newer, PLAIN))
    with pytest.raises(NewerFormatError):
        await TxgTimes(store, PLAIN, UUID).stamp(Txg(1))


def test_garbage_collection_keeps_the_last_images_and_the_base_image_of_the_retention() -> None:
    """The base image is kept, because a restore of the oldest retained point begins with it."""
    images = [image(txg, txg * 100) for txg in (1, 5, 9, 12)]

    assert [one.txg for one in newest(images)] == [12, 9]
    assert base_of(images, Txg(8)) == images[1]
    assert base_of(images, Txg(0)) is None
    assert kept(images, Txg(9), 0) == {images[2].key, images[3].key}
    assert kept(images, Txg(8), 10_000) == {images[1].key, images[2].key, images[3].key}
    assert kept(images, Txg(0), 0) == {one.key for one in images}


@settings(derandomize=True)
@given(
    st.lists(st.integers(1, 1000), min_size=3, max_size=60), st.integers(0, 60), st.integers(0, 999)
)
def test_some_of_many_images_within_the_retention_are_deleted(
    steps: list[int], floor: int, retention_ns: int
) -> None:
    """Images are deleted only if each retained point still has a close earlier image."""
    images = [image(number, sum(steps[:number])) for number in range(len(steps))]
    stay = [one for one in images if one.key in kept(images, Txg(floor), retention_ns)]
    base = base_of(images, Txg(floor))
    assert base is not None
    assert stay[0] == base or floor >= len(images) - 1
    assert set(images[-2:]) <= set(stay)
    between = stay[: -len(images[-2:])]
    for one, other in itertools.pairwise(between):
        assert other.created_ns - one.created_ns >= retention_ns // 8
        assert other.created_ns - one.created_ns <= retention_ns // 8 + max(steps)


def test_image_with_a_wrong_time_does_not_displace_other_images() -> None:
    """An image with a time far in the future must not cause the deletion of other images."""
    images = [image(1, 100), image(2, 10**9), image(3, 300), image(4, 400), image(5, 500)]
    assert kept(images, Txg(1), 80) == {images[at].key for at in (0, 1, 2, 3, 4)}


def test_txgs_published_as_images_are_kept_within_the_retention() -> None:
    """A txg that was published as an image is kept if it is newer than the base image."""
    images = [image(txg, txg) for txg in range(1, 8)]
    images[0] = images[0]._replace(is_txg=True)
    images[3] = images[3]._replace(is_txg=True)
    assert kept(images, Txg(2), 1000) == {images[at].key for at in (1, 3, 5, 6)}


def test_retention_floor_does_not_decrease_or_pass_the_last_images() -> None:
    images = [image(100 + number, number) for number in range(IMAGES_KEPT + 1)]
    oldest_kept = Txg(101)
    assert floor_of(images, Txg(7), Txg(50)) == 50
    assert floor_of(images, Txg(60), Txg(50)) == 60
    assert floor_of(images, Txg(7), Txg(102)) == oldest_kept
    assert may_rise(images[1:])
    assert not may_rise(images[2:])
