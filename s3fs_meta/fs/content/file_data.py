"""The content of regular files: read, write, truncate.

Owns: reading and writing ranges of bytes in blocks; sizes and mapped blocks of inodes.
Does not know: names, the storage of blocks (``cache``).
Keeps: ``inodes.mapped_blocks`` equals the rows of the block map. No block extends beyond the size
of its file, so growing a file never exposes old bytes.

Requests take no lock. Each request looks up the inode and its blocks. If a block must be fetched,
the request waits, and looks them up again. Otherwise it finishes without a schedule point.

Bytes in a dirty block survive a crash immediately, but rows only after the next group commit. So a
write over committed bytes first commits the open group. Otherwise the write could survive a crash
that undoes older operations.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from s3fs_meta.background_task import run_concurrently
from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.cache.fetching.arrived_content import Content
from s3fs_meta.errors import (
    BadRowError,
    DamagedDatabaseError,
    InvalidRequestError,
    NotLocalError,
    RefusesDirectoryError,
    S3fsError,
    StoreUnavailableError,
    TooBigError,
)
from s3fs_meta.fs.attributes import AttributeStore
from s3fs_meta.fs.capacity import Capacity
from s3fs_meta.fs.content.block_ranges import (
    How,
    Part,
    Shortening,
    Span,
    WritePart,
    WritePlan,
    bytes_to_keep,
    cut,
    lie_in_dirty_blocks,
    plan_write,
    spans,
)
from s3fs_meta.fs.content.read_ahead import ReadAhead
from s3fs_meta.fs.flags.protection import require_changeable, require_writable
from s3fs_meta.fs.open_files import OpenFiles
from s3fs_meta.fs.orphans import unmap
from s3fs_meta.fs.slices import Slices
from s3fs_meta.fs.waiting_room import WaitingRoom
from s3fs_meta.fs.write_gate import Changes
from s3fs_meta.limits import (
    FETCH_ROUNDS_MAX,
    FILE_BYTES_MAX,
    OPERATION_DISK_BYTES,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, blocks, inodes, properties
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import Attributes, BlockId, BlockIndex, BlockState, Ino

_TYPE: Final = 0o170000
_REGULAR: Final = 0o100000
_DIRECTORY: Final = 0o040000
_EVICTED: Final = "its blocks were evicted before they could be used"
_new = tuple.__new__  # tuple.__new__ is three times as fast as calling the class
# Bytes of a file in one cached block: content or descriptor of its file, offset, and length.
CachedBytes = tuple[int | Content, int, int]


class FileData:
    """Reads and writes the contents of a mount's files."""

    def __init__(  # noqa: PLR0913 - one argument per collaborator
        self,
        db: Database,
        cache: BlockCache,
        changes: Changes,
        attributes: AttributeStore,
        open_files: OpenFiles,
        now_ns: Callable[[], int],
        waiting_room: WaitingRoom,
        *,
        slices: Slices,
    ) -> None:
        self._db = db
        self._cache = cache
        self._changes = changes
        self._attributes = attributes
        self._open_files = open_files
        self._now_ns = now_ns
        self.block_bytes = block_bytes = int(properties.get(db, "block_bytes"))
        self._block_bytes = block_bytes
        self._waiting = waiting_room
        self._slices = slices
        self._capacity = Capacity(db)
        self.read_ahead = ReadAhead(db, cache, open_files, block_bytes)

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait for the store or for room in the cache."""
        return len(self._waiting)

    # --- read files ----------------------------------------------------------------------------

    async def read(self, ino: Ino, offset: int, length: int) -> bytes:
        """Return *length* bytes starting at *offset*, or fewer at the end of the file.

        Raises:
            NoInodeError, InvalidRequestError, RefusesDirectoryError, BusyError: nothing was read.
            StoreError, CorruptionError: some bytes are unavailable; they are never replaced by zeros.

        Yields to other tasks only if a block must be fetched. Opens no transaction.
        """
        found = self.try_read(ino, offset, length)
        if isinstance(found, bytes):
            return found
        return await self.read_after(found, ino, offset, length)

    async def read_after(self, missing: list[Located], ino: Ino, offset: int, length: int) -> bytes:
        """Fetch *missing*, the blocks that ``try_read`` returned, and read again."""
        with self._cache.evictor.keeping() as kept:
            for _ in range(FETCH_ROUNDS_MAX):
                kept.update(located.block for located in missing)
                if missing:
                    await self._fetch(missing, for_read=True)
                found = self.try_read(ino, offset, length)
                if isinstance(found, bytes):
                    return found
                missing = found
        raise StoreUnavailableError(f"inode {ino}", FETCH_ROUNDS_MAX, 0.0, _EVICTED)

    def try_read(self, ino: Ino, offset: int, length: int) -> bytes | list[Located]:
        """Return the bytes if all are cached, otherwise the blocks to fetch.

        The list is empty if a cached block was just evicted; the caller must then try again.

        Raises the same errors as ``read``. Never yields to other tasks.
        """
        attributes = self.regular(ino)
        stop = min(offset + length, attributes.size_bytes)
        if stop <= offset:
            return b""
        self.read_ahead.note(ino, offset, stop)
        try:
            found = self._read_here(ino, offset, stop)
        except NotLocalError:
            return []
        if isinstance(found, bytes):
            self._attributes.accessed(attributes)
        return found

    def find_cached(self, ino: Ino, offset: int, length: int) -> CachedBytes | None:
        """Return the position of the requested bytes, if one cached block contains all of them.

        Returns:
            None if the bytes are not the content of one cached block; then call ``try_read``.

        Raises the same errors as ``read``. Never yields to other tasks.
        """
        attributes = self.regular(ino)
        stop = min(offset + length, attributes.size_bytes)
        index, start = divmod(offset, self._block_bytes)
        end = start + stop - offset
        if not start < end <= self._block_bytes:
            return None
        located = block_map.locate(self._db, ino, BlockIndex(index))
        if located is None or end > located.plain_bytes or not self._cache.is_local(located):
            return None
        self.read_ahead.note(ino, offset, stop)
        source = self._cache.open_local(located, end)
        if source is None:
            return None
        self._attributes.accessed(attributes)
        return source, start, end - start

    def _read_here(self, ino: Ino, offset: int, stop: int) -> bytes | list[Located]:
        cache = self._cache
        index, start = divmod(offset, self._block_bytes)
        end = start + stop - offset
        if end > self._block_bytes:
            return self._read_parts(self._parts(ino, offset, stop))
        located = block_map.locate(self._db, ino, BlockIndex(index))
        if located is None:
            return bytes(end - start)
        if not cache.is_readable(located):
            return [located]
        return cache.read_local(located, start, end)

    def _read_parts(self, parts: list[Part]) -> bytes | list[Located]:
        is_here, read = self._cache.is_readable, self._cache.read_local
        missing = [located for _, located in parts if located is not None and not is_here(located)]
        if missing:
            return missing
        return b"".join(
            bytes(span.stop - span.start)
            if located is None
            else read(located, span.start, span.stop)
            for span, located in parts
        )

    def _parts(self, ino: Ino, offset: int, stop: int) -> list[Part]:
        """Return the parts of a range in a file, each with its block, or None for a hole."""
        index, start = divmod(offset, self._block_bytes)
        end = start + stop - offset
        if end <= self._block_bytes:
            only = BlockIndex(index)
            span = _new(Span, (only, start, end))
            return [(span, block_map.locate(self._db, ino, only))]
        wanted = spans(offset, stop, self._block_bytes)
        found = block_map.locate_range(self._db, ino, wanted[0].block_index, wanted[-1].block_index)
        return [(span, found.get(span.block_index)) for span in wanted]

    # --- write files ---------------------------------------------------------------------------

    async def write(
        self, ino: Ino, offset: int, data: bytes | memoryview, *, sets_times: bool = True
    ) -> int:
        """Write bytes at *offset*; return their number. A gap after the file's end becomes a hole.

        Args:
            ino: a regular file.
            offset: position of the first byte.
            data: the bytes; the caller may reuse the buffer afterwards.
            sets_times: set mtime and ctime to the current time; false if the kernel sends them.

        Raises:
            TooBigError, NoInodeError, InvalidRequestError, RefusesDirectoryError,
            NotPermittedError, ReadOnlyStateError, BusyError: nothing was written.
            NoSpaceLeftError: capacity, cache or disk is full; as with write(2), part of the
                data may have been written.
            StoreError, CorruptionError: the write replaces a part of a block that is unavailable.

        Yields to other tasks only to wait for room or for a block. Opens its own transaction.
        """
        if not data:
            return 0
        missing = self.try_write(ino, offset, data, sets_times=sets_times)
        if missing is None:
            return len(data)
        return await self.write_after(missing, ino, offset, data, sets_times=sets_times)

    def try_write(
        self,
        ino: Ino,
        offset: int,
        data: bytes | memoryview,
        *,
        sets_times: bool,
        has_room: bool = False,
    ) -> list[Located] | None:
        """Write the bytes if the request need not wait.

        Args:
            has_room: the caller has already found room in the cache.

        Returns:
            None if the bytes were written, otherwise the blocks to fetch first. The list is empty
            if the write must wait for room, or if a cached block was just evicted.

        Raises the same errors as ``write``. Never yields to other tasks.
        """
        length = len(data)
        before, parts = self._look_up(ino, offset, offset + length)
        if not sets_times and offset + length <= before.size_bytes and lie_in_dirty_blocks(parts):
            self._overwrite(parts, data)
            return None
        self._changes.require(OPERATION_DISK_BYTES + length)
        if not has_room and not self._cache.has_room(length):
            if not self._cache.find_room(length):
                return []
            # Look up the blocks again, because ``find_room`` may have evicted a block of this file.
            before, parts = self._look_up(ino, offset, offset + length)
        if not before.mapped_blocks and not before.size_bytes and len(parts) == 1:
            self._write_first(before, parts[0][0], data, sets_times=sets_times)
            return None
        plan = plan_write(before, parts, self._cache.is_local)
        if plan.missing:
            return plan.missing
        if plan.copied_bytes:
            self._changes.require(plan.copied_bytes)
        if self._db.counters.capacity_bytes:
            self._capacity.require(plan.added_bytes + self._shared_bytes(plan))
        if plan.overwrites and self._db.group_operations:
            self._db.commit()
        self._changes.open(ino)
        try:
            self._carry_out(plan, offset, data, sets_times=sets_times)
        except NotLocalError:
            return []  # the empty list makes the caller plan the write again
        return None

    async def write_after(
        self,
        missing: list[Located],
        ino: Ino,
        offset: int,
        data: bytes | memoryview,
        *,
        sets_times: bool,
    ) -> int:
        """Wait for *missing*, the blocks that ``try_write`` returned, or for room; then write again."""
        with self._cache.evictor.keeping() as kept:
            for _ in range(FETCH_ROUNDS_MAX):
                kept.update(located.block for located in missing)
                if missing:
                    await self._fetch(missing)
                elif not kept and not self._cache.find_room(len(data)):
                    with self._waiting.entered():
                        await self._cache.wait_for_room(len(data))
                found = self.try_write(ino, offset, data, sets_times=sets_times, has_room=True)
                if found is None:
                    return len(data)
                missing = found
        raise StoreUnavailableError(f"inode {ino}", FETCH_ROUNDS_MAX, 0.0, _EVICTED)

    async def fetch_for_write(self, ino: Ino, offset: int, length: int) -> None:
        """Fetch the blocks of which a write would replace only a part; change no file.

        Raises the same errors as ``write``. Yields to other tasks only if a block must be fetched.
        """
        before, parts = self._look_up(ino, offset, offset + length)
        missing = plan_write(before, parts, self._cache.is_local).missing
        if missing:
            await self._fetch(missing)

    def _look_up(self, ino: Ino, offset: int, stop: int) -> tuple[Attributes, list[Part]]:
        """Return the attributes of a file, and the parts of a range with their blocks."""
        if stop > FILE_BYTES_MAX:
            raise TooBigError(ino, stop)
        try:
            before = self.regular(ino)
            if before.flags:
                require_writable(before, self._open_files)
            # Test both, because either may be 0 in a damaged row although the file has blocks.
            if before.mapped_blocks or before.size_bytes:
                return before, self._parts(ino, offset, stop)
            return before, [(span, None) for span in spans(offset, stop, self._block_bytes)]
        except (BadRowError, DamagedDatabaseError) as exc:
            exc.changed_nothing = True
            raise

    def _shared_bytes(self, plan: WritePlan) -> int:
        """Return the length of the replaced blocks that other files still use."""
        return sum(
            located.plain_bytes
            for _span, located, how in plan.steps
            if located is not None
            and how is not How.IN_PLACE
            and blocks.get(self._db, located.block).refs > 1
        )

    def _overwrite(self, parts: list[Part], data: bytes | memoryview) -> None:
        """Write bytes inside dirty blocks, without changing a row."""
        self._changes.require(len(data))
        if self._db.group_operations:
            self._db.commit()
        write, done = self._cache.write_in_place, 0
        for (_, start, stop), located in parts:
            assert located is not None, "a hole cannot be overwritten"
            length = stop - start
            write(located, start, data if len(parts) == 1 else data[done : done + length])
            done += length

    def _write_first(
        self, before: Attributes, span: Span, data: bytes | memoryview, *, sets_times: bool
    ) -> None:
        """Write a range inside one block of an empty file, without a plan."""
        ino, (index, start, end) = before.ino, span
        if self._db.counters.capacity_bytes:
            self._capacity.require(end)
        self._changes.open(ino)
        self._cache.write_new(ino, index, start, data)
        self._note_write(before, index * self._block_bytes + end, 1, sets_times=sets_times)

    def _carry_out(
        self, plan: WritePlan, offset: int, data: bytes | memoryview, *, sets_times: bool
    ) -> None:
        """Write all parts without a schedule point. Rows match the content even after an error."""
        before, source = plan.before, memoryview(data)
        done = mapped = 0
        try:
            for step in plan.steps:
                length = step.span.stop - step.span.start
                mapped += self._write_step(before, step, source[done : done + length])
                done += length
        finally:
            if done and self._db.in_group:
                self._note_write(before, offset + done, mapped, sets_times=sets_times)

    def _write_step(self, file: Attributes, step: WritePart, data: memoryview) -> int:
        """Write one part; return by how many blocks the file grows: 1 if the part was a hole."""
        span, before, how = step
        file_bytes = min(file.size_bytes - span.block_index * self._block_bytes, self._block_bytes)
        if how is How.NEW:
            self._cache.write_new(
                file.ino,
                span.block_index,
                span.start,
                data,
                replaced=before,
                file_bytes=file_bytes,
            )
            return before is None
        assert before is not None, "only a hole has no block"
        if how is How.IN_PLACE:
            self._cache.write_in_place(before, span.start, data, file_bytes)
            return 0
        block = self._write_copy(file.ino, span, before, data, file_bytes)
        self._remap(file.ino, span.block_index, before, block)
        return 0

    def _write_copy(
        self, ino: Ino, span: Span, located: Located, data: memoryview, file_bytes: int
    ) -> BlockId:
        index, keep_bytes = span.block_index, bytes_to_keep(span, located.plain_bytes)
        file_bytes = max(file_bytes, located.plain_bytes)  # the size in a damaged row may be 0
        block = self._cache.copy_on_write(located, ino, index, keep_bytes, file_bytes)
        copied = Located(block, keep_bytes, None, None, None, None, BlockState.DIRTY)
        try:
            self._cache.write_in_place(copied, span.start, data)
        except S3fsError:
            if self._db.in_group:
                self._cache.release(block)  # no file refers to the new block yet
            raise
        return block

    def _remap(self, ino: Ino, index: BlockIndex, before: Located, block: BlockId) -> None:
        """Replace the block at one index of a file with another block."""
        block_map.replace(self._db, ino, index, before.block, block)
        self._cache.release(before.block)

    def _note_write(self, before: Attributes, stop: int, mapped: int, *, sets_times: bool) -> None:
        size_bytes = max(before.size_bytes, stop)
        if sets_times:
            inodes.set_size_and_mtime(
                self._db,
                before.ino,
                size_bytes,
                self._now_ns(),
                mapped,
            )
        elif mapped or size_bytes != before.size_bytes:
            inodes.set_size(self._db, before.ino, size_bytes, mapped)

    # --- change the size of a file -------------------------------------------------------------

    async def truncate(self, ino: Ino, size_bytes: int, *, sets_times: bool = True) -> None:
        """Set the size of a regular file. Content beyond the size is removed; an extension is a hole.

        If one slice cannot release all blocks, the file is shortened in several slices,
        from its end. After each slice, and after a crash, the file is valid but shorter. The block at
        the new end is fetched first: if a slice were followed by an error, the kernel would keep the
        earlier size.

        Raises:
            TooBigError, NoInodeError, InvalidRequestError, RefusesDirectoryError,
            NotPermittedError, ReadOnlyStateError, NoSpaceLeftError, BusyError: the file is
                unchanged, or shorter.
            StoreError, CorruptionError: the block at the new end is unavailable; if the block was
                not evicted meanwhile, the file is unchanged.

        Yields to other tasks only between slices and during a fetch. Opens its own transaction.
        """
        if size_bytes > FILE_BYTES_MAX:
            raise TooBigError(ino, size_bytes)
        plan = cut(size_bytes, self._block_bytes)
        fetched = 0
        while fetched <= FETCH_ROUNDS_MAX:
            before = self.regular(ino)
            require_changeable(before)
            if size_bytes >= before.size_bytes:
                self._resize(before, size_bytes, sets_times=sets_times)
                return
            split = block_map.locate(self._db, ino, plan.keep_index) if plan.keep_bytes else None
            if split is not None and not self._cache.is_local(split):
                fetched += 1
                await self._fetch([split])
                continue
            if split is not None:
                self._require_copy(before.ino, plan, split)
            if self.cut_piece(before, plan.remove_from):
                await trio.lowlevel.checkpoint()
                continue
            try:
                self._cut_last(before, size_bytes, split, sets_times=sets_times)
            except NotLocalError:
                fetched += 1
                continue
            return
        raise StoreUnavailableError(f"inode {ino}", FETCH_ROUNDS_MAX, 0.0, _EVICTED)

    def _require_copy(self, ino: Ino, plan: Shortening, split: Located) -> None:
        """Raise NoSpaceLeftError if a shared block at the new end cannot be copied.

        The blocks after the new end count as free space, unless other files share these blocks.
        """
        if not self._db.counters.capacity_bytes or split.plain_bytes <= plan.keep_bytes:
            return
        if blocks.get(self._db, split.block).refs > 1:
            count = self._slices.purged_blocks
            removed = blocks.mapped_from(self._db, ino, plan.remove_from, count)
            freed_bytes = sum(row.plain_bytes for _index, row in removed if row.refs == 1)
            self._capacity.require(plan.keep_bytes - freed_bytes)

    def _resize(self, before: Attributes, size_bytes: int, *, sets_times: bool) -> None:
        if size_bytes == before.size_bytes and not sets_times:
            return
        self._changes.begin(before.ino)
        self._set_size(before, size_bytes, 0, sets_times=sets_times)

    def _set_size(
        self, before: Attributes, size_bytes: int, mapped: int, *, sets_times: bool
    ) -> None:
        now_ns = self._now_ns()
        inodes.replace(
            self._db,
            before._replace(
                size_bytes=size_bytes,
                mapped_blocks=before.mapped_blocks + mapped,
                mtime_ns=now_ns if sets_times else before.mtime_ns,
                ctime_ns=now_ns if sets_times else before.ctime_ns,
            ),
        )

    def cut_piece(self, before: Attributes, remove_from: BlockIndex) -> bool:
        """Shorten a file by one slice, unless one suffices; return whether it was shortened."""
        mapped = block_map.indexes_from(
            self._db, before.ino, remove_from, self._slices.purged_blocks + 1
        )
        if len(mapped) <= self._slices.purged_blocks:
            return False
        mapped = block_map.last_indexes(
            self._db, before.ino, remove_from, self._slices.purged_blocks
        )
        self._changes.begin(before.ino)
        unmap(self._db, self._cache, before.ino, mapped)
        lowest = min(index for index, _ in mapped)
        size_bytes = min(before.size_bytes, lowest * self._block_bytes)
        self._set_size(before, size_bytes, -len(mapped), sets_times=True)
        return True

    def _cut_last(
        self, before: Attributes, size_bytes: int, split: Located | None, *, sets_times: bool
    ) -> None:
        plan = cut(size_bytes, self._block_bytes)
        if split is not None and split.plain_bytes > plan.keep_bytes:
            self._changes.require(OPERATION_DISK_BYTES + plan.keep_bytes)
            self._changes.open(before.ino)
            # Shorten a copy of the block, because the last commit refers to the bytes to remove.
            block = self._cache.copy_on_write(split, before.ino, plan.keep_index, plan.keep_bytes)
            self._remap(before.ino, plan.keep_index, split, block)
        else:
            self._changes.begin(before.ino)
            if split is not None:
                self._cache.copies.note_cut(split.block, plan.keep_bytes)
        mapped = block_map.indexes_from(
            self._db, before.ino, plan.remove_from, self._slices.purged_blocks
        )
        unmap(self._db, self._cache, before.ino, mapped)
        self._set_size(before, size_bytes, -len(mapped), sets_times=sets_times)

    # --- wait for blocks -----------------------------------------------------------------------

    def regular(self, ino: Ino) -> Attributes:
        """Return the attributes of a regular file.

        Raises:
            NoInodeError, InvalidRequestError, RefusesDirectoryError: the inode is not a regular file.
        """
        attributes = inodes.get(self._db, ino)
        kind = attributes.mode & _TYPE
        if kind != _REGULAR:
            if kind == _DIRECTORY:
                raise RefusesDirectoryError(ino)
            raise InvalidRequestError("operation not supported on a special file: inode", ino)
        return attributes

    async def _fetch(self, missing: list[Located], *, for_read: bool = False) -> None:
        """Fetch blocks; raise BusyError if too many requests are waiting."""
        with self._waiting.entered():
            if len(missing) == 1:
                await self._cache.fetch(missing[0], for_read=for_read)
            else:
                await self._fetch_all(missing, for_read=for_read)

    async def _fetch_all(self, missing: list[Located], *, for_read: bool) -> None:
        """Fetch several blocks concurrently; raise the first error, not an exception group."""
        fetch = partial(self._cache.fetch, for_read=for_read)
        await run_concurrently(partial(fetch, located) for located in missing)
