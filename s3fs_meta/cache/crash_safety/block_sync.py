"""How the content of cached blocks becomes durable: by a sync of their files, or by the intent log.

Owns: the order of a sync: files first, then the rows with the synced lengths; the choice of writes
that the intent log contains. Does not know: when a sync is due, the write-ahead log.
Keeps: a block is marked as synced only after a successful sync that began after its last write.
The intent log contains all unsynced content or none, because an fsync makes the rows of all files
durable.
Tasks: any task on the event loop; a lock serialises syncs, and a thread runs the blocking calls.
Design: docs/design/durability.md, "From write to fsync" and "The intent log".
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.crash_safety import intent_replay
from s3fs_meta.cache.crash_safety.intent_log import IntentLog, LoggedPiece
from s3fs_meta.cache.crash_safety.quick_thread import QuickThread
from s3fs_meta.cache.crash_safety.recovery import KnownCopies
from s3fs_meta.cache.crash_safety.unlogged import UnloggedRanges
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.cache.files.early_write_back import EarlyWriteBack
from s3fs_meta.cache.files.open_blocks import NO_DESCRIPTOR_ERRNOS
from s3fs_meta.cache.index import NOT_UPLOADED, CacheIndex
from s3fs_meta.cache.slices import slices
from s3fs_meta.disk_full import NO_ROOM_ERRNOS
from s3fs_meta.errors import LostBlockError, ShortageError
from s3fs_meta.limits import INTENT_LOG_BYTES
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import cached_blocks
from s3fs_meta.model import BlockId

_log = logging.getLogger(__name__)

# Errors that do not mean that the disk failed; the intent log stays unused until a later fsync.
_NO_LOG_ERRNOS: Final = NO_ROOM_ERRNOS | NO_DESCRIPTOR_ERRNOS


class BlockSync:
    """Makes the written content of cached blocks durable."""

    def __init__(
        self, db: Database, index: CacheIndex, files: BlockFiles, copies: KnownCopies
    ) -> None:
        self._db = db
        self._index = index
        self._files = files
        self._copies = copies
        self._lock = trio.Lock()
        self._thread = QuickThread()
        self._begun = 0  # number of the last block-file sync that was started
        self._done = 0  # number of the last block-file sync that succeeded
        self.unlogged = UnloggedRanges()
        self.early = EarlyWriteBack(files)
        self._intents: IntentLog | None = None
        self._is_announced = False  # True if the database records that the intent log is in use
        # The database records that block files contain all log entries up to this number.
        self.settled = 0
        self._settled_durably = 0  # the number that a durable row contains
        self.wants_log = False

    # --- sync block files ----------------------------------------------------------------------

    async def sync_files(self, *, meanwhile: Callable[[], None] | None = None) -> None:
        """Make the files of all unsynced blocks durable: content, names, directories.

        Args:
            meanwhile: called on the event loop while a thread syncs files; not called if this call
                syncs no files.

        Raises:
            OSError: the sync failed. After a failure or cancellation, the blocks stay unsynced.

        Always yields to other tasks. If a sync is running, waits until it ends, because it may have
        begun before the last write. All calls that wait for it then share the next sync.
        """
        wanted = self._begun + 1
        async with self._lock:
            if self._done >= wanted:
                return
            self._begun += 1
            unsynced = self._index.take_unsynced()
            self.unlogged.begin_sync()
            if not unsynced.blocks:
                self._done = self._begun
                return
            self._copies.expect(dict(unsynced.lengths))
            self.early.take()
            try:
                sync = partial(self._files.sync, unsynced.blocks, unsynced.named)
                await self._thread.run(sync, meanwhile=meanwhile)
                await self._note_synced(unsynced.lengths)
                self.unlogged.end_sync()
                self._done = self._begun
            except BaseException:
                self.unlogged.give_up()
                for block in unsynced.blocks:
                    self._index.note_write(block)
                raise

    async def _note_synced(self, lengths: Sequence[tuple[BlockId, int]]) -> None:
        """Record the durable length of each file, and that the files contain all log entries."""
        for piece in slices(lengths):
            self._db.begin_local()
            cached_blocks.note_synced(self._db, piece)
            self._copies.synced(piece)
            for block, length in piece:
                self._index.note_synced(block, length)
            await trio.lowlevel.checkpoint()
        log = self._intents
        if log is not None and log.sequence > self.settled:
            self._db.begin_local()
            used = intent_replay.Used(log.epoch, log.key, log.sequence)
            intent_replay.note_settled(self._db, used)
            self.settled = log.sequence

    # --- log written content -------------------------------------------------------------------

    async def log_writes(
        self, *, meanwhile: Callable[[], None], afterwards: Callable[[], None]
    ) -> bool:
        """Make all unsynced content durable in the intent log.

        Args:
            meanwhile: commits the group. It is called on the event loop while a thread writes the
                log.
            afterwards: makes the commit durable. The thread calls it once the log is durable and
                the group is committed. If there is nothing to write, neither function is called.

        Returns:
            False if only ``sync_files`` can make the content durable. If the result is True, and
            *afterwards* was not called, the caller must make the rows of the blocks durable.

        Raises:
            OSError: the disk failed.

        Yields to other tasks, and waits for a running sync, unless the log cannot be used.
        """
        if self._intents is None:
            self.wants_log = True
            return False
        if not self.unlogged.are_known:  # only ``sync_files`` can make unknown ranges durable
            return False
        async with self._lock:
            pieces = self._take_pieces(self._intents)
            if not pieces:
                return pieces is not None
            self._announce(self._intents)
            # A block may have several pieces. The piece with the highest end determines its length.
            self._copies.expect(dict(sorted((piece.block, piece.stop) for piece in pieces)))
            try:
                append = partial(self._append, self._intents, pieces)
                await self._thread.run(append, meanwhile=meanwhile, afterwards=afterwards)
            except BaseException:
                self.unlogged.give_up()
                raise
            self.unlogged.note_logged((piece.block, piece.offset, piece.stop) for piece in pieces)
        return True

    def _append(self, log: IntentLog, pieces: Sequence[LoggedPiece]) -> None:
        with self._files.syncing():
            log.append(pieces)

    def _take_pieces(self, log: IntentLog) -> list[LoggedPiece] | None:
        """Return the content to log, or None if only a sync of the files can make it durable."""
        if not self.unlogged.are_known:
            return None
        if log.sequence == self._settled_durably:
            log.restart()
        ranges = self.unlogged.take()
        pieces: list[LoggedPiece] = []
        try:
            for block, start, stop in ranges:
                held = self._index.get(block)
                if held is not None and held.state in NOT_UPLOADED:
                    pieces.append(
                        LoggedPiece(block, start, self._files.read_on_loop(block, start, stop))
                    )
        except (LostBlockError, ShortageError):
            self.unlogged.give_up()
            return None
        if not log.has_room(len(pieces), sum(len(piece.data) for piece in pieces)):
            self.unlogged.give_up()
            return None
        return pieces

    def _announce(self, log: IntentLog) -> None:
        """Record that the intent log is in use, before a crash can make its entries necessary."""
        if not self._is_announced:
            self._db.begin_local()
            intent_replay.announce(self._db, log)
            self._is_announced = True

    def note_durable(self, settled: int) -> None:
        """Note that durable rows say: the files contain all log entries up to number *settled*."""
        self._settled_durably = max(self._settled_durably, settled)

    async def prepare_log(self, size_bytes: int = INTENT_LOG_BYTES) -> None:
        """Create the intent log of this epoch, so that later calls of ``log_writes`` can use it.

        No log is created if the disk has no room for it, if no file can be opened, or if the
        database has no epoch. Each fsync then syncs the block files.

        Raises:
            OSError: the disk failed.
        """
        self.wants_log = False
        epoch = intent_replay.epoch_of(self._db)
        if self._intents is not None or epoch is None:
            return
        log = IntentLog(self._files.root, epoch, size_bytes)
        try:
            await in_thread(self._prepare, log)
        except OSError as exc:
            if exc.errno not in _NO_LOG_ERRNOS:
                raise
            why = exc.strerror
            _log.info("cannot create the intent log, so each fsync syncs block files: %s", why)
            return
        self._intents = log

    def _prepare(self, log: IntentLog) -> None:
        try:
            log.prepare()
        except OSError as exc:
            if exc.errno in _NO_LOG_ERRNOS:
                raise
            with self._files.syncing():
                raise
