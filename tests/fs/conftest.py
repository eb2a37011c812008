"""Fixtures: a filesystem without FUSE, with a store in memory and a clock that tests set."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from s3fs_meta.clock import SystemClock
from s3fs_meta.fs import acl
from s3fs_meta.fs.acl import GROUP_OBJ, MASK, OTHER, USER_OBJ, AclEntry
from s3fs_meta.fs.acl import USER as NAMED_USER
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.removed_trees import until_checked
from s3fs_meta.fs.slices import DEFAULT_SLICES, Slices
from s3fs_meta.fs.write_gate import NO_KERNEL, KernelNotices
from s3fs_meta.limits import KIB, MIB
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import cached_blocks, inodes
from s3fs_meta.model import ROOT_INO, AccessTime, Attributes, BlockState, Caller, Ino, ObjectKey
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.options.settings import FilesystemOptions, SessionOptions
from s3fs_meta.sync.administration.mkfs import NewFilesystem, make_filesystem
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import plain

__all__ = ["plain"]

DEEP_LEVELS = 9  # The number of levels that ``make_deep`` creates.
BLOCK_BYTES = 64 * KIB
T0 = 1_760_000_000_000_000_000
SECOND_NS = 1_000_000_000
ROOT = Caller(0, 0, 0o022, 1)
USER = Caller(1000, 100, 0o022, 1)

_new_objects: dict[ObjectKey, bytes] = {}  # The objects of an empty filesystem.


class HandClock:
    """A clock whose time changes only when a test sets it."""

    def __init__(self) -> None:
        self.time_ns = T0

    def now_ns(self) -> int:
        """Return the time that the test has set."""
        return self.time_ns

    def later(self) -> int:
        """Advance the clock by one second; return the new time."""
        self.time_ns += SECOND_NS
        return self.time_ns


class Volume:
    """A filesystem that a test can mount, kill and mount again."""

    def __init__(self, home: Path) -> None:
        self.memory = MemoryStore()
        self.store = FaultyStore(self.memory)
        self.home = home
        self.clock = HandClock()
        self.session: Session  # The session of the current mount.

    async def make(self) -> None:
        """Create the filesystem with mkfs."""
        wanted = NewFilesystem(
            label="test", block_bytes=BLOCK_BYTES, page_size=4096, passphrase=None
        )
        await make_filesystem(self.store, wanted, self.home, SystemClock())

    def elsewhere(self) -> "Volume":
        """Return the same filesystem on another host, which has no local state."""
        home = self.home / "elsewhere"
        home.mkdir()
        other = Volume(home)
        other.store = self.store
        return other

    @asynccontextmanager
    async def mounted(
        self,
        options: FilesystemOptions | None = None,
        *,
        cache_bytes: int = 256 * MIB,
        supplementary_groups: tuple[int, ...] = (),
        notices: KernelNotices = NO_KERNEL,
        slices: Slices = DEFAULT_SLICES,
        takes_over: bool = False,
    ) -> AsyncIterator[Filesystem]:
        """Mount the filesystem without background tasks. Leaving the context acts like SIGKILL."""
        opened = await open_filesystem(
            self.store,
            StateDir(self.home / "a"),
            Passphrase(bytes),
            SystemClock(),
            OpenOptions(pragmas=Pragmas(synchronous="off"), force_takeover=takes_over),
        )
        session_options = SessionOptions(cache_bytes=cache_bytes, read_timeout_s=5)
        self.session = Session(opened, session_options, SystemClock())
        self.session.recover()
        self.session.start()
        try:
            yield Filesystem(
                opened.db,
                self.session.cache,
                self.session.status,
                self.clock,
                options or FilesystemOptions(access_time=AccessTime.NEVER),
                sync_file=self.session.durability.sync_file,
                groups_of=lambda _pid: supplementary_groups,
                notices=notices,
                slices=slices,
            )
        finally:
            opened.db.close()
            opened.state_dir.unlock()

    def commit(self) -> None:
        """Commit the open commit group."""
        self.session.durability.commit()

    async def upload(self) -> None:
        """Upload all dirty blocks, so that every block is clean."""
        await self.session.flush()
        await self.session.durability.sync_all()
        assert not cached_blocks.in_state(self.session.db, BlockState.DIRTY)

    async def evict(self) -> None:
        """Upload all dirty blocks and evict every cached block."""
        await self.upload()
        self.session.cache.evictor.evict_bytes(1 << 60)
        self.commit()


@pytest.fixture
async def volume(tmp_path: Path) -> Volume:
    """Return an unmounted, empty filesystem. Only the first call in a process runs mkfs."""
    made = Volume(tmp_path)
    if not _new_objects:
        await made.make()
        _new_objects.update(made.memory.objects)
    for key, data in _new_objects.items():
        await made.memory.put(key, data)
    return made


@pytest.fixture
def slices() -> Slices:
    """Return the default slice sizes of the ``fs`` fixture; ``sliced`` replaces these sizes."""
    return DEFAULT_SLICES


def sliced(**bounds: int) -> pytest.MarkDecorator:
    """Mark a test whose ``fs`` fixture splits long operations into slices of these sizes."""
    return pytest.mark.parametrize("slices", [Slices(**bounds)], ids=["small slices"])


@pytest.fixture
async def fs(volume: Volume, slices: Slices) -> AsyncIterator[Filesystem]:
    """Return a mounted, empty filesystem."""
    async with volume.mounted(slices=slices) as filesystem:
        yield filesystem


def make_file(fs: Filesystem, name: bytes, parent: Ino = ROOT_INO, *, mode: int = 0o644) -> Ino:
    """Create a regular file and return its inode number."""
    return fs.namespace.make_node(parent, name, 0o100000 | mode, USER).ino


def make_directory(fs: Filesystem, name: bytes, parent: Ino = ROOT_INO) -> Ino:
    """Create a directory and return its inode number."""
    return fs.namespace.make_directory(parent, name, 0o755, USER).ino


async def rename(fs: Filesystem, *arguments: Any) -> None:
    """Rename as a request does: repeat the operation until its checks are finished."""
    await until_checked(partial(fs.namespace.rename, *arguments))


def make_deep(fs: Filesystem) -> list[Ino]:
    """Create the DEEP_LEVELS directories 0/1/2/…, and return them in this order."""
    chain = [ROOT_INO]
    for level in range(DEEP_LEVELS):
        chain.append(make_directory(fs, b"%d" % level, chain[-1]))
    return chain[1:]


def look(fs: Filesystem, name: bytes, parent: Ino = ROOT_INO) -> Attributes:
    """Return the attributes of the inode to which an existing name refers."""
    found = fs.lookup(parent, name)
    assert found is not None
    return found


def exists(fs: Filesystem, ino: Ino) -> bool:
    """Return whether the inode has a row in the database."""
    return inodes.find(fs.db, ino) is not None


NAMED = acl.encode(
    (
        AclEntry(USER_OBJ, 7),
        AclEntry(NAMED_USER, 6, 42),
        AclEntry(GROUP_OBJ, 5),
        AclEntry(MASK, 6),
        AclEntry(OTHER, 1),
    )
)


async def whole(fs: Filesystem, ino: Ino) -> bytes:
    """Return the complete content of a file."""
    return await fs.read(ino, 0, fs.getattr(ino).size_bytes)
