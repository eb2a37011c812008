"""Helpers that copy trees of the past without a kernel, and count objects in the bucket."""

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio
import trio.testing

from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.fs import acl
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.past.open_points import OpenPoints
from s3fs_meta.fs.past.past_clone import Find, PastClone
from s3fs_meta.fs.removed_trees import TreeProgress
from s3fs_meta.fs.slices import Slices
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, inodes, packs
from s3fs_meta.model import ROOT_INO, Attributes, Ino, PackId, Txg
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.superblock.changes import change
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.unlocking import Passphrase
from tests.fs.conftest import (
    BLOCK_BYTES,
    NAMED,
    ROOT,
    Volume,
    look,
    make_directory,
    make_file,
)
from tests.fs.past.nowhere import nowhere
from tests.fs.trees.samples import COPY, fill, ignore, make_rich_tree, settled
from tests.tasks import running

_numbers = itertools.count()


def points_of(session: Session, place: Path | None = None) -> OpenPoints:
    """Return the open points in time of a session.

    Args:
        place: the state directory; None means a directory next to the session's directory.
    """
    home, number = place or session.volume.state_dir.path.parent, next(_numbers)
    return OpenPoints(
        session.volume,
        session.cache.disk,
        lambda txg: StateDir(home / f"snapshot {number} {txg}"),
        nowhere,
    )


def at_path(*names: bytes) -> Find:
    """Return a function that finds the inode at a path of the past."""

    def find(db: Database) -> Attributes:
        at = inodes.get(db, ROOT_INO)
        for name in names:
            found = dentries.find_attributes(db, at.ino, name)
            assert found is not None
            at = found
        return at

    return find


class Copier:
    """A copier of past trees in one mounted filesystem."""

    def __init__(
        self, fs: Filesystem, session: Session, place: Path | None = None, **bounds: int
    ) -> None:
        """Prepare a copier.

        Args: place: the state directory of the points in time; None means next to the session's.
        bounds: limits of ``PastClone``.
        """
        self.points = points_of(session, place)
        self.ship: Callable[[], Awaitable[object]] = session.shipper.ship
        self.clone = PastClone(fs.db, self.points, fs.tree_clone, self._ship, **bounds)

    async def _ship(self) -> None:
        await self.ship()

    async def copy(
        self,
        txg: Txg,
        find: Find | None = None,
        target: CloneTarget = COPY,
        copied: Callable[[TreeProgress], None] = ignore,
    ) -> None:
        """Copy an entry of the past root directory, by default ``tree``."""
        await self.clone.clone(txg, find or at_path(b"tree"), target, copied)

    async def close(self) -> None:
        """Close all open points in time."""
        async with running(self.points.run):
            await trio.testing.wait_all_tasks_blocked()


_images = itertools.count()
SMALL = Slices(cloned_names=2, directories=1, shared_blocks=2)
AGAIN = CloneTarget(ROOT_INO, b"again")


async def make_tree_with_acl(fs: Filesystem) -> Ino:
    """Create a tree that has every property that a copy of the past must preserve."""
    top = await make_rich_tree(fs)
    fs.xattrs.set(look(fs, b"below", top).ino, acl.ACCESS, NAMED, ROOT)
    await fill(fs, make_file(fs, b"large", top), 5 * BLOCK_BYTES)
    return top


async def shipped(volume: Volume) -> Txg:
    """Upload all changes; return the number of the txg."""
    await volume.upload()
    return volume.session.link.txg


async def remove(fs: Filesystem, name: bytes) -> None:
    """Remove a tree from the root directory, with all its rows."""
    fs.tree_removal.remove(ROOT_INO, name, look(fs, name).ino)
    await settled(fs)


async def remove_file(fs: Filesystem, name: bytes) -> None:
    """Remove a file from the root directory, with all its rows."""
    ino = look(fs, name).ino
    fs.namespace.unlink(ROOT_INO, name)
    await fs.orphans.purge(ino)


def pack_reads(volume: Volume) -> int:
    """Return the number of requests that read packs."""
    calls = volume.store.calls
    return sum(one.method.startswith("get") and one.key.startswith("pack/") for one in calls)


def packs_of(fs: Filesystem) -> dict[PackId, tuple[int, Txg | None]]:
    """For each pack, return its live bytes and the txg in which it lost its last live block."""
    return {row.pack: (row.live_bytes, row.died_txg) for row in packs.iterate(fs.db)}


async def retain_nothing(volume: Volume) -> None:
    """Set the retention to zero, so that garbage collection deletes dead packs after two images."""

    def amended(superblock: Superblock, keyring: Keyring) -> Superblock:
        return superblock_codec.amend(superblock, keyring, retention_s=0)

    await change(volume.store, Remembered(volume.home / "-"), Passphrase(bytes), amended)


async def pass_images(fs: Filesystem, volume: Volume, count: int = 3) -> None:
    """Make several images, each after a change; each image starts garbage collection."""
    for _ in range(count):
        make_directory(fs, b"before image %d" % next(_images))
        await volume.session.make_image()
