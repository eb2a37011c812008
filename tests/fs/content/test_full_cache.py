"""Tests of reads and writes of several blocks while dirty blocks fill the cache."""

from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.model import Ino
from tests.fs.conftest import BLOCK_BYTES, Volume, make_file, whole

_CONTENT = b"a" * BLOCK_BYTES + b"b" * BLOCK_BYTES
_CACHED_BLOCKS = 4


async def _fill_cache(fs: Filesystem) -> None:
    """Fill the cache with dirty blocks."""
    ino = make_file(fs, b"dirty")
    content = b"d" * (_CACHED_BLOCKS * BLOCK_BYTES)
    assert await fs.write(ino, 0, content) == len(content)


async def _half_cached(fs: Filesystem, volume: Volume) -> Ino:
    """Return a file whose first block is cached, while other blocks fill the rest of the cache."""
    ino = make_file(fs, b"file")
    await fs.write(ino, 0, _CONTENT)
    await volume.evict()
    await _fill_cache(fs)
    assert await fs.read(ino, 0, 1) == b"a"
    return ino


async def test_read_of_two_blocks_succeeds_while_the_cache_is_full_of_dirty_blocks(
    volume: Volume,
) -> None:
    """The download of one block must not evict the other block that the same read needs."""
    async with volume.mounted(cache_bytes=_CACHED_BLOCKS * BLOCK_BYTES) as fs:
        ino = await _half_cached(fs, volume)

        assert await fs.read(ino, BLOCK_BYTES - 1, 2) == b"ab"


async def test_write_to_parts_of_two_blocks_succeeds_while_the_cache_is_full_of_dirty_blocks(
    volume: Volume,
) -> None:
    """The download of one block must not evict the other block that the same write changes."""
    async with volume.mounted(cache_bytes=_CACHED_BLOCKS * BLOCK_BYTES) as fs:
        ino = await _half_cached(fs, volume)
        missing = fs.data.try_write(ino, BLOCK_BYTES - 1, b"AB", sets_times=True, has_room=True)
        assert missing

        await fs.data.write_after(missing, ino, BLOCK_BYTES - 1, b"AB", sets_times=True)

        assert await whole(fs, ino) == _CONTENT.replace(b"ab", b"AB")


async def test_blocks_can_be_evicted_after_the_read_that_used_them(volume: Volume) -> None:
    async with volume.mounted(cache_bytes=_CACHED_BLOCKS * BLOCK_BYTES) as fs:
        ino = await _half_cached(fs, volume)
        assert await fs.read(ino, BLOCK_BYTES - 1, 2) == b"ab"

        await volume.session.cache.evictor.evict(0)

        index = volume.session.cache.index
        assert index.total_bytes == _CACHED_BLOCKS * BLOCK_BYTES
        assert index.spared_bytes == 0
