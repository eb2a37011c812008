"""Tests of background tasks, concurrent calls, and work that outlasts a cancellation."""

from functools import partial

import pytest
import trio
import trio.testing

from s3fs_meta.background_task import background_task, finish, is_orderly, run_concurrently
from tests.polling import WAIT_S_MAX


async def test_background_task_is_cancelled_when_the_with_block_ends() -> None:
    ended = False

    async def run() -> None:
        nonlocal ended
        try:
            await trio.sleep_forever()
        finally:
            ended = True

    async with background_task(run):
        await trio.testing.wait_all_tasks_blocked()
        assert not ended
    assert ended


async def test_exception_in_the_with_block_is_raised_unchanged() -> None:
    error = ValueError("the block failed")
    with pytest.raises(ValueError, match="the block failed") as caught:
        async with background_task(trio.sleep_forever):
            raise error
    assert caught.value is error


async def test_with_block_is_cancelled_together_with_its_scope() -> None:
    """A background task may cancel a scope around its ``with`` block."""
    with trio.CancelScope() as scope:

        async def run() -> None:
            scope.cancel()

        async with background_task(run):
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_error_of_a_concurrent_call_is_raised_unchanged_and_cancels_the_others() -> None:
    error, cancelled = ValueError("the call failed"), list[bool]()

    async def wait() -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.append(True)

    async def fail() -> None:
        await trio.testing.wait_all_tasks_blocked()
        raise error

    with pytest.raises(ValueError, match="the call failed") as caught:
        await run_concurrently([wait, fail, wait])
    assert caught.value is error
    assert cancelled == [True, True]


async def test_concurrent_calls_run_at_the_same_time() -> None:
    made: list[int] = []
    both = trio.Event()

    async def make(number: int) -> None:
        made.append(number)
        if len(made) == 2:
            both.set()
        await both.wait()

    with trio.fail_after(WAIT_S_MAX):
        await run_concurrently(partial(make, number) for number in range(2))
    assert sorted(made) == [0, 1]


@pytest.mark.parametrize("limit_s", [0.0, 60.0])
async def test_cancellation_waits_for_work_up_to_a_limit(limit_s: float) -> None:
    """The cancellation is raised when the work is done, or when the limit is exceeded."""
    goes_on, is_done, is_after = trio.Event(), False, False

    async def work() -> None:
        nonlocal is_done
        await goes_on.wait()
        is_done = True

    async def caller(scope: trio.CancelScope) -> None:
        nonlocal is_after
        with scope:
            await finish(work, limit_s)
            is_after = True

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(caller, scope)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        goes_on.set()

    assert scope.cancelled_caught
    assert (is_done, is_after) == (limit_s > 0, False)


async def test_error_of_work_that_finish_awaits_is_raised_unchanged() -> None:
    async def work() -> None:  # noqa: RUF029 - finish() awaits it
        raise ValueError("the work failed")

    with pytest.raises(ValueError, match="the work failed"):
        await finish(work, 60.0)


async def test_orderly_endings_are_errors_and_cancellations_but_no_signals() -> None:
    """A cancellation is also recognised in the exception group that a nursery raises."""
    found: list[bool] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                await trio.sleep_forever()
        except BaseException as exc:
            found.append(is_orderly(exc))
            raise
    assert found == [True]
    assert is_orderly(ValueError())
    assert not is_orderly(KeyboardInterrupt())
