"""Detection of a store's outages; tests/objects/test_retry.py tests outages at startup."""

import logging

import pytest
import trio
import trio.testing

from s3fs_meta.errors import ObjectMissingError, TransientStoreError
from s3fs_meta.limits import PACK_BYTES_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contact import NO_OUTAGE, Contact
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.objects.retry import RetryPolicy
from tests.tasks import running

KEY = ObjectKey("lease")


@pytest.fixture
def contact() -> Contact:
    """Return the contact state of a store that has not responded yet."""
    return Contact(MemoryStore(), RetryPolicy(), lambda _text: None)


async def refused(after_s: float = 0.0) -> None:
    """Fail as a request does if the connection is refused."""
    await trio.sleep(after_s)
    raise TransientStoreError(KEY, "connection refused")


async def attempt(contact: Contact, after_s: float = 0.0) -> None:
    """Make an attempt whose request fails."""
    with pytest.raises(TransientStoreError):
        await contact.watched(lambda: refused(after_s))


async def test_outage_begins_with_the_first_failed_request(
    autojump_clock: trio.testing.MockClock, contact: Contact
) -> None:
    await attempt(contact, after_s=20.0)
    await trio.sleep(5.0)
    await attempt(contact)

    assert contact.outage() == (25.0, "connection refused", 0.0)


async def test_error_response_from_the_store_ends_an_outage(
    autojump_clock: trio.testing.MockClock, contact: Contact
) -> None:
    """Even the response for a missing object shows that the store can be reached."""
    await attempt(contact)

    with pytest.raises(ObjectMissingError):
        await contact.watched(lambda: MemoryStore().get(KEY, PACK_BYTES_MAX))

    assert contact.outage() == NO_OUTAGE


async def test_time_without_a_response_is_measured_while_requests_wait(
    autojump_clock: trio.testing.MockClock, contact: Contact
) -> None:
    """If one of several waiting requests gets a response, the silent time starts again at zero."""
    async with running(contact.watched, trio.sleep_forever):
        await trio.sleep(30.0)
        assert contact.outage().silent_s == 30.0
        await contact.watched(trio.lowlevel.checkpoint)
        await trio.sleep(2.0)
        assert contact.outage().silent_s == 2.0

    assert contact.outage() == NO_OUTAGE


async def test_begin_and_end_of_an_outage_are_logged_once(
    autojump_clock: trio.testing.MockClock, contact: Contact, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure that the next attempt overcomes is not logged."""
    caplog.set_level(logging.INFO)
    await contact.watched(trio.lowlevel.checkpoint)
    await attempt(contact)
    await contact.watched(trio.lowlevel.checkpoint)
    assert caplog.messages == []

    for _ in range(3):
        await attempt(contact, after_s=5.0)
    await contact.watched(trio.lowlevel.checkpoint)

    assert caplog.messages == [
        "all requests to memory: have failed for 5 s, will retry: connection refused",
        "memory: responds again after 15 s",
    ]


async def test_outage_before_the_first_response_is_not_logged(
    autojump_clock: trio.testing.MockClock, contact: Contact, caplog: pytest.LogCaptureFixture
) -> None:
    """The user is notified of such an outage instead."""
    await attempt(contact, after_s=20.0)

    assert caplog.messages == []
