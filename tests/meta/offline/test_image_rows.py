"""Rows of a damaged image beside what the indexes of packs say."""

from collections.abc import Callable
from pathlib import Path

import pytest

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.offline import image_rows
from s3fs_meta.meta.offline import rebuild as rebuilt_rows
from s3fs_meta.meta.offline.salvage import DamagedDatabase
from s3fs_meta.meta.tables import block_map, dentries, inodes
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex, Ino
from tests.meta.offline.pack_entries import entry, key

MakeDatabase = Callable[..., Database]
SIZE = 100


@pytest.fixture
def image(make_database: MakeDatabase) -> Database:
    """Return a database with the files 2 and 3, which share block 7; block 8 is of file 2."""
    db = make_database("image.db")
    db.begin()
    for name in (b"one", b"two"):
        ino = inodes.create(db, 0o100640, 5, 6, ROOT_INO, 9, size_bytes=200).ino
        dentries.add(db, ROOT_INO, name, ino)
        inodes.change_directory(db, ROOT_INO, 9, entries=1)
    for block, refs in ((7, 2), (8, 1)):
        db.run(
            "INSERT INTO blocks VALUES (?, ?, ?, ?, 1, 0, 20)",
            (block, refs, SIZE, bytes([block]) * 32),
        )
    for file, index, block in ((2, 0, 7), (2, 1, 8), (3, 0, 7)):
        block_map.set(db, Ino(file), BlockIndex(index), BlockId(block))
        inodes.add_mapped_blocks(db, Ino(file), 1)
    db.counters.next_block = BlockId(9)
    db.commit()
    return db


def adopted(image: Database, db: Database, tmp_path: Path) -> image_rows.ImageRows:
    """Take over an image."""
    path = tmp_path / "damaged.db"
    image.all("VACUUM INTO ?", (str(path),))
    damaged = DamagedDatabase(path, "image/x")
    try:
        return image_rows.adopt(db, damaged)
    finally:
        damaged.close()


def places(db: Database) -> dict[tuple[int, int], bytes]:
    """Return the hash at each place."""
    rows = db.all(
        "SELECT m.ino, m.block_index, b.hash FROM block_map AS m JOIN blocks AS b USING (block)"
    )
    return {(ino, index): content_hash for ino, index, content_hash in rows}


def test_shared_content_is_found_and_newer_content_put_aside(
    image: Database, make_database: MakeDatabase, tmp_path: Path
) -> None:
    """Files are as the image has them: with what they share, without what came later."""
    db = make_database("new.db")
    rows = adopted(image, db, tmp_path)
    assert tuple(rows) == (9, True, ())
    rebuilt_rows.add_pack(
        db,
        key(1),
        5000,
        [entry(7, 2, 0, SIZE), entry(8, 2, 1, SIZE), entry(4, 3, 1, SIZE), entry(12, 3, 0, SIZE)],
    )

    rebuilt_rows.finish(db, SIZE, 5, (), rows)

    newer = Ino(max(ino for ino, _index in places(db)))
    assert newer > 3
    assert places(db) == {
        (2, 0): bytes([7]) * 32,
        (2, 1): bytes([8]) * 32,
        (3, 0): bytes([7]) * 32,
        (newer, 0): bytes([12]) * 32,
    }
    home = dentries.find(db, ROOT_INO, image_rows.LOST_FOUND)
    assert home is not None
    assert dentries.find(db, home, b"#3-1") == newer
    assert inodes.get(db, Ino(3)).uid == 5


def test_block_is_only_where_a_pack_has_its_content(
    image: Database, make_database: MakeDatabase, tmp_path: Path
) -> None:
    """Another host that was overtaken had given its number to other content."""
    db = make_database("new.db")
    rows = adopted(image, db, tmp_path)
    other = entry(8, 2, 1, SIZE)._replace(hash=b"o" * 32)
    rebuilt_rows.add_pack(db, key(1), 5000, [entry(7, 2, 0, SIZE), other])

    rebuilt_rows.finish(db, SIZE, 5, (), rows)

    found = places(db)
    assert (2, 1) not in found
    assert b"o" * 32 in found.values()


def test_packs_fill_in_where_rows_of_the_map_are_lost(
    image: Database, make_database: MakeDatabase, tmp_path: Path
) -> None:
    """The inode says how many there were."""
    image.begin()
    image.run("DELETE FROM block_map WHERE ino = 2 AND block_index = 1")
    image.commit()
    db = make_database("new.db")
    rows = adopted(image, db, tmp_path)
    entries = [entry(7, 2, 0, SIZE), entry(8, 2, 1, SIZE), entry(8, 2, 4, SIZE)]
    rebuilt_rows.add_pack(db, key(1), 5000, entries[:2])
    rebuilt_rows.add_pack(db, key(2), 5000, entries[2:])

    rebuilt_rows.finish(db, SIZE, 5, (), rows)

    assert set(places(db)) == {(2, 0), (2, 1), (3, 0)}


def test_numbers_that_would_end_the_counters_are_left_out(
    image: Database, make_database: MakeDatabase, tmp_path: Path
) -> None:
    """A hostile image would end the numbers of inodes and blocks."""
    image.begin()
    image.run("INSERT INTO block_map VALUES (?, 0, ?)", ((1 << 63) - 1, (1 << 63) - 1))
    image.run("INSERT INTO blocks VALUES (?, 1, 1, x'00', 1, 0, 20)", ((1 << 63) - 1,))
    image.run("INSERT INTO dentries VALUES (1, 5, x'61', ?)", ((1 << 63) - 1,))
    image.run("INSERT INTO xattrs VALUES (?, x'61', x'62')", ((1 << 63) - 1,))
    image.commit()
    db = make_database("new.db")
    assert adopted(image, db, tmp_path).next_block == 9
    assert db.counters.next_ino < 100
    assert db.one("SELECT (SELECT max(ino) FROM dentries), (SELECT count(*) FROM xattrs)") == (3, 0)
