"""The handlers of requests that libfuse or pyfuse3 does not support.

Owns: the layouts of requests and replies, and the tasks of requests that wait. Does not know: the
semantics (``fs.content.file_ranges``, ``fs.flags.inode_flags``), the C side (``fuse_intercept.c``).
The C extension calls a method while it receives a request, so a method never waits. A request that
must wait is handled by a separate task, which sends the reply.
Source: linux/fuse.h. The layouts skip file handles, because a handle is the inode number.
"""

import contextlib
import ctypes
import errno
import functools
import logging
import os
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.errors import BusyError, S3fsError, ThreadShortageError, UnknownLengthError
from s3fs_meta.fs.content.file_ranges import Begin, seek_without_holes
from s3fs_meta.fs.flags import inode_flags
from s3fs_meta.fs.waiting_room import WaitingRoom, caller
from s3fs_meta.fuse import errnos
from s3fs_meta.fuse.error_boundary import broken, failed
from s3fs_meta.fuse.extension import fuse_intercept, pyfuse3
from s3fs_meta.fuse.frequent_requests import WRITE_OUT, FrequentRequests
from s3fs_meta.fuse.notifications import invalidate_inode, invalidate_range
from s3fs_meta.fuse.operations import Operations
from s3fs_meta.limits import CLEANUP_S_MAX, DESCRIPTORS_EXAMINED_MAX, PAST_INO_MIN
from s3fs_meta.model import Ino

_log = logging.getLogger(__name__)

# Flags of the FUSE request INIT.
DONT_MASK: Final = 1 << 6  # the daemon applies the umask itself
NO_OPEN: Final = 1 << 17
PARALLEL_DIROPS: Final = 1 << 18
CACHE_SYMLINKS: Final = 1 << 23
NO_OPENDIR: Final = 1 << 24
HANDLE_KILLPRIV_V2: Final = 1 << 28  # the kernel tells the daemon when to clear set-user-ID bits
_FLAGS: Final = CACHE_SYMLINKS | DONT_MASK | PARALLEL_DIROPS | HANDLE_KILLPRIV_V2

LSEEK: Final = struct.Struct("=8xqI4x")  # body of LSEEK: offset, whence
LSEEK_OUT: Final = struct.Struct("=q")
FALLOCATE: Final = struct.Struct("=8xqqI4x")  # body of FALLOCATE: offset, length, mode
# Body of COPY_FILE_RANGE: offset, target inode, target offset, length.
COPY_FILE_RANGE: Final = struct.Struct("=8xqQ8xqq8x")
IOCTL: Final = struct.Struct("=12xI8xI4x")  # header of IOCTL: command, number of bytes that follow
IOCTL_OUT: Final = bytes(16)  # a reply that reports success; all of its fields are 0

# In a reply to statx, reserved fields and fields that the kernel ignores or sets are 0.
# The constants for the mask of a statx reply are from linux/stat.h.
_STATX_OUT: Final = struct.Struct("=QI20xII8xIIIH2xQQQ8x" + 4 * "qI4x" + "II120x")
_STATX_BASIC_STATS: Final = 0x7FF
_STATX_BTIME: Final = 0x800
_SECOND_NS: Final = 1_000_000_000

# Constants for calling statx(2), which returns the kernel's length of a file.
_libc: Final = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD: Final = -100
_DONT_SYNC: Final = 0x4000
_INO_AND_SIZE: Final = 0x300  # STATX_INO and STATX_SIZE, from linux/stat.h
# Fields of struct statx: inode, size and device number.
_STATX: Final = struct.Struct("=32xQQ88xII112x")

# Maximum number of threads that make the kernel drop pages after a failed copy, which is rare.
# The kernel may block each of these threads.
_DROP_THREADS_MAX: Final = 4

Work = Callable[..., Coroutine[Any, Any, bytes]]
_Result = TypeVar("_Result")


def _answer(unique: int, code: int, content: bytes = b"") -> None:
    fuse_intercept.answer(unique, code, content)


class RawOperations(FrequentRequests):
    """The handlers of one mount that the C extension calls."""

    def __init__(self, operations: Operations, nursery: trio.Nursery, device: int) -> None:
        """Create the handlers of one mount.

        Args:
            operations: the other handlers of the mount.
            nursery: runs the tasks; it is open from the first request to the last reply.
            device: the device number of the mount.
        """
        super().__init__(operations)
        self._nursery = nursery
        self._device = device
        self._waiting = WaitingRoom(is_shared=self._fs.waiting_room.is_shared)
        self._drop_threads = trio.CapacityLimiter(_DROP_THREADS_MAX)

    def start(self, function: Work, unique: int, uid: int, arguments: tuple[Any, ...]) -> None:
        """Start the task of a handler, or reply with an error if too many tasks are waiting."""
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
        """Run a handler; reply with its result, or with an errno after a failure or cancellation."""
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
        """Reply to an lseek request with the position of data or a hole."""
        self.operations.requests["lseek"] += 1
        _group, thread = fuse_intercept.caller_ids()
        arguments = (ino, thread, *LSEEK.unpack_from(content))
        self.start(RawOperations._lseek, unique, uid, arguments)

    async def _lseek(self, ino: Ino, pid: int, offset: int, whence: int) -> bytes:
        """Return the reply to lseek(2) with SEEK_DATA or SEEK_HOLE by process *pid*.

        The kernel does not write back dirty pages before this request. So a file that is open for
        writing is treated as data without holes, up to the kernel's length of the file. Without this
        handler the kernel would treat every file in this way.
        """
        if ino >= PAST_INO_MIN:
            found = await self.operations.past.tree.getattr(ino)
            return LSEEK_OUT.pack(seek_without_holes(ino, offset, whence, found.size_bytes))
        record = self._fs.open_files.find(ino)
        if self.operations.enable_writeback_cache and record is not None and record.was_written:
            size_bytes = await in_thread(kernel_size, pid, self._device, ino)
            if size_bytes is None and await self.operations.write_back.collect():
                size_bytes = self._fs.getattr(ino).size_bytes  # the kernel has sent all data
            if size_bytes is None:
                # After ENOSYS, the kernel answers lseek itself, for all files.
                _log.warning(
                    "lseek(2) no longer reports holes, because the length of inode %d in the "
                    "kernel is unknown",
                    ino,
                )
                raise UnknownLengthError(ino)
            return LSEEK_OUT.pack(seek_without_holes(ino, offset, whence, size_bytes))
        return LSEEK_OUT.pack(await self._fs.ranges.seek(ino, offset, whence))

    def fallocate(self, unique: int, ino: Ino, uid: int, content: bytes) -> None:
        """Check for free space or make holes, in a task."""
        self.operations.requests["fallocate"] += 1
        arguments = (ino, uid, *FALLOCATE.unpack_from(content))
        self.start(RawOperations._fallocate, unique, uid, arguments)

    async def _fallocate(self, ino: Ino, uid: int, offset: int, length: int, mode: int) -> bytes:
        begin = None if uid == 0 else self._clear_privileges
        await self._fs.ranges.allocate(ino, mode, offset, length, begin)
        return b""

    def copy_file_range(self, unique: int, ino: Ino, uid: int, content: bytes) -> None:
        """Copy a range between files: a small range at once if possible, any other in a task.

        Before this request, the kernel has written back the dirty pages of source and target.
        """
        offset, target, at, length = COPY_FILE_RANGE.unpack_from(content)
        begin = None if uid == 0 else self._clear_privileges
        arguments = (ino, offset, target, at, length, begin)
        before = self._fs.changes.opened
        code, copied = self._tried("copy_file_range", ino, self._fs.ranges.try_copy, *arguments)
        if code and self._fs.changes.opened != before:
            self._nursery.start_soon(self._answer_failed_copy, unique, code, target, at, length)
        elif code:
            _answer(unique, code)
        elif copied is None:
            self.start(RawOperations._copy_file_range, unique, uid, arguments)
        else:
            _answer(unique, 0, WRITE_OUT.pack(copied))

    def _tried(
        self, name: str, ino: Ino, function: Callable[..., _Result], *arguments: Any
    ) -> tuple[int, _Result | None]:
        """Call a function that never waits; return an errno, and the result if the errno is 0."""
        status = self.operations.status
        begun = status.progress
        self.operations.requests[name] += 1
        try:
            return 0, function(*arguments)
        except S3fsError as exc:
            return failed(status, name, (ino,), exc, begun), None
        except Exception as exc:  # noqa: BLE001 - the kernel must get a reply
            return broken(status, name, (ino,), exc), None

    async def _answer_failed_copy(
        self, unique: int, code: int, target: Ino, at: int, length: int
    ) -> None:
        try:
            await self._drop_pages(target, at, length)
        finally:
            _answer(unique, code)

    async def _drop_pages(self, target: Ino, at: int, length: int) -> None:
        """Make the kernel drop its pages of the target range of a failed copy, and wait for that.

        The kernel drops them only after a success, but a copy onto a full disk may have changed a
        part. The kernel has written back dirty pages of the range before the request, but programs
        that have mapped the range may have changed pages since. Writing these back may take long.
        Source: Linux, fs/fuse/file.c, __fuse_copy_file_range.
        """
        send = functools.partial(invalidate_range, target, at, length)
        with trio.move_on_after(CLEANUP_S_MAX) as scope:
            try:
                await in_thread(send, abandon_on_cancel=True, limiter=self._drop_threads)
            except ThreadShortageError as exc:
                _log.warning(
                    "the kernel did not drop its pages of inode %d after a failed copy, so programs"
                    " may read older content: %s",
                    target,
                    exc,
                )
        if scope.cancelled_caught:
            _log.warning(
                "the kernel did not drop its pages of inode %d within %g s after a failed copy, so"
                " programs may read older content",
                target,
                CLEANUP_S_MAX,
            )

    async def _copy_file_range(
        self, source: Ino, offset: int, target: Ino, at: int, length: int, begin: Begin | None
    ) -> bytes:
        before = self._fs.changes.opened
        try:
            copied = await self._fs.ranges.copy(source, offset, target, at, length, begin)
        except Exception as exc:  # noqa: BLE001 - raised again below
            failure = exc
        else:
            return WRITE_OUT.pack(copied)
        if self._fs.changes.opened != before:
            await self._drop_pages(target, at, length)
        raise failure

    # --- inode flags, birth time, privileges ---------------------------------------------------

    def ioctl(self, unique: int, ino: Ino, uid: int, content: bytes) -> None:
        """Get or set the flags of an inode; reply to all other commands with ENOTTY immediately.

        Other commands are frequent: many programs check whether a file that they open is a
        terminal.
        """
        self.operations.requests["ioctl"] += 1
        command, given_bytes = IOCTL.unpack_from(content)
        if command not in inode_flags.COMMANDS:
            _answer(unique, errno.ENOTTY)
            return
        given = content[IOCTL.size :][:given_bytes]
        self.start(RawOperations.flags, unique, uid, (ino, command, given, uid == 0))

    async def flags(self, ino: Ino, command: int, given: bytes, is_root: bool) -> bytes:
        """Return the reply to a command that gets or sets the flags of an inode."""
        result = await self._fs.flags.command(ino, command, given, is_root=is_root)
        if not result:  # a command that sets flags changes ctime
            invalidate_inode(ino, attr_only=True)
        return IOCTL_OUT + result

    def statx(self, unique: int, ino: Ino, uid: int, _content: bytes) -> None:
        """Reply with attributes and birth time; the kernel requests a birth time once per inode."""
        if ino >= PAST_INO_MIN:
            self.start(RawOperations._statx_past, unique, uid, (ino,))
            return
        code, content = self._tried("statx", ino, self._statx, ino)
        _answer(unique, code, content or b"")

    def _statx(self, ino: Ino) -> bytes:
        found = self._fs.getattr(ino)
        return statx_out(self._converter.entry(found), found.btime_ns)

    async def _statx_past(self, ino: Ino) -> bytes:
        found = await self.operations.past.tree.getattr(ino)
        return statx_out(self.operations.past.entry_of(found), found.btime_ns)

    def clear_privileges(self, unique: int, ino: Ino, _uid: int, _content: bytes) -> bool:
        """Clear set-user-ID bits before a write whose request has the flag FUSE_WRITE_KILL_SUIDGID.

        Returns:
            True if an error was sent as the reply to the write; the write must then be skipped.
        """
        code, _ = self._tried("clear_privileges", ino, self._clear_privileges, ino)
        if code:
            _answer(unique, code)
        return code != 0

    def _clear_privileges(self, ino: Ino) -> None:
        """Clear set-user-ID bits, and invalidate the kernel's attributes.

        Raises:
            The errors of ``AttributeStore.clear_privileges``.
        """
        if self._fs.attributes.clear_privileges(ino):
            invalidate_inode(ino, attr_only=True)


def install(handlers: RawOperations, *, read_only: bool) -> None:
    """Make the C extension call *handlers* in the next session.

    Args:
        handlers: the handlers of the mount.
        read_only: True if the kernel refuses all changes. Then files are opened without a request,
            because the handler would only check for write access.
    """
    fuse_intercept.install(handlers, _FLAGS, NO_OPENDIR | (NO_OPEN if read_only else 0))
    handlers.operations.filesystem.open_files.expect_reports(not read_only)


def uninstall() -> None:
    """Remove the handlers from the C extension after the session has ended."""
    fuse_intercept.install(None, 0, 0)


def statx_out(entry: pyfuse3.EntryAttributes, btime_ns: int) -> bytes:
    """Return the reply to a statx request: attributes and birth time."""
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


def kernel_size(
    pid: int, device: int, ino: Ino, *, descriptors_max: int = DESCRIPTORS_EXAMINED_MAX
) -> int | None:
    """Return the kernel's length of a file that a process has open, or None. The call blocks.

    With a write-back cache the kernel knows a new length before the daemon does. A system call on
    the mount would send a request to this daemon. A daemon cannot be killed while one
    of its threads waits for the daemon itself. So this function finds the file in /proc, where
    statx(2) reads the kernel's cache without a request.
    Source: statx(2), AT_STATX_DONT_SYNC; proc_pid_fd(5); fs/fuse/dir.c, fuse_update_get_attr.

    Args:
        pid: the ID of the process, or of one of its threads.
        device: the device number of the mount.
        ino: the inode of the file.
        descriptors_max: the number of descriptors of the process to examine.
    """
    folder = f"/proc/{pid}/fd"
    try:
        descriptors = os.listdir(folder)[:descriptors_max]
    except OSError:
        return None  # the process has exited, or this user has no permission to inspect it
    wanted = (ino, os.major(device), os.minor(device))
    buffer = ctypes.create_string_buffer(_STATX.size)
    for descriptor in descriptors:
        path = f"{folder}/{descriptor}".encode()
        if _libc.statx(_AT_FDCWD, path, _DONT_SYNC, _INO_AND_SIZE, buffer) != 0:
            continue  # the process has closed the descriptor
        found, size_bytes, *its_device = _STATX.unpack(buffer.raw)
        if (found, *its_device) == wanted:
            return int(size_bytes)
    return None
