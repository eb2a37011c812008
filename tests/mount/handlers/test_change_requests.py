"""Tests of control requests that change a filesystem, which must end before the last upload."""

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from s3fs_meta.control.plain_call import no_report
from s3fs_meta.control.protocol import Handler, Message, Report
from s3fs_meta.errors import ReadOnlyStateError, UsageError
from s3fs_meta.mount.handlers.change_requests import ChangeRequests


class Work:
    """A handler that runs until it is released, and records when it ends."""

    def __init__(self) -> None:
        self.begun = trio.Event()
        self.released = trio.Event()
        self.ended = ""

    async def handle(self, arguments: Message, _report: Report) -> Message:
        """Wait until the test releases the handler."""
        self.begun.set()
        try:
            await self.released.wait()
        except trio.Cancelled:
            self.ended = "cancelled"
            raise
        self.ended = "complete"
        return {"echo": arguments}


def _call(handler: Handler, answers: list[object]) -> Callable[[], Awaitable[None]]:
    async def call() -> None:
        try:
            answers.append(await handler({"a": 1}, no_report))
        except ReadOnlyStateError as exc:
            answers.append(exc.why)

    return call


async def test_end_of_a_mount_waits_for_requests_that_are_not_cancelled() -> None:
    """A request that is already running completes and gets its answer. New requests are refused."""
    requests, work, answers = ChangeRequests(), Work(), list[object]()
    handler = requests.guarded({"keep": work.handle})["keep"]
    ended = trio.Event()

    async def end() -> None:
        await requests.end()
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_call(handler, answers))
        await work.begun.wait()
        nursery.start_soon(end)
        await trio.testing.wait_all_tasks_blocked()
        assert not ended.is_set()
        await _call(handler, answers)()
        work.released.set()

    assert answers == ["the filesystem is being unmounted", {"echo": {"a": 1}}]
    assert work.ended == "complete"


@pytest.mark.parametrize("command", ["clone", "clone_past", "lock", "reclaim", "remove", "warm"])
async def test_end_of_a_mount_cancels_long_requests(command: str) -> None:
    """A cancelled request has stopped when ``end`` returns, and its client gets an error."""
    requests, work, answers = ChangeRequests(), Work(), list[object]()
    handler = requests.guarded({command: work.handle})[command]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_call(handler, answers))
        await work.begun.wait()
        await requests.end()
        assert work.ended == "cancelled"

    assert answers == ["the filesystem was unmounted before the request was complete"]


async def test_end_of_a_mount_without_requests_does_not_wait() -> None:
    """Requests that have ended, with or without an error, do not delay the end of the mount."""
    requests, work = ChangeRequests(), Work()

    async def refuse(_arguments: Message, _report: Report) -> Message:
        raise UsageError("wrong")

    handlers = requests.guarded({"a": work.handle, "b": refuse})
    work.released.set()
    assert await handlers["a"]({"a": 1}, no_report) == {"echo": {"a": 1}}
    with pytest.raises(UsageError):
        await handlers["b"]({}, no_report)
    await requests.end()


async def test_request_of_a_cancelled_connection_ends_as_cancelled() -> None:
    """The request is cancelled together with its connection, and gets no answer."""
    requests, work, answers = ChangeRequests(), Work(), list[object]()
    handler = requests.guarded({"warm": work.handle})["warm"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_call(handler, answers))
        await work.begun.wait()
        nursery.cancel_scope.cancel()

    assert (work.ended, answers) == ("cancelled", [])
    await requests.end()
