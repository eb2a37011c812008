"""The inode flags of chattr(1) and lsattr(1): immutable and append-only.

Owns: reading and setting flags (ioctl_iflags(2)). Does not know: requests, the operations that a
flag forbids (``protection``).
A locked inode is immutable for every user, and cannot be unlocked.
"""

import struct
from collections.abc import Callable
from typing import Final

import trio

from s3fs_meta.errors import (
    InvalidRequestError,
    NotPermittedError,
    NotSupportedError,
)
from s3fs_meta.fs.flags.name_marks import mark_above
from s3fs_meta.fs.open_files import OpenFiles
from s3fs_meta.fs.slices import Slices
from s3fs_meta.fs.write_gate import Changes
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import Attributes, Ino, InodeFlag

# The command numbers, from linux/fs.h, encode the size of a long, but the argument is an int.
GET: Final = 0x8008_6601  # the command FS_IOC_GETFLAGS
SET: Final = 0x4008_6602  # the command FS_IOC_SETFLAGS
GET_EXTENDED: Final = 0x801C_581F  # FS_IOC_FSGETXATTR, which Linux sends before it sets a flag
SET_EXTENDED: Final = 0x401C_5820  # FS_IOC_FSSETXATTR, which the chattr command of xfs_io(8) sends
COMMANDS: Final = frozenset({GET, SET, GET_EXTENDED, SET_EXTENDED})
_FLAGS: Final = struct.Struct("=I")
_EXTENDED: Final = struct.Struct("=I24x")  # struct fsxattr: flags, and fields that only XFS uses
FS_IMMUTABLE_FL: Final = 0x10
FS_APPEND_FL: Final = 0x20
_FS_XFLAG_IMMUTABLE: Final = 0x08
_FS_XFLAG_APPEND: Final = 0x10

_SETTABLE: Final = FS_IMMUTABLE_FL | FS_APPEND_FL
_OURS: Final = InodeFlag.IMMUTABLE | InodeFlag.APPEND_ONLY


def extended(flags: int) -> int:
    """Return flags in the encoding of FS_IOC_FSGETXATTR."""
    return (
        _FS_XFLAG_IMMUTABLE * bool(flags & FS_IMMUTABLE_FL)
        | _FS_XFLAG_APPEND * bool(flags & FS_APPEND_FL)
    )  # fmt: skip


def plain(given: bytes) -> int:
    """Return the flags in an argument of FS_IOC_FSSETXATTR.

    Raises:
        NotSupportedError: the argument has other flags, or an extent size or project ID, which only
        XFS supports.
    """
    (wanted,) = _EXTENDED.unpack(given)
    known = _FS_XFLAG_IMMUTABLE | _FS_XFLAG_APPEND
    if wanted & ~known or any(given[_FLAGS.size :]):
        raise NotSupportedError(f"FS_IOC_FSSETXATTR cannot set flags {wanted & ~known:#x}")
    return (
        FS_IMMUTABLE_FL * bool(wanted & _FS_XFLAG_IMMUTABLE)
        | FS_APPEND_FL * bool(wanted & _FS_XFLAG_APPEND)
    )  # fmt: skip


class InodeFlags:
    """Reads and sets the flags of a mount's inodes."""

    def __init__(
        self,
        db: Database,
        changes: Changes,
        open_files: OpenFiles,
        now_ns: Callable[[], int],
        slices: Slices,
    ) -> None:
        self._db = db
        self._changes = changes
        self._open_files = open_files
        self._now_ns = now_ns
        self._slices = slices

    async def command(self, ino: Ino, command: int, given: bytes, *, is_root: bool) -> bytes:
        """Run one of the ioctl commands in COMMANDS and return its output.

        Raises the same errors as ``get`` and ``set``.
        """
        if command == GET:
            return _FLAGS.pack(self.get(ino))
        if command == GET_EXTENDED:
            return _EXTENDED.pack(extended(self.get(ino)))
        if len(given) != (_EXTENDED if command == SET_EXTENDED else _FLAGS).size:
            raise InvalidRequestError("the flags argument has the wrong length for inode", ino)
        wanted = plain(given) if command == SET_EXTENDED else _FLAGS.unpack(given)[0]
        await self.set(ino, wanted, is_root=is_root)
        return b""

    def get(self, ino: Ino) -> int:
        """Return the flags FS_IMMUTABLE_FL and FS_APPEND_FL of an inode, if set.

        Raises:
            NoInodeError: the inode does not exist.
        """
        flags = inodes.get(self._db, ino).flags
        return (
            FS_IMMUTABLE_FL * bool(flags & (InodeFlag.IMMUTABLE | InodeFlag.LOCKED))
            | FS_APPEND_FL * bool(flags & InodeFlag.APPEND_ONLY)
        )  # fmt: skip

    async def set(self, ino: Ino, wanted: int, *, is_root: bool) -> None:
        """Set and clear flags of an inode.

        Args:
            ino: any inode.
            wanted: the flags after the call. A file that becomes immutable while it is open accepts
                writes and dirty pages until it is closed.
            is_root: whether the caller is root; only root may change these flags.

        Raises:
            NotSupportedError: *wanted* has another flag.
            NotPermittedError: the caller is not root, or the inode is locked.
            NoInodeError, ReadOnlyStateError, NoSpaceLeftError: nothing was changed.

        Always yields to other tasks.
        """
        if wanted & ~_SETTABLE:
            raise NotSupportedError(f"FS_IOC_SETFLAGS cannot set flags {wanted & ~_SETTABLE:#x}")
        await trio.lowlevel.checkpoint()
        if wanted == self.get(ino):
            return
        before = self._settable(ino, is_root=is_root)
        if wanted:
            await mark_above(self._db, self._changes, ino, self._slices)
            # Check again, because another task may have changed the inode.
            before = self._settable(ino, is_root=is_root)
        else:
            self._changes.begin(ino)
        record = self._open_files.find(ino)
        if record is not None:
            record.finishes = record.was_written and bool(wanted & FS_IMMUTABLE_FL)
        flags = before.flags & ~_OURS
        flags |= InodeFlag.IMMUTABLE * bool(wanted & FS_IMMUTABLE_FL)
        flags |= InodeFlag.APPEND_ONLY * bool(wanted & FS_APPEND_FL)
        inodes.replace(self._db, before._replace(flags=flags, ctime_ns=self._now_ns()))

    def _settable(self, ino: Ino, *, is_root: bool) -> Attributes:
        """Return an inode; raise an error of ``set`` if the caller may not change its flags."""
        found = inodes.get(self._db, ino)
        if not is_root or found.flags & InodeFlag.LOCKED:
            why = "the inode is locked" if is_root else "only root can change them"
            raise NotPermittedError(f"cannot change the flags of inode {ino}: {why}")
        return found
