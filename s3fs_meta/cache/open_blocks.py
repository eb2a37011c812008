"""Descriptors of block files that were used lately, so that the next access need not open them.

Owns: the descriptors, within a bound. Does not know: what is in the files.
Tasks: all but ``forget`` on the event loop, which alone uses the descriptors and closes them;
``forget`` in any thread: it only makes one unreachable, so that no number is closed, and given to
another file, while the loop reads from it.
"""

import contextlib
import os
import resource
import weakref
from collections import deque

from s3fs_meta.limits import OPEN_BLOCKS_MAX
from s3fs_meta.model import BlockId


class OpenBlocks:
    """Open block files by number; the one opened first goes first."""

    def __init__(self) -> None:
        self._count_max = _count_max()
        self._fds: dict[BlockId, int] = {}
        self._forgotten: deque[int] = deque()
        self.get = self._fds.get
        self._at_end = weakref.finalize(self, _close_all, self._fds, self._forgotten)

    def put(self, block: BlockId, fd: int) -> None:
        """Keep a descriptor; it replaces an earlier one of that block."""
        fds = self._fds
        self.forget(block)
        while len(fds) >= self._count_max:
            # If a thread was faster, look again.
            with contextlib.suppress(RuntimeError, StopIteration):
                self.forget(next(iter(fds)))
        fds[block] = fd
        self.close_forgotten()

    def rename(self, block: BlockId, new: BlockId) -> None:
        """Let a descriptor, if there is one, be that of another block."""
        fd = self._fds.pop(block, None)
        if fd is not None:
            self.put(new, fd)

    def forget(self, block: BlockId) -> None:
        """Let nobody use the descriptor of a block any more."""
        fd = self._fds.pop(block, None)
        if fd is not None:
            self._forgotten.append(fd)

    def close_forgotten(self) -> None:
        """Close what was forgotten: only now a removed file gives its space back."""
        while self._forgotten:
            os.close(self._forgotten.popleft())


def _count_max() -> int:
    """Return how many files may be kept open: a fourth of what this process may open at most."""
    files_max, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return OPEN_BLOCKS_MAX
    return min(OPEN_BLOCKS_MAX, max(files_max // 4, 1))


def _close_all(fds: dict[BlockId, int], forgotten: deque[int]) -> None:
    while fds:
        forgotten.append(fds.popitem()[1])
    for fd in forgotten:
        with contextlib.suppress(OSError):  # at the end of the interpreter: nobody is left to tell
            os.close(fd)
