"""Tests of commands that a signal ends, and of the text about the effects that remain."""

import math
import os
import signal
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from s3fs_meta.console import interruption
from s3fs_meta.console.interruption import InterruptedCommandError
from s3fs_meta.errors import UsageError


def test_interrupted_command_prints_the_latest_description_of_its_effects() -> None:
    """A command may update the description of its effects. An interrupt prints the latest one."""

    def command() -> None:
        with interruption.explained("nothing was removed") as remains:
            remains.change("some objects are removed")
            raise KeyboardInterrupt

    with pytest.raises(InterruptedCommandError, match="some objects are removed"):
        command()


def test_interrupt_inside_an_exception_group_is_found() -> None:
    """An interrupt is found in an exception group that also contains errors of other tasks."""

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise KeyboardInterrupt

    with (
        pytest.raises(InterruptedCommandError, match="nothing was changed"),
        interruption.explained("nothing was changed"),
    ):
        trio.run(body, strict_exception_groups=True)


def test_errors_that_are_not_interrupts_are_raised_unchanged() -> None:
    error = UsageError("no")

    with pytest.raises(UsageError) as caught, interruption.explained("nothing was changed"):
        raise error

    assert caught.value is error


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _hangup_is_not_ignored() -> Iterator[None]:
    """Give SIGHUP its default effect, because nohup(1) may have started the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_cancels_a_block_of_code_which_may_finish_its_cleanup(
    number: signal.Signals,
) -> None:
    """A signal stops the block at a schedule point. A cleanup in a shielded scope is completed."""
    steps: list[str] = []

    async def command() -> None:
        async with interruption.cancelled_by_signals():
            try:
                os.kill(os.getpid(), number)
                steps.append("before the schedule point")
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.lowlevel.checkpoint()
                    steps.append("cleanup")

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        trio.run(command)

    assert steps == ["before the schedule point", "cleanup"]
    assert signal.getsignal(number) == before


def test_block_of_code_that_ends_despite_a_signal_is_not_interrupted() -> None:
    async def command() -> str:
        async with interruption.cancelled_by_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            return "done"

    assert trio.run(command) == "done"


def test_signal_that_the_caller_ignores_stays_ignored() -> None:
    """nohup(1) makes a command ignore SIGHUP, so closing the terminal does not end the command."""

    async def command() -> str:
        async with interruption.cancelled_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            await trio.testing.wait_all_tasks_blocked()
            return "done"

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert trio.run(command) == "done"
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_interrupts_a_block_without_schedule_points(number: signal.Signals) -> None:
    """A prompt or a check of all rows blocks the event loop, so no cancellation could end it."""
    is_ended = False

    async def command() -> None:
        nonlocal is_ended
        async with interruption.cancelled_by_signals():
            with interruption.interruptible():
                os.kill(os.getpid(), number)
                is_ended = True

    with pytest.raises(KeyboardInterrupt):
        trio.run(command)

    assert not is_ended


@pytest.mark.parametrize("number", SIGNALS)
def test_repeated_signal_does_not_interrupt_the_cleanup_of_a_blocking_block(
    number: signal.Signals,
) -> None:
    """timeout(1) and terminals send a signal twice.

    The second signal must not prevent a rollback.
    """
    steps: list[str] = []

    async def command() -> None:
        async with interruption.cancelled_by_signals():
            try:
                with interruption.interruptible():
                    try:
                        signal.raise_signal(number)
                    finally:
                        signal.raise_signal(number)
                        steps.append("rollback")
            finally:
                with trio.CancelScope(shield=True):
                    signal.raise_signal(number)
                    await trio.lowlevel.checkpoint()
                    steps.append("release of the lease")

    with pytest.raises(KeyboardInterrupt):
        trio.run(command)

    assert steps == ["rollback", "release of the lease"]


def test_signal_in_a_blocking_block_counts_as_the_first_signal() -> None:
    """The signal also cancels the outer block.

    So a later signal is the second and ends the command.
    """
    deadline_s = math.inf

    async def command() -> None:
        nonlocal deadline_s
        async with interruption.cancelled_by_signals():
            try:
                with interruption.interruptible():
                    signal.raise_signal(signal.SIGTERM)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()
                deadline_s = trio.current_effective_deadline()

    with pytest.raises(KeyboardInterrupt):
        trio.run(command)

    assert deadline_s == -math.inf


def test_repeated_signal_ends_a_cleanup_that_takes_too_long() -> None:
    """A second signal that arrives later has its usual effect, so that a user need not wait."""

    async def command() -> None:
        async with interruption.cancelled_by_signals():
            try:
                os.kill(os.getpid(), signal.SIGINT)
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    while True:
                        await trio.lowlevel.checkpoint()
                        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trio.run(command)
