"""Tests of the costs of requests: numbers of function calls and of moves between source files.

docs/design/architecture.md lists the numbers. A test fails if its request costs more than
documented. It also fails if the request costs much less: the page must then be updated, so that a
later increase is noticed. The time of ``mock_clock`` stands still, so that no timer of a background
task runs in a request.
"""

import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import trio
from trio.testing import MockClock

from s3fs_meta.fs import acl
from s3fs_meta.fs.acl import AclEntry
from s3fs_meta.fuse.frequent_requests import (
    READ,
    SET_ATIME,
    SET_CTIME,
    SET_MTIME,
    SETATTR,
    SETXATTR,
    FrequentRequests,
)
from s3fs_meta.fuse.raw_operations import COPY_FILE_RANGE, RawOperations
from s3fs_meta.model import ROOT_INO, Ino
from tests.calls import Counted, counting
from tests.fuse.conftest import BLOCK_BYTES, Context, Handlers

DATA = os.urandom(4096)
PAGE: Final = Path(__file__).parents[2] / "docs" / "design" / "architecture.md"
# Newer versions of Python inline comprehensions, which saves up to a fifth of the calls.
SPARED_SHARE: Final = 5
LISTED: Final = 20


class Cost(NamedTuple):
    """The cost of one request."""

    calls: int
    moves: int


def stated() -> dict[str, Cost]:
    """Return the costs in the table of docs/design/architecture.md, by request."""
    rows = re.findall(r"^\| (.+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    return {request: Cost(int(calls), int(moves)) for request, calls, moves in rows}


async def cost_of(
    handlers: Handlers, request: Callable[[], Awaitable[object]], *, in_group: bool = True
) -> Counted:
    """Count the calls of one request, within an open commit group or between two groups."""
    handlers.session.db.commit()
    if in_group:
        handlers.session.db.begin()
    await trio.lowlevel.checkpoint()
    with counting() as counted:
        await request()
    return counted


async def make_file(handlers: Handlers, name: bytes) -> Ino:
    """Create a file and open it."""
    created = await handlers.operations.create(ROOT_INO, name, 0o644, 0, Context())
    return Ino(created[0].fh)


def require(counted: Counted, request: str) -> None:
    """Require that a request has its documented cost, or at most a fifth less."""
    trip = "\n".join(f"{file} {function}" for file, function in counted.trip)
    cost, most = Cost(counted.calls, counted.moves), stated()[request]
    for found, said in zip(cost, most, strict=True):
        assert said - said // SPARED_SHARE <= found <= said, f"{cost}, stated {most}\n{trip}"


async def test_write_plan_of_a_new_block_is_made_only_once(
    mock_clock: MockClock, handlers: Handlers
) -> None:
    """A write looks up its blocks, checks the mount and accounts for disk space only once."""
    ino = await make_file(handlers, b"f")
    write = handlers.operations.write
    await write(ino, 0, DATA)
    counted = await cost_of(handlers, lambda: write(ino, BLOCK_BYTES, DATA))
    require(counted, "write of 4 KiB into a new block")
    functions = [function for _file, function in counted.trip]
    for once in ("locate", "require_writable", "spend"):
        assert functions.count(once) == 1, once


async def test_first_write_of_a_file_needs_no_block_query_and_no_write_plan(
    mock_clock: MockClock,
    handlers: Handlers,
) -> None:
    """An inode without mapped blocks has no row in the block map."""
    write = handlers.operations.write
    # This write creates the directory of block files.
    await write(await make_file(handlers, b"f"), 0, DATA)
    ino = await make_file(handlers, b"g")
    counted = await cost_of(handlers, lambda: write(ino, 0, DATA))
    require(counted, "write of the first 4 KiB of a file")
    functions = {function for _file, function in counted.trip}
    assert not functions & {"locate", "locate_range", "plan_write"}


async def test_append_to_a_dirty_block_has_the_documented_cost(
    mock_clock: MockClock, handlers: Handlers
) -> None:
    ino = await make_file(handlers, b"f")
    write = handlers.operations.write
    await write(ino, 0, DATA)
    counted = await cost_of(handlers, lambda: write(ino, len(DATA), DATA))
    require(counted, "write of 4 KiB at the end of a dirty block")


async def test_overwrite_of_a_dirty_block_has_the_documented_cost(
    mock_clock: MockClock, handlers: Handlers
) -> None:
    """An overwrite of a dirty block changes no row and opens no commit group."""
    ino = await make_file(handlers, b"f")
    write = handlers.operations.write
    await write(ino, 0, DATA)
    await write(ino, 0, DATA)
    counted = await cost_of(handlers, lambda: write(ino, 0, DATA), in_group=False)
    require(counted, "overwrite of 4 KiB in a dirty block, without a row change")


async def test_read_of_a_cached_block_has_the_documented_cost(
    mock_clock: MockClock, handlers: Handlers
) -> None:
    ino = await make_file(handlers, b"f")
    await handlers.operations.write(ino, 0, DATA)
    read = handlers.operations.read
    await read(ino, 0, len(DATA))
    require(await cost_of(handlers, lambda: read(ino, 0, len(DATA))), "read of a cached block")


@pytest.mark.parametrize("is_uploaded", [False, True])
async def test_copy_of_a_small_file_has_the_documented_cost(
    mock_clock: MockClock, handlers: Handlers, is_uploaded: bool
) -> None:
    """A copy by copy_file_range(2), as in cp(1), is complete when the call returns."""
    source, target = await make_file(handlers, b"f"), await make_file(handlers, b"g")
    await handlers.operations.write(source, 0, DATA)
    if is_uploaded:
        await handlers.session.flush()
    content = COPY_FILE_RANGE.pack(0, target, 0, 1 << 40)
    async with trio.open_nursery() as nursery:
        raw = RawOperations(handlers.operations, nursery, 0)

        async def request() -> None:  # noqa: RUF029 - the request must not wait
            raw.copy_file_range(1, source, 0, content)

        counted = await cost_of(handlers, request)
        assert not nursery.child_tasks
    if is_uploaded:
        require(counted, "copy of a small file that is in the bucket")
    else:
        require(counted, "copy of a small file that is dirty")
    assert await handlers.fs.read(target, 0, len(DATA)) == DATA


async def test_chmod_of_a_file_with_an_acl_has_the_documented_cost(
    mock_clock: MockClock, handlers: Handlers
) -> None:
    """cp -a sets an ACL for each file. An ACL that only repeats the mode is not stored."""
    ino = await make_file(handlers, b"f")
    value = acl.encode(
        [AclEntry(acl.USER_OBJ, 6), AclEntry(acl.GROUP_OBJ, 4), AclEntry(acl.OTHER, 4)]
    )
    content = SETXATTR.pack(0) + acl.ACCESS + b"\0" + value

    async def request() -> None:  # noqa: RUF029 - the request must not wait
        assert raw.setxattr(1, ino, 0, content)

    raw = FrequentRequests(handlers.operations)
    await request()
    require(await cost_of(handlers, request), "change of permissions through an ACL")
    assert handlers.fs.getattr(ino).mode & 0o7777 == 0o644


async def test_setting_the_times_of_a_file_has_the_documented_cost(
    mock_clock: MockClock, handlers: Handlers
) -> None:
    """Extracting an archive sets times, owner and mode of each file with three requests."""
    ino = await make_file(handlers, b"f")
    content = SETATTR.pack(SET_ATIME | SET_MTIME | SET_CTIME, 1, 2, 3, 0, 0, 0, 0, 0, 0)
    raw = FrequentRequests(handlers.operations)

    async def request() -> None:  # noqa: RUF029 - the request must not wait
        assert raw.setattr(1, ino, 0, content)

    require(await cost_of(handlers, request), "change of the times of a file")


async def test_listing_of_a_directory_has_its_documented_cost(
    mock_clock: MockClock, handlers: Handlers
) -> None:
    """A listing needs two function calls for each name: one packs it, and one counts its lookup."""
    for number in range(LISTED):
        await make_file(handlers, b"%d" % number)
    raw = FrequentRequests(handlers.operations)

    async def request() -> None:  # noqa: RUF029 - the request must not wait
        assert raw.readdir(1, ROOT_INO, 0, READ.pack(0, 1 << 16))

    await request()
    counted = await cost_of(handlers, request)
    require(counted, "listing of a directory with 20 files")
    functions = [function for _file, function in counted.trip]
    assert functions.count("dirent_of_row") == LISTED


async def test_read_of_an_uncached_block_has_the_documented_cost(
    mock_clock: MockClock, handlers: Handlers
) -> None:
    ino = await make_file(handlers, b"f")
    await handlers.operations.write(ino, 0, os.urandom(BLOCK_BYTES))
    await handlers.session.flush()
    await handlers.session.durability.sync_all()
    await handlers.fs.read(ino, 0, 1)  # This read sets atime, so that the counted read does not.
    cache = handlers.session.cache
    # The requested free space exceeds every disk, so all clean blocks are evicted.
    cache.disk.has_room(1 << 60)
    counted = await cost_of(handlers, lambda: handlers.operations.read(ino, 0, 4096))
    require(counted, "read of one block that is not cached, without the calls in threads")
    assert cache.misses == 1


async def test_flush_of_a_small_file_has_its_documented_cost(
    mock_clock: MockClock, handlers: Handlers
) -> None:
    await handlers.operations.write(await make_file(handlers, b"f"), 0, os.urandom(4096))
    await handlers.session.flush()
    await handlers.operations.write(await make_file(handlers, b"g"), 0, os.urandom(4096))
    with counting() as counted:
        await handlers.session.flush()
    require(counted, "flush of one small file, without the calls in threads")


def test_cost_table_lists_only_tested_requests() -> None:
    """Each row of the table of request costs is measured by a test of this module."""
    counted = re.findall(r'require\(.*?"([^"]+)"\)', Path(__file__).read_text(), re.DOTALL)
    assert sorted(stated()) == sorted(one for one in counted if one in stated())
