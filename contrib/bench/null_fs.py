"""The do-nothing filesystem: a pyfuse3 filesystem with names and attributes in dictionaries.

The handlers do almost nothing: they return one stored `EntryAttributes` for each inode, count no
lookups and check no permissions. So no filesystem whose requests pyfuse3 handles can be faster: the
measured time is that of the kernel, libfuse, pyfuse3, trio and CPython.

File contents are in memory. With --data-dir they are in plain files that are accessed with pread
and pwrite; this is the upper limit for sequential reads and writes. All names are lost at unmount.

    python -m contrib.bench.null_fs MOUNTPOINT [--data-dir DIR] [--allow-other]
"""

import argparse
import contextlib
import errno
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyfuse3
import trio
from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FileNameT,
    FlagT,
    FUSEError,
    InodeT,
    ModeT,
    ReaddirToken,
    RequestContext,
    SetattrFields,
    StatvfsData,
)
from typing_extensions import override

from s3fs_meta.fuse import request_loop

TIMEOUT_S: Final = 3600.0  # How long the kernel may cache entries; the same as in s3fs-meta.
NAME_BYTES_MAX: Final = 255
MEMORY_FILE_BYTES_MAX: Final = 1 << 28  # File sizes are limited, because content is kept in memory.
BLOCKS_FREE: Final = 1 << 40
INODES_FREE: Final = 1 << 40

Directory = dict[bytes, EntryAttributes]


class MemoryData:
    """File contents as byte arrays in memory."""

    def __init__(self) -> None:
        self._contents: dict[int, bytearray] = {}

    def open(self, ino: int) -> None:
        """Prepare *ino* for reading and writing."""
        self._contents.setdefault(ino, bytearray())

    def close(self, ino: int) -> None:
        """Undo one call of `open` for *ino*."""

    def read(self, ino: int, offset: int, length: int) -> bytes:
        """Return the bytes at *offset*, fewer than *length* at the end of the content."""
        return bytes(self._contents[ino][offset : offset + length])

    def write(self, ino: int, offset: int, data: bytes) -> None:
        """Store *data*; a gap between the end of the content and *offset* is filled with zeros."""
        if offset + len(data) > MEMORY_FILE_BYTES_MAX:
            raise FUSEError(errno.EFBIG)
        content = self._contents[ino]
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data

    def truncate(self, ino: int, length: int) -> None:
        """Drop content after *length* bytes; shorter content stays unchanged."""
        content = self._contents.get(ino)
        if content is not None:
            del content[length:]

    def sync(self, ino: int) -> None:
        """Do nothing, because the content is in memory."""

    def remove(self, ino: int) -> None:
        """Remove the content of *ino*."""
        self._contents.pop(ino, None)


class FileData(MemoryData):
    """File contents in plain files, one file per inode."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root
        # The file descriptor and the open count of each inode.
        self._open: dict[int, tuple[int, int]] = {}

    def _path(self, ino: int) -> Path:
        return self._root / str(ino)

    @override
    def open(self, ino: int) -> None:
        descriptor, count = self._open.get(ino, (-1, 0))
        if not count:
            descriptor = os.open(self._path(ino), os.O_RDWR | os.O_CREAT, 0o600)
        self._open[ino] = (descriptor, count + 1)

    @override
    def close(self, ino: int) -> None:
        descriptor, count = self._open.pop(ino)
        if count > 1:
            self._open[ino] = (descriptor, count - 1)
        else:
            os.close(descriptor)

    @override
    def read(self, ino: int, offset: int, length: int) -> bytes:
        return os.pread(self._open[ino][0], length, offset)

    @override
    def write(self, ino: int, offset: int, data: bytes) -> None:
        try:
            os.pwrite(self._open[ino][0], data, offset)
        except OSError as exc:
            raise FUSEError(exc.errno or errno.EIO) from exc

    @override
    def truncate(self, ino: int, length: int) -> None:
        try:
            os.truncate(self._path(ino), length)
        except FileNotFoundError:
            pass  # A file that was never opened has no content.
        except OSError as exc:
            raise FUSEError(exc.errno or errno.EIO) from exc

    @override
    def sync(self, ino: int) -> None:
        os.fsync(self._open[ino][0])

    @override
    def remove(self, ino: int) -> None:
        self._path(ino).unlink(missing_ok=True)


class NullFs(pyfuse3.Operations):
    """The request handlers. pyfuse3 answers flush with ENOSYS, so the kernel sends flush once."""

    enable_writeback_cache = True
    supports_dot_lookup = False

    def __init__(self, data: MemoryData) -> None:
        super().__init__()
        self._data = data
        self._next_ino = int(pyfuse3.ROOT_INODE)
        self._inodes: dict[int, EntryAttributes] = {}
        self._directories: dict[int, Directory] = {}
        self._parents: dict[int, int] = {}
        self._targets: dict[int, bytes] = {}
        self._listings: dict[int, list[tuple[bytes, EntryAttributes]]] = {}
        self._next_listing = 1
        self._nothing = EntryAttributes()  # Inode number 0 means a negative dentry.
        self._nothing.entry_timeout = TIMEOUT_S
        root = self._new(stat.S_IFDIR | 0o755, os.getuid(), os.getgid())
        self._add_directory(root, int(root.st_ino))

    # --- requests that change names ------------------------------------------------------------

    def _new(self, mode: int, uid: int, gid: int) -> EntryAttributes:
        """Make an inode without a name; return its attributes."""
        entry = EntryAttributes()
        ino = self._next_ino
        self._next_ino = ino + 1
        entry.st_ino = ino
        entry.entry_timeout = TIMEOUT_S
        entry.attr_timeout = TIMEOUT_S
        entry.st_mode = mode
        entry.st_uid = uid
        entry.st_gid = gid
        now_ns = time.time_ns()
        entry.st_atime_ns = now_ns
        entry.st_mtime_ns = now_ns
        entry.st_ctime_ns = now_ns
        self._inodes[ino] = entry
        return entry

    def _add_directory(self, entry: EntryAttributes, parent: int) -> None:
        entry.st_nlink = 2
        self._directories[entry.st_ino] = {}
        self._parents[entry.st_ino] = parent

    def _name(self, parent: int, name: bytes, entry: EntryAttributes) -> None:
        if len(name) > NAME_BYTES_MAX:
            raise FUSEError(errno.ENAMETOOLONG)
        self._directories[parent][name] = entry

    def _drop_link(self, entry: EntryAttributes) -> None:
        entry.st_nlink -= 1
        entry.st_ctime_ns = time.time_ns()

    def _find(self, parent: int, name: bytes) -> EntryAttributes:
        entry = self._directories[parent].get(name)
        if entry is None:
            raise FUSEError(errno.ENOENT)
        return entry

    @override
    async def create(
        self,
        parent_inode: InodeT,
        name: FileNameT,
        mode: ModeT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> tuple[FileInfo, EntryAttributes]:
        entry = self._new(mode, ctx.uid, ctx.gid)
        self._name(parent_inode, name, entry)
        self._data.open(entry.st_ino)
        return FileInfo(fh=entry.st_ino, keep_cache=True), entry

    @override
    async def mknod(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        entry = self._new(mode, ctx.uid, ctx.gid)
        entry.st_rdev = rdev
        self._name(parent_inode, name, entry)
        return entry

    @override
    async def mkdir(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, ctx: RequestContext
    ) -> EntryAttributes:
        entry = self._new(mode, ctx.uid, ctx.gid)
        self._name(parent_inode, name, entry)
        self._add_directory(entry, parent_inode)
        self._inodes[parent_inode].st_nlink += 1
        return entry

    @override
    async def symlink(
        self, parent_inode: InodeT, name: FileNameT, target: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        entry = self._new(stat.S_IFLNK | 0o777, ctx.uid, ctx.gid)
        entry.st_size = len(target)
        self._name(parent_inode, name, entry)
        self._targets[entry.st_ino] = target
        return entry

    @override
    async def link(
        self, inode: InodeT, new_parent_inode: InodeT, new_name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        entry = self._inodes[inode]
        self._name(new_parent_inode, new_name, entry)
        entry.st_nlink += 1
        entry.st_ctime_ns = time.time_ns()
        return entry

    @override
    async def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        entry = self._directories[parent_inode].pop(name, None)
        if entry is None:
            raise FUSEError(errno.ENOENT)
        self._drop_link(entry)

    @override
    async def rmdir(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        entry = self._find(parent_inode, name)
        self._require_empty(entry)
        del self._directories[parent_inode][name]
        self._inodes[parent_inode].st_nlink -= 1
        entry.st_nlink = 0

    def _require_empty(self, entry: EntryAttributes) -> None:
        if self._directories[entry.st_ino]:
            raise FUSEError(errno.ENOTEMPTY)

    @override
    async def rename(
        self,
        parent_inode_old: InodeT,
        name_old: FileNameT,
        parent_inode_new: InodeT,
        name_new: FileNameT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> None:
        entry = self._find(parent_inode_old, name_old)
        replaced = self._directories[parent_inode_new].get(name_new)
        if flags & pyfuse3.RENAME_EXCHANGE:
            if replaced is None:
                raise FUSEError(errno.ENOENT)
            self._directories[parent_inode_old][name_old] = replaced
            self._directories[parent_inode_new][name_new] = entry
            return
        if replaced is not None:
            if flags & pyfuse3.RENAME_NOREPLACE:
                raise FUSEError(errno.EEXIST)
            if replaced.st_ino in self._directories:
                self._require_empty(replaced)
            self._drop_link(replaced)
        self._name(parent_inode_new, name_new, entry)
        del self._directories[parent_inode_old][name_old]

    @override
    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        for ino, _ in inode_list:
            entry = self._inodes.get(ino)
            if entry is None or entry.st_nlink:
                continue
            self._data.remove(ino)
            del self._inodes[ino]
            self._directories.pop(ino, None)
            self._targets.pop(ino, None)

    # --- requests that read metadata -----------------------------------------------------------

    @override
    async def lookup(
        self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        return self._directories[parent_inode].get(name, self._nothing)

    @override
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        return self._inodes[inode]

    @override
    async def setattr(
        self,
        inode: InodeT,
        attr: EntryAttributes,
        fields: SetattrFields,
        fh: FileHandleT | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        entry = self._inodes[inode]
        if fields.update_size:
            self._data.truncate(inode, attr.st_size)
            entry.st_size = attr.st_size
        if fields.update_mode:
            entry.st_mode = attr.st_mode
        if fields.update_uid:
            entry.st_uid = attr.st_uid
        if fields.update_gid:
            entry.st_gid = attr.st_gid
        if fields.update_atime:
            entry.st_atime_ns = attr.st_atime_ns
        if fields.update_mtime:
            entry.st_mtime_ns = attr.st_mtime_ns
        entry.st_ctime_ns = attr.st_ctime_ns if fields.update_ctime else time.time_ns()
        return entry

    @override
    async def readlink(self, inode: InodeT, ctx: RequestContext) -> FileNameT:
        return self._targets[inode]

    @override
    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        number = self._next_listing
        self._next_listing = number + 1
        parent = self._inodes.get(self._parents[inode], self._inodes[inode])
        self._listings[number] = [
            (b".", self._inodes[inode]),
            (b"..", parent),
            *self._directories[inode].items(),
        ]
        return number

    @override
    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        listing = self._listings[fh]
        for position in range(start_id, len(listing)):
            name, entry = listing[position]
            if not pyfuse3.readdir_reply(token, name, entry, position + 1):
                return

    @override
    async def releasedir(self, fh: FileHandleT) -> None:
        del self._listings[fh]

    @override
    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        answer = StatvfsData()
        answer.f_bsize = answer.f_frsize = 4096
        answer.f_blocks = answer.f_bfree = answer.f_bavail = BLOCKS_FREE
        answer.f_files = answer.f_ffree = answer.f_favail = INODES_FREE
        answer.f_namemax = NAME_BYTES_MAX
        return answer

    @override
    async def getxattr(self, inode: InodeT, name: bytes, ctx: RequestContext) -> bytes:
        """Reply that no extended attribute is set.

        The kernel requests security.capability before every write, as it does with s3fs-meta. A
        reply ENOSYS would stop these requests, so that the results would not be comparable.
        """
        raise FUSEError(pyfuse3.ENOATTR)

    # --- requests for file content -------------------------------------------------------------

    @override
    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        self._data.open(inode)
        if flags & os.O_TRUNC:
            self._data.truncate(inode, 0)
            self._inodes[inode].st_size = 0
        return FileInfo(fh=inode, keep_cache=True)

    @override
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        return self._data.read(fh, off, size)

    @override
    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        self._data.write(fh, off, buf)
        entry = self._inodes[fh]
        entry.st_size = max(entry.st_size, off + len(buf))
        return len(buf)

    @override
    async def release(self, fh: FileHandleT) -> None:
        self._data.close(fh)

    @override
    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        self._data.sync(fh)

    @override
    async def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:
        pass


def main() -> None:
    """Mount, and serve in the foreground until the filesystem is unmounted."""
    parser = argparse.ArgumentParser(description="A pyfuse3 filesystem that does nothing.")
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("--data-dir", type=Path, help="directory for file contents")
    parser.add_argument("--allow-other", action="store_true", help="allow access by other users")
    parser.add_argument("--scheduled", action="store_true", help="use pyfuse3's request loop")
    arguments = parser.parse_args()

    data = FileData(arguments.data_dir) if arguments.data_dir else MemoryData()
    options = {"default_permissions", "fsname=null_fs", "subtype=null_fs"}
    if arguments.allow_other:
        options |= {"allow_other", "suid", "dev"}
    pyfuse3.init(NullFs(data), str(arguments.mountpoint), options)
    try:
        with contextlib.nullcontext() if arguments.scheduled else request_loop.direct():
            trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main()
