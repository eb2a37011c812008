"""Fetches that combine small blocks with their neighbours in the pack, or a run of blocks."""

import random

import pytest
import trio
import trio.testing

from s3fs_meta.cache.fetching.fetcher import Found
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.errors import (
    FormatError,
    ObjectMissingError,
    StoreUnavailableError,
    UnexpectedStoreError,
)
from s3fs_meta.limits import KIB, MIB, PACK_BYTES_MAX
from s3fs_meta.meta.tables import cached_blocks
from s3fs_meta.model import BlockState
from s3fs_meta.objects.metrics import CountingStore
from tests.cache.conftest import CacheBench

_SMALL_BYTES = 2 * KIB


async def _read(bench: CacheBench, index: int) -> bytes:
    """Fetch a block, retrying until the block is cached, then read it, as the read handler does."""
    while not bench.cache.is_local(located := bench.located(index)):
        await bench.cache.fetch(located)
    return bench.cache.read_local(located, 0, located.plain_bytes)


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
async def test_small_blocks_of_one_pack_need_few_requests(bench: CacheBench, count: int) -> None:
    contents = await bench.store_evicted(count, _SMALL_BYTES)
    bench.store = counting = CountingStore(bench.store)  # type: ignore[assignment]
    bench.new_cache()

    for index in range(count):
        assert await _read(bench, index) == contents[index]
    in_order = counting.counts["get_range"].requests
    bench.cache.evictor.evict_bytes(1 << 60)
    for index in random.Random(1).sample(range(count), count):
        assert await _read(bench, index) == contents[index]

    assert in_order <= 1 + count // 250
    assert counting.counts["get_range"].requests - in_order <= 16
    assert counting.counts["get"].requests == 0


async def test_readers_of_neighbouring_small_blocks_share_one_request(bench: CacheBench) -> None:
    contents = await bench.store_evicted(50, _SMALL_BYTES)
    found: dict[int, bytes] = {}

    async def read(index: int) -> None:
        found[index] = await _read(bench, index)

    async with trio.open_nursery() as nursery:
        for index in range(50):
            nursery.start_soon(read, index)

    assert [found[index] for index in range(50)] == contents
    assert len(bench.store.calls) <= 2


async def test_large_block_is_fetched_without_neighbours(bench: CacheBench) -> None:
    """A large block is fetched alone; read-ahead fetches the other blocks of large files."""
    contents = await bench.store_evicted(3, 64 * KIB)

    assert await _read(bench, 1) == contents[1]

    assert not bench.cache.is_local(bench.located(0))
    assert not bench.cache.is_local(bench.located(2))


async def test_damaged_neighbouring_block_does_not_fail_the_fetch_of_a_block(
    bench: CacheBench,
) -> None:
    """Only the reader of a damaged block gets an error, not the reader of its neighbour."""
    contents = await bench.store_evicted(3, _SMALL_BYTES)
    # The flipped bit in the middle of the byte range is in block 1.
    bench.store.corrupt("get_range", times=3)

    assert await _read(bench, 0) == contents[0]
    assert await _read(bench, 2) == contents[2]
    assert not bench.cache.is_local(bench.located(1))
    with pytest.raises(FormatError):
        await _read(bench, 1)
    assert await _read(bench, 1) == contents[1]
    assert bench.files.size(bench.located(1).block) == len(contents[1])


async def _heard(bench: CacheBench) -> list[tuple[int, bool]]:
    """Read block 0, which is damaged, and return the damage reports of the cache."""
    bench.heard.clear()
    with pytest.raises((FormatError, ObjectMissingError)):
        await _read(bench, 0)
    return bench.heard


async def test_damage_is_reported_after_a_second_answer_with_a_wrong_hash(
    bench: CacheBench,
) -> None:
    """A block with a wrong hash is requested a second time before damage is reported."""
    [content] = await bench.store_evicted(1, _SMALL_BYTES)
    block = bench.located(0).block
    bench.store.corrupt("get_range", times=2)
    assert await _heard(bench) == [(block, False)]
    bench.store.corrupt("get_range")
    assert await _read(bench, 0) == content


async def test_missing_pack_counts_as_damage_only_if_the_superblock_exists(
    bench: CacheBench,
) -> None:
    """Without the superblock, a missing pack is not damage, because the disk may be unmounted."""
    await bench.store_evicted(1, _SMALL_BYTES)
    block = bench.located(0).block
    [key] = [key async for key in bench.pack_keys()]
    await bench.store.delete([key])
    assert await _heard(bench) == []

    await bench.store.put(superblock_codec.KEY, b"superblock")
    assert await _heard(bench) == [(block, True)]


async def test_damaged_block_is_read_from_a_newer_location(bench: CacheBench) -> None:
    """If the old and the new location are damaged, the reader gets the old location's error."""
    [content] = await bench.store_evicted(1, _SMALL_BYTES)
    bench.write(7, content)
    other = await bench.upload(7)
    bench.db.begin()
    bench.cache.evictor.evict_bytes(1 << 60)
    found = bench.located(7)
    assert found.pack_offset is not None
    assert found.stored_bytes is not None
    bench.elsewhere = Found(other, found.pack_offset, found.stored_bytes)
    bench.store.corrupt("get_range", times=2)
    assert await _read(bench, 0) == content
    assert bench.asked == [bench.located(0).block]

    bench.cache.evictor.evict_bytes(1 << 60)
    bench.elsewhere = Found(other, 1, found.stored_bytes)
    bench.store.corrupt("get_range", times=2)
    with pytest.raises(FormatError):
        await _read(bench, 0)


async def test_block_before_the_end_of_a_truncated_pack_can_be_read(bench: CacheBench) -> None:
    """If a byte range exceeds a truncated pack, each block is requested in a separate request."""
    contents = [random.Random(3).randbytes(2 * KIB) for _ in range(3)]
    for index, content in enumerate(contents):
        bench.write(index, content)
    key = await bench.upload(0, 1, 2)
    bench.cache.evictor.evict_bytes(1 << 60)
    last = bench.located(2)
    assert last.pack_offset is not None
    data = (await bench.store.get(key, PACK_BYTES_MAX)).data
    await bench.store.put(key, data[: last.pack_offset + 10])

    assert await _read(bench, 0) == contents[0]
    with pytest.raises(FormatError):
        await _read(bench, 2)
    assert await _read(bench, 1) == contents[1]


async def test_failed_request_is_retried_by_readers_of_neighbouring_blocks(
    bench: CacheBench,
) -> None:
    """A reader that waits for another reader's failed request sends its own request."""
    contents = await bench.store_evicted(2, _SMALL_BYTES)
    gate = bench.store.hold("get_range")
    bench.store.fail("get_range", UnexpectedStoreError("pack", "odd"))
    errors: list[UnexpectedStoreError] = []

    async def first() -> None:
        try:
            await _read(bench, 0)
        except UnexpectedStoreError as exc:
            errors.append(exc)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        await gate.wait_started()
        nursery.start_soon(_read, bench, 1)
        await trio.testing.wait_all_tasks_blocked()
        gate.open()

    assert len(errors) == 1
    assert await _read(bench, 1) == contents[1]


async def test_reader_of_a_neighbouring_block_waits_only_once_during_an_outage(
    bench: CacheBench, autojump_clock: trio.testing.MockClock
) -> None:
    """If a shared request times out, all of its readers fail without waiting a second time."""
    await bench.store_evicted(2, _SMALL_BYTES)
    bench.store.down = StoreUnavailableError("pack", 1, 1.0, "away")
    began_s = trio.current_time()
    failed: list[int] = []

    async def read(index: int) -> None:
        try:
            await _read(bench, index)
        except StoreUnavailableError:
            failed.append(index)

    async with trio.open_nursery() as nursery:
        for index in range(2):
            nursery.start_soon(read, index)

    assert sorted(failed) == [0, 1]
    assert trio.current_time() - began_s < 61


async def test_fetched_neighbouring_blocks_do_not_evict_recently_used_blocks(
    bench: CacheBench,
) -> None:
    """Unread blocks that were fetched as neighbours use at most 1/16 of a full cache."""
    bench.new_cache(bytes_max=MIB)
    contents = await bench.store_evicted(400, _SMALL_BYTES)
    used = range(400, 900)
    for index in used:
        bench.write(index, random.Random(index).randbytes(2 * KIB))
    await bench.upload(*used)
    for index in used:
        await _read(bench, index)

    for index in range(0, 400, 40):
        assert await _read(bench, index) == contents[index]

    kept = sum(bench.cache.is_local(bench.located(index)) for index in used)
    assert bench.cache.index.total_bytes <= MIB
    assert bench.cache.index.unasked_bytes <= MIB // 16
    assert kept * 2 * KIB > MIB * 7 // 8


async def test_neighbouring_block_that_is_removed_during_its_fetch_is_not_cached(
    bench: CacheBench,
) -> None:
    await bench.store_evicted(3, _SMALL_BYTES)
    gate = bench.store.hold("get_range")
    gone = bench.located(1).block
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_read, bench, 0)
        await gate.wait_started()
        bench.db.begin()
        bench.db.run("DELETE FROM block_map WHERE block = ?", (gone,))
        bench.cache.release(gone)
        gate.open()

    assert bench.files.size(gone) is None
    assert cached_blocks.get(bench.db, gone) is None
    row = cached_blocks.get(bench.db, bench.located(2).block)
    assert row is not None
    assert row.state is BlockState.CLEAN


async def _fetch_run(bench: CacheBench, *indexes: int) -> None:
    await bench.cache.fetch_run([bench.located(index) for index in indexes])


async def test_run_of_blocks_is_fetched_with_one_request(bench: CacheBench) -> None:
    """Another reader of a block in the run waits for the request of the first reader."""
    contents = await bench.store_evicted(6, 64 * KIB)
    found: list[bytes] = []

    async def read(index: int) -> None:
        found.append(await _read(bench, index))

    async with trio.open_nursery() as nursery:
        gate = bench.store.hold("get_range")
        nursery.start_soon(_fetch_run, bench, *range(6))
        await gate.wait_started()
        nursery.start_soon(read, 5)
        await trio.testing.wait_all_tasks_blocked()
        gate.open()

    assert found == [contents[5]]
    assert all(bench.cache.is_local(bench.located(index)) for index in range(6))
    assert len(bench.store.calls) == 1


async def test_damaged_block_in_a_run_fails_only_readers_of_that_block(bench: CacheBench) -> None:
    contents = await bench.store_evicted(3, _SMALL_BYTES)
    # The flipped bit in the middle of the byte range is in block 1.
    bench.store.corrupt("get_range", times=3)

    await _fetch_run(bench, 0, 1, 2)

    assert await _read(bench, 0) == contents[0]
    assert await _read(bench, 2) == contents[2]
    with pytest.raises(FormatError):
        await _read(bench, 1)
    assert await _read(bench, 1) == contents[1]


async def test_readers_fetch_single_blocks_after_the_fetch_of_a_run_failed(
    bench: CacheBench,
) -> None:
    contents = await bench.store_evicted(2, 64 * KIB)
    gate = bench.store.hold("get_range")
    bench.store.fail("get_range", UnexpectedStoreError("pack", "odd"))
    found: list[bytes] = []

    async def read() -> None:
        found.append(await _read(bench, 1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_fetch_run, bench, 0, 1)
        await gate.wait_started()
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        gate.open()

    assert found == [contents[1]]


async def test_readers_of_a_run_of_blocks_wait_only_once_during_an_outage(
    bench: CacheBench, autojump_clock: trio.testing.MockClock
) -> None:
    """If the request for a run times out, all readers fail without waiting a second time."""
    await bench.store_evicted(2, 64 * KIB)
    bench.store.down = StoreUnavailableError("pack", 1, 1.0, "away")
    began_s = trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_fetch_run, bench, 0, 1)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(StoreUnavailableError):
            await _read(bench, 1)

    assert trio.current_time() - began_s < 61


async def test_block_that_is_being_fetched_is_not_requested_a_second_time(
    bench: CacheBench,
) -> None:
    await bench.store_evicted(2, 64 * KIB)
    gate = bench.store.hold("get_range")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_fetch_run, bench, 0, 1)
        await gate.wait_started()
        await _fetch_run(bench, 0, 1)
        gate.open()

    assert len(bench.store.calls) == 1


async def test_waiting_reader_gets_no_error_if_another_reader_is_cancelled(
    bench: CacheBench,
) -> None:
    content = b"content" * 10_000
    await bench.upload_content(content)
    bench.cache.evictor.evict_bytes(1 << 60)
    gate = bench.store.hold("get_range")
    async with trio.open_nursery() as nursery, trio.open_nursery() as first:
        first.start_soon(bench.cache.fetch, bench.located(0))
        await gate.wait_started()
        nursery.start_soon(bench.cache.fetch, bench.located(0))
        await trio.testing.wait_all_tasks_blocked()
        first.cancel_scope.cancel()
    gate.open()
    await bench.cache.fetch(bench.located(0))

    assert bench.cache.read_local(bench.located(0), 0, len(content)) == content
