"""The copy of the database that is uploaded as an image."""

from pathlib import Path
from typing import NamedTuple

import apsw
import pytest

from s3fs_meta.errors import MetadataError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.db.schema import LOCAL_TABLES
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.meta.placements import Placed
from s3fs_meta.meta.tables import block_map, blocks, inodes, packs
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex, ObjectKey, PackId
from tests.meta.conftest import MakeDatabase

KEY = ObjectKey("pack/00/1-a")


class Pack(NamedTuple):
    """A pack that is stored after the copy of the database was made."""

    pack: PackId
    object_key: ObjectKey
    object_bytes: int


def copy_with_dirty_block(make_database: MakeDatabase, copy: Path) -> tuple[Database, BlockId]:
    """Copy a database with one dirty block; return the database and the block."""
    db = make_database()
    db.begin()
    made = inodes.create(db, 0o100644, 0, 0, ROOT_INO, 5, size_bytes=100)
    block = db.counters.take_block()
    blocks.create_dirty(db, block, made.ino, BlockIndex(0), 100)
    block_map.set(db, made.ino, BlockIndex(0), block)
    db.commit()
    snapshot = db.open_snapshot()
    snapshot.copy_to(copy)
    snapshot.close()
    return db, block


def test_image_contains_locations_that_were_recorded_after_its_copy(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    """Packs stored after the copy of the database get their rows in the copy."""
    copy = tmp_path / "copy.db"
    db, block = copy_with_dirty_block(make_database, copy)
    db.begin()
    db.counters.take_pack()
    pack = packs.create(db, KEY, 500)
    image_copy.finish(copy, [Pack(pack, KEY, 500)], [Placed(block, b"h" * 32, pack, 7, 60)])
    finished = Database.open(copy, Pragmas())
    assert blocks.get(finished, block) == (block, 1, 100, b"h" * 32, pack, 7, 60)
    assert packs.get(finished, pack).live_bytes == 60
    assert finished.counters.stored_bytes == 500
    assert finished.counters.next_pack == pack + 1
    finished.close()


def test_image_that_refers_to_a_block_without_a_pack_is_refused(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    """An image must not refer to a block that is not in the bucket."""
    copy = tmp_path / "copy.db"
    _, block = copy_with_dirty_block(make_database, copy)
    with pytest.raises(MetadataError, match=f"block {block} of the copied database is in no pack"):
        image_copy.finish(copy, [], [])


def test_lost_block_has_no_location_in_an_image(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    """A lost block has a row without a location, so that reads of the block fail."""
    copy = tmp_path / "copy.db"
    db, block = copy_with_dirty_block(make_database, copy)
    with pytest.raises(MetadataError):
        image_copy.finish(copy, [], [], {BlockId(block + 1)})
    copy.unlink()
    db.begin()
    other = db.counters.take_block()
    blocks.create_dirty(db, other, ROOT_INO, BlockIndex(0), 100)
    blocks.drop_ref(db, other)
    db.commit()
    snapshot = db.open_snapshot()
    snapshot.copy_to(copy)
    snapshot.close()

    image_copy.finish(copy, [], [], {block, other})

    finished = Database.open(copy, Pragmas())
    assert finished.all("SELECT block FROM blocks") == [(block,)]
    assert finished.counters.block_bytes == 100
    finished.close()


def test_pack_without_live_blocks_is_recorded_as_dead_in_an_image(
    db: Database, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    block = db.counters.take_block()
    blocks.create_dirty(db, block, ROOT_INO, BlockIndex(0), 100)
    blocks.drop_ref(db, block)  # The file no longer refers to the sealed block.
    db.commit()
    snapshot = db.open_snapshot()
    snapshot.copy_to(copy)
    snapshot.close()
    pack = PackId(1)

    image_copy.finish(copy, [Pack(pack, KEY, 500)], [Placed(block, b"h" * 32, pack, 7, 60)])

    finished = Database.open(copy, Pragmas())
    assert blocks.find(finished, block) is None
    assert packs.get(finished, pack).died_txg == finished.counters.txg
    finished.close()


def test_image_does_not_contain_local_tables(make_database: MakeDatabase, tmp_path: Path) -> None:
    """The image omits local tables; a restore creates them as empty tables."""
    copy = tmp_path / "copy.db"
    db = make_database()
    snapshot = db.open_snapshot()
    snapshot.copy_to(copy)
    snapshot.close()
    image_copy.finish(copy, [], [])
    plain = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
    names = {row[0] for row in plain.execute("SELECT name FROM sqlite_schema").fetchall()}
    plain.close()
    assert "inodes" in names
    assert names.isdisjoint(LOCAL_TABLES)
    restored = Database.open(copy, Pragmas())
    assert [name for name in LOCAL_TABLES if restored.all(f"SELECT * FROM {name}")] == []
    restored.close()


def test_image_manifest_contains_the_properties_of_the_image_copy(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    db = make_database(page_size=8192)
    snapshot = db.open_snapshot()
    snapshot.copy_to(copy)
    snapshot.close()
    image_copy.finish(copy, [], [])
    facts = image_copy.describe(copy)
    assert facts == ("a-uuid", 2, 8192, copy.stat().st_size, 1, 0)


def test_two_images_of_an_unchanged_database_are_identical(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    """Copies of an unchanged database are identical, so their images can share pieces."""
    db = make_database()
    contents = []
    for name in ("one.db", "two.db"):
        snapshot = db.open_snapshot()
        snapshot.copy_to(tmp_path / name)
        snapshot.close()
        image_copy.finish(tmp_path / name, [], [])
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]


def test_image_copy_is_removed_with_its_journal_and_wal(tmp_path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        (tmp_path / f"copy.db{suffix}").touch()
    image_copy.remove(tmp_path / "copy.db")
    image_copy.remove(tmp_path / "copy.db")
    assert list(tmp_path.iterdir()) == []
