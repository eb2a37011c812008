"""The content of regular files: read, write, truncate.

Owns: how ranges of bytes meet blocks; sizes and mapped blocks of inodes.
Does not know: names, where blocks are kept (``cache``).
Keeps: ``inodes.mapped_blocks`` equals the rows of the map; no block reaches past the size of its
file, so growing a file never shows old bytes.

There is no lock. Every request is a loop: look up everything that it needs; if a block must be
fetched, wait for it and look again; else do the whole work in one stretch without a schedule
point. What happened while it waited is therefore always seen.

Order after a kill: rows become visible at the next group commit, but bytes that are written into
a dirty block are visible at once. So a write over bytes that a commit has shown first commits the
open group: otherwise it would survive a crash that undoes operations older than itself.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, TypeVar

import trio

from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.errors import (
    BadRowError,
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
    Span,
    Step,
    bytes_to_keep,
    cut,
    how_to_write,
    spans,
)
from s3fs_meta.fs.content.read_ahead import ReadAhead
from s3fs_meta.fs.open_files import OpenFiles
from s3fs_meta.fs.orphans import unmap
from s3fs_meta.fs.protection import require_changeable, require_writable
from s3fs_meta.fs.waiting_room import WaitingRoom
from s3fs_meta.fs.write_gate import Changes
from s3fs_meta.limits import (
    FETCH_ROUNDS_MAX,
    FILE_BYTES_MAX,
    PURGE_BLOCKS_MAX,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, inodes, properties
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import Attributes, BlockId, BlockIndex, BlockState, Ino

_T = TypeVar("_T")

_TYPE: Final = 0o170000
_REGULAR: Final = 0o100000
_DIRECTORY: Final = 0o040000


class FileData:
    """Contents of the files of one mount."""

    def __init__(
        self,
        db: Database,
        cache: BlockCache,
        changes: Changes,
        attributes: AttributeStore,
        open_files: OpenFiles,
        now_ns: Callable[[], int],
        waiting_room: WaitingRoom,
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
        self._capacity = Capacity(db)
        self.read_ahead = ReadAhead(db, cache, open_files, block_bytes)

    @property
    def waiting(self) -> int:
        """Return how many requests wait for the store or for room."""
        return len(self._waiting)

    # --- reading -------------------------------------------------------------------------------

    async def read(self, ino: Ino, offset: int, length: int) -> bytes:
        """Return the bytes from *offset* on, *length* of them or up to the end of the file.

        Raises:
            NoInodeError, InvalidRequestError, RefusesDirectoryError, BusyError.
            StoreError, CorruptionError: some of them are not to be had; nothing is invented.

        Schedule point: only if a block must be fetched.  Transaction: none.
        """
        for _ in range(FETCH_ROUNDS_MAX):
            found = self.try_read(ino, offset, length)
            if isinstance(found, bytes):
                return found
            if found:
                await self._fetch(found)
        raise StoreUnavailableError(
            f"inode {ino}", FETCH_ROUNDS_MAX, 0.0, "evicted again and again"
        )

    def try_read(self, ino: Ino, offset: int, length: int) -> bytes | list[Located]:
        """Return the bytes if all are local, else the blocks to fetch: none if one is just gone.

        Raises as ``read``.  Schedule point: never.
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

    def _read_here(self, ino: Ino, offset: int, stop: int) -> bytes | list[Located]:
        index, start = divmod(offset, self._block_bytes)
        end = start + stop - offset
        if end > self._block_bytes:
            wanted = spans(offset, stop, self._block_bytes)
            found = self._locate(ino, wanted)
            return self._not_local(found) or self._read_local(wanted, found)
        located = block_map.locate(self._db, ino, BlockIndex(index))
        if located is None:
            return bytes(end - start)
        if not self._cache.is_local(located):
            return [located]
        return self._cache.read_local(located, start, end)

    def _locate(self, ino: Ino, wanted: list[Span]) -> list[Located | None]:
        """Return the block of each part, None for holes."""
        if len(wanted) == 1:
            return [block_map.locate(self._db, ino, wanted[0].block_index)]
        found = block_map.locate_range(self._db, ino, wanted[0].block_index, wanted[-1].block_index)
        return [found.get(span.block_index) for span in wanted]

    def _not_local(self, found: list[Located | None]) -> list[Located]:
        is_local = self._cache.is_local
        return [located for located in found if located is not None and not is_local(located)]

    def _read_local(self, wanted: list[Span], found: list[Located | None]) -> bytes:
        read = self._cache.read_local
        parts = [
            bytes(span.stop - span.start)
            if located is None
            else read(located, span.start, span.stop)
            for span, located in zip(wanted, found, strict=True)
        ]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # --- writing -------------------------------------------------------------------------------

    async def write(
        self, ino: Ino, offset: int, data: bytes | memoryview, *, sets_times: bool = True
    ) -> int:
        """Write bytes at *offset*; a gap past the end becomes a hole. Return their number.

        Args:
            ino: a regular file.
            offset: counted from 0.
            data: not kept after return.
            sets_times: mtime and ctime become now; false where the kernel sends them.

        Raises:
            TooBigError, NoInodeError, InvalidRequestError, ReadOnlyStateError, BusyError.
            NoSpaceLeftError: capacity, cache or disk is full; as with write(2), part of the
                data may have been written.
            StoreError, CorruptionError: a block that keeps some of its bytes is not to be had.

        Schedule point: only if it must wait for room or for a block.  Transaction: its own.
        """
        if not data:
            return 0
        if not sets_times and self._overwrite(ino, offset, data):
            return len(data)
        return await self._write(ino, offset, data, sets_times=sets_times)

    def write_collected(
        self, ino: Ino, offset: int, data: bytes
    ) -> int | Coroutine[None, None, int]:
        """As ``write`` of what the kernel has collected; at once where that changes no row."""
        if not data or self._overwrite(ino, offset, data):
            return len(data)
        return self._write(ino, offset, data, sets_times=False)

    async def _write(
        self, ino: Ino, offset: int, data: bytes | memoryview, *, sets_times: bool
    ) -> int:
        stop = offset + len(data)
        if stop > FILE_BYTES_MAX:
            raise TooBigError(ino, stop)
        self._changes.require()
        if not self._cache.find_room(len(data)):
            await self._wait(self._cache.wait_for_room, len(data))
        wanted = spans(offset, stop, self._block_bytes)
        for _ in range(FETCH_ROUNDS_MAX):
            try:
                before = self.regular(ino)
                require_writable(before, self._open_files)
                steps = self._plan(ino, wanted)
            except BadRowError as exc:
                exc.changed_nothing = True
                raise
            missing = [step.located for step in steps if step.how is How.FETCH and step.located]
            if missing:
                await self._fetch(missing)
                continue
            try:
                self._write_steps(before, offset, memoryview(data), steps, sets_times=sets_times)
            except NotLocalError:
                continue  # parts already written are written once more
            return len(data)
        raise StoreUnavailableError(
            f"inode {ino}", FETCH_ROUNDS_MAX, 0.0, "evicted again and again"
        )

    def _overwrite(self, ino: Ino, offset: int, data: bytes | memoryview) -> bool:
        """Write into one dirty block if that changes no row; return whether it did."""
        before = self.regular(ino)
        require_writable(before, self._open_files)
        index, start = divmod(offset, self._block_bytes)
        located = block_map.locate(self._db, ino, BlockIndex(index))
        if (
            located is None
            or located.state is not BlockState.DIRTY
            or start + len(data) > located.plain_bytes
            or offset + len(data) > before.size_bytes
        ):
            return False
        self._changes.require(len(data))
        if self._db.group_operations:
            self._db.commit()
        self._cache.write_in_place(located, start, data)
        return True

    def _plan(self, ino: Ino, wanted: list[Span]) -> list[Step]:
        is_local = self._cache.is_local
        return [
            Step(
                span,
                located,
                how_to_write(span, located, is_local=located is None or is_local(located)),
            )
            for span, located in zip(wanted, self._locate(ino, wanted), strict=True)
        ]

    def _write_steps(
        self,
        before: Attributes,
        offset: int,
        data: memoryview,
        steps: list[Step],
        *,
        sets_times: bool,
    ) -> None:
        """Write everything in one stretch; rows tell the truth about it also after a failure."""
        self._require_capacity(steps)
        if self._db.group_operations and any(_overwrites(step) for step in steps):
            self._db.commit()
        self._changes.begin(before.ino)
        done = mapped = 0
        try:
            for step in steps:
                length = step.span.stop - step.span.start
                mapped += self._write_step(before.ino, step, data[done : done + length])
                done += length
        finally:
            if done and self._db.in_group:
                self._note_write(before, offset + done, mapped, sets_times=sets_times)

    def _write_step(self, ino: Ino, step: Step, data: memoryview) -> int:
        """Write one part; return 1 if it filled a hole, else 0."""
        span = step.span
        if step.how is How.IN_PLACE:
            self._cache.write_in_place(_present(step), span.start, data)
            return 0
        if step.how is How.NEW:
            block = self._cache.write_new(
                ino, span.block_index, span.start, data, replaced=step.located
            )
        else:
            block = self._write_copy(ino, span, _present(step), data)
        return self._map(ino, span.block_index, step.located, block)

    def _write_copy(self, ino: Ino, span: Span, located: Located, data: memoryview) -> BlockId:
        keep_bytes = bytes_to_keep(span, located.plain_bytes)
        block = self._cache.copy_on_write(located, ino, span.block_index, keep_bytes)
        copied = Located(block, keep_bytes, None, None, None, None, BlockState.DIRTY)
        try:
            self._cache.write_in_place(copied, span.start, data)
        except S3fsError:
            if self._db.in_group:
                self._cache.release(block)  # no row names it
            raise
        return block

    def _map(self, ino: Ino, index: BlockIndex, before: Located | None, block: BlockId) -> int:
        """Let a block hold a part of a file; return 1 if that was a hole, else 0."""
        if before is None:
            block_map.replace(self._db, ino, index, None, block)
            return 1
        block_map.replace(self._db, ino, index, before.block, block)
        self._cache.release(before.block)
        return 0

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

    def _require_capacity(self, steps: list[Step]) -> None:
        if self._db.counters.capacity_bytes:
            self._capacity.require(
                sum(
                    max(step.span.stop - (step.located.plain_bytes if step.located else 0), 0)
                    for step in steps
                )
            )

    # --- size ----------------------------------------------------------------------------------

    async def truncate(self, ino: Ino, size_bytes: int, *, sets_times: bool = True) -> None:
        """Set the size of a regular file. What is cut off is gone; what is added is a hole.

        Cutting off more than PURGE_BLOCKS_MAX blocks goes from the end towards *size_bytes* in
        pieces, each of which leaves a sound, shorter file, also after a crash.

        Raises:
            TooBigError, NoInodeError, InvalidRequestError, RefusesDirectoryError,
            ReadOnlyStateError, NoSpaceLeftError, BusyError.
            StoreError, CorruptionError: the block that is cut in two is not to be had.

        Schedule point: only for a large file or a fetch.  Transaction: its own.
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
            if self._cut_piece(before, plan.remove_from):
                await trio.lowlevel.checkpoint()
                continue
            split = block_map.locate(self._db, ino, plan.keep_index) if plan.keep_bytes else None
            if split is not None and not self._cache.is_local(split):
                fetched += 1
                await self._fetch([split])
                continue
            try:
                self._cut_last(before, size_bytes, split, sets_times=sets_times)
            except NotLocalError:
                fetched += 1
                continue
            return
        raise StoreUnavailableError(
            f"inode {ino}", FETCH_ROUNDS_MAX, 0.0, "evicted again and again"
        )

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

    def _cut_piece(self, before: Attributes, remove_from: BlockIndex) -> bool:
        """Cut one piece off the end if there are more than one stretch may release."""
        blocks = block_map.indexes_from(self._db, before.ino, remove_from, PURGE_BLOCKS_MAX + 1)
        if len(blocks) <= PURGE_BLOCKS_MAX:
            return False
        blocks = block_map.last_indexes(self._db, before.ino, remove_from, PURGE_BLOCKS_MAX)
        self._changes.begin(before.ino)
        unmap(self._db, self._cache, before.ino, blocks)
        lowest = min(index for index, _ in blocks)
        size_bytes = min(before.size_bytes, lowest * self._block_bytes)
        self._set_size(before, size_bytes, -len(blocks), sets_times=True)
        return True

    def _cut_last(
        self, before: Attributes, size_bytes: int, split: Located | None, *, sets_times: bool
    ) -> None:
        plan = cut(size_bytes, self._block_bytes)
        self._changes.begin(before.ino)
        if split is not None and split.plain_bytes > plan.keep_bytes:
            # Never in place: the bytes that go are visible as of the last commit.
            block = self._cache.copy_on_write(
                split, before.ino, plan.keep_index, plan.keep_bytes, cuts=True
            )
            self._map(before.ino, plan.keep_index, split, block)
        blocks = block_map.indexes_from(self._db, before.ino, plan.remove_from, PURGE_BLOCKS_MAX)
        unmap(self._db, self._cache, before.ino, blocks)
        self._set_size(before, size_bytes, -len(blocks), sets_times=sets_times)

    # --- waiting -------------------------------------------------------------------------------

    def regular(self, ino: Ino) -> Attributes:
        """Return the attributes of a regular file.

        Raises:
            NoInodeError, InvalidRequestError, RefusesDirectoryError.
        """
        attributes = inodes.get(self._db, ino)
        kind = attributes.mode & _TYPE
        if kind != _REGULAR:
            if kind == _DIRECTORY:
                raise RefusesDirectoryError(ino)
            raise InvalidRequestError("file type of inode", ino)
        return attributes

    async def _wait(self, function: Callable[[_T], Awaitable[None]], argument: _T) -> None:
        """Wait for the store, unless so many do that metadata requests would find no worker."""
        with self._waiting.entered():
            await function(argument)

    async def _fetch(self, missing: list[Located]) -> None:
        if len(missing) == 1:
            await self._wait(self._cache.fetch, missing[0])
        else:
            await self._wait(self._fetch_all, missing)

    async def _fetch_all(self, missing: list[Located]) -> None:
        """Fetch several blocks at once; raise the first error, as it was."""
        errors: list[S3fsError] = []

        async def fetch(located: Located) -> None:
            try:
                await self._cache.fetch(located)
            except S3fsError as exc:
                errors.append(exc)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for located in missing:
                nursery.start_soon(fetch, located)
        if errors:
            raise errors[0]


def _present(step: Step) -> Located:
    assert step.located is not None, "only a hole has no block"
    return step.located


def _overwrites(step: Step) -> bool:
    """Return whether a step changes bytes that may be visible already, where they are."""
    return step.how is How.IN_PLACE and step.span.start < _present(step).plain_bytes
