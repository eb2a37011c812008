"""Garbage: objects that no retained txg needs, found in listings of the bucket and in the database.

Owns: the rules that decide which images can be restored, and which objects no retained txg needs.
Does not know: deleting (``reclaim``), when the floor is raised (``retention``).
Keeps: an object whose key has an unknown form is never garbage. Objects of uploads that may be
unfinished are never garbage: pieces of an image as new as one of the last IMAGES_KEPT images, parts
of the next changelog, packs of this epoch.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import history_index
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import level as level_codec
from s3fs_meta.codec.envelope import ENCODED_BYTES_MAX
from s3fs_meta.codec.image import TXG_DIGITS, Manifest, ManifestRef
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, NewerFormatError, ObjectMissingError
from s3fs_meta.limits import DELETE_BATCH_KEYS, FETCHES_MAX, LEVELS_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import packs, properties
from s3fs_meta.meta.tables.packs import PackRow
from s3fs_meta.model import ObjectKey, PackId, Txg
from s3fs_meta.objects.contract import ObjectInfo, ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.history.garbage import retention
from s3fs_meta.sync.history.garbage.deletion import RANKS
from s3fs_meta.sync.history.garbage.found_garbage import Garbage, RetainedHistory
from s3fs_meta.sync.history.garbage.orphan_packs import OrphanPacks
from s3fs_meta.sync.history.garbage.own_objects import own_objects
from s3fs_meta.sync.history.garbage.retention import Image
from s3fs_meta.sync.history.kept.pins import NO_PINS, KeptPointPins

_log = logging.getLogger(__name__)


class _Facts(NamedTuple):
    """The facts about one image that garbage collection needs."""

    image: Image
    hash: str  # content_hash of the manifest
    pieces: frozenset[ObjectKey]
    previous: ManifestRef | None
    listed: ObjectInfo  # the manifest's entry in the listing of the bucket


Rank = Callable[[ObjectKey], int]


def _not_refused(_key: ObjectKey) -> int:
    return 0


class StoredImages:
    """The images in the bucket; ``list_images`` lists them.

    On a plain filesystem any user of the bucket can write a manifest that passes verification. So a
    manifest whose hash is recorded must match that hash. Hashes are recorded in this host's record
    of the head, in the next valid image, in changelogs of kind IMAGE, and in kept points.
    """

    def __init__(self, store: ObjectStore, keyring: Keyring, uuid: str) -> None:
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        # facts about each image whose manifest is readable
        self._facts: dict[ObjectKey, _Facts] = {}
        self._opened: set[ObjectKey] = set()  # all decoded manifests, in the chain or not
        self._exchanged: set[ObjectKey] = set()  # manifests that do not match their recorded hash
        self._newer: dict[ObjectKey, NewerFormatError] = {}  # manifests that claim a newer version
        self._manifests: list[ObjectInfo] = []
        self._pieces: dict[ObjectKey, int] = {}
        # For each image (the common prefix of its object keys), True if this filesystem wrote it.
        self._ours: dict[str, bool] = {}

    async def list_images(
        self, named: Sequence[ManifestRef] = (), claimed: Sequence[ManifestRef] = ()
    ) -> list[Image]:
        """Return the images from which a restore can start: complete, and in the chain.

        Args:
            named: references to manifests with the hashes that this host knows.
            claimed: references that any user of a plain filesystem's bucket can forge; a hash that
                follows from *named* takes precedence.

        Raises:
            NewerFormatError: an authentic object refers to an image of an unknown version.
        """
        self._manifests, self._pieces, self._newer = [], {}, {}
        async with aclosing(self._store.list(image_codec.PREFIX)) as listing:
            async for info in listing:
                if image_codec.parse_manifest_key(info.key) is not None:
                    self._manifests.append(info)
                elif image_codec.parse_piece_key(info.key) is not None:
                    self._pieces[info.key] = info.size_bytes
        facts: dict[ObjectKey, _Facts] = {}
        self._opened &= {info.key for info in self._manifests}
        for info in self._manifests:
            found = self._facts.get(info.key)
            if found is None or found.listed != info:
                self._opened.discard(info.key)
                found = await self._read(info)
            if found is not None:
                facts[info.key] = found
        self._facts = facts
        self._compare_hashes(named, claimed)
        await self._refuse_newer([*named, *claimed])
        return sorted(
            one.image
            for key, one in facts.items()
            if key not in self._exchanged and one.pieces <= self._pieces.keys()
        )

    async def _refuse_newer(self, named: Iterable[ManifestRef]) -> None:
        """Raise NewerFormatError if an authentic object refers to an image of an unknown version.

        Other manifests that claim an unknown version are ignored, and are kept with their pieces.
        """
        known = {one.key for one in named}
        known.update(one.previous.key for one in self._facts.values() if one.previous is not None)
        for key, newer in self._newer.items():
            if key in known or await self._is_named_by_its_txg(key):
                raise newer
            _log.info("no object refers to this image, so it is ignored but not deleted: %s", newer)

    async def _is_named_by_its_txg(self, manifest: ObjectKey) -> bool:
        txg = _image_txg(manifest)
        try:
            fetched = await chain.fetch(self._store, self._keyring, self._uuid, txg)
        except (FormatError, ObjectMissingError):  # FormatError: also for an unknown version
            return False
        image = fetched.changelog.image
        return image is not None and image.key == manifest

    def _compare_hashes(self, named: Sequence[ManifestRef], claimed: Sequence[ManifestRef]) -> None:
        """Collect the manifests whose content does not match their recorded hash."""
        hashes, claims = ({one.key: one.hash for one in refs} for refs in (named, claimed))
        exchanged: set[ObjectKey] = set()
        for key, facts in sorted(self._facts.items(), key=lambda one: one[1].image, reverse=True):
            known = hashes if key in hashes else claims
            named_hash = known.get(key)
            if named_hash is None:
                continue  # no hash is recorded, for example because the next image was deleted
            if named_hash != facts.hash:
                exchanged.add(key)
            elif facts.previous is not None:
                known.setdefault(facts.previous.key, facts.previous.hash)
        for key in sorted(exchanged - self._exchanged):
            _log.warning(
                "ignoring the image of manifest %s, which does not match its recorded hash", key
            )
        self._exchanged = exchanged

    async def _read(self, info: ObjectInfo) -> _Facts | None:
        key = info.key
        try:
            data = (await self._store.get(key, ENCODED_BYTES_MAX)).data
            found = await in_thread(_open, key, data, self._keyring)
            manifest, pieces, images = found
            self._ours[image_codec.image_of(key)] = manifest.uuid == self._uuid
            self._opened.add(key)
            content_hash = image_codec.content_hash(data)
            is_txg = await self._is_txg(manifest, ManifestRef(key, content_hash))
        except NewerFormatError as exc:
            if exc.key != key:
                raise
            self._newer[key] = exc
            return None
        except (FormatError, ObjectMissingError):
            return None
        image = Image(manifest.txg, key, manifest.created_ns, is_txg)
        if manifest.uuid == self._uuid:
            self._ours.update(dict.fromkeys(images, True))
        return _Facts(image, content_hash, pieces, manifest.previous, info)

    async def _is_txg(self, manifest: Manifest, ref: ManifestRef) -> bool:
        """Return whether a restore of an image's txg may need the image.

        The image is needed if the txg's changelog is of kind IMAGE. An unreadable changelog may be
        of this kind.

        Raises:
            FormatError, ObjectMissingError: the image does not belong to the chain.
        """
        try:
            own = await chain.fetch_of_image(
                self._store, self._keyring, self._uuid, manifest, ref.key
            )
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError) as exc:
            if exc.key != changelog_codec.key_of(manifest.txg):
                raise
            return True
        named = None if own is None else own.changelog.image
        if named is None or named.key != ref.key:
            return False
        if named.hash != ref.hash:
            raise FormatError(
                ref.key, "the content of the manifest does not match the hash in its changelog"
            )
        return True

    def before(self, images: Sequence[Image]) -> set[ObjectKey]:
        """Return the manifest keys of the images that directly precede *images*."""
        named = (self._facts[image.key].previous for image in images)
        return {one.key for one in named if one is not None}

    def lacks(self, manifest: ObjectKey) -> bool:
        """Return whether a manifest was missing from the last listing."""
        return all(info.key != manifest for info in self._manifests)

    def stored_bytes(self, image: Image) -> int:
        """Return the total size of an image's pieces, as listed in the bucket."""
        return sum(self._pieces.get(key, 0) for key in self._facts[image.key].pieces)

    async def garbage(
        self,
        stay: set[ObjectKey],
        before: Txg,
        base: Txg = changelog_codec.NO_FLOOR,
        pins: KeptPointPins = NO_PINS,
        *,
        rank: Rank = _not_refused,
    ) -> tuple[list[ObjectInfo], list[ObjectInfo]]:
        """Return manifests that can be deleted, and pieces that no other manifest lists.

        Only images that this filesystem wrote are returned. An image with a damaged or replaced
        manifest is kept until a later image is the base image, because no restore needs the damaged
        image from then on.

        Args:
            stay: manifests to retain.
            before: objects of images of this txg or later are retained, because an upload may be
                unfinished.
            base: the txg of the image from which a restore of the floor starts.
            pins: the objects that kept points need.
            rank: returns 0 for objects that the store did not refuse to delete. The pieces of
                images with a refused manifest are kept.
        """
        deletable = [
            info
            for info in self._manifests
            if info.key not in stay
            and info.key not in pins.manifests
            and info.key not in self._newer
            and _image_txg(info.key) < before
            and not pins.needs_image(_image_txg(info.key))
            and await self._is_superseded(info.key, base)
        ]
        left = self._facts.keys() - {info.key for info in deletable if not rank(info.key)}
        doubtful = {
            image_codec.image_of(info.key)
            for info in self._manifests
            if info not in deletable
            and (info.key not in self._opened or info.key in self._exchanged)
        }
        needed = frozenset[ObjectKey]().union(*(self._facts[key].pieces for key in left))
        pieces = [
            ObjectInfo(key, size)
            for key, size in self._pieces.items()
            if key not in needed
            and _image_txg(key) < before
            and not pins.needs_image(_image_txg(key))
            and image_codec.image_of(key) not in doubtful
            and await self._is_ours(key)
        ]
        return deletable, pieces

    async def _is_superseded(self, manifest: ObjectKey, base: Txg) -> bool:
        """Return whether this filesystem wrote a manifest, and no restore can need it any more."""
        image = image_codec.image_of(manifest)
        if manifest in self._opened and manifest not in self._exchanged:
            return bool(self._ours.get(image))
        if _image_txg(manifest) >= base:
            return False
        if image in self._ours:
            return self._ours[image]
        own = (key for key in self._pieces if image_codec.image_of(key) == image)
        piece = next(own, None)
        return piece is not None and await self._is_ours(piece)

    async def _is_ours(self, piece: ObjectKey) -> bool:
        """Return whether this filesystem wrote the image of a piece.

        A verified manifest is proof for its own image and for each image whose pieces it lists. If
        no verified manifest lists the piece, this method reads and verifies the piece.
        """
        image = image_codec.image_of(piece)
        if image not in self._ours:
            try:
                fetched = await self._store.get(piece, image_codec.PIECE_ENCODED_BYTES_MAX)
                await in_thread(
                    image_codec.decode_unlisted_piece, piece, fetched.data, self._keyring
                )
            except ObjectMissingError:
                return False
            except FormatError:
                self._ours[image] = False
            else:
                self._ours[image] = True
        return self._ours[image]


def _open(
    key: ObjectKey, data: bytes, keyring: Keyring
) -> tuple[Manifest, frozenset[ObjectKey], frozenset[str]]:
    """Return a manifest, the keys of its pieces, and the images to which it refers.

    Blocking: a manifest may list hundreds of thousands of pieces.
    """
    manifest = image_codec.decode(key, data, keyring)
    image_codec.require_places(manifest, key)
    pieces = frozenset(piece.key for piece in manifest.pieces)
    images = {image_codec.image_of(piece) for piece in pieces}
    if manifest.previous is not None:
        images.add(image_codec.image_of(manifest.previous.key))
    return manifest, pieces, frozenset(images)


def _image_txg(key: ObjectKey) -> Txg:
    name = image_codec.parse_manifest_key(key) or image_codec.parse_piece_key(key)
    assert name is not None, "the key names a manifest or an image piece"
    return name.txg


class Finder:
    """Finds the garbage in one bucket by comparing listings with one database."""

    def __init__(
        self,
        db: Database,
        store: ObjectStore,
        keyring: Keyring,
        uuid: str,
        rank: Rank = _not_refused,
    ) -> None:
        """Create the search; *rank* returns the order in which objects are deleted."""
        self._db = db
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        self._rank = rank
        self.stored_images = StoredImages(store, keyring, uuid)
        # For each object, True if its content proves that this filesystem wrote it.
        self._judged: dict[ObjectInfo, bool] = {}
        self._parts_checked = Txg(0)  # parts up to this txg were compared with their changelogs
        self._indexed_from = Txg(0)  # every index object in the bucket ends at or after this txg
        self._orphans = OrphanPacks(db, store, keyring)
        # The txg of the base image, and the pinned runs, at the last search that found no changelog
        # or level object to delete.
        self._cleared = (Txg(0), frozenset[tuple[Txg, Txg]]())

    async def images(self, kept: Sequence[ManifestRef] = ()) -> list[Image]:
        """Return the images that a restore can rely on: complete, in the chain, and not abandoned.

        Abandoned images are excluded, because a fenced host may still send a DELETE for them.
        *kept* are the images to which kept points refer.
        """
        head = image_head.recorded(self._db, "head")
        named = [] if head is None else [head.manifest]
        images = await self.stored_images.list_images(named, kept)
        deletable = properties.abandoned_images(self._db)
        return [image for image in images if image.key not in deletable]

    async def find(self, images: Sequence[Image], past: RetainedHistory, limit: int) -> Garbage:
        """Return at most *limit* garbage objects; *images* is the last result of ``images``.

        Objects that the store refused to delete come last, so that the other objects are deleted
        even if the store refuses more than *limit* objects.
        """
        self._judged = {info: ours for info, ours in self._judged.items() if not ours}
        floor, pins = past.floor, past.pins
        dead, refused, needed_again = await self._dead_packs(floor, pins, limit)
        found = Garbage(floor, dead, [], [], [], [], [], [], needed_again)
        base = retention.base_of(images, floor)
        if base is None:
            found.packs.extend(
                sorted(refused, key=lambda row: self._rank(row.object_key))[: limit - found.total]
            )
            return found
        newest = retention.newest(images)
        last = newest[-1].txg
        stay = retention.kept(images, floor, past.retention_ns) | self.stored_images.before(
            newest[:-1]
        )
        manifests, pieces = await self.stored_images.garbage(
            stay, last, base.txg, pins, rank=self._rank
        )
        orphans = await self._orphans.find(past.floor_epoch, limit - len(found.packs), pins)
        proven = (
            (found.orphans, orphans),
            (found.manifests, manifests),
            (found.pieces, pieces),
        )
        changelogs = await self._changelogs(base.txg, pins, limit)
        levels = await self._levels(base.txg, pins)
        unproven = (
            (found.changelogs, changelogs),
            (found.changelogs, await self._parts(base.txg, past.end, pins)),
            (found.levels, levels),
            (found.history, await self._history(base.txg)),
        )
        for rank in RANKS:
            rows = [row for row in refused if self._rank(row.object_key) == rank]
            found.packs.extend(rows[: max(limit - found.total, 0)])
            for objects, part in proven:
                wanted = [info for info in part if self._rank(info.key) == rank]
                objects.extend(wanted[: max(limit - found.total, 0)])
            for objects, part in unproven:
                wanted = [info for info in part if self._rank(info.key) == rank]
                objects.extend(await self._own(wanted, limit - found.total))
        if not changelogs and not levels:
            self._cleared = (base.txg, pins.intervals)
        return found

    async def _dead_packs(
        self, floor: Txg, pins: KeptPointPins, limit: int
    ) -> tuple[list[PackRow], list[PackRow], set[PackId]]:
        """Return the packs to delete, the refused packs, and condemned packs that are needed again.

        A pack is needed by kept points or by txgs from *floor* onwards.
        """

        def is_needed(row: PackRow) -> bool:
            died = row.died_txg  # None for a pack that an earlier version of the program condemned
            return died is not None and (died > floor or pins.needs_pack(row.pack, died))

        found: list[PackRow] = []
        refused: list[PackRow] = []
        needed: set[PackId] = set()
        for part in packs.slices(self._db):
            if len(found) >= limit:
                break
            for row in packs.find_condemned(self._db, part):
                if is_needed(row):
                    needed.add(row.pack)
                else:
                    (refused if self._rank(row.object_key) else found).append(row)
            await trio.lowlevel.checkpoint()
        after: PackRow | None = None
        while len(found) < limit:
            rows = packs.find_dead(self._db, floor, DELETE_BATCH_KEYS, after)
            held = self._db.held_packs
            found += [one for one in rows if not is_needed(one) and one.pack not in held]
            if not rows:
                break
            after = rows[-1]
            await trio.lowlevel.checkpoint()
        return found[:limit], refused, needed

    async def _own(self, objects: Sequence[ObjectInfo], limit: int) -> list[ObjectInfo]:
        """Examine the first *limit* objects; return those that this filesystem wrote.

        An object is recognised by its content, because its key may be forged. This costs one
        request for each object that is deleted, and one request per mount for each object of
        another writer.
        """
        wanted = [info for info in objects if self._judged.get(info, True)][: max(limit, 0)]
        new = [info for info in wanted if info not in self._judged]
        own = set(await own_objects(self._store, self._keyring, new, fetches=FETCHES_MAX))
        for info in new:
            self._judged[info] = info.key in own
            if info.key not in own:
                _log.warning(
                    "%s is damaged or was not written by this filesystem, so it is not deleted; the"
                    " filesystem does not need the object: delete it if nothing else uses it",
                    info.key,
                )
        return [info for info in wanted if self._judged[info]]

    def _cleared_upto(self, pins: KeptPointPins) -> Txg:
        """Return the txg before which only pinned objects are left; 0 if a kept point was dropped."""
        base, intervals = self._cleared
        return base if intervals <= pins.intervals else Txg(0)

    async def _changelogs(self, base: Txg, pins: KeptPointPins, limit: int) -> list[ObjectInfo]:
        """Return unpinned changelogs of txgs before the base image, oldest first.

        At most *limit* of them are not refused, and at most *limit* are refused.
        """
        found: list[ObjectInfo] = []
        refused: list[ObjectInfo] = []
        start: Txg | None = self._cleared_upto(pins)
        while start is not None and start < base and len(found) < limit:
            start = await self._changelogs_from(start, base, pins, limit, (found, refused))
        return [*found, *sorted(refused, key=lambda info: self._rank(info.key))[:limit]]

    async def _changelogs_from(
        self,
        start: Txg,
        base: Txg,
        pins: KeptPointPins,
        limit: int,
        found: tuple[list[ObjectInfo], list[ObjectInfo]],
    ) -> Txg | None:
        """Add changelogs to *found* up to a pinned run; return the txg after the run, or None.

        Args:
            found: the changelogs that the store has not refused to delete, and the refused ones.
        """
        after = changelog_codec.key_of(Txg(start - 1)) if start > 1 else changelog_codec.PREFIX
        async with aclosing(self._store.list(changelog_codec.PREFIX, after=after)) as listing:
            async for info in listing:
                txg = changelog_codec.parse_key(info.key)
                if (txg is not None and txg >= base) or len(found[0]) == limit:
                    return None
                pinned = None if txg is None else pins.interval_of(txg)
                if pinned is not None:
                    return Txg(pinned[1] + 1)
                if txg is not None and self._judged.get(info, True):
                    found[self._rank(info.key) > 0].append(info)
        return None

    async def _parts(self, base: Txg, end: Txg, pins: KeptPointPins) -> list[ObjectInfo]:
        """Return unpinned parts of changelogs before the base image, and parts in no changelog."""
        found: list[ObjectInfo] = []
        unsure: dict[Txg, list[ObjectInfo]] = {}
        async with aclosing(self._store.list(changelog_codec.PART_PREFIX)) as listing:
            async for info in listing:
                txg = changelog_codec.parse_part_key(info.key)
                if txg is None or txg > end:
                    continue  # a foreign object, or a part of a changelog that is not uploaded yet
                if txg < base:
                    if not pins.needs_changelog(txg):
                        found.append(info)
                elif txg > self._parts_checked:
                    unsure.setdefault(txg, []).append(info)
        strays = [await self._strays(txg, parts) for txg, parts in unsure.items()]
        # If stray parts were found, some may survive this pass, so the next search checks again.
        if not any(strays):
            self._parts_checked = end
        return [*found, *(info for parts in strays for info in parts)]

    async def _levels(self, base: Txg, pins: KeptPointPins) -> list[ObjectInfo]:
        """Return the unpinned level objects that start at the base image or earlier."""
        found: list[ObjectInfo] = []
        start = self._cleared_upto(pins)
        for level in range(1, LEVELS_MAX + 1):
            prefix = level_codec.prefix_of(level)
            after = f"{prefix}{start:0{TXG_DIGITS}d}" if start else ""
            async with aclosing(self._store.list(prefix, after=after)) as listing:
                async for info in listing:
                    name = level_codec.parse_key(info.key)
                    if name is None:
                        continue
                    first = level_codec.first_of(*name)
                    if first > base:
                        break
                    if not pins.needs_level(first, name[1]):
                        found.append(info)
        return found

    async def _history(self, base: Txg) -> list[ObjectInfo]:
        """Return index objects that end before the base image; skip the listing if none is left."""
        if base == self._indexed_from:
            return []
        found: list[ObjectInfo] = []
        async with aclosing(self._store.list(history_index.PREFIX)) as listing:
            async for info in listing:
                name = history_index.RUNS.parse_key(info.key)
                if name is not None and name[1] < base:
                    found.append(info)
        if not found:
            self._indexed_from = base
        return found

    async def _strays(self, txg: Txg, parts: list[ObjectInfo]) -> list[ObjectInfo]:
        try:
            fetched = await chain.fetch(self._store, self._keyring, self._uuid, txg)
        except (FormatError, ObjectMissingError):
            return []
        named = {part.key for part in fetched.changelog.parts}
        return [info for info in parts if info.key not in named]
