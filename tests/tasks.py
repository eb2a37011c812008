"""A helper that runs a task while a test does something else."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio


@asynccontextmanager
async def running(task: Callable[..., Awaitable[object]], *arguments: Any) -> AsyncIterator[None]:
    """Run a task during the ``with`` block, and cancel it at the end of the block."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task, *arguments)
        yield
        nursery.cancel_scope.cancel()
