"""Background tasks of a with-block, concurrent calls, calls in threads, and work that must finish.

Owns: cancelling the task when the block ends, letting work finish after a cancellation, recognising
that no thread can be started, waiting for the exit of a child process.
Does not know: the purpose of the task.
Keeps: an exception of the with-block or of a call is raised unchanged, not in an exception group.
"""

import logging
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import trio
from typing_extensions import TypeVarTuple, Unpack

from s3fs_meta.errors import ThreadShortageError
from s3fs_meta.limits import THREAD_PAUSE_S, THREAD_WARNING_S

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")

_log = logging.getLogger(__name__)

_EXIT_POLL_S: Final = 0.005
_NO_THREAD: Final = "can't start new thread"  # the message of threading.Thread.start


@asynccontextmanager
async def background_task(run: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run a task until the with-block ends, and then cancel the task. *run* must not raise."""
    error: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        try:
            yield
        except Exception as exc:  # noqa: BLE001 - raised below
            error = exc
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error


async def run_concurrently(calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Make all *calls* at the same time; after the first error, cancel the others and raise it.

    A nursery would raise the error in an exception group, which no ``except StoreError`` catches.
    """
    errors: list[Exception] = []

    async def make(call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except Exception as exc:  # noqa: BLE001 - raised below
            errors.append(exc)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(make, call)
    if errors:
        raise errors[0]


async def finish(work: Callable[[], Awaitable[None]], limit_s: float) -> None:
    """Run *work*; if the caller is cancelled meanwhile, allow *work* another *limit_s* seconds.

    The cancellation is raised afterwards.
    """
    scope = trio.CancelScope(shield=True)

    async def limit() -> None:
        try:
            await trio.sleep_forever()
        finally:  # if the caller was cancelled, the time limit of the work starts now
            scope.deadline = trio.current_time() + limit_s

    async with background_task(limit):
        with scope:
            await work()
    await trio.lowlevel.checkpoint_if_cancelled()


async def in_thread(
    work: Callable[[Unpack[_Arguments]], _Result],
    *arguments: Unpack[_Arguments],
    abandon_on_cancel: bool = False,
    limiter: trio.CapacityLimiter | None = None,
) -> _Result:
    """Call a function in a thread, like ``trio.to_thread.run_sync``.

    Raises:
        ThreadShortageError: no thread can be started; the function was not called.
        The errors of the function.
    """
    try:
        return await trio.to_thread.run_sync(  # noqa: TID251 - the only call
            work, *arguments, abandon_on_cancel=abandon_on_cancel, limiter=limiter
        )
    except RuntimeError as exc:
        if not lacks_thread(exc):
            raise
        raise ThreadShortageError from exc


async def in_thread_or_here(
    work: Callable[[Unpack[_Arguments]], _Result],
    *arguments: Unpack[_Arguments],
    abandon_on_cancel: bool = False,
    limiter: trio.CapacityLimiter | None = None,
) -> _Result:
    """Call a function in a thread, or on the event loop if no thread can be started.

    Use this for work that must not be left out, and that is short enough to block the event loop.
    """
    try:
        return await in_thread(
            work, *arguments, abandon_on_cancel=abandon_on_cancel, limiter=limiter
        )
    except ThreadShortageError:
        return work(*arguments)


async def exit_of(pid: int, limit_s: float) -> int | None:
    """Return the wait status of a child process; None if it has not exited within *limit_s*.

    The status is polled, because a thread that waits may not be available.
    """
    with trio.move_on_after(limit_s):
        while True:
            exited, status = os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - WNOHANG
            if exited:
                return status
            await trio.sleep(_EXIT_POLL_S)
    return None


class ShortageLog:
    """Logs the effect of a shortage or a failed disk, at most once in THREAD_WARNING_S."""

    def __init__(self) -> None:
        self._quiet_until_s = -math.inf

    def warn(self, effect: str, why: object | None = None) -> None:
        """Log an effect and its cause, by default that no thread can be started."""
        now_s = trio.current_time()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + THREAD_WARNING_S
            _log.warning("%s: %s", effect, why or ThreadShortageError())


async def continuing(name: str, task: Callable[[], Awaitable[None]]) -> None:
    """Run a background task; if it cannot start a thread, start it again after THREAD_PAUSE_S."""
    shortage = ShortageLog()
    while True:
        try:
            return await task()
        except Exception as exc:
            if not lacks_thread(exc):
                raise
        shortage.warn(f"the background task {name!r} pauses for {THREAD_PAUSE_S:g} s")
        await trio.sleep(THREAD_PAUSE_S)


def lacks_thread(exc: BaseException) -> bool:
    """Return whether an exception means that no thread can be started.

    Source: CPython, Modules/_threadmodule.c, the error of pthread_create(3).
    """
    members = getattr(exc, "exceptions", None)
    if isinstance(members, tuple):
        return all(isinstance(one, trio.Cancelled) or lacks_thread(one) for one in members)
    return isinstance(exc, ThreadShortageError) or (
        isinstance(exc, RuntimeError) and str(exc) == _NO_THREAD
    )


def is_orderly(exc: BaseException) -> bool:
    """Return whether an exception consists only of errors and cancellations.

    A nursery raises the cancellations of its tasks in an exception group. A KeyboardInterrupt is
    not orderly, because it may have stopped any code in the middle.
    """
    members = getattr(exc, "exceptions", None)
    if isinstance(members, tuple):
        return all(map(is_orderly, members))
    return isinstance(exc, (Exception, trio.Cancelled))
