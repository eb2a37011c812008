"""Blocking calls in a thread: how the caller continues after success, error or cancellation."""

import signal
import threading

import pytest
import trio
import trio.testing

from s3fs_meta.cache.crash_safety.quick_thread import QuickThread
from tests.polling import WAIT_S_MAX


async def test_thread_call_ends_before_its_caller_continues() -> None:
    """The event loop continues while a call runs in the thread."""
    thread = QuickThread()
    order: list[str] = []
    for number in range(3):
        go_on = threading.Event()

        def call(go_on: threading.Event = go_on, number: int = number) -> None:
            assert threading.current_thread() is not threading.main_thread()
            assert go_on.wait(WAIT_S_MAX)
            order.append(f"call {number}")

        async def caller(call: object = call, number: int = number) -> None:
            assert callable(call)
            await thread.run(call)
            order.append(f"caller {number}")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(caller)
            await trio.testing.wait_all_tasks_blocked()
            go_on.set()

    assert order == [f"{who} {number}" for number in range(3) for who in ("call", "caller")]


async def test_second_function_runs_in_the_event_loop_while_the_first_function_runs_in_the_thread() -> (
    None
):
    both = threading.Event()
    seen: list[threading.Thread] = []

    def meanwhile() -> None:
        seen.append(threading.current_thread())
        both.set()

    def call() -> None:
        assert both.wait(WAIT_S_MAX)

    await QuickThread().run(call, meanwhile=meanwhile)

    assert seen == [threading.current_thread()]


@pytest.mark.parametrize("late", ["call", "meanwhile"])
async def test_third_function_runs_in_the_thread_after_the_first_two_functions_end(
    late: str,
) -> None:
    thread, earlier_ended, order = QuickThread(), threading.Event(), list[str]()

    def run(name: str) -> None:
        if name == late:
            assert earlier_ended.wait(WAIT_S_MAX)
        order.append(name)
        earlier_ended.set()

    def afterwards() -> None:
        assert threading.current_thread() is not threading.main_thread()
        order.append("afterwards")

    await thread.run(lambda: run("call"), meanwhile=lambda: run("meanwhile"), afterwards=afterwards)

    earlier = {"call": "meanwhile", "meanwhile": "call"}[late]
    assert order == [earlier, late, "afterwards"]


@pytest.mark.parametrize("failing", ["call", "meanwhile"])
async def test_third_function_does_not_run_if_one_of_the_first_two_fails(failing: str) -> None:
    thread, order = QuickThread(), list[str]()

    def run(name: str) -> None:
        if name == failing:
            _fail(name)
        order.append(name)

    with pytest.raises(OSError, match=failing):
        await thread.run(
            lambda: run("call"),
            meanwhile=lambda: run("meanwhile"),
            afterwards=lambda: run("afterwards"),
        )

    assert "afterwards" not in order


def _fail(text: str) -> None:
    raise OSError(text)


async def test_error_is_raised_after_both_functions_end() -> None:
    thread = QuickThread()
    done: list[str] = []
    with pytest.raises(OSError, match="call"):
        await thread.run(lambda: _fail("call"), meanwhile=lambda: done.append("meanwhile"))
    with pytest.raises(OSError, match="meanwhile"):
        await thread.run(lambda: done.append("call"), meanwhile=lambda: _fail("meanwhile"))

    await thread.run(lambda: done.append("next"))

    assert done == ["meanwhile", "call", "next"]


async def test_cancelled_caller_waits_until_its_thread_call_ends() -> None:
    """A cancelled caller waits for its call to end, so that two syncs never run concurrently."""
    done: list[bool] = []
    go_on, ended = threading.Event(), trio.Event()

    def call() -> None:
        assert go_on.wait(WAIT_S_MAX)
        done.append(True)

    async def caller(scope: trio.CancelScope) -> None:
        with scope:
            await QuickThread().run(call)
        assert done
        ended.set()

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(caller, scope)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert not ended.is_set()
        go_on.set()

    assert ended.is_set()


async def test_cancelled_task_does_not_begin_its_thread_call() -> None:
    done: list[bool] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await QuickThread().run(lambda: done.append(True))

    assert not done


def test_interrupted_caller_waits_until_its_thread_call_ends() -> None:
    """An interrupt reaches trio's main task even in a shielded scope; later calls still work."""
    thread = QuickThread()
    order: list[str] = []
    started, go_on = threading.Event(), threading.Event()

    def call() -> None:
        started.set()
        assert go_on.wait(WAIT_S_MAX)
        order.append("call")

    async def end_later() -> None:
        await trio.to_thread.run_sync(started.wait)
        signal.raise_signal(signal.SIGINT)
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        order.append("interrupted")
        go_on.set()

    async def main() -> None:
        trio.lowlevel.spawn_system_task(end_later)
        try:
            await thread.run(call)
        except KeyboardInterrupt:
            order.append("caller")
        await thread.run(lambda: order.append("next"))

    # Trio converts interrupts only if Python's default handler is installed.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        trio.run(main)
    finally:
        signal.signal(signal.SIGINT, before)

    assert order == ["interrupted", "call", "caller", "next"]
