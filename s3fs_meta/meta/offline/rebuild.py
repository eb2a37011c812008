"""Recreating rows from the indexes of packs, after all other metadata was lost.

Owns: the choice of index entries, and the inodes and names of the recovered content.
Does not know: pack objects, the store.
Keeps: the result passes fsck, unless rows of an image were adopted; then fsck completes the result.
If several blocks have the same position in a file, the block with the highest number is used,
because it is the newest. Content that several files shared is restored only in the first file.
Content that a host wrote after it was fenced is put into separate files.
Tasks: all calls block; call them in a thread, on a database that no other task uses.
"""

import contextlib
import stat
from collections.abc import Collection, Sequence
from typing import Final

from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.pack import PackEntry
from s3fs_meta.errors import EntryExistsError, FormatError
from s3fs_meta.limits import FILE_BYTES_MAX
from s3fs_meta.meta import replica
from s3fs_meta.meta.db.counters import sum_of
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.lost_names import LOST_FOUND, alternatives
from s3fs_meta.meta.offline import image_rows
from s3fs_meta.meta.offline.image_rows import ImageRows
from s3fs_meta.meta.tables import dentries, inodes, packs, properties
from s3fs_meta.model import ROOT_INO, Ino, ObjectKey

_DIRECTORY_MODE: Final = stat.S_IFDIR | 0o700
_FILE_BYTES: Final = sum_of("size_bytes")
_FILE_MODE: Final = stat.S_IFREG | 0o600
_NAMES_AT_ONCE: Final = 1000
# Highest inode or block number to accept. It leaves enough higher numbers for new rows.
_NUMBER_MAX: Final = 1 << 61

# A claim is one entry in the index of a pack. It names a block, its hash, and its position in a
# file.
CLAIMS: Final = (
    "CREATE TEMP TABLE IF NOT EXISTS claims (block INTEGER, epoch INTEGER, pack INTEGER,"
    " pack_offset INTEGER, hash BLOB, plain_bytes INTEGER, stored_bytes INTEGER, ino INTEGER,"
    " block_index INTEGER, doubted INTEGER,"
    " PRIMARY KEY (block, epoch, pack, pack_offset)) WITHOUT ROWID"
)

# Block numbers that a later epoch reused for different content.
# A host that was killed and restarted may have written both versions at one file position.
# If the file positions differ (column another = 1), two hosts wrote the blocks.
_CONFLICTS: Final = (
    "CREATE TEMP TABLE conflicts AS SELECT a.block, a.epoch, a.pack,"
    " max(a.ino <> b.ino OR a.block_index <> b.block_index) AS another"
    " FROM temp.claims AS a JOIN temp.claims AS b"
    " ON b.block = a.block AND b.epoch > a.epoch AND b.hash <> a.hash"
    " GROUP BY a.block, a.epoch, a.pack"
)

_ENDS: Final = (
    "INSERT INTO temp.ends SELECT epoch, min(block) FROM temp.conflicts WHERE another"
    " GROUP BY epoch"
)

# Mark all claims of a pack with a conflicting block as doubtful: no changelog refers to the pack.
# Also mark all blocks of an epoch from the first block number that another host also used.
_DOUBT: Final = (
    "UPDATE temp.claims SET doubted = 1 WHERE pack IN (SELECT pack FROM temp.conflicts)"
    " OR block >= (SELECT e.first_block FROM temp.ends AS e WHERE e.epoch = claims.epoch)"
)


def require_range(key: ObjectKey, entries: Sequence[PackEntry], block_bytes: int) -> None:
    """Raise FormatError if no writer can have reached a number in the index of a pack.

    Anyone who can write to the bucket of a plain filesystem can forge an index.
    """
    index_max = FILE_BYTES_MAX // block_bytes
    for one in entries:
        if max(one.ino, one.block) > _NUMBER_MAX or one.block_index > index_max:
            numbers = f"inode {one.ino}, block {one.block}, index {one.block_index}"
            raise FormatError(key, f"the index of the pack has an impossible number: {numbers}")


def add_pack(db: Database, key: ObjectKey, object_bytes: int, entries: Sequence[PackEntry]) -> None:
    """Add the index entries of one pack as claims. Packs may be added in any order."""
    epoch = pack_codec.parse_key(key)
    assert epoch is not None, "the key of a pack has an epoch"
    db.begin()
    db.run(CLAIMS)
    pack = packs.create(db, key, object_bytes)
    packs.stored(db, pack)
    db.run_many(
        "INSERT INTO temp.claims VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
        [
            (
                one.block,
                epoch,
                pack,
                one.offset,
                one.hash,
                one.plain_bytes,
                one.stored_bytes,
                one.ino,
                one.block_index,
            )
            for one in entries
        ],
    )
    db.commit()


def finish(
    db: Database,
    block_bytes: int,
    now_ns: int,
    unreadable: Collection[ObjectKey] = (),
    image: ImageRows | None = None,
) -> int:
    """Create an inode and a name for every file in the index entries; return the number of files.

    If lost+found is a file in the adopted rows, fsck creates them later; the result is 0.

    Args:
        unreadable: packs with unreadable indexes, which are kept.
        image: facts about adopted rows of an image. If given, only files with doubted content get
            inodes and names here; fsck creates all other missing inodes and names.
    """
    db.inodes.write_through()  # the statements in this module bypass the inode cache
    db.begin()
    properties.keep_packs(db, unreadable)
    db.run(CLAIMS)
    _doubt_overtaken(db)
    if image is not None:
        image_rows.locate(db)
    _place_blocks(db)
    if image is not None:
        image_rows.settle(db, image, block_bytes)
    _place_map(db)
    counters = db.counters
    _place_apart(db, counters.next_ino, counters.next_block)
    row = db.one("SELECT coalesce(max(ino), 0) FROM block_map")
    found = db.one("SELECT coalesce(max(block), 0) FROM blocks")
    assert row is not None, "an aggregate query returns one row"
    assert found is not None, "an aggregate query returns one row"
    counters.next_ino = max(counters.next_ino, row[0] + 1)
    counters.next_block = max(counters.next_block, found[0] + 1)
    db.run("DELETE FROM blocks WHERE block NOT IN (SELECT block FROM block_map)")
    db.run(
        "UPDATE blocks SET refs = c.names FROM (SELECT block, count(*) AS names FROM block_map"
        " GROUP BY block) AS c WHERE c.block = blocks.block"
    )
    db.run(
        "UPDATE packs SET live_bytes = coalesce((SELECT sum(b.stored_bytes) FROM blocks AS b"
        " WHERE b.pack = packs.pack), 0)"
    )
    db.run("UPDATE packs SET died_txg = CASE live_bytes WHEN 0 THEN ? END", (counters.txg,))
    properties.renumber_packs(db, counters.txg, counters.next_pack)
    files = _make_files(db, block_bytes, now_ns, apart_only=image is not None)
    replica.settle(db)
    db.commit()
    return files


def _doubt_overtaken(db: Database) -> None:
    """Mark the claims (index entries) of fenced or killed writers as doubtful.

    A doubtful claim is deleted if a claim without doubt has the same block and content.
    """
    db.run(_CONFLICTS)
    db.run("CREATE TEMP TABLE ends (epoch INTEGER PRIMARY KEY, first_block INTEGER)")
    db.run(_ENDS)
    db.run(_DOUBT)
    db.run(
        "DELETE FROM temp.claims WHERE doubted AND EXISTS (SELECT 1 FROM temp.claims AS c"
        " WHERE c.block = claims.block AND c.hash = claims.hash AND NOT c.doubted)"
    )


def _place_blocks(db: Database) -> None:
    """Create rows for blocks that are not doubtful, with their location in the latest epoch."""
    db.run(
        "INSERT INTO blocks SELECT block, 0, plain_bytes, hash, pack, pack_offset, stored_bytes"
        " FROM temp.claims WHERE NOT doubted ORDER BY epoch DESC, pack ON CONFLICT DO NOTHING"
    )


def _place_map(db: Database) -> None:
    db.run(
        "INSERT INTO block_map SELECT ino, block_index, max(block) FROM temp.claims"
        " WHERE NOT doubted AND ino > ? GROUP BY ino, block_index ON CONFLICT DO NOTHING",
        (ROOT_INO,),
    )


def _place_apart(db: Database, next_ino: int, next_block: int) -> None:
    """Create rows for doubtful blocks, with new numbers, in a new inode for each file and epoch."""
    db.run(
        "CREATE TEMP TABLE apart AS SELECT c.*,"
        " dense_rank() OVER (ORDER BY c.epoch, c.ino)"
        " + max((SELECT max(ino) FROM temp.claims), ?2 - 1) AS new_ino,"
        " row_number() OVER (ORDER BY c.epoch, c.ino, c.block_index)"
        " + max((SELECT max(block) FROM temp.claims), ?3 - 1) AS new_block"
        " FROM (SELECT epoch, ino, block_index, max(block), plain_bytes, hash, pack, pack_offset,"
        " stored_bytes FROM temp.claims WHERE doubted AND ino > ?1"
        " GROUP BY epoch, ino, block_index) AS c",
        (ROOT_INO, next_ino, next_block),
    )
    db.run(
        "INSERT INTO blocks SELECT new_block, 0, plain_bytes, hash, pack, pack_offset,"
        " stored_bytes FROM temp.apart"
    )
    db.run("INSERT INTO block_map SELECT new_ino, block_index, new_block FROM temp.apart")
    db.run(
        "CREATE TEMP TABLE apart_files (new_ino INTEGER PRIMARY KEY, ino INTEGER, epoch INTEGER)"
    )
    db.run("INSERT INTO temp.apart_files SELECT DISTINCT new_ino, ino, epoch FROM temp.apart")


def _home(db: Database, now_ns: int) -> Ino | None:
    """Return the directory lost+found; create it if missing. None if a file has that name."""
    found = dentries.find(db, ROOT_INO, LOST_FOUND)
    if found is not None:
        row = inodes.find(db, found)
        return found if row is not None and stat.S_ISDIR(row.mode) else None
    root = inodes.get(db, ROOT_INO)
    home = inodes.create(db, _DIRECTORY_MODE, root.uid, root.gid, ROOT_INO, now_ns, nlink=2).ino
    dentries.add(db, ROOT_INO, LOST_FOUND, home)
    inodes.change_directory(db, ROOT_INO, now_ns, entries=1, subdirectories=1)
    return home


def _add_name(db: Database, home: Ino, wanted: bytes, ino: Ino) -> None:
    """Name a file in lost+found, which an image or a user may have given the same names.

    If all similar names are in use, fsck later names the file.
    """
    for name in alternatives(wanted):
        with contextlib.suppress(EntryExistsError):
            dentries.add(db, home, name, ino)
            return


def _make_files(db: Database, block_bytes: int, now_ns: int, *, apart_only: bool) -> int:
    if apart_only and db.one("SELECT 1 FROM temp.apart_files LIMIT 1") is None:
        return 0
    home = _home(db, now_ns)
    if home is None:
        return 0  # a file is named lost+found; fsck creates the inodes later, in lost+found~1
    root = inodes.get(db, ROOT_INO)
    db.run(
        "INSERT INTO inodes SELECT m.ino, ?1, 1, ?2, ?3, max(m.block_index * ?4 + b.plain_bytes),"
        " count(*), ?5, 0, 0, 0, ?6, 0, 0 FROM block_map AS m JOIN blocks AS b ON b.block = m.block"
        " WHERE NOT ?7 OR m.ino IN (SELECT new_ino FROM temp.apart_files) GROUP BY m.ino",
        (_FILE_MODE, root.uid, root.gid, block_bytes, now_ns, home, apart_only),
    )
    totals = db.one(
        f"SELECT count(*), {_FILE_BYTES} FROM inodes WHERE parent = ?1 AND ino <> ?1 AND mode = ?2"
        " AND (NOT ?3 OR ino IN (SELECT new_ino FROM temp.apart_files))",
        (home, _FILE_MODE, apart_only),
    )
    assert totals is not None, "an aggregate query returns one row"
    files, file_bytes = totals
    db.counters.inodes += files
    db.counters.file_bytes += file_bytes
    after = 0
    while rows := db.all(
        "SELECT i.ino, a.ino, a.epoch FROM inodes AS i"
        " LEFT JOIN temp.apart_files AS a ON a.new_ino = i.ino"
        " WHERE i.ino > ?1 AND i.mode = ?2 AND (NOT ?4 OR a.ino IS NOT NULL)"
        " ORDER BY i.ino LIMIT ?3",
        (after, _FILE_MODE, _NAMES_AT_ONCE, apart_only),
    ):
        for ino, old_ino, epoch in rows:
            name = b"#%d" % ino if epoch is None else b"#%d-%d" % (old_ino, epoch)
            _add_name(db, home, name, Ino(ino))
        after = rows[-1][0]
    inodes.change_directory(db, home, now_ns, entries=files)
    return int(files)
