"""Creating the history index in a background task of the writer.

Owns: the list of missing index objects, and the order in which they are created.
Does not know: how changes are merged (``index_runs``).
Keeps: only confirmed txgs are indexed. For a run that cannot be indexed, no index object is
created, because a search can read its changelogs.
Tasks: ``run`` is one background task; another task may call ``take``.
Design: docs/design/durability.md, "History index".
"""

import contextlib
import logging

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.codec import history_index
from s3fs_meta.codec.envelope import ENCODED_BYTES_MAX
from s3fs_meta.codec.history_index import RUNS, HistoryIndex
from s3fs_meta.errors import FormatError, ObjectMissingError, PreconditionError, S3fsError
from s3fs_meta.limits import (
    HISTORY_CHECK_S,
    HISTORY_FAN_OUT,
    HISTORY_LEVELS_MAX,
    HISTORY_OLDER_RUNS,
    HISTORY_ROWS_WAITING_MAX,
    HISTORY_TXGS_WAITING_MAX,
)
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.mount_state import MountStatus
from s3fs_meta.objects.billing import Cause, part
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import FetchedChangelog
from s3fs_meta.sync.history.index import index_runs
from s3fs_meta.sync.history.index.index_runs import RunMerger, TooManyChangesError, TxgChanges
from s3fs_meta.sync.hooks import Hook
from s3fs_meta.sync.volume import Volume

_log = logging.getLogger(__name__)


class Indexer:
    """Creates the index objects of one filesystem."""

    def __init__(self, volume: Volume, status: MountStatus, hook: Hook) -> None:
        self._store = volume.store
        self._keyring = volume.keyring
        self._uuid = volume.uuid
        self._position = volume.position
        self._status = status
        self._hook = hook
        self._stored: set[ObjectKey] = set()  # keys of all index objects in the bucket
        # changes of recent txgs whose run has no index object yet
        self._waiting: dict[Txg, TxgChanges] = {}
        # Runs up to this txg were tried, or are older than this mount; None before the first pass.
        self.done: Txg | None = None
        # Last txg of the next run to index among those older than this mount; 0 if none is left.
        self.older = Txg(0)

    async def run(self) -> None:
        """Index new and old txgs until cancelled."""
        while True:
            await trio.sleep(HISTORY_CHECK_S)
            if not self._status.ships:
                continue
            try:
                await self.make_due()
            except S3fsError as exc:
                _log.info("cannot create the history index, will retry: %s", exc)

    async def take(self, fetched: FetchedChangelog) -> None:
        """Keep the changes of a changelog that was read for another purpose.

        Indexing then needs no request for these changes. If too many changes are waiting already,
        or if the changelog has parts, the changes are not kept, and indexing reads them again.
        """
        rows = sum(one.size for one in self._waiting.values())
        if (
            fetched.changelog.parts
            or len(self._waiting) >= HISTORY_TXGS_WAITING_MAX
            or rows >= HISTORY_ROWS_WAITING_MAX
        ):
            return
        changes = await index_runs.changes_of(self._store, self._keyring, fetched)
        self._waiting[fetched.txg] = changes

    @part(Cause.HISTORY)
    async def make_due(self) -> None:
        """Create the missing index objects of new txgs, and of some earlier txgs.

        Raises:
            StoreError: the store is unavailable; the next call continues with the same object.
        """
        end = self._position.link.txg
        if self.done is None:
            self._stored = await index_runs.listed(self._store, end)
            self.older = self.done = Txg(end // HISTORY_FAN_OUT * HISTORY_FAN_OUT)
        for last in range(self.done + HISTORY_FAN_OUT, end + 1, HISTORY_FAN_OUT):
            for level in RUNS.ends_at(Txg(last)):
                await self._make(level, Txg(last))
            self.done = Txg(last)
            self._forget(self.done)
        await self._make_older(self.done)

    async def _make_older(self, done: Txg) -> None:
        """Index earlier runs that are still retained, latest first."""
        made = 0
        while made < HISTORY_OLDER_RUNS and self.older > 0:
            last = self.older
            first = RUNS.first_of(1, last)
            if first < self._position.link.floor:
                self.older = Txg(0)
                return
            made += await self._make(1, last, is_older=True)
            for level in range(2, HISTORY_LEVELS_MAX + 1):
                end = RUNS.end_of(level, first)
                # Runs are indexed from the latest to the earliest.
                # In this order, a larger run is complete once its first part is indexed.
                if RUNS.first_of(level, end) == first and end <= done:
                    await self._make(level, end, is_older=True)
            self.older = Txg(first - 1)

    def _forget(self, last: Txg) -> None:
        for txg in [txg for txg in self._waiting if txg <= last]:
            del self._waiting[txg]

    async def _make(self, level: int, last: Txg, *, is_older: bool = False) -> bool:
        """Create one index object if it is missing; return whether requests were sent.

        Args:
            level: the level of the run.
            last: the last txg of the run.
            is_older: True if the run ended before this mount, so that fsck may have abandoned its
                last txgs.
        """
        key = RUNS.key_of(level, last)
        if key in self._stored:
            return False
        try:
            made = await (self._of_txgs(last) if level == 1 else self._of_runs(level, last))
        except (TooManyChangesError, FormatError) as exc:
            _log.info("cannot create the index object %s: %s", key, exc)
            return True
        if is_older and await self._hash_of(last) != made.hash:
            _log.info(
                "cannot create the index object %s: its last changelog is not in the chain", key
            )
            return True
        data = await in_thread(history_index.encode, made, self._keyring)
        try:
            await self._store.create(key, data)
        except PreconditionError:
            await self._replace_other(made, data)
        self._stored.add(key)
        self._hook("history put")
        return True

    async def _replace_other(self, made: HistoryIndex, data: bytes) -> None:
        """Replace the existing index object if it describes another history.

        Such an object may exist in a bucket that lost its last changelogs, such as an incomplete
        replica. An object of this history, created by an earlier mount, is kept.
        """
        with contextlib.suppress(PreconditionError, ObjectMissingError, FormatError):
            stored = await self._store.get(made.key, ENCODED_BYTES_MAX)
            found = await index_runs.decoded(made.key, stored.data, self._keyring, self._uuid)
            if found.hash != made.hash:
                await self._store.replace(made.key, data, stored.etag)
                _log.info(
                    "replaced the index object %s, which listed changes of a replaced history",
                    made.key,
                )

    async def _of_txgs(self, last: Txg) -> HistoryIndex:
        merger = RunMerger(1, self._uuid)
        for at, txg in enumerate(range(RUNS.first_of(1, last), last + 1)):
            merger.add_txg(at, await self._changes(Txg(txg)))
            if merger.is_full:
                await in_thread(merger.join)
        return await in_thread(merger.finish)

    async def _changes(self, txg: Txg) -> TxgChanges | None:
        """Return the changes of a txg, or None if its changelog cannot be read."""
        waiting = self._waiting.get(txg)
        if waiting is not None:
            return waiting
        try:
            fetched = await chain.fetch(self._store, self._keyring, self._uuid, txg)
            return await index_runs.changes_of(self._store, self._keyring, fetched)
        except (FormatError, ObjectMissingError) as exc:
            _log.info("changelog %d is not indexed: %s", txg, exc)
            return None

    async def _of_runs(self, level: int, last: Txg) -> HistoryIndex:
        step = HISTORY_FAN_OUT ** (level - 1)
        ends = range(RUNS.first_of(level, last) + step - 1, last + 1, step)
        merger = RunMerger(level, self._uuid)
        # Read the latest run first: its index object has the hash at the end of the previous run.
        recorded: str | None = None
        for at, end in reversed(list(enumerate(ends))):
            run = await self._run(RUNS.key_of(level - 1, Txg(end)))
            if run is not None and run.hash != (recorded or await self._hash_of(Txg(end))):
                _log.info("the index object %s does not belong to this chain", run.key)
                run = None
            merger.add_run(at, run)
            if merger.is_full:
                await in_thread(merger.join)
            recorded = None if run is None else run.previous
        return await in_thread(merger.finish)

    async def _hash_of(self, txg: Txg) -> str | None:
        """Return the hash of a changelog in the chain, or None if no changelog records it."""
        link = self._position.link
        if txg == link.txg:
            return link.hash
        return await chain.hash_before(self._store, self._keyring, self._uuid, Txg(txg + 1))

    async def _run(self, key: ObjectKey) -> HistoryIndex | None:
        """Return an index object, or None if it is missing or unreadable."""
        if key not in self._stored:
            return None
        try:
            data = (await self._store.get(key, ENCODED_BYTES_MAX)).data
            return await index_runs.decoded(key, data, self._keyring, self._uuid)
        except (FormatError, ObjectMissingError) as exc:
            _log.info("the index object %s cannot be read: %s", key, exc)
            return None
