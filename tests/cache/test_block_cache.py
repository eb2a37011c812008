"""The block cache: states of blocks, fetching, back-pressure and eviction."""

import errno
import os
import threading
from typing import Any

import pytest
import trio

from s3fs_meta.errors import (
    FormatError,
    LostBlockError,
    NoSpaceLeftError,
    NotLocalError,
    StoreUnavailableError,
)
from s3fs_meta.limits import KIB
from s3fs_meta.meta.tables import block_map, block_origins, blocks, cached_blocks
from s3fs_meta.model import BlockIndex, BlockState, Ino
from tests.cache.conftest import INO, CacheBench
from tests.damage import flipped
from tests.faults import refuse_file


async def test_dirty_block_is_overwritten_and_extended_in_place(bench: CacheBench) -> None:
    bench.write(0, b"abc")
    bench.cache.write_in_place(bench.located(0), 5, b"xyz")

    located = bench.located(0)

    assert located.plain_bytes == 8
    assert bench.cache.read_local(located, 0, 10) == b"abc\0\0xyz\0\0"


async def test_write_to_a_sealed_block_changes_a_copy(bench: CacheBench) -> None:
    old = bench.write(0, b"abcdef")
    bench.cache.seal([old])

    new = bench.cache.copy_on_write(bench.located(0), INO, BlockIndex(0), 6)
    block_map.set(bench.db, INO, BlockIndex(0), new)
    bench.cache.write_in_place(bench.located(0), 0, b"XY")

    assert bench.files.read(old, 0, 6) == b"abcdef"
    assert bench.files.read(new, 0, 6) == b"XYcdef"


@pytest.mark.parametrize("opened_before", [True, False])
async def test_write_to_a_clean_block_renames_its_file(
    bench: CacheBench, opened_before: bool
) -> None:
    """Renaming the file of a clean block saves a copy, because the store has the old content."""
    old = await bench.upload_content(b"abcdef")
    if not opened_before:
        bench.files.let_go([old])
    path = bench.files.root / "xxx" / f"{old:x}"
    number = path.stat().st_ino
    located = bench.located(0)

    bench.db.begin()
    new = bench.cache.copy_on_write(located, INO, BlockIndex(0), 4)
    block_map.set(bench.db, INO, BlockIndex(0), new)
    bench.cache.write_in_place(bench.located(0), 0, b"XY")

    assert path.with_name(f"{new:x}").stat().st_ino == number
    assert bench.cache.read_local(bench.located(0), 0, 6) == b"XYcd\0\0"
    assert not path.exists()
    assert bench.cache.index.get(old) is None
    assert cached_blocks.get(bench.db, old) is None
    assert block_origins.blocks(bench.db) == [new]


async def test_write_to_a_shared_clean_block_keeps_its_file(bench: CacheBench) -> None:
    old = await bench.upload_content(b"abcdef")
    bench.db.begin()
    blocks.add_ref(bench.db, old)
    block_map.set(bench.db, Ino(INO + 1), BlockIndex(0), old)

    new = bench.cache.copy_on_write(bench.located(0), INO, BlockIndex(0), 6)

    assert bench.files.read(new, 0, 6) == b"abcdef"
    assert bench.files.read(old, 0, 6) == b"abcdef"


async def test_block_whose_rename_was_rolled_back_is_fetched_again(bench: CacheBench) -> None:
    """If a write to a clean block is rolled back, its renamed file cannot be used any more."""
    await bench.upload_content(b"abcdef")
    bench.db.begin()
    bench.cache.copy_on_write(bench.located(0), INO, BlockIndex(0), 6)
    bench.db.rollback()

    with pytest.raises(NotLocalError):
        bench.cache.read_local(bench.located(0), 0, 6)
    await bench.cache.fetch(bench.located(0))

    assert bench.cache.read_local(bench.located(0), 0, 6) == b"abcdef"


@pytest.mark.parametrize("code", [errno.EIO, errno.EBADMSG, errno.EUCLEAN])
async def test_clean_block_whose_file_has_a_damaged_inode_is_read_from_the_store(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The disk refuses to open, replace or remove the file, but the store has the block."""
    block = await bench.upload_content(b"abc")
    bench.files.let_go([block])
    refuse_file(monkeypatch, f"{block:x}", code)

    with pytest.raises(NotLocalError):
        bench.cache.read_local(bench.located(0), 0, 3)
    await bench.cache.fetch(bench.located(0), for_read=True)

    assert bench.cache.read_local(bench.located(0), 0, 3) == b"abc"


async def test_eviction_removes_all_other_files_if_one_has_a_damaged_inode(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without a row would use disk space that the cache does not count."""
    for index in range(4):
        bench.write(index, b"%d" % index)
    await bench.upload(0, 1, 2, 3)
    refuse_file(monkeypatch, f"{bench.located(1).block:x}", errno.EUCLEAN)

    dropped = await bench.cache.evictor.drop([bench.located(index).block for index in range(4)])

    assert dropped.blocks == 4
    assert list(bench.files.numbers()) == [bench.located(1).block]


async def test_eviction_on_a_read_only_disk_fails(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that concerns more than one file is a failure of the disk."""
    for index in range(3):
        bench.write(index, b"%d" % index)
    await bench.upload(0, 1, 2)
    refuse_file(monkeypatch, f"{bench.located(0).block:x}", errno.EROFS)

    with pytest.raises(OSError, match="refused"):
        await bench.cache.evictor.drop([bench.located(index).block for index in range(3)])
    assert list(bench.files.numbers()) == [bench.located(0).block]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_renamed_file_that_cannot_be_truncated_is_removed(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A write renames the file of a clean block; a failed write leaves no file without a row."""
    await bench.upload_content(b"abcdef")

    def refuse(_fd: int, _length: int) -> None:
        raise OSError(code, "refused")

    monkeypatch.setattr(os, "ftruncate", refuse)
    bench.db.begin()
    with pytest.raises((NotLocalError, NoSpaceLeftError)):
        bench.cache.copy_on_write(bench.located(0), INO, BlockIndex(0), 4)

    assert list(bench.files.numbers()) == []
    with pytest.raises(NotLocalError):
        bench.cache.read_local(bench.located(0), 0, 6)


async def test_write_to_a_clean_block_with_a_short_file_fetches_the_block(
    bench: CacheBench,
) -> None:
    old = await bench.upload_content(b"abcdef")
    os.truncate(bench.files.root / "xxx" / f"{old:x}", 3)
    bench.db.begin()

    with pytest.raises(NotLocalError):
        bench.cache.copy_on_write(bench.located(0), INO, BlockIndex(0), 6)

    assert not bench.cache.is_local(bench.located(0))


async def test_sealed_block_without_references_is_kept_until_its_upload(bench: CacheBench) -> None:
    """A sealed block may be uploaded although no file uses it, because an image may refer to it."""
    block = bench.write(0, b"abc")
    bench.cache.seal([block])
    block_map.remove(bench.db, INO, BlockIndex(0))

    bench.cache.release(block)

    row = blocks.find(bench.db, block)
    assert row is not None
    assert row.refs == 0
    assert bench.files.size(block) == 3


async def test_evicted_block_is_fetched_again(bench: CacheBench) -> None:
    bench.write(0, b"a" * 1000)
    await bench.upload(0)
    bench.write(1, b"b" * 1000)
    await bench.upload(1)
    cache = bench.new_cache(bytes_max=1500)
    await cache.wait_for_room(100)

    evicted = bench.located(0)
    assert not cache.is_local(evicted)
    await cache.fetch(evicted)

    assert cache.read_local(bench.located(0), 0, 1000) == b"a" * 1000


async def test_block_is_fetched_once_for_many_readers(bench: CacheBench) -> None:
    bench.write(0, b"a" * 1000)
    await bench.upload(0)
    bench.db.begin()
    bench.cache.doom(bench.located(0).block)  # The cache deletes the clean block immediately.
    located = bench.located(0)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(bench.cache.fetch, located)

    assert bench.cache.read_local(bench.located(0), 0, 3) == b"aaa"
    assert bench.cache.fetcher.fetched_blocks == 1


async def test_read_of_a_lost_block_is_an_error(bench: CacheBench) -> None:
    """A read of a block without any copy raises an error with the number of the block."""
    block = bench.write(0, b"abc")
    bench.files.remove(block)

    with pytest.raises(LostBlockError, match=f"block {block} is lost"):
        bench.cache.read_local(bench.located(0), 0, 3)


async def test_read_of_a_torn_dirty_block_is_an_error(bench: CacheBench) -> None:
    """A block file shorter than its recorded size is not padded with zeros."""
    block = bench.write(0, b"abcdef")
    bench.files.cut_after(block, 4)

    with pytest.raises(LostBlockError, match="ends at byte 4"):
        bench.cache.read_local(bench.located(0), 0, 6)


async def test_write_after_the_end_of_a_torn_block_file_is_refused(bench: CacheBench) -> None:
    """A write beyond the end of a torn block file would leave a gap that reads as zeros."""
    block = bench.write(0, b"abcdef")
    bench.files.cut_after(block, 2)

    for offset in (4, 6, 9):
        with pytest.raises(LostBlockError, match="ends at byte 2"):
            bench.cache.write_in_place(bench.located(0), offset, b"x")
    bench.cache.write_in_place(bench.located(0), 2, b"CDEF")

    assert bench.cache.read_local(bench.located(0), 0, 6) == b"abCDEF"


async def test_hole_at_the_beginning_of_a_block_needs_no_sync(bench: CacheBench) -> None:
    bench.db.begin()
    block = bench.cache.write_new(INO, BlockIndex(0), 100, b"abc")

    assert cached_blocks.unsynced_tails(bench.db) == [(block, 100, 103)]


async def test_clean_block_with_a_missing_file_is_fetched_again(bench: CacheBench) -> None:
    bench.write(0, b"abc")
    await bench.upload(0)
    bench.files.remove(bench.located(0).block)

    with pytest.raises(NotLocalError):
        bench.cache.read_local(bench.located(0), 0, 3)
    await bench.cache.fetch(bench.located(0))

    assert bench.cache.read_local(bench.located(0), 0, 3) == b"abc"


async def test_torn_clean_block_is_detected_by_its_hash_after_a_power_loss(
    bench: CacheBench,
) -> None:
    """After a power cut, a clean block is fetched again if its content has a wrong hash."""
    for index in (0, 1):
        bench.write(index, b"content %d" % index)
        await bench.upload(index)
    torn = bench.located(0)
    bench.files.write_within(torn.block, 0, b"garbage", 0)
    cache = bench.new_cache()
    cache.suspects.mark_all()

    for index in (0, 1):
        assert not cache.is_local(bench.located(index))
        await cache.fetch(bench.located(index))
        assert cache.read_local(bench.located(index), 0, 9) == b"content %d" % index

    assert cache.fetcher.fetched_blocks == 1


async def test_torn_uploaded_block_is_detected_by_its_hash_after_a_power_loss(
    bench: CacheBench,
) -> None:
    """A power cut may save the row of an uploaded block but tear its block file."""
    block = bench.write(0, b"content")
    await bench.upload(0)
    bench.db.begin()
    cached_blocks.set_state(bench.db, block, BlockState.UPLOADED)
    bench.files.write_within(block, 0, bytes(7), 0)
    cache = bench.new_cache()
    cache.suspects.mark_all()

    assert not cache.is_local(bench.located(0))
    await cache.fetch(bench.located(0))
    assert cache.read_local(bench.located(0), 0, 7) == b"content"


async def test_suspect_block_is_not_read_before_verification(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads hash the block for all its readers, and the torn block is fetched once."""
    bench.write(0, b"content")
    await bench.upload(0)
    bench.files.write_within(bench.located(0).block, 0, b"garbage", 0)
    cache = bench.new_cache()
    cache.suspects.mark_all()
    loop, threads = threading.get_ident(), []
    read = bench.files.read

    def watched(*arguments: Any) -> bytes:
        threads.append(threading.get_ident())
        return read(*arguments)

    monkeypatch.setattr(bench.files, "read", watched)

    async def reader() -> None:
        while not cache.is_local(bench.located(0)):
            await cache.fetch(bench.located(0))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(reader)

    assert threads
    assert loop not in threads
    assert cache.fetcher.fetched_blocks == 1
    assert cache.read_local(bench.located(0), 0, 7) == b"content"


async def test_all_suspect_blocks_are_verified_in_the_background(bench: CacheBench) -> None:
    """Verification after a power cut drops torn blocks and skips deleted blocks."""
    for index in range(4):
        bench.write(index, b"content %d" % index)
        await bench.upload(index)
    bench.files.write_within(bench.located(1).block, 0, b"garbage", 0)
    bench.files.remove(bench.located(2).block)
    cache = bench.new_cache()
    cache.suspects.mark_all()
    bench.db.begin()
    gone = bench.located(3).block
    bench.db.run("DELETE FROM block_map WHERE block = ?", (gone,))
    cache.release(gone)

    await cache.suspects.verify_all()

    assert not cache.suspects
    assert [cache.is_local(bench.located(index)) for index in range(3)] == [True, False, False]


async def test_files_of_blocks_that_no_row_refers_to_are_removed_in_a_separate_thread(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed tree may have thousands of block files, so a thread deletes them."""
    block = bench.write(0, b"abc")
    block_map.remove(bench.db, INO, BlockIndex(0))
    bench.cache.release(block)
    removed_by = bench.watch_removals(monkeypatch)

    await bench.cache.settle([], [block])

    assert len(removed_by) == 1
    assert removed_by != [threading.get_ident()]
    assert cached_blocks.get(bench.db, block) is None


async def test_fetch_from_a_damaged_pack_fails_and_caches_nothing(bench: CacheBench) -> None:
    bench.write(0, b"abc" * 100)
    await bench.upload(0)
    located = bench.located(0)
    bench.db.begin()
    bench.cache.doom(located.block)
    inner = bench.store.inner.objects  # type: ignore[attr-defined]
    [key] = inner
    inner[key] = flipped(inner[key], 0)

    with pytest.raises(FormatError):
        await bench.cache.fetch(bench.located(0))

    assert bench.files.size(located.block) is None


async def test_reader_of_an_unreachable_store_gets_an_error(
    bench: CacheBench, autojump_clock: trio.testing.MockClock
) -> None:
    """A read of an unreachable store fails after read_timeout; a later read succeeds."""
    bench.write(0, b"abc")
    await bench.upload(0)
    bench.db.begin()
    bench.cache.doom(bench.located(0).block)
    gate = bench.store.hold("get_range")

    with pytest.raises(StoreUnavailableError, match="read_timeout"):
        await bench.cache.fetch(bench.located(0))
    gate.open()
    await bench.cache.fetch(bench.located(0))

    assert bench.cache.read_local(bench.located(0), 0, 3) == b"abc"


async def test_waiting_writer_continues_after_an_upload(bench: CacheBench) -> None:
    cache = bench.new_cache(bytes_max=100 * KIB)
    bench.write(0, bytes(90 * KIB))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.wait_for_room, 50 * KIB)
        await trio.testing.wait_all_tasks_blocked()
        assert cache.upload_signal.is_set()

        await bench.upload(0)

    assert cache.index.total_bytes <= 50 * KIB


async def test_larger_cache_lets_waiting_writers_continue(bench: CacheBench) -> None:
    """If the cache is enlarged, writers continue; if it shrinks, the uploader is woken."""
    cache = bench.new_cache(bytes_max=100 * KIB)
    bench.write(0, bytes(90 * KIB))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.wait_for_room, 50 * KIB)
        await trio.testing.wait_all_tasks_blocked()
        await cache.resize(200 * KIB)
    assert cache.writers.count == 0
    await cache.upload_signal.wait(0)
    await cache.resize(50 * KIB)

    assert cache.upload_signal.is_set()


async def test_writer_gets_enospc_after_the_write_timeout(
    bench: CacheBench, autojump_clock: trio.testing.MockClock
) -> None:
    """A writer gets ENOSPC after write_timeout if no room appears; dirty blocks stay cached."""
    cache = bench.new_cache(bytes_max=100 * KIB)
    bench.write(0, b"x" * 90 * KIB)

    with pytest.raises(NoSpaceLeftError, match="blocks that are not uploaded yet"):
        await cache.wait_for_room(50 * KIB)

    assert cache.read_local(bench.located(0), 0, 3) == b"xxx"


async def test_cache_above_its_block_limit_has_no_room_for_more_blocks(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache limits the number of dirty blocks, and the number of all cached blocks."""
    for module in ("block_cache", "index"):
        monkeypatch.setattr(f"s3fs_meta.cache.{module}.DIRTY_BLOCKS_MAX", 2)
    for module in ("block_cache", "eviction"):
        monkeypatch.setattr(f"s3fs_meta.cache.{module}.CACHED_BLOCKS_MAX", 1)
    cache = bench.cache
    bench.write(0, b"a")
    assert cache.has_room(1)

    await bench.upload(0)
    bench.write(1, b"b")
    assert not cache.has_room(1)
    assert cache.find_room(1), "the first block is evicted"
    assert cache.has_room(1)

    for module in ("block_cache", "eviction"):
        monkeypatch.setattr(f"s3fs_meta.cache.{module}.CACHED_BLOCKS_MAX", 9)
    bench.write(2, b"c")
    assert not cache.has_room(1)
    assert not cache.find_room(1)


async def test_cache_index_matches_the_rows_after_a_rollback(bench: CacheBench) -> None:
    bench.write(0, b"kept")
    bench.db.commit()
    bench.write(1, b"lost")

    bench.db.rollback()

    assert bench.cache.index.count_in[BlockState.DIRTY] == 1
    assert cached_blocks.in_state(bench.db, BlockState.DIRTY) == [bench.located(0).block]


async def test_block_fetched_during_compaction_stays_sealed(bench: CacheBench) -> None:
    """A block that is fetched for compaction must keep its sealed state to enter the new pack."""
    block = bench.write(0, b"abc")
    await bench.upload(0)
    bench.cache.evictor.evict_bytes(10)
    located = bench.located(0)
    gate = bench.store.hold("get_range")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.cache.fetch, located)
        await gate.wait_started()
        bench.files.adopt(block, b"abc")
        bench.db.begin()
        bench.cache.seal_for_move(blocks.get(bench.db, block), INO, BlockIndex(0))
        gate.open()

    assert bench.located(0).state is BlockState.SEALED
    assert list(bench.cache.index.sealed) == [block]


async def test_fetch_that_needs_the_disk_reserve_is_refused(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch must leave the disk reserve free, which SQLite needs for the open commit group."""
    bench.write(0, b"abc" * 100)
    await bench.upload(0)
    bench.cache.evictor.evict_bytes(1000)
    monkeypatch.setattr(bench.cache.disk, "spare_bytes", lambda: 0)

    with pytest.raises(NoSpaceLeftError):
        await bench.cache.fetch(bench.located(0))

    assert bench.store.calls[-1].method != "get_range"


async def test_unreadable_row_of_a_block_does_not_affect_its_neighbours(bench: CacheBench) -> None:
    """A read fetches the neighbours in the pack, too; one of them has a damaged row."""
    contents = await bench.store_evicted(3, 1000)
    wanted = bench.located(0)
    bench.db.run("UPDATE blocks SET hash = 'text' WHERE block = ?", (bench.located(1).block,))

    await bench.cache.fetch(wanted)

    assert bench.cache.read_local(bench.located(0), 0, 1000) == contents[0]


async def test_cached_block_with_an_unreadable_length_does_not_prevent_a_mount(
    bench: CacheBench,
) -> None:
    bench.write(0, b"abc")
    other = bench.write(1, b"abcdef")
    bench.db.run("UPDATE blocks SET plain_bytes = 'text' WHERE block != ?", (other,))

    bench.cache.load()

    assert bench.cache.index.total_bytes == 6
    assert bench.cache.index.total_count == 2
