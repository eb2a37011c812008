"""Background tasks of a with-block, concurrent calls, threads, work that outlives a cancellation.

Owns: cancelling the task when the block ends, letting work finish after a cancellation, recognising
that no thread can be started.
Does not know: the purpose of the task.
Keeps: an exception of the with-block or of a call is raised unchanged, not in an exception group.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import trio

from s3fs_meta.errors import ThreadShortageError
from s3fs_meta.limits import THREAD_PAUSE_S

_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)

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
        finally:  # the work is done, or the caller was cancelled: the time limit starts
            scope.deadline = trio.current_time() + limit_s

    async with background_task(limit):
        with scope:
            await work()
    await trio.lowlevel.checkpoint_if_cancelled()


async def in_thread(
    work: Callable[..., _Result],
    *arguments: object,
    abandon_on_cancel: bool = False,
    limiter: trio.CapacityLimiter | None = None,
) -> _Result:
    """Call a function in a thread, like ``trio.to_thread.run_sync``.

    Raises:
        ThreadShortageError: no thread can be started; the function was not called.
        The errors of the function.
    """
    try:
        return await trio.to_thread.run_sync(
            work, *arguments, abandon_on_cancel=abandon_on_cancel, limiter=limiter
        )
    except RuntimeError as exc:
        if not lacks_thread(exc):
            raise
        raise ThreadShortageError from exc


async def in_thread_or_here(
    work: Callable[..., _Result],
    *arguments: object,
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


async def continuing(name: str, task: Callable[[], Awaitable[None]]) -> None:
    """Run a background task; if it cannot start a thread, start it again after THREAD_PAUSE_S."""
    while True:
        try:
            return await task()
        except Exception as exc:
            if not lacks_thread(exc):
                raise
        _log.warning(
            "the background task %r pauses for %g s: %s",
            name,
            THREAD_PAUSE_S,
            ThreadShortageError(),
        )
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
