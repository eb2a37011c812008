"""The text that an interrupted command prints about its remaining effects."""

import pytest
import trio

from s3fs_meta.console import interruption
from s3fs_meta.console.interruption import InterruptedCommandError
from s3fs_meta.errors import UsageError


def test_interrupted_command_prints_the_latest_description_of_its_effects() -> None:
    """A command may update the description of its effects; an interrupt prints the latest one."""

    def command() -> None:
        with interruption.explained("nothing was removed") as remains:
            remains.change("some objects are removed")
            raise KeyboardInterrupt

    with pytest.raises(InterruptedCommandError, match="some objects are removed"):
        command()


def test_interrupt_inside_an_exception_group_is_found() -> None:
    """An interrupt is found in an exception group that also has errors of other tasks."""

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise KeyboardInterrupt

    with (
        pytest.raises(InterruptedCommandError, match="nothing was changed"),
        interruption.explained("nothing was changed"),
    ):
        trio.run(body, strict_exception_groups=True)


def test_errors_other_than_interrupts_are_raised_unchanged() -> None:
    error = UsageError("no")

    with pytest.raises(UsageError) as caught, interruption.explained("nothing was changed"):
        raise error

    assert caught.value is error
