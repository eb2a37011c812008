"""Conversion of attributes and sizes to the types of pyfuse3.

Owns: the values that stat(2) and statfs(2) report.
Performance: ``Converter.entry`` runs for every lookup, getattr and directory entry. So it sets the
attributes one by one, without a loop.
"""

import stat
import struct
from dataclasses import dataclass
from typing import Final

from s3fs_meta.fs.filesystem import SpaceFigures
from s3fs_meta.fuse.extension import pyfuse3
from s3fs_meta.limits import ENTRY_TIMEOUT_S, NAME_BYTES_MAX, TIME_NS_MIN
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.tables.inodes import SIZE_BITS
from s3fs_meta.model import ROOT_INO, Attributes, Caller, Ino

SECTOR_BYTES: Final = 512  # unit of st_blocks in stat(2): 512 bytes
ALLOCATION_BYTES: Final = 4096  # page size; st_blocks counts a partial last page as a full page
# Value of st_blksize and f_bsize: less than a block, because stdio allocates buffers of this size.
# Recent kernels use st_blksize as the smallest unit when they write a part of a page.
IO_BYTES: Final = 4096

# The attributes of an inode (fuse_attr in linux/fuse.h).
_ATTRIBUTES: Final = struct.Struct("=QQQqqqIIIIIIIII4x")
# The period for which attributes are valid: seconds, nanoseconds (fuse_attr_out in linux/fuse.h).
_ATTRIBUTES_VALID: Final = struct.Struct("=QI4x")
# Inode, generation, and the periods for which name and attributes are valid (fuse_entry_out).
_ENTRY: Final = struct.Struct("=QQQQII")
# A listed entry after its attributes (fuse_dirent): inode, position, length of the name, type.
DIRENT: Final = struct.Struct("=QQII")
DIRENT_ALIGNMENT: Final = 8
# All fields of a listed entry (fuse_direntplus) except the name.
_DIRENT_PLUS: Final = "=QQQQIIQQQqqqIIIIIIIII4xQQII"
# The file handle and the flags of an open file (fuse_open_out).
_OPEN_OUT: Final = struct.Struct("=QI4x")
_KEEP_CACHE: Final = 1 << 1
_SECOND_NS: Final = 1_000_000_000
GENERATION_MAX: Final = 0xFFFF_FFFF  # exported file handles have 32 bits for the generation


class _DirentLayouts(dict[int, struct.Struct]):
    """The layout of a listed entry for each length of the name, including the padding."""

    def __missing__(self, length: int) -> struct.Struct:
        if length > NAME_BYTES_MAX:
            raise ValueError(length)  # only an unreadable row has a name of this length
        padding = -length % DIRENT_ALIGNMENT
        made = self[length] = struct.Struct(f"{_DIRENT_PLUS}{length}s{padding}x")
        return made


_dirent_layouts: Final = _DirentLayouts()


@dataclass(frozen=True, slots=True)
class Overrides:
    """The mount options that change attributes in replies, but not the stored attributes."""

    uid: int | None = None
    gid: int | None = None
    # Permission bits in replies become 0777 minus this umask; None leaves the bits unchanged.
    umask: int | None = None


class Converter:
    """Converts attributes and sizes to the types of pyfuse3 for one mount."""

    def __init__(
        self,
        block_bytes: int,
        *,
        overrides: Overrides | None = None,
        timeout_s: float = ENTRY_TIMEOUT_S,
        has_generations: bool = True,
    ) -> None:
        """Create the converter of one mount.

        Args:
            block_bytes: size of a block.
            overrides: attributes that the mount options replace.
            timeout_s: time for which the kernel may cache the replies.
            has_generations: True to compute generations of inodes from birth times. An NFS handle
                contains inode and generation. If the last changes of a host were lost, its newest
                inode numbers are reused for other files. Old handles must not open these files.
                False on a follower, because a writer with schema version 1 changes an inode's
                birth time together with its ctime.
        """
        self._block_bytes = block_bytes
        self._has_generations = has_generations
        self._timeout_most_s = timeout_s
        chosen = overrides or Overrides()
        self._overrides = None if chosen == Overrides() else chosen
        self._set_timeout(timeout_s)

    def let_remember(self, may: bool) -> None:
        """Set whether the kernel may cache the following replies."""
        self._set_timeout(self._timeout_most_s if may else 0.0)

    def _set_timeout(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        whole_s = int(timeout_s)
        self._valid_s, self._valid_ns = whole_s, int((timeout_s - whole_s) * _SECOND_NS)
        self._valid_out = _ATTRIBUTES_VALID.pack(self._valid_s, self._valid_ns)

    def entry(self, attributes: Attributes) -> pyfuse3.EntryAttributes:
        """Return an inode's attributes as a reply to the kernel."""
        (
            ino,
            mode,
            nlink,
            uid,
            gid,
            size_bytes,
            mapped_blocks,
            ctime_ns,
            mtime_ns,
            atime_ns,
            rdev,
            _parent,
            _flags,
            btime_ns,
        ) = attributes
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = ino
        entry.st_mode = mode
        entry.st_nlink = nlink
        entry.st_uid = uid
        entry.st_gid = gid
        entry.st_size = size_bytes
        entry.st_ctime_ns = ctime_ns
        entry.st_mtime_ns = mtime_ns
        entry.st_atime_ns = atime_ns
        if mapped_blocks:
            entry.st_blocks = sectors(size_bytes, mapped_blocks * self._block_bytes)
        if rdev:
            entry.st_rdev = rdev
        # The kernel requires generation 0 for the root.
        if self._has_generations and ino != ROOT_INO:
            entry.generation = btime_ns & GENERATION_MAX
        entry.entry_timeout = self._timeout_s
        entry.attr_timeout = self._timeout_s
        if self._overrides is not None:
            _override(entry, self._overrides)
        return entry

    def attributes_out(self, attributes: Attributes) -> bytes:
        """Return the reply with the attributes of an inode, in the layout of the kernel.

        The result is the reply that pyfuse3 makes from ``entry``, in a third of the time.
        """
        return self._valid_out + self._attributes(attributes)

    def entry_out(self, attributes: Attributes) -> bytes:
        """Return the reply to a lookup of an inode, in the layout of the kernel."""
        ino, valid_s, valid_ns = attributes.ino, self._valid_s, self._valid_ns
        has_generation = self._has_generations and ino != ROOT_INO
        generation = attributes.btime_ns & GENERATION_MAX if has_generation else 0
        head = _ENTRY.pack(ino, generation, valid_s, valid_s, valid_ns, valid_ns)
        return head + self._attributes(attributes)

    def dirent_out(self, name: bytes, attributes: Attributes, position: int) -> bytes:
        """Return an entry of a listing, in the layout of the kernel."""
        dirent = DIRENT.pack(attributes.ino, position, len(name), attributes.mode >> 12)
        padding = bytes(-len(name) % DIRENT_ALIGNMENT)
        return b"".join((self.entry_out(attributes), dirent, name, padding))

    def dirent_of_row(self, row: Row) -> bytes:
        """Return the result of ``dirent_out`` for an unchecked row, in a third of the time.

        Raises:
            TypeError, ValueError, struct.error: a value is not a number or is too large, or a mount
                option replaces attributes. Then use ``dentries.listed`` and ``dirent_out``.
        """
        if self._overrides is not None:
            raise ValueError("a mount option overrides attributes of the row")
        (
            name, position, ino, mode, nlink, uid, gid, size_bytes, mapped_blocks, ctime, mtime,
            atime, rdev, parent, flags, btime_ns,
        ) = row  # fmt: skip
        # The checks of ``inodes.attributes_of``; they raise TypeError if a value is text.
        times = ctime | mtime - TIME_NS_MIN | atime - TIME_NS_MIN | btime_ns - TIME_NS_MIN
        if parent | flags | times < 0 or (size_bytes | mapped_blocks) >> SIZE_BITS:
            raise ValueError(ino)
        atime_s, atime_ns = divmod(atime, _SECOND_NS)
        mtime_s, mtime_ns = divmod(mtime, _SECOND_NS)
        ctime_s, ctime_ns = divmod(ctime, _SECOND_NS)
        valid_s, valid_ns, length = self._valid_s, self._valid_ns, len(name)
        return _dirent_layouts[length].pack(
            ino, btime_ns & GENERATION_MAX if self._has_generations and ino != ROOT_INO else 0,
            valid_s, valid_s, valid_ns, valid_ns,
            ino, size_bytes,
            sectors(size_bytes, mapped_blocks * self._block_bytes) if mapped_blocks else 0,
            atime_s, mtime_s, ctime_s, atime_ns, mtime_ns, ctime_ns,
            mode, nlink, uid, gid, rdev, IO_BYTES,
            ino, position, length, mode >> 12, name,
        )  # fmt: skip

    def created_out(self, attributes: Attributes) -> bytes:
        """Return the reply to a request that creates and opens a file."""
        return self.entry_out(attributes) + self.opened_out(attributes.ino)

    def opened_out(self, ino: Ino) -> bytes:
        """Return the reply to a request that opens a file; the handle is the inode number."""
        return _OPEN_OUT.pack(ino, _KEEP_CACHE)

    def no_entry_out(self) -> bytes:
        """Return the reply to a lookup of a missing name: inode 0, whose absence is cached."""
        return _ENTRY.pack(0, 0, self._valid_s, 0, self._valid_ns, 0) + bytes(_ATTRIBUTES.size)

    def _attributes(self, attributes: Attributes) -> bytes:
        mode, uid, gid = attributes.mode, attributes.uid, attributes.gid
        if self._overrides is not None:
            shown = self.entry(attributes)
            mode, uid, gid = shown.st_mode, shown.st_uid, shown.st_gid
        size_bytes = attributes.size_bytes
        mapped_bytes = attributes.mapped_blocks * self._block_bytes
        atime_s, atime_ns = divmod(attributes.atime_ns, _SECOND_NS)
        mtime_s, mtime_ns = divmod(attributes.mtime_ns, _SECOND_NS)
        ctime_s, ctime_ns = divmod(attributes.ctime_ns, _SECOND_NS)
        return _ATTRIBUTES.pack(
            attributes.ino,
            size_bytes,
            sectors(size_bytes, mapped_bytes),
            atime_s,
            mtime_s,
            ctime_s,
            atime_ns,
            mtime_ns,
            ctime_ns,
            mode,
            attributes.nlink,
            uid,
            gid,
            attributes.rdev,
            IO_BYTES,
        )

    def statfs(self, figures: SpaceFigures) -> pyfuse3.StatvfsData:
        """Return the sizes and counts that df(1) prints, as a reply to the kernel."""
        data = pyfuse3.StatvfsData()
        data.f_bsize = IO_BYTES
        data.f_frsize = IO_BYTES
        data.f_blocks = figures.capacity_bytes // IO_BYTES
        data.f_bfree = data.f_bavail = figures.free_bytes // IO_BYTES
        data.f_files = figures.inodes + figures.free_inodes
        data.f_ffree = data.f_favail = figures.free_inodes
        data.f_namemax = NAME_BYTES_MAX
        return data


def sectors(size_bytes: int, mapped_bytes: int) -> int:
    """Return st_blocks: the mapped bytes, at most the size of the file rounded up to pages.

    Holes are not mapped. The limit excludes the part of the last block beyond the end of the file.
    """
    allocated = -(-size_bytes // ALLOCATION_BYTES) * ALLOCATION_BYTES
    return min(allocated, mapped_bytes) // SECTOR_BYTES


def caller(ctx: pyfuse3.RequestContext) -> Caller:
    """Return the process that sent a request."""
    return Caller(ctx.uid, ctx.gid, ctx.umask, ctx.pid)


def _override(entry: pyfuse3.EntryAttributes, overrides: Overrides) -> None:
    if overrides.uid is not None:
        entry.st_uid = overrides.uid
    if overrides.gid is not None:
        entry.st_gid = overrides.gid
    if overrides.umask is not None:
        mode = entry.st_mode
        permissions = 0o777 & ~overrides.umask
        if not stat.S_ISDIR(mode) and not mode & 0o111:
            permissions &= ~0o111
        entry.st_mode = stat.S_IFMT(mode) | permissions
