"""Restoring a metadata database from an image in the bucket and the changelogs after it.

Owns: the choice of the image, the download of its pieces, the image's position in the chain.
Does not know: local state, leases.
"""

import errno
import logging
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio

from s3fs_meta.background_task import in_thread, in_thread_or_here, run_concurrently
from s3fs_meta.bucket_errors import BrokenChainError, NoImageError
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec.image import Manifest, ManifestRef, Piece
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.disk_full import FULL_ERRNOS
from s3fs_meta.errors import (
    FormatError,
    NewerFormatError,
    ObjectMissingError,
    S3fsError,
    UnfinishedFilesystemError,
)
from s3fs_meta.limits import CLEANUP_S_MAX, FETCHES_MAX, IMAGE_LINKS_MAX, IMAGE_PIECE_BYTES
from s3fs_meta.meta import replica
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.local_disk import create_empty
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.offline import image_copy, restored_schema
from s3fs_meta.meta.tables import local_state
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain, levels
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.chain.replay import NeedsImageError, Replayer
from s3fs_meta.sync.progress import Progress

_log = logging.getLogger(__name__)

Reserve = Callable[[int], Awaitable[None]]

# An interrupted restore starts again, so its database needs no journal, and one sync at its end.
_THROWAWAY: Final = Pragmas(journal_mode="off", synchronous="off")


class Restorer:
    """Restores the database of a filesystem at one txg."""

    def __init__(
        self,
        store: ObjectStore,
        keyring: Keyring,
        uuid: str,
        progress: Progress,
        *,
        reserve: Reserve | None = None,
        is_temporary: bool = False,
        links_max: int = IMAGE_LINKS_MAX,
    ) -> None:
        """Create a restorer of databases.

        Args:
            reserve: called with the size of each image before it is downloaded; raises
                NoSpaceLeftError if the disk has no room for it.
            is_temporary: do not sync the database, because it is not used after a crash.
            links_max: the maximum number of images that may follow one another in the chain, if
                each of them replaces a changelog.
        """
        self._links_max = links_max
        self._reserve = reserve
        self._is_temporary = is_temporary
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        self._progress = progress
        self._last_level: ObjectKey | None = None  # the newest level object that was applied
        # Images from which the wanted txg cannot be reached, and why.
        self._failed: dict[ManifestRef, FormatError | ObjectMissingError] = {}
        # Depth of nested restores: a replay that reaches an image continues from that image.
        self._links_followed = 0
        self.notices: list[str] = []  # facts to show to the user, one line each

    async def restore(
        self, newest: ManifestRef | None, target: Path, upto: Txg | None = None
    ) -> Link:
        """Restore a database to *target* atomically: the file does not appear until it is complete.

        The file is synced, unless the restorer was created with *is_temporary*.

        Args:
            newest: the first image to try. If it is None, later than *upto*, or was deleted because
                there are later images, only the images in the listing are tried.
            target: a path at which no file exists.
            upto: the txg to restore; None: the last txg in the bucket.

        Raises:
            UnfinishedFilesystemError: the bucket has no image.
            StoreError: an object is unavailable.
            BrokenChainError: a changelog cannot be read or replaced; the error names the last txg
                that can be restored.
            NoImageError: an object is damaged or missing, and the txg cannot be reached from an
                older image.
            NewerFormatError: a newer version of the program wrote an object.
            NoSpaceLeftError: raised by ``reserve``.
            OSError: the database cannot be written, for example because the disk is full.
        """
        unfinished = restoring(target)
        self._failed = {}
        try:
            link = await self._restore_from_some_image(newest, unfinished, upto)
            await in_thread(self._finish, unfinished, target)
        except BaseException:
            with trio.move_on_after(CLEANUP_S_MAX, shield=True):
                await in_thread_or_here(image_copy.remove, unfinished)
            raise
        return link

    async def advance(self, earlier: Path, link: Link, target: Path, upto: Txg) -> Link | None:
        """Restore a database to *target* from a database at an earlier txg.

        Args:
            earlier: a database that no process changes during the call; it is copied.
            link: the chain position of the state in that database.
            target: a path at which no file exists.
            upto: the txg to restore.

        Returns:
            None if *upto* cannot be reached through the changelogs after the earlier txg: an image
            replaces one of the changelogs, or an object is damaged. In these cases, ``restore``
            succeeds or reports the reason.

        Raises:
            StoreError: an object is unavailable.
            NoSpaceLeftError: raised by ``reserve``.
            OSError: the database cannot be copied, for example because the disk is full.
        """
        unfinished = restoring(target)
        try:
            if self._reserve is not None:
                size_bytes = await in_thread(os.path.getsize, earlier)
                await self._reserve(size_bytes)
            await in_thread(copy_database, earlier, unfinished)
            advanced = await self._apply(link, unfinished, upto, by_levels=True)
            await in_thread(self._finish, unfinished, target)
        except (NeedsImageError, FormatError, ObjectMissingError) as exc:
            _log.info("cannot restore txg %d from txg %d: %s", upto, link.txg, exc)
            return None
        finally:
            with trio.move_on_after(CLEANUP_S_MAX, shield=True):
                await in_thread_or_here(image_copy.remove, unfinished)
        return advanced

    async def _restore_from_some_image(
        self, newest: ManifestRef | None, unfinished: Path, upto: Txg | None
    ) -> Link:
        """Restore from the newest image from which the requested txg can be reached."""
        first: FormatError | ObjectMissingError | None = None
        newer: NewerFormatError | None = None
        # Of all errors about a broken chain, the one that names the latest restorable txg.
        broken: BrokenChainError | None = None
        breaks: list[BrokenChainError] = []
        async with aclosing(self._candidates(newest, upto)) as candidates:
            async for ref in candidates:
                if not await self._may_lead_past(breaks, ref, upto):
                    continue
                try:
                    link = await self._restore_from(ref, unfinished, upto)
                except NewerFormatError as exc:
                    if exc.key != ref.key or ref == newest:
                        raise
                    _forget_frames(exc)
                    newer = newer or exc  # try older images, because this manifest may be foreign
                    continue
                except BrokenChainError as exc:
                    _forget_frames(exc)
                    breaks.append(exc)
                    if await self._is_of_kept_point(exc, upto):
                        continue
                    if broken is None or exc.last_txg > broken.last_txg:
                        broken = exc
                    _log.error(
                        "cannot restore from the image %s, trying an older image: %s", ref.key, exc
                    )
                    continue
                except (FormatError, ObjectMissingError) as exc:
                    _forget_frames(exc)
                    damage = await self._damage_of(ref, exc, newest, upto)
                    first = first or damage
                    continue
                self._note_detour(ref.key, newer, broken, first)
                return link
        if newer is None and broken is None and first is not None:
            raise NoImageError(first.key, str(first), upto) from first
        raise newer or broken or UnfinishedFilesystemError(self._store.url)

    def _note_detour(
        self,
        key: ObjectKey,
        newer: NewerFormatError | None,
        broken: BrokenChainError | None,
        first: S3fsError | None,
    ) -> None:
        """Add notices for the user about the newer images that were not used."""
        if newer is not None:
            self.notices.append(f"an image that the lease does not name was ignored: {newer}")
        if broken is not None:
            self.notices.append(f"level objects replaced the unreadable changelog {broken.key}")
        if first is not None or broken is not None:
            self.notices.append(f"restored from the older image {key}")

    async def _is_of_kept_point(self, broken: BrokenChainError, upto: Txg | None) -> bool:
        """Return whether a restore failed only because retention deleted the changelog.

        Only a kept point needs an image from before the retention floor, so the failure does not
        prove that the present state is damaged.
        """
        lost = Txg(broken.last_txg + 1)
        floor = await chain.floor_after(self._store, self._keyring, self._uuid, lost)
        return lost < floor and (upto is None or upto >= floor)

    async def _damage_of(
        self,
        ref: ManifestRef,
        exc: FormatError | ObjectMissingError,
        newest: ManifestRef | None,
        upto: Txg | None,
    ) -> FormatError | ObjectMissingError | None:
        """Report an unusable image; return None if it was deleted because later images exist.

        A follower reads the lease only when it starts, so it may ask for an image that the writer
        has deleted since then.
        """
        name = image_codec.parse_manifest_key(ref.key)
        is_missing = isinstance(exc, ObjectMissingError) and exc.key == ref.key
        if is_missing and ref == newest and name is not None:
            latest = next(iter(await self._older_images(upto)), ref.key)
            found = image_codec.parse_manifest_key(latest)
            if found is not None and found.txg > name.txg:
                _log.info("the image %s was deleted after the lease was read", ref.key)
                return None
        _log.error("cannot restore from the image %s, trying an older image: %s", ref.key, exc)
        self.notices.append(f"the image {ref.key} is unusable: {exc}")
        return exc

    async def _may_lead_past(
        self, breaks: Sequence[BrokenChainError], ref: ManifestRef, upto: Txg | None
    ) -> bool:
        """Return whether an older image may lead to a later txg than the newer images did.

        A restore from an older image usually stops at the same unreadable changelog, unless a level
        object replaces it. Without this check, a restore would try the image of every kept point,
        although the changelogs after such images were deleted.
        """
        name = image_codec.parse_manifest_key(ref.key)
        for broken in breaks:
            if broken.misfit or name is None or name.txg > broken.last_txg:
                # An image that is not older than the unreadable changelog does not need the
                # changelog. A readable changelog may just not fit the image of the failed restore.
                continue
            begin = await levels.spanning(self._store, Txg(broken.last_txg + 1), upto)
            if begin is None or name.txg >= begin:
                return False
        return True

    async def _candidates(
        self, newest: ManifestRef | None, upto: Txg | None
    ) -> AsyncGenerator[ManifestRef, None]:
        if newest is not None and _is_within(newest.key, upto):
            yield newest
        for key in await self._older_images(upto):
            if newest is None or key != newest.key:
                yield ManifestRef(key)

    async def _older_images(self, upto: Txg | None) -> list[ObjectKey]:
        """Return the manifest keys of all images up to the txg *upto*, latest first."""
        return [key for key in await image_head.manifests(self._store) if _is_within(key, upto)]

    async def _restore_from(self, ref: ManifestRef, unfinished: Path, upto: Txg | None) -> Link:
        """Restore an image and the txgs after it, unless this has already failed.

        Several older images may lead to the same txg of kind IMAGE; its image is tried only once.
        """
        known = self._failed.get(ref) or self._failed.get(ref._replace(hash=""))
        if known is not None:
            raise known
        if self._links_followed > self._links_max:
            raise FormatError(
                ref.key, f"more than {self._links_max} images follow one another in the chain"
            )
        self._links_followed += 1
        try:
            return await self._restore_once(ref, unfinished, upto)
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError) as exc:
            _forget_frames(exc)
            self._failed[ref] = exc
            raise
        finally:
            self._links_followed -= 1

    async def _restore_once(self, ref: ManifestRef, unfinished: Path, upto: Txg | None) -> Link:
        """Restore an image and the txgs after it; use changelogs if a level object is wrong.

        Only the changelogs after a level object prove that the object belongs to this chain.
        """
        self._take_last_level()
        try:
            return await self._replay(ref, unfinished, upto, by_levels=True)
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError) as exc:
            misleading = self._take_last_level()
            if misleading is None:
                raise
            _forget_frames(exc)
            by_levels = exc
        try:
            link = await self._replay(ref, unfinished, upto, by_levels=False)
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError):
            # The replay without level objects also failed, so report the first error.
            raise by_levels from None
        self.notices.append(
            f"changelogs are used instead of the level object {misleading}: {by_levels}"
        )
        return link

    def _take_last_level(self) -> ObjectKey | None:
        """Return and clear the level object that was applied last."""
        level, self._last_level = self._last_level, None
        return level

    async def _replay(
        self, ref: ManifestRef, unfinished: Path, upto: Txg | None, *, by_levels: bool
    ) -> Link:
        manifest = await image_head.load_manifest(self._store, self._keyring, ref)
        if self._reserve is not None:
            await self._reserve(manifest.database_bytes)
        await _fetch_all(self._store, self._keyring, manifest, ref.key, unfinished, self._progress)
        authentic = self._keyring.encrypted
        require_ours = partial(restored_schema.require_ours, authentic=authentic)
        await in_thread(require_ours, unfinished, ref.key)
        link = await chain.link_of_image(self._store, self._keyring, self._uuid, manifest, ref.key)
        try:
            return await self._apply(link, unfinished, upto, by_levels=by_levels)
        except NeedsImageError as exc:
            image = exc.image
        before = self._take_last_level()
        try:
            return await self._restore_from(image, unfinished, upto)
        finally:
            self._last_level = before or self._last_level

    async def _apply(
        self, link: Link, unfinished: Path, upto: Txg | None, *, by_levels: bool
    ) -> Link:
        """Apply the txgs after *link* to the database. Raises errors from ``Replayer.forward``."""
        db = await in_thread(Database.open, unfinished, _THROWAWAY)
        replayer = Replayer(self._store, self._keyring, self._uuid, db)
        try:
            link = await replayer.forward(link, self._progress, upto, by_levels=by_levels)
            await in_thread(_settle, db, link, self._uuid)
        finally:
            self.notices += replayer.notices
            self._last_level = replayer.last_level or self._last_level
            db.close()
        return link

    def _finish(self, path: Path, target: Path) -> None:
        """Sync a database, unless it is temporary, and rename it to *target*. The call blocks."""
        if not self._is_temporary:
            _sync(path)
        path.rename(target)
        if not self._is_temporary:
            _sync(target.parent)


def restoring(target: Path) -> Path:
    """Return the path of the unfinished database while a restore to *target* runs."""
    return target.with_name(target.name + ".restoring")


def _settle(db: Database, link: Link, uuid: str) -> None:
    """Record the chain position of a restored database, and the totals of all its blocks."""
    db.begin_local()
    replica.settle_at_txg(db)
    chain.record(db, link)
    local_state.put(db, "uuid", uuid)
    db.commit()


def _forget_frames(exc: BaseException) -> None:
    """Release the stack frames of an error and its causes, which may refer to a huge manifest."""
    exc.__traceback__ = None
    for before in (exc.__cause__, exc.__context__):
        if before is not None:
            _forget_frames(before)


def _is_within(manifest_key: str, upto: Txg | None) -> bool:
    name = image_codec.parse_manifest_key(manifest_key)
    return upto is None or (name is not None and name.txg <= upto)


async def _fetch_all(
    store: ObjectStore,
    keyring: Keyring,
    manifest: Manifest,
    key: ObjectKey,
    unfinished: Path,
    progress: Progress,
) -> None:
    """Download the pieces of the image *key* to a file, with a fixed number of tasks.

    Raises:
        FormatError: the pieces leave a gap, or a piece is damaged.
        ObjectMissingError: a piece is missing.
        OSError: the database cannot be written, for example because the disk is full.
    """
    image_codec.require_places(manifest, key)
    if not await in_thread(has_room, unfinished, manifest.database_bytes):
        # A forged manifest may claim a huge size for which the bucket has no pieces. So first check
        # the last piece. If it is missing, the caller tries another image, and does not report a
        # full disk.
        await store.get_range(manifest.pieces[-1].key, 0, 1)
    done = 0
    waiting = iter(enumerate(manifest.pieces))

    async def fetch() -> None:
        nonlocal done
        for number, piece in waiting:
            fetched = await store.get(piece.key, image_codec.PIECE_ENCODED_BYTES_MAX)
            await in_thread(place_piece, unfinished, number, piece, fetched.data, keyring)
            done += 1
            progress("metadata", done, len(manifest.pieces))

    await in_thread(allocate, unfinished, manifest.database_bytes)
    await run_concurrently([fetch] * FETCHES_MAX)


def has_room(path: Path, size_bytes: int) -> bool:
    """Return whether a file's disk has room for a database of a given size. The call blocks."""
    return size_bytes <= free_bytes(path)


def free_bytes(path: Path) -> int:
    """Return the free bytes on the disk that has the database file. The call blocks."""
    figures = os.statvfs(path.parent)
    return figures.f_bavail * figures.f_frsize


def allocate(path: Path, size_bytes: int) -> None:
    """Create the file of the database. The call blocks.

    Raises:
        OSError: the file cannot be created, for example because the disk is full.
    """
    path.unlink(missing_ok=True)  # remove the file of an interrupted restore
    available = free_bytes(path)
    if size_bytes > available:
        text = f"the metadata needs {size_bytes} bytes, but only {available} are free on the disk"
        raise _disk_full(path, text)
    create_empty(path)
    os.truncate(path, size_bytes)


def place_piece(path: Path, number: int, piece: Piece, data: bytes, keyring: Keyring) -> None:
    """Decode a piece and write it at its offset; raise FormatError for damage. The call blocks."""
    write_piece(path, number, image_codec.decode_piece(piece, data, keyring))


def write_piece(path: Path, number: int, content: bytes) -> None:
    """Write the decoded bytes of a piece at its offset. The call blocks.

    Raises:
        OSError: the piece cannot be written, for example because the disk is full.
    """
    with _naming_a_full_disk(path), path.open("r+b") as file:
        file.seek(number * IMAGE_PIECE_BYTES)
        file.write(content)


def copy_database(source: Path, path: Path) -> None:
    """Copy a database that is not in use. The call blocks.

    Raises:
        OSError: the copy cannot be written, for example because the disk is full.
    """
    with _naming_a_full_disk(path):
        shutil.copyfile(source, path)


@contextmanager
def _naming_a_full_disk(path: Path) -> Iterator[None]:
    """Add the directory of *path* and advice to an error about a full disk."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in FULL_ERRNOS:
            raise
        raise _disk_full(path, "the disk became full during the restore of the metadata") from exc


def _disk_full(path: Path, why: str) -> OSError:
    """Return the error for a database that does not fit on its disk."""
    advice = "delete other files there, or choose a directory on another disk with --cachedir"
    return OSError(errno.ENOSPC, f"{why}; {advice}", os.fspath(path.parent))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
