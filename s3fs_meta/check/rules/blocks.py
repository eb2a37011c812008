"""Invariants of blocks: the bytes of a block exist at the location in its row.

If the bucket was surveyed, a row with a wrong location is repaired from the index of a pack that
contains the block. If no pack contains the block, its verified cached copy is uploaded again. All
other damaged rows stay unchanged until the bucket has been searched. After the search, their bytes
are treated as lost.
"""

from collections.abc import Iterator
from typing import Final

from s3fs_meta.check import lost_data
from s3fs_meta.check.context import Examination, Invariant
from s3fs_meta.check.sums import BLOCK_BYTES, EVERY_BLOCK
from s3fs_meta.codec.keyring import HASH_BYTES
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.tables import blocks, cached_blocks, packs, properties
from s3fs_meta.model import (
    BlockId,
    BlockIndex,
    BlockState,
    Ino,
    ObjectKey,
    PackId,
    PackState,
)

_ADVICE: Final = (
    "run s3fs-meta fsck -y while the bucket is available: it finds blocks in the indexes of packs"
)
_LOST_ADVICE: Final = (
    "reading the blocks returns an error; -y turns them into holes that user.s3fs-meta.lost lists"
)

NULLS: Final = (
    "(b.hash IS NULL) + (b.pack IS NULL) + (b.pack_offset IS NULL) + (b.stored_bytes IS NULL)"
)
PENDING: Final = f"({BlockState.DIRTY:d}, {BlockState.SEALED:d})"
CONFIRMED: Final = f"({BlockState.UPLOADED:d}, {BlockState.CLEAN:d})"
# Valid states of a cached block that has a location; SEALED while compaction moves the block.
BESIDE_THE_PACK: Final = f"({BlockState.SEALED:d}, {BlockState.UPLOADED:d}, {BlockState.CLEAN:d})"


# --- repair a block's location -----------------------------------------------------------------


def mend_locations(exam: Examination, invariant: Invariant) -> None:
    """Find damaged blocks in other packs, or upload them again, or record them as lost."""
    damaged = invariant.select("b.block")
    relocate(exam, damaged)
    upload_again(exam, damaged)
    record_lost(exam, damaged)


def relocate(exam: Examination, damaged: str) -> None:
    """Copy the locations of damaged blocks from the indexes of packs into their rows.

    A fenced host may have used a block's number for other content. So a location must match the
    hash or the pack in the block's row, unless that hash is invalid or that pack has no row.
    If the hash changes, the cached copy of the block may have other content, so it is dropped.
    """
    rows = exam.collected(
        "SELECT s.block, s.object_key, s.object_bytes, s.hash, s.plain_bytes, s.pack_offset,"
        " s.stored_bytes, s.hash IS b.hash FROM temp.seen_locations AS s"
        " JOIN blocks AS b ON b.block = s.block LEFT JOIN packs AS p ON p.pack = b.pack"
        f" WHERE s.block IN ({damaged}) AND (s.hash = b.hash OR s.object_key = p.object_key"
        f" OR length(b.hash) IS NOT {HASH_BYTES} OR p.object_key IS NULL)"
    )
    for block, key, object_bytes, digest, plain_bytes, offset, stored_bytes, is_same in rows:
        if not is_same:
            exam.run(
                f"DELETE FROM cached_blocks WHERE block = ? AND state IN {CONFIRMED}", (block,)
            )
        exam.run(
            "UPDATE blocks SET hash = ?, plain_bytes = ?, pack = ?, pack_offset = ?,"
            " stored_bytes = ? WHERE block = ?",
            (digest, plain_bytes, _pack(exam, key, object_bytes), offset, stored_bytes, block),
        )
        for table in (
            "seen_searched",
            "seen_intact_copies",
        ):  # the observations of the block are outdated, because its row was repaired
            exam.db.all(f"DELETE FROM temp.{table} WHERE block = ?", (block,))


def _pack(exam: Examination, key: str, object_bytes: int) -> PackId:
    """Set a pack to STORED, after creating its row if missing; return the pack's number."""
    row = exam.db.one("SELECT pack FROM packs WHERE object_key = ? ORDER BY pack", (key,))
    number = PackId(row[0]) if row is not None else _renumbered(exam, key, object_bytes)
    exam.run(
        f"UPDATE packs SET state = {PackState.STORED:d}, object_bytes = ? WHERE pack = ?",
        (object_bytes, number),
    )
    return number


def _renumbered(exam: Examination, key: str, object_bytes: int) -> PackId:
    """Create a row with a new number for a pack whose row is lost."""
    number = packs.create(exam.db, ObjectKey(key), object_bytes)
    properties.renumber_packs(exam.db, exam.db.counters.txg, number + 1)
    return number


def upload_again(exam: Examination, damaged: str) -> None:
    """Make damaged blocks with a verified cached copy dirty, so that they are uploaded again.

    A dirty block is mapped at only one file position, so it is copied for every other position.
    """
    rows = exam.collected(
        f"SELECT b.block, b.plain_bytes, m.ino, m.block_index FROM ({damaged}) AS x"
        " JOIN blocks AS b ON b.block = x.block JOIN block_map AS m ON m.block = b.block"
        " JOIN temp.seen_intact_copies AS s ON s.block = b.block ORDER BY b.block"
    )
    first = BlockId(0)
    for block, plain_bytes, ino, index in rows:
        if block == first:
            part(exam, block, plain_bytes, ino, index)
            continue
        first = block
        exam.run(
            "UPDATE blocks SET hash = NULL, pack = NULL, pack_offset = NULL, stored_bytes = NULL"
            " WHERE block = ?",
            (block,),
        )
        cached_blocks.put(exam.db, block, BlockState.DIRTY, ino, index)
        exam.note_dirty(block)
        exam.report.remember(f"block {block} of inode {ino} will be uploaded again")


def part(exam: Examination, block: BlockId, plain_bytes: int, ino: Ino, index: BlockIndex) -> None:
    """Map one file position of a shared block to a new dirty block with equal content."""
    assert exam.files is not None, (
        "copies are verified only after the survey of the cache directory"
    )
    copy = exam.db.counters.take_block()
    # Skip numbers of existing block files, which may be from a later state of the database.
    while exam.files.size(copy) is not None:
        copy = exam.db.counters.take_block()
    exam.files.copy(block, copy, plain_bytes)
    exam.note_new_files([(copy, plain_bytes)])
    blocks.create_dirty(exam.db, copy, ino, index, plain_bytes)
    exam.run("UPDATE block_map SET block = ? WHERE ino = ? AND block_index = ?", (copy, ino, index))


def record_lost(exam: Examination, damaged: str) -> None:
    """Turn damaged blocks that were not found in the bucket into holes, and record the holes."""
    lost_data.record(
        exam,
        f"SELECT ino, block_index, 0 FROM block_map WHERE block IN ({damaged})"
        " AND block IN (SELECT block FROM temp.seen_searched)",
    )


# --- overlapping blocks ------------------------------------------------------------------------

# Locations are compared before I70 repairs the types of their values.
# Rows with wrong types are skipped, because SQLite sorts text and blobs after every number.
_IS_LOCATED: Final = (
    "typeof(pack) = 'integer' AND typeof(pack_offset) = 'integer' AND pack_offset >= 0"
    " AND typeof(stored_bytes) = 'integer' AND stored_bytes > 0"
)


def _overlapping(exam: Examination) -> Iterator[Row]:
    """Yield blocks that begin before the previous block of the same pack ends.

    The first scan reads blocks by number. Only packs whose blocks are not in the order of their
    offsets are read again, sorted by offset.
    """
    # packs in which the order by block number differs from the order by offset
    mixed: set[int] = set()
    at, end = -1, 0
    for pack, offset, stored_bytes in exam.db.iterate(
        f"SELECT pack, pack_offset, stored_bytes FROM blocks {exam.indexed_by('blocks_by_pack')}"
        f" WHERE pack IS NOT NULL AND {_IS_LOCATED} ORDER BY pack, block"
    ):
        if pack != at:
            at, end = pack, 0
        if offset < end:
            mixed.add(pack)
        end = offset + stored_bytes
    for pack in sorted(mixed):
        yield from _overlapping_in(exam, pack)


def _overlapping_in(exam: Examination, pack: int) -> Iterator[Row]:
    """Yield the overlapping blocks of one pack; blocks with equal content may share a location."""
    other, other_hash, begin, end = 0, b"", -1, 0
    for block, digest, offset, stored_bytes in exam.db.iterate(
        "SELECT block, CAST(hash AS BLOB), pack_offset, stored_bytes FROM blocks WHERE pack = ?"
        f" AND {_IS_LOCATED} ORDER BY pack_offset, block",
        (pack,),
    ):
        if offset < end and (digest, offset) != (other_hash, begin):
            yield block, other, pack, offset
            continue
        other, other_hash, begin, end = block, digest, offset, offset + stored_bytes


def _mend_overlaps(exam: Examination, _invariant: Invariant) -> None:
    """Repair both blocks of each overlapping pair, because either location may be wrong."""
    for mend in (relocate, upload_again, record_lost):
        mend(exam, overlaps(exam))


def overlaps(exam: Examination) -> str:
    """Return a query for both blocks of each overlapping pair."""
    exam.db.all("DROP TABLE IF EXISTS temp.check_overlaps")
    exam.db.all("CREATE TEMP TABLE check_overlaps (block INTEGER PRIMARY KEY)")
    for block, other, _pack_number, _offset in _overlapping(exam):
        for one in (block, other):
            exam.db.all("INSERT OR IGNORE INTO temp.check_overlaps VALUES (?)", (one,))
    return "SELECT block FROM temp.check_overlaps"


# --- other repairs of blocks -------------------------------------------------------------------


def _mend_lengths(exam: Examination, invariant: Invariant) -> None:
    """Correct the length of dirty blocks from their files, and of other blocks from their packs."""
    exam.run(
        f"UPDATE blocks SET plain_bytes = min(f.size_bytes, {BLOCK_BYTES})"
        " FROM temp.seen_files AS f JOIN cached_blocks AS c ON c.block = f.block"
        f" WHERE c.state IN {PENDING} AND f.block = blocks.block"
        f" AND blocks.block IN ({invariant.select('b.block')})"
    )
    mend_locations(exam, invariant)


def _mark_stored(exam: Examination, invariant: Invariant) -> None:
    """Set packs with live blocks to STORED; I46 reports packs whose objects are missing."""
    exam.run(
        f"UPDATE packs SET state = {PackState.STORED:d}, died_txg = NULL"
        f" WHERE pack IN ({invariant.select('b.pack')})"
    )


def _find_again(exam: Examination, invariant: Invariant) -> None:
    """Search the cache, then the indexes of packs, for blocks without a location."""
    damaged = invariant.select("b.block")
    _readopt(exam, damaged)
    relocate(exam, damaged)
    record_lost(exam, damaged)


def _readopt(exam: Examination, damaged: str) -> None:
    """Insert rows in cached_blocks for damaged blocks that have a cache file."""
    rows = exam.collected(
        f"SELECT b.block, m.ino, m.block_index FROM ({damaged}) AS x"
        " JOIN blocks AS b ON b.block = x.block JOIN block_map AS m ON m.block = b.block"
        " JOIN temp.seen_files AS f ON f.block = b.block WHERE f.size_bytes > 0"
    )
    for block, ino, index in rows:
        cached_blocks.put(exam.db, block, BlockState.DIRTY, ino, index)
        exam.note_dirty(block)
        exam.touched()


def _drop_partial(exam: Examination, invariant: Invariant) -> None:
    """Remove incomplete locations of dirty blocks; repair the locations of all other blocks."""
    exam.run("UPDATE blocks SET hash = CAST(hash AS BLOB) WHERE typeof(hash) = 'text'")
    exam.run(
        "UPDATE blocks SET hash = NULL, pack = NULL, pack_offset = NULL, stored_bytes = NULL"
        " WHERE block IN (SELECT c.block FROM cached_blocks AS c"
        f" WHERE c.state IN {PENDING}) AND block IN ({invariant.select('b.block')})"
    )
    mend_locations(exam, invariant)


def _count_refs(exam: Examination, invariant: Invariant) -> None:
    exam.run(
        "UPDATE blocks SET refs = coalesce((SELECT r.refs FROM temp.check_refs AS r"
        f" WHERE r.block = blocks.block), 0) WHERE block IN ({invariant.select('b.block')})"
    )


def _free_unnamed(exam: Examination, invariant: Invariant) -> None:
    """Delete blocks without references; a later sync removes their cache files."""
    unnamed = invariant.select("b.block")
    exam.run(f"UPDATE cached_blocks SET state = {BlockState.DOOMED:d} WHERE block IN ({unnamed})")
    # One query tests the references and the state of the cached block, to avoid a second scan.
    exam.run(
        "DELETE FROM blocks WHERE NOT EXISTS (SELECT 1 FROM block_map AS m"
        " WHERE m.block = blocks.block) AND coalesce((SELECT c.state FROM cached_blocks AS c"
        f" WHERE c.block = blocks.block), 0) <> {BlockState.SEALED:d}"
    )


_NOWHERE: Final = (
    f"b.pack IS NULL AND {NULLS} = 4 AND r.refs > 0 AND coalesce(c.state, {BlockState.DOOMED:d})"
    f" = {BlockState.DOOMED:d}"
)

BLOCKS: Final = (
    Invariant(
        31,
        "hash and location of a block are either complete or absent",
        source=EVERY_BLOCK,
        damaged=f"{NULLS} NOT IN (0, 4) OR length(b.hash) <> {HASH_BYTES}"
        " OR typeof(b.hash) NOT IN ('blob', 'null')",
        columns="b.block, b.hash, b.pack, b.pack_offset, b.stored_bytes",
        text="block {0} has an incomplete location: hash {1!r}, pack {2}, offset {3}, {4} bytes",
        repair=_drop_partial,
        about_inode=False,
        advice=_ADVICE,
    ),
    Invariant(
        32,
        "the pack of every block has a row",
        source=EVERY_BLOCK,
        damaged="b.pack IS NOT NULL AND p.pack IS NULL",
        columns="b.block, b.pack",
        text="block {0} is in pack {1}, which has no row",
        repair=mend_locations,
        about_inode=False,
        advice=_ADVICE,
    ),
    Invariant(
        33,
        "every block lies within the bytes of its pack",
        source=EVERY_BLOCK,
        damaged="b.pack_offset < 0 OR b.stored_bytes <= 0"
        " OR b.pack_offset + b.stored_bytes > p.object_bytes",
        columns="b.block, b.pack_offset, b.stored_bytes, p.object_bytes",
        text="block {0} is at offset {1} with {2} bytes, in a pack of {3} bytes",
        repair=mend_locations,
        about_inode=False,
        advice=_ADVICE,
    ),
    Invariant(
        34,
        "blocks in a pack do not overlap, unless their content is equal",
        text="blocks {1} and {0} of pack {2} overlap at offset {3}",
        scan=_overlapping,
        repair=_mend_overlaps,
        about_inode=False,
        advice=_ADVICE,
    ),
    Invariant(
        35,
        "a block is not longer than the block size, and an uploaded block is not empty",
        source=EVERY_BLOCK,
        damaged=f"b.plain_bytes NOT BETWEEN (b.hash IS NOT NULL) AND {BLOCK_BYTES}"
        " OR typeof(b.plain_bytes) <> 'integer'",
        columns="b.block, b.plain_bytes",
        text="block {0} has an invalid length: {1}",
        repair=_mend_lengths,
        about_inode=False,
        advice=_ADVICE,
    ),
    Invariant(
        36,
        "blocks are in packs that the store confirmed",
        source=EVERY_BLOCK,
        damaged=f"p.state <> {PackState.STORED:d}",
        columns="b.block, b.pack, p.state",
        text="block {0} is in pack {1}, whose state is {2}",
        repair=_mark_stored,
        about_inode=False,
    ),
    Invariant(
        37,
        "a block that is not uploaded is cached",
        source=EVERY_BLOCK,
        damaged=_NOWHERE,
        columns="b.block",
        listing="SELECT m.ino, m.block_index, m.block FROM block_map AS m WHERE m.block IN"
        f" (SELECT b.block FROM {EVERY_BLOCK} WHERE {_NOWHERE})",
        text="block {2} at index {1} of file {0} is neither in the cache nor in the bucket: it is lost",
        repair=_find_again,
        advice=_LOST_ADVICE,
    ),
)

# The repair of I70 replaces values of a wrong type in locations.
# The result violates another invariant, whose repair needs a search for the block.
_WRONG_TYPE: Final = " OR ".join(
    f"typeof(b.{column}) NOT IN ('integer', 'null')"
    for column in ("pack", "pack_offset", "stored_bytes")
)
# The blocks to search for in the bucket. The query scans the table blocks once.
_ANY_FAULT: Final = " OR ".join(
    (*(f"({one.damaged})" for one in BLOCKS if one.source == EVERY_BLOCK), _WRONG_TYPE)
)
TROUBLED: Final = (
    f"SELECT b.block FROM {EVERY_BLOCK} WHERE {_ANY_FAULT}"
    " UNION SELECT r.block FROM temp.check_refs AS r"
    " LEFT JOIN blocks AS b ON b.block = r.block WHERE b.block IS NULL"
)

REFERENCES: Final = (
    Invariant(
        61,
        "refs of a block is the number of block_map rows that refer to it",
        source=EVERY_BLOCK,
        damaged="b.refs <> coalesce(r.refs, 0)",
        columns="b.block, b.refs, coalesce(r.refs, 0)",
        text="block {0} has {2} references, but refs is {1}",
        repair=_count_refs,
        safe=True,
        about_inode=False,
    ),
    Invariant(
        62,
        "a block without references is deleted, unless it is being uploaded",
        source=EVERY_BLOCK,
        damaged=f"r.block IS NULL AND coalesce(c.state, 0) <> {BlockState.SEALED:d}",
        columns="b.block, b.plain_bytes",
        text="no file refers to block {0} of {1} bytes",
        repair=_free_unnamed,
        safe=True,
        about_inode=False,
    ),
)
