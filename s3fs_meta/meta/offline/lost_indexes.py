"""Rows of an image or the chain that replace the unreadable index of a pack.

Owns: the index entries that such rows describe, in ``temp.lost_records``.
Does not know: whether the bytes at these locations are intact (``sync.upload.pack_salvage``).
Keeps: a block is listed only if a row of a block map refers to it, and no readable pack contains
its content.
Tasks: all calls block; call them in a thread, on a database that no other task uses.
"""

from collections.abc import Iterable
from typing import Final

from s3fs_meta.codec.pack import PackEntry
from s3fs_meta.limits import PACK_BLOCKS_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.offline.rebuild import CLAIMS
from s3fs_meta.model import ObjectKey

_KEYS: Final = "CREATE TEMP TABLE lost_indexes (object_key BLOB PRIMARY KEY) WITHOUT ROWID"
_RECORDS: Final = (
    "CREATE TEMP TABLE lost_records (object_key BLOB, block INTEGER, hash BLOB,"
    " plain_bytes INTEGER, pack_offset INTEGER, stored_bytes INTEGER, ino INTEGER,"
    " block_index INTEGER, PRIMARY KEY (object_key, block)) WITHOUT ROWID"
)
# The block map is read once, because it has no index on blocks.
_COLLECT: Final = (
    "INSERT OR IGNORE INTO temp.lost_records SELECT p.object_key, s.block, s.hash, s.plain_bytes,"
    " s.pack_offset, s.stored_bytes, m.ino, m.block_index FROM block_map AS m"
    " CROSS JOIN temp.image_blocks AS s ON s.block = m.block"
    " CROSS JOIN temp.image_packs AS p ON p.pack = s.pack"
    " WHERE p.object_key IN (SELECT object_key FROM temp.lost_indexes)"
    " AND s.pack_offset >= 0 AND s.stored_bytes > 0"
    " AND s.hash NOT IN (SELECT hash FROM temp.claims)"
)
_ENTRIES: Final = (
    "SELECT block, hash, plain_bytes, pack_offset, stored_bytes, ino, block_index"
    " FROM temp.lost_records WHERE object_key = ? ORDER BY pack_offset, block LIMIT ?"
)


def collect(db: Database, packs: Iterable[ObjectKey]) -> None:
    """Find the blocks that only these packs contain. Call after ``image_rows.adopt``, once.

    ``temp.claims`` must contain the index entries of all readable packs.
    """
    db.begin()
    db.run(CLAIMS)
    db.run(_KEYS)
    db.run_many("INSERT INTO temp.lost_indexes VALUES (?)", [(key.encode(),) for key in packs])
    db.run(_RECORDS)
    db.run(_COLLECT)
    db.commit()


def entries_of(db: Database, key: ObjectKey) -> list[PackEntry]:
    """Return the blocks that ``collect`` found for a pack, sorted by offset; the list is bounded."""
    return [PackEntry._make(row) for row in db.all(_ENTRIES, (key.encode(), PACK_BLOCKS_MAX))]
