"""Open descriptors of block files for the event loop, and the files that must stay open.

Owns: the open descriptors, within a bound; whether a written file was closed before its sync.
Does not know: paths, the content of the files, rows.
"""

import contextlib
import errno
import os
import resource
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

from s3fs_meta.limits import OPEN_BLOCKS_MAX
from s3fs_meta.model import BlockId

# Errors of open(2), but not of fsync(2): the process or the machine has too many open files.
NO_DESCRIPTOR_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE})


class OpenBlocks:
    """Open descriptors of recently used files, within a bound; the oldest is closed first.

    After recovery, only the event loop uses and closes descriptors, so none is closed and reused
    for another file during a read. Only ``forget`` may be called in any thread, because it closes
    no descriptor.
    """

    def __init__(self, closing: Callable[[BlockId], None] = lambda _block: None) -> None:
        """Start with no open files.

        Args:
            closing: called with each block whose file is closed because of the bound.
        """
        self._count_max = _count_max()
        self._closing = closing
        self._fds: dict[BlockId, int] = {}
        self._forgotten: deque[int] = deque()
        self.get = self._fds.get
        self._at_end = weakref.finalize(self, _close_all, self._fds, self._forgotten)

    def put(self, block: BlockId, fd: int) -> None:
        """Keep the open descriptor of a block, which replaces an earlier descriptor."""
        fds = self._fds
        if block in fds:
            self.forget(block)
        while len(fds) >= self._count_max:
            # A thread may remove an entry concurrently; the loop then checks the count again.
            with contextlib.suppress(RuntimeError, StopIteration):
                oldest = next(iter(fds))
                self._closing(oldest)
                self.forget(oldest)
        # Close before *fd* is added: a thread may forget it at once, but the caller still uses it.
        if self._forgotten:
            self.close_forgotten()
        fds[block] = fd

    def rename(self, block: BlockId, new: BlockId) -> None:
        """Use the open descriptor of *block*, if there is one, for block *new*."""
        fd = self._fds.pop(block, None)
        if fd is not None:
            self.put(new, fd)

    def forget(self, block: BlockId) -> None:
        """Stop using the descriptor of a block; ``close_forgotten`` closes it later."""
        fd = self._fds.pop(block, None)
        if fd is not None:
            self._forgotten.append(fd)

    def close_forgotten(self) -> None:
        """Close forgotten descriptors, which frees the space of removed files."""
        while self._forgotten:
            os.close(self._forgotten.popleft())


def _count_max() -> int:
    """Return how many files may be kept open: at most a quarter of the process's limit."""
    files_max, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return OPEN_BLOCKS_MAX
    return min(OPEN_BLOCKS_MAX, max(files_max // 4, 1))


def _close_all(fds: dict[BlockId, int], forgotten: deque[int]) -> None:
    while fds:
        forgotten.append(fds.popitem()[1])
    for fd in forgotten:
        with contextlib.suppress(OSError):  # the interpreter exits, and no caller needs the error
            os.close(fd)


class WrittenBlocks:
    """The blocks written since the last sync, whose files should stay open until the next sync.

    The kernel reports a lost page to each open file. If a file is not open, the kernel may free the
    memory of the inode and forget the error; then only syncfs(2) reports the error.
    The event loop calls ``add`` after each write, and ``close``. The thread of a sync calls the
    other methods.
    """

    def __init__(self) -> None:
        self._blocks: set[BlockId] = set()
        # blocks that were written before the running sync began
        self._before: set[BlockId] = set()
        self._were_closed = False
        self.add = self._blocks.add

    def close(self, block: BlockId) -> None:
        """Record that the descriptor of a block is about to be closed."""
        if block in self._blocks or block in self._before:
            self._were_closed = True

    def distrust(self) -> None:
        """Make the next sync call syncfs(2), because a killed daemon wrote and closed files."""
        self._were_closed = True

    def begin_sync(self) -> None:
        """Record that a sync of all written blocks begins."""
        self._before, self._blocks = self._blocks, set()
        self.add = self._blocks.add

    def need_syncfs(self) -> bool:
        """Return whether this sync needs syncfs(2), because the file of a written block was closed.

        Every sync must call this method before syncfs(2), after the files of the sync are open.
        """
        were_closed, self._were_closed = self._were_closed, False
        self._before = set()
        return were_closed
