"""The cost of requests in calls and in moves between files: counted, not timed.

The numbers stand in docs/design/architecture.md, and nowhere else. One that grows is a regression;
one that is much smaller must be stated there, or it could grow again unnoticed.
"""

import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import trio

from s3fs_meta.fuse.raw_operations import COPY_FILE_RANGE, RawOperations
from s3fs_meta.model import ROOT_INO, Ino
from tests.calls import Counted, counting
from tests.fuse.conftest import BLOCK_BYTES, Context, Handlers

DATA = os.urandom(4096)
PAGE: Final = Path(__file__).parents[2] / "docs" / "design" / "architecture.md"
# Versions of Python differ in what they call: the later ones do without a call per comprehension.
SPARED_SHARE: Final = 5


class Cost(NamedTuple):
    """The cost of one request."""

    calls: int
    moves: int


def stated() -> dict[str, Cost]:
    """Return the table of the page."""
    rows = re.findall(r"^\| (.+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    return {request: Cost(int(calls), int(moves)) for request, calls, moves in rows}


async def cost_of(
    handlers: Handlers, request: Callable[[], Awaitable[object]], *, in_group: bool = True
) -> Counted:
    """Carry out one request in an open group, which it need not begin; or between two groups."""
    handlers.session.db.commit()
    if in_group:
        handlers.session.db.begin()
    await trio.lowlevel.checkpoint()
    with counting() as counted:
        await request()
    return counted


async def make_file(handlers: Handlers, name: bytes) -> Ino:
    """Make a file and open it."""
    created = await handlers.operations.create(ROOT_INO, name, 0o644, 0, Context())
    return Ino(created[0].fh)


def require(counted: Counted, request: str) -> None:
    """Fail with the trip of a request that costs more than the page says, or much less."""
    trip = "\n".join(f"{file} {function}" for file, function in counted.trip)
    cost, most = Cost(counted.calls, counted.moves), stated()[request]
    for found, said in zip(cost, most, strict=True):
        assert said - said // SPARED_SHARE <= found <= said, f"{cost}, stated {most}\n{trip}"


async def test_write_into_a_new_block_is_planned_once(handlers: Handlers) -> None:
    """A write into a new block looks everything up, checks and acts only once."""
    ino = await make_file(handlers, b"f")
    write = handlers.operations.write
    await write(ino, 0, DATA)
    counted = await cost_of(handlers, lambda: write(ino, BLOCK_BYTES, DATA))
    require(counted, "4 KiB into a new block")
    functions = [function for _file, function in counted.trip]
    for once in ("locate", "require_writable", "spend"):
        assert functions.count(once) == 1, once


async def test_write_behind_the_end_of_a_dirty_block(handlers: Handlers) -> None:
    """An append to a dirty block has the documented cost."""
    ino = await make_file(handlers, b"f")
    write = handlers.operations.write
    await write(ino, 0, DATA)
    counted = await cost_of(handlers, lambda: write(ino, len(DATA), DATA))
    require(counted, "4 KiB behind the end of a dirty block")


async def test_write_over_a_dirty_block(handlers: Handlers) -> None:
    """Size and block stay the same, so no row changes; an open group would be committed first."""
    ino = await make_file(handlers, b"f")
    write = handlers.operations.write
    await write(ino, 0, DATA)
    await write(ino, 0, DATA)
    counted = await cost_of(handlers, lambda: write(ino, 0, DATA), in_group=False)
    require(counted, "4 KiB over a dirty block, no row changes")


async def test_warm_read(handlers: Handlers) -> None:
    """A read of a cached block has the documented cost."""
    ino = await make_file(handlers, b"f")
    await handlers.operations.write(ino, 0, DATA)
    read = handlers.operations.read
    await read(ino, 0, len(DATA))
    require(await cost_of(handlers, lambda: read(ino, 0, len(DATA))), "warm read")


@pytest.mark.parametrize("is_uploaded", [False, True])
async def test_copy_of_a_small_file(handlers: Handlers, is_uploaded: bool) -> None:
    """As cp(1) does, by copy_file_range(2): it is done when the call returns, without a task."""
    source, target = await make_file(handlers, b"f"), await make_file(handlers, b"g")
    await handlers.operations.write(source, 0, DATA)
    if is_uploaded:
        await handlers.session.flush()
    content = COPY_FILE_RANGE.pack(0, target, 0, 1 << 40)
    async with trio.open_nursery() as nursery:
        raw = RawOperations(handlers.operations, nursery, 0)

        async def request() -> None:  # noqa: RUF029 - it must not wait
            raw.copy_file_range(1, source, 0, content)

        counted = await cost_of(handlers, request)
        assert not nursery.child_tasks
    if is_uploaded:
        require(counted, "copy of a small file that is in the bucket")
    else:
        require(counted, "copy of a small file that is dirty")
    assert await handlers.fs.read(target, 0, len(DATA)) == DATA


async def test_cold_read(handlers: Handlers) -> None:
    """A read of an uncached block has the documented cost."""
    ino = await make_file(handlers, b"f")
    await handlers.operations.write(ino, 0, os.urandom(BLOCK_BYTES))
    await handlers.session.flush()
    await handlers.session.durability.sync_all()
    await handlers.fs.read(ino, 0, 1)  # makes the access time new enough
    cache = handlers.session.cache
    cache.disk.has_room(1 << 60)  # which no disk has: everything clean goes
    counted = await cost_of(handlers, lambda: handlers.operations.read(ino, 0, 4096))
    require(counted, "cold read of one block, without its threads")
    assert cache.misses == 1


def test_page_names_the_counted_requests() -> None:
    """A row that no test counts would be believed."""
    counted = re.findall(r'require\(.*?"([^"]+)"\)', Path(__file__).read_text(), re.DOTALL)
    assert sorted(stated()) == sorted(one for one in counted if one in stated())
