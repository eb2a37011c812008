"""Marking the directories above the names of an inode, before the inode becomes protected.

Owns: setting the flag HOLDS_LOCKED in slices, because an inode may have millions of names.
Does not know: why the inode becomes protected (``inode_flags``, ``trees.lock``).
Keeps: when ``mark_above`` returns, every directory above a name of the inode has the flag. The
caller must protect the inode before the next schedule point, so that it gets no further name.
Design: docs/design/concurrency.md, "Slices".
"""

import trio

from s3fs_meta.fs.write_gate import Changes
from s3fs_meta.limits import MARK_PASSES_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import hard_links, inodes
from s3fs_meta.meta.trees import removed_trees
from s3fs_meta.model import Ino


async def mark_above(db: Database, changes: Changes, ino: Ino, slice_parents: int) -> None:
    """Set HOLDS_LOCKED on all directories above an inode, in slices; begin an operation on it.

    A directory keeps the flag, and marks its new parents if it is moved. So a pass over the names
    is complete unless another task added or moved a name of the inode, which changes its ctime.

    Args:
        db: the database.
        changes: begins the operation before each slice.
        ino: the inode.
        slice_parents: the maximum number of directories with names of the inode in one slice.

    Raises:
        NoInodeError: the inode was removed.
        ReadOnlyStateError, NoSpaceLeftError: some directories may have the flag already.

    Yields to other tasks between two slices.
    """
    for attempt in range(1, MARK_PASSES_MAX + 1):
        before, after = inodes.get(db, ino), Ino(0)
        while True:
            changes.begin(ino)
            found = hard_links.parents_after(db, ino, after, slice_parents)
            for parent in found:
                removed_trees.note_locked_below(db, parent)
            if len(found) < slice_parents:
                break
            after = found[-1]
            db.commit()  # a later failure must not undo these marks
            if attempt < MARK_PASSES_MAX:
                await trio.lowlevel.checkpoint()
        now = inodes.get(db, ino)
        if (now.nlink, now.ctime_ns) == (before.nlink, before.ctime_ns):
            return
