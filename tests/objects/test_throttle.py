"""Limits on the rate of transfers: waiting times and the order of transfers."""

import time
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from s3fs_meta.errors import StoreAccessError, StoreUnavailableError, TransientStoreError
from s3fs_meta.limits import KIB, MIB, RATE_BURST_S, RATE_CHECK_S
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.objects.retry import RetryingStore
from s3fs_meta.objects.s3 import S3Store
from s3fs_meta.objects.s3_access import S3Place
from s3fs_meta.objects.throttle import Rank, Throttle, local_time, throttles_of
from s3fs_meta.options.rate_limit import rate_limit
from s3fs_meta.options.settings import CacheOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.objects.s3_double import (
    AT_ONCE,
    BUCKET,
    KEY,
    PUT_DONE,
    Drop,
    Reply,
    S3Double,
    error,
    s3_double,
)


def _throttle(text: str) -> Throttle:
    return Throttle(rate_limit("upload_limit", text))


async def _took_s(throttle: Throttle, *sizes: int) -> float:
    """Return the time that consecutive transfers of these sizes take."""
    began_s = trio.current_time()
    for size_bytes in sizes:
        await throttle.take(size_bytes)
    return trio.current_time() - began_s


async def test_transfers_run_at_the_limited_rate(autojump_clock: trio.testing.MockClock) -> None:
    """After a pause, a burst may contain at most the bytes of one second."""
    assert await _took_s(_throttle("1M"), *[MIB] * 11) == pytest.approx(10, abs=0.01)


async def test_large_transfer_waits_before_it_begins(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A transfer of several seconds begins only when the rate allows all of its bytes."""
    assert await _took_s(_throttle("1M"), 17 * MIB) == pytest.approx(16, abs=0.01)


async def test_transfers_are_not_delayed_without_a_limit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    assert await _took_s(_throttle("off"), *[1 << 40] * 10) == 0


async def test_long_pause_does_not_permit_a_larger_burst(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Unused bandwidth of a long pause cannot be used later."""
    throttle = _throttle("1M")
    await throttle.take(MIB)
    await trio.sleep(3600)

    assert await _took_s(throttle, *[MIB] * 10) == pytest.approx(10 - RATE_BURST_S, abs=0.01)


async def test_concurrent_transfers_share_a_limit(autojump_clock: trio.testing.MockClock) -> None:
    """Transfers that share a limit proceed in the order of their calls."""
    throttle = _throttle("1M")
    order: list[int] = []

    async def transfer(number: int) -> None:
        await throttle.take(2 * MIB)
        order.append(number)

    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(transfer, number)
            await trio.testing.wait_all_tasks_blocked()

    assert order == list(range(5))
    assert trio.current_time() - began_s == pytest.approx(9, abs=0.01)
    assert throttle.waiting_bytes == 0


async def test_foreground_transfer_precedes_waiting_background_transfers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A program's read overtakes waiting read-ahead, and uses the bytes reserved for read-ahead."""
    throttle = _throttle("1M")
    waits_s: dict[str, float] = {}

    async def transfer(name: str, size_bytes: int, rank: Rank) -> None:
        await throttle.take(size_bytes, rank)
        waits_s[name] = trio.current_time()

    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transfer, "ahead", 8 * MIB, Rank.BACKGROUND)
        await trio.sleep(4)
        nursery.start_soon(transfer, "read", 1 * MIB, Rank.WANTED)

    assert waits_s["read"] - began_s == pytest.approx(4, abs=0.01)
    assert waits_s["ahead"] - began_s == pytest.approx(8, abs=0.01)


async def test_cancelled_transfer_uses_no_bytes_of_the_rate_limit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """After a transfer is cancelled, the next transfer need not wait for its bytes."""
    throttle = _throttle("1M")
    with trio.move_on_after(2) as scope:
        await throttle.take(100 * MIB)

    assert scope.cancelled_caught
    assert throttle.waiting_bytes == 0
    assert await _took_s(throttle, MIB) == 0


async def test_removal_of_the_rate_limit_ends_the_wait_of_transfers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The upload limit is removed while a program waits for an upload."""
    throttle = _throttle("1K")
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(throttle.take, 100 * MIB)
        await trio.sleep(1)
        with throttle.lifted():
            await throttle.take(100 * MIB)
            await trio.sleep(1)

    assert trio.current_time() - began_s == pytest.approx(2)
    assert await _took_s(throttle, 11 * KIB) == pytest.approx(10, abs=0.01)


async def test_rate_limit_stays_lifted_until_the_last_program_stops_waiting(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """If several programs wait, the upload limit applies again after the last wait ends."""
    throttle = _throttle("1K")
    with throttle.lifted():
        with throttle.lifted():
            pass
        assert await _took_s(throttle, 100 * MIB) == 0
        assert throttle.bytes_per_s is None
    assert throttle.bytes_per_s == KIB


async def test_strict_rate_limit_is_not_lifted(autojump_clock: trio.testing.MockClock) -> None:
    throttle = _throttle("1K strict")

    with throttle.lifted():
        assert await _took_s(throttle, 11 * KIB) == pytest.approx(10, abs=0.01)


async def test_new_rate_limit_applies_to_waiting_transfers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    throttle = _throttle("1K")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(throttle.take, 100 * MIB)
        await trio.sleep(1)
        throttle.set(rate_limit("upload_limit", "off"))

    assert trio.current_time() == pytest.approx(1)


class LocalTime:
    """The local time, which tests can set."""

    def __init__(self) -> None:
        self.hour = 12

    def __call__(self) -> time.struct_time:
        """Return the local time that the test set, on a Monday."""
        return time.struct_time((2026, 11, 23, self.hour, 0, 0, 0, 327, 0))


async def test_timetable_of_rate_limits_applies_to_waiting_transfers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A transfer that waits under a timetable uses each new rate soon after it begins."""
    local_time = LocalTime()
    throttle = Throttle(rate_limit("upload_limit", "08:00,1K 19:00,off"), local_time)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(throttle.take, 100 * MIB)
        await trio.sleep(60)
        local_time.hour = 19

    assert trio.current_time() <= 60 + RATE_CHECK_S


@pytest.mark.parametrize("hour", [0, 19])
async def test_wall_clock_jump_does_not_permit_a_burst(
    hour: int, autojump_clock: trio.testing.MockClock
) -> None:
    """The wall clock selects the rate; only the monotonic clock measures time."""
    local_time = LocalTime()
    throttle = Throttle(rate_limit("upload_limit", "08:00,1K 18:00,2K"), local_time)
    await throttle.take(KIB)
    local_time.hour = hour

    assert await _took_s(throttle, 20 * KIB) == pytest.approx(10, abs=0.6)


async def test_bytes_of_retried_uploads_count_towards_the_rate_limit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The bytes of failed attempts use up the rate limit, except for changelogs."""
    throttles = throttles_of(CacheOptions(upload_limit=rate_limit("upload_limit", "1M")))
    faulty = FaultyStore(MemoryStore())
    store = RetryingStore(faulty, charge=throttles.charge)
    for key in ("pack/00/1-" + 32 * "0", "image/1/piece", "changelog/1"):
        faulty.fail("create", TransientStoreError(key, "SlowDown"), times=2)
        await throttles.upload.take(MIB)
        await store.create(ObjectKey(key), bytes(MIB))
        await trio.sleep(RATE_BURST_S)
        waited_s = await _took_s(throttles.upload, MIB)
        assert (waited_s > 0) is not key.startswith("changelog/")
        throttles.upload.set(rate_limit("upload_limit", "1M"))
        await trio.sleep(60)


async def test_bytes_of_a_retried_download_count_towards_the_rate_limit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    throttles = throttles_of(CacheOptions(download_limit=rate_limit("download_limit", "1K")))
    faulty = FaultyStore(MemoryStore())
    store = RetryingStore(faulty, charge=throttles.charge)
    key = ObjectKey("pack/00/1-" + 32 * "0")
    await store.put(key, bytes(MIB))
    faulty.fail("get_range")
    await store.get_range(key, 0, MIB)

    assert await _took_s(throttles.download, KIB) > MIB // KIB - 10


class Charges:
    """Records the bytes that a store charges for failed attempts."""

    def __init__(self) -> None:
        self.sent_and_received = list[tuple[int, int]]()

    def __call__(self, _key: ObjectKey, sent_bytes: int, received_bytes: int) -> None:
        """Record one charge."""
        self.sent_and_received.append((sent_bytes, received_bytes))


async def test_failed_download_counts_only_received_bytes(double: S3Double) -> None:
    charges = Charges()
    store = RetryingStore(S3Store(BUCKET, place=S3Place(double.url)), AT_ONCE, charge=charges)
    span = {"Content-Range": f"bytes 0-{MIB - 1}/{MIB}"}
    partial = Reply(206, bytes(KIB), span, declared_bytes=MIB)
    double.answer(Drop(), partial, Reply(206, bytes(MIB), span))

    await store.get_range(KEY, 0, MIB)

    assert [received for _, received in charges.sent_and_received] == [0, KIB]


async def test_failed_upload_counts_only_sent_bytes(double: S3Double) -> None:
    """Attempts that sent no bytes in an outage must not delay uploads after the outage."""
    charges = Charges()
    store = RetryingStore(S3Store(BUCKET, place=S3Place(double.url)), AT_ONCE, charge=charges)
    double.answer(error(503, "SlowDown"), PUT_DONE)
    await store.put(KEY, bytes(MIB))
    with s3_double() as gone:
        place = S3Place(gone.url)
    absent = RetryingStore(S3Store(BUCKET, place=place), AT_ONCE, charge=charges)
    with pytest.raises(StoreUnavailableError) as caught:
        await absent.put(KEY, bytes(MIB))

    first, *others = charges.sent_and_received
    assert first == (MIB, 0)
    assert set(others) == {(0, 0)}
    assert caught.value.sent_bytes == 0


async def test_refused_upload_counts_although_the_read_after_it_fails(double: S3Double) -> None:
    """The bytes of a refused create are charged even if reading the existing object fails."""
    charges = Charges()
    store = RetryingStore(S3Store(BUCKET, place=S3Place(double.url)), AT_ONCE, charge=charges)
    refused, stored = error(412, "PreconditionFailed"), Reply(200, bytes(MIB), {"ETag": '"1"'})
    double.answer(Drop(), refused, error(500, "InternalError"), refused, stored)
    await store.create(KEY, bytes(MIB))
    double.answer(Drop(), refused, error(403, "AccessDenied"))
    with pytest.raises(StoreAccessError) as caught:
        await store.create(KEY, bytes(MIB))

    assert charges.sent_and_received == [(MIB, 0)] * 3
    assert (caught.value.sent_bytes or 0) >= MIB


async def test_unused_bytes_returned_to_the_rate_limit_can_be_used_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    throttle = _throttle("1K")
    await throttle.take(10 * KIB)
    throttle.give_back(10 * KIB)

    assert await _took_s(throttle, 4 * KIB, 6 * KIB) == 0
    assert await _took_s(throttle, 10 * KIB) == pytest.approx(10, abs=1.1)


async def test_transfer_takes_no_bytes_of_a_rate_limit_that_is_lifted_or_absent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """If there is no limit, or if it is lifted during the wait, a transfer takes no bytes."""
    throttle = _throttle("1K")
    assert await throttle.take(10 * KIB) == 10 * KIB
    taken = []

    async def take() -> None:
        taken.append(await throttle.take(10 * KIB))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        with throttle.lifted():
            assert await throttle.take(10 * KIB) == 0
            await trio.testing.wait_all_tasks_blocked()

    assert taken == [0]


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Restore the time zone of the process at the end of the test."""
    yield monkeypatch
    monkeypatch.undo()
    time.tzset()


def test_rate_limit_timetable_follows_a_change_of_the_time_zone(zone: pytest.MonkeyPatch) -> None:
    zone.setenv("TZ", "XXX+00:00")
    hour = local_time().tm_hour
    limits = [f"{h:02d}:00,{h + 1}K" for h in range(24)]
    throttle = _throttle(" ".join(limits))
    before = throttle.bytes_per_s
    zone.setenv("TZ", "YYY-05:00")

    assert before in {(hour + 1) * KIB, (hour + 2) % 24 * KIB}
    assert throttle.bytes_per_s in {((hour + 5 + n) % 24 + 1) * KIB for n in (0, 1)}
