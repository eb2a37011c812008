"""The description of what an interrupted command leaves."""

import pytest
import trio

from s3fs_meta.console import interruption
from s3fs_meta.console.interruption import InterruptedCommandError
from s3fs_meta.errors import UsageError


def test_interrupt_is_raised_with_the_last_description() -> None:
    """The command changes the description as it proceeds."""

    def command() -> None:
        with interruption.explained("nothing was removed") as remains:
            remains.change("some objects are removed")
            raise KeyboardInterrupt

    with pytest.raises(InterruptedCommandError, match="some objects are removed"):
        command()


def test_interrupt_of_a_nursery_is_found() -> None:
    """Another task may fail because of the interrupt."""

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise KeyboardInterrupt

    with (
        pytest.raises(InterruptedCommandError, match="nothing was changed"),
        interruption.explained("nothing was changed"),
    ):
        trio.run(body, strict_exception_groups=True)


def test_other_errors_are_not_changed() -> None:
    error = UsageError("no")

    with pytest.raises(UsageError) as caught, interruption.explained("nothing was changed"):
        raise error

    assert caught.value is error
