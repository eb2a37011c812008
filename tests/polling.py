"""Functions that wait for a condition that no event reports, such as a change by the kernel."""

import time
from collections.abc import Callable
from typing import Final

import trio

WAIT_S_MAX: Final = 60
PROCESS_S_MAX: Final = 250
_PAUSE_S = 0.001
_PROCESS_PAUSE_S = 0.01


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition is true.

    Raises:
        trio.TooSlowError: the condition was still false after WAIT_S_MAX seconds.
    """
    with trio.fail_after(WAIT_S_MAX):
        while not condition():  # noqa: ASYNC110 - callers have no event to wait for
            await trio.sleep(_PAUSE_S)


def wait_until(condition: Callable[[], object], failure: str) -> None:
    """Wait until the condition is true, or fail with the message after PROCESS_S_MAX seconds."""
    deadline_s = time.monotonic() + PROCESS_S_MAX
    while not condition():
        assert time.monotonic() < deadline_s, failure
        time.sleep(_PROCESS_PAUSE_S)
