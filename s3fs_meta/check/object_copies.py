"""Restoring missing or damaged objects of the bucket from copies in another store.

Owns: the choice of objects to compare, and the proof that a copy is the lost object.
Does not know: the origin of the copies, repairs without copies.
Keeps: no object of the bucket is deleted. A missing object is created. Before a damaged object is
replaced by its original (compare-and-set), its bytes are saved in the state directory. Names
of packs, changelog parts and objects of images have random digits, so an authentic copy with the
same name is the original. A copy of a changelog or level is the original in two cases: its hashes
match those of a neighbour in the chain, or it shares random bytes with the damaged object.
Design: docs/design/durability.md, "The chain".
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from s3fs_meta.background_task import in_thread
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import kept_point as kept_codec
from s3fs_meta.codec import level as level_codec
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.changelog import NO_FLOOR, Changelog, Kind, PartRef
from s3fs_meta.codec.envelope import ENCODED_BYTES_MAX, SALT_RANGE
from s3fs_meta.codec.image import Manifest, content_hash
from s3fs_meta.codec.kept_point import KeptPoint
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Lease
from s3fs_meta.errors import (
    FormatError,
    NewerFormatError,
    ObjectMissingError,
    ObjectTooLargeError,
    PreconditionError,
)
from s3fs_meta.limits import KEPT_POINTS_MAX, PACK_BYTES_MAX, RANGE_BYTES_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import damage_marks, packs
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.history.garbage.orphan_packs import groups
from s3fs_meta.sync.host_state.replaced_objects import ReplacedObjects

_END_BYTES: Final = 16  # length of an envelope's final checksum or tag
_BEGIN_BYTES_MIN: Final = 128  # minimum length of the header of a changelog or level
_IMAGES: Final = "image/"

_T = TypeVar("_T")
Decode = Callable[[bytes], _T]


class _Found(NamedTuple):
    """The result of reading an object from the bucket under a given key."""

    data: bytes | None  # content of the object, or None if the object is missing
    etag: str
    why: str  # reason why the object is invalid; empty if the object is valid
    too_large: ObjectTooLargeError | None = None  # set if *data* is truncated


class ObjectCopies:
    """Restores objects of a bucket from copies in another store."""

    def __init__(
        self,
        store: ObjectStore,
        copies: ObjectStore,
        keyring: Keyring,
        uuid: str,
        replaced: ReplacedObjects,
    ) -> None:
        """Prepare to restore objects; no object is read yet.

        Args:
            store: the bucket.
            copies: the store with the copies; it is only read.
            keyring: the keys of the filesystem.
            uuid: the uuid of the filesystem.
            replaced: saves each object in a file before the object is replaced.
        """
        self._store = store
        self._copies = copies
        self._keyring = keyring
        self._uuid = uuid
        self._replaced = replaced
        self._hashes: dict[Txg, str] = {}  # hash of each intact changelog, by txg
        # Expected hash of each changelog, as recorded in the next changelog or in a kept point.
        self._named: dict[Txg, str] = {}
        self._kept: list[KeptPoint] = []
        self.done: list[str] = []  # one report line for each restored object

    # --- restore one object --------------------------------------------------------------------

    async def _fetch(
        self, key: ObjectKey, decode: Decode[_T], max_bytes: int
    ) -> tuple[_Found, _T | None]:
        """Return the object in the bucket under a key, and its decoded content if it is valid."""
        try:
            fetched = await self._store.get(key, max_bytes)
        except ObjectMissingError:
            return _Found(None, "", "it is missing"), None
        except ObjectTooLargeError as exc:
            data = await self._store.get_range(key, 0, min(max_bytes, RANGE_BYTES_MAX))
            return _Found(bytes(data), exc.etag, "it is too large", exc), None
        try:
            decoded = await in_thread(decode, fetched.data)
        except NewerFormatError:
            raise
        except FormatError as exc:
            return _Found(fetched.data, fetched.etag, exc.what), None
        return _Found(fetched.data, fetched.etag, ""), decoded

    async def _copy(
        self, key: ObjectKey, decode: Decode[_T], max_bytes: int
    ) -> tuple[bytes, _T] | None:
        """Return the copy of an object and its decoded content, or None if no copy is authentic."""
        try:
            data = (await self._copies.get(key, max_bytes)).data
            return data, await in_thread(decode, data)
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError):
            return None

    async def _put(self, key: ObjectKey, found: _Found, data: bytes) -> None:
        """Replace a missing or damaged object with a copy."""
        path = None
        with contextlib.suppress(PreconditionError):  # another process wrote the object first
            if found.data is None:
                await self._store.create(key, data)
            else:
                try:
                    path = await self._save(key, found)
                except ObjectTooLargeError as exc:
                    self.done.append(
                        f"{key}: {found.why} to be saved, so it is not restored: {exc.what}; move it"
                        " out of the bucket, and run fsck again"
                    )
                    return
                await self._store.replace(key, data, found.etag)
            kept = "" if path is None else f"; the damaged object is saved in {path}"
            self.done.append(
                f"{key}: {found.why}; it is restored from the copy in {self._copies.url}{kept}"
            )

    async def _save(self, key: ObjectKey, found: _Found) -> Path | None:
        """Save a damaged object in a file; return the file's path, None for an empty object."""
        if found.too_large is not None:
            return await self._replaced.save_oversized(found.too_large)
        return await self._replaced.save(key, found.data) if found.data else None

    async def _mend(
        self, key: ObjectKey, decode: Decode[_T], max_bytes: int = ENCODED_BYTES_MAX
    ) -> _T | None:
        """Return the content of an object whose name has random digits.

        Restore a missing or damaged object first. Return None if neither the object nor its copy is
        valid.
        """
        found, decoded = await self._fetch(key, decode, max_bytes)
        if decoded is not None:
            return decoded
        copy = await self._copy(key, decode, max_bytes)
        if copy is None:
            return None
        await self._put(key, found, copy[0])
        return copy[1]

    # --- restore metadata objects --------------------------------------------------------------

    async def mend_metadata(self, lease: Lease | None) -> None:
        """Restore kept points, changelogs, levels and images, before the filesystem is opened.

        Args:
            lease: the lease of the filesystem, None if it is lost.

        Raises:
            StoreError: one of the two stores is unavailable.
            NewerFormatError: an object was written by a newer version of the program.
            OSError: a damaged object cannot be saved before its replacement.
        """
        first = await self._first_retained()
        numbers = sorted({*await self._txgs(self._store), *await self._txgs(self._copies)})
        self._kept = await self._mend_kept_points()
        self._named.update({point.txg: point.hash for point in self._kept})
        named = await self._mend_changelogs(
            [txg for txg in numbers if txg >= first or self._is_of_kept_point(txg)]
        )
        await self._mend_levels(first)
        await self._mend_images(first, lease, named)

    async def _mend_kept_points(self) -> list[KeptPoint]:
        """Restore the damaged objects of kept points; return the points."""
        found: list[KeptPoint] = []
        for key in (await _keys(self._store, kept_codec.PREFIX))[:KEPT_POINTS_MAX]:
            if kept_codec.parse_key(key) is not None:
                point = await self._mend(key, self._point(key), kept_codec.ENCODED_BYTES_MAX)
                found += [] if point is None else [point]
        return found

    def _point(self, key: ObjectKey) -> Decode[KeptPoint]:
        return lambda data: kept_codec.decode(key, data, self._keyring)

    def _is_of_kept_point(self, txg: Txg) -> bool:
        return any(point.image_txg <= txg <= point.txg for point in self._kept)

    async def _txgs(self, store: ObjectStore) -> list[Txg]:
        return await chain.numbers_from(store, self._keyring, Txg(0))

    async def _first_retained(self) -> Txg:
        """Return the txg of the oldest retained image, or 0 if the complete history is retained."""
        floor = NO_FLOOR
        for store in (self._store, self._copies):
            for txg in reversed(await self._txgs(store)):
                try:
                    link = (await chain.fetch(store, self._keyring, self._uuid, txg)).link
                except NewerFormatError:
                    raise
                except (FormatError, ObjectMissingError):
                    continue
                floor = max(floor, link.floor)
                break
        bases = [
            name.txg
            for store in (self._store, self._copies)
            for key in await _keys(store, _IMAGES)
            if (name := image_codec.parse_manifest_key(key)) is not None and name.txg <= floor
        ]
        return max(bases, default=Txg(0))

    async def _mend_changelogs(self, numbers: Sequence[Txg]) -> list[ObjectKey]:
        """Restore changelogs and their parts; return the manifests of images in changelogs."""
        waiting: list[Txg] = []
        named: list[ObjectKey] = []
        for txg in reversed(numbers):
            changelog = await self._changelog(txg, follows=False)
            if changelog is None:
                waiting.insert(0, txg)
            named += await self._note(changelog)
        # If no object records the hash of a changelog, its copy must contain the hash of the
        # changelog before it.
        for txg in waiting:
            named += await self._note(await self._changelog(txg, follows=True))
        return named

    async def _note(self, changelog: Changelog | None) -> list[ObjectKey]:
        """Restore the parts of a valid changelog; return the key of its image manifest, if any."""
        if changelog is None:
            return []
        for part in changelog.parts:
            await self._mend(part.key, self._part(part), changelog_codec.PART_ENCODED_BYTES_MAX)
        return [] if changelog.image is None else [changelog.image.key]

    def _part(self, part: PartRef) -> Decode[object]:
        return lambda data: changelog_codec.decode_part(part, data, self._keyring)

    async def _changelog(self, txg: Txg, *, follows: bool) -> Changelog | None:
        """Return a changelog, after restoring it if necessary; return None if it is lost.

        Args:
            follows: accept a copy of a missing changelog if it records its predecessor's hash.
        """
        key = changelog_codec.key_of(txg)

        def decode(data: bytes) -> Changelog:
            changelog = changelog_codec.decode(key, data, self._keyring)
            if changelog.uuid != self._uuid:
                raise FormatError(key, "the changelog belongs to another filesystem")
            return changelog

        wanted = self._named.get(txg)
        found, changelog = await self._fetch(key, decode, ENCODED_BYTES_MAX)
        if changelog is not None and found.data is not None:
            digest = content_hash(found.data)
            if wanted in {None, digest}:
                return self._in_order(changelog, digest)
            found = found._replace(why=f"changelog {txg + 1} records a different hash for it")
        copy = await self._copy(key, decode, ENCODED_BYTES_MAX)
        if copy is None:
            return None
        data, changelog = copy
        digest = content_hash(data)
        if wanted is not None:
            is_it = digest == wanted
        else:
            is_before = changelog.previous == self._hashes.get(Txg(txg - 1))
            is_it = _shares_random_bytes(found.data, data) or (
                follows and not found.data and is_before
            )
        if not is_it:
            return None
        await self._put(key, found, data)
        return self._in_order(changelog, digest)

    def _in_order(self, changelog: Changelog, digest: str) -> Changelog:
        self._hashes[changelog.txg] = digest
        # A fence record may contain the hash of an older changelog than the one directly before it.
        if changelog.kind is not Kind.FENCE:
            self._named[Txg(changelog.txg - 1)] = changelog.previous
        return changelog

    async def _mend_levels(self, first: Txg) -> None:
        for key in await self._union(level_codec.PREFIX):
            name = level_codec.parse_key(key)
            if name is None or level_codec.first_of(*name) <= first:
                continue

            def decode(data: bytes, key: ObjectKey = key) -> level_codec.Level:
                level = level_codec.decode(key, data, self._keyring)
                if level.uuid != self._uuid:
                    raise FormatError(key, "the level object belongs to another filesystem")
                return level

            found, level = await self._fetch(key, decode, ENCODED_BYTES_MAX)
            copy = None if level is not None else await self._copy(key, decode, ENCODED_BYTES_MAX)
            if copy is None:
                continue
            data, level = copy
            if self._hashes.get(level.last) == level.hash or _shares_random_bytes(found.data, data):
                await self._put(key, found, data)

    async def _mend_images(
        self, first: Txg, lease: Lease | None, named: Iterable[ObjectKey]
    ) -> None:
        """Restore the listed images, the images in changelogs, and the oldest retained image.

        If none of these images is valid, restore all images of the store with the copies.
        """
        wanted = {*named, *await _keys(self._store, _IMAGES)}
        wanted |= {point.image.key for point in self._kept}
        if lease is not None and lease.head is not None:
            wanted.add(lease.head.manifest_key)
        copied = {
            key: name.txg
            for key in await _keys(self._copies, _IMAGES)
            if (name := image_codec.parse_manifest_key(key)) is not None
        }
        wanted |= {key for key, txg in copied.items() if txg == first}
        if not await self._mend_manifests(first, wanted):
            await self._mend_manifests(first, copied)

    async def _mend_manifests(self, first: Txg, keys: Iterable[ObjectKey]) -> int:
        """Restore the images of these manifests; return the number of valid manifests."""
        count = 0
        anywhere = set(await self._union(_IMAGES))
        for key in sorted(keys):
            name = image_codec.parse_manifest_key(key)
            is_kept = any(point.image.key == key for point in self._kept)
            if name is None or (name.txg < first and not is_kept):
                continue
            manifest = await self._mend(key, self._manifest(key))
            if manifest is not None:
                count += 1
                for piece in manifest.pieces:
                    if piece.key not in anywhere:
                        continue  # no request, because a forged manifest may list many such pieces
                    await self._mend(
                        piece.key,
                        self._piece(piece),
                        image_codec.PIECE_ENCODED_BYTES_MAX,
                    )
        return count

    def _manifest(self, key: ObjectKey) -> Decode[Manifest]:
        def decode(data: bytes) -> Manifest:
            manifest = image_codec.decode(key, data, self._keyring)
            if manifest.uuid != self._uuid:
                raise FormatError(key, "the image belongs to another filesystem")
            return manifest

        return decode

    def _piece(self, piece: image_codec.Piece) -> Decode[object]:
        return lambda data: image_codec.decode_piece(piece, data, self._keyring)

    async def _union(self, prefix: str) -> list[ObjectKey]:
        return sorted({*await _keys(self._store, prefix), *await _keys(self._copies, prefix)})

    # --- restore packs -------------------------------------------------------------------------

    async def mend_packs(self, db: Database, *, deep: bool) -> None:
        """Restore the packs to which rows refer, after the filesystem was opened.

        A damaged row is skipped, because the check repairs it later.

        Args:
            db: the database of the filesystem.
            deep: read every pack; otherwise read only packs that are missing, have a wrong size or
                a damage mark.

        Raises:
            The errors of ``mend_metadata``.
        """
        stored = [
            row
            for row in packs.readable_stored(db)
            if pack_codec.parse_key(row.object_key) is not None
        ]
        for digits in groups(len(stored)):
            prefix = f"pack/{digits}"
            async with aclosing(self._store.list(prefix)) as listing:
                sizes = {info.key: info.size_bytes async for info in listing}
            for row in stored:
                if row.object_key.startswith(prefix) and (
                    deep
                    or sizes.get(row.object_key) != row.object_bytes
                    or damage_marks.marks_of(db, row.pack)
                ):
                    await self._mend(row.object_key, self._pack(row.object_key), PACK_BYTES_MAX)

    def _pack(self, key: ObjectKey) -> Decode[object]:
        def decode(data: bytes) -> bool:
            for _block in pack_codec.open_pack(self._keyring, key, data):
                pass  # reading a block also verifies it
            return True

        return decode


async def _keys(store: ObjectStore, prefix: str) -> list[ObjectKey]:
    async with aclosing(store.list(prefix)) as listing:
        return [info.key async for info in listing]


def _shares_random_bytes(damaged: bytes | None, copy: bytes) -> bool:
    """Return whether a damaged object has the same salt, beginning or end as a copy.

    No two different objects share these bytes: the salt is random, the beginning contains a time in
    nanoseconds, and the end is a tag or a checksum. So if one of these parts is equal, the copy has
    the original content of the object.
    """
    if not damaged:
        return False
    salt = copy[SALT_RANGE]
    if (any(salt) and damaged[SALT_RANGE] == salt) or damaged[-_END_BYTES:] == copy[-_END_BYTES:]:
        return True
    common = min(len(damaged), len(copy))
    return common >= _BEGIN_BYTES_MIN and damaged[:common] == copy[:common]
