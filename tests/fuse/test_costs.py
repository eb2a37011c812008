"""The cost of requests in calls and in moves between files: counted, not timed.

The numbers are those of docs/design/architecture.md. One that grows is a regression; one that
shrinks is news for that page.
"""

import os
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import trio

from s3fs_meta.model import ROOT_INO, Ino
from tests.calls import Counted, counting
from tests.fuse.conftest import BLOCK_BYTES, Context, Handlers

DATA = os.urandom(4096)


class Cost(NamedTuple):
    """The bounds of one request."""

    calls: int
    moves: int


async def cost_of(handlers: Handlers, request: Callable[[], Awaitable[object]]) -> Counted:
    """Carry out one request in an open group, which it need not begin."""
    handlers.session.db.commit()
    handlers.session.db.begin()
    await trio.lowlevel.checkpoint()
    with counting() as counted:
        await request()
    return counted


async def make_file(handlers: Handlers, name: bytes) -> Ino:
    """Make a file and open it."""
    created = await handlers.operations.create(ROOT_INO, name, 0o644, 0, Context())
    return Ino(created[0].fh)


def require(counted: Counted, most: Cost) -> None:
    """Fail with the trip of a request that costs more."""
    trip = "\n".join(f"{file} {function}" for file, function in counted.trip)
    cost = Cost(counted.calls, counted.moves)
    assert cost.calls <= most.calls, f"{cost}\n{trip}"
    assert cost.moves <= most.moves, f"{cost}\n{trip}"


async def test_write_into_a_new_block_is_planned_once(handlers: Handlers) -> None:
    """It looks everything up, asks whether it may, and does it: nothing of that twice."""
    ino = await make_file(handlers, b"f")
    write = handlers.operations.write
    await write(ino, 0, DATA)
    counted = await cost_of(handlers, lambda: write(ino, BLOCK_BYTES, DATA))
    require(counted, WRITE)
    functions = [function for _file, function in counted.trip]
    for once in ("locate", "require_writable", "spend"):
        assert functions.count(once) == 1, once


async def test_write_behind_the_end_of_a_dirty_block(handlers: Handlers) -> None:
    """As programs that append do."""
    ino = await make_file(handlers, b"f")
    write = handlers.operations.write
    await write(ino, 0, DATA)
    require(await cost_of(handlers, lambda: write(ino, len(DATA), DATA)), APPEND)


async def test_cold_read(handlers: Handlers) -> None:
    """Of a block that the bucket has, and this host has not."""
    ino = await make_file(handlers, b"f")
    await handlers.operations.write(ino, 0, os.urandom(BLOCK_BYTES))
    await handlers.session.flush()
    await handlers.session.durability.sync_all()
    await handlers.fs.read(ino, 0, 1)  # its access time is new enough
    cache = handlers.session.cache
    cache.disk.has_room(1 << 60)  # which no disk has: everything clean goes
    require(await cost_of(handlers, lambda: handlers.operations.read(ino, 0, 4096)), COLD_READ)
    assert cache.misses == 1


WRITE = Cost(calls=37, moves=24)
APPEND = Cost(calls=33, moves=23)
COLD_READ = Cost(calls=92, moves=50)  # without its threads, from a store in memory
