"""One mounted filesystem: POSIX semantics without FUSE.

Owns: creating the parts, statfs, open, release, and purging an inode when the kernel forgets it.
Does not know: pyfuse3, stores, the storage of blocks.
Methods that may wait are ``async``; all others run without a schedule point. A frequent operation
is not a method but an attribute: the bound method of a part. This saves a call per request.
Tasks: any handler; one ``run`` per mount.
"""

import stat
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import trio

from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.clock import Clock
from s3fs_meta.errors import NeedsDirectoryError, NoAttributeError
from s3fs_meta.fs.attributes import AttributeStore, SetAttributes
from s3fs_meta.fs.capacity import Capacity
from s3fs_meta.fs.content.file_data import FileData
from s3fs_meta.fs.content.file_ranges import FileRanges
from s3fs_meta.fs.flags.inode_flags import InodeFlags
from s3fs_meta.fs.flags.protection import require_changeable, require_unprotected
from s3fs_meta.fs.lookup_counts import LookupCounts
from s3fs_meta.fs.namespace import Namespace
from s3fs_meta.fs.open_files import OpenFiles
from s3fs_meta.fs.orphans import Orphans
from s3fs_meta.fs.slices import DEFAULT_SLICES, Slices
from s3fs_meta.fs.trees.clone import TreeClone
from s3fs_meta.fs.trees.lock import TreeLock
from s3fs_meta.fs.trees.remove import TreeRemoval
from s3fs_meta.fs.waiting_room import WaitingRoom
from s3fs_meta.fs.write_gate import NO_KERNEL, Changes, KernelNotices
from s3fs_meta.fs.xattrs import STATE, AttributeNames, SupplementaryGroups
from s3fs_meta.limits import UNLIMITED_INODES
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.tables import dentries, properties, symlinks
from s3fs_meta.model import Attributes, Caller, Cookie, Ino
from s3fs_meta.mount_state import MountStatus
from s3fs_meta.options.settings import FilesystemOptions


class SpaceFigures(NamedTuple):
    """The values that statfs(2) reports, read from counters without a scan."""

    capacity_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int


def _no_groups(_pid: int) -> tuple[int, ...]:
    return ()


async def _unknown_state(ino: Ino) -> bytes:  # noqa: RUF029 - callers await it
    raise NoAttributeError(ino, STATE)


class SyncFile(Protocol):
    """The type of a function that makes a file and its name durable."""

    def __call__(self, ino: Ino, /, *, data_only: bool = False) -> Awaitable[None]:
        """Make a file durable; with *data_only*, the times of the file need not become durable."""


class Filesystem:
    """The operations of one mounted filesystem on its rows and its cache."""

    def __init__(  # noqa: PLR0913 - one argument per collaborator
        self,
        db: Database,
        cache: BlockCache,
        status: MountStatus,
        clock: Clock,
        options: FilesystemOptions,
        *,
        sync_file: SyncFile,
        state_of: Callable[[Ino], Awaitable[bytes]] = _unknown_state,
        groups_of: SupplementaryGroups = _no_groups,
        notices: KernelNotices = NO_KERNEL,
        slices: Slices = DEFAULT_SLICES,
    ) -> None:
        """Create the parts of a filesystem.

        Args:
            sync_file: makes a file and its name durable, for fsync(2) and fdatasync(2).
            state_of: returns the value of the attribute ``xattrs.STATE``: how durable a file is.
            groups_of: returns the supplementary groups of a process.
            notices: functions that invalidate the kernel's caches.
            slices: limits of the work between two schedule points.
        """
        self.db = db
        self._directory_times = options.directory_times
        self.status = status
        self.sync_file = sync_file
        self.state_of = state_of
        self.block_bytes = int(properties.get(db, "block_bytes"))
        self.lookups = LookupCounts()
        self.open_files = OpenFiles()
        self.changes = Changes(db, cache.disk, status, notices)
        self.orphans = Orphans(db, cache, status, self.lookups, self.open_files, slices)
        self._now_ns = now_ns = clock.now_ns
        policy, opened = options.access_time, self.open_files
        self.attributes = AttributeStore(db, self.changes, status, now_ns, policy, opened)
        self.namespace = Namespace(db, self.changes, self.orphans, now_ns, slices)
        self.capacity = Capacity(db)
        self._make_trees(cache, slices)
        self.xattrs = AttributeNames(db, self.changes, self.open_files, now_ns, groups_of)
        self.waiting_room = WaitingRoom(is_shared=options.allow_other)
        self.data = FileData(
            db, cache, self.changes, self.attributes, self.open_files, now_ns, self.waiting_room,
            slices=slices,
        )  # fmt: skip
        self.flags = InodeFlags(db, self.changes, self.open_files, now_ns, slices)
        self.ranges = FileRanges(db, cache, self.changes, self.data, status, now_ns, slices)
        self.lookup, self.getattr = self.namespace.lookup, self.attributes.get
        self.read, self.write = self.data.read, self.data.write

    def _make_trees(self, cache: BlockCache, slices: Slices) -> None:
        """Create the objects that remove, lock and clone trees."""
        db, status, now_ns = self.db, self.status, self._now_ns
        self.tree_removal = TreeRemoval(
            db,
            cache,
            self.changes,
            status,
            namespace=self.namespace,
            orphans=self.orphans,
            lookups=self.lookups,
            open_files=self.open_files,
            now_ns=now_ns,
            slices=slices,
        )
        self.tree_lock = TreeLock(db, self.changes, self.namespace.require, slices)
        self.tree_clone = TreeClone(
            db,
            cache,
            self.changes,
            status,
            namespace=self.namespace,
            orphans=self.orphans,
            removal=self.tree_removal,
            open_files=self.open_files,
            now_ns=now_ns,
            block_bytes=self.block_bytes,
            slices=slices,
        )

    async def run(self) -> None:
        """Purge removed files and read ahead, until cancelled. Start with orphans of earlier mounts.

        The mount calls this once the filesystem is mounted, even if the mount is read-only. A
        read-only mount purges no orphans.
        """
        self.adopt_orphans()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.orphans.run)
            nursery.start_soon(self.tree_removal.run)
            nursery.start_soon(self.data.read_ahead.run)

    def adopt_orphans(self) -> None:
        """Purge orphans of an earlier mount, if the mount is writable. Never yields."""
        if self.status.writable:
            self.orphans.adopt_all()
            self.capacity.count()

    # --- open, release and forget inodes -------------------------------------------------------

    def forget(self, ino: Ino, times: int) -> None:
        """Decrease the lookup count of an inode at the kernel's request. Never yields."""
        if not self.lookups.forget(ino, times):
            self.open_files.forgotten(ino)
            self.orphans.unused(ino)

    def open(self, ino: Ino, *, writes: bool = False, appends: bool = False) -> None:
        """Open an inode, until ``release``. Never yields to other tasks.

        Args:
            ino: an inode that is not a directory.
            writes: O_WRONLY or O_RDWR is set.
            appends: O_APPEND is set. Later writes are not checked, because the kernel sends
                complete pages.

        Raises:
            NoInodeError: the inode does not exist.
            NotPermittedError: the inode is locked, immutable or append-only.
        """
        attributes = self.attributes.get(ino)
        if writes:
            (require_changeable if appends else require_unprotected)(attributes)
        self.open_files.opened(ino, writes=writes)

    def release(self, ino: Ino) -> None:
        """Undo one ``open`` of an inode. Never yields to other tasks."""
        if not self.open_files.closed(ino):
            self.orphans.unused(ino)

    def open_directory(self, ino: Ino) -> None:
        """Check that an inode is a directory, and update its atime.

        Opens are not counted, because the kernel keeps the lookup count of an open directory.

        Raises:
            NoInodeError: the inode does not exist.
            NeedsDirectoryError: the inode is not a directory.
        """
        attributes = self.attributes.get(ino)
        if not stat.S_ISDIR(attributes.mode):
            raise NeedsDirectoryError(ino)
        if self._directory_times:
            self.attributes.accessed(attributes)

    # --- attributes and file content -----------------------------------------------------------

    async def setattr(
        self, ino: Ino, wanted: SetAttributes, caller: Caller, *, sets_times: bool = True
    ) -> Attributes:
        """Change attributes, including the size; return all attributes.

        Args:
            ino: the inode.
            wanted: the new attributes.
            caller: the process that changes them.
            sets_times: set mtime and ctime even if the size stays the same; false if the kernel
                keeps these times, because it sends them when they change.

        Raises:
            The errors of ``FileData.truncate`` and ``AttributeStore.set_attributes``.

        Yields to other tasks only if the size changes.
        """
        if wanted.size_bytes is None:
            return self.attributes.set_attributes(ino, wanted)
        before = self.attributes.get(ino)
        require_unprotected(before)
        await self.data.truncate(ino, wanted.size_bytes, sets_times=False)
        if caller.uid != 0:
            self.attributes.clear_privileges(ino)
        is_same = wanted.size_bytes == before.size_bytes
        if is_same and not sets_times and wanted._replace(size_bytes=None) == SetAttributes():
            return self.attributes.get(ino)
        if wanted.mtime_ns is None and (sets_times or not is_same):
            wanted = wanted._replace(mtime_ns=self._now_ns())
        return self.attributes.set_attributes(ino, wanted)

    def readlink(self, ino: Ino) -> bytes:
        """Return the target of a symbolic link.

        Raises:
            NoInodeError: the inode does not exist, or has no target.
        """
        attributes = self.attributes.get(ino)
        target = symlinks.target(self.db, ino)
        self.attributes.accessed(attributes)
        return target

    def read_directory(
        self, ino: Ino, after: Cookie, limit: int
    ) -> list[tuple[bytes, Cookie, Attributes]]:
        """Return at most *limit* names of a directory after a cookie, sorted by cookie."""
        return dentries.page(self.db, ino, after, limit)

    def read_directory_rows(self, ino: Ino, after: Cookie, limit: int) -> list[Row]:
        """Return the names of ``read_directory`` as unchecked rows, for ``dentries.listed``."""
        return dentries.page_rows(self.db, ino, after, limit)

    # --- statistics and capacity ---------------------------------------------------------------

    def statfs(self) -> SpaceFigures:
        """Return the sizes and counts that describe the filesystem's use of space."""
        counters = self.db.counters
        return SpaceFigures(
            self.capacity.limit_bytes,
            self.capacity.free_bytes,
            counters.inodes,
            max(UNLIMITED_INODES - counters.inodes, 0),
        )

    def set_capacity(self, capacity_bytes: int) -> None:
        """Set the size limit of the filesystem, in bytes after deduplication; 0 means unlimited."""
        self.status.require_writable()
        self.db.begin()
        self.db.counters.capacity_bytes = capacity_bytes
        self.capacity.count()
