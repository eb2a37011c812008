"""Placements: results of block uploads, and their application to the rows."""

import pytest

from s3fs_meta.errors import MetadataError
from s3fs_meta.meta import placements
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.placements import Duplicate, Placed, Placement, Zero
from s3fs_meta.meta.tables import block_map, blocks, inodes, packs
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex, Ino, ObjectKey, PackId

HASH = b"h" * 32
FIRST = BlockIndex(0)


@pytest.fixture
def ino(db: Database) -> Ino:
    """Return the inode number of an empty file."""
    return inodes.create(db, 0o100644, 0, 0, ROOT_INO, 5).ino


@pytest.fixture
def pack(db: Database) -> PackId:
    """Return the number of a pack that is stored in the bucket."""
    pack = packs.create(db, ObjectKey("pack/00/1-a"), 1000)
    packs.stored(db, pack)
    return pack


def write_block(db: Database, ino: Ino, index: int = 0) -> BlockId:
    """Create a dirty block of 100 bytes and map it, as a write does."""
    block = db.counters.take_block()
    blocks.create_dirty(db, block, ino, BlockIndex(index), 100)
    block_map.set(db, ino, BlockIndex(index), block)
    inodes.add_mapped_blocks(db, ino, 1)
    return block


def let_go(db: Database, ino: Ino, index: int = 0) -> None:
    """Punch a hole, as a truncation may do during the upload of a block."""
    block = block_map.remove(db, ino, BlockIndex(index))
    assert block is not None
    blocks.drop_ref(db, block)
    inodes.add_mapped_blocks(db, ino, -1)


def place(db: Database, block: BlockId, pack: PackId, content: bytes = HASH) -> list[BlockId]:
    """Apply a placement that puts a block into a pack."""
    return placements.apply(db, [Placed(block, content, pack, 0, 60)])


def duplicate(block: BlockId, ino: Ino, of: BlockId, pack: PackId, index: int = 0) -> Duplicate:
    """Return a placement that declares a block a duplicate of another block."""
    return Duplicate(Placed(block, HASH, pack, 0, 60), ino, BlockIndex(index), of)


def check_counts(db: Database) -> None:
    """Compare the stored totals with totals over all rows."""
    assert (
        db.all(
            "SELECT b.block FROM blocks b WHERE refs <>"
            " (SELECT count(*) FROM block_map m WHERE m.block = b.block)"
        )
        == []
    )
    assert (
        db.all(
            "SELECT p.pack FROM packs p WHERE live_bytes <>"
            " (SELECT coalesce(sum(stored_bytes), 0) FROM blocks b WHERE b.pack = p.pack)"
        )
        == []
    )
    assert (
        db.inodes.all(
            "SELECT ino FROM inodes i WHERE mapped_blocks <>"
            " (SELECT count(*) FROM block_map m WHERE m.ino = i.ino)"
        )
        == []
    )
    row = db.one("SELECT coalesce(sum(plain_bytes), 0) FROM blocks")
    assert row == (db.counters.block_bytes,)


def test_placement_records_the_location_of_an_uploaded_block(
    db: Database, ino: Ino, pack: PackId
) -> None:
    block = write_block(db, ino)
    assert place(db, block, pack) == []
    assert blocks.get(db, block) == (block, 1, 100, HASH, pack, 0, 60)
    check_counts(db)


def test_uploaded_block_of_zeros_becomes_a_hole(db: Database, ino: Ino) -> None:
    """The rows of a block of zeros are deleted, and the block count of its inode is reduced."""
    block = write_block(db, ino)
    assert placements.apply(db, [Zero(block, ino, FIRST)]) == [block]
    assert block_map.find(db, ino, FIRST) is None
    assert inodes.get(db, ino).mapped_blocks == 0
    assert blocks.find(db, block) is None
    check_counts(db)


def test_duplicate_block_is_replaced_by_an_older_equal_block(
    db: Database, ino: Ino, pack: PackId
) -> None:
    """If two blocks are equal, the file refers to the older block, and the newer is deleted."""
    original, double = write_block(db, ino, 0), write_block(db, ino, 1)
    place(db, original, pack)
    assert placements.apply(db, [duplicate(double, ino, original, pack, 1)]) == [double]
    assert block_map.find(db, ino, BlockIndex(1)) == original
    assert blocks.get(db, original).refs == 2
    check_counts(db)


def test_duplicate_of_an_unknown_older_block_gets_the_older_location(
    db: Database, ino: Ino, pack: PackId
) -> None:
    """The older, equal block may be unknown if the database was restored from a backup."""
    block = write_block(db, ino)
    assert placements.apply(db, [duplicate(block, ino, BlockId(99), pack)]) == []
    assert blocks.get(db, block) == (block, 1, 100, HASH, pack, 0, 60)
    check_counts(db)


def test_placement_of_an_unreferenced_block_deletes_its_rows(
    db: Database, ino: Ino, pack: PackId
) -> None:
    for make in (
        lambda block: Placed(block, HASH, pack, 0, 60),
        lambda block: Zero(block, ino, FIRST),
        lambda block: duplicate(block, ino, BlockId(99), pack),
    ):
        block = write_block(db, ino)
        let_go(db, ino)
        assert placements.apply(db, [make(block)]) == [block]
        assert blocks.find(db, block) is None
        check_counts(db)


def test_placement_of_an_overwritten_block_does_not_replace_the_new_block(
    db: Database, ino: Ino, pack: PackId
) -> None:
    """A block that was overwritten during its upload has no reference any more."""
    old = write_block(db, ino)
    let_go(db, ino)
    new = write_block(db, ino)
    gone = placements.apply(db, [Zero(old, ino, FIRST), Placed(new, HASH, pack, 0, 60)])
    assert gone == [old]
    assert block_map.find(db, ino, FIRST) == new
    check_counts(db)


def test_placement_of_a_deleted_block_is_skipped(db: Database, ino: Ino, pack: PackId) -> None:
    """A block without a row was deleted during its upload, so its placement is ignored."""
    ghost = BlockId(77)
    many: list[Placement] = [Placed(ghost, HASH, pack, 0, 60), Zero(ghost, ino, FIRST)]
    assert placements.apply(db, [*many, duplicate(ghost, ino, BlockId(78), pack)]) == []
    assert packs.get(db, pack).live_bytes == 0


def test_placement_at_the_wrong_index_is_refused(db: Database, ino: Ino, pack: PackId) -> None:
    """A placement is refused if the file has a different block at this index."""
    block = write_block(db, ino, 0)
    other = write_block(db, ino, 1)
    place(db, other, pack)
    for wrong in (Zero(block, ino, BlockIndex(5)), duplicate(block, ino, other, pack, 5)):
        with pytest.raises(MetadataError):
            placements.apply(db, [wrong])
    assert blocks.get(db, block).refs == 1
    check_counts(db)


def test_equal_blocks_of_concurrent_uploads_are_both_kept(
    db: Database, ino: Ino, pack: PackId
) -> None:
    """If equal blocks are uploaded concurrently, later duplicates refer to the older block."""
    first, second = write_block(db, ino, 0), write_block(db, ino, 1)
    place(db, second, pack)
    place(db, first, pack)
    assert [row.block for row in blocks.by_hash(db, HASH)] == [first, second]
    shared = blocks.intact(db, HASH)
    assert shared is not None
    assert shared.block == first
    check_counts(db)


def test_dropped_local_tables_leave_no_bytes_in_the_database_file(db: Database) -> None:
    """Rows of dropped local tables must not remain in an image, not even in free pages."""
    db.begin_local()
    secret = "only this host knows"
    for number in range(200):
        db.run("INSERT INTO local_state VALUES (?, ?)", (f"{number}", secret * 20))
    db.commit()
    db.begin()
    placements.drop_local_tables(db)
    db.commit()
    db.checkpoint()
    db.close()
    assert secret.encode() not in db.path.read_bytes()
