"""Empty block files that are created in advance; they are open, and their names are durable.

Owns: the files for the next block numbers, and when more files are created. Does not know: rows.
Why: creating a file on ext4 blocks the event loop for 8 us, or up to 300 us without a journal after
many removals. An fsync(2) of a block whose file was created in advance need not sync the directory.
Keeps: such a file stays empty until a block uses it. Unused files are removed at the end of
``run``. If the daemon is killed, the next mount removes empty files without a row.
Tasks: ``run``, one per mount for writing; all other methods on the event loop.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.files.open_blocks import NO_DESCRIPTOR_ERRNOS
from s3fs_meta.hashed_dir import NumberedDir
from s3fs_meta.limits import FILES_AHEAD, FILES_AHEAD_MARGIN
from s3fs_meta.model import BlockId

_log = logging.getLogger(__name__)
_FEW: Final = FILES_AHEAD // 2
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL


class Numbers(NamedTuple):
    """Access to the next block number of a mount, and to the numbers of cached blocks."""

    next_block: Callable[[], int]
    is_cached: Callable[[BlockId], bool]


class FilesAhead:
    """The files created in advance in one directory of block files."""

    def __init__(self, directory: NumberedDir) -> None:
        """Start with no files; ``run`` creates the first files once a block has been created."""
        self._directory = directory
        self._fds: dict[int, int] = {}
        self._wanted = trio.Event()

    def __len__(self) -> int:
        return len(self._fds)

    def take(self, block: BlockId) -> int | None:
        """Return a descriptor of the empty file for a new block, or None without such a file."""
        fd = self._fds.pop(block, None)
        if fd is None or len(self._fds) < _FEW:
            self._wanted.set()
        return fd

    def drop(self, block: BlockId) -> None:
        """Close the empty file for a block, because another file is renamed to its name."""
        fd = self._fds.pop(block, None)
        if fd is not None:
            os.close(fd)

    async def run(self, numbers: Numbers) -> None:
        """Create files while blocks are created, until cancelled; then remove unused files.

        Raises:
            OSError: a directory cannot be synced.
        """
        try:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                await self._make_more(numbers)
        finally:
            self._drop_passed(numbers)
            self._discard(list(self._fds))

    async def _make_more(self, numbers: Numbers) -> None:
        """Create the next block files if only a few unused files are left."""
        self._drop_passed(numbers)
        if len(self._fds) >= _FEW:
            return
        first = max(self._fds, default=numbers.next_block() + FILES_AHEAD_MARGIN - 1) + 1
        made: dict[int, int] = {}
        wanted, are_named = range(first, first + FILES_AHEAD), False
        try:
            # A cancellation at this point would lose the descriptors of created files.
            with trio.CancelScope(shield=True):
                are_named = await in_thread(self._make, wanted, made)
        finally:
            self._fds.update(made)
        if not are_named:
            self._drop_passed(numbers)
            self._discard([number for number in made if number in self._fds])

    def _make(self, numbers: Iterable[int], made: dict[int, int]) -> bool:
        """Create files with durable names; add their descriptors to *made*. Runs in a thread.

        Returns:
            False if no directory could be opened to sync the names, for lack of descriptors. The
            caller then removes the files, so that other work finds free descriptors.
        """
        try:
            for number in numbers:
                # Keep an existing file, which is left over from a commit group that a crash undid.
                with contextlib.suppress(FileExistsError):
                    made[number] = self._directory.open(f"{number:x}", _NEW)
        except OSError as exc:
            _log.info("cannot create block files in advance; each block creates its own: %s", exc)
        try:
            self._directory.sync_parents(f"{number:x}" for number in made)
        except OSError as exc:
            if exc.errno not in NO_DESCRIPTOR_ERRNOS:
                raise
            return False
        return True

    def _drop_passed(self, numbers: Numbers) -> None:
        """Close the files of assigned block numbers; remove the files that no block uses."""
        passed = [number for number in self._fds if number < numbers.next_block()]
        for number in passed:
            if numbers.is_cached(BlockId(number)):
                self.drop(BlockId(number))
            else:
                self._discard([number])

    def _discard(self, numbers: Iterable[int]) -> None:
        """Close the files of some block numbers; remove the files that no block uses."""
        for number in numbers:
            fd = self._fds.pop(number)
            try:
                found = os.fstat(fd)
                # A block with the same number, downloaded for a clone, may have replaced the file.
                is_unused = found.st_size == 0 and found.st_nlink > 0
            finally:
                os.close(fd)
            if is_unused:
                self._directory.remove(f"{number:x}")
