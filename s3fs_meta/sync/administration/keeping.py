"""Creating and dropping kept points (named points in time); only the writer may do this.

Owns: the order of the steps (set the feature in the superblock, create the object, check the
lease); checking whether a point in time may be kept.
Does not know: the objects that a kept point needs (``history.kept.pins``), its callers.
Keeps: a point is confirmed only once its metadata is in the bucket and no garbage collection can
overlook its object. On this host, garbage collection is paused meanwhile. Another host can collect
garbage only after a takeover, which the final check of the lease detects. Older versions of the
program refuse a filesystem with kept points.
Tasks: any task.
Design: docs/design/durability.md, "Kept points".
"""

import logging
import secrets
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from s3fs_meta.background_task import in_thread
from s3fs_meta.bucket_errors import BrokenChainError
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import kept_point as kept_codec
from s3fs_meta.codec.envelope import ENCODED_BYTES_MAX
from s3fs_meta.codec.image import ManifestRef, content_hash
from s3fs_meta.codec.kept_point import KeptPoint
from s3fs_meta.errors import (
    FormatError,
    ObjectMissingError,
    ReadOnlyStateError,
    SettingsError,
    UsageError,
)
from s3fs_meta.limits import KEPT_NAME_CHARS_MAX, KEPT_POINTS_MAX
from s3fs_meta.model import ObjectKey, PackId, PointInTime, Txg, is_kept_name
from s3fs_meta.options.option_syntax import format_time
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import FetchedChangelog, Link
from s3fs_meta.sync.history.garbage import retention
from s3fs_meta.sync.history.garbage.retention import Image
from s3fs_meta.sync.history.kept.kept_points import KeptPoints
from s3fs_meta.sync.history.points_in_time import PointsInTime
from s3fs_meta.sync.history.snapshot_mount import Bucket
from s3fs_meta.sync.progress import Progress, no_progress
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.superblock_watch import protect_kept_points

_log = logging.getLogger(__name__)

_MEND: Final = (
    "run s3fs-meta fsck -p, which makes a complete image, and then keep a later point in time"
)


class PointKeeper:
    """Keeps and drops points in time of one filesystem, which must be open for writing."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._volume = session.volume
        self._store = session.volume.store
        self._reclaimer = session.reclaimer

    async def keep(
        self,
        name: str,
        wanted: PointInTime | None = None,
        progress: Progress = no_progress,
        *,
        auto: bool = False,
    ) -> KeptPoint:
        """Keep a point in time under a name; retention spares it until it is dropped.

        Args:
            name: a name that no kept point has yet.
            wanted: a retained or kept point in time; None: ship all changes, and keep the
                present state.
            progress: called with the state of the upload.
            auto: whether ``keep --expire`` may drop the point.

        Raises:
            ReadOnlyStateError: the mount is read-only.
            UsageError: the name is not allowed, or another kept point has it.
            SettingsError: the point in time is not retained, or too many points are kept.
            FencedError: another host has taken over the filesystem; do not rely on the point.
            FormatError: a metadata object that the point needs is damaged or missing.
            StoreError: the store is unavailable; if one of the last requests failed, the point may
                exist.
        """
        self._require_writer()
        require_name(name)
        if wanted is None:
            await self._session.flush(progress)
        async with self._reclaimer.paused():
            await self._session.shipper.require_hold()
            kept = await self._reclaimer.kept_points()
            _require_free(name, kept)
            point = await self._described(name, wanted, kept, auto=auto)
            await protect_kept_points(self._volume)
            data = kept_codec.encode(point, self._volume.keyring)
            await self._store.create(point.key, data)
            self._reclaimer.note_kept([*kept.points, point])
            # If another host has taken over, fail: its garbage collection may not know the point.
            # A host that takes over later lists the point before it deletes objects.
            await self._session.shipper.require_hold()
        _log.info("kept the state at txg %d as %r", point.txg, name)
        return point

    async def drop(self, names: Collection[str]) -> list[ObjectKey]:
        """Delete the objects of kept points; return their keys.

        Args:
            names: the names of points, or the keys of their objects.

        Raises:
            ReadOnlyStateError: the mount is read-only.
            SettingsError: a kept point does not exist; nothing was deleted.
            FencedError: another host has taken over the filesystem; nothing was deleted.
            StoreError: the store is unavailable; some of the points may already be dropped.
        """
        self._require_writer()
        keys: list[ObjectKey] = []
        async with self._reclaimer.paused():
            await self._session.shipper.require_hold()
            kept = await self._reclaimer.kept_points()
            for name in names:
                found = [point.key for point in kept.points if name in {point.name, point.key}]
                found += [one.key for one in kept.unreadable if one.key == name]
                if not found:
                    raise SettingsError(f"no kept point has the name {name!r}{_advice(kept)}")
                keys += found
            await self._store.delete(keys)
            self._reclaimer.note_kept([one for one in kept.points if one.key not in keys])
            self._reclaimer.wake()
        for name in names:
            _log.info("dropped the kept point %r", name)
        return keys

    def _require_writer(self) -> None:
        if self._session.status.read_only:
            raise ReadOnlyStateError("mounted read-only: only the writer can keep a point in time")

    async def _described(
        self, name: str, wanted: PointInTime | None, kept: KeptPoints, *, auto: bool
    ) -> KeptPoint:
        """Return the new kept point after checking that all its metadata objects exist."""
        volume = self._volume
        if wanted is not None and wanted.kept is not None:
            others = kept.named(wanted.kept)
            if not others:
                raise SettingsError(f"no kept point has the name {wanted.kept!r}{_advice(kept)}")
            await self._require_complete(others[0], await self._reclaimer.images(kept))
            return self._renamed(others[0], name, auto=auto)
        link = await self._link(wanted)
        fetched = await self._fetch(link.txg, link.hash)
        image = retention.base_of(await self._reclaimer.images(kept), link.txg)
        if image is None:
            raise SettingsError(
                f"txg {link.txg} cannot be restored from any complete image; {_MEND}"
            )
        await self._require_changelogs(image, link.txg)
        return KeptPoint(
            key=self._new_key(link.txg, name),
            name=name,
            uuid=volume.uuid,
            txg=link.txg,
            hash=link.hash,
            created_ns=link.created_ns,
            kept_ns=volume.clock.now_ns(),
            epoch=fetched.changelog.epoch,
            next_pack=PackId(volume.db.counters.next_pack),
            image=await self._manifest(image),
            auto=auto,
        )

    async def _require_complete(self, point: KeptPoint, images: Sequence[Image]) -> None:
        """Raise an error if the image or a changelog that a kept point needs is lost."""
        image = next((one for one in images if one.key == point.image.key), None)
        if image is None:
            raise FormatError(
                point.image.key, f"the image of the kept point {point.name!r} is damaged or missing"
            )
        await self._fetch(point.txg, point.hash)
        await self._require_changelogs(image, point.txg)

    async def _fetch(self, txg: Txg, wanted_hash: str) -> FetchedChangelog:
        """Return the changelog of a txg.

        Raises:
            FormatError: the changelog is missing or damaged, or its hash is not *wanted_hash*.
        """
        volume = self._volume
        try:
            fetched = await chain.fetch(volume.store, volume.keyring, volume.uuid, txg)
        except ObjectMissingError as exc:
            raise _missing_changelog(txg, txg) from exc
        if fetched.link.hash != wanted_hash:
            raise FormatError(
                changelog_codec.key_of(txg),
                "the changelog has another hash than in the chain that this host has read",
            )
        return fetched

    def _renamed(self, point: KeptPoint, name: str, *, auto: bool) -> KeptPoint:
        """Return a copy of an existing kept point with a different name."""
        key, now_ns = self._new_key(point.txg, name), self._volume.clock.now_ns()
        return replace(point, key=key, name=name, kept_ns=now_ns, auto=auto)

    def _new_key(self, txg: Txg, name: str) -> ObjectKey:
        random_bytes = secrets.token_bytes(kept_codec.RANDOM_BYTES)
        return kept_codec.new_key(txg, name, self._volume.keyring, random_bytes)

    async def _link(self, wanted: PointInTime | None) -> Link:
        """Return the chain position to keep; the caller has paused garbage collection."""
        volume = self._volume
        present = volume.position.link
        if wanted is None:
            return present
        points = PointsInTime(volume.store, volume.keyring, volume.uuid, volume.keeper.lease)
        bucket = Bucket(
            volume.store, volume.superblock, volume.keyring, volume.keeper, points, volume.clock
        )
        link = await bucket.find(wanted)
        floor = chain.wanted_floor(volume.db, present)
        if link.txg < floor:
            raise SettingsError(
                f"txg {link.txg} is no longer retained: the oldest retained txg is {floor}"
            )
        return link

    async def _manifest(self, image: Image) -> ManifestRef:
        try:
            data = (await self._store.get(image.key, ENCODED_BYTES_MAX)).data
        except ObjectMissingError as exc:
            raise FormatError(image.key, f"the image is missing; {_MEND}") from exc
        return ManifestRef(image.key, await in_thread(content_hash, data))

    async def _require_changelogs(self, image: Image, txg: Txg) -> None:
        """Raise BrokenChainError if a changelog between an image and a txg is missing."""
        count = txg - image.txg
        listed = await chain.listed_from(self._store, Txg(image.txg + 1), count) if count else []
        for number, found in zip(range(image.txg + 1, txg + 1), [*listed, None], strict=False):
            if number != found:
                raise _missing_changelog(Txg(number), txg)


def _missing_changelog(missing: Txg, end: Txg) -> BrokenChainError:
    """Return the error for a missing changelog that the point in time *end* needs."""
    what = f"the changelog is missing; {_MEND}"
    return BrokenChainError(changelog_codec.key_of(missing), what, Txg(missing - 1), end)


def require_name(name: str) -> None:
    """Raise UsageError if a text is not a valid name for a kept point."""
    if not is_kept_name(name):
        raise UsageError(
            f"the name {name!r} is not valid for a kept point: a name starts with a letter, has at"
            f" most {KEPT_NAME_CHARS_MAX} characters (letters, digits and _.-+:@), and is neither"
            " newest nor now"
        )


def _require_free(name: str, kept: KeptPoints) -> None:
    taken = kept.named(name)
    if taken:
        raise UsageError(
            f"{name!r} is already kept: txg {taken[0].txg} of {format_time(taken[0].created_ns)};"
            f" choose another name, or drop that point first: keep --drop {name}"
        )
    if len(kept.points) + len(kept.unreadable) >= KEPT_POINTS_MAX:
        raise SettingsError(
            f"the maximum of {KEPT_POINTS_MAX} kept points has been reached; drop one first"
        )


def _advice(kept: KeptPoints) -> str:
    if not kept.unreadable:
        return "; s3fs-meta keep --list lists all kept points"
    return (
        f"; {len(kept.unreadable)} objects of kept points cannot be read, for example"
        f" {kept.unreadable[0].key}: such an object can be dropped by its key"
    )
