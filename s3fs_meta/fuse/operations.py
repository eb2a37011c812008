"""The handlers of FUSE requests: convert, delegate, answer.

Owns: the table of operations, which replies count as look-ups. Does not know: rows, blocks.
What pyfuse3 cannot pass on is in ``raw_operations``. Left out on purpose:

- ``flush``: the kernel remembers ENOSYS, which saves a request for every close(2). It still writes
  back and reports errors of that, and handles file locks itself.
- ``access``: the kernel checks permissions (default_permissions).
- ``poll``: after ENOSYS the kernel answers it itself: always ready, as for any regular file.

``fsync`` and ``fsyncdir`` must exist: after ENOSYS the kernel would always report success.
"""

import os
import stat
from collections.abc import Awaitable, Sequence
from typing import Final

from typing_extensions import override

from s3fs_meta.errors import NoAttributeError, NoInodeError, S3fsError
from s3fs_meta.fs.attributes import SetAttributes
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.waiting_room import caller as asking
from s3fs_meta.fs.xattrs import CAPABILITY, STATE
from s3fs_meta.fuse import errnos
from s3fs_meta.fuse.barrier import BARRIER_INO, Barrier
from s3fs_meta.fuse.convert import Converter, caller
from s3fs_meta.fuse.error_boundary import answered, broken, failed
from s3fs_meta.fuse.extension import fuse_intercept, pyfuse3
from s3fs_meta.fuse.held_back import hold_back
from s3fs_meta.fuse.kernel_cache import invalidate_inode
from s3fs_meta.fuse.write_back import WriteBack
from s3fs_meta.limits import READDIR_ROWS_MAX, READDIR_ROWS_MIN
from s3fs_meta.model import ROOT_INO, Attributes, Cookie, Ino

_HANDLERS: Final = (
    "create",
    "forget",
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
    "setxattr",
    "statfs",
    "symlink",
    "unlink",
    "write",
)

# In ``raw_operations``; the last one is part of some writes.
RAW_HANDLERS: Final = (
    "lseek",
    "fallocate",
    "copy_file_range",
    "ioctl",
    "statx",
    "clear_privileges",
)

# Directory positions of the two names without a row; cookies of rows are larger.
_AT_DOT: Final = 1
_AT_DOT_DOT: Final = 2

# In the flags of open(2): O_TMPFILE is more than one bit.
_IS_NAMELESS: Final = os.O_TMPFILE & ~os.O_DIRECTORY

_NO_ATTRIBUTE: Final = errnos.ERRNOS[NoAttributeError]


class Operations(pyfuse3.Operations):
    """One mount's handlers. A file handle is the number of its inode."""

    supports_dot_lookup = True
    enable_acl = True

    def __init__(
        self, filesystem: Filesystem, converter: Converter, *, writeback: bool = True
    ) -> None:
        """Make the handlers of one mount.

        Args:
            filesystem: carries out the requests.
            converter: converts results to pyfuse3's types.
            writeback: the kernel caches writes, and keeps size and times of regular files itself;
                false on a follower, whose files another host changes.
        """
        self.enable_writeback_cache = writeback
        self.filesystem = self._fs = filesystem
        self.converter = converter
        self._entry = converter.entry
        self._count = filesystem.lookups.add
        self._namespace = filesystem.namespace
        self._data = filesystem.data
        self.status = filesystem.status
        self.requests = dict.fromkeys((*_HANDLERS, *RAW_HANDLERS), 0)
        filesystem.freeze.when_changed(self._hold_back)
        self._readdir_rows = READDIR_ROWS_MIN  # entries that fitted into the last full reply
        self._barrier = Barrier()
        self.write_back = WriteBack(
            self._barrier,
            filesystem.open_files,
            self.requests,
            is_still=lambda: filesystem.freeze.is_still,
        )

    def _named(self, attributes: Attributes) -> pyfuse3.EntryAttributes:
        """Return the reply that names an inode, and count it as a look-up."""
        entry = self._entry(attributes)
        self._count(attributes.ino)
        return entry

    # --- names ---------------------------------------------------------------------------------

    @override
    @answered
    def lookup(
        self, parent: Ino, name: bytes, _ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Answer the inode of a name; the kernel also caches the answer that there is none."""
        found = self._fs.lookup(parent, name)
        if found is None:
            if name == self._barrier.name and parent == ROOT_INO:
                return self._barrier.entry
            return self.converter.no_entry
        entry = self._entry(found)
        self._count(found.ino)
        return entry

    @override
    @answered
    def mknod(
        self, parent: Ino, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Make a file that is not opened."""
        return self._named(self._namespace.make_node(parent, name, mode, caller(ctx), rdev))

    @override
    @answered
    def mkdir(
        self, parent: Ino, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Make a directory."""
        return self._named(self._namespace.make_directory(parent, name, mode, caller(ctx)))

    @override
    @answered
    def symlink(
        self, parent: Ino, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Make a symbolic link."""
        return self._named(self._namespace.make_symlink(parent, name, target, caller(ctx)))

    @override
    @answered
    def link(
        self, ino: Ino, parent: Ino, name: bytes, _ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Give an inode a further name, or its first."""
        record = self._fs.open_files.find(ino)
        is_linkable = record is not None and record.is_linkable
        return self._named(self._namespace.link(ino, parent, name, is_linkable=is_linkable))

    @override
    @answered
    def unlink(self, parent: Ino, name: bytes, _ctx: pyfuse3.RequestContext) -> None:
        """Remove a name of an inode that is not a directory."""
        self._namespace.unlink(parent, name)

    @override
    @answered
    def rmdir(self, parent: Ino, name: bytes, _ctx: pyfuse3.RequestContext) -> None:
        """Remove an empty directory."""
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
        """Move a name."""
        self._namespace.rename(parent, name, new_parent, new_name, flags, caller=caller(ctx))

    @override
    @answered
    def readlink(self, ino: Ino, _ctx: pyfuse3.RequestContext) -> bytes:
        """Answer the target of a symbolic link."""
        return self._fs.readlink(ino)

    # --- attributes ----------------------------------------------------------------------------

    @override
    @answered
    def getattr(self, ino: Ino, _ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """Answer the attributes of an inode."""
        if ino == BARRIER_INO:
            return self._barrier.entry
        return self._entry(self._fs.getattr(ino))

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
        """Change attributes."""
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
        return self._entry(await self._fs.setattr(ino, request, caller(ctx)))

    @override
    @answered
    def getxattr(
        self, ino: Ino, name: bytes, _ctx: pyfuse3.RequestContext
    ) -> bytes | Awaitable[bytes]:
        """Answer the value of one extended attribute."""
        is_without = name == CAPABILITY and self._fs.xattrs.lacks_capability(ino)
        if is_without or ino == BARRIER_INO:
            raise pyfuse3.FUSEError(_NO_ATTRIBUTE)
        if name == STATE:
            return self._fs.state_of(ino)
        return self._fs.xattrs.get(ino, name)

    @override
    @answered
    def setxattr(self, ino: Ino, name: bytes, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Set one extended attribute.

        pyfuse3 implements XATTR_CREATE and XATTR_REPLACE by calling getxattr first; no other request
        is handled in between, because neither handler waits.
        """
        self._fs.xattrs.set(ino, name, value, caller(ctx))

    @override
    @answered
    def listxattr(self, ino: Ino, ctx: pyfuse3.RequestContext) -> list[bytes]:
        """Answer the names of an inode's extended attributes."""
        return self._fs.xattrs.names(ino, caller(ctx))

    @override
    @answered
    def removexattr(self, ino: Ino, name: bytes, _ctx: pyfuse3.RequestContext) -> None:
        """Remove one extended attribute."""
        self._fs.xattrs.remove(ino, name)

    # --- content -------------------------------------------------------------------------------

    @override
    @answered
    def create(
        self, parent: Ino, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        """Make a regular file and open it, also for O_TMPFILE."""
        if flags & _IS_NAMELESS:
            created = self._namespace.make_nameless(parent, mode, caller(ctx))
        else:
            created = self._namespace.make_node(
                parent, name, mode & 0o7777 | stat.S_IFREG, caller(ctx)
            )
        entry = self._entry(created)
        self._count(created.ino)
        is_nameless = bool(flags & _IS_NAMELESS)
        self._fs.open_files.opened(created.ino, writes=True, is_linkable=is_nameless)
        return pyfuse3.FileInfo(created.ino), entry

    @override
    @answered
    async def open(self, ino: Ino, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """Open a file. libfuse makes the kernel leave O_TRUNC to us (FUSE_ATOMIC_O_TRUNC).

        The kernel refuses to open for writing on a read-only mount, but a follower is mounted
        writable for the kernel, because it may be promoted.
        """
        if ino == BARRIER_INO:
            self._barrier.opened()
            return pyfuse3.FileInfo(ino)
        self._fs.open_files.expect_reports(True)
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        if writes and self.status.read_only:
            self.status.require_writable()
        asking.set(ctx.uid)
        changes_mode = await self._fs.open(
            ino,
            caller(ctx),
            truncates=bool(flags & os.O_TRUNC),
            writes=writes,
            appends=bool(flags & os.O_APPEND),
        )
        if changes_mode:  # the kernel keeps the mode: after O_TRUNC it requests only the size
            invalidate_inode(ino, attr_only=True)
        if writes and self._fs.freeze.is_held:
            self._have_asked_again(ino)
        return pyfuse3.FileInfo(ino)

    @override
    @answered
    def read(self, ino: Ino, offset: int, length: int) -> bytes | Awaitable[bytes]:
        """Answer bytes of a file."""
        found = self._data.try_read(ino, offset, length)
        if isinstance(found, bytes):
            return found
        asking.set(fuse_intercept.caller())
        return self._data.read_after(found, ino, offset, length)

    @override
    @answered
    def write(self, ino: Ino, offset: int, data: bytes) -> int | Awaitable[int]:
        """Write bytes of a file, all of them.

        With a writeback cache the kernel keeps mtime and ctime of regular files and sends them
        before fsync and close, also for direct and mapped writes. If we set the time here, a late
        write-back would overwrite a time that utimensat(2) has set.
        """
        if not data:
            return 0
        sets_times = not self.enable_writeback_cache
        missing = self._data.try_write(ino, offset, data, sets_times=sets_times)
        if missing is None:
            return len(data)
        asking.set(fuse_intercept.caller())
        return self._barrier.write(
            self._data.write_after(missing, ino, offset, data, sets_times=sets_times)
        )

    @override
    @answered
    def release(self, ino: Ino) -> None:
        """Close a file: the last descriptor of one open(2) is closed."""
        if ino == BARRIER_INO:
            self._barrier.released()
        else:
            self._fs.release(ino)

    @override
    @answered
    async def fsync(self, ino: Ino, datasync: bool) -> None:
        """Make a file durable, its attributes and its name too; with *datasync* not its times.

        The kernel requests the number of blocks again after close(2), but not after fsync(2).
        """
        await self._fs.sync_file(ino, data_only=datasync)
        record, blocks = self._fs.open_files.find(ino), self._fs.getattr(ino).mapped_blocks
        if record is not None and record.shows_blocks(blocks):
            invalidate_inode(ino, attr_only=True)

    # --- directories ---------------------------------------------------------------------------

    @override
    @answered
    def opendir(self, ino: Ino, _ctx: pyfuse3.RequestContext) -> int:
        """Open a directory."""
        self._fs.open_directory(ino)
        return ino

    @override
    @answered
    def readdir(self, ino: Ino, start: int, token: pyfuse3.ReaddirToken) -> None:
        """List a directory from a position on, with attributes, until the reply is full.

        Every name that fits in counts as a look-up, except "." and "..".
        """
        if start == 0 and not self.requests["opendir"]:
            self._fs.open_directory(ino)  # the kernel did not open it: NO_OPENDIR
        if start < _AT_DOT_DOT and not self._list_dots(ino, start, token):
            return
        after, limit, listed = Cookie(max(start, _AT_DOT_DOT)), self._readdir_rows, 0
        while True:  # bounded by the size of the reply
            rows = self._fs.read_directory(ino, after, limit)
            for name, cookie, attributes in rows:
                if not pyfuse3.readdir_reply(token, name, self._entry(attributes), cookie):
                    self._readdir_rows = min(max(listed + 1, READDIR_ROWS_MIN), READDIR_ROWS_MAX)
                    return
                self._count(attributes.ino)
                after = cookie
                listed += 1
            if len(rows) < limit:
                return
            limit = READDIR_ROWS_MIN

    def _list_dots(self, ino: Ino, start: int, token: pyfuse3.ReaddirToken) -> bool:
        """List "." and ".."; return whether there is room for more."""
        here = self._fs.getattr(ino)
        if start < _AT_DOT and not pyfuse3.readdir_reply(token, b".", self._entry(here), _AT_DOT):
            return False
        try:
            above = self._fs.getattr(here.parent)
        except NoInodeError:
            above = here  # a removed directory that is still open: its parent may be gone
        return pyfuse3.readdir_reply(token, b"..", self._entry(above), _AT_DOT_DOT)

    @override
    @answered
    def releasedir(self, _ino: Ino) -> None:
        """Close a directory, which needs no work: an open directory has no state."""

    @override
    @answered
    def fsyncdir(self, ino: Ino, datasync: bool) -> Awaitable[None]:
        """Make the names of a directory durable."""
        return self._fs.sync_file(ino, data_only=datasync)

    # --- the filesystem as a whole -------------------------------------------------------------

    @override
    @answered
    def statfs(self, _ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Answer sizes and counts."""
        return self.converter.statfs(self._fs.statfs())

    @override
    async def forget(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Decrease lookup counts. The kernel expects no answer: errors are only logged."""
        self.requests["forget"] += 1
        forget = self._fs.forget
        for ino, times in pairs:
            if ino == BARRIER_INO:
                continue
            try:
                forget(Ino(ino), times)
            except S3fsError as exc:
                failed(self.status, "forget", (ino, times), exc)
            except Exception as exc:  # noqa: BLE001 - the boundary, as in ``answer``
                broken(self.status, "forget", (ino, times), exc)

    def _hold_back(self, is_held: bool) -> None:
        """Make requests that change something wait while a tree is frozen."""
        hold_back(self, self._fs.freeze, is_held=is_held)
        if is_held:
            for ino in self._fs.open_files.written():
                self._have_asked_again(ino)

    def _have_asked_again(self, ino: Ino) -> None:
        """Make the kernel ask for ``security.capability`` before the next write(2) to an inode.

        The kernel caches that there is none until it requests the attributes, here invalidated.
        """
        invalidate_inode(ino, attr_only=True)
