"""The gate that operations of programs pass before they change files.

Owns: the order of the checks (state of the mount, room on the disk); opening the group; the list of
names and inodes that the open group changed. Does not know: the effects of operations.
If SQLite loses a group, acknowledged operations are undone, and the kernel still caches their
results. So the names and inodes that the group changed are invalidated in the kernel.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import trio

from s3fs_meta.cache.disk_space import DiskSpace
from s3fs_meta.errors import NoSpaceLeftError
from s3fs_meta.limits import DISK_RESERVE_BYTES, GROUP_OPERATIONS_MAX, OPERATION_DISK_BYTES
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.group_listeners import LossStep
from s3fs_meta.model import Ino
from s3fs_meta.mount_state import MountStatus

_log = logging.getLogger(__name__)


class Invalidations(NamedTuple):
    """Names and inodes to invalidate in the kernel, for example after a lost commit group."""

    names: list[tuple[Ino, bytes]]  # (directory, name) pairs
    inodes: list[Ino]


async def _forget_nothing(_parent: Ino, _name: bytes) -> None:
    """Do nothing: without a kernel there is no cached name to invalidate."""
    await trio.lowlevel.checkpoint()


class KernelNotices(NamedTuple):
    """Functions that invalidate the kernel's caches; the defaults do nothing."""

    changed: Callable[[Invalidations], None] = lambda _lost: None  # a callback that must not wait
    forget_name: Callable[[Ino, bytes], Awaitable[None]] = _forget_nothing


NO_KERNEL: Final = KernelNotices()


class Changes:
    """Checks and begins the operations that change files in one mount."""

    def __init__(
        self,
        db: Database,
        disk: DiskSpace,
        status: MountStatus,
        notices: KernelNotices = NO_KERNEL,
    ) -> None:
        self._db = db
        self._disk = disk
        self._status = status
        self._names: list[tuple[Ino, bytes]] = []
        self._inodes: list[Ino] = []
        self.opened = 0  # number of operations begun, to detect changes
        # Returns whether an access time fits on the disk without the space reserved for SQLite.
        # If not, a read succeeds but does not change the access time.
        self.may_note_access = disk.can_spend
        self.notices = notices
        db.listeners.when_lost(LossStep.REPORT, self._lost)

    def require(self, size_bytes: int = OPERATION_DISK_BYTES) -> None:
        """Check that the mount accepts a change. To change rows, call ``open`` afterwards.

        Args:
            size_bytes: maximum number of bytes that the change writes to the local disk.

        Raises:
            ReadOnlyStateError: the mount accepts no changes.
            NoSpaceLeftError: the disk has only its reserve left.
        """
        self._status.require_writable()
        self._disk.spend(size_bytes)

    def begin(self, ino: Ino, *, times_only: bool = False) -> None:
        """Begin an operation that changes an inode. Raises the same errors as ``require``.

        Args:
            times_only: the operation changes only times of the inode.
        """
        self._status.require_writable()
        self._disk.spend()
        self.open(ino, times_only=times_only)

    def begin_entry(self, parent: Ino, name: bytes) -> None:
        """Begin an operation that adds or changes a name. Raises the same errors as ``require``."""
        self._status.require_writable()
        self._disk.spend()
        self.open(parent)
        self._names.append((parent, name))

    def begin_removal(self, parent: Ino, name: bytes) -> None:
        """Begin an operation that removes a name, which may use half of the disk's reserve.

        Otherwise no file could be removed while the disk is full.

        Raises:
            ReadOnlyStateError: the mount accepts no changes.
            NoSpaceLeftError: half of the disk's reserve is used up.
        """
        self._status.require_writable()
        try:
            self._disk.spend()
        except NoSpaceLeftError:
            if self._disk.spare_bytes() < -DISK_RESERVE_BYTES // 2:
                raise
        self.open(parent)
        self._names.append((parent, name))

    def also(self, parent: Ino, name: bytes) -> None:
        """Record another name that the operation changes, after ``begin_entry``."""
        self._names.append((parent, name))

    def open(self, ino: Ino, *, times_only: bool = False) -> None:
        """Begin an operation after ``require``; no schedule point may lie between the two calls."""
        if self._db.group_operations >= GROUP_OPERATIONS_MAX:
            self._db.commit()
        if not self._db.in_group:
            self._names.clear()
            self._inodes.clear()
        self.opened += 1
        self._db.begin(times_only=times_only)
        self._inodes.append(ino)

    def _lost(self) -> None:
        lost = Invalidations(self._names, sorted(set(self._inodes)))
        self._names, self._inodes = [], []
        _log.error(
            "a commit failed, so the changes of these inodes were undone: %s",
            lost.inodes[:20],
        )
        self.notices.changed(lost)
