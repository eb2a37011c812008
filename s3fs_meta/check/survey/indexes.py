"""The search for blocks whose rows have a wrong location, in the indexes of all packs.

A pack contains a block if the pack's index lists the block's number, or a record with the hash in
the block's row. Such a record may exist for two reasons. After compaction, the old pack exists
until the retention period has expired. Equal content may be written again after its first block was
freed.

If two blocks overlap, the rows may be right and the index of the pack damaged. So ``keep_readable``
reads each block that the search did not find, at the location in its row.

Owns: reading the indexes, and proving that a block found under another number is readable.
Does not know: the reason for a search, the use of a location (``rules.blocks``).
Keeps: no object is changed. A location in a condemned pack is not used, because a delayed request
may still delete the pack. The block's content is copied to the cache directory instead.
"""

from typing import Final, NamedTuple

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.check.context import Examination, SurveyContext
from s3fs_meta.check.observations import SeenLocation
from s3fs_meta.check.rules.bucket import IS_PACK_KEY
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.pack import PackEntry
from s3fs_meta.errors import CorruptionError, ObjectMissingError
from s3fs_meta.limits import BLOCK_BYTES_MAX, PACK_BYTES_MAX
from s3fs_meta.model import BlockId, ObjectKey, PackState
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.upload.pack_index import read_index

SEARCHED: Final = "SELECT block FROM temp.seen_searched"
UNREADABLE: Final = "SELECT block FROM temp.seen_unreadable"
_IS_CONDEMNED: Final = (
    "EXISTS (SELECT 1 FROM packs AS p WHERE p.object_key = o.object_key"
    f" AND p.state = {PackState.CONDEMNED:d})"
)
_PACKS: Final = (
    f"SELECT o.object_key, o.size_bytes, {_IS_CONDEMNED} FROM temp.seen_objects AS o"
    f" WHERE o.{IS_PACK_KEY} ORDER BY 3, 1"
)
# Blocks for which no location was found that has the hash in their row, or is the one in their row.
# In the second case the hash in the row is wrong, so it belongs to other content.
WITHOUT_LOCATION: Final = (
    "SELECT x.block FROM ({0}) AS x WHERE x.block NOT IN"
    " (SELECT s.block FROM temp.seen_locations AS s JOIN blocks AS b ON b.block = s.block"
    " LEFT JOIN packs AS p ON p.pack = b.pack WHERE s.hash = b.hash"
    " OR (s.object_key = p.object_key AND s.pack_offset = b.pack_offset))"
)
# Searched blocks whose rows have a possible location in a listed pack.
_RECORDED: Final = (
    "SELECT b.block, p.object_key, p.object_bytes, b.hash, b.plain_bytes, b.pack_offset,"
    f" b.stored_bytes FROM ({WITHOUT_LOCATION.format(SEARCHED)}) AS x"
    " JOIN blocks AS b ON b.block = x.block"
    " JOIN packs AS p ON p.pack = b.pack JOIN temp.seen_objects AS o ON o.object_key = p.object_key"
    f" WHERE p.state = {PackState.STORED:d} AND typeof(b.hash) = 'blob'"
    f" AND b.plain_bytes BETWEEN 1 AND {BLOCK_BYTES_MAX} AND b.pack_offset >= 0"
    " AND b.stored_bytes > 0 AND b.pack_offset + b.stored_bytes <= o.size_bytes"
    f" AND b.stored_bytes <= {PACK_BYTES_MAX} AND p.object_bytes = o.size_bytes"
)
_WITH_NUMBER: Final = "{0} WHERE block = ?"
_WITH_HASH: Final = (
    "SELECT b.block FROM blocks AS b {1}"
    " WHERE b.hash = ? AND b.block <> ? AND b.block IN ({0})"
    " AND b.block NOT IN (SELECT c.block FROM temp.seen_intact_copies AS c)"
)


class _Pack(NamedTuple):
    """A pack in the listing of the bucket."""

    key: ObjectKey
    object_bytes: int
    condemned: bool


async def search(context: SurveyContext, wanted: str = SEARCHED) -> None:
    """Search for blocks in the index of every listed pack, and record their locations.

    Args:
        context: its ``rescue_files`` is the cache directory to which blocks of condemned packs are
            copied.
        wanted: a query for the blocks. A location of a block in ``UNREADABLE`` is accepted only
            after it was read.

    Raises:
        StoreError: the store is unavailable.
    """
    exam = context.exam
    left = WITHOUT_LOCATION.format(wanted)
    if exam.db.one(f"{left} LIMIT 1") is None:
        return
    exam.report.note("searching the packs for blocks with a wrong row")
    found = [_Pack(ObjectKey(row[0]), row[1], bool(row[2])) for row in exam.db.all(_PACKS)]
    for number, pack in enumerate(found):
        context.progress("packs searched", number, len(found))
        try:
            entries = await read_index(context.store, context.keyring, pack.key, pack.object_bytes)
        except (ObjectMissingError, CorruptionError):
            continue
        files = context.rescue_files if pack.condemned else None
        for entry in entries:
            for block in _wanted_of(exam, wanted, entry):
                proves = wanted == UNREADABLE or block != entry.block or files is not None
                location = _location(block, pack, entry)
                if not proves:
                    exam.evidence.note_locations([location])
                    continue
                content = await _content(context.store, context.keyring, location)
                if content is not None:
                    _note(exam, location, content, files)


async def keep_readable(context: SurveyContext) -> None:
    """Record the locations in the rows of blocks that the search did not find.

    A location is recorded only if it was read without error. Call this after ``search``.

    Raises:
        StoreError: the store is unavailable.
    """
    for row in context.exam.db.all(_RECORDED):
        location = SeenLocation._make(row)
        if await _content(context.store, context.keyring, location) is not None:
            context.exam.evidence.note_locations([location])


def _wanted_of(exam: Examination, wanted: str, entry: PackEntry) -> list[BlockId]:
    """Return the searched blocks that have the number or the hash of an index entry."""
    numbered = exam.db.all(_WITH_NUMBER.format(wanted), (entry.block,))
    with_hash = _WITH_HASH.format(wanted, exam.indexed_by("blocks_by_hash"))
    hashed = exam.db.all(WITHOUT_LOCATION.format(with_hash), (entry.hash, entry.block))
    return [BlockId(row[0]) for row in (*numbered, *hashed)]


async def _content(store: ObjectStore, keyring: Keyring, at: SeenLocation) -> bytes | None:
    """Return the content of a block at a location, or None if it cannot be read."""
    key = ObjectKey(at.object_key)
    try:
        stored = await store.get_range(key, at.pack_offset, at.pack_offset + at.stored_bytes)
        return await in_thread(
            pack_codec.open_block,
            keyring,
            key,
            stored,
            at.pack_offset,
            at.plain_bytes,
            at.hash,
        )
    except (ObjectMissingError, CorruptionError):
        return None


def _note(
    exam: Examination,
    location: SeenLocation,
    content: bytes,
    files: BlockFiles | None,
) -> None:
    """Record a location that was read without error.

    If *files* is given, the pack is condemned. Then content with the hash in the block's row is
    copied to the cache directory instead.
    """
    block = location.block
    row = exam.db.one("SELECT CAST(hash AS BLOB) FROM blocks WHERE block = ?", (block,))
    if files is None or row is None or row[0] != location.hash:
        exam.evidence.note_locations([location])
        return
    files.adopt(block, content)
    exam.note_new_files([(block, len(content))])
    exam.evidence.note_intact_copies([block])


def _location(block: BlockId, pack: _Pack, entry: PackEntry) -> SeenLocation:
    return SeenLocation(
        block,
        pack.key,
        pack.object_bytes,
        entry.hash,
        entry.plain_bytes,
        entry.offset,
        entry.stored_bytes,
    )
