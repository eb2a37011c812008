"""Operations on ranges of a file: find data and holes, punch holes, share blocks with another file.

Owns: lseek(2) with SEEK_DATA and SEEK_HOLE, fallocate(2), copy_file_range(2). For complete blocks
that are in the bucket, these calls change only rows, not content. Does not know: requests, writing
bytes (``file_data``). A long operation is divided into slices. After each slice, and after a kill,
the file is valid. As with write(2), an interrupted operation may be incomplete.
"""

from collections.abc import Callable
from typing import Final

import trio

from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.errors import (
    BadRowError,
    DamagedDatabaseError,
    DatabaseError,
    InvalidRequestError,
    MetadataError,
    NoDataError,
    NoSpaceLeftError,
    NotSupportedError,
    S3fsError,
    TooBigError,
)
from s3fs_meta.fs.capacity import Capacity
from s3fs_meta.fs.content.file_data import FileData
from s3fs_meta.fs.flags.protection import require_changeable, require_unprotected
from s3fs_meta.fs.orphans import unmap
from s3fs_meta.fs.slices import Slices
from s3fs_meta.fs.write_gate import Changes
from s3fs_meta.limits import (
    COPIED_AT_ONCE_BYTES,
    FILE_BYTES_MAX,
    SEEK_SLICE_ROWS,
    SHARED_RANGE_BYTES,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, blocks, inodes
from s3fs_meta.model import Attributes, BlockIndex, Ino
from s3fs_meta.mount_state import MountStatus

# Modes of fallocate(2), from linux/falloc.h.
KEEP_SIZE: Final = 0x01
PUNCH_HOLE: Final = 0x02
ZERO_RANGE: Final = 0x10

# Modes of lseek(2). The module os defines these names only if the C library does.
SEEK_DATA: Final = 3
SEEK_HOLE: Final = 4


Begin = Callable[[Ino], object]
"""A function that is called with the inode that an operation is about to change."""


def seek_without_holes(ino: Ino, offset: int, whence: int, size_bytes: int) -> int:
    """Return the result of lseek(2) for a file whose only hole is at its end.

    Raises:
        NoDataError: *offset* is beyond the end of the file.
        InvalidRequestError: *whence* is neither SEEK_DATA nor SEEK_HOLE.
    """
    if whence not in {SEEK_DATA, SEEK_HOLE}:
        raise InvalidRequestError("invalid lseek whence", whence)
    if offset < 0 or offset >= size_bytes:
        raise NoDataError(ino, offset)
    return offset if whence == SEEK_DATA else size_bytes


class FileRanges:
    """Finds, clears and copies ranges of the files in one mount."""

    def __init__(
        self,
        db: Database,
        cache: BlockCache,
        changes: Changes,
        data: FileData,
        status: MountStatus,
        now_ns: Callable[[], int],
        slices: Slices,
    ) -> None:
        self._db = db
        self._status = status
        self._cache = cache
        self._changes = changes
        self._data = data
        self._now_ns = now_ns
        self._block_bytes = data.block_bytes
        self._slices = slices
        self._capacity = Capacity(db)

    # --- find data and holes -------------------------------------------------------------------

    async def seek(self, ino: Ino, offset: int, whence: int) -> int:
        """Return the offset of the first data or hole at or after *offset*.

        Data are the bytes from the start of a block to the end of its content. All other bytes
        read as zeros and are holes; the end of the file is also a hole. Source: lseek(2).

        Raises:
            NoDataError: *offset* is beyond the end of the file, or only a hole follows.
            InvalidRequestError: *whence* is neither SEEK_DATA nor SEEK_HOLE.
            NoInodeError, InvalidRequestError, RefusesDirectoryError: *ino* is not a regular file.

        Yields to other tasks between slices of a long run of blocks.
        """
        size_bytes = self._data.regular(ino).size_bytes
        if offset < 0 or offset >= size_bytes:
            raise NoDataError(ino, offset)
        if whence == SEEK_DATA:
            return self._next_data(ino, offset, size_bytes)
        if whence != SEEK_HOLE:
            raise InvalidRequestError("invalid lseek whence", whence)
        return min(await self._next_hole(ino, offset), size_bytes)

    def _next_data(self, ino: Ino, offset: int, size_bytes: int) -> int:
        """Return the offset of the first content byte at or after *offset*."""
        index, within = divmod(offset, self._block_bytes)
        for found, plain_bytes in block_map.lengths_from(self._db, ino, BlockIndex(index), 2):
            if found > index or within < plain_bytes:
                start = max(found * self._block_bytes, offset)
                if start < size_bytes:
                    return start
        raise NoDataError(ino, offset)

    async def _next_hole(self, ino: Ino, offset: int) -> int:
        """Return the offset of the first byte at or after *offset* that is no block's content."""
        index, _within = divmod(offset, self._block_bytes)
        while rows := block_map.lengths_from(self._db, ino, BlockIndex(index), SEEK_SLICE_ROWS):
            for found, plain_bytes in rows:
                if found != index:
                    return max(index * self._block_bytes, offset)
                if plain_bytes < self._block_bytes:
                    return max(index * self._block_bytes + plain_bytes, offset)
                index += 1
            await trio.lowlevel.checkpoint()
        return max(index * self._block_bytes, offset)

    # --- allocate space, punch holes -----------------------------------------------------------

    async def allocate(
        self, ino: Ino, mode: int, offset: int, length: int, begin: Begin | None = None
    ) -> None:
        """Allocate or clear a range (fallocate(2)); free space is checked, but not reserved.

        Args:
            ino: a regular file.
            mode: 0, KEEP_SIZE, PUNCH_HOLE with KEEP_SIZE, ZERO_RANGE with or without KEEP_SIZE.
            offset: position of the first byte.
            length: number of bytes.
            begin: called before the first change, after all checks.

        Raises:
            NotSupportedError: *mode* is not one of the values above.
            NoSpaceLeftError: the filesystem has no room for so many bytes.
            TooBigError, InvalidRequestError, NoInodeError, NotPermittedError, or an error of
            ``FileData.write``: the operation may be incomplete.

        Always yields to other tasks.
        """
        stop = offset + length
        if offset < 0 or length <= 0:
            raise InvalidRequestError("invalid offset or length for inode", ino)
        if stop > FILE_BYTES_MAX:
            raise TooBigError(ino, stop)
        await trio.lowlevel.checkpoint()
        before = self._data.regular(ino)
        require_changeable(before)
        if mode in {0, KEEP_SIZE}:
            self._changes.require()
            await self._require_room(before, offset, stop)
        elif mode in {PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE}:
            require_unprotected(before)
            self._changes.require()
        else:
            raise NotSupportedError(f"unsupported mode of fallocate(2): {mode:#x}")
        if begin is not None:
            begin(ino)
        if mode & (PUNCH_HOLE | ZERO_RANGE):
            await self._clear(ino, offset, min(stop, before.size_bytes))
        if not mode & KEEP_SIZE and stop > self._data.regular(ino).size_bytes:
            await self._data.truncate(ino, stop)

    async def _require_room(self, before: Attributes, offset: int, stop: int) -> None:
        """Raise NoSpaceLeftError if the holes of a range may exceed the capacity or the local disk.

        Writes use the local disk, up to the size of the cache, if they are faster than the upload.
        """
        first, last = offset // self._block_bytes, (stop - 1) // self._block_bytes
        mapped = await self._count_mapped(before, first, last)
        lacking = stop - offset - min(mapped * self._block_bytes, stop - offset)
        self._capacity.require_free(lacking)
        index = self._cache.index
        evictable_bytes = index.total_bytes - index.pending_bytes - index.spared_bytes
        evictable_bytes -= index.kept_bytes
        local_bytes = self._cache.disk.unheld_bytes() + evictable_bytes
        if min(lacking, self._cache.spare_bytes) > local_bytes:
            raise NoSpaceLeftError(f"the local disk has room for only {max(local_bytes, 0)} bytes")

    async def _count_mapped(self, before: Attributes, first: int, last: int) -> int:
        """Return the number of blocks of a file from index *first* to *last*, without the holes."""
        if not first and before.size_bytes <= (last + 1) * self._block_bytes:
            return before.mapped_blocks
        found, at, stop = 0, BlockIndex(first), BlockIndex(last + 1)
        while piece := block_map.indexes_between(self._db, before.ino, at, stop, SEEK_SLICE_ROWS):
            found += len(piece)
            at = BlockIndex(piece[-1][0] + 1)
            await trio.lowlevel.checkpoint()
        return found

    async def _clear(self, ino: Ino, offset: int, stop: int) -> None:
        """Clear a range of a file: complete blocks become holes, parts of blocks become zeros.

        The kernel drops its pages of the range only if the request succeeds. So the blocks that are
        cleared in part are fetched before the first change.
        """
        if offset >= stop:
            return
        first, last = -(-offset // self._block_bytes), stop // self._block_bytes
        if first > last:  # the range lies within one block
            await self._zero(ino, offset, stop)
            return
        edges = (offset, first * self._block_bytes), (last * self._block_bytes, stop)
        for start, end in edges:
            length = self._content_bytes(ino, start, end)
            if length > 0:
                await self._data.fetch_for_write(ino, start, length)
        for start, end in edges:
            await self._zero(ino, start, end)
        await self._unmap(ino, BlockIndex(first), BlockIndex(last))

    async def _zero(self, ino: Ino, offset: int, stop: int) -> None:
        """Write zeros to a range inside one block, but not beyond the block's content."""
        length = self._content_bytes(ino, offset, stop)
        if length > 0:
            await self._data.write(ino, offset, bytes(length))

    def _content_bytes(self, ino: Ino, offset: int, stop: int) -> int:
        """Return the length of the content in a range inside one block; 0 or less means none."""
        index, start = divmod(offset, self._block_bytes)
        located = block_map.locate(self._db, ino, BlockIndex(index))
        return 0 if located is None else min(stop - offset, located.plain_bytes - start)

    async def _unmap(self, ino: Ino, first: BlockIndex, stop: BlockIndex) -> None:
        """Turn the blocks from *first* to *stop*, exclusive, into holes."""
        while True:
            await trio.lowlevel.checkpoint()
            found = block_map.indexes_between(
                self._db, ino, first, stop, self._slices.purged_blocks
            )
            if not found:
                return
            before = self._data.regular(ino)
            require_changeable(before)
            self._changes.begin(ino)
            unmap(self._db, self._cache, ino, found)
            inodes.set_size_and_mtime(self._db, ino, before.size_bytes, self._now_ns(), 0)

    # --- share blocks between files ------------------------------------------------------------

    async def copy(
        self,
        source: Ino,
        offset: int,
        target: Ino,
        at: int,
        length: int,
        begin: Begin | None = None,
    ) -> int:
        """Copy a range of *source* into *target*; return the number of bytes copied.

        Complete blocks that are in the bucket are shared by copying rows. The last block of
        *source* is also shared if it becomes the last block of *target*. Other bytes are copied.
        One call copies at most SHARED_RANGE_BYTES, and writes about ``Slices.copied_bytes`` bytes.
        The process requests the rest by further calls. It can be killed between two calls, not
        during a call. The end of *source* or an error also shortens the copy. Source:
        copy_file_range(2). If there is anything to copy, *begin* is called before the first change,
        after all checks. The kernel drops its pages of *target* only in the range of the returned
        length, so this range includes every changed byte.

        Raises:
            The errors of ``FileData.read`` and ``FileData.write``: nothing was copied.
            DatabaseError, MetadataError, DamagedDatabaseError, BadRowError: the rows of a slice are
                undone or incomplete.

        Yields to other tasks if there is anything to copy.
        """
        stop = self._end_of_copy(source, offset, target, at, length)
        done, written_bytes, begun = offset, 0, self._status.progress
        if begin is not None and done < stop:
            begin(target)
        try:
            while done < stop and written_bytes < self._slices.copied_bytes:
                await trio.lowlevel.checkpoint()
                begun = self._status.progress
                goal = at + done - offset
                shared = self._share(source, done, target, goal, stop - done)
                written = 0 if shared else await self._write(source, done, target, goal, stop)
                if not shared + written:
                    break  # another request has truncated the file
                done += shared + written
                written_bytes += written
        except (DatabaseError, MetadataError):
            raise  # the rows of this slice, and perhaps of earlier slices, are undone or incomplete
        except (DamagedDatabaseError, BadRowError) as exc:
            is_half_done = not exc.changed_nothing and self._status.is_half_done(begun)
            if done == offset or is_half_done:
                raise
        except S3fsError:
            if done == offset:
                raise
        return max(done - offset, 0)

    def try_copy(
        self,
        source: Ino,
        offset: int,
        target: Ino,
        at: int,
        length: int,
        begin: Begin | None = None,
    ) -> int | None:
        """Copy a small range inside one block of each file; return None for any other copy.

        Also return None if the copy must wait. After None, call ``copy``. Nothing was changed then,
        except by *begin*.

        Most copied files are small. Copying a small file takes less time than starting a task.

        Raises the same errors as ``copy``. Never yields to other tasks.
        """
        stop = self._end_of_copy(source, offset, target, at, length)
        length = stop - offset
        in_block = max(offset % self._block_bytes, at % self._block_bytes)
        if length > min(self._block_bytes - in_block, COPIED_AT_ONCE_BYTES):
            return None
        if length <= 0:
            return 0
        if begin is not None:
            begin(target)
        index = BlockIndex(offset // self._block_bytes)
        located = block_map.locate(self._db, source, index)
        if located is None or located.hash is not None:
            shared = self._share(source, offset, target, at, length)
            if shared:
                return shared
        data = self._data.try_read(source, offset, length)
        if not isinstance(data, bytes):
            return None
        missing = self._data.try_write(target, at, data, sets_times=True)
        return len(data) if missing is None else None

    def _end_of_copy(self, source: Ino, offset: int, target: Ino, at: int, length: int) -> int:
        """Check a request to copy; return the offset in *source* at which the copy ends."""
        if at + length > FILE_BYTES_MAX:
            raise TooBigError(target, at + length)
        before = self._data.regular(target)
        if at < before.size_bytes:
            require_unprotected(before)
        size_bytes = self._data.regular(source).size_bytes
        return min(offset + min(length, SHARED_RANGE_BYTES), size_bytes)

    async def _write(self, source: Ino, offset: int, target: Ino, at: int, stop: int) -> int:
        """Copy bytes by reading and writing, at most to the end of a block of either file.

        So if the write fails, no earlier block of *target* has been changed.
        """
        in_block = max(offset % self._block_bytes, at % self._block_bytes)
        length = min(self._block_bytes - in_block, stop - offset)
        data = await self._data.read(source, offset, length)
        return await self._data.write(target, at, data)

    def _share(self, source: Ino, offset: int, target: Ino, at: int, length: int) -> int:
        """Share uploaded blocks and holes of *source* with *target*; return the number of bytes.

        Complete blocks are shared, and the last block of *source* if no byte of *target* follows it.
        Sharing stops before the first dirty or sealed block, which only one file may use. It also
        stops before a damaged block; otherwise the copy would succeed without the block's content.
        """
        before = self._data.regular(target)
        require_changeable(before)
        if offset % self._block_bytes or at % self._block_bytes:
            return 0
        length = min(length, self._data.regular(source).size_bytes - offset)
        if not self._ends_both(source, offset + length, before, at + length):
            length -= length % self._block_bytes
        if length <= 0:
            return 0
        count = min(-(-length // self._block_bytes), self._slices.shared_blocks)
        first, goal = BlockIndex(offset // self._block_bytes), BlockIndex(at // self._block_bytes)
        pending = block_map.first_not_shareable(
            self._db, source, first, BlockIndex(first + count - 1)
        )
        if pending is not None:
            count = pending - first
        end = BlockIndex(goal + count)
        replaced = block_map.indexes_between(
            self._db, target, goal, end, self._slices.purged_blocks + 1
        )
        if len(replaced) > self._slices.purged_blocks:
            count = replaced.pop()[0] - goal
        if count == 0:
            return 0
        last = BlockIndex(first + count - 1)
        self._changes.begin(target)
        blocks.add_refs_of_range(self._db, source, first, last)
        unmap(self._db, self._cache, target, replaced)
        mapped = block_map.copy_range(self._db, source, first, last, target, goal - first)
        shared_bytes = min(count * self._block_bytes, length)
        size_bytes = max(before.size_bytes, at + shared_bytes)
        inodes.set_size_and_mtime(self._db, target, size_bytes, self._now_ns(), mapped)
        return shared_bytes

    def _ends_both(self, source: Ino, stop: int, target: Attributes, end: int) -> bool:
        """Return whether a range ends with *source*, and its copy with *target*."""
        return stop == self._data.regular(source).size_bytes and end >= target.size_bytes
