"""A background task that runs during a with-block.

Owns: cancelling the task when the block ends. Does not know: what the task does.
Keeps: an exception of the with-block is raised unchanged, not in an exception group.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio


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
