"""Helpers that run a task while a test does something else."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
import trio

from s3fs_meta.testing.faulty_store import StoreGate


@asynccontextmanager
async def running(task: Callable[..., Awaitable[object]], *arguments: Any) -> AsyncIterator[None]:
    """Run a task during the ``with`` block, and cancel it at the end of the block."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task, *arguments)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def held(
    gate: StoreGate,
    call: Callable[[], Awaitable[object]],
    raises: type[Exception] | None = None,
    match: str | None = None,
) -> AsyncIterator[trio.Nursery]:
    """Start a call, run the ``with`` block while a gate holds the call, then open the gate.

    The call must succeed, or raise an error of the class *raises* that matches *match*.
    """

    async def run() -> None:
        with nullcontext() if raises is None else pytest.raises(raises, match=match):
            await call()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await gate.wait_started()
        yield nursery
        gate.open()
