"""The store wrapper that retries requests after transient errors."""

import random
import re
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from typing_extensions import override

from s3fs_meta.errors import (
    ObjectMissingError,
    PreconditionError,
    StoreAccessError,
    StoreError,
    StoreUnavailableError,
    TransientStoreError,
)
from s3fs_meta.limits import (
    PACK_BYTES_MAX,
    STORE_ATTEMPTS_MAX,
    STORE_CONNECT_TIMEOUT_S,
    STORE_DELAY_S_MAX,
    STORE_DELAY_S_MIN,
    STORE_READ_TIMEOUT_S,
    STORE_SILENCE_S_MAX,
    STORE_TOTAL_S_MAX,
    STORE_UNCONNECTED_S_MAX,
)
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import Fetched, ObjectStore
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.objects.retry import RetryingStore, RetryPolicy
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.contract.store_contract import keys_of

KEY = ObjectKey("lease")
Request = Callable[[ObjectStore], Awaitable[object]]


async def _replace(store: ObjectStore) -> None:
    await store.replace(KEY, b"content", (await store.get(KEY, PACK_BYTES_MAX)).etag)


REQUESTS: dict[str, Request] = {
    "get": lambda store: store.get(KEY, PACK_BYTES_MAX),
    "get_range": lambda store: store.get_range(KEY, 0, 1),
    "put": lambda store: store.put(KEY, b"content"),
    "create": lambda store: store.create(ObjectKey("new"), b"content"),
    "replace": _replace,
    "delete": lambda store: store.delete([KEY]),
    "list": keys_of,
}


@pytest.fixture
def memory() -> MemoryStore:
    """Return a store with one object."""
    store = MemoryStore()
    store.objects[KEY] = b"content"
    return store


@pytest.fixture
def faulty(memory: MemoryStore) -> FaultyStore:
    """Return a store with one object, on which tests can program faults."""
    return FaultyStore(memory)


@pytest.fixture
def retrying(faulty: FaultyStore) -> RetryingStore:
    """Return a retrying store whose pauses are the same in each run."""
    return RetryingStore(faulty, jitter=random.Random(1))


@pytest.mark.parametrize("method", REQUESTS)
async def test_store_method_is_retried_up_to_the_maximum_number_of_attempts(
    autojump_clock: trio.testing.MockClock,
    faulty: FaultyStore,
    retrying: RetryingStore,
    method: str,
) -> None:
    """A request succeeds if its last permitted attempt succeeds."""
    faulty.fail(method, times=STORE_ATTEMPTS_MAX - 1)

    await REQUESTS[method](retrying)

    assert [call.method for call in faulty.calls].count(method) == STORE_ATTEMPTS_MAX


@pytest.mark.parametrize("method", REQUESTS)
async def test_error_after_all_retries_describes_the_attempts(
    autojump_clock: trio.testing.MockClock,
    faulty: FaultyStore,
    retrying: RetryingStore,
    method: str,
) -> None:
    """The final error contains the number of attempts, their total time and the last error."""
    faulty.fail(method, times=STORE_ATTEMPTS_MAX)

    with pytest.raises(StoreUnavailableError) as caught:
        await REQUESTS[method](retrying)

    assert caught.value.attempts == STORE_ATTEMPTS_MAX
    assert caught.value.code == "injected fault: the request fails"
    assert caught.value.waited_s == pytest.approx(trio.current_time())
    assert isinstance(caught.value.__cause__, TransientStoreError)


@pytest.mark.parametrize("method", REQUESTS)
@pytest.mark.parametrize(
    "error",
    [ObjectMissingError(KEY), PreconditionError(KEY), StoreAccessError(KEY, "code", "advice")],
    ids=lambda error: type(error).__name__,
)
async def test_permanent_error_is_not_retried(
    faulty: FaultyStore, retrying: RetryingStore, method: str, error: StoreError
) -> None:
    faulty.fail(method, error)

    with pytest.raises(type(error)):
        await REQUESTS[method](retrying)

    assert [call.method for call in faulty.calls].count(method) == 1


async def test_total_time_of_retries_is_bounded(
    autojump_clock: trio.testing.MockClock, memory: MemoryStore
) -> None:
    """If each attempt is slow, fewer attempts are made."""

    class Slow(MemoryStore):
        @override
        async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
            await trio.sleep(50)
            raise TransientStoreError(key, "timeout")

    with pytest.raises(StoreUnavailableError) as caught:
        await RetryingStore(Slow()).get(KEY, PACK_BYTES_MAX)

    assert caught.value.attempts == 3
    assert caught.value.waited_s > STORE_TOTAL_S_MAX


def test_pauses_between_retries_double_up_to_a_limit() -> None:
    """Pauses are random, so that several clients do not retry at the same time."""
    policy = RetryPolicy()

    assert policy.delay_s(1, 1.0) == STORE_DELAY_S_MIN
    assert policy.delay_s(1, 0.0) == STORE_DELAY_S_MIN / 2
    assert policy.delay_s(4, 1.0) == 8 * STORE_DELAY_S_MIN
    assert policy.delay_s(1000, 1.0) == STORE_DELAY_S_MAX


async def test_pause_between_retries_can_be_cancelled(
    autojump_clock: trio.testing.MockClock, faulty: FaultyStore, retrying: RetryingStore
) -> None:
    faulty.down = TransientStoreError(KEY, "down")

    with trio.move_on_after(0.2) as scope:
        await retrying.get(KEY, PACK_BYTES_MAX)

    assert scope.cancelled_caught


# --- retries of conditional writes ---------------------------------------------------------------


async def test_retried_create_succeeds_if_only_the_first_response_was_lost(
    autojump_clock: trio.testing.MockClock, faulty: FaultyStore, retrying: RetryingStore
) -> None:
    """If a retried create finds its own content in the object, the first attempt has succeeded."""
    faulty.lose_reply("create")

    etag = await retrying.create(ObjectKey("new"), b"nonce")

    assert await retrying.get(ObjectKey("new"), PACK_BYTES_MAX) == (b"nonce", etag)


async def test_retried_replace_succeeds_if_only_the_first_responses_were_lost(
    autojump_clock: trio.testing.MockClock, faulty: FaultyStore, retrying: RetryingStore
) -> None:
    """If the reply of a replace was lost, the retry reads the object and finds its new content.

    This read may also fail with transient errors.
    """
    etag = (await retrying.get(KEY, PACK_BYTES_MAX)).etag
    faulty.lose_reply("replace", times=2)
    faulty.fail("get", times=3)

    etag = await retrying.replace(KEY, memoryview(b"nonce"), etag)

    assert await retrying.get(KEY, PACK_BYTES_MAX) == (b"nonce", etag)


async def test_create_after_a_lost_response_fails_if_another_writer_was_first(
    autojump_clock: trio.testing.MockClock, faulty: FaultyStore, retrying: RetryingStore
) -> None:
    """If a retried create finds different content, another host has created the object."""
    faulty.fail("create")

    with pytest.raises(PreconditionError):
        await retrying.create(KEY, b"nonce")


async def test_refused_write_without_a_lost_response_means_another_writer_was_first(
    retrying: RetryingStore,
) -> None:
    """A write that is refused without a lost response has failed, even if the content is equal."""
    with pytest.raises(PreconditionError):
        await retrying.create(KEY, b"content")


async def test_replace_of_an_object_that_is_deleted_after_a_lost_response_is_refused(
    autojump_clock: trio.testing.MockClock, faulty: FaultyStore, retrying: RetryingStore
) -> None:
    """If a retried replace finds no object, another host has deleted it."""
    etag = (await retrying.get(KEY, PACK_BYTES_MAX)).etag
    await retrying.delete([KEY])
    faulty.fail("replace")

    with pytest.raises(PreconditionError):
        await retrying.replace(KEY, b"nonce", etag)


# --- retries of listings -------------------------------------------------------------------------


async def test_interrupted_listing_resumes_after_the_last_key(
    autojump_clock: trio.testing.MockClock, faulty: FaultyStore, retrying: RetryingStore
) -> None:
    """A resumed listing returns each key once; each received key resets the number of attempts."""
    keys = [f"many/{number:02}" for number in range(3 * STORE_ATTEMPTS_MAX)]
    for key in keys:
        await retrying.put(ObjectKey(key), b"")
    faulty.lose_reply("list", times=2 * STORE_ATTEMPTS_MAX)

    assert await keys_of(retrying, "many/") == keys


async def test_error_of_a_listing_names_its_prefix(
    autojump_clock: trio.testing.MockClock, faulty: FaultyStore, retrying: RetryingStore
) -> None:
    """The error about a failed listing is readable even for an empty prefix."""
    faulty.fail("list", times=STORE_ATTEMPTS_MAX)

    with pytest.raises(StoreUnavailableError, match="for the list of objects after"):
        await keys_of(retrying)


# --- retries before the first response -----------------------------------------------------------


STORE_ATTEMPT_S = STORE_CONNECT_TIMEOUT_S + STORE_READ_TIMEOUT_S


class _Distant(MemoryStore):
    """A store whose next requests fail or are slow."""

    def __init__(
        self,
        *,
        fails: int = 0,
        takes_s: float = 0.0,
        unresolved: bool = False,
        unconnected: bool = False,
    ) -> None:
        super().__init__()
        self.objects[KEY] = b"content"
        self.fails, self.takes_s = fails, takes_s
        self.unresolved, self.unconnected = unresolved, unconnected
        self.asked = 0

    @override
    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        self.asked += 1
        await trio.sleep(self.takes_s)
        if self.fails:
            self.fails -= 1
            raise TransientStoreError(
                key,
                "connection refused",
                unresolved=self.unresolved,
                unconnected=self.unconnected,
            )
        return await super().get(key, max_bytes)


class _Notices(list[tuple[float, str]]):
    """The notices of a store, each with the time since this list was created."""

    def __init__(self) -> None:
        super().__init__()
        self._began_s = trio.current_time()

    @property
    def age_s(self) -> float:
        """Return the time since this list was created."""
        return trio.current_time() - self._began_s

    def note(self, text: str) -> None:
        """Record a notice."""
        self.append((self.age_s, text))


async def test_unreachable_store_is_reported_immediately(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An unreachable store is reported once, with the reason and the time limit."""
    notices = _Notices()
    store = _Distant(fails=100)
    retrying = RetryingStore(store, notify=notices.note)

    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            await retrying.get(KEY, PACK_BYTES_MAX)

    [(after_s, text)] = notices
    assert after_s == 0
    assert text == f"cannot reach {store.url}, trying for up to 13 s: connection refused"


async def test_first_failure_of_a_listing_is_reported_immediately(
    autojump_clock: trio.testing.MockClock, faulty: FaultyStore
) -> None:
    """The notice is not delayed because a listing may be the first request of a command."""
    notices = _Notices()
    faulty.fail("list", times=STORE_ATTEMPTS_MAX)
    retrying = RetryingStore(faulty, notify=notices.note)

    with pytest.raises(StoreUnavailableError):
        await keys_of(retrying)

    [(after_s, text)] = notices
    assert after_s == 0
    assert text.startswith(f"cannot reach {faulty.url}, trying for up to ")


async def test_store_that_does_not_respond_is_reported_after_a_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A notice appears after one second without a response; the request continues."""
    notices = _Notices()
    retrying = RetryingStore(_Distant(takes_s=60.0), notify=notices.note)

    for _ in range(2):
        assert (await retrying.get(KEY, PACK_BYTES_MAX)).data == b"content"

    [(after_s, text)] = notices
    assert after_s == STORE_SILENCE_S_MAX
    assert "has not responded yet, trying for up to 145 s" in text


@pytest.mark.parametrize(
    "attempt_s", [STORE_CONNECT_TIMEOUT_S, STORE_READ_TIMEOUT_S, STORE_ATTEMPT_S]
)
async def test_store_that_does_not_respond_is_abandoned_after_the_reported_time(
    autojump_clock: trio.testing.MockClock, attempt_s: float
) -> None:
    """Each attempt may use its full timeout; the total time also has a limit."""
    notices = _Notices()
    retrying = RetryingStore(_Distant(fails=100, takes_s=attempt_s), notify=notices.note)

    with pytest.raises(StoreUnavailableError):
        await retrying.get(KEY, PACK_BYTES_MAX)

    (_, silent), (_, failed) = notices
    assert "has not responded yet" in silent
    assert failed.startswith("cannot reach ")
    for text in (silent, failed):
        said = re.search(r"trying for up to (\d+) s", text)
        assert said is not None
        assert notices.age_s <= int(said[1])


async def test_failure_is_reported_even_if_the_store_was_reported_as_silent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A failure after a notice of silence is reported once, with its reason."""
    notices = _Notices()
    store = _Distant(fails=100, takes_s=2 * STORE_SILENCE_S_MAX)
    retrying = RetryingStore(store, notify=notices.note)

    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            await retrying.get(KEY, PACK_BYTES_MAX)

    (silent_s, silent), (failed_s, failed) = notices
    assert (silent_s, failed_s) == (STORE_SILENCE_S_MAX, 2 * STORE_SILENCE_S_MAX)
    assert "has not responded yet" in silent
    assert re.fullmatch(
        rf"cannot reach {store.url}, trying for up to \d+ s: connection refused", failed
    )


async def test_store_that_has_responded_once_is_not_reported_as_unreachable(
    autojump_clock: trio.testing.MockClock,
) -> None:
    notices: list[str] = []
    store = _Distant()
    retrying = RetryingStore(store, notify=notices.append)
    with pytest.raises(ObjectMissingError):
        await retrying.get(ObjectKey("missing"), PACK_BYTES_MAX)
    store.fails = 3

    await retrying.get(KEY, PACK_BYTES_MAX)

    assert notices == []


async def test_unresolvable_host_name_is_requested_only_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An unresolvable host name is retried only if the store has responded before."""
    notices: list[str] = []
    store = _Distant(fails=2, unresolved=True)
    retrying = RetryingStore(store, notify=notices.append)

    with pytest.raises(StoreUnavailableError) as failed:
        await retrying.get(KEY, PACK_BYTES_MAX)
    assert (failed.value.attempts, store.asked, notices) == (1, 1, [])
    store.fails = 0
    await retrying.get(KEY, PACK_BYTES_MAX)
    store.fails = 2

    await retrying.get(KEY, PACK_BYTES_MAX)

    assert store.asked == 5


async def test_error_of_an_attempt_is_not_wrapped_in_an_exception_group(
    autojump_clock: trio.testing.MockClock,
) -> None:
    retrying = RetryingStore(_Distant(takes_s=60.0))
    with trio.move_on_after(5.0) as scope:
        await retrying.get(KEY, PACK_BYTES_MAX)
    assert scope.cancelled_caught
    with pytest.raises(ObjectMissingError):
        await retrying.get(ObjectKey("missing"), PACK_BYTES_MAX)


async def test_refused_connection_fails_the_first_request_within_seconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Before the first connection, retries end soon, because the endpoint may be wrong."""
    notices = _Notices()
    store = _Distant(fails=100, unconnected=True)
    retrying = RetryingStore(store, notify=notices.note)

    with pytest.raises(StoreUnavailableError):
        await retrying.get(KEY, PACK_BYTES_MAX)

    # The last pause is random, at most 1.6 s, and omitted if it exceeds the total time.
    assert STORE_UNCONNECTED_S_MAX - 1.6 <= notices.age_s <= STORE_UNCONNECTED_S_MAX
    assert notices == [(0, f"cannot reach {store.url}, trying for up to 2 s: connection refused")]


async def test_store_that_has_responded_once_is_retried_for_a_longer_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A server that has responded before may be restarting, so requests are retried for longer."""
    store = _Distant(unconnected=True)
    retrying = RetryingStore(store)
    await retrying.get(KEY, PACK_BYTES_MAX)
    store.fails = STORE_ATTEMPTS_MAX - 1

    assert (await retrying.get(KEY, PACK_BYTES_MAX)).data == b"content"


async def test_server_that_starts_a_few_seconds_late_is_reached(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = _Distant(fails=3, unconnected=True)

    assert (await RetryingStore(store).get(KEY, PACK_BYTES_MAX)).data == b"content"
