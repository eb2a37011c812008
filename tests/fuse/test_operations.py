"""Tests of the FUSE handlers: lookup counts, replies and invalidations."""

import errno
import itertools
import os
import sys
import time
from collections.abc import Iterable

import pyfuse3
import pytest

from s3fs_meta.fs.write_gate import Invalidations
from s3fs_meta.fuse import kernel_cache
from s3fs_meta.limits import READDIR_ROWS_MIN, READDIR_S_MAX
from s3fs_meta.model import ROOT_INO, Ino
from s3fs_meta.mount_state import MountState
from tests.faults import raising
from tests.fuse.conftest import CONTEXT, Handlers, ask, forget, list_page, make_file, open_file
from tests.polling import until

ENTRY_BYTES = 160  # the size of a listed entry whose name has at most 8 bytes


def list_root(handlers: Handlers, rooms: Iterable[int]) -> list[list[bytes]]:
    """List the root with replies of at most *rooms* entries; return the names in each reply."""
    replies: list[list[bytes]] = []
    position = 0
    for room in rooms:
        entries = list_page(handlers, ROOT_INO, position, room * ENTRY_BYTES)
        if not entries:
            break
        replies.append([entry.name for entry in entries])
        position = entries[-1].position
    return replies


async def test_replies_with_an_inode_increment_the_lookup_count_of_the_inode(
    handlers: Handlers,
) -> None:
    """Requests such as create, lookup and link add 1 to the lookup count, but getattr does not."""
    operations, count = handlers.operations, handlers.fs.lookups.count
    ino = await make_file(handlers, b"f")
    assert count(ino) == 1
    assert ask(handlers, "lookup", ROOT_INO, b"f\0")[1].startswith(ino.to_bytes(8, sys.byteorder))
    assert (await operations.link(ino, ROOT_INO, b"g", CONTEXT)).st_nlink == 2
    assert ask(handlers, "getattr", ino)[0] == 0
    assert count(ino) == 3
    forget(handlers, ino, 3)
    assert count(ino) == 0
    for kind, arguments in (
        ("mkdir", (0o755,)),
        ("mknod", (0o010644, 0)),
        ("symlink", (b"target",)),
    ):
        made = await getattr(operations, kind)(ROOT_INO, kind.encode(), *arguments, CONTEXT)
        assert count(made.st_ino) == 1


async def test_lookup_of_a_missing_name_returns_inode_0(handlers: Handlers) -> None:
    """A reply with inode 0 lets the kernel cache a missing name."""
    code, content = ask(handlers, "lookup", ROOT_INO, b"nothing\0")
    assert (code, content[:8]) == (0, bytes(8))
    assert handlers.fs.lookups.count(Ino(0)) == 0


async def test_listing_increments_lookup_counts_only_of_returned_entries(
    handlers: Handlers,
) -> None:
    """A listing starts with "." and "..", which do not increase the lookup counts."""
    inos = {await make_file(handlers, b"n%d" % number) for number in range(60)}
    for ino in inos:
        forget(handlers, ino, 1)
    replies = list_root(handlers, itertools.chain((1, 1, 7), itertools.repeat(1000)))
    assert replies[:2] == [[b"."], [b".."]]
    assert len(replies[2]) == 7
    assert sorted(itertools.chain.from_iterable(replies[2:])) == sorted(
        b"n%d" % number for number in range(60)
    )
    assert {handlers.fs.lookups.count(ino) for ino in inos} == {1}
    assert handlers.fs.lookups.count(ROOT_INO) == 0


async def test_listing_of_a_slow_database_is_divided_into_several_replies(
    handlers: Handlers,
) -> None:
    """Other requests need not wait until a slow disk has read the rows of a full reply."""
    names = [b"n%d" % number for number in range(3 * READDIR_ROWS_MIN)]
    for name in names:
        await make_file(handlers, name)

    def wait() -> bool:
        time.sleep(READDIR_S_MAX / 10)
        return False  # False lets the query continue.

    connection = handlers.fs.db.connection
    connection.set_progress_handler(wait, READDIR_ROWS_MIN)
    try:
        replies = list_root(handlers, itertools.repeat(1000))
    finally:
        connection.set_progress_handler(None)

    assert {len(each) for each in replies[1:-1]} == {READDIR_ROWS_MIN}
    assert sorted(itertools.chain.from_iterable(replies)) == sorted([b".", b"..", *names])


async def test_removed_open_directory_lists_only_dot_and_dotdot(handlers: Handlers) -> None:
    """A removed open directory lists "." and "..", even if its parent is also removed."""
    operations = handlers.operations
    outer = (await operations.mkdir(ROOT_INO, b"a", 0o755, CONTEXT)).st_ino
    inner = (await operations.mkdir(outer, b"b", 0o755, CONTEXT)).st_ino
    await operations.rmdir(outer, b"b", CONTEXT)
    await operations.rmdir(ROOT_INO, b"a", CONTEXT)
    forget(handlers, outer, 1)
    assert [entry.name for entry in list_page(handlers, inner)] == [b".", b".."]


async def test_request_for_a_missing_capability_of_an_open_file_fails_with_enodata(
    handlers: Handlers,
) -> None:
    operations = handlers.operations
    info, _ = await operations.create(ROOT_INO, b"f", 0o100644, os.O_RDWR, CONTEXT)
    for _ in range(2):
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await operations.getxattr(info.fh, b"security.capability", CONTEXT)
        assert caught.value.errno == errno.ENODATA


async def test_requests_open_write_read_fsync_and_release_succeed(handlers: Handlers) -> None:
    operations = handlers.operations
    ino = await make_file(handlers, b"f")
    assert open_file(handlers, ino, os.O_RDWR) == 0
    assert await operations.write(ino, 2, b"abc") == 3
    assert await operations.read(ino, 0, 10) == b"\0\0abc"
    await operations.fsync(ino, False)
    await operations.fsyncdir(ROOT_INO, False)
    assert ask(handlers, "release", ino) == (0, b"")
    assert len(handlers.fs.open_files) == 0


async def test_open_request_with_o_trunc_is_refused(handlers: Handlers) -> None:
    """The kernel truncates files with SETATTR, so the daemon does not implement O_TRUNC."""
    ino = await make_file(handlers, b"f")
    await handlers.operations.write(ino, 0, b"content")
    assert open_file(handlers, ino, os.O_WRONLY | os.O_TRUNC) == errno.EOPNOTSUPP
    assert len(handlers.fs.open_files) == 0
    assert await handlers.operations.read(ino, 0, 10) == b"content"


async def test_requests_are_counted_by_handler(handlers: Handlers) -> None:
    """The status command reports the number of requests of each kind."""
    await make_file(handlers, b"f")
    await handlers.operations.statfs(CONTEXT)
    assert handlers.operations.requests["create"] == 1
    assert handlers.operations.requests["statfs"] == 1
    assert handlers.operations.requests["release"] == 1


async def test_exception_in_a_forget_request_degrades_the_mount(
    handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler forget never raises. An exception in it degrades the mount."""
    ino = await make_file(handlers, b"f")
    monkeypatch.setattr(handlers.fs.orphans, "unused", raising(ZeroDivisionError))
    forget(handlers, ino, 1)
    assert handlers.session.status.state is MountState.DEGRADED
    assert handlers.fs.lookups.count(ino) == 0


async def test_names_of_a_rolled_back_commit_group_are_invalidated_in_the_kernel_cache(
    handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a rollback, the kernel drops the names of the lost commit group."""
    reported: list[tuple[int, bytes]] = []
    monkeypatch.setattr(
        pyfuse3, "invalidate_entry", lambda parent, name: reported.append((parent, name))
    )
    asked: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        pyfuse3, "invalidate_inode", lambda ino, *, attr_only: asked.append((ino, attr_only))
    )
    await make_file(handlers, b"f")
    handlers.session.db.rollback()
    await until(lambda: reported == [(ROOT_INO, b"f")])
    assert asked == [(ROOT_INO, False)], "the directory, with its listing, must be invalidated"
    kernel_cache.changed(Invalidations([], []))
