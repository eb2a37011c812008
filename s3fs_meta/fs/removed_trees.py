"""Directories that were removed together with their entries, and are not empty yet.

Owns: the list of such trees, and the answer whether a directory lies in one: then it counts as
removed itself, so that no name in it can be added, removed or changed, not even by a process that has it open.
Does not know: how trees are emptied (``trees.remove``).
The rows are the authority: after a crash the tops are orphans with the flag REMOVED.
"""

from itertools import islice
from typing import NamedTuple

import trio

from s3fs_meta.errors import MetadataError
from s3fs_meta.limits import DIRECTORY_DEPTH_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO, Attributes, Ino


class TreeProgress(NamedTuple):
    """How many names are processed, and how many are known to be left."""

    done: int
    left: int

    def step(self, names: int, found: int) -> "TreeProgress":
        """Return the progress after a slice.

        Args:
            names: how many the slice processed.
            found: how many names the directories among these contain.
        """
        return TreeProgress(self.done + names, max(self.left + found - names, 0))


class RemovedTrees:
    """The top directories of the removed trees of one mount; false when there is none."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._tops: dict[Ino, None] = {}  # tops in the order of their removal
        self._arrived = trio.Event()
        self._progress = TreeProgress(0, 0)

    def __len__(self) -> int:
        return len(self._tops)

    @property
    def progress(self) -> TreeProgress | None:
        """Return the progress since the list was last empty, None if it is empty now."""
        return self._progress if self._tops else None

    def add(self, top: Ino, names: int = 0) -> None:
        """Note a top whose row has the flag REMOVED; a second call changes nothing.

        Schedule point: never.

        Args:
            top: the directory.
            names: how many names it contains that are not in the progress yet.
        """
        if not self._tops:
            self._progress = TreeProgress(0, 0)
        self._tops[top] = None
        self._progress = self._progress.step(0, names)
        self._arrived.set()

    def emptied(self, names: int, found: int) -> None:
        """Count removed names, and the names that the directories among them contain."""
        self._progress = self._progress.step(names, found)

    def last(self, count: int) -> list[Ino]:
        """Return the tops to empty next, at most *count*: those that were added last.

        So the list grows with the depth of the tree and the width of its directories only.
        """
        return list(islice(reversed(self._tops), count))

    def finish(self, count: int) -> None:
        """Forget the first *count* tops that ``last`` returns."""
        for _ in range(count):
            self._tops.popitem()
        if not self._tops:
            self._arrived = trio.Event()

    async def wait(self) -> None:
        """Wait until there is a top."""
        await self._arrived.wait()

    def hold(self, ino: Ino) -> bool:
        """Return whether a directory lies in a removed tree, or does not exist.

        Raises:
            MetadataError: the directory is below itself.
        """
        at: Attributes | None = inodes.find(self._db, ino)
        for _ in range(DIRECTORY_DEPTH_MAX):
            if at is None or not at.nlink:
                return True
            if at.ino == ROOT_INO:
                return False
            at = inodes.find(self._db, at.parent)
        raise MetadataError("its parent directories form a loop", ino)
