"""The time that writers wait for space in a full cache during slow or failing uploads."""

from collections.abc import Callable

import pytest
import trio
import trio.testing

from s3fs_meta.cache.waiting_writers import SentPack, UploadSignal, WaitingWriters
from s3fs_meta.limits import KIB, MIB
from tests.tasks import running

Clock = trio.testing.MockClock
TIMEOUT_S = 60.0
PACK_BYTES = 16 * MIB
PACK_S_MAX = 512.0  # A full pack takes this time at the minimum speed.


def new_writers(is_away: Callable[[], bool] = lambda: False) -> WaitingWriters:
    """Return writers of a cache whose bucket is unreachable while *is_away* returns true."""
    return WaitingWriters(TIMEOUT_S, UploadSignal(), is_away)


async def waited_s(writers: WaitingWriters, has_room: Callable[[], bool]) -> tuple[bool, float]:
    """Return True if a writer got cache space, and the time that it waited."""

    async def checked() -> bool:
        return has_room()

    began_s = trio.current_time()
    return await writers.wait(checked), trio.current_time() - began_s


async def test_writer_waits_while_packs_are_uploaded_slowly(autojump_clock: Clock) -> None:
    """A writer waits until the third of three packs is uploaded, each of which takes 200 s."""
    writers, stored = new_writers(), []

    async def upload() -> None:
        for number in range(3):
            with writers.sending(PACK_BYTES) as pack:
                pack.begin()
                await trio.sleep(200)
            stored.append(number)
            writers.note_upload()
            await trio.sleep(30)  # The uploader makes the next pack.

    async with running(upload):
        await trio.testing.wait_all_tasks_blocked()
        assert await waited_s(writers, lambda: len(stored) == 3) == (True, 660)


async def test_writer_gives_up_if_no_pack_is_uploaded(autojump_clock: Clock) -> None:
    assert await waited_s(new_writers(), lambda: False) == (False, TIMEOUT_S)


async def test_writers_after_a_writer_that_gave_up_wait_only_a_fraction_of_the_timeout(
    autojump_clock: Clock,
) -> None:
    """The kernel writes back a large file with many requests, of which each may have to wait.

    The short waits last for one timeout, although each of them fails.
    """
    writers = new_writers()
    for _ in range(3):
        assert await waited_s(writers, lambda: False) == (False, TIMEOUT_S)
        for _ in range(20):
            assert await waited_s(writers, lambda: False) == (False, TIMEOUT_S / 20)


async def test_writer_that_fails_a_complete_timeout_after_an_upload_shortens_later_waits(
    autojump_clock: Clock,
) -> None:
    """A short wait becomes a complete wait if an upload succeeds meanwhile."""
    writers = new_writers()
    await waited_s(writers, lambda: False)

    async def upload() -> None:
        await trio.sleep(1)
        writers.note_upload()

    async with running(upload):
        assert await waited_s(writers, lambda: False) == (False, TIMEOUT_S + 1)
    assert await waited_s(writers, lambda: False) == (False, TIMEOUT_S / 20)


async def test_writer_waits_for_the_complete_timeout_again_after_an_upload(
    autojump_clock: Clock,
) -> None:
    writers = new_writers()
    await waited_s(writers, lambda: False)
    await trio.sleep(1)
    writers.note_upload()

    assert await waited_s(writers, lambda: False) == (False, TIMEOUT_S)


async def test_writer_after_a_writer_that_gave_up_waits_while_a_pack_is_sent(
    autojump_clock: Clock,
) -> None:
    writers = new_writers()
    await waited_s(writers, lambda: False)
    with writers.sending(PACK_BYTES) as pack:
        pack.begin()
        has_room, taken_s = await waited_s(writers, lambda: False)

    assert not has_room
    assert taken_s >= PACK_S_MAX


async def test_writer_gives_up_while_an_upload_is_retried_in_an_outage(
    autojump_clock: Clock,
) -> None:
    writers = new_writers(is_away=lambda: True)
    with writers.sending(PACK_BYTES) as pack:
        pack.begin()

        assert await waited_s(writers, lambda: False) == (False, TIMEOUT_S)


async def test_writer_gives_up_if_the_upload_of_a_pack_is_slower_than_the_minimum_speed(
    autojump_clock: Clock,
) -> None:
    """A store that never completes the upload does not keep a writer waiting forever."""
    writers = new_writers()
    with writers.sending(PACK_BYTES) as pack:
        pack.begin()
        has_room, taken_s = await waited_s(writers, lambda: False)

    assert not has_room
    assert PACK_S_MAX <= taken_s <= PACK_S_MAX + TIMEOUT_S


async def send(pack: SentPack, seconds: int, bytes_per_s: int = 40 * KIB) -> None:
    """Send pieces of a pack at a constant speed."""
    for _ in range(seconds):
        await trio.sleep(1)
        pack.note_sent(bytes_per_s)


async def test_writer_waits_while_a_pack_is_sent_again_after_a_failure(
    autojump_clock: Clock,
) -> None:
    """A writer waits for the second transfer of a pack if the connection broke during the first."""
    writers, failures, stored = new_writers(lambda: bool(failures)), list[int](), list[int]()

    async def upload() -> None:
        with writers.sending(PACK_BYTES) as pack:
            pack.begin()
            await send(pack, 400)
            failures.append(1)
            await send(pack, 409)
        stored.append(1)
        writers.note_upload()

    async with running(upload):
        await trio.testing.wait_all_tasks_blocked()
        assert await waited_s(writers, lambda: bool(stored)) == (True, 809)


async def test_writer_gives_up_if_a_pack_fails_after_each_transfer(autojump_clock: Clock) -> None:
    """If a store refuses every pack, a writer stops waiting after a limited time."""
    writers = new_writers(is_away=lambda: True)

    with writers.sending(PACK_BYTES) as pack:
        pack.begin()
        async with running(send, pack, 10_000):
            has_room, taken_s = await waited_s(writers, lambda: False)

    transfers_s = 3 * PACK_BYTES / (40 * KIB)
    assert not has_room
    assert transfers_s <= taken_s <= transfers_s + 2 * TIMEOUT_S


async def test_writer_gives_up_if_an_upload_is_below_minimum_speed_after_a_failed_request(
    autojump_clock: Clock,
) -> None:
    writers = new_writers(is_away=lambda: True)

    with writers.sending(PACK_BYTES) as pack:
        pack.begin()
        async with running(send, pack, 10_000, 16 * KIB):
            assert await waited_s(writers, lambda: False) == (False, TIMEOUT_S)


@pytest.mark.parametrize("is_failed", [False, True], ids=["first attempt", "after a failure"])
async def test_writer_waits_while_a_pack_waits_for_the_upload_limit(
    autojump_clock: Clock, is_failed: bool
) -> None:
    """An upload limit of 1 KiB/s delays a pack for more than four hours; the writer waits."""
    writers, stored = new_writers(is_away=lambda: is_failed), list[int]()

    async def upload() -> None:
        with writers.sending(PACK_BYTES) as pack:
            if is_failed:
                pack.begin()
                pack.note_sent(PACK_BYTES)
                pack.await_limit()
            await trio.sleep(PACK_BYTES / KIB)
            pack.begin()
            stored.append(1)
        writers.note_upload()

    async with running(upload):
        await trio.testing.wait_all_tasks_blocked()
        assert await waited_s(writers, lambda: bool(stored)) == (True, PACK_BYTES / KIB)


async def test_writer_gives_up_while_the_limit_delays_a_pack_that_always_fails(
    autojump_clock: Clock,
) -> None:
    """A pack that fails after each delay must not extend the wait of a writer."""
    writers = new_writers(is_away=lambda: True)

    with writers.sending(PACK_BYTES) as pack:
        for _ in range(3):
            pack.begin()
            pack.await_limit()

        assert await waited_s(writers, lambda: False) == (False, TIMEOUT_S)


async def test_wake_up_without_an_upload_does_not_extend_the_wait(autojump_clock: Clock) -> None:
    """A sync wakes waiting writers each second, but this does not extend their timeout."""
    writers = new_writers()

    async def wake_often() -> None:
        while True:
            await trio.sleep(1)
            writers.wake()

    async with running(wake_often):
        assert await waited_s(writers, lambda: False) == (False, TIMEOUT_S)


async def test_upload_signal_set_before_a_wait_ends_only_this_wait(autojump_clock: Clock) -> None:
    """An upload signal that is set while the uploader is busy ends the uploader's next wait."""
    signal = UploadSignal()
    signal.set()
    began_s = trio.current_time()
    await signal.wait(60)
    assert trio.current_time() == began_s
    assert not signal.is_set()
    await signal.wait(60)
    assert trio.current_time() >= began_s + 60
