"""The barrier, a file that only the collecting process opens, and the writes that are under way.

Owns: the answer whether every write that the kernel sent before a point in time was carried out.
Does not know: how the kernel is made to send them (``write_back``).

The kernel sends the release of a file through the same background queue as write-back, in order.
So when a release of the barrier arrives, the daemon has read each write that was queued before it:
the write was carried out, or it waits for room or for a block.
Source: Linux, fs/fuse/file.c, fuse_file_put; fs/fuse/dev.c, fuse_request_queue_background.

The file has no row and is in no listing. Its name is a secret of the daemon and that process.
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

BARRIER_INO: Final = Ino((1 << 63) - 1)  # row numbers start at 1


class Barrier:
    """The attributes and open count of the barrier, and the writes under way of one mount."""

    def __init__(self) -> None:
        self.name = f".s3fs-meta-{secrets.token_hex(16)}".encode()
        self.entry = pyfuse3.EntryAttributes()
        self.entry.st_ino = BARRIER_INO
        self.entry.st_mode = stat.S_IFREG | 0o444
        # Owned by the user of the collecting process: for any other the kernel asks for an ACL first.
        self.entry.st_uid, self.entry.st_gid = os.geteuid(), os.getegid()
        self.entry.st_nlink = 1
        self.entry.entry_timeout = self.entry.attr_timeout = ENTRY_TIMEOUT_S
        self._opened = 0
        self._released = 0
        self._was_released = trio.Event()
        self._under_way: set[trio.Event] = set()

    @property
    def under_way(self) -> int:
        """Return how many writes wait for room or for a block."""
        return len(self._under_way)

    def opened(self) -> None:
        """Note that the barrier was opened."""
        self._opened += 1

    def released(self) -> None:
        """Note that the barrier was released."""
        self._released += 1
        self._was_released.set()
        self._was_released = trio.Event()

    async def write(self, work: Coroutine[None, None, int]) -> int:
        """Carry out a write that may have to wait."""
        done = trio.Event()
        self._under_way.add(done)
        try:
            return await work
        finally:
            self._under_way.discard(done)
            done.set()

    async def passed(self) -> None:
        """Return when all writes queued before the last close of the barrier are carried out."""
        wanted = self._opened
        while self._released < wanted:
            await self._was_released.wait()
        for done in list(self._under_way):
            await done.wait()
