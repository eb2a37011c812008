"""Eviction of clean blocks, and protection of blocks at damaged locations."""

import os
import threading

import pytest
import trio

from s3fs_meta.cache import eviction
from s3fs_meta.errors import LostBlockError, NotLocalError, ObjectMissingError, ShortageError
from s3fs_meta.limits import EVICTED_AT_ONCE_MAX, LOOP_SLICE_ROWS, MIB
from s3fs_meta.meta.tables import block_map, blocks, cached_blocks, damage_marks
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import BlockId, BlockIndex, BlockState
from tests.cache.conftest import INO, CacheBench
from tests.descriptors import no_more_files
from tests.polling import until


async def test_eviction_of_many_small_blocks_removes_most_files_in_a_thread(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop removes only a few evicted files itself; a thread removes the others."""
    for index in range(100):
        bench.write(index, bytes([index]) * 100)
    await bench.upload(*range(100))
    cache = bench.new_cache(bytes_max=10_000)
    loop, removed_by = threading.get_ident(), bench.watch_removals(monkeypatch)

    assert cache.find_room(500)
    assert removed_by == [loop] * 5
    assert not cache.find_room(9000)
    await cache.wait_for_room(9000)

    assert removed_by.count(loop) <= 5 + 2 * EVICTED_AT_ONCE_MAX
    assert len(removed_by) == 90
    assert len(list(bench.files.numbers())) == cache.index.total_count == 10


async def test_every_block_file_has_a_row_after_a_cancelled_eviction(bench: CacheBench) -> None:
    """If a writer is cancelled, the rows and files of evicted blocks are still removed together."""
    for index in range(100):
        bench.write(index, bytes([index]) * 100)
    await bench.upload(*range(100))
    cache = bench.new_cache(bytes_max=10_000)

    with trio.CancelScope() as scope:
        scope.cancel()
        await cache.wait_for_room(9000)

    assert len(list(bench.files.numbers())) == cache.index.total_count


async def test_cancelled_removal_of_deleted_blocks_leaves_no_files_without_rows(
    bench: CacheBench,
) -> None:
    """Deletion must finish, because after a clean unmount no mount searches for leftover files."""
    block = await bench.upload_content(b"content")

    with trio.CancelScope() as scope:
        scope.cancel()
        await bench.cache.forget_removed([block])

    assert bench.cache.index.get(block) is None
    assert list(bench.files.numbers()) == []


async def test_number_of_cached_blocks_is_limited(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the cache has too many blocks, the least recently used blocks are evicted."""
    monkeypatch.setattr(eviction, "CACHED_BLOCKS_MAX", 2)
    made = [bench.write(index, b"content") for index in range(4)]
    await bench.upload(*range(4))

    await bench.cache.evictor.evict(0)

    assert sorted(bench.cache.index.blocks()) == made[2:]


def _damage(bench: CacheBench, block: BlockId) -> Mark:
    """Mark the pack of a block as damaged."""
    pack = blocks.get(bench.db, block).pack
    assert pack is not None
    mark = Mark(pack, None)
    bench.db.begin()
    damage_marks.add(bench.db, mark)
    return mark


async def test_damage_mark_prevents_eviction_of_a_block(bench: CacheBench) -> None:
    """A cached block at a damaged location is not evicted, because it may be the last copy."""
    damaged, intact = bench.write(0, b"damaged"), bench.write(1, b"intact")
    await bench.upload(0)
    await bench.upload(1)
    mark, index = _damage(bench, damaged), bench.cache.index
    assert intact in index.blocks()

    bench.cache.evictor.evict_bytes(1 << 60)

    assert index.blocks() == [damaged]
    assert index.spared_bytes == len(b"damaged")
    assert bench.cache.spare_bytes == 64 * MIB - len(b"damaged")
    bench.cache.evictor.reconsider()
    bench.cache.evictor.evict_bytes(1 << 60)
    assert index.blocks() == [damaged], "the block is still damaged"

    damage_marks.remove(bench.db, [mark])
    bench.cache.evictor.reconsider()
    bench.cache.evictor.evict_bytes(1 << 60)
    assert index.blocks() == []
    assert index.spared_bytes == 0


async def test_eviction_skips_all_blocks_at_damaged_locations(bench: CacheBench) -> None:
    """Each slice of the search for evictable blocks examines a limited number of blocks."""
    damaged = [bench.write(index, b"damaged") for index in range(5)]
    await bench.upload(*range(5))
    _damage(bench, damaged[0])
    for index in (5, 6, 7):
        bench.write(index, b"intact!!")
    await bench.upload(5, 6, 7)
    cache = bench.new_cache(bytes_max=7 * len(damaged))

    await cache.evictor.evict(0, slice_rows=2)

    assert sorted(cache.index.blocks()) == damaged
    assert len(list(bench.files.numbers())) == len(damaged)


@pytest.mark.parametrize("how", ["copied", "replaced", "removed"])
async def test_file_of_a_released_block_at_a_damaged_location_stays_until_a_sync(
    bench: CacheBench, how: str
) -> None:
    """A released block's file stays until the next sync, because a crash may restore its row."""
    block = await bench.upload_content(b"damaged")
    _damage(bench, block)

    if how == "copied":
        bench.cache.copy_on_write(bench.located(0), INO, BlockIndex(0), 3)
    elif how == "replaced":
        bench.cache.write_new(INO, BlockIndex(0), 0, b"changed", replaced=bench.located(0))
    else:
        block_map.remove(bench.db, INO, BlockIndex(0))
        bench.cache.release(block)

    assert bench.files.read(block, 0, 7) == b"damaged"
    if how != "copied":  # The caller of copy_on_write releases the copied block.
        assert cached_blocks.in_state(bench.db, BlockState.DOOMED) == [block]
        await bench.cache.settle([], [block])
        assert bench.files.size(block) is None


async def test_waiting_writer_gets_the_cache_space_of_a_finished_request(
    bench: CacheBench,
) -> None:
    """Blocks freed by a finished request wake a waiting writer, even if no upload ends."""
    block = await bench.upload_content(b"needed")
    cache = bench.new_cache(bytes_max=6)
    async with trio.open_nursery() as nursery:
        with cache.evictor.keeping() as kept:
            kept.add(block)
            nursery.start_soon(cache.wait_for_room, 6)
            await until(lambda: cache.writers.count)
            assert cache.index.get(block) is not None

    assert cache.index.get(block) is None


async def test_dropcache_keeps_blocks_that_are_not_clean(bench: CacheBench) -> None:
    """The dropcache command evicts only content that the store has confirmed."""
    bench.write(0, b"a" * 5000)
    await bench.upload(0)
    bench.write(1, b"b" * 3000)
    wanted = [BlockId(999), *bench.cache.index.blocks()]  # Block 999 is not in the cache.
    found = await bench.cache.evictor.drop(wanted)

    assert (found.blocks, found.bytes) == (1, 5000)
    assert found.kept == {"not_uploaded": 3000}
    assert not bench.cache.is_local(bench.located(0))
    assert bench.cache.is_local(bench.located(1))
    assert list(bench.files.numbers()) == bench.cache.index.blocks()


async def test_dropcache_keeps_the_blocks_of_a_running_request(bench: CacheBench) -> None:
    """If dropcache evicted blocks of a running request, the request would fetch them again."""
    needed = bench.write(0, b"content")
    bench.write(1, b"other")
    await bench.upload(0, 1)
    evictor, index = bench.cache.evictor, bench.cache.index

    with evictor.keeping() as kept:
        kept.add(needed)
        found = await evictor.drop(index.blocks(), pinned=True)

    assert (found.blocks, found.kept) == (1, {"needed": 7})
    assert (await evictor.drop(index.blocks())).blocks == 1


async def test_eviction_for_a_large_file_is_divided_into_slices(bench: CacheBench) -> None:
    """Removing the files of all cached blocks in one step would block the event loop."""
    count = LOOP_SLICE_ROWS + 3
    for index in range(count):
        bench.write(index, b"abc")
    await bench.upload(*range(count))

    assert await bench.cache.evictor.evict_some(1 << 60)
    assert bench.cache.index.total_count == 3
    assert not await bench.cache.evictor.evict_some(1 << 60)
    assert bench.cache.index.total_count == 0
    assert not any(path.is_file() for path in bench.files.root.rglob("*"))


@pytest.mark.parametrize("cause", ["no open files", "no file of the copy"])
async def test_last_copy_is_kept_if_a_write_cannot_copy_it(bench: CacheBench, cause: str) -> None:
    """If a write cannot copy a block that may be the last copy, the block must not be lost."""
    block = await bench.upload_content(b"damaged")
    _damage(bench, block)
    if cause == "no open files":
        bench.files.let_go([block])
        with no_more_files(), pytest.raises(ShortageError):
            bench.cache.copy_on_write(bench.located(0), INO, BlockIndex(0), 3)
    else:
        name = f"{bench.db.counters.next_block:x}"
        (bench.files.root / "xxx" / name).mkdir()  # Opening the file fails with EISDIR.
        with pytest.raises(LostBlockError, match="Is a directory"):
            bench.cache.copy_on_write(bench.located(0), INO, BlockIndex(0), 3)

    assert bench.cache.read_local(bench.located(0), 0, 7) == b"damaged"
    assert bench.files.read(block, 0, 7) == b"damaged"


async def test_unreadable_last_copy_stays_until_a_download_replaces_it(bench: CacheBench) -> None:
    """An unreadable cache file may become readable, and its pack may be intact after all."""
    block = await bench.upload_content(b"damaged")
    _damage(bench, block)
    path = bench.files.root / "xxx" / f"{block:x}"
    os.truncate(path, 3)
    with pytest.raises(NotLocalError):
        bench.cache.read_local(bench.located(0), 0, 7)
    bench.store.fail("get_range", ObjectMissingError("pack"), times=2)
    with pytest.raises(ObjectMissingError):
        await bench.cache.fetch(bench.located(0))
    assert path.read_bytes() == b"dam"

    await bench.cache.fetch(bench.located(0))

    assert not bench.cache.suspects
    assert bench.cache.read_local(bench.located(0), 0, 7) == b"damaged"


async def test_block_without_a_file_is_not_kept_as_a_last_copy(bench: CacheBench) -> None:
    """A block whose file is missing is not kept as a last copy and uses no cache space."""
    block = await bench.upload_content(b"damaged")
    _damage(bench, block)
    (bench.files.root / "xxx" / f"{block:x}").unlink()
    bench.files.let_go([block])
    with pytest.raises(NotLocalError):
        bench.cache.read_local(bench.located(0), 0, 7)
    bench.store.fail("get_range", ObjectMissingError("pack"), times=2)

    with pytest.raises(ObjectMissingError):
        await bench.cache.fetch(bench.located(0))

    assert bench.cache.index.total_bytes == 0
    assert not bench.cache.suspects


async def test_dropcache_keeps_a_block_that_may_be_the_last_copy(bench: CacheBench) -> None:
    """Even with the option ``pinned``, dropcache keeps blocks at damaged locations."""
    damaged, _intact = bench.write(0, b"damaged"), bench.write(1, b"intact")
    await bench.upload(0)
    await bench.upload(1)
    _damage(bench, damaged)
    found = await bench.cache.evictor.drop(bench.cache.index.blocks(), pinned=True)

    assert (found.blocks, found.kept) == (1, {"last_copies": 7})
    assert bench.cache.index.blocks() == [damaged]


async def test_smaller_cache_evicts_clean_blocks(bench: CacheBench) -> None:
    for index in range(4):
        bench.write(index, bytes([index + 1]) * 5000)
    await bench.upload(0, 1, 2)
    await bench.cache.resize(10_000)

    assert bench.cache.index.total_bytes == 10_000
    assert bench.cache.is_local(bench.located(3))
    assert not bench.cache.has_room(1)
    await bench.cache.resize(20_000)
    assert bench.cache.has_room(10_000)
