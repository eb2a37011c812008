"""Rows made of the indexes of packs."""

from collections.abc import Callable

from s3fs_meta.codec.pack import PackEntry
from s3fs_meta.meta import dentries, inodes, rebuilt
from s3fs_meta.meta.database import Database
from s3fs_meta.model import BlockId, BlockIndex, Ino, ObjectKey

MakeDatabase = Callable[..., Database]


def entry(block: int, ino: int, index: int, plain_bytes: int = 10) -> PackEntry:
    """Return one entry."""
    return PackEntry(
        block=BlockId(block),
        hash=bytes([block]) * 32,
        plain_bytes=plain_bytes,
        offset=block * 100,
        stored_bytes=20,
        ino=Ino(ino),
        block_index=BlockIndex(index),
    )


def key(number: int) -> ObjectKey:
    """Return the key of a pack."""
    return ObjectKey(f"pack/00/1-{number:032x}")


def test_files_reach_to_their_last_block(make_database: MakeDatabase) -> None:
    """With holes where nothing is left."""
    db = make_database()
    rebuilt.add_pack(db, key(1), 5000, [entry(1, 7, 0, 100), entry(2, 7, 3, 50), entry(3, 9, 0)])

    assert rebuilt.finish(db, 100, 5) == 2

    assert inodes.get(db, Ino(7)).size_bytes == 350
    assert inodes.get(db, Ino(7)).mapped_blocks == 2
    home = dentries.find(db, Ino(1), rebuilt.LOST_FOUND)
    assert home is not None
    assert dentries.find(db, home, b"#9") == 9
    assert (db.counters.inodes, db.counters.dentries, db.counters.file_bytes) == (4, 3, 360)
    assert (db.counters.next_ino, db.counters.next_block, db.counters.next_pack) == (11, 4, 2)


def test_newest_block_of_a_place_counts_in_any_order(make_database: MakeDatabase) -> None:
    """And a pack in which nothing is left alive is dead."""
    db = make_database()
    rebuilt.add_pack(db, key(1), 5000, [entry(8, 7, 0)])
    rebuilt.add_pack(db, key(2), 5000, [entry(2, 7, 0)])
    rebuilt.finish(db, 100, 5)
    assert db.all("SELECT block, refs FROM blocks") == [(8, 1)]
    assert db.all("SELECT pack, live_bytes, died_txg IS NULL FROM packs ORDER BY pack") == [
        (1, 20, 1),
        (2, 0, 0),
    ]


def test_block_in_two_packs_is_taken_once(make_database: MakeDatabase) -> None:
    """Compaction had moved it."""
    db = make_database()
    rebuilt.add_pack(db, key(1), 5000, [entry(8, 7, 0)])
    rebuilt.add_pack(db, key(2), 5000, [entry(8, 7, 0)])
    assert rebuilt.finish(db, 100, 5) == 1
    assert db.all("SELECT block, pack FROM blocks") == [(8, 1)]
