"""The reachability of one store: its responses, its outages, and messages to the user about delays.

Owns: the start of an outage, messages to the user about a late or failed first response; log lines
about later outages; counts of sent bytes.
Does not know: retries (``retry``), requests.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import trio

from s3fs_meta.background_task import background_task
from s3fs_meta.errors import S3fsError, TransientStoreError
from s3fs_meta.limits import (
    STORE_CONNECT_TIMEOUT_S,
    STORE_READ_TIMEOUT_S,
    STORE_SILENCE_S_MAX,
)
from s3fs_meta.objects.contract import ObjectStore, described

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class Outage(NamedTuple):
    """An outage of a store: its duration and reason.

    The first two fields are 0 and "" if no request has failed since the last response. The third
    field is 0 if no request is waiting.
    """

    age_s: float  # seconds since the store began to fail; 0 if the last request succeeded
    why: str  # the error of the last failed request
    silent_s: float  # seconds for which requests have been waiting without any response


NO_OUTAGE = Outage(0.0, "", 0.0)


def _ignore_sent(_size_bytes: int) -> None:
    """Ignore sent bytes; the default of ``note_sent``."""


_on_sent: ContextVar[Callable[[int], None]] = ContextVar("on_sent", default=_ignore_sent)


@contextmanager
def reporting_sent(report: Callable[[int], None]) -> Iterator[None]:
    """Call *report* with the size of each piece that the requests of a with-block send.

    The threads of requests call *report*; trio copies the context of a task to its threads.
    """
    token = _on_sent.set(report)
    try:
        yield
    finally:
        _on_sent.reset(token)


@contextmanager
def counting_sent() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the number of bytes that the with-block has sent so far."""
    sent_bytes, outer = 0, _on_sent.get()

    def count(size_bytes: int) -> None:
        nonlocal sent_bytes
        sent_bytes += size_bytes
        outer(size_bytes)

    with reporting_sent(count):
        yield lambda: sent_bytes


def note_sent(size_bytes: int) -> None:
    """Report that the current request has sent a piece of its body."""
    _on_sent.get()(size_bytes)


class RetryBounds(Protocol):
    """The retry limits that determine how long a request can take."""

    def bound_s(self, attempt_s: float, *, unconnected: bool = False) -> float:
        """Return the maximum time of a request if each attempt takes *attempt_s* seconds."""
        ...


class Contact:
    """Records the responses and failures of a store; reports delays until its first response."""

    def __init__(
        self, store: ObjectStore, bounds: RetryBounds, notify: Callable[[str], None]
    ) -> None:
        """Prepare to watch the requests to a store, without sending a request.

        Args:
            store: a store that makes one attempt per request.
            bounds: the limits of retries.
            notify: called with a message if the first response is late, and with a second message
                if a request fails before the first response. Each message is sent at most once.
        """
        self._store, self._bounds, self._notify = store, bounds, notify
        self._is_silence_reported = False
        self._is_failure_reported = False
        self._is_outage_logged = False
        self._waiting = 0  # number of attempts that are waiting for a response
        self._silent_since_s = 0.0
        self._failing_since_s = 0.0
        self._failure = ""
        self.is_made = False

    async def watched(self, request: Callable[[], Awaitable[_Result]]) -> _Result:
        """Make one attempt of a request; report failures and delays until the first response.

        Raises the errors of *request*.
        """
        if not self._waiting:
            self._silent_since_s = trio.current_time()
        self._waiting += 1
        try:
            result = await (request() if self.is_made else self._announced(request))
        except TransientStoreError as exc:
            self._note_failure(exc)
            raise
        except S3fsError:  # an error from the server counts as a response
            self._note_answer()
            raise
        finally:
            self._waiting -= 1
        self._note_answer()
        return result

    def outage(self) -> Outage:
        """Return the outage, from the last response and the waiting requests. Never yields."""
        now_s = trio.current_time()
        return Outage(
            age_s=now_s - self._failing_since_s if self._failure else 0.0,
            why=self._failure,
            silent_s=now_s - self._silent_since_s if self._waiting else 0.0,
        )

    async def _announced(self, request: Callable[[], Awaitable[_Result]]) -> _Result:
        """Make one attempt of a request; report a failure, or a delay during the attempt."""
        began_s = trio.current_time()
        try:
            async with background_task(partial(_alarm, STORE_SILENCE_S_MAX, self._report_silence)):
                return await request()
        except TransientStoreError as exc:
            self._report_failure(exc, trio.current_time() - began_s)
            raise

    def _note_failure(self, error: TransientStoreError) -> None:
        if not self._failure:
            self._failing_since_s = self._silent_since_s
        self._failure = error.code or type(error).__name__
        age_s = self.outage().age_s
        # Requests are retried for up to a minute, during which programs wait without an error.
        if self.is_made and not self._is_outage_logged and age_s >= STORE_SILENCE_S_MAX:
            self._is_outage_logged = True
            _log.warning(
                "all requests to %s have failed for %.0f s, will retry: %s",
                described(self._store),
                age_s,
                self._failure,
            )

    def _note_answer(self) -> None:
        if self._is_outage_logged:
            self._is_outage_logged = False
            _log.info("%s responds again after %.0f s", described(self._store), self.outage().age_s)
        self.is_made = True
        self._failure = ""
        self._silent_since_s = trio.current_time()

    def _report_silence(self) -> None:
        if self._is_silence_reported or self._is_failure_reported:
            return
        self._is_silence_reported = True
        # If a server accepts connections but never responds, an attempt takes both timeouts.
        bound_s = self._bounds.bound_s(STORE_CONNECT_TIMEOUT_S + STORE_READ_TIMEOUT_S)
        self._notify(
            f"{described(self._store)} has not responded yet, trying for up to {bound_s:.0f} s"
        )

    def _report_failure(self, error: TransientStoreError, attempt_s: float) -> None:
        if self._is_failure_reported or error.unresolved:
            return  # a request to an unknown host is not retried, so the caller reports the error
        self._is_failure_reported = True
        bound_s = self._bounds.bound_s(attempt_s, unconnected=error.unconnected)
        url = self._store.url
        self._notify(f"cannot reach {url}, trying for up to {bound_s:.0f} s: {error.code}")


async def _alarm(after_s: float, call: Callable[[], None]) -> None:
    """Call a function after *after_s* seconds."""
    await trio.sleep(after_s)
    call()
