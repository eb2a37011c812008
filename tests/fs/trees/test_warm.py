"""Tests of downloading tree content into the cache."""

from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from s3fs_meta.errors import (
    NoSpaceLeftError,
    ObjectMissingError,
    StoreAccessError,
    StoreUnavailableError,
)
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.trees import warm
from s3fs_meta.fs.trees.warm import TreeContent, Warmed
from s3fs_meta.limits import KIB, MIB
from s3fs_meta.model import ROOT_INO, BlockId, Ino
from s3fs_meta.options.rate_limit import rate_limit
from tests.fs.conftest import BLOCK_BYTES, Volume, make_directory, make_file
from tests.fs.trees.samples import fill

pytestmark = pytest.mark.thorough

AWAY = StoreUnavailableError("pack/x", 3, 8.0, "connection refused")


async def _warm(volume: Volume, fs: Filesystem, *roots: Ino) -> tuple[TreeContent, Warmed]:
    content = await warm.content_of(fs.db, volume.session.cache, roots)
    return content, await warm.download(fs.db, volume.session.cache, content)


async def test_warmed_tree_can_be_read_without_the_store(volume: Volume, fs: Filesystem) -> None:
    """Warming downloads large and small files, and skips cached blocks."""
    top = make_directory(fs, b"top")
    contents = {}
    for number, size_bytes in enumerate([MIB, 3 * BLOCK_BYTES + 5, 100, 1, 7000]):
        ino = make_file(fs, b"f%d" % number, top)
        contents[ino] = await fill(fs, ino, size_bytes)
    await volume.evict()
    total = sum(map(len, contents.values()))

    content, done = await _warm(volume, fs, top)

    assert (content.total_bytes, content.missing_bytes, content.cached_bytes) == (total, total, 0)
    assert done == Warmed(total, total, total, None)
    assert volume.session.cache.fetcher.arrived_content.size_bytes == 0
    volume.store.down = AWAY
    for ino, expected in contents.items():
        assert (
            b"".join(
                [await fs.read(ino, at, BLOCK_BYTES) for at in range(0, len(expected), BLOCK_BYTES)]
            )
            == expected
        )
    content, done = await _warm(volume, fs, top)
    assert (content.missing_bytes, done) == (0, Warmed(total, total, 0, None))


async def test_small_files_are_warmed_with_few_requests(volume: Volume, fs: Filesystem) -> None:
    """Blocks are downloaded in the order in which packs contain them, not by file name."""
    top, other = make_directory(fs, b"top"), make_directory(fs, b"other")
    for number in range(200):  # Every fourth file is outside the tree.
        await fill(fs, make_file(fs, b"%d" % number, other if number % 4 == 3 else top), 1000)
    await volume.evict()
    volume.store.calls.clear()
    _content, done = await _warm(volume, fs, top)

    assert done.fetched_bytes == 150_000
    assert len([one for one in volume.store.calls if one.method == "get_range"]) <= 2


async def test_progress_of_warming_reaches_the_total_number_of_bytes(
    volume: Volume, fs: Filesystem
) -> None:
    ino = make_file(fs, b"f")
    await fill(fs, ino, 5 * MIB)
    await volume.evict()
    shown: list[tuple[int, int]] = []
    content = await warm.content_of(fs.db, volume.session.cache, [ino])
    await warm.download(fs.db, volume.session.cache, content, lambda *one: shown.append(one))

    assert (shown[0], shown[-1]) == ((0, 5 * MIB), (5 * MIB, 5 * MIB))
    assert shown == sorted(shown)


async def test_warming_counts_and_downloads_equal_blocks_only_once(
    volume: Volume, fs: Filesystem
) -> None:
    for name in (b"a", b"b"):
        await fs.write(make_file(fs, name), 0, b"equal content")
    await volume.evict()
    _content, done = await _warm(volume, fs, ROOT_INO)

    assert done == Warmed(13, 13, 13, None)


async def test_dirty_content_counts_as_cached_content(volume: Volume, fs: Filesystem) -> None:
    await fs.write(make_file(fs, b"f"), 0, b"dirty")
    _content, done = await _warm(volume, fs, ROOT_INO)

    assert done == Warmed(5, 5, 0, None)


async def test_warming_stops_immediately_if_the_store_is_unavailable(
    volume: Volume, fs: Filesystem, autojump_clock: trio.testing.MockClock
) -> None:
    """During an outage, warming fails before read_timeout and keeps downloaded blocks."""
    ino = make_file(fs, b"f")
    await fill(fs, ino, 12 * MIB)
    await volume.evict()
    content = await warm.content_of(fs.db, volume.session.cache, [ino])

    def unplug(done: int, _total: int) -> None:
        if done:
            volume.store.down = AWAY

    began_s = trio.current_time()
    done = await warm.download(fs.db, volume.session.cache, content, unplug)
    assert trio.current_time() - began_s < 1
    assert done.error is AWAY
    assert 0 < done.cached_bytes == done.fetched_bytes < 12 * MIB
    volume.store.down = StoreAccessError("pack/x", "AccessDenied", "")
    calls = len(volume.store.calls)
    assert (await _warm(volume, fs, ino))[1].error is volume.store.down
    assert len(volume.store.calls) - calls <= 4, "no block is requested alone"


async def test_damaged_pack_does_not_stop_the_download_of_other_packs(
    volume: Volume, fs: Filesystem
) -> None:
    """Warming reports a missing pack, and downloads the other packs."""
    good, bad = make_file(fs, b"good"), make_file(fs, b"bad")
    await fill(fs, bad, 3 * BLOCK_BYTES)
    await volume.upload()
    keys = {info.key async for info in volume.store.list("pack/")}
    await fill(fs, good, 3 * BLOCK_BYTES)
    await volume.evict()
    await volume.store.delete(sorted(keys))
    _content, done = await _warm(volume, fs, good, bad)

    assert isinstance(done.error, ObjectMissingError)
    assert (done.total_bytes, done.cached_bytes) == (6 * BLOCK_BYTES, 3 * BLOCK_BYTES)
    found = await warm.incomplete(fs.db, volume.session.cache, [ROOT_INO], 10)
    assert found == (1, [bad])


async def test_warming_skips_blocks_that_are_no_longer_needed(
    volume: Volume, fs: Filesystem
) -> None:
    await fill(fs, make_file(fs, b"f"), 2 * BLOCK_BYTES)
    await volume.evict()
    cache = volume.session.cache
    content = await warm.content_of(fs.db, cache, [ROOT_INO])
    first: BlockId = min(content.sizes)
    done = await warm.download(fs.db, cache, content, wanted=lambda block: block == first)

    assert (done.cached_bytes, done.error) == (BLOCK_BYTES, None)


async def test_warming_a_tree_larger_than_the_cache_is_refused(volume: Volume) -> None:
    """Warming is refused before any download if evictions cannot make enough room."""
    async with volume.mounted(cache_bytes=MIB) as fs:
        big, small = make_file(fs, b"big"), make_file(fs, b"small")
        await fill(fs, big, MIB - 64 * KIB)
        await volume.evict()
        cache = volume.session.cache
        content = await warm.content_of(fs.db, cache, [big])
        warm.require_room(content, cache)
        await warm.download(fs.db, cache, content)
        await fill(fs, small, 64 * KIB)
        await volume.upload()
        content = await warm.content_of(fs.db, cache, [big, small])
        warm.require_room(content, cache)  # Now the complete tree is cached.

        cache.evictor.evict_bytes(1 << 60)
        await fill(fs, small, 128 * KIB)  # The new content is still dirty.
        content = await warm.content_of(fs.db, cache, [big])
        with pytest.raises(NoSpaceLeftError, match=r"0\.9 MiB must be downloaded .* room for 0\.9"):
            warm.require_room(content, cache)
        await volume.upload()
        warm.require_room(content, cache)


async def test_warming_over_a_slow_network_sends_small_requests(
    volume: Volume, fs: Filesystem, autojump_clock: trio.testing.MockClock
) -> None:
    """Requests over a slow network are small, because readers wait for complete requests."""
    ino = make_file(fs, b"f")
    await fill(fs, ino, 12 * MIB)
    requests = []
    for rate in ("off", "256K"):
        await volume.evict()
        volume.session.throttles.download.set(rate_limit("download_limit", rate))
        volume.store.calls.clear()
        _content, done = await _warm(volume, fs, ino)
        assert done.cached_bytes == 12 * MIB
        requests.append(len([one for one in volume.store.calls if one.method == "get_range"]))

    assert requests[0] < 10
    assert 12 <= requests[1] <= 14


async def test_warm_refuses_an_oversized_tree_even_if_part_of_it_is_cached(volume: Volume) -> None:
    async with volume.mounted(cache_bytes=MIB) as fs:
        for name, count in ((b"a", 10), (b"b", 12)):
            await fill(fs, make_file(fs, name), count * BLOCK_BYTES)
            await volume.upload()
        cache = volume.session.cache
        content = await warm.content_of(fs.db, cache, [ROOT_INO])
        assert content.missing_bytes == 6 * BLOCK_BYTES
        with pytest.raises(NoSpaceLeftError, match=r"room for 0\.0 MiB"):
            warm.require_room(content, cache)


async def test_warm_refuses_a_tree_larger_than_the_free_disk_space(
    volume: Volume, fs: Filesystem, tmp_path: Path
) -> None:
    """Warming evicts other clean blocks, but never uses the disk reserve."""
    ino, other = make_file(fs, b"f"), make_file(fs, b"other")
    await fill(fs, ino, 2 * MIB)
    await volume.evict()
    cache = volume.session.cache
    content = await warm.content_of(fs.db, cache, [ino])
    with cache.disk.holding(tmp_path / "large", cache.disk.unheld_bytes() - MIB):  # noqa: SIM117
        with pytest.raises(NoSpaceLeftError, match="the disk of the cache has only"):
            warm.require_room(content, cache)
    await fill(fs, other, 2 * MIB)
    await volume.upload()
    with cache.disk.holding(tmp_path / "large", cache.disk.unheld_bytes() - MIB):
        warm.require_room(content, cache)


async def test_warmed_blocks_are_evicted_last(volume: Volume, fs: Filesystem) -> None:
    """Warming marks cached blocks as recently used, as a read does."""
    old, new = make_file(fs, b"old"), make_file(fs, b"new")
    for ino in (old, new):
        await fill(fs, ino, BLOCK_BYTES)
        await volume.upload()
    await _warm(volume, fs, old)
    volume.session.cache.evictor.evict_bytes(1)

    assert await warm.cached_of(fs.db, volume.session.cache, [new]) == set()
    assert len(await warm.cached_of(fs.db, volume.session.cache, [ROOT_INO])) == 1


async def test_tree_with_too_many_blocks_is_not_warmed_and_only_partly_pinned(
    volume: Volume, fs: Filesystem
) -> None:
    await fill(fs, make_file(fs, b"f"), 3 * BLOCK_BYTES)
    cache = volume.session.cache
    content_of = partial(warm.content_of, fs.db, cache, blocks_max=2)
    await content_of([Ino(99)])
    with pytest.raises(NoSpaceLeftError, match="at most 2 blocks"):
        await content_of([ROOT_INO])
    content = await content_of([ROOT_INO], may_exceed=True)
    assert (len(content.sizes), content.over_bytes) == (2, BLOCK_BYTES)
