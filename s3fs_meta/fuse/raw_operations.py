"""The handlers of requests that libfuse or pyfuse3 does not pass on, or only slowly.

Owns: the layouts of requests and replies, and the tasks of requests that wait. Does not know: the
semantics (``fs.content.file_ranges``, ``fs.inode_flags``), the C side (``fuse_intercept.c``).
The extension calls a method while it receives a request, so a method never waits: a request that
must wait is handled by a separate task, which answers when it is done.
Source: linux/fuse.h. The layouts skip file handles: the handle of a file is its inode number.
"""

import contextlib
import ctypes
import errno
import functools
import logging
import os
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final

import trio

from s3fs_meta.errors import BusyError, S3fsError, UnknownLengthError
from s3fs_meta.fs import acl, inode_flags
from s3fs_meta.fs.content.file_ranges import seek_without_holes
from s3fs_meta.fs.waiting_room import WaitingRoom, caller
from s3fs_meta.fs.xattrs import CAPABILITY
from s3fs_meta.fuse import errnos
from s3fs_meta.fuse.error_boundary import broken, failed
from s3fs_meta.fuse.extension import fuse_intercept, pyfuse3
from s3fs_meta.fuse.kernel_cache import invalidate_inode
from s3fs_meta.fuse.operations import Operations
from s3fs_meta.limits import DESCRIPTORS_EXAMINED_MAX
from s3fs_meta.model import Ino

_log = logging.getLogger(__name__)

# Flags of INIT.
DONT_MASK: Final = 1 << 6  # the daemon applies the umask
NO_OPEN: Final = 1 << 17
PARALLEL_DIROPS: Final = 1 << 18
CACHE_SYMLINKS: Final = 1 << 23
NO_OPENDIR: Final = 1 << 24
HANDLE_KILLPRIV_V2: Final = 1 << 28  # requests say when set-user-ID bits must be cleared
_FLAGS: Final = CACHE_SYMLINKS | DONT_MASK | PARALLEL_DIROPS | HANDLE_KILLPRIV_V2

LSEEK: Final = struct.Struct("=8xqI4x")  # offset, whence
LSEEK_OUT: Final = struct.Struct("=q")
FALLOCATE: Final = struct.Struct("=8xqqI4x")  # offset, length, mode
# offset, target inode, target offset, length
COPY_FILE_RANGE: Final = struct.Struct("=8xqQ8xqq8x")
WRITE_OUT: Final = struct.Struct("=I4x")
GETXATTR: Final = struct.Struct("=I4x")  # room for the answer; the name follows
LISTXATTR_SIZE_OUT: Final = bytes(8)  # the size of an empty list
IOCTL: Final = struct.Struct("=12xI8xI4x")  # command, bytes that follow
IOCTL_OUT: Final = bytes(16)  # the result, and fields for unrestricted commands only

# Fields that stay 0: the attributes, which the kernel ignores, the device, which it knows, and
# reserved space. The mask is that of linux/stat.h.
_STATX_OUT: Final = struct.Struct("=QI20xII8xIIIH2xQQQ8x" + 4 * "qI4x" + "II120x")
_STATX_BASIC_STATS: Final = 0x7FF
_STATX_BTIME: Final = 0x800
_SECOND_NS: Final = 1_000_000_000

# The file length in the kernel, by statx(2).
_libc: Final = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD: Final = -100
_DONT_SYNC: Final = 0x4000
_INO_AND_SIZE: Final = 0x300  # STATX_INO, STATX_SIZE
_STATX: Final = struct.Struct("=32xQQ88xII112x")  # fields of struct statx: inode, size, device

# Attributes that the kernel and cp(1) ask for although few files have one.
_OFTEN_MISSING: Final = frozenset({CAPABILITY, acl.ACCESS, acl.DEFAULT})

Work = Callable[..., Coroutine[Any, Any, bytes]]


def _in_a_task(layout: struct.Struct) -> Callable[[Work], Callable[..., None]]:
    """Make a handler that runs a coroutine function in a task and answers with its result.

    Args:
        layout: of the request; the function gets the inode, the user ID and the decoded values.
    """

    def decorate(function: Work) -> Callable[..., None]:
        name = function.__name__

        @functools.wraps(function)
        def handler(self: "RawOperations", unique: int, ino: Ino, uid: int, content: bytes) -> None:
            self.operations.requests[name] += 1
            self.start(function, unique, uid, (ino, uid, *layout.unpack_from(content)))

        return handler

    return decorate


def _answer(unique: int, code: int, content: bytes = b"") -> None:
    fuse_intercept.answer(unique, code, content)


class RawOperations:
    """Handlers of one mount for the requests that pyfuse3 does not know."""

    def __init__(self, operations: Operations, nursery: trio.Nursery, device: int) -> None:
        """Make the handlers of one mount.

        Args:
            operations: its other handlers.
            nursery: runs the tasks, from before the first request until the last answer.
            device: number of the mount.
        """
        self.operations = operations
        self._nursery = nursery
        self._device = device
        self._fs = operations.filesystem
        self._waiting = WaitingRoom(is_shared=self._fs.waiting_room.is_shared)

    def start(self, function: Work, unique: int, uid: int, arguments: tuple[Any, ...]) -> None:
        """Start a task of a handler, unless too many wait already."""
        waits = contextlib.ExitStack()
        caller.set(uid)
        try:
            waits.enter_context(self._waiting.entered())
        except BusyError as exc:
            _answer(unique, errnos.errno_of(exc))
            return
        self._nursery.start_soon(self.work, function, unique, arguments, waits)

    async def work(
        self,
        function: Work,
        unique: int,
        arguments: tuple[Any, ...],
        waits: contextlib.ExitStack,
    ) -> None:
        """Run a handler and answer with its result, or with an errno if it fails or is cancelled."""
        name, status = function.__name__.removeprefix("_"), self.operations.status
        code, content = errno.EIO, b""
        begun = status.progress
        try:
            with waits:
                content = await function(self, *arguments)
            code = 0
        except S3fsError as exc:
            code = failed(status, name, arguments[:1], exc, begun)
        except Exception as exc:  # noqa: BLE001 - the boundary: one bug must not end the mount
            code = broken(status, name, arguments[:1], exc)
        finally:
            _answer(unique, code, content)

    def lseek(self, unique: int, ino: Ino, uid: int, content: bytes) -> None:
        """Answer where data or a hole is."""
        self.operations.requests["lseek"] += 1
        arguments = (ino, fuse_intercept.caller_thread(), *LSEEK.unpack_from(content))
        self.start(RawOperations._lseek, unique, uid, arguments)

    async def _lseek(self, ino: Ino, pid: int, offset: int, whence: int) -> bytes:
        """Answer where data or a hole is, for a request of process *pid*.

        The kernel does not write back dirty pages before this request. So a file that is open for
        writing counts as all data, up to the kernel's length of it; without this handler the kernel
        would answer that for every file.
        """
        record = self._fs.open_files.find(ino)
        if self.operations.enable_writeback_cache and record is not None and record.was_written:
            size_bytes = await trio.to_thread.run_sync(kernel_size, pid, self._device, ino)
            if size_bytes is None:
                # After ENOSYS the kernel answers by itself, and does not ask again for any file.
                _log.warning(
                    "lseek reports no more holes in any file: the length of inode %d in the kernel "
                    "is unknown",
                    ino,
                )
                raise UnknownLengthError(ino)
            return LSEEK_OUT.pack(seek_without_holes(ino, offset, whence, size_bytes))
        return LSEEK_OUT.pack(await self._fs.ranges.seek(ino, offset, whence))

    @_in_a_task(FALLOCATE)
    async def fallocate(self, ino: Ino, uid: int, offset: int, length: int, mode: int) -> bytes:
        """Check for free space, or make holes."""
        if uid != 0:
            await self._fs.freeze.passed((ino,))
            self._clear_privileges(ino)
        await self._fs.ranges.allocate(ino, mode, offset, length)
        return b""

    def copy_file_range(self, unique: int, ino: Ino, uid: int, content: bytes) -> None:
        """Copy within the filesystem: a small range at once, any other one in a task.

        The kernel has written back both ranges before.
        """
        self.operations.requests["copy_file_range"] += 1
        arguments = (ino, uid, *COPY_FILE_RANGE.unpack_from(content))
        begun, code, answer = self.operations.status.progress, 0, b""
        try:
            copied = self._try_copy(*arguments)
            if copied is None:
                self.start(RawOperations._copy_file_range, unique, uid, arguments)
                return
            answer = WRITE_OUT.pack(copied)
        except S3fsError as exc:
            code = failed(self.operations.status, "copy_file_range", (ino,), exc, begun)
        except Exception as exc:  # noqa: BLE001 - the boundary, as in ``work``
            code = broken(self.operations.status, "copy_file_range", (ino,), exc)
        _answer(unique, code, answer)

    def _try_copy(
        self, source: Ino, uid: int, offset: int, target: Ino, at: int, length: int
    ) -> int | None:
        """Copy a small range at once; return None if that must wait."""
        if self._fs.freeze.is_held:
            return None
        if uid != 0:
            self._clear_privileges(target)
        return self._fs.ranges.try_copy(source, offset, target, at, length)

    async def _copy_file_range(
        self,
        source: Ino,
        uid: int,
        offset: int,
        target: Ino,
        at: int,
        length: int,
    ) -> bytes:
        if uid != 0:
            await self._fs.freeze.passed((target,))
            self._clear_privileges(target)
        copied = await self._fs.ranges.copy(source, offset, target, at, length)
        return WRITE_OUT.pack(copied)

    # --- frequent requests, which pyfuse3 knows ------------------------------------------------

    def getxattr(self, unique: int, ino: Ino, _uid: int, content: bytes) -> bool:
        """Answer that an inode has no such attribute if it has none at all.

        Returns:
            Whether this was the answer; if not, ``Operations.getxattr`` gives it.
        """
        name = content[GETXATTR.size : -1]
        if name not in _OFTEN_MISSING or self._fs.freeze.is_held or not self._has_none(ino):
            return False
        self.operations.requests["getxattr"] += 1
        _answer(unique, errno.ENODATA)
        return True

    def listxattr(self, unique: int, ino: Ino, _uid: int, content: bytes) -> bool:
        """Answer an empty list if an inode has no attributes; return as ``getxattr``."""
        if not self._has_none(ino):
            return False
        self.operations.requests["listxattr"] += 1
        (room_bytes,) = GETXATTR.unpack_from(content)
        _answer(unique, 0, b"" if room_bytes else LISTXATTR_SIZE_OUT)
        return True

    def _has_none(self, ino: Ino) -> bool:
        try:
            return self._fs.xattrs.has_none(ino)
        except S3fsError:
            return False  # the other handler meets the same error, and reports it

    # --- flags, birth time, privileges ---------------------------------------------------------

    def ioctl(self, unique: int, ino: Ino, uid: int, content: bytes) -> None:
        """Get or set the flags of an inode; answer every other command with ENOTTY at once.

        Such commands are frequent: programs check whether a file that they open is a terminal.
        """
        self.operations.requests["ioctl"] += 1
        command, given_bytes = IOCTL.unpack_from(content)
        if command not in inode_flags.COMMANDS:
            _answer(unique, errno.ENOTTY)
            return
        given = content[IOCTL.size :][:given_bytes]
        self.start(RawOperations.flags, unique, uid, (ino, command, given, uid == 0))

    async def flags(self, ino: Ino, command: int, given: bytes, is_root: bool) -> bytes:
        """Answer a command about the flags of an inode."""
        result = await self._fs.flags.command(ino, command, given, is_root=is_root)
        return IOCTL_OUT + result

    def statx(self, unique: int, ino: Ino, _uid: int, _content: bytes) -> None:
        """Answer attributes with the birth time, which the kernel requests only once per inode."""
        code, content = 0, b""
        try:
            self.operations.requests["statx"] += 1
            found = self._fs.getattr(ino)
            content = statx_out(self.operations.converter.entry(found), found.btime_ns)
        except S3fsError as exc:
            code = failed(self.operations.status, "statx", (ino,), exc)
        except Exception as exc:  # noqa: BLE001 - the boundary, as in ``work``
            code = broken(self.operations.status, "statx", (ino,), exc)
        _answer(unique, code, content)

    def clear_privileges(self, unique: int, ino: Ino, _uid: int, _content: bytes) -> bool:
        """Clear set-user-ID bits before a write whose request has the flag FUSE_WRITE_KILL_SUIDGID.

        Returns:
            Whether the write was answered with an error: it must not be done if the bits stay.
        """
        code, begun = 0, self.operations.status.progress
        try:
            self.operations.requests["clear_privileges"] += 1
            self._clear_privileges(ino)
        except S3fsError as exc:
            code = failed(self.operations.status, "clear_privileges", (ino,), exc, begun)
        except Exception as exc:  # noqa: BLE001 - the boundary, as in ``work``
            code = broken(self.operations.status, "clear_privileges", (ino,), exc)
        if code:
            _answer(unique, code)
        return code != 0

    def _clear_privileges(self, ino: Ino) -> None:
        """Clear set-user-ID bits, and invalidate the attributes. Raises as ``AttributeStore``."""
        if self._fs.attributes.clear_privileges(ino):
            invalidate_inode(ino, attr_only=True)


def install(handlers: RawOperations, *, read_only: bool) -> None:
    """Give the next session these handlers.

    Args:
        handlers: of the mount.
        read_only: the kernel refuses all changes. Then it may open files without a request: a
            request would only check for write access, which the kernel refuses itself.
    """
    fuse_intercept.install(handlers, _FLAGS, NO_OPENDIR | (NO_OPEN if read_only else 0))
    handlers.operations.filesystem.open_files.expect_reports(not read_only)


def uninstall() -> None:
    """Stop calling the handlers: the session has ended."""
    fuse_intercept.install(None, 0, 0)


def statx_out(entry: pyfuse3.EntryAttributes, btime_ns: int) -> bytes:
    """Return the answer to statx: attributes, and the birth time."""
    timeout_s = int(entry.attr_timeout)
    times_ns = (entry.st_atime_ns, btime_ns, entry.st_ctime_ns, entry.st_mtime_ns)
    return _STATX_OUT.pack(
        timeout_s,
        int((entry.attr_timeout - timeout_s) * _SECOND_NS),
        _STATX_BASIC_STATS | _STATX_BTIME,
        entry.st_blksize,
        entry.st_nlink,
        entry.st_uid,
        entry.st_gid,
        entry.st_mode,
        entry.st_ino,
        entry.st_size,
        entry.st_blocks,
        *(part for time_ns in times_ns for part in divmod(time_ns, _SECOND_NS)),
        os.major(entry.st_rdev),
        os.minor(entry.st_rdev),
    )


def kernel_size(pid: int, device: int, ino: Ino) -> int | None:
    """Return the length of a file that a process has open, None if it is not found. Blocking.

    With a writeback cache the kernel knows the length before the daemon does. A system call on the
    mount would send a request to this daemon, and a daemon with a thread that waits for the daemon
    itself cannot be killed. So the file is found in /proc, and statx(2) answers from the kernel's cache.
    Source: statx(2), AT_STATX_DONT_SYNC; proc_pid_fd(5); fs/fuse/dir.c, fuse_update_get_attr.

    Args:
        pid: of the process, or of one of its threads.
        device: of the mount.
        ino: of the file.
    """
    folder = f"/proc/{pid}/fd"
    try:
        descriptors = os.listdir(folder)[:DESCRIPTORS_EXAMINED_MAX]
    except OSError:
        return None  # the process has ended, or may not be examined
    wanted = (ino, os.major(device), os.minor(device))
    buffer = ctypes.create_string_buffer(_STATX.size)
    for descriptor in descriptors:
        path = f"{folder}/{descriptor}".encode()
        if _libc.statx(_AT_FDCWD, path, _DONT_SYNC, _INO_AND_SIZE, buffer) != 0:
            continue  # closed meanwhile
        found, size_bytes, *its_device = _STATX.unpack(buffer.raw)
        if (found, *its_device) == wanted:
            return int(size_bytes)
    return None
