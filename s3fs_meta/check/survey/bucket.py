"""The survey of the bucket: its listing, the kept images, and blocks without a valid location.

Owns: reading the bucket. Only ``delete_unknown`` changes it, at the user's request.
Does not know: which observations are faults (``rules.bucket``).
Tasks: one, except that packs without a row, and packs missing in the listing, are requested
concurrently. No transaction may be open.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple, TypeVar

from s3fs_meta.background_task import in_thread, run_concurrently
from s3fs_meta.check.context import Examination, SurveyContext
from s3fs_meta.check.observations import Need
from s3fs_meta.check.rules import blocks as block_rules
from s3fs_meta.check.rules.bucket import (
    IN_MISSING_PACKS,
    IS_UNNAMED,
    MISSING_KEYS,
    UNKNOWN,
)
from s3fs_meta.check.survey import indexes
from s3fs_meta.check.survey.cache import verify_copies
from s3fs_meta.check.survey.packs import survey_suspects
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.image import Manifest, ManifestRef, Piece
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import (
    CorruptionError,
    FormatError,
    NewerFormatError,
    ObjectMissingError,
)
from s3fs_meta.limits import (
    DELETE_BATCH_KEYS,
    FETCHES_MAX,
    FOREIGN_SHOWN_MAX,
    FSCK_BATCH_ROWS,
    FSCK_HEADS_MAX,
    FSCK_UNNAMED_PACKS_MAX,
    IMAGE_PIECE_FAULTS_MAX,
    IMAGES_KEPT,
    TEXT_OBJECT_BYTES_MAX,
    TXG_GAP_MAX,
)
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.model import Epoch, ObjectKey
from s3fs_meta.objects.contract import ObjectInfo, ObjectStore
from s3fs_meta.sync.administration.mkfs import is_own
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.upload.pack_index import is_ours

_T = TypeVar("_T")


async def survey(context: SurveyContext) -> None:
    """List the bucket; check kept images, suspicious packs, and blocks without a location.

    Raises:
        StoreError: the store is unavailable or refuses the request, so no object can be checked.

    Always yields to other tasks.
    """
    exam = context.exam
    exam.report.note(f"listing {context.store.url}")
    exam.evidence.note_packs(mounted=exam.mounted)
    await _note_listing(context)
    await _ask_for_missing(exam, context.store)
    if not exam.mounted:
        await _note_unnamed(context)
    kept = await _note_images(context)
    await _name_damaged_images(context, kept)
    await survey_suspects(context)
    _note_wanted(exam, context.keyring)
    await indexes.search(context)
    await indexes.keep_readable(context)
    exam.evidence.surveyed |= Need.OBJECTS


# --- list the bucket ---------------------------------------------------------------------------


async def _note_listing(context: SurveyContext) -> None:
    listed = 0
    batch: list[ObjectInfo] = []
    async with aclosing(context.store.list("")) as listing:
        async for info in listing:
            batch.append(info)
            if len(batch) == FSCK_BATCH_ROWS:
                _note_batch(context.exam, batch)
                listed += len(batch)
                context.progress("objects listed", listed, listed)
                batch = []
    _note_batch(context.exam, batch)


def _note_batch(exam: Examination, batch: list[ObjectInfo]) -> None:
    exam.evidence.note_objects((info.key, info.size_bytes) for info in batch)
    exam.evidence.note_foreign(info.key for info in batch if not is_own(info.key))


async def _ask_for_missing(exam: Examination, store: ObjectStore) -> None:
    """Request each unlisted pack: fsck -y records the content of a missing pack as lost."""

    async def ask(row: Row) -> None:
        key, object_bytes = row
        if await _is_there(store, key):
            exam.evidence.note_objects([(key, object_bytes)])

    await _concurrently(ask, exam.db.all(MISSING_KEYS))


async def _concurrently(ask: Callable[[_T], Awaitable[None]], wanted: Iterable[_T]) -> None:
    """Call *ask* for each item, with up to FETCHES_MAX calls at a time.

    Raises:
        StoreError: the first failed call; some items may not have been passed to *ask*.
    """
    waiting = iter(wanted)

    async def ask_next() -> None:
        for item in waiting:
            await ask(item)

    await run_concurrently([ask_next] * FETCHES_MAX)


async def _is_there(store: ObjectStore, key: object) -> bool:
    """Return whether an object exists. A damaged row may supply a *key* of any type."""
    if not isinstance(key, str) or pack_codec.parse_key(key) is None:
        return False
    try:
        await store.get_range(ObjectKey(key), 0, 1)
    except (ObjectMissingError, CorruptionError):
        return False
    return True


# --- packs without a row ----------------------------------------------------------------------


async def _note_unnamed(context: SurveyContext) -> None:
    """Record packs of earlier epochs without a row: authentic packs as unnamed, others as foreign.

    At most FSCK_UNNAMED_PACKS_MAX packs are read; the remaining packs are recorded as foreign.
    """
    exam = context.exam
    rows = exam.db.all(f"SELECT object_key, size_bytes FROM temp.seen_objects WHERE {IS_UNNAMED}")
    found = [ObjectInfo(ObjectKey(key), size_bytes) for key, size_bytes in rows]
    over = [info for info in found if (pack_codec.parse_key(info.key) or Epoch(0)) < context.epoch]
    ours: set[ObjectKey] = set()

    async def ask(info: ObjectInfo) -> None:
        if await is_ours(context.store, context.keyring, info):
            ours.add(info.key)

    await _concurrently(ask, over[:FSCK_UNNAMED_PACKS_MAX])
    exam.evidence.note_unnamed(ours)
    exam.evidence.note_foreign(info.key for info in over if info.key not in ours)


def count_foreign(exam: Examination) -> None:
    """Report the number of objects that are not of this filesystem, and some of their keys."""
    count = exam.db.one("SELECT count(*) FROM temp.seen_foreign")
    assert count is not None, "an aggregate query returns one row"
    sql = "SELECT object_key FROM temp.seen_foreign ORDER BY object_key LIMIT ?"
    keys = [str(row[0]) for row in exam.db.all(sql, (FOREIGN_SHOWN_MAX,))]
    exam.report.foreign(int(count[0]), keys)


# --- images in the bucket ----------------------------------------------------------------------


async def _note_images(context: SurveyContext) -> set[ObjectKey]:
    """Check the kept images, from the newest to the oldest; return their manifests.

    During the check, a writer on another host may write a new image and delete an old one. So if a
    fault was found and the lease has changed, the check is repeated, up to FSCK_HEADS_MAX times.
    """
    found = await _kept_images(context)
    for _ in range(FSCK_HEADS_MAX):
        if not found.faults or await _lease(context.store) == found.lease:
            break
        found = await _kept_images(context)
    context.exam.evidence.note_image_faults(found.faults)
    return found.manifests


class _KeptImages(NamedTuple):
    """The lease, the manifests of the newest images, and the faults of these images."""

    lease: bytes | None  # content of the lease object, or None if it is missing or too large
    manifests: set[ObjectKey]
    faults: list[tuple[str, str]]


async def _lease(store: ObjectStore) -> bytes | None:
    try:
        return (await store.get(lease_codec.KEY, TEXT_OBJECT_BYTES_MAX)).data
    except (ObjectMissingError, CorruptionError):
        return None


async def _kept_images(context: SurveyContext) -> _KeptImages:
    """Read the lease, and check the kept images, the newest first."""
    store = context.store
    data: bytes | None = None
    try:
        data = (await store.get(lease_codec.KEY, TEXT_OBJECT_BYTES_MAX)).data
        lease = lease_codec.decode(lease_codec.KEY, data)
    except (ObjectMissingError, CorruptionError) as exc:
        return _KeptImages(data, set(), [(lease_codec.KEY, str(exc))])
    found = _KeptImages(data, set(), [])
    link = lease.head and lease.head.manifest
    for _ in range(IMAGES_KEPT):
        if link is None:
            break
        found.manifests.add(link.key)
        try:
            manifest = await image_head.load_manifest(store, context.keyring, link)
        except (ObjectMissingError, CorruptionError) as exc:
            found.faults.append((link.key, str(exc)))
            break
        found.faults.extend(await _piece_faults(context, manifest, link.key))
        link = manifest.previous
    return found


async def _piece_faults(
    context: SurveyContext, manifest: Manifest, key: ObjectKey
) -> list[tuple[str, str]]:
    """Return damaged pieces of an image, each with the reason, up to a limit.

    One damaged piece already requires a new image, so the other pieces need not be read.
    """
    faults: list[tuple[str, str]] = []
    for number, piece in enumerate(manifest.pieces):
        why = await piece_fault(context, piece)
        if why:
            faults.append((piece.key, why))
        if len(faults) == IMAGE_PIECE_FAULTS_MAX and number < len(manifest.pieces) - 1:
            left = len(manifest.pieces) - number - 1
            why = f"{len(faults)} pieces of the image are damaged; the last {left} were not read"
            faults.append((key, why))
            break
    return faults


async def piece_fault(context: SurveyContext, piece: Piece) -> str:
    """Return the fault of an image piece, or "" if the piece exists and, with --deep, is intact."""
    try:
        if context.deep:
            fetched = await context.store.get(piece.key, image_codec.PIECE_ENCODED_BYTES_MAX)
            await in_thread(image_codec.decode_piece, piece, fetched.data, context.keyring)
        else:
            await context.require(piece.key)
    except ObjectMissingError:
        return "this image piece is missing"
    except CorruptionError as exc:
        return str(exc)
    return ""


async def _name_damaged_images(context: SurveyContext, kept: set[ObjectKey]) -> None:
    """Report unreadable manifests of images that are older than the kept images."""
    exam = context.exam
    rows = exam.db.all("SELECT object_key FROM temp.seen_objects WHERE object_key GLOB 'image/*'")
    for (key,) in rows:
        manifest = ObjectKey(str(key))
        name = image_codec.parse_manifest_key(manifest)
        if name is None or manifest in kept:
            continue
        try:
            await image_head.load_manifest(context.store, context.keyring, ManifestRef(manifest))
        except ObjectMissingError:
            continue  # ignore an image that was deleted after the listing
        except FormatError as exc:
            if name.txg > exam.db.counters.txg + TXG_GAP_MAX:
                # The txg is too high for any chain of this filesystem.
                exam.evidence.note_foreign([manifest])
                continue
            _report_damaged_image(exam, exc)


def _report_damaged_image(exam: Examination, exc: FormatError) -> None:
    if isinstance(exc, NewerFormatError):
        exam.report.remember(
            "an older image belongs to another filesystem, or was written by a newer program:"
            f" {exc}"
        )
    else:
        exam.report.remember(
            f"an older image is damaged, or belongs to another filesystem: {exc}; no repair needs"
            " this image. If it belongs to this filesystem, garbage collection deletes it when a"
            " later image is as old as the retention"
        )


# --- locations of blocks -----------------------------------------------------------------------


def _note_wanted(exam: Examination, keyring: Keyring) -> None:
    """Record the blocks whose rows have no valid location, and verify their cached copies."""
    exam.derive()
    for blocks in (block_rules.TROUBLED, block_rules.overlaps(exam), IN_MISSING_PACKS):
        exam.evidence.note_searched(blocks)
    exam.close()
    verify_copies(exam, keyring, indexes.SEARCHED)


# --- deletion at the user's request ------------------------------------------------------------


async def delete_unknown(exam: Examination, store: ObjectStore) -> int:
    """Delete this filesystem's packs without a row, at the user's request; return their number.

    May yield to other tasks.
    """
    deleted = 0
    while True:  # the loop ends: each pass deletes a pack and its row in seen_unnamed
        keys = [ObjectKey(row[0]) for row in exam.db.all(f"{UNKNOWN} LIMIT {DELETE_BATCH_KEYS}")]
        if not keys:
            return deleted
        await store.delete(keys)
        for key in keys:
            exam.db.all("DELETE FROM temp.seen_unnamed WHERE object_key = ?", (key,))
        deleted += len(keys)
