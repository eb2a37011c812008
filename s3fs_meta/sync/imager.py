"""Images: complete copies of the metadata in the bucket.

Owns: the cut, the copy, its pieces, the order in which they become the head.
Does not know: FUSE, who asked.
Keeps: an image names only blocks that are in the store; its manifest is put only after the rows
that say so are durable here, and the lease's head moves only after the manifest is in the store.
Tasks: ``publish`` by any (interval, flush, unmount); one at a time.
Design: docs/design/durability.md, "From cut to head".
"""

import logging
from pathlib import Path
from typing import NamedTuple

import trio

from s3fs_meta.cache.disk_space import DiskSpace
from s3fs_meta.clock import Clock
from s3fs_meta.codec.image import Piece
from s3fs_meta.codec.lease import Head
from s3fs_meta.errors import FencedError, FormatError, ObjectMissingError, ReadOnlyStateError
from s3fs_meta.limits import CLEANUP_S_MAX
from s3fs_meta.meta import image_copy
from s3fs_meta.meta.snapshot import Snapshot
from s3fs_meta.model import Txg
from s3fs_meta.mount_state import MountStatus
from s3fs_meta.sync import heads, image_writer
from s3fs_meta.sync.durability import Durability
from s3fs_meta.sync.hooks import Hook
from s3fs_meta.sync.opening import Opened
from s3fs_meta.sync.progress import Progress, no_progress
from s3fs_meta.sync.uploader import Cut, Uploader

_log = logging.getLogger(__name__)


class _CutImage(NamedTuple):
    """What the loop froze in one slice."""

    txg: Txg
    cut: Cut
    snapshot: Snapshot


class Imager:
    """Publishes images of one mounted filesystem."""

    def __init__(
        self,
        opened: Opened,
        disk: DiskSpace,
        uploader: Uploader,
        durability: Durability,
        status: MountStatus,
        clock: Clock,
        hook: Hook,
    ) -> None:
        self._db = opened.db
        self._store = opened.store
        self._keyring = opened.keyring
        self._keeper = opened.keeper
        self._tmp = opened.state_dir.tmp
        self._disk = disk
        self._uploader = uploader
        self._durability = durability
        self._status = status
        self._clock = clock
        self._hook = hook
        self._lock = trio.Lock()
        self.last_ns = 0
        self.last_error = ""
        self._unsure = False  # whether the head moved: the reply did not come

    async def publish(self, progress: Progress = no_progress) -> Head | None:
        """Carry everything acknowledged so far to the bucket.

        Returns:
            The new head, None when nothing changed since the last one.

        Raises:
            FencedError: a newer epoch owns the filesystem; the mount is read-only now.
            ReadOnlyStateError: the mount is degraded: what is wrong here must not get there.
            StoreError: the store is away; everything is kept here.
            NoSpaceLeftError: the disk has no room for a copy of the database beyond its reserve.
        """
        async with self._lock:
            if self._keeper.fenced is not None:
                raise self._keeper.fenced
            if not self._db.changed and not self._uploader.shippable:
                return None
            if not self._status.ships:
                raise ReadOnlyStateError(self._status.why)
            try:
                return await self._publish(progress)
            except FencedError as exc:
                self._status.fence(str(exc))
                raise

    async def _publish(self, progress: Progress) -> Head:
        if self._unsure:
            await self._settle_attempt()
        await self._uploader.seal_most()
        if not self._disk.has_room(self._copies_bytes()):
            await self._upload_first(progress)
        copy = self._tmp / f"image-{self._db.counters.txg}.db"
        with self._disk.holding(copy, self._copies_bytes()):
            head = await self._make(copy, progress)
        self._confirm(head)
        return head

    async def _upload_first(self, progress: Progress) -> None:
        """Upload before the copy is made: what is uploaded can be evicted, and makes room for it."""
        self._db.begin_local()
        cut = self._uploader.cut = Cut(self._uploader.seal_all())
        self._db.commit()
        try:
            await self._wait_for_blocks(cut, progress)
        finally:
            self._uploader.cut = None
        await self._durability.sync_all()

    def _copies_bytes(self) -> int:
        """Return what the copy takes on the disk, and that of a snapshot which is a copy itself."""
        return self._db.size_bytes * (1 if self._db.pragmas.is_wal else 2)

    async def _make(self, copy: Path, progress: Progress) -> Head:
        """Cut, copy, upload, and move the head."""
        frozen = self._freeze()
        try:
            self._hook("image cut")
            try:
                await trio.to_thread.run_sync(frozen.snapshot.copy_to, copy)
            finally:
                frozen.snapshot.close()
            self._hook("image copied")
            await self._wait_for_blocks(frozen.cut, progress)
            await trio.to_thread.run_sync(
                image_copy.finish,
                copy,
                frozen.cut.packs.values(),
                frozen.cut.placements,
                frozen.cut.lost,
            )
            head = await self._put_image(frozen.txg, copy, progress)
        except BaseException:
            self._db.changed = True  # what this cut froze is still to be told
            raise
        finally:
            self._uploader.cut = None
            with trio.move_on_after(CLEANUP_S_MAX, shield=True):
                await trio.to_thread.run_sync(image_copy.remove, copy)
        return head

    async def _settle_attempt(self) -> None:
        """Find out what became of the last attempt, before another takes its row.

        Raises:
            FencedError, StoreError: as ``publish``.
        """
        lease = await self._keeper.reread()
        if lease.head is not None and lease.head == heads.recorded(self._db, "attempt"):
            self._db.begin_local()
            heads.confirm(self._db, lease.head, changed=True)
        self._unsure = False

    def _freeze(self) -> _CutImage:
        """Take one moment: seal what is dirty, number it, open a snapshot. One loop slice."""
        self._db.begin()
        pending = self._uploader.seal_all()
        txg = self._db.counters.txg
        self._db.counters.txg = Txg(txg + 1)
        self._db.commit()
        snapshot = self._db.open_snapshot()
        self._db.changed = False
        cut = Cut(pending)
        self._uploader.cut = cut
        return _CutImage(Txg(txg), cut, snapshot)

    async def _wait_for_blocks(self, cut: Cut, progress: Progress) -> None:
        total = len(cut.pending)

        def report(left: int) -> None:
            progress("blocks", total - left, total)

        report(total)
        await self._uploader.drain(cut, report)

    async def _put_image(self, txg: Txg, copy: Path, progress: Progress) -> Head:
        """Put pieces and manifest, then move the head; see the module's *Keeps*."""
        newest = self._keeper.lease.head
        old = await self._pieces_of(newest) if newest is not None else ()
        image = image_writer.new_image(txg, self._keeper.epoch)
        pieces = await image_writer.put_pieces(
            self._store, self._keyring, image, copy, old, progress
        )
        self._hook("image pieces put")
        head, data = await image_writer.describe(
            self._keyring,
            image,
            copy,
            pieces,
            created_ns=self._clock.now_ns(),
            previous=newest if old else None,
        )
        self._db.begin_local()
        heads.note_attempt(self._db, head)
        await self._durability.sync_all()
        self._hook("image attempt noted")
        await self._store.create(head.manifest_key, data)
        self._hook("image manifest put")
        self._unsure = True
        await self._keeper.move_head(head)
        self._unsure = False
        self._hook("lease head moved")
        return head

    async def _pieces_of(self, newest: Head) -> tuple[Piece, ...]:
        """Return the pieces of the last image, none if nobody could restore it any more."""
        try:
            manifest = await heads.load_manifest(
                self._store, self._keyring, newest.manifest_key, newest.manifest_hash
            )
            await image_writer.require_pieces(self._store, manifest.pieces)
        except (ObjectMissingError, FormatError) as exc:
            _log.error("the last image is not to be had, so this is a full image: %s", exc)
            return ()
        return manifest.pieces

    def _confirm(self, head: Head) -> None:
        """Note here that the head is ours. A crash before it is mended from the attempt."""
        self._db.begin_local()
        heads.confirm(self._db, head, changed=self._db.changed)
        self._durability.commit()
        self.last_ns = self._clock.now_ns()
        self.last_error = ""
        self._hook("image confirmed")
