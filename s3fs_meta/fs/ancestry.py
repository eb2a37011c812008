"""Walks from a directory towards the root, in slices of the event loop.

Owns: the positions of unfinished walks. Does not know: why a walk is needed.
A directory may be a million levels deep, and a walk reads one row per level. To let other requests
run, a walk raises UnfinishedWalkError after a slice. The caller resumes it after a schedule point,
by a call with the same arguments.
Keeps: ``is_below`` uses a position only if no directory has moved since. ``mark`` may use positions
after moves, because it checks the parent of each directory before it sets the flag HOLDS_LOCKED.
The flag means that a protected inode is, or once was, below the directory.
"""

from typing import Final

from s3fs_meta.errors import MetadataError, UnfinishedWalkError
from s3fs_meta.limits import DIRECTORY_DEPTH_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import inodes
from s3fs_meta.meta.trees import removed_trees
from s3fs_meta.model import ROOT_INO, Ino

# The kernel renames only one directory at a time, and a rename needs at most two walks.
# Any other saved positions are left over from renames that failed.
_WALKS_MAX: Final = 8


class Ancestry:
    """Searches and marks the directories above a directory in one mount."""

    def __init__(self, db: Database, directories: int) -> None:
        """Start without unfinished walks.

        Args:
            directories: the number of directories that one slice visits.
        """
        self._db = db
        self._directories = directories
        # Unfinished walks by (directory, top): the next directory to visit, and the number visited.
        self._positions: dict[tuple[Ino, Ino], tuple[Ino, int]] = {}
        # Unfinished markings, by directory: the directories above it that still lack HOLDS_LOCKED.
        self._unmarked: dict[Ino, list[Ino]] = {}

    def moved(self) -> None:
        """Forget the saved positions of all walks, because a directory was moved."""
        self._positions.clear()

    def is_below(self, directory: Ino, top: Ino, outside: Ino) -> bool:
        """Return whether *directory* is *top* or below it. Never yields to other tasks.

        Args:
            directory: where the walk begins.
            top: the directory to search for.
            outside: a directory that is neither *top* nor below *top*; the walk ends there.

        Raises:
            UnfinishedWalkError: a slice is not enough.
            MetadataError: the directories form a cycle.
            NoInodeError: a directory does not exist.
        """
        at, visited = self._positions.get((directory, top), (directory, 0))
        for _ in range(self._directories):
            if at == top:
                return True
            if at in {ROOT_INO, outside}:
                return False
            at = inodes.get(self._db, at).parent
        visited += self._directories
        if visited > max(DIRECTORY_DEPTH_MAX, self._db.counters.inodes):
            raise MetadataError("the parent directories form a cycle", directory)
        if len(self._positions) >= _WALKS_MAX:
            self._positions.clear()
        self._positions[directory, top] = at, visited
        raise UnfinishedWalkError(directory)

    def mark(self, directory: Ino) -> None:
        """Set the flag HOLDS_LOCKED on a directory and on all directories above it.

        Requires an open transaction. Never yields to other tasks.

        Raises:
            UnfinishedWalkError: a slice is not enough; some directories have the flag.
            MetadataError: the directories form a cycle.
        """
        waiting = self._unmarked.pop(directory, None) or [directory]
        if removed_trees.mark_upwards(self._db, waiting, self._directories):
            return
        if len(self._unmarked) >= _WALKS_MAX:
            self._unmarked.clear()
        self._unmarked[directory] = waiting
        raise UnfinishedWalkError(directory)
