"""Free space on the disk of the state directory.

Owns: the rule that new operations are refused before they use the space reserved for SQLite.
Without the reserve, SQLITE_FULL could roll back a complete group of acknowledged operations.
Measuring free space takes a system call, so one measurement covers all writes of a commit group, up
to a budget. The next group measures again, because other programs may have filled the disk.
"""

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import trio

from s3fs_meta.errors import NoSpaceLeftError
from s3fs_meta.limits import (
    DISK_CHECK_BYTES,
    DISK_FREE_BYTES,
    DISK_RESERVE_BYTES,
    OPERATION_DISK_BYTES,
)


def _free_nothing(_size_bytes: int) -> None:
    """Free no space, because this ``DiskSpace`` has no cache with blocks to evict."""


async def _free_no_slice(_size_bytes: int) -> bool:
    await trio.lowlevel.checkpoint()
    return False


class DiskSpace:
    """Counts the bytes of a disk that are free and not reserved for SQLite."""

    def __init__(
        self,
        path: Path,
        free_some: Callable[[int], None] = _free_nothing,
        free_slice: Callable[[int], Awaitable[bool]] = _free_no_slice,
    ) -> None:
        """Start with a budget of zero, so that the first call of ``spend`` measures free space.

        Args:
            path: a directory on the disk.
            free_some: frees the given number of bytes; called before an operation is refused.
            free_slice: frees some of the given number of bytes, and yields to other tasks; returns
                whether more can be freed.
        """
        self._path = path
        self._free_some = free_some
        self._free_slice = free_slice
        self._granted_bytes = 0
        self._held: dict[Path, int] = {}

    def spend(self, size_bytes: int = OPERATION_DISK_BYTES) -> None:
        """Subtract the bytes of the next write from the budget; renew the budget when it is spent.

        Raises:
            NoSpaceLeftError: the write would use the reserve, even after clean blocks were evicted.
        """
        self._granted_bytes -= size_bytes
        if self._granted_bytes < 0:
            self._measure(size_bytes)

    def can_spend(self, size_bytes: int = OPERATION_DISK_BYTES) -> bool:
        """Subtract the bytes of an optional write from the budget, but evict no block for it.

        Returns:
            False if the write would use the reserve; then the caller must not write.
        """
        if self._granted_bytes >= size_bytes:
            self._granted_bytes -= size_bytes
            return True
        spare = self.unheld_bytes()
        if spare < size_bytes:
            return False
        self._granted_bytes = min(spare // 2, DISK_CHECK_BYTES)
        return True

    def expire(self) -> None:
        """Discard the budget, so that the next call of ``spend`` measures free space."""
        self._granted_bytes = 0

    @contextlib.contextmanager
    def holding(self, path: Path, size_bytes: int) -> Iterator[None]:
        """Reserve space for a file that a thread writes while operations continue.

        Args:
            path: path of the file, which may not exist yet; its current size is not reserved.
            size_bytes: the final size of the file.

        Raises:
            NoSpaceLeftError: the disk has no room beyond the reserve.
        """
        self._measure(size_bytes)
        self._granted_bytes = 0
        self._held[path] = size_bytes
        try:
            yield
        finally:
            del self._held[path]

    def hold_more(self, path: Path, size_bytes: int) -> None:
        """Increase the space that ``holding`` reserves for a file whose final size has grown.

        Raises:
            NoSpaceLeftError: the disk has no room beyond the reserve; nothing more is reserved.
        """
        missing_bytes = size_bytes - self._held[path]
        if missing_bytes > 0:
            self._measure(missing_bytes)
            self._granted_bytes = 0
            self._held[path] = size_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Return whether the disk has room for *size_bytes*; evict clean blocks if needed."""
        try:
            self._measure(size_bytes)
        except NoSpaceLeftError:
            return False
        return True

    async def make_room(self, size_bytes: int) -> None:
        """Evict clean blocks in slices until *size_bytes* are free, or no clean block is left.

        Call this before ``has_room`` and ``holding`` for a large file, because these methods would
        evict all the blocks without a schedule point. Always yields to other tasks.
        """
        await trio.lowlevel.checkpoint()
        while (lacking := size_bytes + DISK_FREE_BYTES - self.unheld_bytes()) > 0:
            if not await self._free_slice(lacking):
                return

    def _measure(self, size_bytes: int) -> None:
        spare = self.unheld_bytes()
        if spare < size_bytes:
            self._free_some(size_bytes - spare + DISK_FREE_BYTES)
            spare = self.unheld_bytes()
        if spare < size_bytes:
            self._granted_bytes = 0
            raise NoSpaceLeftError(
                f"the disk that contains {self._path} is full, except for {DISK_RESERVE_BYTES}"
                " bytes reserved for the database; delete other files on that disk"
            )
        self._granted_bytes = min(spare // 2, DISK_CHECK_BYTES)

    def unheld_bytes(self) -> int:
        """Return the free bytes beyond the reserve and the space that ``holding`` reserves."""
        held = sum(max(size - _size_of(path), 0) for path, size in self._held.items())
        return self.spare_bytes() - held

    def spare_bytes(self) -> int:
        """Return the free bytes beyond the reserve; negative if less than the reserve is free."""
        figures = os.statvfs(self._path)
        return figures.f_bavail * figures.f_frsize - DISK_RESERVE_BYTES


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
