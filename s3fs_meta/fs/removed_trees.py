"""The list of removed trees: directories without a name whose entries are not deleted yet.

Owns: the list, and the check whether a directory is in a removed tree. No name in such a directory
can be added, removed or changed, even by a process that has the directory open.
Does not know: the deletion of the entries (``trees.remove``).
The rows are authoritative: after a crash these directories are orphans with the flag REMOVED.

A directory may be a million levels deep, and the check reads one row for each level. So the check
stops after a slice, and the caller repeats its operation after a schedule point.
"""

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple, TypeVar

import trio

from s3fs_meta.errors import MetadataError, UnfinishedWalkError
from s3fs_meta.limits import DIRECTORY_DEPTH_MAX, FUSE_TASKS_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO, Ino

_Result = TypeVar("_Result")


class TreeProgress(NamedTuple):
    """The numbers of names that an operation on a tree has processed and still has to process."""

    done: int
    left: int

    def step(self, names: int, found: int) -> "TreeProgress":
        """Return the progress after a slice.

        Args:
            names: number of names that the slice processed.
            found: number of names in the directories among these names; they are processed later.
        """
        return TreeProgress(self.done + names, max(self.left + found - names, 0))


class RemovedTrees:
    """The top directories of the removed trees in one mount."""

    def __init__(self, db: Database, directories: int) -> None:
        """Start without removed trees.

        Args:
            directories: the number of directories that one slice of a check visits.
        """
        self._db = db
        self._directories = directories
        # For each directory whose check is unfinished: the next directory to visit, and the number
        # visited so far. A request has at most one unfinished check.
        self._positions: dict[Ino, tuple[Ino, int]] = {}
        self._tops: dict[Ino, None] = {}  # top directories of removed trees, in order of removal
        self._arrived = trio.Event()
        self._progress = TreeProgress(0, 0)

    def __len__(self) -> int:
        return len(self._tops)

    @property
    def progress(self) -> TreeProgress | None:
        """Return the progress of emptying removed trees, or None if no tree is left."""
        return self._progress if self._tops else None

    def add(self, top: Ino, names: int = 0) -> None:
        """Add a directory whose row has the flag REMOVED. Never yields to other tasks.

        Args:
            top: the directory.
            names: number of names in the directory that the progress does not include yet.
        """
        if not self._tops:
            self._progress = TreeProgress(0, 0)
        self._tops[top] = None
        self._progress = self._progress.step(0, names)
        self._arrived.set()

    def emptied(self, names: int, found: int) -> None:
        """Record the progress of a slice; the arguments are those of ``TreeProgress.step``."""
        self._progress = self._progress.step(names, found)

    def last(self, count: int) -> list[Ino]:
        """Return the last *count* directories that were added, which are emptied next.

        This order limits the length of the list to the depth of a tree times the size of a
        directory.
        """
        return list(islice(reversed(self._tops), count))

    def finish(self, count: int) -> None:
        """Remove from the list the first *count* directories that ``last`` returns."""
        for _ in range(count):
            self._tops.popitem()
        if not self._tops:
            self._arrived = trio.Event()

    async def wait(self) -> None:
        """Wait until the list of removed trees is not empty."""
        await self._arrived.wait()

    def restart_checks(self) -> None:
        """Forget unfinished checks, because a directory was moved, or a tree was removed.

        Otherwise a check could visit a directory before that directory is in a removed tree.
        """
        self._positions.clear()

    def hold(self, ino: Ino, *, depth_max: int = DIRECTORY_DEPTH_MAX) -> bool:
        """Return whether a directory is in a removed tree, or does not exist.

        Args:
            ino: the directory.
            depth_max: the directories above *ino* form a cycle if their number exceeds both this
                value and the number of inodes.

        Raises:
            UnfinishedWalkError: the check is not finished. The caller must not change anything, and
                must call this method again after a schedule point.
            MetadataError: the directories above *ino* form a cycle.
        """
        at, visited = self._positions.pop(ino, (ino, 0))
        for _ in range(self._directories):
            row = inodes.find(self._db, at)
            if row is None or not row.nlink:
                return True
            if at == ROOT_INO:
                return False
            at = row.parent
        visited += self._directories
        if visited > max(depth_max, self._db.counters.inodes):
            raise MetadataError("the parent directories form a cycle", ino)
        if len(self._positions) >= FUSE_TASKS_MAX:
            del self._positions[next(iter(self._positions))]
        self._positions[ino] = at, visited
        raise UnfinishedWalkError(ino)


async def until_checked(operation: Callable[[], _Result]) -> _Result:
    """Carry out an operation whose check of a directory may need several slices.

    Yields to other tasks only between two slices of the check.
    """
    while True:  # the loop ends: each pass visits further directories
        try:
            return operation()
        except UnfinishedWalkError:
            await trio.lowlevel.checkpoint()
