"""Rows made of nothing but the indexes of packs, when all metadata is gone.

Owns: what becomes of each entry, and the inodes and names that content gets.
Does not know: packs as objects, the store.
Keeps: the result passes fsck. Of several blocks for one place of a file the newest counts: it has
the highest number. Content that several files shared comes back in the first of them only.
Tasks: everything blocks; in a thread, on a database that nobody else uses.
"""

import stat
from collections.abc import Sequence
from typing import Final

from s3fs_meta.codec.pack import PackEntry
from s3fs_meta.meta import dentries, inodes, packs, replica
from s3fs_meta.meta.database import Database
from s3fs_meta.model import ROOT_INO, Ino, ObjectKey

LOST_FOUND: Final = b"lost+found"
_DIRECTORY_MODE: Final = stat.S_IFDIR | 0o700
_FILE_MODE: Final = stat.S_IFREG | 0o600
_NAMES_AT_ONCE: Final = 1000


def add_pack(db: Database, key: ObjectKey, object_bytes: int, entries: Sequence[PackEntry]) -> None:
    """Take over one pack; those of later epochs come first.

    A host that was overtaken may have stored blocks under numbers that the next one gave to
    others: then those of the next one count.
    """
    db.begin()
    pack = packs.create(db, key, object_bytes)
    packs.stored(db, pack)
    db.run_many(
        "INSERT INTO blocks VALUES (?, 0, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [
            (one.block, one.plain_bytes, one.hash, pack, one.offset, one.stored_bytes)
            for one in entries
        ],
    )
    db.run_many(
        "INSERT INTO block_map SELECT ?1, ?2, ?3"
        " WHERE EXISTS (SELECT 1 FROM blocks WHERE block = ?3 AND hash = ?4)"
        " ON CONFLICT DO UPDATE SET block = max(block, excluded.block)",
        [(one.ino, one.block_index, one.block, one.hash) for one in entries if one.ino > ROOT_INO],
    )
    db.commit()


def finish(db: Database, block_bytes: int, now_ns: int) -> int:
    """Give every file an inode and a name; return how many there are."""
    db.begin()
    counters = db.counters
    row = db.one("SELECT coalesce(max(ino), 0) FROM block_map")
    found = db.one("SELECT coalesce(max(block), 0) FROM blocks")
    assert row is not None, "an aggregate has a row"
    assert found is not None, "an aggregate has a row"
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
    files = _make_files(db, block_bytes, now_ns)
    replica.settle(db)
    db.commit()
    return files


def _make_files(db: Database, block_bytes: int, now_ns: int) -> int:
    root = inodes.get(db, ROOT_INO)
    home = inodes.create(db, _DIRECTORY_MODE, root.uid, root.gid, ROOT_INO, now_ns, nlink=2).ino
    dentries.add(db, ROOT_INO, LOST_FOUND, home)
    inodes.change_directory(db, ROOT_INO, now_ns, entries=1, subdirectories=1)
    db.run(
        "INSERT INTO inodes SELECT m.ino, ?1, 1, ?2, ?3, max(m.block_index * ?4 + b.plain_bytes),"
        " count(*), ?5, 0, 0, 0, ?6, 0 FROM block_map AS m JOIN blocks AS b ON b.block = m.block"
        " GROUP BY m.ino",
        (_FILE_MODE, root.uid, root.gid, block_bytes, now_ns, home),
    )
    totals = db.one(
        "SELECT count(*), coalesce(sum(size_bytes), 0) FROM inodes WHERE parent = ?1"
        " AND ino <> ?1 AND mode = ?2",
        (home, _FILE_MODE),
    )
    assert totals is not None, "an aggregate has a row"
    files, file_bytes = totals
    db.counters.inodes += files
    db.counters.file_bytes += file_bytes
    after = 0
    while rows := db.all(
        "SELECT ino FROM inodes WHERE ino > ? AND mode = ? ORDER BY ino LIMIT ?",
        (after, _FILE_MODE, _NAMES_AT_ONCE),
    ):
        for (ino,) in rows:
            dentries.add(db, home, b"#%d" % ino, Ino(ino))
        after = rows[-1][0]
    inodes.change_directory(db, home, now_ns, entries=files)
    return int(files)
