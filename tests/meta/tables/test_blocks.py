"""Tests of the table blocks: sizes, reference counts and locations of blocks."""

import pytest

from s3fs_meta.errors import MetadataError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import blocks, cached_blocks, damage_marks, packs
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import BlockId, BlockIndex, BlockRow, BlockState, Ino, ObjectKey, PackId

HASH = b"h" * 32


def make_block(db: Database, plain_bytes: int = 100) -> BlockId:
    """Create a dirty block with one reference."""
    block = db.counters.take_block()
    blocks.create_dirty(db, block, Ino(5), BlockIndex(6), plain_bytes)
    return block


def make_pack(db: Database, name: str = "a", object_bytes: int = 1000) -> PackId:
    """Create a pack that is stored in the bucket."""
    pack = packs.create(db, ObjectKey(f"pack/00/1-{name}"), object_bytes)
    packs.stored(db, pack)
    return pack


def test_new_block_is_dirty_and_in_no_pack(db: Database) -> None:
    """A new block is cached, and its bytes are counted."""
    block = make_block(db, 100)
    assert blocks.find(db, block) == BlockRow(block, 1, 100, None, None, None, None)
    assert cached_blocks.get(db, block) == (block, BlockState.DIRTY, 5, 6)
    assert db.counters.block_bytes == 100
    assert db.all("SELECT block FROM blocks") == [(block,)]


def test_dirty_block_can_grow_and_shrink(db: Database) -> None:
    """The total number of bytes follows the length of a dirty block."""
    block = make_block(db, 100)
    blocks.resize(db, block, 100, 500)
    assert (blocks.get(db, block).plain_bytes, db.counters.block_bytes) == (500, 500)
    blocks.resize(db, block, 500, 3)
    assert (blocks.get(db, block).plain_bytes, db.counters.block_bytes) == (3, 3)


def test_resize_of_a_block_with_a_wrong_length_is_refused(db: Database) -> None:
    """A resize with an outdated old length would make the total number of bytes wrong."""
    block = make_block(db, 100)
    with pytest.raises(MetadataError):
        blocks.resize(db, block, 99, 500)
    assert (blocks.get(db, block).plain_bytes, db.counters.block_bytes) == (100, 100)


def test_reference_count_of_a_block_equals_its_number_of_references(db: Database) -> None:
    """A block with reference count 0 keeps its row until its upload ends."""
    block = make_block(db)
    blocks.add_ref(db, block)
    assert blocks.drop_ref(db, block) == 1
    assert blocks.drop_ref(db, block) == 0
    assert blocks.find(db, block) is not None


def test_referenced_block_cannot_be_deleted(db: Database) -> None:
    """Deleting a referenced block is a programming error and raises AssertionError."""
    block = make_block(db)
    with pytest.raises(AssertionError):
        blocks.delete(db, block)


@pytest.mark.parametrize("refs", [0, -1])
def test_reference_count_of_a_block_cannot_become_negative(db: Database, refs: int) -> None:
    """In an unencrypted filesystem, forged rows may contain a wrong reference count."""
    block = make_block(db)
    db.run("UPDATE blocks SET refs = ?", (refs,))
    with pytest.raises(
        MetadataError, match=f"a file uses block 1, whose reference count is {refs}"
    ):
        blocks.drop_ref(db, block)


@pytest.mark.parametrize("use", [blocks.get, blocks.delete, blocks.drop_ref, blocks.add_ref])
def test_reference_to_a_block_without_a_row_is_reported_as_damage(
    db: Database, use: object
) -> None:
    """A reference to a block number that has no row is damage."""
    with pytest.raises(MetadataError, match="block 99 has no row"):
        use(db, BlockId(99))  # type: ignore[operator]


def test_block_with_a_location_adds_live_bytes_to_its_pack(db: Database) -> None:
    """The block can then be found by its content hash."""
    block, pack = make_block(db), make_pack(db)
    assert blocks.by_hash(db, HASH) == []
    blocks.set_location(db, blocks.get(db, block), HASH, pack, 17, 60)
    assert blocks.by_hash(db, HASH) == [BlockRow(block, 1, 100, HASH, pack, 17, 60)]
    assert packs.get(db, pack).live_bytes == 60
    assert db.counters.block_bytes == 100


def test_deduplication_uses_the_older_of_two_equal_blocks(db: Database) -> None:
    """If two blocks have equal content, new references use the older block."""
    first, second, pack = make_block(db), make_block(db), make_pack(db)
    blocks.set_location(db, blocks.get(db, second), HASH, pack, 0, 60)
    blocks.set_location(db, blocks.get(db, first), HASH, pack, 60, 60)
    found = blocks.intact(db, HASH)
    assert found is not None
    assert found.block == first


def test_deduplication_does_not_share_a_damaged_block(db: Database) -> None:
    """New content shares neither damaged nor unreferenced blocks."""
    first, second, pack = make_block(db), make_block(db), make_pack(db)
    blocks.set_location(db, blocks.get(db, first), HASH, pack, 0, 60)
    blocks.set_location(db, blocks.get(db, second), HASH, pack, 60, 60)
    damage_marks.add(db, Mark(pack, 0))
    found = blocks.intact(db, HASH)
    assert found is not None
    assert found.block == second

    blocks.drop_ref(db, second)
    assert blocks.intact(db, HASH) is None


def test_pack_is_dead_after_its_last_block_is_deleted(db: Database) -> None:
    """A pack is dead from the txg in which its last block is deleted."""
    pack = make_pack(db)
    made = [make_block(db), make_block(db)]
    for number, block in enumerate(made):
        blocks.set_location(db, blocks.get(db, block), bytes([number]) * 32, pack, 60 * number, 60)
        blocks.drop_ref(db, block)
    blocks.delete(db, made[0])
    assert (packs.get(db, pack).live_bytes, packs.get(db, pack).died_txg) == (60, None)
    db.counters.txg = 9
    blocks.delete(db, made[1])
    assert (packs.get(db, pack).live_bytes, packs.get(db, pack).died_txg) == (0, 9)
    assert db.counters.block_bytes == 0


def test_new_location_of_a_block_moves_its_live_bytes_to_the_new_pack(db: Database) -> None:
    """When compaction moves a block, its live bytes move from the old pack to the new pack."""
    block, old, new = make_block(db), make_pack(db, "old"), make_pack(db, "new")
    blocks.set_location(db, blocks.get(db, block), HASH, old, 0, 60)
    blocks.set_location(db, blocks.get(db, block), HASH, new, 5, 61)
    assert (packs.get(db, old).live_bytes, packs.get(db, old).died_txg) == (0, 1)
    assert (packs.get(db, new).live_bytes, packs.get(db, new).died_txg) == (61, None)
    assert [row.block for row in blocks.in_pack(db, new)] == [block]
    assert blocks.in_pack(db, old) == []


def test_location_in_an_unknown_pack_is_refused(db: Database) -> None:
    block = make_block(db)
    with pytest.raises(MetadataError, match="pack 77 has no row"):
        blocks.set_location(db, blocks.get(db, block), HASH, PackId(77), 0, 60)
    assert blocks.get(db, block).pack is None


def test_neighbours_of_a_block_are_in_the_same_pack(db: Database) -> None:
    """Neighbours are the nearest blocks in the same pack, up to a given number on each side."""
    pack, other = make_pack(db), make_pack(db, "b")
    made = [make_block(db) for _ in range(9)]
    for number, block in enumerate(made):
        blocks.set_location(
            db, blocks.get(db, block), HASH, other if number == 5 else pack, 10 * number, 10
        )

    near = blocks.near_in_pack(db, pack, made[4], 2)

    assert sorted(row.block for row in near) == [made[2], made[3], made[4], made[6]]
