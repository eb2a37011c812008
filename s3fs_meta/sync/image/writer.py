"""Creating images: complete copies of the metadata in the bucket.

Owns: the copy of the database, its pieces, the order of steps until the image is the head.
Does not know: FUSE, its callers, how a txg is shipped.
Keeps: an image refers only to blocks in the store, and its txg is in the chain; the head in
the lease changes only after the manifest is in the store.
Tasks: any task may call ``make`` and ``publish_as_txg``; one call runs at a time.
Design: docs/design/durability.md, "From cut to head".
"""

import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import trio

from s3fs_meta.background_task import in_thread, in_thread_or_here
from s3fs_meta.bucket_errors import UnfitRecordsError
from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.codec.image import ManifestRef, Piece
from s3fs_meta.codec.lease import Head
from s3fs_meta.errors import FencedError, FormatError, ObjectMissingError
from s3fs_meta.limits import CLEANUP_S_MAX, IMAGE_SHARE, IMAGE_SHARE_BYTES_MIN
from s3fs_meta.meta.db.snapshot import Snapshot
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.meta.tables import local_state, packs, properties
from s3fs_meta.model import Txg
from s3fs_meta.mount_state import MountStatus
from s3fs_meta.state_paths import unfinished
from s3fs_meta.sync.chain import abandoned_txgs, chain
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.changelog.writer import Shipper
from s3fs_meta.sync.durability import Durability
from s3fs_meta.sync.hooks import Hook
from s3fs_meta.sync.image import pieces as image_pieces
from s3fs_meta.sync.progress import Progress, no_progress
from s3fs_meta.sync.upload.cut import Cut
from s3fs_meta.sync.volume import Volume

_log = logging.getLogger(__name__)


class Imager:
    """Creates images of one mounted filesystem."""

    def __init__(
        self,
        volume: Volume,
        cache: BlockCache,
        shipper: Shipper,
        durability: Durability,
        status: MountStatus,
        hook: Hook,
    ) -> None:
        self._db = volume.db
        self._store = volume.store
        self._keyring = volume.keyring
        self._keeper = volume.keeper
        self._tmp = volume.state_dir.tmp
        self._disk = cache.disk
        self._throttle = cache.throttles.upload
        self._shipper = shipper
        self._durability = durability
        self._status = status
        self._clock = volume.clock
        self._hook = hook
        self._lock = trio.Lock()
        self.last_ns = 0
        # stored size of the newest image; None until it is measured
        self._image_bytes: int | None = None
        self.last_error = ""
        self._unsure = False  # True if the head in the lease is unknown, because a reply was lost
        # position in the chain at the start of the mount; None after the first measurement
        self._link_at_start: Link | None = volume.link

    def note_last(self, created_ns: int) -> None:
        """Record the creation time of the image that was the head at the start of this mount."""
        self.last_ns = created_ns

    def put_off(self, exc: Exception) -> None:
        """Record and log the reason why no image was made; a later call of ``make`` retries."""
        self.last_error = str(exc)
        _log.warning("cannot make an image of the metadata, will retry: %s", exc)

    async def is_due(self, *, changelog_bytes_min: int = IMAGE_SHARE_BYTES_MIN) -> bool:
        """Return whether the changelogs since the last image are large compared to that image.

        Args:
            changelog_bytes_min: changelogs up to this total size are small compared to any image.

        Raises:
            StoreError: the bucket cannot be listed.
        """
        while self._image_bytes is None:  # the loop repeats only if a new image appears
            await self._measure()
        wanted = max(changelog_bytes_min, self._image_bytes // IMAGE_SHARE)
        return self._shipper.since_image.bytes > wanted

    async def _measure(self) -> None:
        """Measure the last image and the changelogs that earlier mounts shipped after it."""
        head, link = self._keeper.lease.head, self._link_at_start
        image_bytes, since = 0, list[int]()
        if head is not None:
            image_bytes = await self._stored_bytes(head)
            if link is not None and link.txg > head.txg:
                since = await chain.sizes_after(self._store, head.txg, link.txg)
        if self._keeper.lease.head == head:
            self._shipper.since_image.add_earlier(since)
            self._image_bytes = image_bytes
        self._link_at_start = None

    async def _stored_bytes(self, head: Head) -> int:
        """Return the stored size of an image's pieces, or 0 if its manifest cannot be read."""
        try:
            manifest = await image_head.load_manifest(self._store, self._keyring, head.manifest)
        except (ObjectMissingError, FormatError):
            return 0
        pieces = {piece.key for piece in manifest.pieces}
        total = 0
        async with aclosing(self._store.list("image/")) as listing:
            async for info in listing:
                total += info.size_bytes if info.key in pieces else 0
        return total

    async def make(self, progress: Progress = no_progress) -> Head:
        """Ship all acknowledged changes, make an image of the resulting txg, and make it the head.

        Raises:
            FencedError: another host has taken over the filesystem; the mount is read-only now.
            ReadOnlyStateError: the mount is degraded, so its state must not be shipped.
            StoreError: the store is unavailable; all changes stay on this host.
            NoSpaceLeftError: the disk has no space for a copy of the database beyond the reserve.
            FormatError: an unclean shutdown has damaged the database; no image was made.
        """
        if abandoned_txgs.wanted(self._db) is not None:
            await self._shipper.publish_as_txg(progress)
        try:
            async with self._lock:
                await self._shipper.ship_blocks(progress)
                async with self._room(progress) as copy:
                    return await self._make(copy, progress)
        except UnfitRecordsError:  # an image can replace the changelog
            return await self.publish_as_txg(progress)

    async def _make(self, copy: Path, progress: Progress) -> Head:
        shipped = await self._shipper.ship_for_image(progress)
        await self._copy(shipped.snapshot, copy)
        newest = self._keeper.lease.head
        old = await self._pieces_of(newest) if newest is not None else ()
        head, data = await self._put(
            shipped.link, copy, shipped.cut, old, progress, take=self._throttle.take
        )
        self._note_attempt(head)
        await self._durability.sync_all()
        self._hook("image attempt noted")
        await self._store.create(head.manifest_key, data)
        self._hook("image manifest put")
        await self._move_head(head)
        return head

    async def publish_as_txg(self, progress: Progress = no_progress) -> Head:
        """Publish an image of the local state as the next txg. Raises the same errors as ``make``.

        The image also contains changes that were not recorded, such as repairs by fsck.
        """
        heads_made: list[Head] = []

        async def put(txg: Txg, cut: Cut, snapshot: Snapshot, before: Link) -> ManifestRef:
            await self._copy(snapshot, copy)
            state = Link(txg, before.hash, before.created_ns)
            # No upload limit applies, because the txg cannot be shipped before its image.
            head, data = await self._put(state, copy, cut, (), progress, take=image_pieces.at_once)
            await self._store.create(head.manifest_key, data)
            self._hook("image manifest put")
            heads_made.append(head)
            return head.manifest

        async with self._lock, self._room(progress) as copy:
            if abandoned_txgs.wanted(self._db) is not None:
                self._db.begin_local()
                packs.renew_died_txg(self._db)
                properties.note_replaced_history(self._db, Txg(self._db.counters.txg))
            await self._shipper.ship_as_image(put, progress)
            head = heads_made[0]
            self._note_attempt(head)
            abandoned_txgs.done(self._db)
            await self._durability.sync_all()
            await self._move_head(head)
        return head

    async def _copy(self, snapshot: Snapshot, copy: Path) -> None:
        """Copy a snapshot, and close it; check the first copy after an unclean shutdown.

        The row ``unchecked`` remains until this check, even if no image is made for several mounts.

        Raises:
            FormatError: an unclean shutdown has damaged the database.
        """
        try:
            await in_thread(snapshot.copy_to, copy)
        finally:
            snapshot.close()
        self._hook("image copied")
        if local_state.get(self._db, "unchecked") == "1":
            await in_thread(image_copy.require_intact, copy, self._db.path)
            self._db.begin_local()
            local_state.delete(self._db, "unchecked")

    @contextlib.asynccontextmanager
    async def _room(self, progress: Progress) -> AsyncIterator[Path]:
        """Reserve disk space for a database copy; yield its path, and remove the copy at exit."""
        if self._unsure:
            await self._settle_attempt()
        await self._disk.make_room(self._copies_bytes())
        if not self._disk.has_room(self._copies_bytes()):
            if abandoned_txgs.wanted(self._db) is None:  # the next txg need not be an image
                await self._shipper.ship_blocks(progress)
            await self._durability.sync_all()  # uploaded blocks become clean and can be evicted
            await self._disk.make_room(self._copies_bytes())
        copy = unfinished(self._tmp, f"image-{self._db.counters.txg}.db")
        with self._disk.holding(copy, self._copies_bytes()):
            try:
                yield copy
            finally:
                with trio.move_on_after(CLEANUP_S_MAX, shield=True):
                    await in_thread_or_here(image_copy.remove, copy)

    def _copies_bytes(self) -> int:
        """Return the disk space that a copy needs: double outside WAL mode, for the snapshot."""
        return self._db.size_bytes * (1 if self._db.pragmas.is_wal else 2)

    async def _settle_attempt(self) -> None:
        """Read the lease; if it refers to the last attempted image, record that image as the head.

        Raises:
            FencedError: another host has taken over the filesystem.
            StoreError: the store is unavailable.
        """
        lease = await self._keeper.reread()
        if lease.head is not None and lease.head == image_head.recorded(self._db, "attempt"):
            self._db.begin_local()
            image_head.confirm(self._db, lease.head, changed=True)
        self._unsure = False

    async def _put(
        self,
        link: Link,
        copy: Path,
        cut: Cut,
        old: Sequence[Piece],
        progress: Progress,
        *,
        take: image_pieces.Take,
    ) -> tuple[Head, bytes]:
        """Upload the pieces that are not in *old*; return the head and the encoded manifest.

        Args:
            link: the txg of the image, and the changelog hash that the manifest records.
        """
        finish = functools.partial(image_copy.finish, txg=link.txg)
        await in_thread(finish, copy, cut.packs.values(), list(cut.places.values()), cut.lost)
        image = image_pieces.new_image(link.txg, self._keeper.epoch)
        pieces = await image_pieces.put_pieces(
            self._store, self._keyring, image, copy, old, progress, take
        )
        self._hook("image pieces put")
        return await image_pieces.describe(
            self._keyring,
            image,
            copy,
            pieces,
            created_ns=self._clock.now_ns(),
            previous=self._keeper.lease.head if old else None,
            changelog=link.hash,
        )

    def _note_attempt(self, head: Head) -> None:
        self._db.begin_local()
        image_head.note_attempt(self._db, head)

    async def _move_head(self, head: Head) -> None:
        """Make an uploaded image the head, first in the lease and then in the rows of this host."""
        self._unsure = True
        try:
            await self._keeper.move_head(head)
        except FencedError as exc:
            self._status.fence(str(exc))
            raise
        self._unsure = False
        self._hook("lease head moved")
        self._confirm(head)

    async def _pieces_of(self, newest: Head) -> tuple[Piece, ...]:
        """Return the pieces of the last image, or () if the image can no longer be restored."""
        try:
            manifest = await image_head.load_manifest(self._store, self._keyring, newest.manifest)
            await image_pieces.require_pieces(self._store, manifest.pieces)
        except (ObjectMissingError, FormatError) as exc:
            _log.error(
                "the last image cannot be used, so all pieces of the new image are uploaded: %s",
                exc,
            )
            return ()
        return manifest.pieces

    def _confirm(self, head: Head) -> None:
        """Record the attempted image as the head on this host; a crash before that is harmless."""
        self._db.begin_local()
        image_head.confirm(self._db, head, changed=self._db.changed)
        self._durability.commit()
        self._shipper.since_image.reset()
        self._image_bytes = None
        self.last_ns = self._clock.now_ns()
        self.last_error = ""
        self._hook("image confirmed")
