"""Invariants of block maps: the blocks of a file agree with its size and its inode."""

from typing import Final

from s3fs_meta.check import lost_found
from s3fs_meta.check.context import Examination, Invariant
from s3fs_meta.check.rules import blocks as block_rules
from s3fs_meta.check.sums import BLOCK_BYTES, EVERY_INODE, IS_REGULAR
from s3fs_meta.limits import FILE_BYTES_MAX

_PLACES: Final = "temp.check_mapped AS m JOIN inodes AS i ON i.ino = m.ino"
_LAST_PLACE: Final = f"({FILE_BYTES_MAX} / {BLOCK_BYTES} - 1)"
_NO_BLOCK: Final = "temp.check_refs AS r LEFT JOIN blocks AS b ON b.block = r.block"
# Blocks whose content is taken from a pack, even if they have a cache file.
# Dirty blocks are not included, because their cache files are newer.
# A pack without a row is trusted only if the block is UPLOADED or CLEAN, or has no cache file:
# a fenced host may have used the block's number for other content.
_UPLOADED: Final = (
    "SELECT s.block FROM temp.seen_locations AS s"
    " LEFT JOIN temp.seen_files AS f ON f.block = s.block"
    " LEFT JOIN cached_blocks AS c ON c.block = s.block"
    f" WHERE s.block IN ({{0}}) AND (f.block IS NULL OR c.state IN {block_rules.CONFIRMED}"
    f" OR coalesce(c.state, 0) NOT IN {block_rules.PENDING}"
    " AND s.object_key IN (SELECT object_key FROM packs))"
)


def _move_far_blocks(exam: Examination, invariant: Invariant) -> None:
    """Move each block whose index is beyond the maximum file size to a separate file."""
    far = (
        "SELECT ino, block_index FROM block_map WHERE ino IN"
        f" ({invariant.select('m.ino')}) AND block_index NOT BETWEEN 0 AND {_LAST_PLACE}"
    )
    for ino, index in exam.collected(far):
        lost_found.move_block(exam, ino, index)


def _find_missing(exam: Examination, invariant: Invariant) -> None:
    """Recreate missing rows of blocks that are cached or in a pack; record other blocks as lost.

    The cache file of an uploaded block may be damaged, for example by a power cut, and no row has
    the hash that verifies the file. So such a block is taken from its pack, and fetched again.
    """
    damaged = invariant.select("r.block")
    exam.db.all("DROP TABLE IF EXISTS temp.check_uploaded")
    exam.db.all(f"CREATE TEMP TABLE check_uploaded AS {_UPLOADED.format(damaged)}")
    exam.run(
        "INSERT INTO blocks SELECT s.block, 0, s.plain_bytes, NULL, NULL, NULL, NULL FROM"
        " temp.seen_locations AS s WHERE s.block IN (SELECT block FROM temp.check_uploaded)"
    )
    block_rules.relocate(exam, "SELECT block FROM temp.check_uploaded")
    exam.run("DELETE FROM cached_blocks WHERE block IN (SELECT block FROM temp.check_uploaded)")
    exam.run(
        "INSERT INTO blocks SELECT f.block, 0,"
        f" min(f.size_bytes, {BLOCK_BYTES}), NULL, NULL, NULL, NULL"
        f" FROM temp.seen_files AS f WHERE f.block IN ({damaged})"
    )
    block_rules.record_lost(exam, damaged)


def _grow_files(exam: Examination, invariant: Invariant) -> None:
    """Extend files to the end of their last block, so that all of the block can be read."""
    exam.run(
        "UPDATE inodes SET size_bytes = (SELECT m.reach FROM temp.check_mapped AS m"
        f" WHERE m.ino = inodes.ino) WHERE ino IN ({invariant.select('i.ino')})"
    )


def _count_mapped(exam: Examination, invariant: Invariant) -> None:
    exam.run(
        "UPDATE inodes SET mapped_blocks = coalesce((SELECT m.blocks FROM temp.check_mapped AS m"
        f" WHERE m.ino = inodes.ino), 0) WHERE ino IN ({invariant.select('i.ino')})"
    )


FILES: Final = (
    Invariant(
        29,
        "the block indexes of a file are within the maximum file size",
        source=_PLACES,
        damaged=f"m.first_index < 0 OR m.last_index > {_LAST_PLACE}",
        columns="m.ino, m.first_index, m.last_index",
        text="file {0} has blocks from index {1} to index {2}",
        repair=_move_far_blocks,
    ),
    Invariant(
        30,
        "every block in a block map has a row in the table blocks",
        source=_NO_BLOCK,
        damaged="b.block IS NULL",
        columns="r.block",
        listing="SELECT m.ino, m.block_index, m.block FROM block_map AS m WHERE m.block IN"
        f" (SELECT r.block FROM {_NO_BLOCK} WHERE b.block IS NULL)",
        text="block {2} at index {1} of file {0} has no row: its bytes may be lost",
        repair=_find_missing,
        advice="reading the bytes returns an error; -y searches for the bytes, or turns them into a"
        " hole that user.s3fs-meta.lost lists",
    ),
)

# These repairs follow the repairs of blocks, because a wrong block length would extend the file.
MAPPED: Final = (
    Invariant(
        59,
        "the size of a file includes its last block",
        source=EVERY_INODE,
        damaged=f"{IS_REGULAR} AND m.last_index BETWEEN 0 AND {_LAST_PLACE}"
        " AND m.first_index >= 0 AND i.size_bytes < m.reach",
        columns="i.ino, i.size_bytes, m.reach",
        text="file {0} of {1} bytes has blocks up to byte {2}",
        repair=_grow_files,
    ),
    Invariant(
        60,
        "mapped_blocks is the number of blocks in an inode's block map",
        source=EVERY_INODE,
        damaged="i.mapped_blocks <> coalesce(m.blocks, 0)",
        columns="i.ino, i.mapped_blocks, m.blocks",
        text="inode {0} has {2} blocks, but mapped_blocks is {1}",
        repair=_count_mapped,
        safe=True,
    ),
)
