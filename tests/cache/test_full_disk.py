"""Reads of uncached blocks while only the disk reserve is free, or the disk is read-only."""

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from s3fs_meta.errors import FormatError, NoSpaceLeftError, StoreUnavailableError
from s3fs_meta.meta.tables import cached_blocks
from s3fs_meta.model import ObjectKey
from tests.cache.conftest import CacheBench
from tests.damage import flipped
from tests.faults import raising

CONTENT = b"abc" * 100


@pytest.fixture
async def full(small_disk: Path) -> AsyncIterator[CacheBench]:
    """Yield a cache on a disk that is smaller than its reserve."""
    bench = CacheBench(small_disk)
    yield bench
    bench.db.close()


async def evicted(bench: CacheBench) -> ObjectKey:
    """Upload and evict block 0; return the key of its pack."""
    bench.write(0, CONTENT)
    key = await bench.upload(0)
    bench.cache.evictor.evict_bytes(len(CONTENT))
    bench.store.calls.clear()
    return key


async def test_reader_on_a_full_disk_gets_a_block_without_a_cache_file(full: CacheBench) -> None:
    await evicted(full)
    located = full.located(0)

    await full.cache.fetch(located, for_read=True)

    assert full.cache.is_readable(located)
    assert full.cache.read_local(located, 1, 302) == CONTENT[1:] + bytes(2)
    assert not full.cache.is_local(located)
    assert cached_blocks.get(full.db, located.block) is None
    assert full.files.size(located.block) is None


async def test_readers_get_blocks_whose_cache_files_a_quota_refuses(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Creating a cache file can fail despite free space, because of a quota or too few inodes."""
    contents = await bench.store_evicted(2, 300)
    wanted = [bench.located(0), bench.located(1)]
    monkeypatch.setattr(os, "write", raising(OSError(errno.EDQUOT, "Disk quota exceeded")))

    for located in wanted:
        await bench.cache.fetch(located, for_read=True)

    assert [bench.cache.read_local(located, 0, 300) for located in wanted] == contents
    with pytest.raises(NoSpaceLeftError):
        await bench.cache.fetch(wanted[0])


async def test_reader_gets_a_block_after_the_disk_of_a_full_cache_has_become_read_only(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """ext4 makes a disk read-only after an error. A read must not need a removed cache file."""
    contents = await bench.store_evicted(2, 300)
    cache = bench.new_cache(400)
    await cache.fetch(bench.located(0), for_read=True)
    for call in ("write", "unlink"):
        monkeypatch.setattr(os, call, raising(OSError(errno.EROFS, "Read-only file system")))

    for _ in range(2):
        await cache.fetch(bench.located(1), for_read=True)

    assert cache.read_local(bench.located(1), 0, 300) == contents[1]
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "blocks that are read cannot be cached: [Errno 30] Read-only file" in warnings[0]


async def test_writer_on_a_full_disk_gets_an_error(full: CacheBench) -> None:
    """A write to part of a block fails if the disk has no room for the block's cache file."""
    await evicted(full)

    with pytest.raises(NoSpaceLeftError):
        await full.cache.fetch(full.located(0))

    assert not full.store.calls


async def test_readers_on_a_full_disk_share_one_download(full: CacheBench) -> None:
    """Concurrent reads of one block by the kernel cause one download."""
    await evicted(full)
    located = full.located(0)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(lambda: full.cache.fetch(located, for_read=True))

    assert [call.method for call in full.store.calls] == ["get_range"]
    assert full.cache.is_readable(located)


async def test_reader_on_a_full_disk_gets_an_error_after_the_read_timeout(
    full: CacheBench, autojump_clock: trio.testing.MockClock
) -> None:
    """If a download fails, the reader gets an error, and a later read downloads the block."""
    await evicted(full)
    located = full.located(0)
    gate = full.store.hold("get_range")
    began_s = trio.current_time()
    with pytest.raises(StoreUnavailableError, match="read_timeout"):
        await full.cache.fetch(located, for_read=True)
    assert trio.current_time() - began_s == 60
    gate.open()

    await full.cache.fetch(located, for_read=True)

    assert full.cache.is_readable(located)


async def test_damaged_block_is_reported_even_if_the_disk_is_full(full: CacheBench) -> None:
    key = await evicted(full)
    inner = full.store.inner
    await inner.put(key, flipped((await inner.get(key, 1 << 20)).data, 0))
    located = full.located(0)

    with pytest.raises(FormatError):
        await full.cache.fetch(located, for_read=True)

    assert full.heard == [(located.block, False)]
    assert not full.cache.is_readable(located)


async def test_memory_of_uncached_blocks_is_freed_once_the_disk_has_room(
    bench: CacheBench,
) -> None:
    contents = await bench.store_evicted(2, 300)
    first, second = bench.located(0), bench.located(1)
    bench.cache.fetcher.uncached.add(first, contents[0])

    await bench.cache.fetch(second, for_read=True)

    assert bench.cache.is_local(bench.located(1))
    assert bench.cache.fetcher.uncached.size_bytes == 0
