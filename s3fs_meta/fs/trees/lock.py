"""Locking a tree, so that its names and inodes can no longer be changed.

Owns: ``s3fs-meta lock``.
Does not know: FUSE, permissions, the operations that a lock forbids (``protection``).
Keeps: a directory is locked before its entries, so that no entry can be added meanwhile. Every
directory above a name of a locked inode is locked or has the flag HOLDS_LOCKED. The flag lets
``remove`` refuse the directory without a search. The flag remains even after the locked inode is
removed. A lock cannot be undone; ``rm --locked`` can remove a complete locked tree.
Tasks: ``lock`` is called through the control socket.
Design: docs/design/semantics.md, "Trees".
"""

import stat
from collections.abc import Callable, Collection

import trio

from s3fs_meta.fs.flags.name_marks import mark, mark_above
from s3fs_meta.fs.removed_trees import TreeProgress
from s3fs_meta.fs.slices import Slices
from s3fs_meta.fs.trees.remove import wait_for_log, yield_to_tasks
from s3fs_meta.fs.write_gate import Changes
from s3fs_meta.limits import MARK_PASSES_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.trees import removed_trees
from s3fs_meta.meta.trees.removed_trees import Child
from s3fs_meta.model import Attributes, Cookie, Ino


def _ignore_progress(_progress: TreeProgress) -> None:
    """Ignore the progress; the default of ``on_progress``."""


class TreeLock:
    """Locks files and directory trees of one mount."""

    def __init__(
        self,
        db: Database,
        changes: Changes,
        require: Callable[[Ino, bytes, Ino], Attributes],
        slices: Slices,
    ) -> None:
        self._db = db
        self._changes = changes
        self._require = require
        self._slices = slices
        self.progress: TreeProgress | None = None

    async def lock(
        self,
        parent: Ino,
        name: bytes,
        ino: Ino,
        on_progress: Callable[[TreeProgress], None] = _ignore_progress,
    ) -> int:
        """Lock a file or tree; return the number of locked names.

        An interruption leaves part of the tree locked; ``lock`` can be called again.

        Args:
            parent: the directory that contains the name.
            name: the name of the file or tree.
            ino: the expected inode of the name; with any other inode the call fails.
            on_progress: called after each slice with the progress.

        Raises:
            NoEntryError: the name does not exist, or refers to another inode.
            ReadOnlyStateError, NoSpaceLeftError: a part of the tree may remain locked.

        Always yields to other tasks.
        """
        self._require(parent, name, ino)
        await mark_above(self._db, self._changes, ino, self._slices)
        found = self._require(parent, name, ino)
        removed_trees.lock(self._db, [ino])
        progress = TreeProgress(1, found.size_bytes if stat.S_ISDIR(found.mode) else 0)
        waiting = [(ino, Cookie(0))]
        try:
            while waiting:
                began_s = trio.current_time()
                self.progress = progress = progress.step(*await self._lock_slice(waiting))
                on_progress(progress)
                await yield_to_tasks(trio.current_time() - began_s)
                await wait_for_log(self._db, self._changes)
        finally:
            self.progress = None
        return progress.done

    async def _lock_slice(self, waiting: list[tuple[Ino, Cookie]]) -> tuple[int, int]:
        """Lock some entries of locked directories, whose entries cannot change.

        Returns:
            The number of locked entries, and the number of names in the directories among them.

        Yields to other tasks only if one slice is not enough for the names of the last entry, or
        for the directories above all names.
        """
        taken = waiting[: -self._slices.directories - 1 : -1]
        self._changes.begin(taken[0][0])
        listed = removed_trees.children(self._db, taken, self._slices.names)
        found = _up_to(listed, self._slices.names)
        linked = {child.ino for child in found if child.links}
        if found and found[-1].links > self._slices.names:
            linked.discard(found[-1].ino)
            await mark_above(self._db, self._changes, found[-1].ino, self._slices)
        await self._mark_names(taken[0][0], linked)
        removed_trees.lock(self._db, {child.ino for child in found})
        del waiting[-len(taken) :]
        if len(listed) == self._slices.names or len(found) < len(listed):
            last = found[-1]
            at = [parent for parent, _after in taken].index(last.parent)
            waiting += [*taken[:at:-1], (last.parent, last.cookie)]
        waiting += [(child.ino, Cookie(0)) for child in found if child.names]
        self._db.commit()
        return len(found), sum(child.names for child in found)

    async def _mark_names(self, directory: Ino, linked: Collection[Ino]) -> None:
        """Mark the directories above all names of files; the caller then locks these files.

        While this method yields, another task may add a name; then another pass is needed. The last
        pass does not yield.
        """
        passes = 0
        while parents := removed_trees.unmarked_parents(self._db, linked):
            passes += 1
            pauses = passes < MARK_PASSES_MAX
            count = self._slices.ancestors
            await mark(self._db, self._changes, directory, parents, count, pauses=pauses)


def _up_to(listed: list[Child], links_max: int) -> list[Child]:
    """Return the first entries whose link counts add up to at most a limit, and the next entry."""
    links = 0
    for count, child in enumerate(listed, 1):
        links += child.links
        if links > links_max:
            return listed[:count]
    return listed
