"""Tests of rebuilding the rows of files and blocks from the indexes of packs alone."""

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.lost_names import LOST_FOUND
from s3fs_meta.meta.offline import rebuild as rebuilt_rows
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import Ino
from tests.meta.conftest import MakeDatabase
from tests.meta.offline.pack_entries import entry, key


def files_of(db: Database) -> dict[bytes, dict[int, bytes]]:
    """Return the content hashes of each file, by file name and block index."""
    rows = db.all(
        "SELECT d.name, m.block_index, b.hash FROM dentries AS d"
        " JOIN block_map AS m ON m.ino = d.ino JOIN blocks AS b ON b.block = m.block"
    )
    found: dict[bytes, dict[int, bytes]] = {}
    for name, index, content_hash in rows:
        found.setdefault(name, {})[index] = content_hash
    return found


def test_rebuilt_file_ends_at_the_end_of_its_last_block(make_database: MakeDatabase) -> None:
    """In a rebuilt file, missing blocks before the last known block become holes."""
    db = make_database()
    rebuilt_rows.add_pack(
        db, key(1), 5000, [entry(1, 7, 0, 100), entry(2, 7, 3, 50), entry(3, 9, 0)]
    )

    assert rebuilt_rows.finish(db, 100, 5) == 2

    assert inodes.get(db, Ino(7)).size_bytes == 350
    assert inodes.get(db, Ino(7)).mapped_blocks == 2
    home = dentries.find(db, Ino(1), LOST_FOUND)
    assert home is not None
    assert dentries.find(db, home, b"#9") == 9
    assert (db.counters.inodes, db.counters.dentries, db.counters.file_bytes) == (4, 3, 360)
    assert (db.counters.next_ino, db.counters.next_block, db.counters.next_pack) == (11, 4, 2)


def test_rebuilt_file_has_the_newest_block_at_each_index(make_database: MakeDatabase) -> None:
    """If two blocks have the same index in a file, the block with the higher number is newer."""
    db = make_database()
    rebuilt_rows.add_pack(db, key(1), 5000, [entry(8, 7, 0)])
    rebuilt_rows.add_pack(db, key(2), 5000, [entry(2, 7, 0)])
    rebuilt_rows.finish(db, 100, 5)
    assert db.all("SELECT block, refs FROM blocks") == [(8, 1)]
    assert db.all("SELECT pack, live_bytes, died_txg IS NULL FROM packs ORDER BY pack") == [
        (1, 20, 1),
        (2, 0, 0),
    ]


def test_block_that_is_in_two_packs_is_rebuilt_once(make_database: MakeDatabase) -> None:
    """After a compaction, the same block may be in an old pack and in a new pack."""
    db = make_database()
    rebuilt_rows.add_pack(db, key(1), 5000, [entry(8, 7, 0)])
    rebuilt_rows.add_pack(db, key(2), 5000, [entry(8, 7, 0)])
    assert rebuilt_rows.finish(db, 100, 5) == 1
    assert db.all("SELECT block, pack FROM blocks") == [(8, 1)]


def test_blocks_of_a_fenced_host_are_rebuilt_into_separate_files(
    make_database: MakeDatabase,
) -> None:
    """A fenced host and its successor may have used the same inode numbers."""
    db = make_database()
    mine, theirs, shared = b"m" * 32, b"t" * 32, b"s" * 32
    rebuilt_rows.add_pack(db, key(1), 5000, [entry(1, 5, 0)._replace(hash=shared)])
    overtaken = [entry(2, 7, 0), entry(3, 8, 0), entry(4, 7, 1), entry(5, 5, 1)]
    rebuilt_rows.add_pack(db, key(2), 5000, [one._replace(hash=mine) for one in overtaken[:2]])
    rebuilt_rows.add_pack(db, key(3), 5000, [one._replace(hash=mine) for one in overtaken[2:]])
    later = [entry(2, 7, 0), entry(3, 7, 2)]
    rebuilt_rows.add_pack(db, key(4, epoch=2), 5000, [one._replace(hash=theirs) for one in later])

    assert rebuilt_rows.finish(db, 100, 5) == 5

    assert files_of(db) == {
        b"#5": {0: shared},
        b"#7": {0: theirs, 2: theirs},
        b"#5-1": {1: mine},
        b"#7-1": {0: mine, 1: mine},
        b"#8-1": {0: mine},
    }
    numbers = [row[0] for row in db.all("SELECT block FROM blocks")]
    assert max(numbers) < db.counters.next_block
    assert db.one("SELECT count(*) FROM blocks WHERE refs <> 1") == (0,)


def test_block_number_that_is_used_again_after_a_kill_damages_no_file(
    make_database: MakeDatabase,
) -> None:
    """After a kill, the next epoch may reuse the block numbers of a pack that has no row yet."""
    db = make_database()
    rebuilt_rows.add_pack(db, key(1), 5000, [entry(6, 7, 1), entry(7, 8, 0)])
    rebuilt_rows.add_pack(db, key(2), 5000, [entry(5, 7, 0), entry(4, 7, 2)])
    changed = entry(5, 7, 0)._replace(hash=b"c" * 32)
    rebuilt_rows.add_pack(db, key(3, epoch=2), 5000, [changed, entry(4, 7, 2)])

    rebuilt_rows.finish(db, 100, 5)

    assert files_of(db) == {
        b"#7": {0: b"c" * 32, 1: bytes([6]) * 32, 2: bytes([4]) * 32},
        b"#7-1": {0: bytes([5]) * 32},
        b"#8": {0: bytes([7]) * 32},
    }
