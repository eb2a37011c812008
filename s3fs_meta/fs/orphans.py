"""Inodes without a name: they are kept while in use, then purged.

Owns: the list of orphans, and their deletion. Does not know: names.
Keeps: the row of an orphan exists until its last block is released. So a crash leaves an
orphan, which the next mount for writing purges.
Tasks: handlers of unlink, forget and release purge small orphans; one ``run`` per mount purges larger
ones.
Source: unlink(2), DESCRIPTION; libfuse fuse_lowlevel.h, comment on forget.
"""

import logging
import stat
from collections import deque

import trio

from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.errors import BadRowError, DamagedDatabaseError, S3fsError
from s3fs_meta.fs.lookup_counts import LookupCounts
from s3fs_meta.fs.open_files import OpenFiles
from s3fs_meta.fs.removed_trees import RemovedTrees
from s3fs_meta.fs.slices import Slices
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, inodes, packs, symlinks, xattrs
from s3fs_meta.meta.tables import blocks as blocks_meta
from s3fs_meta.meta.trees import removed_trees
from s3fs_meta.model import Attributes, BlockId, BlockIndex, BlockRow, Ino, InodeFlag
from s3fs_meta.mount_state import MountStatus

_log = logging.getLogger(__name__)


class Orphans:
    """Lists and deletes the orphans of one mount."""

    def __init__(
        self,
        db: Database,
        cache: BlockCache,
        status: MountStatus,
        lookups: LookupCounts,
        open_files: OpenFiles,
        slices: Slices,
    ) -> None:
        self._db = db
        self._cache = cache
        self._status = status
        self._lookups = lookups
        self._open_files = open_files
        self._slices = slices
        self.trees = RemovedTrees(db, slices.ancestors)
        self._known: set[Ino] = set()
        self._queue: deque[Ino] = deque()
        self._queued = trio.Event()

    def __len__(self) -> int:
        return len(self._known)

    def adopt_all(self) -> None:
        """Queue orphans of an earlier mount or another host for purging.

        An orphan that a local process uses is purged later, when it is no longer in use. At mount
        no orphan is in use. When a follower is promoted, processes may have orphans open.
        """
        tops = removed_trees.tops(self._db)
        for ino in inodes.orphans(self._db):
            if ino in tops:
                self.trees.add(ino, tops[ino])
                continue
            self._known.add(ino)
            if self.is_unused(ino):
                self._enqueue(ino)

    def is_unused(self, ino: Ino) -> bool:
        """Return whether an inode is not open and has no lookup count; an orphan is then purged."""
        return not self._lookups.count(ino) and self._open_files.find(ino) is None

    def made(self, ino: Ino) -> None:
        """Record an inode that was created without a name and will be opened."""
        self._known.add(ino)

    def unlinked(self, ino: Ino) -> None:
        """Record that an inode lost its last name; purge it if unused. Needs a transaction."""
        self._known.add(ino)
        self.unused(ino)

    def unused(self, ino: Ino) -> None:
        """Purge an orphan that is not open and has no lookup count; queue a large one for ``run``.

        Leave any other inode unchanged. Call this when a lookup or open count becomes zero. Never
        yields to other tasks.
        """
        if ino not in self._known or not self._status.writable or not self.is_unused(ino):
            return
        self._db.begin()
        if inodes.delete_bare_orphan(self._db, ino):
            self._known.discard(ino)
            return
        row = inodes.find(self._db, ino)
        if row is None or row.nlink:
            # The transaction group that removed the name was lost, so the inode has its name again.
            self._known.discard(ino)
        elif row.flags & InodeFlag.REMOVED:
            self._known.discard(ino)
            self.trees.add(ino, row.size_bytes)
        elif row.mapped_blocks > self._slices.purged_blocks:
            self._enqueue(ino)
        else:
            self._purge_or_skip(row)

    def _enqueue(self, ino: Ino) -> None:
        self._queue.append(ino)
        self._queued.set()

    async def run(self) -> None:
        """Purge large orphans in slices, until cancelled.

        After each slice ``purge`` sleeps for the duration of the slice, so that requests get at least
        half of the event loop's time. After a failure the next mount for writing continues.
        """
        while True:
            await self._queued.wait()
            self._queued = trio.Event()
            while self._queue:
                ino = self._queue.popleft()
                try:
                    await self.purge(ino)
                except (BadRowError, DamagedDatabaseError) as exc:
                    if not exc.changed_nothing:
                        self._status.break_off(f"purging a removed file failed: {exc}")
                    self._skip(ino, exc)
                except S3fsError as exc:
                    _log.exception("purging inode %d failed", ino)
                    self._status.break_off(f"purging a removed file failed: {exc}")

    async def purge(self, ino: Ino) -> None:
        """Delete an orphan in slices while the mount is writable."""
        while self._status.writable:
            started_s = trio.current_time()
            try:
                row = inodes.find(self._db, ino)
            except (BadRowError, DamagedDatabaseError) as exc:
                exc.changed_nothing = True
                raise
            if row is None or row.nlink:
                self._known.discard(ino)
                return
            if self._purge_or_skip(row):
                return
            await trio.sleep(trio.current_time() - started_s)

    def _purge_or_skip(self, row: Attributes) -> bool:
        """Call ``purge_piece``; skip an orphan whose rows cannot be read.

        Return whether the work on the orphan is finished.
        """
        before = self._db.rows_changed()
        try:
            return self.purge_piece(row)
        except (BadRowError, DamagedDatabaseError) as exc:
            if self._db.rows_changed() != before:
                raise
            self._skip(row.ino, exc)
            return True

    def _skip(self, ino: Ino, exc: S3fsError) -> None:
        """Skip an orphan with unreadable rows. Once fsck has repaired them, a mount purges it."""
        _log.error(
            "cannot free the space of the removed inode %d: %s; the next mount tries again",
            ino,
            exc,
        )
        self._known.discard(ino)

    def purge_piece(self, row: Attributes) -> bool:
        """Release some blocks of an orphan, and finally its rows; return whether it is deleted."""
        db, ino = self._db, row.ino
        db.begin()
        if row.mapped_blocks:
            blocks = blocks_meta.mapped_from(db, ino, BlockIndex(0), self._slices.purged_blocks)
            _release(db, self._cache, ino, blocks)
            if len(blocks) == self._slices.purged_blocks:
                inodes.add_mapped_blocks(db, ino, -len(blocks))
                return False
        if row.flags & InodeFlag.HAS_XATTRS:
            xattrs.delete_all(db, ino)
        if stat.S_ISLNK(row.mode):
            symlinks.delete(db, ino)
        inodes.delete(db, ino)
        self._known.discard(ino)
        return True


def unmap(
    db: Database, cache: BlockCache, ino: Ino, blocks: list[tuple[BlockIndex, BlockId]]
) -> None:
    """Turn blocks of a file into holes, and release the blocks. Requires an open transaction.

    Raises:
        BadRowError, DamagedDatabaseError: the row of a block or of its pack cannot be read; nothing
            was changed.
    """
    if blocks:
        found = [(index, blocks_meta.get(db, block)) for index, block in blocks]
        _release(db, cache, ino, found)
        inodes.add_mapped_blocks(db, ino, -len(blocks))


def _release(
    db: Database, cache: BlockCache, ino: Ino, found: list[tuple[BlockIndex, BlockRow]]
) -> None:
    """Unmap blocks as ``unmap`` does, but do not change the inode's number of mapped blocks."""
    for pack in {row.pack for _index, row in found if row.pack is not None}:
        packs.get(db, pack)
    # If two entries share a block, the loop reads the changed row of the block again.
    are_distinct = len({row.block for _index, row in found}) == len(found)
    for index, row in found:
        block_map.remove_read(db, ino, index)
        cache.release(row.block, row if are_distinct else None)
