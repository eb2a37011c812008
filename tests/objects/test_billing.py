"""Counting of billed requests by class, cause and day, with retries, listing pages and parts."""

import pytest
import trio

from s3fs_meta.codec import changelog, image, lease, level, pack, superblock
from s3fs_meta.errors import ObjectMissingError
from s3fs_meta.limits import DELETE_BATCH_KEYS, LIST_PAGE_KEYS, PACK_BYTES_MAX
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects import probe
from s3fs_meta.objects.billing import (
    DAY_NS,
    Billed,
    Cause,
    Meter,
    MeteredStore,
    RequestClass,
    cause_of,
    part,
)
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.objects.retry import RetryingStore
from s3fs_meta.objects.s3 import S3Store
from s3fs_meta.objects.s3_access import S3Place
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.contract.store_contract import keys_of
from tests.objects.s3_double import (
    AT_ONCE,
    BUCKET,
    DELETED,
    KEY,
    PUT_DONE,
    Drop,
    Reply,
    S3Double,
    error,
    listing,
)

DAY = 20_000
KEYS = {
    Cause.DATA: pack.new_key(Epoch(7), bytes(16)),
    Cause.CHANGELOGS: changelog.key_of(Txg(3)),
    Cause.LEVELS: level.key_of(1, Txg(5)),
    Cause.IMAGES: image.manifest_key(Txg(3), Epoch(1), bytes(8)),
    Cause.LEASE: lease.KEY,
    Cause.MOUNT: superblock.COPY_KEY,
}


class DayClock:
    """A clock that is stopped at noon of a day."""

    def __init__(self) -> None:
        self.day = DAY

    def now_ns(self) -> int:
        """Return the time at noon of the clock's day."""
        return self.day * DAY_NS + DAY_NS // 2


def counted(meter: Meter, day: int = DAY) -> dict[str, int]:
    """Return the counts of requests by cause and class."""
    return {" ".join(name): billed.requests for name, billed in meter.seen().get(day, {}).items()}


def test_object_key_determines_the_billing_cause_of_a_write() -> None:
    for cause, key in KEYS.items():
        assert cause_of(RequestClass.PUT, key) is cause
    part_key = changelog.part_key(changelog.part_prefix(Txg(3), Epoch(1), bytes(8)), 0)
    assert cause_of(RequestClass.PUT, part_key) is Cause.CHANGELOGS


def test_object_key_determines_the_billing_cause_of_a_read() -> None:
    expected = {Cause.DATA: Cause.READS, Cause.LEASE: Cause.LEASE}
    for cause, key in KEYS.items():
        assert cause_of(RequestClass.GET, key) is expected.get(cause, Cause.MOUNT)
    assert cause_of(RequestClass.LIST, "pack/") is Cause.MOUNT
    assert cause_of(RequestClass.DELETE, KEYS[Cause.DATA]) is Cause.GARBAGE


async def test_billing_cause_set_by_a_function_applies_to_its_tasks_and_threads() -> None:
    key = KEYS[Cause.CHANGELOGS]
    found = []

    async def ask() -> None:
        found.append(await trio.to_thread.run_sync(cause_of, RequestClass.GET, key))

    @part(Cause.FOLLOWING)
    async def follow() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
        found.append(cause_of(RequestClass.PUT, key))

    await follow()
    await ask()

    assert found == [Cause.FOLLOWING, Cause.FOLLOWING, Cause.CHANGELOGS, Cause.MOUNT]


async def test_calls_of_a_local_store_are_counted_like_bucket_requests() -> None:
    meter = Meter(DayClock())
    store = MeteredStore(MemoryStore(), meter)

    etag = await store.create(lease.KEY, b"12345")
    await store.replace(lease.KEY, b"123", etag)
    await store.put(KEY, b"1234567")
    await store.get(KEY, PACK_BYTES_MAX)
    await store.get_range(KEY, 2, 4)
    await keys_of(store)
    await store.now_ns()
    await store.delete([KEY])
    await store.delete([])

    assert meter.seen() == {
        DAY: {
            ("lease", "put"): Billed(2, 8, 0),
            ("data", "put"): Billed(1, 7, 0),
            ("reads", "get"): Billed(2, 0, 9),
            ("mount", "list"): Billed(2, 0, 0),
            ("garbage", "delete"): Billed(1, 0, 0),
        }
    }


async def test_each_listing_page_and_each_batch_delete_counts_as_one_request() -> None:
    meter, inner = Meter(DayClock()), MemoryStore()
    store = MeteredStore(inner, meter)
    keys = [ObjectKey(f"pack/{number:06}") for number in range(2 * LIST_PAGE_KEYS + 1)]

    for count, pages in ((0, 1), (LIST_PAGE_KEYS, 1), (LIST_PAGE_KEYS + 1, 2), (len(keys), 3)):
        inner.objects = dict.fromkeys(keys[:count], b"")
        await keys_of(store)
        assert sum(billed.requests for billed in meter.take()[DAY].values()) == pages
    await store.delete(keys[: 2 * DELETE_BATCH_KEYS + 1])

    assert counted(meter) == {"garbage delete": 3}


async def test_retries_and_requests_for_missing_keys_are_counted() -> None:
    meter = Meter(DayClock())
    faulty = FaultyStore(MemoryStore())
    store = RetryingStore(MeteredStore(faulty, meter), AT_ONCE)
    faulty.fail("put", times=2)
    await store.put(KEY, b"123")
    with pytest.raises(ObjectMissingError):
        await store.get(lease.KEY, PACK_BYTES_MAX)

    assert counted(meter) == {"data put": 3, "lease get": 1}


def test_saved_request_counts_can_be_restored() -> None:
    clock = DayClock()
    meter = Meter(clock)
    meter.count(RequestClass.GET, KEY)
    clock.day += 1
    meter.count(RequestClass.GET, KEY, received_bytes=5)

    taken = meter.take()
    assert meter.seen() == {}
    meter.add(taken)
    meter.add(taken)

    assert {day: list(counts.values()) for day, counts in meter.seen().items()} == {
        DAY: [Billed(2, 0, 0)],
        DAY + 1: [Billed(2, 0, 10)],
    }


# --- billing of several buckets ------------------------------------------------------------------


def bucket(double: S3Double, meter: Meter) -> RetryingStore:
    """Return a bucket on a server with programmed responses."""
    store = S3Store(BUCKET, "", S3Place(double.url), multipart_bytes=5 << 20, meter=meter)
    return RetryingStore(store, AT_ONCE)


async def test_only_bucket_responses_with_a_price_are_counted(double: S3Double) -> None:
    """Retries and responses with status 404 are billed, but not 5xx errors or lost responses."""
    meter = Meter(DayClock())
    store = bucket(double, meter)
    double.answer(error(503, "SlowDown"), Drop(), PUT_DONE, error(404, "NoSuchKey"))

    await store.put(KEY, b"123")
    with pytest.raises(ObjectMissingError):
        await store.get(lease.KEY, PACK_BYTES_MAX)

    assert len(double.seen) == 4
    assert counted(meter) == {"data put": 1, "lease get": 1}
    assert meter.seen()[DAY]["data", "put"] == Billed(1, 3, 0)


async def test_only_bytes_of_response_bodies_are_counted(double: S3Double) -> None:
    meter = Meter(DayClock())
    store = bucket(double, meter)
    page = listing(["a", "b"])
    double.answer(Reply(200, b"12345", {"ETag": '"1"'}), page)

    await store.get(KEY, PACK_BYTES_MAX)
    await keys_of(store)

    assert meter.seen() == {
        DAY: {
            ("reads", "get"): Billed(1, 0, 5),
            ("mount", "list"): Billed(1, 0, len(page.body)),
        }
    }


async def test_listing_pages_and_deletions_of_a_bucket_are_counted(double: S3Double) -> None:
    meter = Meter(DayClock())
    store = bucket(double, meter)
    double.answer(listing(["a"], "next"), listing(["b"]), DELETED, DELETED)

    await keys_of(store)
    await store.delete([ObjectKey(f"pack/{number:06}") for number in range(DELETE_BATCH_KEYS + 1)])

    assert counted(meter) == {"mount list": 2, "garbage delete": 2}


async def test_each_request_of_a_multipart_upload_is_counted(double: S3Double) -> None:
    """An upload of two parts needs four requests: one begins it, two send parts, one ends it."""
    meter = Meter(DayClock())
    xml = {"Content-Type": "application/xml"}
    begun = Reply(200, b"<R><UploadId>1</UploadId></R>", xml)
    double.answer(begun, PUT_DONE, PUT_DONE, Reply(200, b"<R><ETag>1</ETag></R>", xml))

    await bucket(double, meter).put(KEY, bytes(6 << 20))

    [billed] = meter.seen()[DAY].values()
    assert (billed.requests, billed.sent_bytes) == (4, 6 << 20)


async def test_requests_of_the_conditional_write_probe_have_the_billing_cause_mount() -> None:
    meter = Meter(DayClock())
    await probe.probe(MeteredStore(MemoryStore(), meter), "0" * 32)
    assert {name.split()[0] for name in counted(meter)} == {"mount"}


def test_saved_or_restored_request_counts_do_not_change_the_totals_of_the_process() -> None:
    """Request totals cover all days since the start of the process."""
    clock = DayClock()
    meter = Meter(clock)
    meter.count(RequestClass.PUT, KEYS[Cause.DATA], sent_bytes=5)
    meter.add(meter.take())
    meter.take()
    clock.day += 1
    meter.count(RequestClass.PUT, KEYS[Cause.DATA], sent_bytes=5)

    assert meter.totals() == {("data", "put"): Billed(2, 10, 0)}
