"""Tests of damage to blocks and their locations, one invariant at a time."""

import pytest

from s3fs_meta.check.report import Mode
from s3fs_meta.meta import lost_ranges
from s3fs_meta.meta.tables import (
    block_map,
    blocks,
    cached_blocks,
    inodes,
    packs,
    properties,
    xattrs,
)
from s3fs_meta.model import BlockIndex, BlockState
from tests.check.healthy import BLOCK_BYTES, Healthy

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    "change",
    [
        "hash = NULL",
        "pack = NULL",
        "pack_offset = NULL",
        "hash = x'00'",
        "pack = 77",
        "pack_offset = -1",
        "pack_offset = 1 << 40",
        "stored_bytes = 0",
        "plain_bytes = 1 << 20",
        "plain_bytes = 0",
        "hash = NULL, pack = NULL, pack_offset = NULL, stored_bytes = NULL",
    ],
)
async def test_wrong_block_location_is_corrected_from_the_pack_index(
    healthy: Healthy, change: str
) -> None:
    """fsck takes a block's location from its pack's index.

    Invariants I31, I33 and I35.
    """
    block = healthy.block_of(healthy.uploaded, 1)
    if cached_blocks.get(healthy.db, block) is not None:
        healthy.db.begin()
        healthy.forget_copy(block)
        healthy.db.commit()
    healthy.before = healthy.dump()
    healthy.sql(f"UPDATE blocks SET {change} WHERE block = ?", block)

    broken = set((await healthy.check_all()).broken)
    assert broken & {"I31", "I32", "I33", "I35", "I37"}
    assert (await healthy.check_all(Mode.ALL)).exit_status == 1

    assert (await healthy.check_all(deep=True)).lines() == ["clean"]
    before, after = healthy.before, healthy.dump()
    assert [table for table in before if before[table] != after[table]] in ([], ["counters"])


@pytest.mark.parametrize("change", ["hash = x'00'", "pack = 77", "pack_offset = 1 << 40"])
def test_block_with_a_wrong_location_is_not_declared_lost_if_the_bucket_was_not_checked(
    healthy: Healthy, change: str
) -> None:
    """fsck keeps the block's row in ``block_map``, as a pack may contain the block (I31 to I33)."""
    block = healthy.block_of(healthy.uploaded, 1)
    healthy.sql(f"UPDATE blocks SET {change} WHERE block = ?", block)
    damaged = healthy.dump()["block_map"]

    report = healthy.check(Mode.ALL)

    assert report.exit_status & 4
    assert healthy.dump()["block_map"] == damaged


def test_incomplete_location_of_a_dirty_block_is_removed(healthy: Healthy) -> None:
    """fsck clears the incomplete location of a dirty block, which exists only in the cache."""
    block = healthy.block_of(healthy.dirty, 0)
    healthy.sql("UPDATE blocks SET pack_offset = 5 WHERE block = ?", block)
    healthy.assert_mended("I31")
    assert healthy.dump() == healthy.before


async def test_pack_in_the_bucket_that_has_no_row_gets_a_new_row(healthy: Healthy) -> None:
    """fsck creates a row for a pack that has none, and lets the pack's blocks refer to the row.

    Invariant I32.
    """
    pack = healthy.pack_of(healthy.uploaded, 1)
    key = packs.object_key(healthy.db, pack)
    healthy.sql("DELETE FROM packs WHERE pack = ?", pack)

    assert {"I32", "I49"} <= set((await healthy.check_all()).broken)
    assert (await healthy.check_all(Mode.ALL)).exit_status == 1

    assert (await healthy.check_all(deep=True)).lines() == ["clean"]
    new = healthy.pack_of(healthy.uploaded, 1)
    assert packs.object_key(healthy.db, new) == key
    assert healthy.changed_inodes() == set()
    # Without the record of renumbered packs, fsck would compute a wrong age of the pack.
    assert properties.renumbered_packs(healthy.db) == (healthy.db.counters.txg, new + 1)


async def test_overlapping_locations_of_blocks_are_corrected_from_the_pack_index(
    healthy: Healthy,
) -> None:
    """fsck corrects the location of a block that overlaps another block in its pack.

    Invariant I34.
    """
    first, second = (healthy.block_of(healthy.uploaded, index) for index in (0, 1))
    offset = blocks.get(healthy.db, first).pack_offset
    assert offset is not None
    healthy.sql("UPDATE blocks SET pack_offset = ? WHERE block = ?", offset + 1, second)

    await healthy.assert_all_mended("I34")

    assert healthy.dump() == healthy.before


async def test_readable_block_is_kept_if_a_wrong_row_overlaps_it(healthy: Healthy) -> None:
    """If the pack's index is damaged, fsck reads overlapping blocks at their recorded locations.

    Only the block whose row is wrong is lost.
    """
    first, second = (healthy.block_of(healthy.uploaded, index) for index in (0, 1))
    healthy.evict(first, second)
    row = blocks.get(healthy.db, second)
    key = packs.object_key(healthy.db, healthy.pack_of(healthy.uploaded, 1))
    data = bytearray(healthy.store.objects[key])
    data[-20] ^= 1
    healthy.store.objects[key] = bytes(data)
    healthy.sql("UPDATE blocks SET pack_offset = pack_offset + 1 WHERE block = ?", first)

    await healthy.assert_all_repaired()

    assert blocks.get(healthy.db, second) == row
    lost = xattrs.get(healthy.db, healthy.uploaded, lost_ranges.ATTRIBUTE)
    assert lost == b"0-%d\n" % (BLOCK_BYTES - 1)


def test_equal_blocks_may_share_the_same_bytes_of_a_pack(healthy: Healthy) -> None:
    """A database of an older version may have two equal blocks at one offset of a pack."""
    first, second = (healthy.block_of(healthy.uploaded, index) for index in (0, 1))
    row = blocks.get(healthy.db, first)
    healthy.db.begin()
    before_bytes = blocks.get(healthy.db, second).plain_bytes
    blocks.resize(healthy.db, second, before_bytes, row.plain_bytes)
    assert row.hash is not None
    assert row.pack is not None
    assert row.pack_offset is not None
    assert row.stored_bytes is not None
    blocks.set_location(
        healthy.db,
        blocks.get(healthy.db, second),
        row.hash,
        row.pack,
        row.pack_offset,
        row.stored_bytes,
    )
    healthy.db.commit()

    assert "I34" not in healthy.check().broken


@pytest.mark.parametrize("state", [1, 3])
def test_pack_with_live_blocks_is_marked_as_stored(healthy: Healthy, state: int) -> None:
    """fsck changes the state "uploading" or "condemned" of a pack with live blocks to "stored".

    Invariant I36.
    """
    pack = healthy.pack_of(healthy.uploaded, 1)
    size = packs.object_bytes(healthy.db, pack)
    healthy.sql("UPDATE packs SET state = ? WHERE pack = ?", state, pack)
    healthy.db.begin()
    healthy.db.counters.stored_bytes -= size
    healthy.db.commit()

    healthy.assert_mended("I36")

    assert healthy.dump() == healthy.before


async def test_block_without_any_copy_is_reported_as_lost_data(healthy: Healthy) -> None:
    """fsck -y replaces a lost block with a hole and records the lost range as an attribute.

    Invariant I37.
    """
    block = healthy.block_of(healthy.dirty, 1)
    healthy.db.begin()
    healthy.forget_copy(block)
    healthy.db.commit()

    report = await healthy.check_all(Mode.SAFE)
    assert (report.exit_status, report.broken) == (4, ["I37"])
    assert report.verdicts[0].examples[0].path == "/directory/dirty"
    assert block_map.find(healthy.db, healthy.dirty, BlockIndex(1)) == block

    await healthy.assert_all_mended("I37", concerns={healthy.dirty})
    lost = xattrs.get(healthy.db, healthy.dirty, lost_ranges.ATTRIBUTE)
    size_bytes = inodes.get(healthy.db, healthy.dirty).size_bytes
    assert lost == b"%d-%d\n" % (BLOCK_BYTES, size_bytes - 1)


async def test_missing_row_of_a_cached_block_is_created_again(healthy: Healthy) -> None:
    """fsck recreates the row, because the cache file may be the only copy of the block."""
    block = healthy.block_of(healthy.dirty, 1)
    healthy.sql("DELETE FROM cached_blocks WHERE block = ?", block)

    await healthy.assert_all_mended("I37")

    assert healthy.dump_without_syncs() == healthy.before


async def test_cached_block_that_no_pack_contains_becomes_dirty(healthy: Healthy) -> None:
    """fsck creates a dirty block for each file position of a cached block that is in no pack."""
    healthy.db.begin()
    block = healthy.write(healthy.dirty, 5, b"shared content")
    healthy.upload()
    block_map.set(healthy.db, healthy.dirty, BlockIndex(6), block)
    blocks.add_ref(healthy.db, block)
    healthy.grow(healthy.dirty, 6, 14)
    healthy.db.commit()
    pack = healthy.pack_of(healthy.dirty, 5)
    del healthy.store.objects[packs.object_key(healthy.db, pack)]
    healthy.sql("DELETE FROM packs WHERE pack = ?", pack)
    healthy.before = healthy.dump()

    assert "I32" in (await healthy.check_all()).broken
    await healthy.assert_all_repaired()
    here = [healthy.block_of(healthy.dirty, index) for index in (5, 6)]
    assert len(set(here)) == 2
    for copy in here:
        row = cached_blocks.get(healthy.db, copy)
        assert row is not None
        assert row.state is BlockState.DIRTY
        assert healthy.files.read(copy, 0, 14) == b"shared content"


def test_wrong_reference_counts_are_corrected(healthy: Healthy) -> None:
    """fsck corrects reference counts, because a block with too small a count is freed too early.

    Invariant I61.
    """
    healthy.sql("UPDATE blocks SET refs = refs + 1 WHERE block % 2 = 0")
    healthy.assert_mended("I61")
    assert healthy.dump() == healthy.before


def test_block_without_references_is_freed(healthy: Healthy) -> None:
    """fsck deletes an unreferenced block and subtracts its size from its pack's live bytes.

    Invariant I62.
    """
    healthy.db.begin()
    healthy.write(healthy.dirty, 7, b"soon unnamed")
    healthy.upload()
    healthy.db.commit()
    block, pack = healthy.block_of(healthy.dirty, 7), healthy.pack_of(healthy.dirty, 7)
    healthy.before = healthy.dump()
    healthy.db.begin()
    block_map.remove(healthy.db, healthy.dirty, BlockIndex(7))
    blocks.drop_ref(healthy.db, block)
    healthy.db.inodes.run(
        "UPDATE inodes SET mapped_blocks = mapped_blocks - 1 WHERE ino = ?", (healthy.dirty,)
    )
    healthy.db.commit()

    healthy.assert_mended("I62", concerns={healthy.dirty})

    assert blocks.find(healthy.db, block) is None
    assert packs.get(healthy.db, pack).live_bytes < healthy.db.counters.stored_bytes


def test_sealed_block_without_references_is_kept(healthy: Healthy) -> None:
    """fsck keeps an unreferenced block whose upload has begun (I62)."""
    block = healthy.block_of(healthy.dirty, 1)
    healthy.db.begin()
    cached_blocks.set_state(healthy.db, block, BlockState.SEALED)
    block_map.remove(healthy.db, healthy.dirty, BlockIndex(1))
    blocks.drop_ref(healthy.db, block)
    healthy.db.inodes.run(
        "UPDATE inodes SET mapped_blocks = mapped_blocks - 1 WHERE ino = ?", (healthy.dirty,)
    )
    healthy.db.commit()

    assert healthy.check(Mode.ALL).lines() == ["clean"]
    assert blocks.find(healthy.db, block) is not None
