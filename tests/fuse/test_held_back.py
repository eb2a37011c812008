"""Requests that wait while their tree is frozen, before and after the kernel has written back."""

import contextlib
import os
import subprocess
import sys
from typing import Any, NamedTuple

import pyfuse3
import pytest
import trio

from s3fs_meta.fs.xattrs import CAPABILITY
from s3fs_meta.fuse.held_back import CHANGING, _only_reads
from s3fs_meta.fuse.operations import _HANDLERS
from s3fs_meta.model import ROOT_INO, Ino
from tests.fuse.conftest import Context, Handlers

CONTEXT = Context(pid=2**22)  # a pid that no process has


class Fields(NamedTuple):
    """The attributes that a SETATTR request changes."""

    update_atime: bool = False
    update_mtime: bool = False
    update_ctime: bool = False
    update_mode: bool = False
    update_uid: bool = False
    update_gid: bool = False
    update_size: bool = False


def _requests(ino: Ino, directory: Ino) -> dict[str, tuple[Any, ...]]:
    return {
        "create": (directory, b"new", 0o644, 0, CONTEXT),
        "getxattr": (ino, CAPABILITY, CONTEXT),
        "link": (ino, ROOT_INO, b"new", CONTEXT),
        "mkdir": (directory, b"new", 0o755, CONTEXT),
        "mknod": (directory, b"new", 0o644, 0, CONTEXT),
        "open": (ino, os.O_WRONLY | os.O_TRUNC, CONTEXT),
        "removexattr": (ino, b"user.a", CONTEXT),
        "rename": (ROOT_INO, b"other", directory, b"new", 0, CONTEXT),
        "rmdir": (directory, b"d", CONTEXT),
        "setattr": (ino, None, Fields(update_mode=True), None, CONTEXT),
        "setxattr": (ino, b"user.a", b"", CONTEXT),
        "symlink": (directory, b"new", b"target", CONTEXT),
        "unlink": (directory, b"f", CONTEXT),
        "write": (ino, 0, b"data"),
    }


async def _waits(handlers: Handlers, name: str, *arguments: Any) -> bool:
    with trio.move_on_after(0.05) as scope:
        await _take(handlers, name, *arguments)
    return scope.cancelled_caught


async def _passes(handlers: Handlers, name: str, *arguments: Any) -> bool:
    with trio.move_on_after(10) as scope:  # long enough for a busy machine
        await _take(handlers, name, *arguments)
    return not scope.cancelled_caught


async def _take(handlers: Handlers, name: str, *arguments: Any) -> None:
    with contextlib.suppress(pyfuse3.FUSEError):
        await getattr(handlers.operations, name)(*arguments)


@pytest.fixture
async def tree(handlers: Handlers) -> tuple[Ino, Ino]:
    """Return a file and its directory."""
    made = await handlers.operations.mkdir(ROOT_INO, b"tree", 0o755, Context())
    info, _ = await handlers.operations.create(made.st_ino, b"f", 0o644, os.O_RDWR, Context())
    return Ino(info.fh), Ino(made.st_ino)


async def test_every_changing_request_waits_for_the_end_of_a_freeze(
    handlers: Handlers, tree: tuple[Ino, Ino]
) -> None:
    """All handlers that a read-only mount refuses wait for the end of a freeze; all others pass."""
    reading = {"forget", "fsync", "fsyncdir", "getattr", "listxattr", "lookup", "opendir", "read"}
    closing = {"readdir", "readlink", "release", "releasedir", "statfs"}
    assert set(CHANGING) == set(_HANDLERS) - reading - closing
    with handlers.fs.freeze.hold(tree[1], 100):
        handlers.fs.freeze.still()
        for name, arguments in _requests(*tree).items():
            assert await _waits(handlers, name, *arguments), name
        assert await _passes(handlers, "lookup", tree[1], b"f", CONTEXT)
        assert await _passes(handlers, "read", tree[0], 0, 10)
    assert not set(CHANGING) & set(vars(handlers.operations))
    assert await _passes(handlers, "unlink", tree[1], b"f", CONTEXT)


async def test_write_back_is_blocked_only_when_the_freeze_is_complete(
    handlers: Handlers, tree: tuple[Ino, Ino]
) -> None:
    """Until the kernel has written its dirty data back, its writes pass."""
    requests = _requests(*tree)
    ino = tree[0]
    length = (ino, pyfuse3.EntryAttributes(), Fields(update_size=True), None, CONTEXT)
    times = (
        ino,
        pyfuse3.EntryAttributes(),
        Fields(update_mtime=True, update_ctime=True),
        None,
        CONTEXT,
    )
    with handlers.fs.freeze.hold(tree[1], 100):
        for does in (_passes, _waits):  # before the freeze is complete, and afterwards
            assert await _waits(handlers, "getxattr", *requests["getxattr"])
            assert await does(handlers, "open", *requests["open"])
            assert await does(handlers, "write", *requests["write"])
            assert await does(handlers, "setattr", *length)
            assert await _passes(handlers, "setattr", *times)
            handlers.fs.freeze.still()


def test_process_that_does_not_start_a_program_may_write() -> None:
    """A process that runs, and one that has exited, are not taken for the start of a program."""
    waiting = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert not _only_reads(waiting.pid)
    finally:
        waiting.kill()
        waiting.communicate()
    assert not _only_reads(waiting.pid)
