"""Uncached reads: block content read from packs, for callers that read each block once.

Owns: the combination of requests: one request reads adjacent blocks, or a *window* (a range of a
pack with many small blocks).
Does not know: files, cached blocks (which ``cache.fetching.fetcher`` downloads).
Keeps: the content of a missing or damaged block is returned as b"", never as zeros. The caller
reports lost content; the log shows the reason for each block that had to be read elsewhere.
Tasks: any number of tasks may read concurrently.
"""

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.fetching.fetcher import Found
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import CorruptionError, ObjectMissingError
from s3fs_meta.limits import (
    CONTENT_RUN_BYTES,
    CONTENT_WINDOWS_MAX,
    NEIGHBOUR_FETCH_BYTES,
    SMALL_BLOCK_BYTES,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import packs
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import ObjectKey, PackId
from s3fs_meta.objects.contract import ObjectStore

_log = logging.getLogger(__name__)

FindOtherCopy = Callable[[Located], Awaitable[Found | None]]


class Content(NamedTuple):
    """The content of a block, or its beginning if only a part is available."""

    data: bytes
    sure_bytes: int  # number of verified bytes at the beginning; later bytes may be wrong


class _Window:
    """A range of a pack that is fetched once, for all small blocks in it."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.data: bytes | memoryview | None = None


class _Record(NamedTuple):
    """The location of a block's record in a pack, and the row of the block."""

    pack: PackId
    start: int
    stop: int
    located: Located


class UncachedReader:
    """Reads the uploaded blocks of one database."""

    def __init__(
        self,
        db: Database,
        store: ObjectStore,
        keyring: Keyring,
        find_other_copy: FindOtherCopy | None = None,
        *,
        windows_max: int = CONTENT_WINDOWS_MAX,
    ) -> None:
        """Create a reader for the blocks of *db*.

        Args:
            find_other_copy: finds another location for a block whose recorded location is damaged.
            windows_max: the maximum number of windows (ranges around small blocks) in memory.
        """
        self._db = db
        self._store = store
        self._keyring = keyring
        self._find_other_copy = find_other_copy
        self._windows_max = windows_max
        self._windows: OrderedDict[tuple[PackId, int], _Window] = OrderedDict()

    async def read(self, wanted: Sequence[Located]) -> list[Content]:
        """Return the content of blocks, in the order of *wanted*; a lost block is empty.

        Raises:
            StoreError: the bucket cannot be reached.
        """
        found: list[Content] = []
        for run in _runs(wanted):
            found += [Content(data, len(data)) for data in await self._read_run(run)]
        for number, located in enumerate(wanted):
            if not found[number].data and located.plain_bytes and self._find_other_copy is not None:
                data = await self._read_elsewhere(located, self._find_other_copy)
                found[number] = Content(data, len(data))
        return found

    async def _read_elsewhere(self, located: Located, find: FindOtherCopy) -> bytes:
        """Return the content of a block from another location, or b"" if there is none."""
        other = await find(located)
        if other is None:
            return b""
        start, stop = other.pack_offset, other.pack_offset + other.stored_bytes
        try:
            stored = await self._store.get_range(other.object_key, start, stop)
        except (ObjectMissingError, CorruptionError) as exc:
            _log.info("%s", exc)
            return b""
        record = _Record(PackId(0), start, stop, located)
        return (await in_thread(self._open_all, other.object_key, start, stored, [record]))[0]

    async def _read_run(self, run: list[_Record | None]) -> list[bytes]:
        """Return the content of adjacent blocks."""
        first = run[0]
        if first is None:  # the content of this block is recorded as lost
            return [b""]
        records = [one for one in run if one is not None]
        key = packs.object_key(self._db, first.pack)
        stored: bytes | memoryview | None = None
        try:
            if first.stop - first.start < SMALL_BLOCK_BYTES and len(records) == 1:
                stored = await self._from_window(key, first)
            else:
                stored = await self._store.get_range(key, first.start, records[-1].stop)
        except (ObjectMissingError, CorruptionError) as exc:
            _log.info("%s", exc)
        if stored is not None:
            return await in_thread(self._open_all, key, first.start, stored, records)
        if len(records) == 1:
            return [b""]
        # A truncated object may have lost only its last blocks, so read each block alone.
        return [data for one in records for data in await self._read_run([one])]

    async def _from_window(self, key: ObjectKey, record: _Record) -> bytes | memoryview:
        """Return a small record; keep the window around it in memory for neighbouring records."""
        number = record.start // NEIGHBOUR_FETCH_BYTES
        begin = number * NEIGHBOUR_FETCH_BYTES
        if record.stop > begin + NEIGHBOUR_FETCH_BYTES:  # the record extends beyond the read window
            return await self._store.get_range(key, record.start, record.stop)
        window = self._windows.setdefault((record.pack, number), _Window())
        self._windows.move_to_end((record.pack, number))
        if len(self._windows) > self._windows_max:
            self._windows.popitem(last=False)
        async with window.lock:
            if window.data is None:
                size_bytes = packs.object_bytes(self._db, record.pack)
                stop = max(record.stop, min(begin + NEIGHBOUR_FETCH_BYTES, size_bytes))
                with contextlib.suppress(
                    CorruptionError
                ):  # the object is truncated, but some records may be intact
                    window.data = await self._store.get_range(key, begin, stop)
        if window.data is None:
            return await self._store.get_range(key, record.start, record.stop)
        return window.data[record.start - begin : record.stop - begin]

    def _open_all(
        self, key: ObjectKey, start: int, stored: bytes | memoryview, records: Sequence[_Record]
    ) -> list[bytes]:
        """Verify and unpack the records in a range of a pack. The call blocks."""
        return [
            self._open(key, memoryview(stored)[one.start - start : one.stop - start], one)
            for one in records
        ]

    def _open(self, key: ObjectKey, record: memoryview, one: _Record) -> bytes:
        row = one.located
        assert row.hash is not None, "an uploaded block has a hash"
        try:
            return pack_codec.open_block(
                self._keyring, key, record, one.start, row.plain_bytes, row.hash
            )
        except CorruptionError as exc:
            _log.info("%s", exc)
            return b""


def _runs(wanted: Sequence[Located]) -> Iterator[list[_Record | None]]:
    """Yield runs of blocks that one request can fetch; a block without a location yields [None]."""
    run: list[_Record | None] = []
    for located in wanted:
        record = _record(located)
        last = run[-1] if run else None
        if last is not None and record is not None and _follows(run, last, record):
            run.append(record)
            continue
        if run:
            yield run
        run = [record]
    if run:
        yield run


def _follows(run: list[_Record | None], last: _Record, record: _Record) -> bool:
    first = run[0]
    assert first is not None, "a block without a location must be alone in its run"
    beside = record.pack == last.pack and record.start == last.stop
    return beside and record.stop - first.start <= CONTENT_RUN_BYTES


def _record(located: Located) -> _Record | None:
    if located.pack is None:
        return None
    assert located.pack_offset is not None, "a block with a pack has an offset"
    assert located.stored_bytes is not None, "a block with a pack has a length"
    start = located.pack_offset
    return _Record(located.pack, start, start + located.stored_bytes, located)
