"""Comparing index objects of the history with the changelogs that they describe.

Owns: finding index objects that are damaged or contradict their changelogs.
Does not know: removing index objects (fsck) and replacing them (``index_writer``).
Keeps: an unreadable changelog is not a fault of the index. Changes at level 1 are compared
only if all changelogs of the run were read; changes at higher levels are compared with the valid
objects of the level below. Hashes are compared with the changelogs at both ends of the run.
"""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Final

from s3fs_meta.background_task import in_thread
from s3fs_meta.codec import envelope
from s3fs_meta.codec.envelope import ENCODED_BYTES_MAX
from s3fs_meta.codec.history_index import ALL_BITS, RUNS, HistoryIndex
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, NewerFormatError, ObjectMissingError, ObjectTooLargeError
from s3fs_meta.limits import HISTORY_FAN_OUT
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.history.index import index_runs
from s3fs_meta.sync.history.index.index_runs import RunMerger, TooManyChangesError

_DIFFERS: Final = "it differs from the changes in its changelogs"


class IndexChecker:
    """Compares the index objects of one filesystem with its changelogs."""

    def __init__(self, store: ObjectStore, keyring: Keyring, uuid: str) -> None:
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        # foreign objects whose keys have the form of index objects
        self.foreign: list[ObjectKey] = []
        self._faults: dict[ObjectKey, str | None] = {}  # faults that earlier checks found

    async def fault(self, key: ObjectKey) -> str | None:
        """Return why an index object must not be used, or None if no fault is found.

        An object of level 1 is compared with its changelogs. An object of a higher level is
        compared with the valid objects of the level below. An index object that was written by a
        newer version of the program is accepted.

        Raises:
            StoreError: the bucket cannot be read.
        """
        if key not in self._faults:
            self._faults[key] = await self._check(key)
        return self._faults[key]

    async def _check(self, key: ObjectKey) -> str | None:
        try:
            data = (await self._store.get(key, ENCODED_BYTES_MAX)).data
        except ObjectMissingError:
            return None
        except ObjectTooLargeError:
            data = b""
        if not envelope.is_framed(data):
            self.foreign.append(key)
            return None
        try:
            return await self._fault_of(
                await index_runs.decoded(key, data, self._keyring, self._uuid)
            )
        except NewerFormatError:
            return None
        except FormatError as exc:
            return exc.what

    async def _fault_of(self, index: HistoryIndex) -> str | None:
        """Return the fault of an authentic index object, or None if no fault is found."""
        ends = ((index.first, index.previous), (Txg(index.last + 1), index.hash))
        for txg, text in ends:
            found = await chain.hash_before(self._store, self._keyring, self._uuid, txg)
            if found is not None and found != text:
                return "it describes changelogs of another history"
        if index.level > 1:
            return await self._differs_from_parts(index)
        try:
            made = await self._of_txgs(index)
        except TooManyChangesError:
            return "its changelogs have more changes than an index object may contain"
        return None if made is None or made == index else _DIFFERS

    async def _of_txgs(self, index: HistoryIndex) -> HistoryIndex | None:
        """Return an index made from the changelogs, or None if a changelog cannot be read."""
        merger = RunMerger(1, self._uuid)
        for at, txg in enumerate(range(index.first, index.last + 1)):
            try:
                fetched = await chain.fetch(self._store, self._keyring, self._uuid, Txg(txg))
                changes = await index_runs.changes_of(self._store, self._keyring, fetched)
            except (FormatError, ObjectMissingError):
                return None
            if index.unknown >> at & 1:
                changes = changes._replace(changes=None)
            merger.add_txg(at, changes)
            if merger.is_full:
                await in_thread(merger.join)
        return await in_thread(merger.finish)

    async def _differs_from_parts(self, index: HistoryIndex) -> str | None:
        """Compare an index object with the valid objects one level below; return any fault."""
        step = HISTORY_FAN_OUT ** (index.level - 1)
        for bit, end in enumerate(range(index.first + step - 1, index.last + 1, step)):
            if index.unknown >> bit & 1:
                continue
            part = await self._valid(RUNS.key_of(index.level - 1, Txg(end)))
            # A part that was indexed again after a changelog was lost may lack changes of *index*.
            if part is None or part.unknown:
                continue
            if not await in_thread(_has_changes, index, bit, part):
                return _DIFFERS
        return None

    async def _valid(self, key: ObjectKey) -> HistoryIndex | None:
        """Return an index object, or None if it is missing or has a fault."""
        if await self.fault(key) is not None:
            return None
        try:
            data = (await self._store.get(key, ENCODED_BYTES_MAX)).data
            return await index_runs.decoded(key, data, self._keyring, self._uuid)
        except (FormatError, ObjectMissingError):
            return None


def _has_changes(index: HistoryIndex, bit: int, part: HistoryIndex) -> bool:
    """Return whether an index has the same changes for a part as the part's own index. Blocks."""
    same_inodes = all(
        one == other for one, other in zip_longest(_inodes(index, 1 << bit), _inodes(part))
    )
    return same_inodes and all(
        one == other for one, other in zip_longest(_names(index, 1 << bit), _names(part))
    )


def _inodes(index: HistoryIndex, mask: int = ALL_BITS) -> Iterator[tuple[int, bool, bool]]:
    """Yield each inode changed in the parts of *mask*, with flags: content, other changes."""
    for ino, content, other in index.inodes:
        if (content | other) & mask:
            yield ino, bool(content & mask), bool(other & mask)


def _names(index: HistoryIndex, mask: int = ALL_BITS) -> Iterator[tuple[int, bytes, int, int]]:
    """Yield the names that were removed in the parts of the run that *mask* selects."""
    for row in index.names:
        if row.mask & mask:
            yield row[:4]
