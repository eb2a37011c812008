"""Copies of the past without a kernel: the parts of a mount, and their objects in the bucket."""

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio
import trio.testing

from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.past.open_points import OpenPoints
from s3fs_meta.fs.past.past_clone import Find, PastClone
from s3fs_meta.fs.removed_trees import TreeProgress
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Attributes, Txg
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.state_dir import StateDir
from tests.fs.past.nowhere import nowhere
from tests.fs.trees.samples import COPY, ignore

_numbers = itertools.count()


def points_of(session: Session, place: Path | None = None) -> OpenPoints:
    """Return the points in time of a session, with state that no other session uses.

    Args:
        place: the directory for the state; None: beside that of the session.
    """
    home, number = place or session.volume.state_dir.path.parent, next(_numbers)
    return OpenPoints(
        session.volume,
        session.cache.disk,
        lambda txg: StateDir(home / f"snapshot {number} {txg}"),
        nowhere,
    )


def at_path(*names: bytes) -> Find:
    """Return a function that finds a path of the past."""

    def find(db: Database) -> Attributes:
        at = inodes.get(db, ROOT_INO)
        for name in names:
            found = dentries.find_attributes(db, at.ino, name)
            assert found is not None
            at = found
        return at

    return find


class Copier:
    """Copies trees of the past of one mounted filesystem."""

    def __init__(self, fs: Filesystem, session: Session, place: Path | None = None) -> None:
        self.points = points_of(session, place)
        self.ship: Callable[[], Awaitable[object]] = session.shipper.ship
        self.clone = PastClone(fs.db, self.points, fs.tree_clone, self._ship)

    async def _ship(self) -> None:
        await self.ship()

    async def copy(
        self,
        txg: Txg,
        find: Find | None = None,
        target: CloneTarget = COPY,
        copied: Callable[[TreeProgress], None] = ignore,
    ) -> None:
        """Copy an entry of the root directory, by default ``tree``."""
        await self.clone.clone(txg, find or at_path(b"tree"), target, copied)

    async def close(self) -> None:
        """Close all points in time."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.points.run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
