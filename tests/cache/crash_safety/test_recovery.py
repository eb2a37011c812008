"""Recovery of the cache directory: files that disagree with their rows after a crash."""

import itertools
from pathlib import Path
from typing import Final

import pytest

from s3fs_meta.cache.crash_safety import recovery
from s3fs_meta.cache.crash_safety.recovery import restore_copies
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.errors import LostBlockError, TransientStoreError
from s3fs_meta.meta.tables import block_map, block_origins, blocks, damage_marks
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import BlockId, BlockIndex
from tests.cache.conftest import INO, CacheBench

FIRST: Final = BlockId(0)
FUTURE_NS: Final = 1 << 62
OLD = b"synced long before"


async def test_reading_unsynced_content_after_a_power_cut_raises_an_error(
    bench: CacheBench,
) -> None:
    """After a power cut a block file may have its full size without all its bytes."""
    block = bench.write(0, b"synced")
    bench.write(1, b"whole")
    await bench.cache.block_sync.sync_files()
    bench.cache.write_in_place(bench.located(0), 6, b" and not")

    recovery.distrust(bench.db, bench.files)

    assert bench.cache.read_local(bench.located(0), 0, 6) == b"synced"
    assert bench.cache.read_local(bench.located(1), 0, 5) == b"whole"
    with pytest.raises(LostBlockError, match="ends at byte 6"):
        bench.cache.read_local(bench.located(0), 0, 7)
    assert bench.files.size(block) == 6


async def test_recovery_does_not_change_block_files_shorter_than_their_synced_size(
    bench: CacheBench,
) -> None:
    one, two = bench.write(0, b"short"), bench.write(1, b"gone")
    await bench.cache.block_sync.sync_files()
    bench.cache.write_in_place(bench.located(0), 5, b"er")
    bench.cache.write_in_place(bench.located(1), 4, b"!")
    bench.files.cut_after(one, 3)
    bench.files.remove(two)

    recovery.distrust(bench.db, bench.files)

    assert (bench.files.size(one), bench.files.size(two)) == (3, None)


async def test_block_file_without_a_row_is_quarantined(bench: CacheBench, tmp_path: Path) -> None:
    """A block file without a row may be the only copy of its content after a database restore."""
    kept = bench.write(0, b"kept")
    bench.db.commit()
    unknown = bench.write(1, b"undone")
    bench.db.rollback()

    count = _let_go(bench, tmp_path)

    assert count == 1
    assert sorted(bench.files.numbers()) == [kept]
    assert BlockFiles(tmp_path / "aside", tmp_path).read(unknown, 0, 6) == b"undone"


@pytest.mark.parametrize(
    ("changed", "now", "quarantined"),
    [(0, 0, 0), (1, 5, 1), (-5, -1, 1)],
    ids=["undone", "database put back", "clock set back"],
)
async def test_file_times_distinguish_a_killed_daemon_from_a_restored_database(
    bench: CacheBench, tmp_path: Path, changed: int, now: int, quarantined: int
) -> None:
    """Files of a killed daemon are newer than its database, but older than a restored database."""
    unknown = bench.write(1, b"undone")
    bench.db.rollback()
    made_ns = max(bench.files.times_ns(unknown))

    count = _let_go(bench, tmp_path, range(made_ns + changed, made_ns + now + 1))

    assert count == quarantined
    assert (tmp_path / "aside").exists() == bool(quarantined)
    assert list(bench.files.numbers()) == []


async def test_one_old_stray_block_file_causes_quarantine_of_all_stray_block_files(
    bench: CacheBench, tmp_path: Path
) -> None:
    """A stray block file older than the database shows that an older database was restored."""
    older = bench.write(1, b"older")
    made_ns = max(bench.files.times_ns(older))
    indexes = itertools.count(2)
    while min(bench.files.times_ns(newer := bench.write(next(indexes), b"newer"))) <= made_ns:
        bench.files.remove(newer)
    bench.db.rollback()

    assert _let_go(bench, tmp_path, range(made_ns + 1, FUTURE_NS)) == len({older, newer})


async def test_stray_block_file_whose_content_is_in_a_pack_is_removed(
    bench: CacheBench, tmp_path: Path
) -> None:
    """A crash during an eviction or a fetch leaves a block file without a row."""
    block = await bench.upload_content(b"content")
    bench.db.begin_local()
    bench.db.run("DELETE FROM cached_blocks")

    assert _let_go(bench, tmp_path) == 0
    assert bench.files.size(block) is None
    assert not (tmp_path / "aside").exists()


@pytest.mark.parametrize("undone_ns", [None, range(FUTURE_NS)], ids=["power cut", "killed"])
async def test_stray_block_file_whose_pack_is_damaged_is_quarantined(
    bench: CacheBench, tmp_path: Path, undone_ns: range | None
) -> None:
    """A stray block file may be the last copy if the pack of the block is marked as damaged."""
    block = await bench.upload_content(b"content")
    pack, offset = bench.located(0).pack, bench.located(0).pack_offset
    assert pack is not None
    bench.db.begin_local()
    damage_marks.add(bench.db, Mark(pack, offset))
    bench.db.run("DELETE FROM cached_blocks")

    assert _let_go(bench, tmp_path, undone_ns) == 1
    assert BlockFiles(tmp_path / "aside", tmp_path).read(block, 0, 7) == b"content"


@pytest.mark.parametrize("content", [b"another", b"content and more", b"cont"])
async def test_stray_block_file_that_differs_from_its_pack_is_quarantined(
    bench: CacheBench, tmp_path: Path, content: bytes
) -> None:
    """Another host may have used the block number of a stray file for different content."""
    block = await bench.upload_content(b"content")
    bench.db.begin_local()
    bench.db.run("DELETE FROM cached_blocks")
    bench.files.create(block, 0, content)

    assert _let_go(bench, tmp_path) == 1
    assert BlockFiles(tmp_path / "aside", tmp_path).size(block) == len(content)


async def test_empty_stray_block_file_is_removed(bench: CacheBench, tmp_path: Path) -> None:
    """A daemon killed between creating and first writing a block file leaves the file empty."""
    bench.files.create(BlockId(77), 0, b"")

    assert _let_go(bench, tmp_path) == 0
    assert list(bench.files.numbers()) == []


async def test_stray_block_files_below_the_first_unused_number_are_kept(
    bench: CacheBench, tmp_path: Path
) -> None:
    """A clean unmount records the first unused block number; files with lower numbers are kept."""
    for number in (5, 0x1003, 0x1004, 0x2000):
        bench.files.create(BlockId(number), 0, b"unknown")

    assert _let_go(bench, tmp_path, first=BlockId(0x1004)) == 2
    assert sorted(bench.files.numbers()) == [5, 0x1003]


async def test_files_that_are_not_block_files_are_kept(bench: CacheBench, tmp_path: Path) -> None:
    """Files that are not block files do not prevent a mount."""
    (bench.files.root / "xxx").mkdir()
    (bench.files.root / "xxx" / "notes.txt").write_bytes(b"notes")
    (bench.files.root / "photo").write_bytes(b"photo")

    assert _let_go(bench, tmp_path) == 0
    assert (bench.files.root / "photo").exists()


async def test_stray_block_file_is_kept_for_fsck_if_no_pack_has_the_block(
    bench: CacheBench, tmp_path: Path
) -> None:
    """A block that has a row but is in no pack may exist only in a stray file."""
    block = bench.write(0, b"content")
    bench.db.begin_local()
    bench.db.run("DELETE FROM cached_blocks")
    await bench.cache.block_sync.sync_files()

    assert _let_go(bench, tmp_path) == 0
    assert sorted(bench.files.numbers()) == [block]


def _let_go(
    bench: CacheBench,
    tmp_path: Path,
    undone_ns: range | None = None,
    *,
    first: BlockId = FIRST,
) -> int:
    return recovery.settle_strays(
        bench.db,
        bench.files,
        tmp_path / "aside",
        bench.keyring.block_hash,
        first=first,
        undone_ns=undone_ns,
    )


def copy(bench: CacheBench, keep_bytes: int, *, cuts: bool = False) -> BlockId:
    """Replace block 0 with a copy of its first bytes, and return the number of the copy."""
    bench.db.begin()
    located = bench.located(0)
    file_bytes = 0 if cuts else located.plain_bytes
    block = bench.cache.copy_on_write(located, INO, BlockIndex(0), keep_bytes, file_bytes)
    block_map.set(bench.db, INO, BlockIndex(0), block)
    bench.cache.release(located.block)
    return block


async def cut_power(bench: CacheBench, *lost: BlockId) -> None:
    """Empty the files of *lost*, as a power cut may, and recover the cache as a mount does."""
    bench.db.commit()
    for block in lost:
        bench.files.cut_after(block, 0)
    await restore_copies(bench.db, bench.files, bench.keyring, bench.store)


def content(bench: CacheBench) -> bytes:
    """Return the content of block 0 that is readable after recovery."""
    located = bench.located(0)
    size = bench.files.size(located.block)
    assert size is not None
    return bench.cache.read_local(located, 0, min(size, located.plain_bytes))


async def test_synced_copy_of_a_block_is_not_replaced_by_its_original(bench: CacheBench) -> None:
    """A copied block that was synced keeps its content after a power cut."""
    await bench.upload_content(OLD)
    block = copy(bench, len(OLD))
    bench.cache.write_in_place(bench.located(0), 0, b"NEW")
    await bench.cache.block_sync.sync_files()
    assert block_origins.blocks(bench.db) == []

    await cut_power(bench)

    assert bench.files.read(block, 0, len(OLD)) == b"NEW" + OLD[3:]


@pytest.mark.parametrize("torn", [False, True], ids=["from its file", "from its pack"])
async def test_copy_of_an_uploaded_block_gets_the_content_of_the_original_block(
    bench: CacheBench, torn: bool
) -> None:
    """After a power cut, a copied block loses unsynced bytes, but gets its origin's bytes back."""
    old = await bench.upload_content(OLD)
    bench.db.begin()
    blocks.add_ref(bench.db, old)  # The second reference keeps the file of the original block.
    new = copy(bench, 5)
    bench.cache.write_in_place(bench.located(0), 5, b"-" * 40)
    if torn:
        bench.files.write_within(old, 0, b"torn", 0)

    await cut_power(bench, new)

    assert content(bench) == OLD
    with pytest.raises(LostBlockError):
        bench.cache.read_local(bench.located(0), 0, 45)
    assert block_origins.blocks(bench.db) == []


async def test_removed_original_of_a_copied_block_is_read_from_its_pack(bench: CacheBench) -> None:
    """If the clean origin of an unsynced copy was deleted, the content is read from the pack."""
    old = await bench.upload_content(OLD)
    new = copy(bench, len(OLD))
    assert bench.files.size(old) is None

    await cut_power(bench, new)

    assert content(bench) == OLD


async def test_copy_of_a_dirty_block_gets_synced_bytes_of_its_original(bench: CacheBench) -> None:
    """The file of a dirty origin is kept until the copy of the block is synced."""
    bench.write(0, OLD)
    await bench.cache.block_sync.sync_files()
    bench.cache.write_in_place(bench.located(0), len(OLD), b" and more")
    new = copy(bench, 25)

    await cut_power(bench, new)

    assert content(bench) == OLD


async def test_truncated_bytes_do_not_reappear_after_a_power_cut(bench: CacheBench) -> None:
    """Truncated bytes stay removed, even if a power cut loses a write after the truncation."""
    bench.write(0, OLD)
    await bench.cache.block_sync.sync_files()
    new = copy(bench, 6, cuts=True)
    bench.cache.write_in_place(bench.located(0), 10, b"later")

    await cut_power(bench, new)

    assert content(bench) == OLD[:6]


async def test_copy_of_a_copied_block_gets_the_content_of_the_first_original(
    bench: CacheBench,
) -> None:
    """In a chain of copied blocks, each copy is restored before it serves as an origin."""
    await bench.upload_content(OLD)
    first = copy(bench, len(OLD))
    bench.cache.seal([first])
    second = copy(bench, 10, cuts=True)

    await cut_power(bench, first, second)

    assert content(bench) == OLD[:10]


async def test_hole_at_the_beginning_of_a_block_is_restored_after_a_power_cut(
    bench: CacheBench,
) -> None:
    """A power cut may lose the bytes after a hole, but the hole itself must be restored."""
    bench.db.begin()
    block = bench.cache.write_new(INO, BlockIndex(0), 100, b"new")
    bench.db.commit()
    bench.files.remove(block)

    await cut_power(bench)

    assert content(bench) == bytes(100)
    with pytest.raises(LostBlockError):
        bench.cache.read_local(bench.located(0), 0, 101)


async def test_overwritten_block_gets_its_old_content_back_after_a_power_cut(
    bench: CacheBench,
) -> None:
    """If a power cut loses the new bytes of a block, its old bytes are restored."""
    await bench.upload_content(OLD)
    bench.db.begin()
    new = bench.cache.write_new(INO, BlockIndex(0), 0, b"-" * len(OLD), replaced=bench.located(0))

    await cut_power(bench, new)

    assert content(bench) == OLD


async def test_upload_of_a_copied_block_deletes_its_origin_record(bench: CacheBench) -> None:
    await bench.upload_content(OLD)
    copy(bench, len(OLD))
    await bench.upload(0)

    assert block_origins.blocks(bench.db) == []


async def test_mount_fails_without_loss_of_copied_blocks_if_the_store_is_unreachable(
    bench: CacheBench,
) -> None:
    """If copied blocks cannot be restored, the mount fails; a later mount restores the blocks."""
    await bench.upload_content(OLD)
    new = copy(bench, len(OLD))
    bench.store.fail("get_range", TransientStoreError("pack", "away"))

    with pytest.raises(TransientStoreError):
        await cut_power(bench, new)
    await cut_power(bench, new)

    assert content(bench) == OLD


async def test_copied_block_raises_an_error_if_its_original_was_deleted(bench: CacheBench) -> None:
    await bench.upload_content(OLD)
    new = copy(bench, len(OLD))
    for key in [key async for key in bench.pack_keys()]:
        await bench.store.delete([key])

    await cut_power(bench, new)

    with pytest.raises(LostBlockError):
        bench.cache.read_local(bench.located(0), 0, 1)
