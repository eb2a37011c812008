"""Tests of index entries that rows of an image or the chain supply for an unreadable index."""

import pytest

from s3fs_meta.limits import PACK_BLOCKS_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.offline import lost_indexes
from s3fs_meta.meta.offline import rebuild as rebuilt_rows
from tests.meta.conftest import MakeDatabase
from tests.meta.offline.pack_entries import entry, key

LOST, OTHER = key(1), key(2)


@pytest.fixture
def db(make_database: MakeDatabase) -> Database:
    """Return a database with the adopted rows of two packs of an image, with two blocks each."""
    db = make_database()
    db.begin()
    db.run("CREATE TEMP TABLE image_packs (pack INTEGER PRIMARY KEY, object_key BLOB)")
    db.run(
        "CREATE TEMP TABLE image_blocks (block INTEGER PRIMARY KEY, plain_bytes INTEGER,"
        " hash BLOB, pack INTEGER, pack_offset INTEGER, stored_bytes INTEGER)"
    )
    for pack, name in ((1, LOST), (2, OTHER)):
        db.run("INSERT INTO temp.image_packs VALUES (?, ?)", (pack, name.encode()))
    for block, pack in ((7, 1), (8, 1), (9, 2), (10, 2)):
        one = entry(block, 5, block)
        row = (block, one.plain_bytes, one.hash, pack, one.offset, one.stored_bytes)
        db.run("INSERT INTO temp.image_blocks VALUES (?, ?, ?, ?, ?, ?)", row)
        db.run("INSERT INTO block_map VALUES (5, ?, ?)", (block, block))
    db.commit()
    return db


def test_entries_of_an_unreadable_index_come_from_the_rows_of_its_blocks(db: Database) -> None:
    lost_indexes.collect(db, [LOST])

    assert lost_indexes.entries_of(db, LOST) == [entry(7, 5, 7), entry(8, 5, 8)]
    assert lost_indexes.entries_of(db, OTHER) == []


def test_block_in_the_index_of_a_readable_pack_is_not_listed(db: Database) -> None:
    rebuilt_rows.add_pack(db, OTHER, 1000, [entry(8, 6, 0)])

    lost_indexes.collect(db, [LOST])

    assert lost_indexes.entries_of(db, LOST) == [entry(7, 5, 7)]


@pytest.mark.parametrize("change", ["pack_offset = -1", "pack_offset = NULL", "stored_bytes = 0"])
def test_block_with_an_impossible_location_is_not_listed(db: Database, change: str) -> None:
    db.begin()
    db.run(f"UPDATE temp.image_blocks SET {change} WHERE block = 7")
    db.commit()

    lost_indexes.collect(db, [LOST])

    assert lost_indexes.entries_of(db, LOST) == [entry(8, 5, 8)]


def test_number_of_entries_of_an_unreadable_pack_index_is_bounded(db: Database) -> None:
    """Forged rows of a plain filesystem could list any number of blocks in one pack."""
    db.begin()
    for block in range(100, 100 + PACK_BLOCKS_MAX):
        row = (block, 10, b"%032d" % block, 1, block, 20)
        db.run("INSERT INTO temp.image_blocks VALUES (?, ?, ?, ?, ?, ?)", row)
        db.run("INSERT INTO block_map VALUES (6, ?, ?)", (block, block))
    db.commit()

    lost_indexes.collect(db, [LOST])

    assert len(lost_indexes.entries_of(db, LOST)) == PACK_BLOCKS_MAX
