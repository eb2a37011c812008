"""The barrier: a hidden file whose release shows that all queued writes have arrived.

Owns: waiting until every write that the kernel queued before a point in time is complete.
Does not know: why the kernel sends a write (``write_back``).

The kernel sends the release of a file through the same background queue as write-back, in order.
So when a release of the barrier arrives, the daemon has received each write that was queued before.
Each of these writes is complete, or waits for space or for a block.
Source: Linux, fs/fuse/file.c, fuse_file_put; fs/fuse/dev.c, fuse_request_queue_background.

The barrier has no row and appears in no listing. Its name is known only to the daemon and to the
write-back process.
"""

import os
import secrets
import stat
from collections.abc import Coroutine
from typing import Final

import trio

from s3fs_meta.fuse.extension import pyfuse3
from s3fs_meta.limits import ENTRY_TIMEOUT_S
from s3fs_meta.model import Ino

BARRIER_INO: Final = Ino((1 << 63) - 1)  # the largest inode number, which no row ever has


class Barrier:
    """The barrier of one mount: its attributes, its open count, and the running writes."""

    def __init__(self) -> None:
        self.name = f".s3fs-meta-{secrets.token_hex(16)}".encode()
        self.entry = pyfuse3.EntryAttributes()
        self.entry.st_ino = BARRIER_INO
        self.entry.st_mode = stat.S_IFREG | 0o444
        # The file belongs to the daemon's user, so that open(2) needs no extra request for an ACL.
        self.entry.st_uid, self.entry.st_gid = os.geteuid(), os.getegid()
        self.entry.st_nlink = 1
        self.entry.entry_timeout = self.entry.attr_timeout = ENTRY_TIMEOUT_S
        self._opened = 0
        self._released = 0
        self._was_released = trio.Event()
        self._under_way: set[trio.Event] = set()

    @property
    def under_way(self) -> int:
        """Return the number of writes that wait for space or for a block."""
        return len(self._under_way)

    def opened(self) -> None:
        """Count an open(2) of the barrier by the write-back process."""
        self._opened += 1

    def released(self) -> None:
        """Count a release of the barrier, and wake the tasks that wait in ``passed``."""
        self._released += 1
        self._was_released.set()
        self._was_released = trio.Event()

    async def write(self, work: Coroutine[None, None, int]) -> int:
        """Run a write and return its result; ``passed`` waits until the write is done."""
        done = trio.Event()
        self._under_way.add(done)
        try:
            return await work
        finally:
            self._under_way.discard(done)
            done.set()

    async def passed(self) -> None:
        """Wait until all writes that were queued before the last close of the barrier are done."""
        wanted = self._opened
        while self._released < wanted:
            await self._was_released.wait()
        for done in list(self._under_way):
            await done.wait()
