"""Shipping transaction groups to the bucket: cut, seal, upload, append to the chain.

Owns: the steps of one txg from its cut to its confirmation, and the time of the next txg.
Does not know: FUSE, how images are made from a cut, how blocks are uploaded.
Keeps: a changelog refers only to blocks in the store. Its bytes are synced to this host's disk
before they are sent, and never change afterwards. A txg is confirmed only if this host still holds
the lease after the append.
Tasks: ``run`` is one background task; any task may call ``ship``. One txg is shipped at a time.
Design: docs/design/durability.md, "From cut to chain".
"""

import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.bucket_errors import LostLeaseError, OlderBucketError, UnfitRecordsError
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.changelog import (
    NO_CHANGES,
    NONCE_BYTES,
    RANDOM_BYTES,
    Changelog,
    Kind,
    PartRef,
    Section,
)
from s3fs_meta.codec.image import ManifestRef, content_hash
from s3fs_meta.errors import (
    FencedError,
    ReadOnlyStateError,
    S3fsError,
    StoreUnavailableError,
)
from s3fs_meta.limits import IMAGE_CUTS_MAX, LOOP_MERGE_BYTES, SYNC_BYTES_MAX
from s3fs_meta.meta import changesets
from s3fs_meta.meta.db.schema import SCHEMA_VERSION
from s3fs_meta.meta.db.snapshot import Snapshot
from s3fs_meta.meta.tables import pending
from s3fs_meta.meta.tables.pending import MergedRecords, News
from s3fs_meta.model import BlockId, PackId, Txg
from s3fs_meta.mount_state import MountStatus
from s3fs_meta.sync.chain import abandoned_txgs, chain
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.chain.chain_watch import ChainWatch
from s3fs_meta.sync.changelog.cut_content import Frozen, Shipped, close, locations_of, pack_notes_of
from s3fs_meta.sync.changelog.since_image import SinceImage
from s3fs_meta.sync.changelog.taken_name import step_over
from s3fs_meta.sync.changelog.wal_bound import WalBound
from s3fs_meta.sync.durability import Durability
from s3fs_meta.sync.hooks import Hook
from s3fs_meta.sync.lease.lease_back import put_back
from s3fs_meta.sync.progress import Progress, no_progress
from s3fs_meta.sync.store_clock import is_later
from s3fs_meta.sync.upload.cut import Cut
from s3fs_meta.sync.upload.uploader import Uploader
from s3fs_meta.sync.volume import Volume

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Shipper:
    """Ships the transaction groups of one mounted filesystem."""

    def __init__(
        self,
        volume: Volume,
        uploader: Uploader,
        durability: Durability,
        status: MountStatus,
        *,
        interval_s: float,
        publish_as_txg: abandoned_txgs.Publish,
        hook: Hook,
    ) -> None:
        self._db = volume.db
        self._recorder = volume.recorder
        self._store = volume.store
        self._keyring = volume.keyring
        self._keeper = volume.keeper
        self._uuid = volume.uuid
        self._uploader = uploader
        self._durability = durability
        self._status = status
        self._clock = volume.clock
        self._interval_s = interval_s
        self._hook = hook
        self._due = trio.Event()
        self._lock = trio.Lock()
        self._cut_oldest_ns = 0
        self.frozen_seq = 0  # number of the last change record in the last successful cut
        self.confirmed_seq = self._recorder.shipped_seq  # last change record in the chain
        self._cuts = 0
        self._confirmed = trio.Event()
        self._confirmed_cuts = 0
        self._position = volume.position
        self._step_over = partial(step_over, volume, durability)
        self.since_image = SinceImage()
        self.last_error = ""
        self._attempt_is_synced = False
        self._watch = ChainWatch(volume.store)
        self.publish_as_txg = publish_as_txg
        self._wal_bound = WalBound(volume.db, uploader.bounds.image_wal_bytes)
        volume.recorder.when_recorded(self._recorded)

    def _recorded(self) -> None:
        if self._recorder.bytes > SYNC_BYTES_MAX:
            self._due.set()
        if self._wal_bound.scope is not None:
            self._wal_bound.check()

    @property
    def oldest_ns(self) -> int:
        """Return the time of the oldest change that is not in the bucket, or 0 if there is none."""
        return self._cut_oldest_ns or (self._recorder.oldest_ns if self._db.changed else 0)

    # --- schedule txgs -------------------------------------------------------------------------

    async def run(self) -> None:
        """Ship changes at regular intervals until cancelled or fenced."""
        while True:
            with trio.move_on_after(self._interval_s):
                await self._due.wait()
            self._due = trio.Event()
            if not self._status.ships:
                continue
            try:
                await self.ship()
                await self._purge()
            except FencedError:
                return
            except (S3fsError, OSError) as exc:
                self.last_error = str(exc)
                _log.warning("cannot upload changes to the bucket, will retry: %s", exc)
                await trio.sleep(self._interval_s)

    async def ship(self, progress: Progress = no_progress, *, anyway: bool = False) -> Link | None:
        """Ship all changes that were acknowledged to programs before the call.

        Args:
            progress: called with the state of the upload.
            anyway: ship even if only block locations, packs or the retention floor changed.

        Returns:
            The last position in the chain, or None if nothing changed.

        Raises:
            FencedError: another host has taken over the filesystem; the mount is read-only now.
            ReadOnlyStateError: the mount is degraded, so its state must not be shipped.
            StoreError: the store is unavailable; all changes stay on this host.
        """
        published = abandoned_txgs.wanted(self._db) is not None
        if published:
            await self.publish_as_txg(progress)
        try:
            link = await self._ship_once(progress, anyway=anyway)
        except (OlderBucketError, UnfitRecordsError):
            await self.publish_as_txg(progress)
            link = await self._ship_once(progress, anyway=anyway) or self._position.link
        return self._position.link if published else link

    async def _ship_once(self, progress: Progress, *, anyway: bool = False) -> Link | None:
        """Ship all changes; unlike ``ship``, raise OlderBucketError if an image is needed first."""
        async with self._lock:
            with self._fencing():
                sent = await self._send_attempt()
                await self._durability.collect()
                due = self._db.changed or self._uploader.shippable
                if not due and not (anyway and self._has_leftovers):
                    return self._position.link if sent else None
                await self._ship(await self._freeze(), progress)
                return self._position.link

    async def ship_blocks(self, progress: Progress) -> None:
        """Ship all changes if there are dirty blocks; the upload has no time limit."""
        if self._uploader.shippable:
            await self._ship_once(progress)

    async def ship_for_image(self, progress: Progress) -> Shipped:
        """Ship a txg, even without changes; return it with an open snapshot for a new image.

        The WAL grows as long as a snapshot is open, so the caller must run ``ship_blocks`` first.
        If the WAL still grows too much during the upload of later blocks, no image is made.

        Raises:
            The same errors as ``ship``; also StoreUnavailableError if the WAL grew too much.
        """
        async with self._lock:
            with self._fencing():
                await self._send_attempt()
                await self._durability.collect()
                frozen = await self._freeze(snapshot=True)
                try:
                    await self._ship(frozen, progress, keeps_snapshot=True)
                except BaseException:
                    close(frozen)
                    raise
                assert frozen.snapshot is not None, "the cut must have opened a snapshot"
                return Shipped(self._position.link, frozen.cut, frozen.snapshot)

    async def ship_as_image(
        self,
        make: Callable[[Txg, Cut, Snapshot, Link], Awaitable[ManifestRef]],
        progress: Progress,
    ) -> Link:
        """Publish an image of the local state as the next txg, which needs no earlier changelogs.

        Args:
            make: called with the txg, cut, snapshot and previous link of an image; uploads the
                image after closing the snapshot, because the WAL grows while a snapshot is open.
            progress: called with the state of the upload.

        Raises:
            The same errors as ``ship``.
        """
        async with self._lock:
            with self._fencing():
                await self._send_attempt()
                frozen = await self._freeze_uploaded(progress)
                assert frozen.snapshot is not None, "the cut must have opened a snapshot"
                try:
                    reported = await self._in_view(frozen, pending.pack_news)
                    ref = await make(frozen.txg, frozen.cut, frozen.snapshot, self._position.link)
                    begun = self._begin_changelog(frozen, Kind.IMAGE)
                    changelog = self._in_new_span(replace(begun, image=ref), frozen.cut_ns)
                    attempt = await self._attempt(frozen, changelog, reported, is_image=True)
                except BaseException:
                    self._undo_cut()
                    raise
                finally:
                    self._uploader.end_cut()
                    close(frozen)
                await self._send(*attempt)
                return self._position.link

    async def require_shipped(self, progress: Progress = no_progress) -> None:
        """Publish an image if the bucket lost the last changelog. Raises the errors of ``ship``."""
        try:
            with self._fencing():
                await self._require_end(self.require_hold)
        except OlderBucketError:
            await self.ship(progress)

    async def require_hold(self) -> None:
        """Check that this host still holds the lease. Raises the same errors as ``ship``."""
        with self._fencing():
            try:
                await self._keeper.require_hold()
            except LostLeaseError:
                async with self._lock:  # this host appends no txg during the check
                    await self._require_lease()

    @contextlib.contextmanager
    def _fencing(self) -> Iterator[None]:
        """Check that this mount may ship; stop writing if the with-block loses the lease."""
        if self._keeper.fenced is not None:
            raise self._keeper.fenced
        if not self._status.ships:
            raise ReadOnlyStateError(self._status.why)
        try:
            yield
        except (FencedError, LostLeaseError) as exc:
            end = self._status.fence if isinstance(exc, FencedError) else self._status.degrade
            end(str(exc))
            raise
        except UnfitRecordsError as exc:
            abandoned_txgs.want_after(self._db, exc)
            raise

    @property
    def _has_leftovers(self) -> bool:
        """Return whether a change, a new pack state or a raised floor is not shipped yet."""
        return (
            self._recorder.bytes > 0
            or pending.has_pack_news(self._db)
            or chain.wanted_floor(self._db, self._position.link) > self._position.link.floor
        )

    async def wait_until_shipped(self, timeout_s: float) -> None:
        """Wait until all changes acknowledged before the call are shipped; used by fsync=remote.

        Raises:
            FencedError, ReadOnlyStateError: this mount can no longer ship.
            StoreUnavailableError: shipping did not finish within *timeout_s*; shipping continues.
        """
        self._db.commit()
        if self._db.changed or abandoned_txgs.wanted(self._db) is not None:
            wanted = self._cuts + 1
        elif self._confirmed_cuts < self._cuts:
            wanted = self._cuts
        else:
            await self.require_shipped()
            return
        with trio.move_on_after(timeout_s) as scope:
            while self._confirmed_cuts < wanted:
                if self._keeper.fenced is not None:
                    raise self._keeper.fenced
                if not self._status.ships:
                    raise ReadOnlyStateError(self._status.why)
                self._due.set()
                with trio.move_on_after(self._interval_s):
                    await self._confirmed.wait()
        if scope.cancelled_caught:
            raise StoreUnavailableError(
                "changelog", 1, timeout_s, self.last_error or "fsync=remote"
            )

    # --- ship one txg --------------------------------------------------------------------------

    async def _freeze(self, *, snapshot: bool = False) -> Frozen:
        """Cut a txg: seal all dirty blocks and assign the txg number.

        Most blocks are sealed beforehand, while other tasks run; the cut itself runs without
        interruption.

        Args:
            snapshot: open a snapshot even outside WAL mode, so that an image can be made.
        """
        await self._clock.compare_after_a_jump()
        await self._uploader.sealer.seal_most()
        self._db.begin_local()
        waiting = self._uploader.sealer.seal_all()
        txg = self._position.link.next_txg
        self._db.counters.begin_txg(txg + 1)
        self._db.commit()
        next_block = BlockId(self._db.counters.next_block)
        frozen = Frozen(
            txg,
            Cut(waiting, next_block),
            self._clock.now_ns(),
            self._recorder.last_seq,
            next_block,
            chain.wanted_floor(self._db, self._position.link),
            None if self._db.wal is None and not snapshot else self._db.open_snapshot(),
        )
        self.frozen_seq = self._recorder.last_seq
        self._cuts += 1
        self._db.mark_changed(False)
        self._cut_oldest_ns = self._recorder.begin_txg()
        self._uploader.begin_cut(frozen.cut)
        self._db.packs_changed_after_cut.clear()
        self._hook("txg cut")
        return frozen

    async def _freeze_uploaded(self, progress: Progress) -> Frozen:
        """Cut a txg with a snapshot, and upload its blocks; cut again if the WAL grows too much.

        Raises:
            StoreUnavailableError: the WAL grew too much after each of IMAGE_CUTS_MAX cuts.
        """
        began_s = trio.current_time()
        for _ in range(IMAGE_CUTS_MAX):
            frozen = await self._freeze(snapshot=True)
            is_uploaded = False
            try:
                is_uploaded = await self._wal_bound.completes(
                    partial(self._uploader.drain, frozen.cut, progress)
                )
            finally:
                if not is_uploaded:
                    self._undo_cut()
                    self._uploader.end_cut()
                    close(frozen)
            if is_uploaded:
                return frozen
            await self._durability.sync_all()  # also checkpoints the WAL, so that it can restart
        raise self._wal_bound.exceeded(began_s, IMAGE_CUTS_MAX)

    async def _ship(
        self, frozen: Frozen, progress: Progress, *, keeps_snapshot: bool = False
    ) -> None:
        try:
            try:
                news = await self._in_view(frozen, pending.read_news, list(frozen.cut.pending))
            finally:
                if not keeps_snapshot:
                    close(frozen)  # an open snapshot makes the WAL grow, and uploads may take days
            upload = partial(self._uploader.drain, frozen.cut, progress)
            await (self._wal_bound.require(upload) if keeps_snapshot else upload())
            self._hook("txg uploaded")
            changelog, reported = await self._describe_in_view(frozen, news)
            if not self.since_image.has_news and (
                changelog.parts or changesets.is_news(changelog.section.changeset)
            ):
                self.since_image.note_news()
            attempt = await self._attempt(frozen, changelog, reported)
        except BaseException:
            self._undo_cut()
            raise
        finally:
            self._uploader.end_cut()
        await self._send(*attempt)

    def _undo_cut(self) -> None:
        """After a failed cut, keep the changes for the next cut, and allow merges of records."""
        self._db.mark_changed()
        self._recorder.resume_txg(self._cut_oldest_ns)
        self.frozen_seq = self._recorder.shipped_seq

    async def _in_view(self, frozen: Frozen, read: Callable[..., _T], *arguments: object) -> _T:
        """Read rows of the cut in a thread, or on the event loop if there is no snapshot."""
        if frozen.snapshot is None:
            return read(self._db.connection, *arguments)
        return await in_thread(read, frozen.snapshot.connection, *arguments)

    # --- describe a txg in a changelog ---------------------------------------------------------

    def _begin_changelog(self, frozen: Frozen, kind: Kind) -> Changelog:
        return Changelog(
            kind=kind,
            txg=frozen.txg,
            epoch=self._keeper.epoch,
            nonce=secrets.token_hex(NONCE_BYTES),
            uuid=self._uuid,
            schema_version=SCHEMA_VERSION,
            created_ns=max(frozen.cut_ns, self._position.link.created_ns + 1),
            previous=self._position.link.hash,
            floor=frozen.floor,
        )

    def _in_new_span(self, changelog: Changelog, cut_ns: int) -> Changelog:
        """Start a new time span if a wrong clock gave the last txg a later time than this cut.

        A time span starts only with an image, because no level object spans an image. It starts
        only if the clocks of the store and of this host agree.
        """
        if self._clock.disagreement or not is_later(self._position.link.created_ns, cut_ns):
            return changelog
        _log.info("txg %d begins a new time span: the last txg has a later time", changelog.txg)
        return replace(changelog, created_ns=cut_ns, begins_span=True)

    async def _describe_in_view(self, frozen: Frozen, news: News) -> tuple[Changelog, list[PackId]]:
        """Call ``_describe`` with a view of the rows that contains all records of the cut.

        If there are only a few records, the event loop reads them, because opening a snapshot would
        take longer.
        """
        if self._db.wal is None:
            return await self._describe(frozen, news)
        if self._recorder.bytes <= LOOP_MERGE_BYTES:
            return await self._describe(frozen._replace(snapshot=None), news)
        with contextlib.closing(self._db.open_snapshot()) as snapshot:
            return await self._describe(frozen._replace(snapshot=snapshot), news)

    async def _describe(self, frozen: Frozen, news: News) -> tuple[Changelog, list[PackId]]:
        """Return the changelog of a txg whose blocks are uploaded, and the packs that it reports.

        Sections that do not fit into the changelog object are uploaded as parts.
        """
        begun = self._begin_changelog(frozen, Kind.GROUP)
        locations = locations_of(news, frozen.cut)
        seq = self._recorder.shipped_seq
        sections: list[Section] = []
        prefix = changelog_codec.part_prefix(
            begun.txg, begun.epoch, secrets.token_bytes(RANDOM_BYTES)
        )
        parts: list[PartRef] = []
        while seq < frozen.last_seq and (run := await self._next_run(frozen, seq)) is not None:
            if sections:
                parts.append(await self._put_part(prefix, len(parts), sections.pop()))
            sections.append(Section(run.changeset, ()))
            seq = run.last_seq
        last = sections.pop() if sections else NO_CHANGES
        most = self._uploader.bounds.locations
        while len(locations) > most:
            first, locations = locations[:most], locations[most:]
            part = Section(last.changeset, first)
            parts.append(await self._put_part(prefix, len(parts), part))
            last = NO_CHANGES
        if parts:
            self._hook("changelog parts put")
        packs, forgotten = pack_notes_of(news, frozen.cut)
        changelog = replace(
            begun,
            parts=tuple(parts),
            packs=packs,
            forgotten=forgotten,
            section=Section(last.changeset, locations),
        )
        return changelog, [one.pack for one in news.packs]

    async def _next_run(self, frozen: Frozen, seq: int) -> MergedRecords | None:
        return await self._in_view(
            frozen, pending.fitting_run, seq, frozen.last_seq, self._uploader.bounds.run_bytes
        )

    async def _put_part(self, prefix: str, number: int, section: Section) -> PartRef:
        key = changelog_codec.part_key(prefix, number)
        data = await in_thread(changelog_codec.encode_part, key, section, self._keyring)
        await self._store.create(key, data)
        self.since_image.add(len(data))
        return PartRef(key, content_hash(data))

    # --- append to the chain -------------------------------------------------------------------

    async def _attempt(
        self,
        frozen: Frozen,
        changelog: Changelog,
        reported: Sequence[PackId],
        *,
        is_image: bool = False,
    ) -> tuple[Txg, bytes]:
        """Encode a changelog, and sync it to this host's disk. Then its bytes never change."""
        data = await in_thread(changelog_codec.encode, changelog, self._keyring)
        self._db.begin_local()
        if is_image:  # the image contains the cut's changes, so no changelog needs their records
            pending.forget(self._db, frozen.last_seq)
        self._attempt_is_synced = False
        listed = frozen.cut.complete.union(reported)
        self._recorder.attempted(changelog.txg, data, frozen.last_seq, frozen.next_block, listed)
        await self._sync_attempt()
        self._hook("txg attempted")
        return changelog.txg, data

    async def _sync_attempt(self) -> None:
        await self._durability.sync_all()
        self._attempt_is_synced = True

    async def _send_attempt(self) -> bool:
        """Send the changelog of an unfinished attempt; return False if no attempt is recorded."""
        attempt = pending.outbox(self._db)
        if attempt is None:
            return False
        if not self._attempt_is_synced:  # a sync failed, or an earlier mount recorded the attempt
            await self._sync_attempt()
        await self._send(*attempt)
        return True

    async def _send(self, txg: Txg, data: bytes) -> None:
        """Append the attempted changelog to the chain.

        Raises:
            FencedError: another writer has appended a changelog with this txg, or has the lease.
            StoreError: the store is unavailable; the append is retried with the next txg.
        """
        ours = await chain.append(self._store, txg, data)
        self._hook("changelog put")
        await self._require_end(self._require_lease)
        if not ours:
            await self._step_over(txg, data)
        link = await in_thread(chain.link_of, txg, data, self._keyring)
        self._db.begin_local()
        chain.record_own(self._db, link)
        pending.clear_outbox(self._db)
        self._durability.commit()
        self._position.advance(link)
        self._watch.note(link, data)
        self.confirmed_seq = self._recorder.shipped_seq
        self._confirmed_cuts = self._cuts
        self._confirmed.set()
        self._confirmed = trio.Event()
        self.since_image.add(len(data))
        self._cut_oldest_ns = 0
        self.last_error = ""
        self._hook("txg confirmed")

    async def _require_end(self, require_lease: Callable[[], Awaitable[None]]) -> None:
        """Check that this host holds the lease, and that the bucket has this host's last changelog.

        Raises:
            OlderBucketError: the bucket was reset to an older copy. This is recorded, so the next
                txg is an image.
        """
        try:
            await require_lease()
            if abandoned_txgs.wanted(self._db) is None:
                await self._watch.require(self._position.link)
        except OlderBucketError as exc:
            abandoned_txgs.want_after(self._db, exc)
            self._durability.commit()
            raise

    async def _require_lease(self) -> None:
        """Read the lease; store it again if it is lost and no other host has written.

        The caller must hold the lock. Otherwise, a txg that this host appends at the same time
        would count as the txg of another host.
        """
        try:
            await self._keeper.require_hold()
        except LostLeaseError as lost:
            end = self._watch, self._position.link, pending.outbox(self._db), lost
            await put_back(self._store, self._keyring, self._keeper, *end)

    async def _purge(self) -> None:
        """Remove shipped change records in small steps, between which other tasks run."""
        more = True
        while more:
            self._db.begin_local()
            more = self._recorder.purge()
            await trio.lowlevel.checkpoint()
