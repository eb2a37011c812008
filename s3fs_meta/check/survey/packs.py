"""The survey of packs: reading the index of a pack, and every block in it that a row lists.

Either all packs are read, or only packs of a wrong size, with marked live blocks, or with a wrong
sum of live bytes.
Owns: downloading and verifying packs, a few at a time. No object is changed.
Does not know: which observations are faults (``rules.bucket``).
Tasks: at most FSCK_DEEP_PACKS_MAX concurrently; content is verified in threads.
No transaction may be open.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from s3fs_meta.background_task import in_thread, run_concurrently
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.check.context import Examination, SurveyContext
from s3fs_meta.check.observations import Need, SeenLocation
from s3fs_meta.check.rules.bucket import WRONG_SIZES
from s3fs_meta.check.survey import moved_packs
from s3fs_meta.check.survey.cache import verify_copies
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.pack import PackEntry
from s3fs_meta.errors import (
    BadRowError,
    DamagedDatabaseError,
    FormatError,
)
from s3fs_meta.limits import FSCK_DEEP_PACKS_MAX
from s3fs_meta.meta.db.counters import sum_of
from s3fs_meta.meta.tables import blocks, damage_marks, packs
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import BlockId, BlockRow, ObjectKey, PackId, PackState
from s3fs_meta.objects.contract import ObjectInfo
from s3fs_meta.sync.upload.pack_index import block_in, is_ours, read_pack

_LISTED: Final = (
    "SELECT p.pack, p.object_key, o.size_bytes FROM packs AS p"
    " JOIN temp.seen_objects AS o ON o.object_key = p.object_key"
)
_PACKS: Final = (
    f"{_LISTED} WHERE p.state = {PackState.STORED:d}"
    " OR EXISTS (SELECT 1 FROM blocks AS b WHERE b.pack = p.pack) ORDER BY p.pack"
)
# Packs of a wrong size, packs in which the location of a live block is marked as damaged, and packs
# whose live bytes do not match the rows of their blocks: such a row may name a wrong pack.
_SUSPECTS: Final = (
    f"SELECT p.pack, p.object_key, o.size_bytes FROM {WRONG_SIZES}"
    f" UNION {_LISTED} WHERE p.state = {PackState.STORED:d} AND {damage_marks.ANY} AND EXISTS"
    f" (SELECT 1 FROM blocks AS b WHERE b.pack = p.pack AND {damage_marks.COVERS_B})"
    f" UNION {_LISTED} JOIN (SELECT pack, {sum_of('stored_bytes')} AS stored_bytes FROM blocks"
    " GROUP BY pack) AS l ON l.pack = p.pack"
    f" WHERE p.state = {PackState.STORED:d} AND p.live_bytes <> l.stored_bytes ORDER BY p.pack"
)
# Packs that may be stored under the name of a pack with a bad index, or have its content.
_SAME_SIZE: Final = (
    f"{_LISTED} WHERE EXISTS (SELECT 1 FROM blocks AS b WHERE b.pack = p.pack) AND p.object_bytes"
    " IN (SELECT x.object_bytes FROM packs AS x"
    " WHERE x.pack IN (SELECT pack FROM temp.seen_bad_indexes)"
    " UNION SELECT o.size_bytes FROM packs AS x"
    " JOIN temp.seen_objects AS o ON o.object_key = x.object_key"
    " WHERE x.pack IN (SELECT pack FROM temp.seen_bad_indexes)) ORDER BY p.pack"
)
_UNREADABLE: Final = "SELECT block FROM temp.seen_unreadable"


class _Pack(NamedTuple):
    """A pack with a row, and the size of its object in the listing of the bucket."""

    number: PackId
    key: ObjectKey
    size_bytes: int


class PackVerdict(NamedTuple):
    """The faults that the survey found in one pack."""

    index_fault: str  # reason why the index is invalid or incomplete; empty if it is valid
    # Unreadable blocks at their recorded locations, with the reasons.
    unreadable: list[tuple[BlockId, str]]
    index_locations: list[
        SeenLocation
    ]  # blocks that are readable only at the location in the index
    # Blocks that are unreadable at their recorded location and at the location in the index.
    lost: list[BlockId]
    rescued: list[BlockId]  # blocks copied to the cache directory because the index is damaged
    refuted: list[str]  # names of damage marks whose location is intact


async def survey(context: SurveyContext) -> None:
    """Fetch every stored pack and compare it with its rows. Call ``bucket.survey`` first.

    Raises:
        StoreError: the store is unavailable; the remaining packs were not read.

    Always yields to other tasks.
    """
    context.exam.report.note("reading every pack")
    await _read(context, _listed(context.exam, _PACKS))
    await _rescue_moved(context)
    _recover(context)
    context.exam.evidence.surveyed |= Need.CONTENT


async def survey_suspects(context: SurveyContext) -> None:
    """Fetch packs of a wrong size, with a damage mark, or with wrong live bytes, as ``survey`` does.

    Packs never change, so a different size indicates damage. If the fetched object has the size in
    the row, the listing was stale. A failed read has marked the other packs.
    If a pack is stored under the name of another pack, that pack is read, too. The bytes of missing
    packs are searched for under unknown names. With --deep, ``survey`` makes this search, after it
    has read all packs.
    """
    suspects = _listed(context.exam, _SUSPECTS)
    if suspects:
        context.exam.report.note(
            "reading packs of a wrong size, with wrong live bytes, or marked as damaged"
        )
        await _read(context, suspects)
        await _read(context, await _possible_names(context, suspects))
    if not context.deep:
        await _rescue_moved(context)
    _recover(context)


async def _possible_names(context: SurveyContext, suspects: Sequence[_Pack]) -> list[_Pack]:
    """Return the damaged packs of other names that may contain the bytes of suspects."""
    return [
        pack
        for pack in _listed(context.exam, _SAME_SIZE)
        if pack not in suspects
        and not await is_ours(context.store, context.keyring, ObjectInfo(pack.key, pack.size_bytes))
    ]


def _listed(exam: Examination, query: str) -> list[_Pack]:
    return [_Pack(PackId(row[0]), ObjectKey(row[1]), int(row[2])) for row in exam.db.all(query)]


async def _read(context: SurveyContext, found: Sequence[_Pack]) -> None:
    """Fetch and verify packs, a few at a time."""
    total = sum(pack.size_bytes for pack in found)
    done = 0
    waiting = iter(found)

    async def read_packs() -> None:
        nonlocal done
        for pack in waiting:
            await _read_pack(context, pack.number, pack.key)
            done += pack.size_bytes
            context.progress("packs verified", done, total)

    await run_concurrently([read_packs] * FSCK_DEEP_PACKS_MAX)


async def _rescue_moved(context: SurveyContext) -> None:
    """Copy the content of packs that are stored under other names to the cache directory."""
    files = context.rescue_files
    if files is not None:
        await moved_packs.rescue(context, files)


def _recover(context: SurveyContext) -> None:
    """Find the content of unreadable blocks in the cache."""
    context.exam.evidence.note_searched(_UNREADABLE)
    verify_copies(context.exam, context.keyring, _UNREADABLE)


async def _read_pack(context: SurveyContext, pack: PackId, key: ObjectKey) -> None:
    exam = context.exam
    try:
        rows, object_bytes = blocks.in_pack(exam.db, pack), packs.object_bytes(exam.db, pack)
    # The repair for I70 fixes the row, so the next run reads the pack.
    except (BadRowError, DamagedDatabaseError) as exc:
        exam.report.note(f"{key} was not read, because a row of the pack is damaged: {exc}")
        return
    marked = damage_marks.marks_of(exam.db, pack)

    async def read(rescue: BlockFiles | None) -> PackVerdict:
        data = await read_pack(context.store, key)
        if len(data) == object_bytes:  # use the present size, because the listing may be outdated
            exam.evidence.note_objects([(key, len(data))])
        return await in_thread(verify_pack, context.keyring, key, data, rows, rescue, marked)

    verdict = await read(None)
    if verdict.index_fault or verdict.unreadable:  # read the pack again to confirm the damage
        verdict = await read(context.rescue_files)
    _note(exam, pack, key, rows, verdict)


def _note(
    exam: Examination, pack: PackId, key: ObjectKey, rows: Sequence[BlockRow], verdict: PackVerdict
) -> None:
    rescued = set(verdict.rescued)
    if verdict.index_fault:
        exam.evidence.note_bad_indexes([(pack, verdict.index_fault)])
    exam.evidence.note_unreadable(verdict.unreadable)
    exam.evidence.note_locations(verdict.index_locations)
    exam.evidence.forget_locations(key, verdict.lost)
    lost, unreadable = set(verdict.lost), {block for block, _why in verdict.unreadable}
    # The row of a lost block may be wrong, and name a location at which another block is readable.
    intact = {row.pack_offset for row in rows if row.block not in unreadable}
    exam.evidence.note_damaged_records(
        pack,
        {
            row.pack_offset or 0
            for row in rows
            if row.block in lost and row.pack_offset not in intact
        },
    )
    exam.evidence.note_false_marks(verdict.refuted)
    exam.evidence.note_intact_copies(verdict.rescued)
    exam.note_new_files((row.block, row.plain_bytes) for row in rows if row.block in rescued)


def verify_pack(
    keyring: Keyring,
    key: ObjectKey,
    data: bytes,
    rows: Sequence[BlockRow],
    rescue: BlockFiles | None = None,
    marked: Sequence[Mark] = (),
) -> PackVerdict:
    """Compare a complete pack with the rows of its blocks. Call this in a thread.

    Args:
        rescue: the cache directory; readable blocks are copied to it if the index is damaged.
        marked: the damage marks of this pack.
    """
    entries, fault = _entries(keyring, key, data)
    index = _Index(entries)
    unreadable: list[tuple[BlockId, str]] = []
    index_locations: list[SeenLocation] = []
    lost: list[BlockId] = []
    readable: list[BlockRow] = []
    for row in rows:
        try:
            block_in(keyring, key, data, row)
        except FormatError as exc:
            unreadable.append((row.block, exc.what))
            entry = index.entry_of(row)
            if entry is not None and _reads(keyring, key, data, entry):
                index_locations.append(_location(row.block, key, data, entry))
            else:
                lost.append(row.block)
        else:
            readable.append(row)
    refuted = _refuted(keyring, key, data, marked, entries, readable) if marked else []
    fault = fault or _incomplete(index.by_hash, readable)
    rescued = _rescue(keyring, key, data, readable, rescue) if fault and rescue else []
    return PackVerdict(fault, unreadable, index_locations, lost, rescued, refuted)


class _Index:
    """The index of a pack, for the search for blocks whose row is wrong."""

    def __init__(self, entries: Sequence[PackEntry]) -> None:
        self.by_hash = {entry.hash: entry for entry in entries}
        self._by_block = {entry.block: entry for entry in entries}
        self._by_offset = {entry.offset: entry for entry in entries}

    def entry_of(self, row: BlockRow) -> PackEntry | None:
        """Return the entry for the block of an unreadable row, or None.

        If the index has the block's number at the offset in the row, only the hash in the row is
        wrong. Then an entry with this hash has the content of another block.
        """
        here = self._by_offset.get(row.pack_offset or 0)
        if here is not None and here.block == row.block:
            return here
        return self.by_hash.get(row.hash or b"") or self._by_block.get(row.block)


def _refuted(
    keyring: Keyring,
    key: ObjectKey,
    data: bytes,
    marked: Sequence[Mark],
    entries: Sequence[PackEntry],
    rows: Sequence[BlockRow],
) -> list[str]:
    """Return the names of damage marks that are wrong: the marked bytes are readable."""
    found = {entry.offset for entry in entries if _reads(keyring, key, data, entry)}
    is_complete = bool(entries) and len(found) == len(entries)
    found.update(row.pack_offset for row in rows if row.pack_offset is not None)
    return [
        mark.name
        for mark in marked
        if (is_complete if mark.pack_offset is None else mark.pack_offset in found)
    ]


def _rescue(
    keyring: Keyring, key: ObjectKey, data: bytes, rows: Sequence[BlockRow], files: BlockFiles
) -> list[BlockId]:
    """Copy the readable blocks of a pack to the cache directory; return their numbers."""
    for row in rows:
        files.adopt(row.block, block_in(keyring, key, data, row))
    return [row.block for row in rows]


def _entries(keyring: Keyring, key: ObjectKey, data: bytes) -> tuple[list[PackEntry], str]:
    try:
        return pack_codec.read_index(keyring, key, data, len(data)), ""
    except FormatError as exc:
        return [], exc.what


def _incomplete(hashes: Collection[bytes], rows: Sequence[BlockRow]) -> str:
    """Return a message if readable blocks are not in the index, otherwise an empty string."""
    lacking = sum(1 for row in rows if row.hash is not None and row.hash not in hashes)
    return f"the index does not list {lacking} of the pack's blocks" if lacking else ""


def _reads(keyring: Keyring, key: ObjectKey, data: bytes, entry: PackEntry) -> bool:
    stored = memoryview(data)[entry.offset : entry.offset + entry.stored_bytes]
    try:
        pack_codec.open_block(keyring, key, stored, entry.offset, entry.plain_bytes, entry.hash)
    except FormatError:
        return False
    return True


def _location(block: BlockId, key: ObjectKey, data: bytes, entry: PackEntry) -> SeenLocation:
    return SeenLocation(
        block,
        key,
        len(data),
        entry.hash,
        entry.plain_bytes,
        entry.offset,
        entry.stored_bytes,
    )
