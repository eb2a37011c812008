"""A database that is rebuilt from rows of a damaged image and from indexes of packs."""

from pathlib import Path

import pytest

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.lost_names import LOST_FOUND
from s3fs_meta.meta.offline import image_rows
from s3fs_meta.meta.offline import rebuild as rebuilt_rows
from s3fs_meta.meta.offline.salvage import DamagedDatabase
from s3fs_meta.meta.tables import block_map, dentries, inodes
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex, Ino
from tests.meta.conftest import MakeDatabase
from tests.meta.offline.pack_entries import entry, key

SIZE = 100


@pytest.fixture
def image(make_database: MakeDatabase) -> Database:
    """Return a database in which files 2 and 3 share block 7, and file 2 has block 8."""
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
    """Copy the rows of an image into a new database; return the result of the copy."""
    path = tmp_path / "damaged.db"
    image.all("VACUUM INTO ?", (str(path),))
    damaged = DamagedDatabase(path, "image/x")
    try:
        return image_rows.adopt(db, damaged)
    finally:
        damaged.close()


def places(db: Database) -> dict[tuple[int, int], bytes]:
    """Return the content hash of each block by inode number and block index."""
    rows = db.all(
        "SELECT m.ino, m.block_index, b.hash FROM block_map AS m JOIN blocks AS b USING (block)"
    )
    return {(ino, index): content_hash for ino, index, content_hash in rows}


def test_rebuilt_files_contain_no_blocks_newer_than_the_image(
    image: Database, make_database: MakeDatabase, tmp_path: Path
) -> None:
    """Blocks newer than the image's rows are collected in a separate file in lost+found."""
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
    home = dentries.find(db, ROOT_INO, LOST_FOUND)
    assert home is not None
    assert dentries.find(db, home, b"#3-1") == newer
    assert inodes.get(db, Ino(3)).uid == 5


def test_rebuilt_file_has_no_block_that_differs_from_the_image(
    image: Database, make_database: MakeDatabase, tmp_path: Path
) -> None:
    """If a fenced host reused a block number, its content is collected in a separate file."""
    db = make_database("new.db")
    rows = adopted(image, db, tmp_path)
    other = entry(8, 2, 1, SIZE)._replace(hash=b"o" * 32)
    rebuilt_rows.add_pack(db, key(1), 5000, [entry(7, 2, 0, SIZE), other])

    rebuilt_rows.finish(db, SIZE, 5, (), rows)

    found = places(db)
    assert (2, 1) not in found
    assert b"o" * 32 in found.values()


def test_lost_rows_of_the_block_map_are_rebuilt_from_packs(
    image: Database, make_database: MakeDatabase, tmp_path: Path
) -> None:
    """The size in the inode row limits how many blocks are taken from packs."""
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


def test_image_rows_with_the_largest_possible_numbers_are_skipped(
    image: Database, make_database: MakeDatabase, tmp_path: Path
) -> None:
    """Rows with the largest possible numbers are skipped, because no numbers would be left."""
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
