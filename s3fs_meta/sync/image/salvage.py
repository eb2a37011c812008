"""Salvage: writing the intact pieces of an unrestorable image to a database file.

Owns: the search for intact pieces, including pieces of other images, and pieces without a
manifest. Does not know: rows.
Keeps: only proven damage leaves a gap, which is filled with zeros; an unavailable store is an
error. At most SALVAGE_IMAGES_MAX images are read. An authentic object of a newer version of the
program stops the salvage; an object that is not authentic counts as lost.

The name of a piece contains its image's txg and the piece's number, which determines the offset. An
image stores only pieces that differ from the previous image. So the database of a txg consists of
the newest piece of each number up to that txg. The caller checks that this database is consistent,
because an upload of an image may have been interrupted.
"""

import logging
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from pathlib import Path
from typing import Final, NamedTuple

from s3fs_meta.background_task import in_thread
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec.image import Manifest, ManifestRef, Piece
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import (
    CorruptionError,
    NewerFormatError,
    ObjectMissingError,
    ObjectTooLargeError,
)
from s3fs_meta.limits import IMAGE_PIECE_BYTES, IMAGE_PIECES_MAX, SALVAGE_IMAGES_MAX
from s3fs_meta.meta.db.schema import SCHEMA_VERSION
from s3fs_meta.meta.offline.salvage import size_in_header
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.chain import names
from s3fs_meta.sync.image.restore import allocate, has_room, place_piece, write_piece
from s3fs_meta.sync.progress import Progress

_log = logging.getLogger(__name__)
_DAMAGE = (CorruptionError, ObjectMissingError, ObjectTooLargeError)
_PARTS_OF_ONE_LOST: Final = 10  # images that lost over 1/10 of their pieces are tried later


class _Name(NamedTuple):
    """The name of an image; names are ordered by txg and epoch."""

    txg: Txg
    epoch: Epoch
    prefix: str


class SalvagedImage(NamedTuple):
    """An image whose first piece and other intact pieces were written to a file."""

    key: ObjectKey  # key of the image's manifest
    txg: Txg
    pieces: int
    missing: int
    listed: bool = True  # False if no manifest lists the pieces, so they were chosen by name

    @property
    def lacks_much(self) -> bool:
        """Return whether the image has lost more than a tenth of its pieces."""
        return self.missing * _PARTS_OF_ONE_LOST > self.pieces


class Salvager:
    """Writes the intact pieces of a filesystem's images to a file, one image after another."""

    def __init__(
        self,
        store: ObjectStore,
        keyring: Keyring,
        uuid: str,
        progress: Progress,
        last: Collection[ObjectKey] = (),
        *,
        images_max: int = SALVAGE_IMAGES_MAX,
    ) -> None:
        """Create the salvager; images whose manifests are in *last* are tried last."""
        self._last = last
        self._images_max = images_max
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        self._progress = progress
        self.newer: NewerFormatError | None = None  # first object that claims a newer version

    async def lay_out(self, path: Path) -> AsyncGenerator[SalvagedImage, None]:
        """Write each image that has a first piece to a file and yield the image, best first.

        The images have this order:

        1. images with at least nine tenths of their pieces, newest first
        2. other images that become complete with pieces of earlier images; manifests are ignored
        3. images with fewer pieces, ordered by the share of missing pieces
        4. the images that the caller named

        Args:
            path: the path of the file; each image replaces the image before it.

        Raises:
            NewerFormatError: a newer version of the program wrote an authentic manifest.
            StoreError: the store is unavailable.
            OSError: the file cannot be written, for example because the disk is full.
        """
        keys = (await image_head.manifests(self._store))[: self._images_max]
        last = [key for key in keys if key in self._last]
        good = {image_codec.image_of(key) for key in last}
        poor = []
        for key in (key for key in keys if key not in self._last):
            remains = await self._lay_out(path, key, keys)
            if remains is not None and not remains.lacks_much:
                good.add(image_codec.image_of(key))
                yield remains
            elif remains is not None:
                poor.append(remains)
        for name in await self._without(good):
            remains = await self._lay_out_unlisted(path, name)
            if remains is not None:
                yield remains
        poor.sort(key=lambda remains: remains.missing / remains.pieces)
        for key in (*(one.key for one in poor), *last):
            remains = await self._lay_out(path, key, keys)
            if remains is not None:
                yield remains

    async def _lay_out(
        self, path: Path, key: ObjectKey, keys: list[ObjectKey]
    ) -> SalvagedImage | None:
        """Write one image to the file; return None if its manifest or first piece is lost."""
        manifest = await self._manifest(key)
        if manifest is None:
            return None
        enough = await in_thread(has_room, path, manifest.database_bytes)
        if not enough and not await self._is_there(manifest.pieces[-1]):
            _log.warning(
                "the manifest %s claims a database of %d bytes, more than the disk's free space",
                key,
                manifest.database_bytes,
            )
            return None  # the image's last piece is also missing, so its claimed size may be wrong
        await in_thread(allocate, path, manifest.database_bytes)
        missing: dict[str, list[int]] = {}
        for number, piece in enumerate(manifest.pieces):
            self._progress("metadata", number, len(manifest.pieces))
            if not await self._place(path, number, piece):
                missing.setdefault(piece.hash, []).append(number)
        for other in keys if missing else ():
            await self._fill(path, missing, other)
        gaps = sorted(number for numbers in missing.values() for number in numbers)
        if gaps[:1] == [0]:
            return None
        return SalvagedImage(key, manifest.txg, len(manifest.pieces), len(gaps))

    async def _lay_out_unlisted(self, path: Path, name: _Name) -> SalvagedImage | None:
        """Write an image to the file without its manifest; return None if a piece is lost."""
        keys = await self._newest_pieces(name)
        start = await self._content(keys[0]) if 0 in keys else None
        size_bytes = 0 if start is None else size_in_header(start)
        if not 0 < size_bytes <= IMAGE_PIECES_MAX * IMAGE_PIECE_BYTES:
            return None
        sizes = image_codec.piece_sizes(size_bytes)
        if not keys.keys() >= set(range(len(sizes))):
            return None
        await in_thread(allocate, path, size_bytes)
        for number, wanted_bytes in enumerate(sizes):
            self._progress("metadata", number, len(sizes))
            content = await self._content(keys[number])
            if content is None:
                return None
            if len(content) != wanted_bytes:
                _log.warning(
                    "the image piece %s has %d bytes, expected %d",
                    keys[number],
                    len(content),
                    wanted_bytes,
                )
                return None
            await in_thread(write_piece, path, number, content)
        key = ObjectKey(f"{name.prefix}/manifest")
        return SalvagedImage(key, name.txg, len(sizes), 0, listed=False)

    async def _without(self, good: set[str]) -> list[_Name]:
        """Return the images with pieces in the bucket, except those in *good*, newest first."""
        found = set()
        async with aclosing(self._store.list(image_codec.PREFIX)) as listing:
            async for info in listing:
                name = _name_of_piece(info.key)
                if name is not None and name.prefix not in good:
                    found.add(name)
        return sorted(found, reverse=True)[: self._images_max]

    async def _newest_pieces(self, wanted: _Name) -> dict[int, ObjectKey]:
        """Return the newest piece for each piece number, from an image and all earlier images."""
        newest: dict[int, tuple[_Name, ObjectKey]] = {}
        async with aclosing(self._store.list(image_codec.PREFIX)) as listing:
            async for info in listing:
                name = _name_of_piece(info.key)
                if name is None:
                    continue
                number = image_codec.piece_number(info.key)
                is_earlier = (name.txg, name.epoch) < (wanted.txg, wanted.epoch)
                if (is_earlier or name == wanted) and (
                    number not in newest or newest[number][0] < name
                ):
                    newest[number] = name, info.key
        return {number: key for number, (_name, key) in newest.items()}

    async def _content(self, key: ObjectKey) -> bytes | None:
        try:
            fetched = await self._store.get(key, image_codec.PIECE_ENCODED_BYTES_MAX)
            return await in_thread(
                image_codec.decode_unlisted_piece, key, fetched.data, self._keyring
            )
        except _DAMAGE as exc:
            self._note_lost(exc)
            return None

    async def _manifest(self, key: ObjectKey) -> Manifest | None:
        try:
            manifest = await image_head.load_manifest(self._store, self._keyring, ManifestRef(key))
            image_codec.require_places(manifest, key)
        except _DAMAGE as exc:
            lost = exc
        else:
            return self._ours(key, manifest)
        if isinstance(lost, NewerFormatError) and await self._is_authentic(key):
            raise lost
        self._note_lost(lost)
        return None

    def _ours(self, key: ObjectKey, manifest: Manifest) -> Manifest | None:
        if manifest.uuid != self._uuid:
            return None
        if manifest.schema_version > SCHEMA_VERSION:
            raise NewerFormatError(key, f"the schema version {manifest.schema_version} is unknown")
        return manifest

    async def _is_authentic(self, key: ObjectKey) -> bool:
        try:
            await names.require_authentic(self._store, self._keyring, key)
        except _DAMAGE:
            return False
        return True

    def _note_lost(self, exc: CorruptionError | ObjectMissingError) -> None:
        """Log an unusable object; record the first unverified claim of a newer version."""
        if isinstance(exc, NewerFormatError):
            _log.warning(
                "%s: %s; this cannot be verified, so the object is treated as lost",
                exc.key,
                exc.what,
            )
            self.newer = self.newer or NewerFormatError(exc.key, exc.what)
        else:
            _log.warning("%s", exc)

    async def _place(self, path: Path, number: int, piece: Piece) -> bool:
        try:
            fetched = await self._store.get(piece.key, image_codec.PIECE_ENCODED_BYTES_MAX)
            await in_thread(place_piece, path, number, piece, fetched.data, self._keyring)
        except _DAMAGE as exc:
            self._note_lost(exc)
            return False
        return True

    async def _is_there(self, piece: Piece) -> bool:
        try:
            await self._store.get_range(piece.key, 0, 1)
        except _DAMAGE:  # also if the object is empty
            return False
        return True

    async def _fill(self, path: Path, missing: dict[str, list[int]], other: ObjectKey) -> None:
        """Fill gaps in the file with identical pieces of another image."""
        manifest = await self._manifest(other) if missing else None
        for piece in manifest.pieces if manifest is not None else ():
            numbers = missing.get(piece.hash, [])
            for number in list(numbers):
                if await self._place(path, number, piece):
                    numbers.remove(number)


def _name_of_piece(key: ObjectKey) -> _Name | None:
    """Return the image of a piece, or None if the object is no piece."""
    image = image_codec.parse_piece_key(key)
    return None if image is None else _Name(image.txg, image.epoch, image_codec.image_of(key))
