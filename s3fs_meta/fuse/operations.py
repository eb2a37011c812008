"""The handlers of FUSE requests: each converts arguments, calls the filesystem, and replies.

Owns: the requests that ``frequent_requests`` does not answer: requests that may wait, rare
requests, and requests for past inodes and for the barrier. Does not know: rows, blocks.
``raw_operations`` has the handlers of requests that pyfuse3 does not support.
Some handlers are missing on purpose:

- ``forget`` and ``setxattr``: ``frequent_requests`` handles all of these requests.
- ``flush``: the kernel remembers ENOSYS, which saves a request for every close(2). It still writes
  back dirty pages and reports errors of the write-back, and it handles file locks itself.
- ``access``: the kernel checks permissions (default_permissions).
- ``poll``: after ENOSYS the kernel itself replies that a file is always ready.

``fsync`` and ``fsyncdir`` must exist: after ENOSYS the kernel would always report success.
"""

import errno
import os
import stat
from collections.abc import Awaitable
from typing import Final

from typing_extensions import override

from s3fs_meta.errors import NoAttributeError
from s3fs_meta.fs.attributes import SetAttributes
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.namespace import RENAME_EXCHANGE
from s3fs_meta.fs.past.past_tree import PastTree
from s3fs_meta.fs.waiting_room import caller as asking
from s3fs_meta.fs.xattrs import CAPABILITY, STATE
from s3fs_meta.fuse import errnos
from s3fs_meta.fuse.collection.barrier import BARRIER_INO, Barrier
from s3fs_meta.fuse.collection.write_back import WriteBack
from s3fs_meta.fuse.convert import Converter, caller
from s3fs_meta.fuse.error_boundary import answered
from s3fs_meta.fuse.extension import fuse_intercept, pyfuse3
from s3fs_meta.fuse.notifications import invalidate_inode
from s3fs_meta.fuse.past_requests import PastRequests
from s3fs_meta.limits import PAST_INO_MIN
from s3fs_meta.model import ROOT_INO, Attributes, Caller, Ino

_HANDLERS: Final = (
    "create",
    "fsync",
    "fsyncdir",
    "getattr",
    "getxattr",
    "link",
    "listxattr",
    "lookup",
    "mkdir",
    "mknod",
    "open",
    "opendir",
    "read",
    "readdir",
    "readlink",
    "release",
    "releasedir",
    "removexattr",
    "rename",
    "rmdir",
    "setattr",
    "statfs",
    "symlink",
    "unlink",
    "write",
)

# The handlers that only the extension calls; ``clear_privileges`` runs before some writes.
RAW_HANDLERS: Final = (
    "forget",
    "setxattr",
    "lseek",
    "fallocate",
    "copy_file_range",
    "ioctl",
    "statx",
    "clear_privileges",
)

# The O_TMPFILE bit in the flags for open(2), without the O_DIRECTORY bit.
_IS_NAMELESS: Final = os.O_TMPFILE & ~os.O_DIRECTORY

_NO_ATTRIBUTE: Final = errnos.ERRNOS[NoAttributeError]


class Operations(pyfuse3.Operations):
    """The handlers of one mount. A file handle is the inode number of the file."""

    supports_dot_lookup = True
    enable_acl = True

    def __init__(
        self,
        filesystem: Filesystem,
        converter: Converter,
        *,
        past: PastTree | None = None,
        writeback: bool = True,
    ) -> None:
        """Create the handlers of one mount.

        Args:
            filesystem: carries out the requests.
            converter: converts results to pyfuse3's types.
            past: carries out requests for points in time; None if the mount shows none of them.
            writeback: True if the kernel caches writes, and keeps the size and times of regular
                files. False on a follower, because another host changes the files.
        """
        self.enable_writeback_cache = writeback
        self.filesystem = self._fs = filesystem
        self.converter = converter
        self.past = PastRequests(past, converter)
        self._entry = converter.entry
        self._count = filesystem.lookups.add
        self._namespace = filesystem.namespace
        self._data = filesystem.data
        self.status = filesystem.status
        self.requests = dict.fromkeys((*_HANDLERS, *RAW_HANDLERS), 0)
        self.barrier = Barrier()
        self.write_back = WriteBack(self.barrier, filesystem.open_files, self.requests)

    def _named(self, attributes: Attributes) -> pyfuse3.EntryAttributes:
        """Return the reply with an inode's attributes, and count it as a lookup of the inode."""
        entry = self._entry(attributes)
        self._count(attributes.ino)
        return entry

    def may_be_special(self, parent: Ino, name: bytes) -> bool:
        """Return whether a name without a row is the barrier or the directory of points in time."""
        return parent == ROOT_INO and name in (self.barrier.name, self.past.name)

    def _is_past(self, parent: Ino, name: bytes) -> bool:
        """Return whether an entry is the directory of points in time, which has no row."""
        is_name = parent == ROOT_INO and name == self.past.name
        return is_name and self._fs.lookup(parent, name) is None

    def _require_not_past(self, parent: Ino, name: bytes) -> None:
        """Raise EROFS for the directory of points in time, as for all entries below it."""
        if self._is_past(parent, name):
            raise pyfuse3.FUSEError(errno.EROFS)

    # --- requests for names --------------------------------------------------------------------

    @override
    @answered
    def lookup(
        self, parent: Ino, name: bytes, _ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes | Awaitable[pyfuse3.EntryAttributes]:
        """Reply with a past inode, or with the barrier or the directory of points in time."""
        if parent >= PAST_INO_MIN:
            return self.past.lookup(parent, name)
        return self.barrier.entry if name == self.barrier.name else self.past.top()

    @override
    @answered
    def mknod(
        self, parent: Ino, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Create a file without opening it."""
        return self._named(self._namespace.make_node(parent, name, mode, caller(ctx), rdev))

    @override
    @answered
    def mkdir(
        self, parent: Ino, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Create a directory."""
        return self._named(self._namespace.make_directory(parent, name, mode, caller(ctx)))

    @override
    @answered
    def symlink(
        self, parent: Ino, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Create a symbolic link."""
        return self._named(self._namespace.make_symlink(parent, name, target, caller(ctx)))

    @override
    @answered
    def link(
        self, ino: Ino, parent: Ino, name: bytes, _ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Create a hard link to an inode, which may have no name yet (O_TMPFILE)."""
        return self._entry(self.link_now(ino, parent, name))

    def link_now(self, ino: Ino, parent: Ino, name: bytes) -> Attributes:
        """Create a hard link to an inode, and count its lookup."""
        record = self._fs.open_files.find(ino)
        is_linkable = record is not None and record.is_linkable
        linked = self._namespace.link(ino, parent, name, is_linkable=is_linkable)
        self._count(ino)
        return linked

    @override
    @answered
    def unlink(self, parent: Ino, name: bytes, _ctx: pyfuse3.RequestContext) -> None:
        """Remove a name of an inode that is not a directory."""
        self._namespace.unlink(parent, name)

    @override
    @answered
    def rmdir(self, parent: Ino, name: bytes, _ctx: pyfuse3.RequestContext) -> None:
        """Remove an empty directory."""
        self._require_not_past(parent, name)
        self._namespace.remove_directory(parent, name)

    @override
    @answered
    def rename(
        self,
        parent: Ino,
        name: bytes,
        new_parent: Ino,
        new_name: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        """Rename or move a directory entry.

        A rename must not replace the directory of points in time: the kernel would treat the
        directory as deleted, and find nothing in it. As in mkdir(2), the error is EEXIST.
        """
        self._require_not_past(parent, name)
        if self._is_past(new_parent, new_name):
            raise pyfuse3.FUSEError(errno.EROFS if flags & RENAME_EXCHANGE else errno.EEXIST)
        self._namespace.rename(parent, name, new_parent, new_name, flags, caller=caller(ctx))

    @override
    @answered
    def readlink(self, ino: Ino, _ctx: pyfuse3.RequestContext) -> Awaitable[bytes]:
        """Reply with the target of a past symbolic link."""
        return self.past.for_caller().readlink(ino)

    # --- requests for attributes ---------------------------------------------------------------

    @override
    @answered
    def getattr(
        self, ino: Ino, _ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes | Awaitable[pyfuse3.EntryAttributes]:
        """Reply with the attributes of a past inode or of the barrier."""
        return self.barrier.entry if ino == BARRIER_INO else self.past.getattr(ino)

    @override
    @answered
    async def setattr(
        self,
        ino: Ino,
        wanted: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        _fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Change the size of a file, and other attributes."""
        request = SetAttributes(
            mode=wanted.st_mode if fields.update_mode else None,
            uid=wanted.st_uid if fields.update_uid else None,
            gid=wanted.st_gid if fields.update_gid else None,
            size_bytes=wanted.st_size if fields.update_size else None,
            atime_ns=wanted.st_atime_ns if fields.update_atime else None,
            mtime_ns=wanted.st_mtime_ns if fields.update_mtime else None,
            ctime_ns=wanted.st_ctime_ns if fields.update_ctime else None,
        )
        asking.set(ctx.uid)
        sets_times = not self.enable_writeback_cache
        changed = await self._fs.setattr(ino, request, caller(ctx), sets_times=sets_times)
        return self._entry(changed)

    @override
    @answered
    def getxattr(
        self, ino: Ino, name: bytes, _ctx: pyfuse3.RequestContext
    ) -> bytes | Awaitable[bytes]:
        """Reply with the value of an extended attribute."""
        is_without = name == CAPABILITY and self._fs.xattrs.lacks_capability(ino)
        if is_without or ino == BARRIER_INO:
            raise pyfuse3.FUSEError(_NO_ATTRIBUTE)
        if ino >= PAST_INO_MIN:
            return self.past.for_caller().getxattr(ino, name)
        if name == STATE:
            return self._fs.state_of(ino)
        return self._fs.xattrs.get(ino, name)

    @override
    @answered
    def listxattr(
        self, ino: Ino, ctx: pyfuse3.RequestContext
    ) -> list[bytes] | Awaitable[list[bytes]]:
        """Reply with the names of an inode's extended attributes."""
        if ino >= PAST_INO_MIN:
            return self.past.for_caller().listxattr(ino, caller(ctx))
        return self._fs.xattrs.names(ino, caller(ctx))

    @override
    @answered
    def removexattr(self, ino: Ino, name: bytes, _ctx: pyfuse3.RequestContext) -> None:
        """Remove an extended attribute."""
        self._fs.xattrs.remove(ino, name)

    # --- requests for file content -------------------------------------------------------------

    @override
    @answered
    def create(
        self, parent: Ino, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        """Create a regular file and open it; with O_TMPFILE, the file has no name."""
        if not flags & _IS_NAMELESS:
            created = self.create_now(parent, name, mode, caller(ctx))
            return pyfuse3.FileInfo(created.ino), self._entry(created)
        created = self._namespace.make_nameless(parent, mode, caller(ctx))
        entry = self._named(created)
        self._fs.open_files.opened(created.ino, writes=True, is_linkable=True)
        return pyfuse3.FileInfo(created.ino), entry

    def create_now(self, parent: Ino, name: bytes, mode: int, who: Caller) -> Attributes:
        """Create a regular file with a name, count its lookup, and open it."""
        created = self._namespace.make_node(parent, name, mode & 0o7777 | stat.S_IFREG, who)
        self._count(created.ino)
        self._fs.open_files.opened(created.ino, writes=True, is_linkable=False)
        return created

    @override
    @answered
    def open(self, ino: Ino, flags: int, _ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """Open a past file or the barrier."""
        if ino != BARRIER_INO:
            return self.past.open(ino, flags)
        self.barrier.opened()
        return pyfuse3.FileInfo(ino)

    @override
    @answered
    def read(self, ino: Ino, offset: int, length: int) -> bytes | Awaitable[bytes]:
        """Reply with bytes of a file."""
        if ino >= PAST_INO_MIN:
            return self.past.for_caller().read(ino, offset, length)
        found = self._data.try_read(ino, offset, length)
        if isinstance(found, bytes):
            return found
        asking.set(fuse_intercept.caller())
        return self._data.read_after(found, ino, offset, length)

    @override
    @answered
    def write(self, ino: Ino, offset: int, data: bytes) -> int | Awaitable[int]:
        """Write all given bytes to a file.

        With a write-back cache the kernel keeps mtime and ctime of regular files. It sends them
        before fsync and close, even for direct and mapped writes. If this handler set the times, a
        later write-back would overwrite a time that utimensat(2) has set.
        """
        if not data:
            return 0
        sets_times = not self.enable_writeback_cache
        missing = self._data.try_write(ino, offset, data, sets_times=sets_times)
        if missing is None:
            return len(data)
        asking.set(fuse_intercept.caller())
        return self.barrier.write(
            self._data.write_after(missing, ino, offset, data, sets_times=sets_times)
        )

    @override
    @answered
    def release(self, ino: Ino) -> None:
        """Note the close of the barrier. A past file needs nothing, because it has no open state."""
        if ino == BARRIER_INO:
            self.barrier.released()

    @override
    @answered
    async def fsync(self, ino: Ino, datasync: bool) -> None:
        """Make the content, name and attributes of a file durable; with *datasync*, not its times.

        The kernel requests st_blocks again after close(2), but not after fsync(2). So the
        attributes of the inode are invalidated if st_blocks has changed.
        """
        if ino >= PAST_INO_MIN:
            return
        await self._fs.sync_file(ino, data_only=datasync)
        record, blocks = self._fs.open_files.find(ino), self._fs.getattr(ino).mapped_blocks
        if record is not None and record.shows_blocks(blocks):
            invalidate_inode(ino, attr_only=True)

    # --- requests for directories --------------------------------------------------------------

    @override
    @answered
    def opendir(self, ino: Ino, _ctx: pyfuse3.RequestContext) -> int:
        """Open a directory."""
        if ino < PAST_INO_MIN:
            self._fs.open_directory(ino)
        return ino

    @override
    @answered
    def readdir(self, ino: Ino, start: int, token: pyfuse3.ReaddirToken) -> Awaitable[None]:
        """List a past directory with attributes, starting at a position, until the reply is full."""
        return self.past.readdir(ino, start, token)

    @override
    @answered
    def releasedir(self, _ino: Ino) -> None:
        """Do nothing, because an open directory has no state."""

    @override
    @answered
    async def fsyncdir(self, ino: Ino, datasync: bool) -> None:
        """Make the names of a directory durable."""
        if ino < PAST_INO_MIN:
            await self._fs.sync_file(ino, data_only=datasync)

    # --- statfs --------------------------------------------------------------------------------

    @override
    @answered
    def statfs(self, _ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Reply with the size and the free space of the filesystem."""
        return self.converter.statfs(self._fs.statfs())
