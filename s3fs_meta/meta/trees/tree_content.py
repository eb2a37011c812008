"""A query for the blocks of many files at once, for operations on complete trees.

Owns: the query for the blocks. Does not know: names, the cache.
"""

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.tables.block_map import FilePart
from s3fs_meta.model import BlockId, BlockIndex, Ino, PackId

_LAST_INDEX: Final = BlockIndex(
    (1 << 63) - 2
)  # replaces an invalid index of type text, which sorts after all numbers


class TreeBlock(NamedTuple):
    """The block of one part of a file. The location of a block that is not uploaded is None."""

    ino: Ino
    block_index: BlockIndex
    block: BlockId
    plain_bytes: int
    pack: PackId | None
    pack_offset: int | None


class TreeSlice(NamedTuple):
    """Blocks of files, and the last part that was read (None if no part is left)."""

    blocks: list[TreeBlock]
    last: FilePart | None


def blocks_of(db: Database, files: Sequence[tuple[Ino, BlockIndex]], limit: int) -> TreeSlice:
    """Return the next blocks of files in the given order, at most *limit*.

    Rows with invalid types are skipped; reading the file reports the error.

    Args:
        files: different files, each with the first block index to return.
    """
    rows = db.all(
        "SELECT m.ino, m.block_index, m.block, b.plain_bytes, b.pack, b.pack_offset"
        " FROM json_each(?) AS j CROSS JOIN block_map AS m"
        " ON m.ino = json_extract(j.value, '$[0]')"
        " AND m.block_index >= json_extract(j.value, '$[1]')"
        " CROSS JOIN blocks AS b ON b.block = m.block LIMIT ?",
        (json.dumps(files), limit),
    )
    last = None
    if len(rows) == limit:
        ino, index = rows[-1][:2]
        last = FilePart(ino, BlockIndex(index) if type(index) is int else _LAST_INDEX)
    return TreeSlice([TreeBlock(*row) for row in rows if _is_valid(row)], last)


def _is_valid(row: Row) -> bool:
    return all(type(value) is int for value in row[:4]) and all(
        value is None or type(value) is int for value in row[4:]
    )
