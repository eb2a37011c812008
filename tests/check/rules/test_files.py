"""Tests of damage to the block map, one invariant at a time."""

import pytest

from s3fs_meta.check.report import Mode
from s3fs_meta.codec.pack import PackWriter, new_key
from s3fs_meta.meta import lost_ranges
from s3fs_meta.meta.tables import block_map, blocks, cached_blocks, dentries, inodes, xattrs
from s3fs_meta.model import ROOT_INO, BlockIndex, Cookie, Epoch
from tests.check.healthy import BLOCK_BYTES, Healthy


@pytest.mark.parametrize("index", [-1, 1 << 50])
def test_block_at_an_impossible_index_is_moved_to_a_separate_file(
    healthy: Healthy, index: int
) -> None:
    """fsck moves a block at an impossible index to a file in lost+found.

    Invariant I29.
    """
    block = healthy.block_of(healthy.dirty, 1)
    healthy.sql("UPDATE block_map SET block_index = ? WHERE block = ?", index, block)

    assert "I29" in healthy.check().broken
    healthy.assert_repaired()
    home = dentries.find(healthy.db, ROOT_INO, b"lost+found")
    assert home is not None
    [(_, _, made)] = dentries.page(healthy.db, home, Cookie(0), 10)
    assert block_map.find(healthy.db, made.ino, BlockIndex(0)) == block
    assert made.size_bytes == 2001


async def test_position_of_a_missing_block_becomes_a_hole(healthy: Healthy) -> None:
    """fsck records the range of a missing block as an attribute, and keeps all other blocks.

    Invariant I30.
    """
    healthy.db.begin()
    gone = healthy.db.counters.take_block()
    block = healthy.block_of(healthy.uploaded, 1)
    block_map.set(healthy.db, healthy.uploaded, BlockIndex(1), gone)
    blocks.drop_ref(healthy.db, block)
    blocks.delete(healthy.db, block)
    healthy.forget_copy(block)
    healthy.db.commit()

    found = (await healthy.check_all()).verdicts[0]
    assert (found.invariant, found.examples[0].path) == ("I30", "/directory/uploaded")
    assert healthy.check(Mode.ALL).exit_status == 4
    assert block_map.find(healthy.db, healthy.uploaded, BlockIndex(1)) == gone

    await healthy.assert_all_repaired()
    lost = xattrs.get(healthy.db, healthy.uploaded, lost_ranges.ATTRIBUTE)
    assert lost == b"%d-%d\n" % (BLOCK_BYTES, 2 * BLOCK_BYTES - 1)
    assert healthy.changed_inodes() == {healthy.uploaded}


async def test_missing_row_of_a_block_is_recreated_from_its_pack(healthy: Healthy) -> None:
    """fsck recreates a block's row from its pack's index."""
    block = healthy.block_of(healthy.uploaded, 1)
    healthy.db.begin()
    healthy.forget_copy(block)
    healthy.db.commit()
    healthy.before = healthy.dump()
    healthy.sql("DELETE FROM blocks WHERE block = ?", block)

    assert "I30" in (await healthy.check_all()).broken
    assert (await healthy.check_all(Mode.ALL)).exit_status == 1

    assert (await healthy.check_all(deep=True)).lines() == ["clean"]
    assert healthy.dump() == healthy.before


@pytest.mark.parametrize("size", [3001, 100])
async def test_missing_row_of_an_uploaded_block_is_not_recreated_from_its_cache_file(
    healthy: Healthy, size: int
) -> None:
    """A power cut may damage the cache file, and no row has the hash that verifies the content."""
    block = healthy.block_of(healthy.uploaded, 1)
    row = blocks.get(healthy.db, block)
    healthy.files.create(block, 0, bytes(size))
    healthy.sql("DELETE FROM blocks WHERE block = ?", block)

    assert (await healthy.check_all(Mode.ALL)).exit_status == 1

    assert (await healthy.check_all(deep=True)).lines() == ["clean"]
    assert blocks.get(healthy.db, block) == row
    assert cached_blocks.get(healthy.db, block) is None


@pytest.mark.parametrize("is_cached", [False, True])
async def test_missing_row_of_a_block_is_not_recreated_from_a_pack_of_a_fenced_host(
    healthy: Healthy, is_cached: bool
) -> None:
    """A fenced host may have used the number of a block for other content."""
    ino = healthy.dirty if is_cached else healthy.uploaded
    block = healthy.block_of(ino, 1)
    row = blocks.get(healthy.db, block)
    # Random pack keys determine the order of the search. With eight packs of the fenced host, one
    # of them probably comes before the right pack.
    for _ in range(8):
        writer = PackWriter(new_key(Epoch(1), healthy.rnd.randbytes(16)), healthy.keyring, "none")
        theirs = b"content of the fenced host"
        writer.add(block, ino, BlockIndex(1), healthy.keyring.block_hash(theirs), theirs)
        pack = writer.finish()
        healthy.store.objects[pack.key] = bytes(pack.data)
    if is_cached:
        healthy.sql("DELETE FROM cached_blocks WHERE block = ?", block)
    else:
        healthy.evict(block)
    healthy.sql("DELETE FROM blocks WHERE block = ?", block)

    assert (await healthy.check_all(Mode.ALL)).exit_status == 1

    assert blocks.get(healthy.db, block) == row


async def test_missing_row_of_a_dirty_block_is_recreated_from_its_cache_file(
    healthy: Healthy,
) -> None:
    block = healthy.block_of(healthy.dirty, 1)
    healthy.sql("DELETE FROM blocks WHERE block = ?", block)
    healthy.sql("DELETE FROM cached_blocks WHERE block = ?", block)

    assert "I30" in (await healthy.check_all()).broken
    await healthy.assert_all_repaired()
    assert healthy.dump_without_syncs() == healthy.before


def test_file_size_that_is_too_small_is_extended_to_the_end_of_the_last_block(
    healthy: Healthy,
) -> None:
    """fsck extends the size, because otherwise the end of the file would be unreadable.

    Invariant I59.
    """
    healthy.sql("UPDATE inodes SET size_bytes = 10 WHERE ino = ?", healthy.uploaded)
    counters = healthy.db.counters
    healthy.db.begin()
    counters.file_bytes += 10 - (3 * BLOCK_BYTES + 3003)
    healthy.db.commit()

    healthy.assert_mended("I59")

    assert healthy.dump() == healthy.before
    assert inodes.get(healthy.db, healthy.uploaded).size_bytes == 3 * BLOCK_BYTES + 3003


def test_number_of_mapped_blocks_of_a_file_is_corrected(healthy: Healthy) -> None:
    """fsck sets ``mapped_blocks`` to the number of blocks of the file, without holes.

    Invariant I60.
    """
    healthy.sql("UPDATE inodes SET mapped_blocks = 7 WHERE ino = ?", healthy.uploaded)
    healthy.assert_mended("I60")
    assert healthy.dump() == healthy.before
