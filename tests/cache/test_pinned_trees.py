"""The limit on pinned blocks, and the pinning of new blocks in pinned trees."""

import pytest
import trio

from s3fs_meta.cache.pinned_trees import pinned_bytes_max
from s3fs_meta.limits import GIB, MIB
from s3fs_meta.meta.tables import block_map, inodes
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex, Ino
from tests.cache.conftest import INO, CacheBench
from tests.descriptors import no_more_files


def test_pinned_blocks_leave_cache_space_for_other_content() -> None:
    """Pinned blocks leave an eighth of the cache free, and at least two of the largest blocks."""
    assert pinned_bytes_max(8 * GIB) == 7 * GIB
    assert pinned_bytes_max(64 * MIB) == 32 * MIB


async def test_blocks_beyond_the_pin_limit_are_not_pinned(bench: CacheBench) -> None:
    pinned = bench.new_cache(bytes_max=64 * MIB).pinned

    assert pinned.pin(BlockId(1), 20 * MIB)
    assert not pinned.pin(BlockId(2), 12 * MIB + 1)
    assert pinned.pin(BlockId(3), 12 * MIB)
    assert pinned.pin(BlockId(1), 20 * MIB), "block 1 is already pinned"
    assert not pinned.pin(BlockId(4), 1)
    await bench.cache.resize(128 * MIB)
    assert pinned.pin(BlockId(4), 64 * MIB)
    assert not pinned.pin(BlockId(5), 1)


async def test_new_block_in_a_pinned_tree_is_not_evicted(bench: CacheBench) -> None:
    bench.db.begin()
    ino = ROOT_INO
    while ino != INO:
        ino = inodes.create(bench.db, 0o040755, 0, 0, ino, 1).ino
    block = await bench.upload_content(b"content")
    bench.cache.pinned.set_roots([Ino(3)])
    bench.cache.evictor.evict_bytes(1 << 60)

    assert bench.cache.index.blocks() == [block]
    assert bench.cache.index.kept_bytes == len(b"content")
    found = await bench.cache.evictor.drop([block])
    assert (found.blocks, found.kept) == (0, {"pinned": 7})
    found = await bench.cache.evictor.drop([block], pinned=True)
    assert (found.blocks, found.kept) == (1, {})


async def test_block_outside_pinned_trees_is_evicted(bench: CacheBench) -> None:
    bench.cache.pinned.set_roots([Ino(3)])
    block = await bench.upload_content(b"content")
    bench.cache.evictor.evict_bytes(1 << 60)

    assert bench.cache.index.get(block) is None


async def test_overwritten_block_of_a_pinned_file_is_evicted(bench: CacheBench) -> None:
    """Only the current content of a pinned file must stay cached."""
    bench.cache.pinned.set_roots([INO])
    block = await bench.upload_content(b"content")
    bench.db.begin()
    block_map.remove(bench.db, INO, BlockIndex(0))
    bench.cache.evictor.evict_bytes(1 << 60)

    assert bench.cache.index.get(block) is None


async def _replaced_by_a_duplicate(bench: CacheBench) -> tuple[Located, Located]:
    """Replace a pinned cached block by an equal block that is not cached; return both blocks."""
    for index in (0, 1):
        bench.write(index, b"content")
        await bench.upload(index)
    replaced, kept = bench.located(0), bench.located(1)
    await bench.cache.evictor.drop([kept.block])
    bench.cache.pinned.set_roots([INO])
    bench.cache.pinned.note_duplicate(replaced.block, INO, kept.block)
    return replaced, kept


async def test_duplicate_is_not_cached_if_the_replaced_file_cannot_be_opened(
    bench: CacheBench,
) -> None:
    """If no file descriptor is free, the other blocks of the batch are still processed."""
    replaced, kept = await _replaced_by_a_duplicate(bench)
    bench.files.let_go([replaced.block])

    with no_more_files():
        await bench.cache.keep_duplicates()

    assert kept.block not in bench.cache.index
    assert bench.cache.read_local(replaced, 0, 7) == b"content"


@pytest.mark.parametrize("content", [b"content", b"damaged"])
async def test_damaged_content_of_a_replaced_file_is_not_read_from_its_duplicate(
    bench: CacheBench, content: bytes
) -> None:
    """The bucket has the intact content, so a reader of the duplicate must get it."""
    replaced, kept = await _replaced_by_a_duplicate(bench)
    bench.files.put(replaced.block, 0, content)
    bench.store.calls.clear()

    await bench.cache.keep_duplicates()
    while not bench.cache.is_local(found := bench.located(1)):
        await bench.cache.fetch(found)

    assert bench.cache.read_local(found, 0, 7) == b"content"
    assert bench.cache.index.is_pinned(kept.block)
    assert bool(bench.store.calls) is (content == b"damaged")


async def test_duplicate_deleted_while_its_file_is_copied_is_not_pinned(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pinned block that is not cached would use a part of the space for pinned blocks."""
    _, kept = await _replaced_by_a_duplicate(bench)
    copy_clean = bench.files.copy_clean

    def delete() -> None:
        bench.db.begin()
        block_map.remove(bench.db, INO, BlockIndex(1))
        bench.cache.release(kept.block)

    def copy(source: BlockId, target: BlockId, plain_bytes: int) -> None:
        copy_clean(source, target, plain_bytes)
        trio.from_thread.run_sync(delete)

    monkeypatch.setattr(bench.files, "copy_clean", copy)
    await bench.cache.keep_duplicates()

    assert kept.block not in bench.cache.index
    assert bench.cache.index.pinned_bytes == 0
    assert kept.block not in set(bench.files.numbers())
