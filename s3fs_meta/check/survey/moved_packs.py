"""Recovery of packs that are stored under the name of another pack, or under an unknown name.

Objects may have been swapped, renamed, or copied to a wrong name. A pack is authenticated together
with its name, so its bytes are invalid under any other name. The survey tries the names of missing
and damaged packs of the same size.

Owns: the choice of the names to try, and saving the content. Does not know: the search for damaged
packs (``packs``).
Keeps: no object is changed. The content is copied to the cache and uploaded in another pack.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.check.context import Examination, SurveyContext
from s3fs_meta.check.rules.bucket import MISSING_PACKS
from s3fs_meta.check.survey.indexes import WITHOUT_LOCATION
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.pack import PackEntry
from s3fs_meta.errors import BadRowError, FormatError, ObjectMissingError
from s3fs_meta.limits import FSCK_NAMES_TRIED_MAX, PACK_BYTES_MAX
from s3fs_meta.meta.tables import blocks
from s3fs_meta.model import BlockId, BlockRow, ObjectKey, PackId
from s3fs_meta.sync.upload.pack_index import block_in

# Packs whose objects are missing or damaged; their content may be stored under other keys.
_CANDIDATES: Final = (
    "SELECT p.pack, p.object_key FROM packs AS p"
    " WHERE p.object_bytes = ? AND p.object_key <> ?"
    " AND (p.pack IN (SELECT pack FROM temp.seen_bad_indexes)"
    " OR p.object_key NOT IN (SELECT object_key FROM temp.seen_objects))"
    " AND typeof(p.object_key) = 'text' AND p.object_key NOT GLOB '*[^ -~]*'"
    f" ORDER BY p.pack LIMIT {FSCK_NAMES_TRIED_MAX}"
)
# Objects that are no pack of this filesystem under their names, but have the size of a missing pack.
_RENAMED: Final = (
    "FROM temp.seen_foreign AS f JOIN temp.seen_objects AS o ON o.object_key = f.object_key"
    " WHERE o.object_key NOT GLOB '*[^ -~]*' AND o.size_bytes IN (SELECT p.object_bytes"
    f" FROM packs AS p WHERE p.pack IN ({MISSING_PACKS}))"
)
_NO_PACK_OF_THEIR_NAME: Final = (
    "SELECT p.object_key FROM packs AS p JOIN temp.seen_objects AS o ON o.object_key = p.object_key"
    " WHERE p.pack IN (SELECT pack FROM temp.seen_bad_indexes)"
    f" UNION SELECT * FROM (SELECT o.object_key {_RENAMED} LIMIT {FSCK_NAMES_TRIED_MAX}) ORDER BY 1"
)
# If the location in the row of a block is readable, only the hash in the row is wrong, and it may be
# the hash of another block. Such a block is not lost.
_LOST_WITH_HASH: Final = WITHOUT_LOCATION.format(
    "SELECT b.block FROM (SELECT block FROM temp.seen_unreadable"
    " UNION SELECT block FROM temp.seen_searched) AS x JOIN blocks AS b ON b.block = x.block"
    " WHERE b.hash = ? AND b.pack IS NOT ?"
)


class _Candidate(NamedTuple):
    """A missing or damaged pack whose bytes may be in the examined object, under a wrong key."""

    pack: PackId
    key: ObjectKey
    rows: list[BlockRow]
    entries: Sequence[PackEntry] = ()  # the index of the pack, once it was read


async def rescue(context: SurveyContext, files: BlockFiles) -> None:
    """Copy the content of packs that are stored under other names to the cache directory.

    The packs with a bad index must have been recorded before.

    Raises:
        StoreError: the store is unavailable.

    May yield to other tasks.
    """
    for (key,) in context.exam.db.all(_NO_PACK_OF_THEIR_NAME):
        await _rescue_one(context, files, ObjectKey(str(key)))


async def _rescue_one(context: SurveyContext, files: BlockFiles, key: ObjectKey) -> None:
    exam, keyring = context.exam, context.keyring
    try:
        data = (await context.store.get(key, PACK_BYTES_MAX)).data
    # The object is too large, or was deleted after the listing.
    except (FormatError, ObjectMissingError):
        return
    candidates = [
        _Candidate(PackId(pack), ObjectKey(other), _rows(exam, PackId(pack)))
        for pack, other in exam.db.all(_CANDIDATES, (len(data), key))
    ]
    found = await in_thread(_first_that_fits, keyring, data, candidates)
    if found is None:
        return
    found.rows.extend(_misplaced(exam, found))
    saved = await in_thread(_save, keyring, data, found, files)
    if not saved:
        return
    exam.note_new_files((row.block, row.plain_bytes) for row in saved)
    exam.evidence.note_intact_copies(row.block for row in saved)
    exam.report.remember(
        f"pack {found.key} is stored under the key {key}: {len(saved)} of its blocks are"
        " uploaded again in another pack"
    )


def _rows(exam: Examination, pack: PackId) -> list[BlockRow]:
    try:
        return list(blocks.in_pack(exam.db, pack))
    except BadRowError:  # the repair for I70 fixes the row, so the next run reads the pack
        return []


def _misplaced(exam: Examination, found: _Candidate) -> list[BlockRow]:
    """Return the location in a pack of each lost block whose row names another pack."""
    return [
        BlockRow(
            BlockId(block),
            0,
            entry.plain_bytes,
            entry.hash,
            found.pack,
            entry.offset,
            entry.stored_bytes,
        )
        for entry in found.entries
        for (block,) in exam.db.all(_LOST_WITH_HASH, (entry.hash, found.pack))
    ]


def _first_that_fits(
    keyring: Keyring, data: bytes, candidates: list[_Candidate]
) -> _Candidate | None:
    """Return the candidate whose name makes the object's index authentic, or None."""
    for candidate in candidates:
        try:
            entries = pack_codec.read_index(keyring, candidate.key, data, len(data))
        except FormatError:
            continue
        return candidate._replace(entries=entries)
    return None


def _save(keyring: Keyring, data: bytes, found: _Candidate, files: BlockFiles) -> list[BlockRow]:
    """Copy the pack's intact blocks to the cache directory; return their rows."""
    saved = []
    for row in found.rows:
        try:
            content = block_in(keyring, found.key, data, row)
        except FormatError:
            continue
        files.adopt(row.block, content)
        saved.append(row)
    return saved
