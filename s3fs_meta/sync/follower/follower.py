"""A mount that shows what another host writes: txgs as they appear, each of them all at once.

Owns: when to look for the next txg, the order *apply beside, turn, forget what went*, and what to
do when changes do not lead on. Does not know: FUSE, who may write, rows.
Keeps: between two txgs no request is answered from either in part: a txg is committed by a second
connection, in a thread, while the mount's own one still sees the txg before; it goes on in one
slice of the loop.
Tasks: ``run`` is one background task. One txg at a time; whoever holds ``paused`` has the database.
Design: docs/design/concurrency.md, "A follower turns".
"""

import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import trio

from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.clock import Clock
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.codec.image import NO_HASH, ManifestRef
from s3fs_meta.errors import (
    FormatError,
    NewerFormatError,
    ObjectMissingError,
    OlderBucketError,
    S3fsError,
)
from s3fs_meta.limits import (
    FOLLOW_ANEW_S,
    FOLLOW_LISTING_POLLS,
    FOLLOW_TOUCHED_MAX,
    WAL_CHECKPOINT_BYTES,
)
from s3fs_meta.meta import changesets
from s3fs_meta.meta.changesets import Touched
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.meta.tables import dentries
from s3fs_meta.model import BlockId, Ino
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.apply import NeedsImageError, Replayer
from s3fs_meta.sync.chain.chain import Fetched, Link
from s3fs_meta.sync.follower import follower_resync
from s3fs_meta.sync.volume import Opened

_log = logging.getLogger(__name__)


class Turned(NamedTuple):
    """What a txg changed, for whoever remembers answers."""

    names: set[tuple[Ino, bytes]]
    inodes: set[Ino]
    contents: set[Ino]


class Audience(Protocol):
    """Whoever remembers answers, and must ask again for what changed: the kernel."""

    async def before_turn(self, turned: Turned | None) -> None:
        """Forget these, or everything, and remember no answer until ``at_turn``."""
        ...

    def at_turn(self) -> None:
        """Remember answers again: they are those of the new txg. Schedule point: never."""
        ...

    async def after_turn(self, turned: Turned | None) -> None:
        """Forget what was answered at the last moment, and content."""
        ...


class _Nobody:
    """Nobody remembers anything."""

    async def before_turn(self, turned: Turned | None) -> None:
        """Do nothing."""

    def at_turn(self) -> None:
        """Do nothing."""

    async def after_turn(self, turned: Turned | None) -> None:
        """Do nothing."""


class Follower:
    """Brings one mount forward, txg by txg."""

    def __init__(
        self,
        opened: Opened,
        cache: BlockCache,
        clock: Clock,
        *,
        interval_s: float,
        degrade: Callable[[str], None],
    ) -> None:
        """Begin where the opened filesystem is.

        Args:
            opened: has been opened to follow.
            cache: of its blocks.
            clock: for status.
            interval_s: how often it is asked for the next txg.
            degrade: told why, when nothing can be shown any more.
        """
        self._opened = opened
        self._db = opened.db
        self._cache = cache
        self._clock = clock
        self._interval_s = interval_s
        self._degrade = degrade
        self._applier: Database | None = None
        self._touched: Touched | None = None  # by the txg that is being applied; None: too much
        self._turn = trio.Lock()
        self._ended = trio.Event()
        self._missed = 0  # polls without an answer, since the last listing
        self._anew_not_before_s = -math.inf
        self.audience: Audience = _Nobody()
        self.link = opened.link
        self.polled_ns = 0
        self.last_error = ""

    # --- when ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow until cancelled or closed."""
        while not self._ended.is_set():
            await self.poll_once()
            with trio.move_on_after(self._interval_s):
                await self._ended.wait()

    async def poll_once(self) -> None:
        """Show what is new; if that cannot be had, go on showing what is here."""
        async with self._turn:
            if self._ended.is_set():
                return
            try:
                await self.catch_up()
                self.last_error = ""
                if self._opened.offline:
                    _log.warning("the bucket answers again; showing txg %d", self.link.txg)
                    self._opened.offline = ""
            except S3fsError as exc:
                if str(exc) != self.last_error:
                    _log.warning("cannot follow, showing txg %d: %s", self.link.txg, exc)
                self.last_error = str(exc)

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Let somebody else have the connection that applies txgs; nothing turns meanwhile."""
        async with self._turn:
            yield

    async def close(self) -> None:
        """Follow no more, and let go of the second connection."""
        self._ended.set()
        await self._close_applier()

    async def _close_applier(self) -> None:
        if self._applier is not None:
            await trio.to_thread.run_sync(self._applier.close)
            self._applier = None

    async def applier(self) -> Database:
        """Return the connection that applies txgs, for whoever has paused the turns."""
        if self._applier is None:
            self._applier = await trio.to_thread.run_sync(
                Database.open, self._db.path, self._db.pragmas
            )
        return self._applier

    # --- one txg -------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Show everything that is in the bucket. For whoever has paused the turns, and ``run``.

        Raises:
            S3fsError: it cannot be had; what is shown is one txg, whole.
        """
        try:
            while fetched := await self._poll():
                await self._take(fetched)
        except NeedsImageError as exc:
            await self._begin_anew(str(exc), exc.image)
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError) as exc:
            await self._begin_anew(str(exc), None)

    async def _poll(self) -> Fetched | None:
        """Return the next txg, None if there is none yet: one small request."""
        opened = self._opened
        try:
            fetched = await chain.fetch_next(
                opened.store, opened.keyring, opened.superblock.uuid, self.link
            )
        except ObjectMissingError:
            self._missed += 1
            if self._missed >= FOLLOW_LISTING_POLLS:
                await self._require_next()
            fetched = None
        self.polled_ns = self._clock.now_ns()
        return fetched

    async def _require_next(self) -> None:
        """Raise if there are later txgs, but not the next one, or not even ours."""
        found = await chain.numbers_from(self._opened.store, self.link.txg)
        self._missed = 0
        if not found and self.link.hash != NO_HASH:
            url = self._opened.store.url
            raise OlderBucketError(url, self.link.txg, f"it has no {key_of(self.link.txg)}")
        if found and found[-1] > self.link.txg and self.link.next_txg not in found:
            raise ObjectMissingError(key_of(self.link.next_txg))

    async def _take(self, fetched: Fetched) -> None:
        """Apply one txg beside, then show it."""
        opened, applier = self._opened, await self.applier()
        self._touched = Touched(set(), set(), set(), set())
        replayer = Replayer(
            opened.store, opened.keyring, opened.superblock.uuid, applier, heard=self._hear
        )
        gone = await replayer.apply(fetched)
        turned = await trio.to_thread.run_sync(_turned, applier, self._touched)
        await self._show(turned, gone, fetched.link)
        if applier.wal_bytes > WAL_CHECKPOINT_BYTES:
            await trio.to_thread.run_sync(applier.checkpoint)
            self._db.go_on()  # from now on nobody reads the log, so the next txg starts it over

    def _hear(self, changeset: bytes) -> None:
        """Note what a part of a txg touches, unless that is too much; in a thread."""
        known = self._touched
        if known is None:
            return
        new = changesets.touched(changeset)
        known.names.update(new.names)
        known.cookies.update(new.cookies)
        known.inodes.update(new.inodes)
        known.contents.update(new.contents)
        if len(known.names) + len(known.inodes) + len(known.contents) > FOLLOW_TOUCHED_MAX:
            self._touched = None

    async def _begin_anew(self, why: str, image: ManifestRef | None) -> None:
        """Restore what the bucket has, beside, and show that. Nothing is kept of what was cached.

        Raises:
            StoreError, CorruptionError: it cannot be had; it is not tried again for a while.
        """
        if trio.current_time() < self._anew_not_before_s:
            raise FormatError(self._opened.store.url, f"{why}; {self.last_error}")
        self._anew_not_before_s = trio.current_time() + FOLLOW_ANEW_S
        _log.warning("restoring, and showing txg %d meanwhile: %s", self.link.txg, why)
        self.last_error = f"restoring, because {why}"
        path, link = await follower_resync.restore_beside(
            self._opened, await self.applier(), self.link, image
        )
        await self._close_applier()
        await self._cache.forget_gone(self._cache.index.blocks())
        try:
            await self.audience.before_turn(None)
            without_row = self._cache.index.blocks()
            failure = self._exchange(path, link)
        finally:
            self.audience.at_turn()
        await self.audience.after_turn(None)
        await self._cache.remove_files(without_row)
        await trio.to_thread.run_sync(image_copy.remove, self._opened.state_dir.tmp / "gone.db")
        if failure is not None:
            await self._cache.forget_gone(self._cache.index.blocks())
            raise failure
        _log.info("restored: showing txg %d", link.txg)

    def _exchange(self, path: Path, link: Link) -> S3fsError | None:
        """Answer from another database; if that fails, from what was there, and say why.

        If even that cannot be opened any more the mount is degraded. What the view had is gone.
        """
        failure = None
        try:
            self._db.exchange(path, self._opened.state_dir.tmp)
        except S3fsError as exc:
            failure = exc
            if self._db.is_closed:
                why = "the local database was lost while another took its place"
                self._degrade(f"{why}: {exc}; unmount, and mount again")
                raise
        self.link = link if failure is None else chain.recorded(self._db) or self.link
        self._cache.load()
        return failure

    async def _show(self, turned: Turned | None, gone: list[BlockId], link: Link) -> None:
        try:
            await self.audience.before_turn(turned)
            self._db.go_on()
            self.link = link
        finally:
            self.audience.at_turn()
        await self.audience.after_turn(turned)
        await self._cache.forget_gone(gone)


def _turned(db: Database, touched: Touched | None) -> Turned | None:
    """Return what a txg changed, now that it is in the rows; in a thread."""
    if touched is None:
        return None
    names = touched.names
    for parent, cookie in touched.cookies:
        name = dentries.name_at(db, parent, cookie)
        if name is not None:
            names.add((parent, name))
    return Turned(names, touched.inodes, touched.contents)
