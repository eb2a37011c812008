"""The handlers of what pyfuse3 does not hand on; they exist where the extension was built.

Owns: from the arguments of a request to a call and back, waiting outside the request loop.
Does not know: what the operations mean (``fs.file_ranges``), C (``seam.c``).
The extension calls a method while libfuse decodes a request, so a method never waits: what must
wait goes on as a task of its own, and answers when it is done.
"""

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import trio

from s3fs_meta.errors import BusyError, InvalidRequestError, S3fsError
from s3fs_meta.fs import inode_flags
from s3fs_meta.fuse import errnos
from s3fs_meta.fuse.answer import broken, failed
from s3fs_meta.fuse.extension import seam
from s3fs_meta.fuse.operations import Operations
from s3fs_meta.limits import WAITING_HANDLERS_MAX
from s3fs_meta.model import Ino

if TYPE_CHECKING:
    from s3fs_meta.fuse.seam import Request

NAMES: Final = ("lseek", "fallocate", "copy_file_range", "ioctl", "statx")

Work = Callable[..., Coroutine[Any, Any, None]]


def _in_a_task(function: Work) -> Callable[..., None]:
    """Make a handler that starts a task of a coroutine function, which answers."""
    name = function.__name__

    @functools.wraps(function)
    def handler(self: "MoreOperations", request: "Request", *arguments: Any) -> None:
        self.operations.requests[name] += 1
        if self.waiting >= WAITING_HANDLERS_MAX:
            request.error(errnos.errno_of(BusyError(self.waiting)))
            return
        self.waiting += 1
        self.nursery.start_soon(self.answer, function, request, arguments)

    return handler


class MoreOperations:
    """Handlers of one mount, beside those that pyfuse3 calls."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.operations.requests |= dict.fromkeys(NAMES, 0)
        self.nursery: trio.Nursery  # from before the first request until the last answer
        self.waiting = 0
        self._fs = operations.filesystem

    async def answer(self, function: Work, request: "Request", arguments: tuple[Any, ...]) -> None:
        """Run a handler; answer the errno if it fails."""
        name, status = function.__name__, self.operations.status
        try:
            await function(self, request, *arguments)
        except S3fsError as exc:
            request.error(failed(status, name, arguments, exc))
        except Exception as exc:  # noqa: BLE001 - the boundary: one bug must not end the mount
            request.error(broken(status, name, arguments, exc))
        finally:
            self.waiting -= 1
            request.drop()  # cancelled: while there is a session that can answer

    @_in_a_task
    async def lseek(self, request: "Request", ino: Ino, offset: int, whence: int) -> None:
        """Answer where data or a hole is: not of a file that somebody may be writing.

        The kernel does not hand over what it holds before it asks. EINVAL is what lseek(2) says
        where it is not supported, and programs read everything then.
        """
        record = self._fs.open_files.find(ino)
        if self.operations.enable_writeback_cache and record is not None and record.was_written:
            raise InvalidRequestError("lseek in what is being written, inode", ino)
        request.position(await self._fs.ranges.seek(ino, offset, whence))

    @_in_a_task
    async def fallocate(
        self, request: "Request", ino: Ino, mode: int, offset: int, length: int
    ) -> None:
        """Look for room, or make holes."""
        await self._fs.ranges.allocate(ino, mode, offset, length)
        request.error(0)

    @_in_a_task
    async def copy_file_range(
        self, request: "Request", source: Ino, offset: int, target: Ino, at: int, length: int
    ) -> None:
        """Copy within the filesystem; the kernel has handed over what it held of both ranges."""
        request.count(await self._fs.ranges.copy(source, offset, target, at, length))

    @_in_a_task
    async def ioctl(
        self, request: "Request", ino: Ino, command: int, given: bytes, uid: int
    ) -> None:
        """Tell or set the flags of an inode; ENOTTY is for every other command."""
        flags = self._fs.flags
        if command == inode_flags.GET:
            request.bytes(inode_flags.FLAGS.pack(flags.get(ino)))
        elif command == inode_flags.GET_EXTENDED:
            request.bytes(inode_flags.EXTENDED.pack(inode_flags.extended(flags.get(ino))))
        elif command == inode_flags.SET and len(given) == inode_flags.FLAGS.size:
            await flags.set(ino, *inode_flags.FLAGS.unpack(given), is_root=uid == 0)
            request.bytes(b"")
        else:
            request.error(errnos.NO_SUCH_COMMAND)

    def statx(self, ino: Ino) -> bytes | int:
        """Return attributes with the birth time, or an errno; the kernel asks for it only once."""
        self.operations.requests["statx"] += 1
        try:
            return self.operations.converter.extended_entry(self._fs.getattr(ino))
        except S3fsError as exc:
            return failed(self.operations.status, "statx", (ino,), exc)
        except Exception as exc:  # noqa: BLE001 - the boundary, as in ``answer``
            return broken(self.operations.status, "statx", (ino,), exc)


def install(handlers: MoreOperations | None, *, read_only: bool = False) -> None:
    """Let the next session have these handlers, or none, where the extension is there.

    Args:
        read_only: the kernel refuses all changes. Then nothing is lost if it opens files without
            asking: who may write is checked when a file is opened, and nobody may.
    """
    if seam is not None:
        wanted = seam.CACHE_SYMLINKS | seam.DONT_MASK | seam.PARALLEL_DIROPS
        seam.install(handlers, wanted, read_only)
        if handlers is not None:
            handlers.operations.filesystem.open_files.are_told = not read_only


def how() -> str:
    """Return whether the present session uses the extension: ``used``, ``off`` or ``absent``."""
    if seam is None:
        return "absent"
    return "used" if seam.is_in_use() else "off"
