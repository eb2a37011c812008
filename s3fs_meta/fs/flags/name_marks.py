"""Marking the directories above the names of an inode, before the inode becomes protected.

Owns: setting the flag HOLDS_LOCKED, which means that a protected inode is below a directory. An
inode may have millions of names, so the flag is set in slices.
Does not know: why the inode becomes protected (``inode_flags``, ``trees.lock``).
Keeps: when ``mark_above`` returns, every directory above a name of the inode has the flag. The
caller must protect the inode before the next schedule point, so that it gets no further name.
Design: docs/design/concurrency.md, "Slices".
"""

from collections.abc import Iterable

import trio

from s3fs_meta.fs.slices import Slices
from s3fs_meta.fs.write_gate import Changes
from s3fs_meta.limits import MARK_PASSES_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import hard_links, inodes
from s3fs_meta.meta.trees import removed_trees
from s3fs_meta.model import Ino


async def mark_above(db: Database, changes: Changes, ino: Ino, slices: Slices) -> None:
    """Set HOLDS_LOCKED on all directories above an inode; begin an operation on the inode.

    A directory keeps the flag. If it is moved, the directories above its new parent are marked.
    If another task adds or moves a name during a pass, the ctime of the inode changes, and another
    pass follows.

    Args:
        db: the database.
        changes: begins the operation before each slice.
        ino: the inode.
        slices: limits of one slice. ``directories`` limits the directories with names of the inode;
            ``ancestors`` limits the visited directories above them.

    Raises:
        NoInodeError: the inode was removed.
        ReadOnlyStateError, NoSpaceLeftError: some directories may have the flag already.

    Yields to other tasks between two slices, except in the last of MARK_PASSES_MAX passes.
    """
    for attempt in range(1, MARK_PASSES_MAX + 1):
        before, after = inodes.get(db, ino), Ino(0)
        while True:
            changes.begin(ino)
            found = hard_links.parents_after(db, ino, after, slices.directories)
            pauses = attempt < MARK_PASSES_MAX
            await mark(db, changes, ino, found, slices.ancestors, pauses=pauses)
            if len(found) < slices.directories:
                break
            after = found[-1]
            db.commit()  # the flags set so far are valid even if a later slice fails
            if pauses:
                await trio.lowlevel.checkpoint()
        now = inodes.get(db, ino)
        if (now.nlink, now.ctime_ns) == (before.nlink, before.ctime_ns):
            return


async def mark(
    db: Database,
    changes: Changes,
    ino: Ino,
    directories: Iterable[Ino],
    count: int,
    *,
    pauses: bool = True,
) -> None:
    """Set HOLDS_LOCKED on directories and on all directories above them, during an operation.

    Args:
        db: the database.
        changes: begins the operation again after each slice but the last.
        ino: the inode of the operation.
        directories: the directories.
        count: the number of directories that one slice visits.
        pauses: yield to other tasks between two slices.

    Raises:
        ReadOnlyStateError, NoSpaceLeftError: some directories may have the flag already.
    """
    waiting = list(directories)
    while not removed_trees.mark_upwards(db, waiting, count):
        db.commit()  # the flags set so far are valid even if a later slice fails
        if pauses:
            await trio.lowlevel.checkpoint()
        changes.begin(ino)
