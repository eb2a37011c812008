"""Open descriptors of recently used block files, so that the next access need not open them.

Owns: the descriptors, within a bound. Does not know: the content of the files.
Tasks: all but ``forget`` on the event loop, which alone uses and closes the descriptors.
``forget`` in any thread: it only makes a descriptor unreachable. So no descriptor is closed, and
its number given to another file, while the event loop reads from it.
"""

import contextlib
import os
import resource
import weakref
from collections import deque

from s3fs_meta.limits import OPEN_BLOCKS_MAX
from s3fs_meta.model import BlockId


class OpenBlocks:
    """Open block files by number; the one opened first is closed first."""

    def __init__(self) -> None:
        self._count_max = _count_max()
        self._fds: dict[BlockId, int] = {}
        self._forgotten: deque[int] = deque()
        self.get = self._fds.get
        self._at_end = weakref.finalize(self, _close_all, self._fds, self._forgotten)

    def put(self, block: BlockId, fd: int) -> None:
        """Keep a descriptor, instead of an earlier one of that block."""
        fds = self._fds
        self.forget(block)
        while len(fds) >= self._count_max:
            # If a thread has removed one meanwhile, check again.
            with contextlib.suppress(RuntimeError, StopIteration):
                self.forget(next(iter(fds)))
        fds[block] = fd
        self.close_forgotten()

    def rename(self, block: BlockId, new: BlockId) -> None:
        """Assign the descriptor of *block*, if there is one, to *new*."""
        fd = self._fds.pop(block, None)
        if fd is not None:
            self.put(new, fd)

    def forget(self, block: BlockId) -> None:
        """Make the descriptor of a block unreachable; ``close_forgotten`` closes it."""
        fd = self._fds.pop(block, None)
        if fd is not None:
            self._forgotten.append(fd)

    def close_forgotten(self) -> None:
        """Close forgotten descriptors; only this frees the space of a removed file."""
        while self._forgotten:
            os.close(self._forgotten.popleft())


def _count_max() -> int:
    """Return how many files may be kept open: at most a fourth of the process's limit."""
    files_max, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return OPEN_BLOCKS_MAX
    return min(OPEN_BLOCKS_MAX, max(files_max // 4, 1))


def _close_all(fds: dict[BlockId, int], forgotten: deque[int]) -> None:
    while fds:
        forgotten.append(fds.popitem()[1])
    for fd in forgotten:
        with contextlib.suppress(OSError):  # the interpreter may be exiting: no caller to report to
            os.close(fd)
