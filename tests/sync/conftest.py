"""Test fixtures: a filesystem in an in-memory object store, and sessions without FUSE."""

import contextlib
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from s3fs_meta.clock import Clock, SystemClock
from s3fs_meta.codec import changelog
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.key_slots import CHEAPEST_COST
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.errors import NotLocalError, StoreUnavailableError
from s3fs_meta.limits import MIB
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, inodes
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import BlockId, BlockIndex, Ino, ObjectKey, Txg
from s3fs_meta.mount.plan import make_plan
from s3fs_meta.mount.statistics.figures import figures
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.options.settings import MountOptions, SessionOptions
from s3fs_meta.sync.administration.mkfs import NewFilesystem, make_filesystem
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.follower.follower import Follower
from s3fs_meta.sync.hooks import Hook, no_hook
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.kernel import Kernel, NoKernel
from s3fs_meta.sync.opening.opening import open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.superblock.changes import change
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.selection import Keys, open_keys
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.sync.upload.bounds import DEFAULT_BOUNDS, UploadBounds
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore

REGULAR = 0o100644
TAKEOVER = OpenOptions(force_takeover=True)
_OPTIONS = SessionOptions(cache_bytes=256 * MIB)


def figures_of(session: Session) -> dict[str, Any]:
    """Return the statistics of a session, as a mount reports them."""
    path = session.volume.state_dir.path
    return figures(session, make_plan("local:///b", path, MountOptions(cachedir=path.parent)))


class Power:
    """A filesystem in a memory store, on which a test opens and kills sessions."""

    def __init__(self, store: MemoryStore, home: Path) -> None:
        self.store = store
        self.home = home
        self.passphrase = b"secret"
        self.encrypted = False
        self.clock: Clock = SystemClock()
        store.clock = self

    def now_ns(self) -> int:
        """Return the time of the store, whose clock is correct."""
        return self.clock.now_ns()

    def copy(self, home: Path) -> "Power":
        """Return a copy of the filesystem and of its hosts' local state, below *home*."""
        store = MemoryStore()
        store.objects.update(self.store.objects)
        store.modified_ns.update(self.store.modified_ns)
        shutil.copytree(self.home, home, symlinks=True, dirs_exist_ok=True)
        copied = Power(store, home)
        copied.passphrase, copied.encrypted = self.passphrase, self.encrypted
        return copied

    async def make(self, hook: Hook = no_hook) -> None:
        """Create the filesystem as mkfs does."""
        wanted = NewFilesystem(
            label="test",
            block_bytes=1 * MIB,
            page_size=4096,
            passphrase=b"secret" if self.encrypted else None,
            cost=CHEAPEST_COST,
        )
        await make_filesystem(self.store, wanted, self.home, self.clock, hook)

    async def retain(self, retention_s: int) -> None:
        """Change the retention of the filesystem."""

        def amended(superblock: Superblock, keyring: Keyring) -> Superblock:
            return superblock_codec.amend(superblock, keyring, retention_s=retention_s)

        await change(self.store, self.remembered("-"), self.secret, amended)

    @property
    def secret(self) -> Passphrase:
        """Return the passphrase of the filesystem."""
        return Passphrase(lambda: self.passphrase)

    def remembered(self, host: str) -> Remembered:
        """Return the copy of the superblock that a host stores locally."""
        return Remembered(self.home / host)

    async def keys(self, host: str = "-", *, repairing: bool = False) -> Keys:
        """Open the superblock that a host would accept; the host "-" has no local copy."""
        return await open_keys(self.store, self.remembered(host), self.secret, repairing=repairing)

    @asynccontextmanager
    async def session(
        self,
        host: str = "a",
        *,
        options: OpenOptions | None = None,
        hook: Hook = no_hook,
        store: ObjectStore | None = None,
        tasks: bool = True,
        session_options: SessionOptions = _OPTIONS,
        clock: Clock | None = None,
        kernel: Kernel | None = None,
        bounds: UploadBounds = DEFAULT_BOUNDS,
    ) -> AsyncIterator[Session]:
        """Run a session; leaving the context simulates SIGKILL."""
        opened = await open_filesystem(
            store or self.store,
            StateDir(self.home / host),
            self.secret,
            clock or self.clock,
            options or OpenOptions(),
        )
        session = Session(
            opened,
            session_options,
            clock or self.clock,
            hook,
            kernel=kernel or NoKernel(),
            bounds=bounds,
        )
        session.recover()
        session.start()
        async with trio.open_nursery() as nursery:
            if tasks:
                nursery.start_soon(session.run)
            try:
                yield session
            finally:
                nursery.cancel_scope.cancel()
                opened.db.close()
                opened.state_dir.unlock()


# The plain variant is marked as slow, because without encryption only the checksum of envelopes
# differs, and other tests check the checksum.
@pytest.fixture(
    params=[
        pytest.param(False, marks=pytest.mark.slow, id="plain"),
        pytest.param(True, id="encrypted"),
    ]
)
async def power(request: pytest.FixtureRequest, tmp_path: Path) -> Power:
    """Return a new encrypted filesystem; a run of slow tests also uses an unencrypted one."""
    made = Power(MemoryStore(), tmp_path)
    made.encrypted = request.param
    await made.make()
    return made


@pytest.fixture
async def plain(tmp_path: Path) -> Power:
    """Return a new unencrypted filesystem, for tests of properties that encryption would hide."""
    made = Power(MemoryStore(), tmp_path)
    await made.make()
    return made


class HandClock:
    """A clock that the test sets; each reading advances the clock by a millisecond."""

    def __init__(self, start_ns: int = 4_000_000_000_000_000_000) -> None:
        self.ns = start_ns  # Later than the time of mkfs.

    def now_ns(self) -> int:
        """Advance the clock by a millisecond and return its time."""
        self.ns += 1_000_000
        return self.ns

    def pass_by(self, seconds: float) -> None:
        """Move the clock forward, or back if *seconds* is negative."""
        self.ns += int(seconds * 1_000_000_000)


@pytest.fixture
def clock(power: Power) -> HandClock:
    """Return the clock of all hosts and of the store, which the test sets."""
    power.clock = HandClock()
    return power.clock


async def flushed(session: Session) -> Link:
    """Ship all changes and return the last chain position."""
    link = await session.flush()
    assert link is not None
    return link


async def ship(session: Session) -> Txg:
    """Ship all changes and return the last txg."""
    return (await flushed(session)).txg


async def unmount(session: Session) -> None:
    """Ship all changes and close the session, as an unmount does."""
    await session.flush_at_end()
    await session.close()


def follower_of(session: Session) -> Follower:
    """Return the follower of a session."""
    assert session.follower is not None
    return session.follower


def keys_of(power: Power, prefix: str) -> list[ObjectKey]:
    """Return the keys of the objects with a prefix, sorted."""
    return sorted(key for key in power.store.objects if key.startswith(prefix))


def changelogs(power: Power) -> list[Txg]:
    """Return the txgs of the changelogs in the bucket."""
    return sorted(txg for txg in map(changelog.parse_key, power.store.objects) if txg is not None)


def block_of(db: Database, ino: Ino) -> BlockId:
    """Return the block of a one-block file."""
    block = block_map.find(db, ino, BlockIndex(0))
    assert block is not None
    return block


def write_file(session: Session, content: bytes) -> Ino:
    """Create an unnamed file of one block and return its inode number."""
    session.db.begin()
    ino = inodes.create(session.db, REGULAR, 0, 0, Ino(1), 0, size_bytes=len(content)).ino
    session.cache.write_new(ino, BlockIndex(0), 0, content)
    inodes.add_mapped_blocks(session.db, ino, 1)
    return ino


def location_of(session: Session, ino: Ino, index: int = 0) -> Located:
    """Return the block at an index of a file, where the file must not have a hole."""
    located = block_map.locate(session.db, ino, BlockIndex(index))
    assert located is not None
    return located


async def read_file(session: Session, ino: Ino) -> bytes:
    """Return the content of a file with one block."""
    size = inodes.get(session.db, ino).size_bytes
    while True:
        located = block_map.locate(session.db, ino, BlockIndex(0))
        if located is None:
            return bytes(size)
        if not session.cache.is_local(located):
            await session.cache.fetch(located)
            continue
        with contextlib.suppress(NotLocalError):  # The cached block is torn.
            return session.cache.read_local(located, 0, size)


def remove_file(session: Session, ino: Ino) -> None:
    """Remove an unnamed file of one block."""
    session.db.begin()
    block = block_map.remove(session.db, ino, BlockIndex(0))
    if block is not None:
        session.cache.release(block)
    inodes.delete(session.db, ino)


def failing_append(faulty: FaultyStore) -> Hook:
    """Return a hook that makes the store fail at the next append of a changelog."""

    def hook(step: str) -> None:
        if step == "txg attempted":
            faulty.fail("create", StoreUnavailableError("changelog", 1, 0.0, "away"))

    return hook
