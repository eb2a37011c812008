"""Objects of the bucket that a repair replaces, saved in files of the state directory.

Owns: the names of the files, and the copy of an object that is too large for the memory.
Does not know: why an object is replaced, the new object.
Keeps: a returned path names a complete and durable file. After an error, the file is removed.
"""

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from s3fs_meta.background_task import in_thread
from s3fs_meta.clock import Clock
from s3fs_meta.errors import ObjectTooLargeError
from s3fs_meta.hashed_dir import FILE_MODE, sync_path
from s3fs_meta.limits import OBJECT_BYTES_MAX, RANGE_BYTES_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ObjectStore

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class ReplacedObjects:
    """The files of one filesystem's replaced objects on this host."""

    def __init__(
        self, store: ObjectStore, state: Path, clock: Clock, *, range_bytes: int = RANGE_BYTES_MAX
    ) -> None:
        """Store the arguments; no object is saved yet.

        Args:
            store: the bucket.
            state: the state directory, which must exist when an object is saved.
            clock: the clock for the names of the files.
            range_bytes: the number of bytes of an oversized object that are in memory at a time.
        """
        self._store = store
        self._state = state
        self._clock = clock
        self._range_bytes = range_bytes

    async def save(self, key: ObjectKey, data: bytes) -> Path:
        """Save an object whose bytes were read; return the path of the file.

        Raises:
            OSError: the file cannot be written.
        """
        async with self._new_file(key) as (path, fd):
            await in_thread(_append, fd, data)
        return path

    async def save_oversized(self, too_large: ObjectTooLargeError) -> Path:
        """Save a complete object that was not read because of its size; return the file's path.

        The caller must replace the object by compare-and-set with ``too_large.etag``: the object
        may be overwritten while it is read in ranges.

        Raises:
            ObjectTooLargeError: the object has more than OBJECT_BYTES_MAX bytes.
            OSError: the file cannot be written.
            ObjectMissingError, FormatError: the object was deleted or truncated concurrently.
            StoreError: the store is unavailable.
        """
        key, size_bytes = ObjectKey(too_large.key), too_large.size_bytes
        if size_bytes > OBJECT_BYTES_MAX:
            raise ObjectTooLargeError(key, size_bytes, OBJECT_BYTES_MAX, too_large.etag)
        async with self._new_file(key) as (path, fd):
            for start in range(0, size_bytes, self._range_bytes):
                stop = min(start + self._range_bytes, size_bytes)
                piece = await self._store.get_range(key, start, stop)
                await in_thread(_append, fd, piece)
        return path

    @contextlib.asynccontextmanager
    async def _new_file(self, key: ObjectKey) -> AsyncIterator[tuple[Path, int]]:
        """Yield a new file for an object; sync the file at exit, or remove it after an error."""
        path = self._state / f"replaced-{key.replace('/', '-')}-{self._clock.now_ns()}"
        fd = os.open(path, _NEW, FILE_MODE)
        try:
            yield path, fd
            await in_thread(os.fsync, fd)
            await in_thread(sync_path, self._state)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(fd)


def _append(fd: int, piece: bytes | memoryview) -> None:
    left = memoryview(piece)
    while left:
        left = left[os.write(fd, left) :]
