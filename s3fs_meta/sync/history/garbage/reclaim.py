"""Garbage collection: deletion of packs, images and changelogs that no retained txg needs.

Owns: the order of the steps (condemn rows, ship these rows, delete the objects, remove the rows);
the number of objects per pass.
Does not know: why a pack died, which objects are garbage (``garbage_search``, ``retention``).
Keeps: an object is deleted only after the confirmation of a txg that condemns it, abandons it, or
raises the floor above it. The floor is never lowered. Objects of other writers are never deleted. A
plan is never carried out after the bucket was reset to an older state.
Tasks: any task may call ``run`` and ``plan``; one pass runs at a time.
Design: docs/design/durability.md, "Deletion in two phases".
"""

import logging
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio

from s3fs_meta.cache.slices import slices
from s3fs_meta.codec.kept_point import KeptPoint
from s3fs_meta.errors import S3fsError, UnexpectedStoreError
from s3fs_meta.limits import (
    KEPT_FAULTS_MAX,
    RECLAIM_IDLE_S,
    RECLAIM_KEYS_MAX,
    RECLAIM_PASSES_MAX,
    RECLAIM_PLANS_MAX,
)
from s3fs_meta.meta.tables import packs, properties
from s3fs_meta.model import Epoch, ObjectKey, PackId, PackState, Txg
from s3fs_meta.objects.billing import Cause, part
from s3fs_meta.objects.contract import ObjectInfo
from s3fs_meta.sync.chain import abandoned_txgs, chain
from s3fs_meta.sync.changelog.writer import Shipper
from s3fs_meta.sync.durability import Durability
from s3fs_meta.sync.history.garbage import retention
from s3fs_meta.sync.history.garbage.deletion import Deleter
from s3fs_meta.sync.history.garbage.found_garbage import Garbage, RetainedHistory
from s3fs_meta.sync.history.garbage.garbage_search import Finder
from s3fs_meta.sync.history.garbage.retention import Image, TxgTimes
from s3fs_meta.sync.history.kept.kept_points import KeptPointReader, KeptPoints
from s3fs_meta.sync.history.kept.pins import KeptPointPins, Renumbered
from s3fs_meta.sync.hooks import Hook
from s3fs_meta.sync.progress import Progress, no_progress
from s3fs_meta.sync.superblock_watch import protect_kept_points, retained_s, tend
from s3fs_meta.sync.volume import Volume

_log = logging.getLogger(__name__)


class ObjectTally(NamedTuple):
    """The number and the total size of objects, by kind."""

    floor: Txg
    # number and total size of the objects, by kind of object
    kinds: dict[str, tuple[int, int]]

    def as_json(self, *, deleted: bool) -> dict[str, Any]:
        """Return the tally as a JSON object."""
        objects = {kind: {"count": n, "bytes": size} for kind, (n, size) in self.kinds.items()}
        return {"floor": self.floor, "deleted": deleted, "objects": objects}


class Reclaimer:
    """Deletes the garbage of one opened filesystem."""

    def __init__(
        self,
        volume: Volume,
        shipper: Shipper,
        durability: Durability,
        *,
        hook: Hook,
    ) -> None:
        self._volume = volume
        self._db = volume.db
        self._store = volume.store
        self._shipper = shipper
        self._durability = durability
        self._hook = hook
        self._lock = trio.Lock()
        uuid = volume.uuid
        self._times = TxgTimes(volume.store, volume.keyring, uuid)
        self._deleter = Deleter(volume.store)
        self._finder = Finder(volume.db, volume.store, volume.keyring, uuid, self._deleter.rank)
        self._kept = KeptPointReader(volume.store, volume.keyring, uuid)
        self._reported: set[ObjectKey] = set()  # kept points that were already reported in the log
        # Names of the kept points in the last listing; None before the first listing.
        self.kept_names: list[str] | None = None
        self.last_error = ""
        # Packs that this mount condemned, and for which it has sent no DELETE.
        self._undeleted: set[PackId] = set()
        # The result of ``_state`` at the last search; None if that search failed or found garbage.
        self._found_nothing_at: tuple[str, int] | None = None
        self._searched_ns = 0
        self.wants_image = False  # True if dead packs wait only for a newer image

    @part(Cause.GARBAGE)
    async def run(self, *, unless_idle: bool = False) -> None:
        """Call ``tend``, then delete a bounded amount of garbage; the next call retries a failure.

        Args:
            unless_idle: search the bucket only once in RECLAIM_IDLE_S if nothing changes. Without a
                new txg, objects become garbage only by age. The listings would be the main cost of
                an idle mount.
        """
        try:
            await tend(self._volume)
            if unless_idle and self._is_idle():
                return
            self._found_nothing_at = None
            found = await self.reclaim()
            refusal = self._deleter.failure()
            self.last_error = "" if refusal is None else str(refusal)
            if not found.total:
                self._found_nothing_at = self._state()
                self._searched_ns = self._volume.clock.now_ns()
        # An OSError means that this host's copy of the superblock cannot be written now.
        except (S3fsError, OSError) as exc:
            self.last_error = str(exc)
            _log.warning("garbage collection failed, will retry: %s", exc)

    def _is_idle(self) -> bool:
        """Return whether the last search found no garbage and nothing has changed since then."""
        waited_s = abs(self._volume.clock.now_ns() - self._searched_ns) / 1e9
        return self._found_nothing_at == self._state() and waited_s < RECLAIM_IDLE_S

    def _state(self) -> tuple[str, int]:
        """Return a value that changes whenever a txg is written or the retention is changed."""
        return self._volume.position.link.hash, self._volume.superblock.generation

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Prevent passes of garbage collection during the with-block."""
        async with self._lock:
            yield

    async def kept_points(self) -> KeptPoints:
        """Return the kept points in the bucket. Raises StoreError."""
        found = await self._kept.all()
        self.note_kept(found.points)
        return found

    def note_kept(self, points: Sequence[KeptPoint]) -> None:
        """Record the names of all kept points after a listing or a change."""
        self.kept_names = [point.name for point in points]

    async def images(self, kept: KeptPoints) -> list[Image]:
        """Return the images on which a restore can rely. Raises StoreError, NewerFormatError."""
        return await self._finder.images([point.image for point in kept.points])

    def wake(self) -> None:
        """Make the next pass search the bucket even if no txg was written."""
        self._found_nothing_at = None

    async def plan(self, limit: int = RECLAIM_KEYS_MAX) -> Garbage:
        """Return the garbage that can be deleted now; change nothing.

        Raises:
            ClockError: this host's clock or the store's clock is wrong.
            StoreError: the bucket is unavailable.
            CorruptionError: no copy of the superblock can be used.
        """
        await self._volume.clock.require_agreement()
        link = self._volume.position.link
        retention_ns = await retained_s(self._volume) * 1_000_000_000
        kept = await self.kept_points()
        images = await self.images(kept)
        pins = self._pins(kept, images, link.txg)
        low = chain.wanted_floor(self._db, link)
        floor = low
        if retention.may_rise(images):
            now_ns = self._volume.clock.now_ns()
            old = await retention.newest_old(
                self._times, self._store, now_ns, retention_ns, images, low, link.txg
            )
            floor = retention.floor_of(images, low, old)
            self.wants_image = packs.has_dead(self._db, floor, old)
        stamp = await self._times.stamp(floor) if floor else None
        # A pack without a row may belong to a replaced history.
        # No such pack is deleted until the floor has passed the end of that history.
        is_passed = floor >= properties.replaced_history(self._db)
        epoch = Epoch(0) if stamp is None or not is_passed else stamp.epoch
        past = RetainedHistory(floor, epoch, link.txg, retention_ns, pins)
        return await self._finder.find(images, past, limit)

    def _pins(self, kept: KeptPoints, images: Sequence[Image], end: Txg) -> KeptPointPins:
        """Return the pins of the kept points; log each point whose needs are unknown."""
        renumbered = Renumbered(*properties.renumbered_packs(self._db))
        pins = KeptPointPins(kept, {image.key for image in images}, end, renumbered)
        why = {
            **{one.key: one.why for one in kept.unreadable},
            **{
                point.key: f"the image {point.image.key} of the kept point {point.name!r} is"
                " damaged or missing"
                for point in pins.broken
            },
        }
        new = sorted(why.keys() - self._reported)
        for key in new[:KEPT_FAULTS_MAX]:
            _log.warning(
                "%s: %s; objects that this kept point may need are not deleted. The option"
                " --objects-from of fsck restores objects from a copy; s3fs-meta keep --drop drops"
                " the point",
                key,
                why[key],
            )
        if len(new) > KEPT_FAULTS_MAX:
            _log.warning("%d more kept points are damaged", len(new) - KEPT_FAULTS_MAX)
        self._reported = set(why)
        return pins

    @part(Cause.GARBAGE)
    async def plan_all(self) -> ObjectTally:
        """Return the tally of all garbage that can be deleted now. Raises errors of ``plan``."""
        found = await self.plan(sys.maxsize)
        return ObjectTally(found.floor, found.counts)

    @part(Cause.GARBAGE)
    async def reclaim_all(self, progress: Progress = no_progress) -> ObjectTally:
        """Delete the garbage in at most RECLAIM_PASSES_MAX passes; return the tally.

        Raises:
            The same errors as ``reclaim``; objects of earlier passes are already deleted.
            PermanentStoreError: the store refuses to delete an object; the others are deleted.
            UnexpectedStoreError: the store still lists an object whose deletion it confirmed.
        """
        found = await self.reclaim(progress)
        kinds = found.counts
        refused_alone = 0
        for _ in range(RECLAIM_PASSES_MAX - 1):
            deleted = _all_keys(found)
            # After a pass that only finds refused objects, the next pass reaches others.
            if not deleted and refused_alone == self._deleter.refused_alone:
                break
            refused_alone = self._deleter.refused_alone
            found = await self.reclaim(progress)
            for key in sorted(_all_keys(found) & deleted)[:1]:
                raise UnexpectedStoreError(
                    key,
                    "the store confirmed the deletion but still lists the object; try again later",
                )
            for kind, (number, size) in found.counts.items():
                kinds[kind] = (kinds[kind][0] + number, kinds[kind][1] + size)
        refusal = self._deleter.failure()
        if refusal is not None:
            raise refusal
        return ObjectTally(found.floor, kinds)

    async def reclaim(
        self, progress: Progress = no_progress, limit: int = RECLAIM_KEYS_MAX
    ) -> Garbage:
        """Delete at most *limit* garbage objects, and return the deleted objects.

        Raises:
            StoreError: some objects may already be deleted; the next call deletes the others.
            UnexpectedStoreError: the bucket was reset during each attempt; nothing was deleted.
            FencedError: another host has taken over the filesystem; nothing was deleted.
            ReadOnlyStateError: the mount is degraded; nothing was deleted.
        """
        async with self._lock:
            if abandoned_txgs.wanted(self._db) is not None:
                # The next txg must be a complete image of the local state, so ship it first.
                await self._shipper.ship()
            for _ in range(RECLAIM_PLANS_MAX):
                found = await self._condemned(limit)
                if found is not None:
                    # If fewer objects than the limit were found, the search was complete. Refused
                    # objects that it did not find were deleted by another program, or are needed
                    # again.
                    if found.total < limit:
                        self._deleter.forget_except(_all_keys(found))
                    await self._delete(found, progress)
                    self._forget_given_up(found)
                    return found
        raise UnexpectedStoreError(
            "changelog/",
            "an older state of the bucket was restored several times while garbage was collected",
        )

    # --- condemn dead packs --------------------------------------------------------------------

    async def _condemned(self, limit: int) -> Garbage | None:
        """Find garbage, and ship a txg that condemns it; return None if the result is outdated.

        The result is outdated if the bucket was reset to an older state in the meantime. Its
        objects may belong to the only images and changelogs of the older state.
        """
        history = properties.replaced_history(self._db)
        found = await self.plan(limit)
        # The superblock in use may be an older copy, which lacks this protection.
        if self.kept_names:
            await protect_kept_points(self._volume)
        await self._revive(self._undeleted & found.needed_again)
        if found.total:
            await self._condemn(found)
            if await self._shipper.ship(anyway=True) is None:  # no txg had to be shipped
                await self._shipper.require_shipped()
        if properties.replaced_history(self._db) == history:
            return found
        _log.warning(
            "the bucket was reset to an older state, so the search for garbage starts again"
        )
        return None

    async def _condemn(self, found: Garbage) -> None:
        """Record in the database that objects will be deleted; the next txg ships these rows.

        Packs are condemned, so that no new row refers to them; images are abandoned; the floor
        rises.
        """
        for piece in slices(found.orphans):
            self._db.begin_local()
            for info in piece:
                pack = packs.create(self._db, info.key, info.size_bytes)
                # If the open txg were recorded instead, the retry of a failed deletion would have
                # to wait for another retention period.
                packs.condemn(self._db, pack, died=found.floor)
                self._undeleted.add(pack)
                found.packs.append(packs.get(self._db, pack))
            await trio.lowlevel.checkpoint()
        found.orphans.clear()
        dead = found.packs.copy()
        found.packs.clear()
        for rows in slices(dead):
            self._db.begin_local()
            found.packs.extend(row for row in rows if self._condemn_pack(row.pack, found.floor))
            await trio.lowlevel.checkpoint()
        self._db.begin_local()
        properties.abandon_images(self._db, _keys(found.manifests))
        chain.want_floor(self._db, found.floor)
        self._durability.commit()
        self._hook("packs condemned")

    def _condemn_pack(self, pack: PackId, floor: Txg) -> bool:
        """Condemn a pack that died at or before the floor; return False if it is in use again."""
        row = packs.find(self._db, pack)
        if row is None or row.live_bytes or pack in self._db.held_packs:
            return False  # the row is deleted, or files use or will use the pack
        if row.state is PackState.CONDEMNED:
            return True
        if row.died_txg is None or row.died_txg > floor:
            return False  # since the search, new blocks have used the pack
        packs.condemn(self._db, pack)
        self._undeleted.add(pack)
        return True

    async def _revive(self, kept: set[PackId]) -> None:
        """Revive packs of a discarded plan that retained points in time need again.

        A condemned pack cannot be used by ``rollback`` and ``clone --at``, although its object is
        still in the bucket.
        """
        for piece in slices(sorted(kept)):
            self._db.begin()
            for pack in piece:
                if packs.find(self._db, pack) is not None:
                    packs.revive(self._db, pack)
            await trio.lowlevel.checkpoint()
        self._undeleted -= kept

    # --- delete objects ------------------------------------------------------------------------

    async def _delete(self, found: Garbage, progress: Progress) -> None:
        """Send the DELETE requests; after a crash the next pass deletes the remaining objects.

        Afterwards *found* contains only the objects that were deleted.
        """
        done, total = 0, found.total

        def deleted(count: int) -> None:
            nonlocal done
            done += count
            progress("objects deleted", done, total)

        async def send(keys: Sequence[ObjectKey], step: str) -> set[ObjectKey]:
            left = await self._deleter.delete(keys, deleted)
            found.exclude(left)
            if keys:
                self._hook(step)
            return left

        self._undeleted.difference_update(row.pack for row in found.packs)
        await send([row.object_key for row in found.packs], "packs deleted")
        await self._forget(found)
        before = set(self._deleter.refused)
        if await send(_keys(found.manifests), "manifests deleted") - before:
            found.pieces.clear()  # images whose manifests remain still need their pieces
        await send(_keys(found.pieces), "pieces deleted")
        await send(_keys(found.changelogs), "changelogs deleted")
        await send(_keys(found.levels), "levels deleted")
        await send(_keys(found.history), "history deleted")

    async def _forget(self, found: Garbage) -> None:
        for removed in slices(found.packs):
            self._db.begin_local()
            for row in removed:
                packs.delete(self._db, row.pack)
            await trio.lowlevel.checkpoint()
        if found.packs:
            self._durability.commit()
            self._hook("packs forgotten")

    def _forget_given_up(self, found: Garbage) -> None:
        """Remove the rows that record abandoned images, if their manifests were deleted."""
        removed = set(_keys(found.manifests))
        stored_images = self._finder.stored_images
        keys = [
            key
            for key in properties.abandoned_images(self._db)
            if key in removed or stored_images.lacks(key)
        ]
        if keys:
            self._db.begin_local()
            properties.forget_images(self._db, keys)
            self._durability.commit()


def _all_keys(deleted: Garbage) -> set[ObjectKey]:
    """Return the keys of all objects in a plan or a result, except packs without a row."""
    parts = (deleted.manifests, deleted.pieces, deleted.changelogs, deleted.levels, deleted.history)
    keys = {info.key for part in parts for info in part}
    return keys | {row.object_key for row in deleted.packs}


def _keys(objects: Sequence[ObjectInfo]) -> list[ObjectKey]:
    return [one.key for one in objects]
