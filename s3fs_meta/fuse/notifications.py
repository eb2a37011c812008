"""Notifications to the kernel, none of which runs while the session is being closed.

Owns: the number of running notifications, and a thread for those that no task waits for.
Does not know: why a name or an inode is invalidated.
Keeps: a notification runs only while the session exists. pyfuse3.close frees the session, so a
running notification would use freed memory, and would keep the connection to the kernel open.
The kernel blocks a notification about a name while a request for the same directory is unanswered.
Once the request loop has ended, only the end of the connection unblocks it.
Tasks: any thread sends notifications; the task of the session calls ``stopped``.
Source: Linux, fs/fuse/dir.c, fuse_reverse_inval_entry; libfuse, lib/fuse_lowlevel.c.
"""

import contextlib
import enum
import errno
import logging
import os
import queue
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, TypeVar

import trio

from s3fs_meta.background_task import in_thread_or_here
from s3fs_meta.errors import ThreadShortageError
from s3fs_meta.fuse import request_loop
from s3fs_meta.fuse.extension import pyfuse3
from s3fs_meta.limits import CLEANUP_S_MAX
from s3fs_meta.model import Ino

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

# A notification: length and code, then inode, offset and length of the range; from linux/fuse.h.
_INVAL_INODE_RANGE: Final = struct.Struct("=Ii8xQqq")
_INVAL_INODE: Final = 2  # FUSE_NOTIFY_INVAL_INODE

_RUNNING_S_MAX: Final = 1.0  # time for a notification that the kernel does not block


class Stop(enum.Enum):
    """The ways in which the notifications of a session can stop."""

    QUIET = "no notification was blocked"
    ABORTED = "the connection was aborted, which unblocked the notifications"
    BLOCKED = "a notification is still blocked, so the session must not be freed"


class Notifications:
    """The running notifications, and a thread for those that no task waits for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # lock for _running and _is_stopped
        self._running = 0
        self._is_stopped = False
        # The queue is bounded: only the loss of a commit group adds names, at most two for each
        # operation of the group, and after such a loss the mount accepts no further changes.
        self._names: queue.SimpleQueue[tuple[Ino, bytes]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count a notification as running during a ``with`` block.

        Raises:
            OSError: ENOTCONN, as after an unmount, because the session is being closed.
        """
        with self._changed:
            if self._is_stopped:
                raise OSError(errno.ENOTCONN, "the session is being closed")
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def put(self, parent: Ino, name: bytes) -> None:
        """Let the thread invalidate a name. Never yields to other tasks."""
        self._names.put((parent, name))
        if self._thread is None:
            thread = threading.Thread(target=self._send, name="notifications", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads can be started; the next call tries again
                _log.warning(
                    "the kernel may show a name until its timeout: %s", ThreadShortageError()
                )
                return
            self._thread = thread

    def _send(self) -> None:
        while True:
            invalidate_name(*self._names.get())

    async def stop(
        self,
        abort: Callable[[], None],
        *,
        running_s: float = _RUNNING_S_MAX,
        blocked_s: float = CLEANUP_S_MAX,
    ) -> Stop:
        """Refuse further notifications, and return how the running notifications stopped.

        Args:
            abort: aborts the connection to the kernel. It is called in a thread.
            running_s: time until a running notification counts as blocked.
            blocked_s: time limit for *abort*, and for a blocked notification after it.
        """
        with self._changed:
            self._is_stopped = True
        if self._wait(0.0) or await _in_own_thread(self._wait, running_s):
            return Stop.QUIET
        _log.warning(
            "the kernel blocks a notification, because a request for the same directory is"
            " unanswered: aborting the connection"
        )
        with trio.move_on_after(blocked_s):
            await _in_own_thread(abort)
        return Stop.ABORTED if await _in_own_thread(self._wait, blocked_s) else Stop.BLOCKED

    def resume(self) -> None:
        """Allow notifications to the kernel again, for the next session."""
        with self._changed:
            self._is_stopped = False

    def _wait(self, limit_s: float) -> bool:
        """Return whether all running notifications end within *limit_s*. The call blocks."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, limit_s)


_notifications: Final = Notifications()


def invalidate_inode(ino: Ino, *, attr_only: bool) -> None:
    """Invalidate the kernel's attributes of an inode, and its pages unless *attr_only*.

    May block unless *attr_only*. A failure is not an error: usually, the kernel has not cached the
    inode.
    """
    try:
        with _notifications.counted():
            pyfuse3.invalidate_inode(ino, attr_only=attr_only)
    except OSError as exc:
        _log.debug("the kernel did not invalidate its cache of inode %d: %s", ino, exc.strerror)


def invalidate_range(ino: Ino, offset: int, length: int) -> None:
    """Invalidate the kernel's attributes of an inode, and its pages of a range.

    Call this in a thread. The kernel first writes back dirty pages of the range, and so may block.
    pyfuse3 can only invalidate all pages of an inode. A failure is not an error: usually, the kernel
    has not cached the inode.
    """
    message = _INVAL_INODE_RANGE.pack(_INVAL_INODE_RANGE.size, _INVAL_INODE, ino, offset, length)
    try:
        with _notifications.counted():
            os.write(request_loop.descriptor(), message)
    except OSError as exc:
        _log.debug("the kernel did not invalidate its pages of inode %d: %s", ino, exc.strerror)


def invalidate_name(parent: Ino, name: bytes) -> None:
    """Invalidate a name and the cached entries below it. Call this in a thread; it may block."""
    try:
        with _notifications.counted():
            pyfuse3.invalidate_entry(parent, name)
    except OSError as exc:
        _log.debug("the kernel did not invalidate entry %r of inode %d: %s", name, parent, exc)


def invalidate_name_later(parent: Ino, name: bytes) -> None:
    """Invalidate a name in another thread. Never blocks, and never yields to other tasks."""
    _notifications.put(parent, name)


@contextlib.asynccontextmanager
async def stopped(abort: Callable[[], None]) -> AsyncIterator[Stop]:
    """Send no notification in a ``with`` block; the request loop must have ended.

    If a notification stays blocked, abort the connection: without a request loop, no request will
    be answered any more. This takes at most ``_RUNNING_S_MAX`` plus twice ``CLEANUP_S_MAX``.

    Args:
        abort: aborts the connection to the kernel. It is called in a thread.

    Yields:
        How the notifications stopped.
    """
    try:
        with trio.CancelScope(shield=True):
            outcome = await _notifications.stop(abort)
        yield outcome
    finally:
        _notifications.resume()


async def _in_own_thread(function: Callable[..., _T], *arguments: float) -> _T:
    """Run a function in a thread that needs no token of trio's limiter.

    Abandoned threads may hold all of these tokens until the connection ends. If no thread can be
    started, the function runs on the event loop, because the session must end anyway.
    """
    own = trio.CapacityLimiter(1)
    return await in_thread_or_here(function, *arguments, abandon_on_cancel=True, limiter=own)
