"""Wait for a condition that no event reports, such as a change by the kernel or by a thread."""

from collections.abc import Callable

import trio

WAIT_S_MAX = 60
_PAUSE_S = 0.001


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition is true.

    Raises:
        trio.TooSlowError: the condition was still false after WAIT_S_MAX seconds.
    """
    with trio.fail_after(WAIT_S_MAX):
        while not condition():  # noqa: ASYNC110 - callers have no event to wait for
            await trio.sleep(_PAUSE_S)
