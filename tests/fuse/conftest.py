"""Fixtures: a filesystem with its FUSE handlers, and a real mount of the filesystem."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyfuse3
import pytest
import trio

from s3fs_meta.clock import SystemClock
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fuse import kernel_cache
from s3fs_meta.fuse.convert import DIRENT, DIRENT_ALIGNMENT, Converter
from s3fs_meta.fuse.extension import fuse_intercept
from s3fs_meta.fuse.frequent_requests import (
    FORGET,
    OPEN,
    READ,
    SETXATTR,
    FrequentRequests,
)
from s3fs_meta.fuse.kernel_session import FuseOptions, serve
from s3fs_meta.fuse.operations import Operations
from s3fs_meta.limits import KIB, MIB, UNMOUNT_GRACE_S
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.model import ROOT_INO, AccessTime, Attributes, Ino
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.options.settings import FilesystemOptions, SessionOptions
from s3fs_meta.sync.administration.mkfs import NewFilesystem, make_filesystem
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.sync.volume import OpenOptions

BLOCK_BYTES = 64 * KIB

_T = TypeVar("_T")


class Context(NamedTuple):
    """The identity of a request's caller, as pyfuse3 passes it to handlers."""

    uid: int = 0
    gid: int = 0
    umask: int = 0o022
    pid: int = 1


class Handlers(NamedTuple):
    """A filesystem with its handlers, which tests call without a kernel."""

    session: Session
    fs: Filesystem
    operations: Operations


class Mounted(NamedTuple):
    """A filesystem mounted by the kernel."""

    path: Path
    handlers: Handlers

    async def run(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run a function with system calls in a thread, because the event loop serves the mount."""
        return await trio.to_thread.run_sync(function, *arguments)


@asynccontextmanager
async def opened(home: Path) -> AsyncIterator[Handlers]:
    """Create a filesystem in a memory store and open it."""
    store = MemoryStore()
    wanted = NewFilesystem(label="t", block_bytes=BLOCK_BYTES, page_size=4096, passphrase=None)
    await make_filesystem(store, wanted, home, SystemClock())
    opened = await open_filesystem(
        store,
        StateDir(home / "a"),
        Passphrase(bytes),
        SystemClock(),
        OpenOptions(pragmas=Pragmas(synchronous="off")),
    )
    session = Session(opened, SessionOptions(cache_bytes=256 * MIB), SystemClock())
    session.recover()
    session.start()
    fs = Filesystem(
        session.db,
        session.cache,
        session.status,
        SystemClock(),
        FilesystemOptions(access_time=AccessTime.RELATIVE),
        sync_file=session.durability.sync_file,
        groups_of=pyfuse3.get_sup_groups,
        notices=kernel_cache.NOTICES,
    )
    try:
        yield Handlers(session, fs, Operations(fs, Converter(fs.block_bytes)))
    finally:
        opened.db.close()
        opened.state_dir.unlock()


@pytest.fixture
async def handlers(tmp_path: Path) -> AsyncIterator[Handlers]:
    """Return the handlers of an empty filesystem."""
    async with opened(tmp_path) as made:
        yield made


async def until_ready(  # noqa: ASYNC114, ASYNC128 - serve() calls started
    operations: Operations,
    mountpoint: Path,
    *,
    unmount_grace_s: float = UNMOUNT_GRACE_S,
    task_status: trio.TaskStatus[None],
) -> None:
    """Serve the mount; report to the nursery when the mount is ready."""
    options = FuseOptions(source="memory:", nosuid=False, nodev=False, allow_other=True)
    await serve(
        operations,
        mountpoint,
        options,
        on_ready=task_status.started,
        unmount_grace_s=unmount_grace_s,
    )


@pytest.fixture
def mountpoint(tmp_path: Path) -> Path:
    """Return an empty directory as mountpoint."""
    path = tmp_path / "mount point é"
    path.mkdir()
    return path


@pytest.fixture
async def mounted(tmp_path: Path, mountpoint: Path) -> AsyncIterator[Mounted]:
    """Return an empty filesystem with a real mount."""
    async with opened(tmp_path) as made, trio.open_nursery() as nursery:
        nursery.start_soon(made.session.run)
        nursery.start_soon(made.fs.run)
        await nursery.start(until_ready, made.operations, mountpoint)
        yield Mounted(mountpoint, made)
        nursery.cancel_scope.cancel()


@contextmanager
def no_free_thread() -> Iterator[None]:
    """Hold all tokens of trio's default limiter, as threads do that the kernel blocks."""
    limiter = trio.to_thread.current_default_thread_limiter()
    borrowers = [object() for _ in range(int(limiter.available_tokens))]
    for borrower in borrowers:
        limiter.acquire_on_behalf_of_nowait(borrower)
    try:
        yield
    finally:
        for borrower in borrowers:
            limiter.release_on_behalf_of(borrower)


FILE = Attributes(
    ino=Ino(1 << 40),
    mode=0o100640,
    nlink=3,
    uid=10,
    gid=20,
    size_bytes=5000,
    mapped_blocks=1,
    ctime_ns=1_700_000_000_000_000_001,
    mtime_ns=-1,
    atime_ns=4_000_000_000_999_999_999,
    rdev=0,
    parent=Ino(1),
    flags=0,
    btime_ns=1_600_000_000_000_000_000,
)


CONTEXT = Context()


_ENTRY_BYTES = 128  # struct fuse_entry_out, which begins each entry of a listing


def ask(handlers: Handlers, request: str, ino: Ino, body: bytes = b"") -> tuple[int, bytes]:
    """Call a handler as the extension does; return the errno and the content of its reply."""
    replies: list[tuple[int, bytes]] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            fuse_intercept, "answer", lambda _unique, code, content: replies.append((code, content))
        )
        assert getattr(FrequentRequests(handlers.operations), request)(1, ino, 0, body)
    (reply,) = replies
    return reply


def open_file(handlers: Handlers, ino: Ino, flags: int) -> int:
    """Open a file; return the errno, or 0 for success."""
    return ask(handlers, "open", ino, OPEN.pack(flags))[0]


def set_attribute(handlers: Handlers, ino: Ino, name: bytes, value: bytes) -> int:
    """Set an extended attribute; return the errno, or 0 for success."""
    return ask(handlers, "setxattr", ino, SETXATTR.pack(0) + name + b"\0" + value)[0]


def forget(handlers: Handlers, ino: Ino, times: int) -> None:
    """Decrease a lookup count."""
    FrequentRequests(handlers.operations).forget(1, ino, 0, FORGET.pack(times))


class Entry(NamedTuple):
    """An entry of a listing."""

    name: bytes
    ino: int
    position: int


def list_page(
    handlers: Handlers, ino: Ino, start: int = 0, room_bytes: int = 1 << 20
) -> list[Entry]:
    """Return the entries of a directory after a position, as many as a reply has room for."""
    code, content = ask(handlers, "readdir", ino, READ.pack(start, room_bytes))
    assert code == 0
    entries, at = [], 0
    while at < len(content):
        found, position, length, _kind = DIRENT.unpack_from(content, at + _ENTRY_BYTES)
        at += _ENTRY_BYTES + DIRENT.size
        entries.append(Entry(content[at : at + length], found, position))
        at += length + -length % DIRENT_ALIGNMENT
    return entries


async def make_file(handlers: Handlers, name: bytes) -> Ino:
    """Create and close a file, which leaves its lookup count at 1."""
    info, _entry = await handlers.operations.create(ROOT_INO, name, 0o100644, os.O_RDWR, CONTEXT)
    assert ask(handlers, "release", Ino(info.fh)) == (0, b"")
    return Ino(info.fh)
