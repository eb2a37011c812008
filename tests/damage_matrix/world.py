"""The filesystems that the damage matrix damages, made once and copied for each cell.

The history of the filesystem contains every kind of object: images, changelogs, levels, a part of a
changelog, and packs. Its host has unmounted cleanly. The variants are an early state of the bucket,
a fork from that early state, and a foreign filesystem.
"""

import contextlib
import os
import stat
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

import trio

from s3fs_meta.clock import Clock, SystemClock
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import PassphraseError, S3fsError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.limits import KIB, MIB
from s3fs_meta.meta.tables import block_map, packs
from s3fs_meta.model import (
    ROOT_INO,
    AccessTime,
    Attributes,
    BlockIndex,
    Caller,
    Cookie,
    Ino,
    ObjectKey,
    PointInTime,
    Txg,
)
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.options.settings import FilesystemOptions, SessionOptions
from s3fs_meta.sync.history.snapshot_mount import Bucket as PastBucket
from s3fs_meta.sync.history.snapshot_mount import open_snapshot, read_bucket
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import close_filesystem, open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.unlocking import Passphrase, Secret
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.sudden_end import kill
from tests.tasks import running

PASSPHRASE: Final = b"a passphrase of the matrix"
BLOCK_BYTES: Final = 64 * KIB
ROOT: Final = Caller(0, 0, 0o022, 1)
# Followers poll only when a test requests a poll, and requests have short timeouts.
OPTIONS: Final = SessionOptions(cache_bytes=64 * MIB, read_timeout_s=5, poll_interval_s=3600)
OVERSIZED_BYTES: Final = 256 * MIB
_PAGE: Final = 100

Objects = dict[ObjectKey, bytes]
# A tree maps each path to the blocks of the file (None if unreadable) or to the symlink target.
Tree = dict[bytes, tuple[bytes | None, ...]]


class Oversized(bytes):
    """The beginning of an object that is extended with zeros beyond the maximum size."""


def oversized(data: bytes) -> Oversized:
    """Return an object that *write* extends with zeros; it always ends with nine zero bytes."""
    return Oversized(data.rstrip(b"\0") + bytes(9))


class Record(NamedTuple):
    """The location of one block in a file."""

    pack: ObjectKey
    start: int
    stop: int


Worlds = dict[bool, "World"]


class Bucket:
    """A bucket in a local directory, whose objects are read and written as bytes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def url(self) -> str:
        """Return the URL of the bucket for commands."""
        return f"local://{self.root}"

    def write(self, objects: Objects) -> None:
        """Write the given objects, and delete all others."""
        for key in self.read().keys() - objects.keys():
            (self.root / key).unlink()
        for key, data in objects.items():
            path = self.root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            if isinstance(data, Oversized):
                os.truncate(path, OVERSIZED_BYTES)  # The zeros are a hole at the end of the file.

    def read(self) -> Objects:
        """Return all objects in the bucket, without files that belong to the store itself."""
        found: Objects = {}
        for path in self.root.glob("**/*"):
            key = ObjectKey(str(path.relative_to(self.root)))
            if path.is_file() and not key.startswith("tmp/"):
                found[key] = _content(path)
        return found


def _content(path: Path) -> bytes:
    if path.stat().st_size < OVERSIZED_BYTES:
        return path.read_bytes()
    with path.open("rb") as file:
        return oversized(file.read(1 << 20))


@dataclass
class World:
    """A filesystem with its history, and variants of its bucket and local state."""

    encrypted: bool
    objects: Objects = field(default_factory=dict)
    young: Objects = field(default_factory=dict)  # The bucket before its superblock was changed.
    early: Objects = field(default_factory=dict)  # The objects of the bucket at txg 12.
    # The bucket after another host has added txgs to txg 12.
    fork: Objects = field(default_factory=dict)
    # The objects of another filesystem with an equal passphrase.
    foreign: Objects = field(default_factory=dict)
    state: Path = Path()  # The state directory of the host that wrote *objects* and then unmounted.
    early_state: Path = Path()  # The writer's state directory at txg 12, copied during the mount.
    foreign_state: Path = Path()  # The state directory of the host that wrote another filesystem.
    times: dict[Txg, int] = field(default_factory=dict)  # The time of each txg in the history.
    points: dict[Txg, Tree] = field(default_factory=dict)  # The tree after each txg of the history.
    records: dict[Txg, dict[bytes, list[Record | None]]] = field(default_factory=dict)

    @property
    def last(self) -> Txg:
        """Return the txg of the current state."""
        return max(self.points)

    def keyring(self) -> Keyring:
        """Return the keys of the filesystem."""
        superblock = superblock_codec.decode(
            superblock_codec.KEY, self.objects[superblock_codec.KEY]
        )
        if self.encrypted:
            return superblock_codec.unlock(superblock, PASSPHRASE)
        return superblock_codec.unlock_plain(superblock)


class Host:
    """An open filesystem in this process, without FUSE."""

    def __init__(self, session: Session, fs: Filesystem) -> None:
        self.session = session
        self.fs = fs
        self.killed = False

    async def kill(self) -> None:
        """Sync all data, and then stop without an unmount, as SIGKILL does."""
        await self.session.durability.sync_all()
        kill(self.session.volume)
        self.killed = True

    async def write(self, name: bytes, *blocks: bytes, parent: Ino = ROOT_INO) -> None:
        """Create a file, or replace its content."""
        there = self.fs.lookup(parent, name)
        if there is None:
            there = self.fs.namespace.make_node(parent, name, stat.S_IFREG | 0o644, ROOT)
        await self.fs.data.truncate(there.ino, 0)
        for index, block in enumerate(blocks):
            await self.fs.write(there.ino, index * BLOCK_BYTES, block)
        self.session.durability.commit()

    async def ship(self) -> Txg:
        """Upload all changes; return the last txg."""
        await self.session.flush()
        return self.session.link.txg

    async def observe(self) -> Tree:
        """Return the tree of the filesystem; None stands for an unreadable block.

        For an earlier point in time, lost content is also searched in the newest state.
        """
        if self.session.newest is None:
            return await self._observe()
        async with running(self.session.newest.run):
            return await self._observe()

    async def _observe(self) -> Tree:
        found: Tree = {}
        waiting = [(b"", self.fs.getattr(ROOT_INO))]
        while waiting:
            path, attributes = waiting.pop()
            found[path] = await self._content_of(attributes)
            if stat.S_ISDIR(attributes.mode):
                waiting += [
                    (path + b"/" + name, child) for name, child in self.entries(attributes.ino)
                ]
        return found

    def entries(self, ino: Ino) -> Iterator[tuple[bytes, Attributes]]:
        """Yield the names of a directory with their attributes."""
        after = Cookie(0)
        while page := self.fs.read_directory(ino, after, _PAGE):
            yield from ((name, attributes) for name, _cookie, attributes in page)
            after = page[-1][1]

    async def _content_of(self, attributes: Attributes) -> tuple[bytes | None, ...]:
        if stat.S_ISLNK(attributes.mode):
            return (self.fs.readlink(attributes.ino),)
        if not stat.S_ISREG(attributes.mode):
            return ()
        blocks: list[bytes | None] = []
        for start in range(0, attributes.size_bytes, BLOCK_BYTES):
            try:
                blocks.append(await self.fs.read(attributes.ino, start, BLOCK_BYTES))
            except S3fsError:
                blocks.append(None)
        return tuple(blocks)

    def record(self, ino: Ino, index: BlockIndex) -> Record | None:
        """Return the location of a block in the bucket, or None for a hole."""
        located = block_map.locate(self.session.db, ino, index)
        if located is None or located.pack is None:
            return None
        assert located.pack_offset is not None
        assert located.stored_bytes is not None
        key = packs.object_key(self.session.db, located.pack)
        return Record(key, located.pack_offset, located.pack_offset + located.stored_bytes)

    async def evict(self) -> None:
        """Evict every clean block, so that reads download from the bucket."""
        await self.session.durability.sync_all()
        self.session.cache.evictor.evict_bytes(1 << 60)
        self.session.durability.commit()


@contextlib.asynccontextmanager
async def host(
    store: ObjectStore,
    state: Path,
    *,
    encrypted: bool,
    options: OpenOptions | None = None,
    follow: bool = False,
    clock: Clock | None = None,
) -> AsyncIterator[Host]:
    """Open a filesystem as a mount does, and unmount it when the context ends.

    An exception ends the mount as a kill would.
    """
    clock = clock or SystemClock()
    opened = await open_filesystem(
        store, StateDir(state), secret_of(encrypted=encrypted), clock, options or OpenOptions()
    )
    session = Session(opened, replace(OPTIONS, follow=follow), clock)
    ended = False
    try:
        session.recover()
        session.start()
        mounted = Host(session, _filesystem(session, clock))
        yield mounted
        if mounted.killed:
            ended = True
            return
        if session.status.writable:
            await session.flush_at_end()
        ended = True
        await session.close()
    finally:
        if not ended:
            if session.follower is not None:
                with trio.CancelScope(shield=True):
                    await session.follower.close()
            opened.db.close()
            opened.state_dir.unlock()


def _filesystem(session: Session, clock: Clock) -> Filesystem:
    return Filesystem(
        session.db,
        session.cache,
        session.status,
        clock,
        FilesystemOptions(access_time=AccessTime.NEVER),
        sync_file=session.durability.sync_file,
    )


@contextlib.asynccontextmanager
async def past(bucket: PastBucket, txg: Txg, state: Path) -> AsyncIterator[Host]:
    """Open one point in time, as ``mount -o ro,at=`` does."""
    opened = await open_snapshot(
        bucket, StateDir(state), OpenOptions(read_only=True), PointInTime(f"txg={txg}", txg=txg)
    )
    session = Session(opened, OPTIONS, bucket.clock)
    try:
        session.recover()
        yield Host(session, _filesystem(session, bucket.clock))
    finally:
        with trio.CancelScope(shield=True):
            await close_filesystem(opened, release=False)


async def bucket_of(store: ObjectStore, *, encrypted: bool, state: Path) -> PastBucket:
    """Return the bucket, opened for reading past points in time."""
    secret = secret_of(encrypted=encrypted)
    return await read_bucket(store, Remembered(state), secret, SystemClock())


def secret_of(*, encrypted: bool) -> Secret:
    """Return the passphrase; for a plain filesystem, a request for the passphrase is an error."""

    def none() -> bytes:
        raise PassphraseError("a plain filesystem must not request a passphrase")

    return Passphrase((lambda: PASSPHRASE) if encrypted else none)
