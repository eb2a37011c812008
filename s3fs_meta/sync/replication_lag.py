"""Replication lag: the files with changes that are not yet in the bucket.

Owns: reading the unshipped records of changes, for inodes and for paths.
Does not know: how records are shipped, its callers.
No record is read before the first call, and later calls read only new records.
Tasks: any task; one call runs at a time.
"""

import enum
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.limits import UNSHIPPED_INODES_AT_ONCE_MAX, UNSHIPPED_INODES_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import pending
from s3fs_meta.meta.trees import tree_paths
from s3fs_meta.model import Ino

_T = TypeVar("_T")


class FileState(enum.Enum):
    """The durability of a file's newest data and names."""

    DIRTY = "dirty"  # a power cut may lose changes of the file
    LOCAL = "local"  # all changes of the file are on this machine's disk
    BUCKET = "bucket"  # all changes of the file are in the bucket


class UnshippedPaths(NamedTuple):
    """The sorted paths of files with changes that are not in the bucket."""

    paths: list[str]
    complete: bool  # False if *paths* contains only a part of the files


class ReplicationLag:
    """Reports the unshipped changes of one mount."""

    def __init__(
        self,
        db: Database,
        confirmed_seq: Callable[[], int],
        synced_seq: Callable[[], int],
        *,
        inodes_max: int = UNSHIPPED_INODES_MAX,
    ) -> None:
        """Create the report without reading any record.

        Args:
            db: the database of the mount, which has the records of changes.
            confirmed_seq: returns the number of the last record in the bucket.
            synced_seq: returns the number of the last record on the local disk.
            inodes_max: the number of changed inodes to remember.
        """
        self._inodes_max = inodes_max
        self._db = db
        self._confirmed_seq = confirmed_seq
        self._synced_seq = synced_seq
        self._last: dict[Ino, int] = {}  # number of each inode's last change record
        self._read_seq = 0
        # Up to this record, too many inodes changed to list them, so every inode counts as changed.
        self._floor_seq = 0
        self._lock = trio.Lock()

    async def state_of(self, ino: Ino) -> FileState:
        """Return the durability of a file's changes. Always yields to other tasks."""
        async with self._lock:
            await self._refresh()
            seq = max(self._last.get(ino, 0), self._floor_seq)
        if seq <= self._confirmed_seq():
            return FileState.BUCKET
        return FileState.LOCAL if seq <= self._synced_seq() else FileState.DIRTY

    async def paths(self, limit: int) -> UnshippedPaths:
        """Return at most *limit* paths with unshipped changes. Always yields to other tasks."""
        async with self._lock:
            self._db.commit()
            found = await self._read(tree_paths.unshipped, self._confirmed_seq(), limit + 1)
        return UnshippedPaths(found[:limit], len(found) <= limit)

    async def _refresh(self) -> None:
        """Read the records of changes that were added since the last call."""
        confirmed = self._confirmed_seq()
        self._last = {ino: seq for ino, seq in self._last.items() if seq > confirmed}
        self._db.commit()
        self._read_seq = max(self._read_seq, confirmed)
        complete = False
        while not complete:  # read in steps, because an outage may leave many change records
            new = await self._read(
                pending.inodes_changed, self._read_seq, UNSHIPPED_INODES_AT_ONCE_MAX
            )
            self._last |= new.last
            self._read_seq, complete = new.last_seq, new.complete
            if len(self._last) > self._inodes_max:
                self._last.clear()
                self._floor_seq = self._read_seq
            await trio.lowlevel.checkpoint()

    async def _read(self, read: Callable[..., _T], *arguments: int) -> _T:
        if not self._db.pragmas.is_wal:
            return read(self._db.connection, *arguments)
        snapshot = self._db.open_snapshot()
        try:
            return await in_thread(read, snapshot.connection, *arguments)
        finally:
            snapshot.close()
