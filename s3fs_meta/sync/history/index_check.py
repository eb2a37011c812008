"""Comparing index objects of the history with the changelogs that they describe.

Owns: finding index objects that are damaged or contradict their changelogs.
Does not know: removing index objects (fsck) and replacing them (``index_writer``).
Keeps: an index object is reported only if all changelogs that it describes were read. A missing or
damaged changelog is not a fault of the index.
"""

import trio

from s3fs_meta.codec import envelope, history_index
from s3fs_meta.codec.envelope import ENCODED_BYTES_MAX
from s3fs_meta.codec.history_index import RUNS, HistoryIndex
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, NewerFormatError, ObjectMissingError, ObjectTooLargeError
from s3fs_meta.limits import HISTORY_FAN_OUT
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.history import index_runs
from s3fs_meta.sync.history.index_runs import TooManyChangesError, TxgChanges


class IndexChecker:
    """Compares the index objects of one filesystem with its changelogs."""

    def __init__(self, store: ObjectStore, keyring: Keyring, uuid: str) -> None:
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        # foreign objects whose keys have the form of index objects
        self.foreign: list[ObjectKey] = []

    async def fault(self, key: ObjectKey) -> str | None:
        """Return why an index object must not be used, None if no fault is found.

        An object of level 1 is compared with its changelogs, any other with the objects of the
        level below. An index object that a newer program wrote is accepted.

        Raises:
            StoreError: the bucket cannot be read.
        """
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
            return await self._fault_of(await self._decode(key, data))
        except NewerFormatError:
            return None
        except FormatError as exc:
            return exc.what

    async def _fault_of(self, index: HistoryIndex) -> str | None:
        try:
            made = await (self._of_txgs(index) if index.level == 1 else self._of_runs(index))
        except TooManyChangesError:
            return "its changelogs have more changes than an index object may have"
        if made is None or made == index:
            return None
        return "it differs from the changes in its changelogs"

    async def _decode(self, key: ObjectKey, data: bytes) -> HistoryIndex:
        """Return the index in an index object of this filesystem."""
        index = await trio.to_thread.run_sync(history_index.decode, key, data, self._keyring)
        if index.uuid != self._uuid:
            raise FormatError(key, "the index object belongs to another filesystem")
        return index

    async def _of_txgs(self, index: HistoryIndex) -> HistoryIndex | None:
        """Return an index made from the changelogs, None if a changelog cannot be read."""
        txgs: list[TxgChanges] = []
        for bit, txg in enumerate(range(index.first, index.last + 1)):
            try:
                fetched = await chain.fetch(self._store, self._keyring, self._uuid, Txg(txg))
                changes = await index_runs.changes_of(self._store, self._keyring, fetched)
            except (FormatError, ObjectMissingError):
                return None
            txgs.append(changes._replace(rows=None) if index.unknown >> bit & 1 else changes)
        return await trio.to_thread.run_sync(index_runs.of_txgs, self._uuid, txgs)

    async def _of_runs(self, index: HistoryIndex) -> HistoryIndex | None:
        """Return an index made from the level below, None if one of its runs is unusable."""
        step = HISTORY_FAN_OUT ** (index.level - 1)
        runs: list[HistoryIndex] = []
        for end in range(index.first + step - 1, index.last + 1, step):
            try:
                key = RUNS.key_of(index.level - 1, Txg(end))
                data = (await self._store.get(key, ENCODED_BYTES_MAX)).data
                runs.append(await self._decode(key, data))
            except (FormatError, ObjectMissingError):
                return None
        made = await trio.to_thread.run_sync(index_runs.of_runs, index.level, self._uuid, runs)
        # The smaller run may have been indexed later, or its changelog may be lost.
        return made if made.unknown == index.unknown else None
