"""Tests of damage to cached blocks, their rows and their files, one invariant at a time."""

import pytest

from s3fs_meta.cache.crash_safety import recovery
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.check.report import Mode
from s3fs_meta.meta import lost_ranges
from s3fs_meta.meta.tables import block_map, block_origins, blocks, cached_blocks, packs, xattrs
from s3fs_meta.model import BlockId, BlockIndex, BlockState, Ino
from tests.check.healthy import BLOCK_BYTES, Healthy

pytestmark = pytest.mark.thorough


@pytest.fixture
def clean(healthy: Healthy) -> BlockId:
    """Return a block that is uploaded and cached."""
    healthy.db.begin()
    healthy.write(healthy.attributed, 0, b"uploaded and here")
    healthy.upload()
    healthy.write(healthy.attributed, 1, b"unshipped")
    healthy.db.commit()
    healthy.before = healthy.dump()
    return healthy.block_of(healthy.attributed, 0)


@pytest.mark.parametrize("state", [BlockState.DIRTY, BlockState.DOOMED, 9])
def test_wrong_cache_state_of_an_uploaded_block_is_corrected(
    healthy: Healthy, clean: BlockId, state: int
) -> None:
    """fsck sets the state of an uploaded block with a cached copy to UPLOADED.

    Invariant I40.
    """
    healthy.sql("UPDATE cached_blocks SET state = ? WHERE block = ?", int(state), clean)

    healthy.assert_mended("I40")

    row = cached_blocks.get(healthy.db, clean)
    assert row is not None
    assert row.state is BlockState.UPLOADED


def test_sealed_block_with_a_location_is_valid(healthy: Healthy, clean: BlockId) -> None:
    """A SEALED block (frozen for upload) keeps its old location until compaction moved it (I40)."""
    healthy.sql("UPDATE cached_blocks SET state = 2 WHERE block = ?", clean)
    assert healthy.check().lines() == ["clean"]


def test_cached_block_without_a_location_becomes_dirty(healthy: Healthy, clean: BlockId) -> None:
    """fsck makes the block dirty, because a cached block that is in no pack must not be evicted."""
    pending = healthy.block_of(healthy.attributed, 1)
    healthy.sql("UPDATE cached_blocks SET state = 4 WHERE block = ?", pending)
    healthy.assert_mended("I40")
    assert healthy.dump() == healthy.before


def test_cached_copy_of_a_block_without_a_row_is_marked_for_deletion(healthy: Healthy) -> None:
    """fsck sets the state of the copy to DOOMED, so that the next mount deletes the copy."""
    block = healthy.db.counters.take_block()
    healthy.db.begin()
    cached_blocks.put(healthy.db, block, BlockState.CLEAN, Ino(0), BlockIndex(0))
    healthy.db.commit()

    healthy.assert_mended("I40")

    row = cached_blocks.get(healthy.db, block)
    assert row is not None
    assert row.state is BlockState.DOOMED


def test_wrong_file_position_of_a_block_that_awaits_upload_is_corrected(healthy: Healthy) -> None:
    """fsck corrects the file position in ``cached_blocks``, which the uploader reads.

    Invariant I41.
    """
    block = healthy.block_of(healthy.dirty, 1)
    healthy.sql("UPDATE cached_blocks SET block_index = 5 WHERE block = ?", block)
    healthy.assert_mended("I41")
    assert healthy.dump() == healthy.before


@pytest.mark.parametrize("mode", [Mode.SAFE, Mode.ALL])
@pytest.mark.parametrize("damage", ["lost", "of another block", "of no block"])
async def test_dirty_block_whose_row_in_the_block_map_is_damaged_is_mapped_again(
    healthy: Healthy, mode: Mode, damage: str
) -> None:
    """Its cache file has the only copy of the content, and its row records the position."""
    first, second = (healthy.block_of(healthy.dirty, index) for index in (0, 1))
    content = healthy.files.read(second, 0, 2001)
    if damage == "lost":
        healthy.sql("DELETE FROM block_map WHERE block = ?", second)
    else:
        wrong = first if damage == "of another block" else 999_999
        healthy.sql("UPDATE block_map SET block = ? WHERE block = ?", wrong, second)

    report = await healthy.check_all(mode)

    assert "I41" in report.broken
    assert report.exit_status == 1
    assert healthy.block_of(healthy.dirty, 0) == first
    assert healthy.block_of(healthy.dirty, 1) == second
    assert healthy.files.read(second, 0, 2001) == content
    assert xattrs.find(healthy.db, healthy.dirty, lost_ranges.ATTRIBUTE) is None
    assert (await healthy.check_all()).lines() == ["clean"]


def _seal_without_references(healthy: Healthy, index: int) -> BlockId:
    """Leave a block as a kill does that follows a change of the file during an upload."""
    block = healthy.block_of(healthy.dirty, index)
    healthy.sql("DELETE FROM block_map WHERE block = ?", block)
    healthy.sql("UPDATE inodes SET mapped_blocks = mapped_blocks - 1 WHERE ino = ?", healthy.dirty)
    healthy.sql("UPDATE cached_blocks SET state = ? WHERE block = ?", BlockState.SEALED, block)
    healthy.sql("UPDATE blocks SET refs = 0 WHERE block = ?", block)
    return block


@pytest.mark.parametrize("mode", [Mode.SAFE, Mode.ALL])
@pytest.mark.parametrize("change", ["hole", "truncated"])
async def test_wrong_number_of_references_does_not_map_old_content(
    healthy: Healthy, mode: Mode, change: str
) -> None:
    """A wrong number in the row of an old block does not prove that the block map lost the block."""
    block = _seal_without_references(healthy, 0 if change == "hole" else 1)
    if change == "truncated":
        healthy.sql("UPDATE inodes SET size_bytes = 2000 WHERE ino = ?", healthy.dirty)
        await healthy.check_all(Mode.ALL)  # corrects the sum of the sizes
    before = healthy.dump()
    healthy.sql("UPDATE blocks SET refs = 1 WHERE block = ?", block)

    report = await healthy.check_all(mode)

    assert (report.exit_status, report.broken) == (1, ["I61"])
    assert healthy.dump() == before
    assert (await healthy.check_all()).lines() == ["clean"]


@pytest.mark.parametrize("mode", [Mode.SAFE, Mode.ALL])
async def test_block_beyond_the_end_of_its_file_is_not_mapped_again(
    healthy: Healthy, mode: Mode
) -> None:
    """The block is old, even if two numbers count it."""
    block = _seal_without_references(healthy, 1)
    healthy.sql("UPDATE inodes SET size_bytes = ? WHERE ino = ?", BLOCK_BYTES, healthy.dirty)
    await healthy.check_all(Mode.ALL)
    before = healthy.dump()
    healthy.sql("UPDATE blocks SET refs = 1 WHERE block = ?", block)
    healthy.sql("UPDATE inodes SET mapped_blocks = 2 WHERE ino = ?", healthy.dirty)

    assert (await healthy.check_all(mode)).exit_status == 1

    assert healthy.dump() == before
    assert (await healthy.check_all()).lines() == ["clean"]


async def test_newest_of_two_unmapped_blocks_of_a_position_is_mapped(healthy: Healthy) -> None:
    """A block that replaces another block has a higher number."""
    old, new = (healthy.block_of(healthy.dirty, index) for index in (0, 1))
    _seal_without_references(healthy, 0)
    healthy.sql("UPDATE blocks SET refs = 1 WHERE block = ?", old)
    healthy.sql("UPDATE cached_blocks SET block_index = 1 WHERE block = ?", old)
    healthy.sql("DELETE FROM block_map WHERE block = ?", new)

    assert (await healthy.check_all(Mode.SAFE)).exit_status == 1

    assert block_map.find(healthy.db, healthy.dirty, BlockIndex(0)) is None
    assert healthy.block_of(healthy.dirty, 1) == new
    assert (await healthy.check_all()).lines() == ["clean"]


async def test_fsck_p_maps_no_block_again_if_a_row_would_remain_damaged(healthy: Healthy) -> None:
    """The file would end inside the block (I59), and only fsck -y extends files."""
    block = healthy.block_of(healthy.dirty, 1)
    healthy.sql("UPDATE inodes SET size_bytes = ? WHERE ino = ?", BLOCK_BYTES + 1, healthy.dirty)
    healthy.sql("DELETE FROM block_map WHERE block = ?", block)
    before = healthy.dump()

    report = await healthy.check_all(Mode.SAFE)

    assert (report.exit_status, report.is_undone) == (4, True)
    assert healthy.dump() == before

    assert (await healthy.check_all(Mode.ALL)).exit_status == 1
    assert healthy.block_of(healthy.dirty, 1) == block
    assert healthy.dump() == healthy.before
    assert (await healthy.check_all()).lines() == ["clean"]


async def test_dirty_block_that_lost_its_file_and_its_row_in_the_block_map_stays_lost(
    healthy: Healthy,
) -> None:
    """The repair maps the block again once, and then records the lost bytes."""
    block = healthy.block_of(healthy.dirty, 0)
    healthy.sql("DELETE FROM block_map WHERE block = ?", block)
    healthy.files.remove(block)

    assert (await healthy.check_all(Mode.ALL)).exit_status == 1

    assert xattrs.find(healthy.db, healthy.dirty, lost_ranges.ATTRIBUTE) is not None
    assert (await healthy.check_all()).lines() == ["clean"]


async def test_block_with_a_wrong_number_of_references_does_not_replace_a_mapped_block(
    healthy: Healthy,
) -> None:
    """A sealed block without references may be uploaded while its position has a newer block."""
    sealed, newer = (healthy.block_of(healthy.dirty, index) for index in (0, 1))
    healthy.sql("DELETE FROM block_map WHERE block = ?", sealed)
    healthy.sql("UPDATE cached_blocks SET state = 2, block_index = 1 WHERE block = ?", sealed)

    await healthy.check_all(Mode.ALL)

    assert healthy.block_of(healthy.dirty, 1) == newer
    assert (await healthy.check_all()).lines() == ["clean"]


async def test_pending_block_at_two_file_positions_is_split_into_two_blocks(
    healthy: Healthy,
) -> None:
    """fsck gives each position its own block, because a write must change only one position.

    Invariant I42.
    """
    block = healthy.block_of(healthy.dirty, 1)
    healthy.db.begin()
    block_map.set(healthy.db, healthy.dirty, BlockIndex(4), block)
    blocks.add_ref(healthy.db, block)
    healthy.grow(healthy.dirty, 4, 2001)
    healthy.db.commit()

    # Without a survey of the cache directory, fsck does not split the block.
    assert healthy.check(Mode.ALL).exit_status == 4
    await healthy.assert_all_mended("I42", concerns={healthy.dirty})

    other = healthy.block_of(healthy.dirty, 4)
    assert other != block
    assert healthy.files.read(other, 0, 2001) == healthy.files.read(block, 0, 2001)


@pytest.mark.parametrize(
    ("damage", "index"),
    [
        ("UPDATE block_map SET block = :block WHERE ino = :other AND block_index = 3", 3),
        ("DELETE FROM cached_blocks WHERE block = :block", None),
        ("UPDATE cached_blocks SET state = 4, synced_bytes = 0 WHERE block = :block", None),
    ],
    ids=["copied", "without a row", "wrong state"],
)
async def test_power_cut_keeps_blocks_that_a_repair_made_dirty(
    healthy: Healthy, damage: str, index: int | None
) -> None:
    """fsck records the sync of the files, because recovery truncates files without this record."""
    block = healthy.block_of(healthy.dirty, 0)
    statement = damage.replace(":block", str(block)).replace(":other", str(healthy.uploaded))
    healthy.sql(statement)

    await healthy.assert_all_repaired()

    made = block if index is None else healthy.block_of(healthy.uploaded, index)
    recovery.distrust(healthy.db, healthy.files)
    assert healthy.files.size(made) == blocks.get(healthy.db, made).plain_bytes


async def test_pending_block_with_a_missing_cache_file_is_lost(healthy: Healthy) -> None:
    """fsck replaces the block by a hole, because the missing cache file was its only copy."""
    healthy.files.remove(healthy.block_of(healthy.dirty, 1))

    await healthy.assert_all_mended("I43", concerns={healthy.dirty})

    assert block_map.find(healthy.db, healthy.dirty, BlockIndex(1)) is None
    assert b"%d-" % BLOCK_BYTES in xattrs.get(healthy.db, healthy.dirty, lost_ranges.ATTRIBUTE)


async def test_pending_block_with_a_short_cache_file_keeps_its_bytes(healthy: Healthy) -> None:
    """fsck records the missing bytes at the end of a short block as lost.

    Invariant I43.
    """
    block = healthy.block_of(healthy.dirty, 0)
    kept = healthy.files.read(block, 0, 500)
    healthy.shorten(block, 500)

    await healthy.assert_all_mended("I43", concerns={healthy.dirty})

    assert blocks.get(healthy.db, block).plain_bytes == 500
    assert healthy.files.read(block, 0, 500) == kept
    lost = xattrs.get(healthy.db, healthy.dirty, lost_ranges.ATTRIBUTE)
    assert lost == b"500-%d\n" % (BLOCK_BYTES - 1)


async def test_pending_block_with_a_long_cache_file_is_valid(healthy: Healthy) -> None:
    """A crash between a write and its commit leaves a cache file that is too long (I43)."""
    healthy.files.write_within(healthy.block_of(healthy.dirty, 0), 2000, b"undone", 2000)
    assert (await healthy.check_all()).lines() == ["clean"]


async def test_row_of_a_cached_block_is_removed_if_the_cache_file_is_missing(
    healthy: Healthy, clean: BlockId
) -> None:
    """fsck removes a row that a crash between an eviction and its commit left behind.

    Invariant I44.
    """
    healthy.files.remove(clean)
    [broken] = (await healthy.check_all()).as_json()["invariants"]
    assert "is missing or too short (no file): the block" in broken["findings"][0]["what"]

    await healthy.assert_all_mended("I44")

    assert cached_blocks.get(healthy.db, clean) is None


async def test_stray_files_are_quarantined(healthy: Healthy) -> None:
    """fsck quarantines files of unknown blocks and unknown files. It deletes unfinished files.

    Invariant I45.
    """
    stray = healthy.db.counters.next_block + 5
    healthy.files.create(BlockId(stray), 0, b"undone")
    (healthy.tmp / "fetch-1-0").write_bytes(b"unfinished")
    (healthy.tmp / "thesis.db").write_bytes(b"not ours")
    (healthy.files.root / "notes.txt").write_bytes(b"not ours")
    (healthy.files.root / "not UTF-8: \udcff").write_bytes(b"nor this")

    await healthy.assert_all_mended("I45")

    assert healthy.files.size(BlockId(stray)) is None
    assert [path.name for path in healthy.tmp.iterdir()] == ["thesis.db"]
    assert not (healthy.files.root / "notes.txt").exists()
    [kept] = healthy.files.root.parent.glob("kept-*")
    assert BlockFiles(kept / "blocks", healthy.tmp).read(BlockId(stray), 0, 6) == b"undone"
    assert (kept / "blocks" / "notes.txt").read_bytes() == b"not ours"
    assert (kept / "blocks" / "not UTF-8: \udcff").read_bytes() == b"nor this"
    assert healthy.dump() == healthy.before


async def test_new_block_does_not_use_the_cache_file_of_an_unknown_block(healthy: Healthy) -> None:
    """A restored older database would assign block numbers of existing cache files (I42, I45)."""
    block = healthy.block_of(healthy.dirty, 0)
    stray = BlockId(healthy.db.counters.next_block)
    healthy.files.create(stray, 0, b"only copy")
    place = (healthy.attributed, 7, block)
    healthy.sql("INSERT INTO block_map (ino, block_index, block) VALUES (?, ?, ?)", *place)

    await healthy.check_all(Mode.ALL)

    [kept] = healthy.files.root.parent.glob("kept-*")
    assert BlockFiles(kept / "blocks", healthy.tmp).read(stray, 0, 9) == b"only copy"
    assert healthy.block_of(healthy.attributed, 7) > stray


async def test_safe_fsck_run_keeps_cache_files_that_a_full_repair_needs(healthy: Healthy) -> None:
    """fsck -p keeps cache files without a row, because fsck -y repairs rows from them (I45)."""
    first, second = (healthy.block_of(healthy.dirty, index) for index in (0, 1))
    healthy.sql("DELETE FROM cached_blocks WHERE block IN (?, ?)", first, second)
    healthy.sql("DELETE FROM blocks WHERE block = ?", second)
    [uploaded] = healthy.write_uploaded(healthy.attributed, b"its pack is gone")
    healthy.sql("DELETE FROM cached_blocks WHERE block = ?", uploaded)
    pack = healthy.pack_of(healthy.attributed, 0)
    del healthy.store.objects[packs.object_key(healthy.db, pack)]
    healthy.sql("DELETE FROM packs WHERE pack = ?", pack)

    assert (await healthy.check_all(Mode.SAFE)).exit_status == 4
    await healthy.assert_all_repaired()
    for block in (first, second, uploaded):
        row = cached_blocks.get(healthy.db, block)
        assert row is not None
        assert row.state is BlockState.DIRTY
    assert healthy.changed_inodes() == set()


async def test_cache_file_that_fsck_created_but_did_not_use_is_removed(healthy: Healthy) -> None:
    """fsck copies the blocks of a condemned pack before it marks the pack as stored (I36, I45)."""
    [block] = healthy.write_uploaded(healthy.attributed, b"in a pack with a wrong state")
    healthy.evict(block)
    pack = healthy.pack_of(healthy.attributed, 0)
    healthy.sql("UPDATE packs SET state = 3 WHERE pack = ?", pack)

    await healthy.assert_all_repaired()

    assert healthy.files.size(block) is None


async def test_cache_file_without_a_row_is_removed_if_the_block_is_in_a_pack(
    healthy: Healthy, clean: BlockId
) -> None:
    """fsck removes the file, which a crash after a fetch can leave behind."""
    healthy.sql("DELETE FROM cached_blocks WHERE block = ?", clean)

    await healthy.assert_all_mended("I45")

    assert healthy.files.size(clean) is None


def test_recorded_origin_of_an_uploaded_block_is_removed(healthy: Healthy, clean: BlockId) -> None:
    """fsck deletes the origin row, from which recovery after a power cut would restore old content.

    Invariant I66.
    """
    pending = healthy.block_of(healthy.attributed, 1)
    healthy.db.begin()
    block_origins.note_hole(healthy.db, pending, 5)
    healthy.db.commit()
    healthy.before = healthy.dump()
    assert healthy.check().lines() == ["clean"]
    healthy.db.begin()
    block_origins.note_hole(healthy.db, clean, 5)
    healthy.db.commit()

    healthy.assert_mended("I66")

    assert healthy.dump() == healthy.before


def test_recorded_origin_of_an_uncached_block_is_removed(healthy: Healthy) -> None:
    """fsck deletes the origin row, because content without an origin may reuse the block number."""
    healthy.db.begin()
    block_origins.note_hole(healthy.db, healthy.db.counters.take_block(), 5)
    healthy.db.commit()

    healthy.assert_mended("I66")

    assert block_origins.blocks(healthy.db) == []


async def test_recorded_origin_of_a_lost_block_is_removed(healthy: Healthy) -> None:
    """The fsck run that declares a block lost also deletes the block's origin row."""
    block = healthy.block_of(healthy.dirty, 1)
    healthy.db.begin()
    block_origins.note_hole(healthy.db, block, 5)
    cached_blocks.delete(healthy.db, block)
    healthy.db.commit()
    healthy.files.remove(block)

    await healthy.assert_all_mended("I37", "I66", concerns={healthy.dirty})
