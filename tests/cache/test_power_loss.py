"""Copies that a cut of power found unsynced."""

import pytest

from s3fs_meta.cache.power_loss import restore_copies
from s3fs_meta.errors import LostBlockError, TransientStoreError
from s3fs_meta.meta.tables import block_map, block_origins, blocks
from s3fs_meta.model import BlockId, BlockIndex
from tests.cache.conftest import INO, CacheBench

OLD = b"synced long before"


def copy(bench: CacheBench, keep_bytes: int, *, cuts: bool = False) -> BlockId:
    """Put a copy of the first bytes of block 0 in its place."""
    bench.db.begin()
    located = bench.located(0)
    block = bench.cache.copy_on_write(located, INO, BlockIndex(0), keep_bytes, cuts=cuts)
    block_map.set(bench.db, INO, BlockIndex(0), block)
    bench.cache.release(located.block)
    return block


async def cut_power(bench: CacheBench, *lost: BlockId) -> None:
    """Leave files without content whose rows are there; then do what a mount does."""
    bench.db.commit()
    for block in lost:
        bench.files.cut_after(block, 0)
    await restore_copies(bench.db, bench.files, bench.keyring, bench.store)


def content(bench: CacheBench) -> bytes:
    """Return what can be read of block 0, from its first byte on."""
    located = bench.located(0)
    size = bench.files.size(located.block)
    assert size is not None
    return bench.cache.read_local(located, 0, min(size, located.plain_bytes))


async def test_synced_copy_is_trusted(bench: CacheBench) -> None:
    """Once it was synced, its former content is not restored."""
    await bench.upload_content(OLD)
    block = copy(bench, len(OLD))
    bench.cache.write_in_place(bench.located(0), 0, b"NEW")
    await bench.cache.sync_blocks()
    assert block_origins.blocks(bench.db) == []

    await cut_power(bench)

    assert bench.files.read(block, 0, len(OLD)) == b"NEW" + OLD[3:]


@pytest.mark.parametrize("torn", [False, True], ids=["from its file", "from its pack"])
async def test_copy_of_an_uploaded_block_gets_its_content(bench: CacheBench, torn: bool) -> None:
    """Also the bytes that were overwritten since; what was appended is lost, and is an error."""
    old = await bench.upload_content(OLD)
    bench.db.begin()
    blocks.add_refs(bench.db, old)  # so that its file stays
    new = copy(bench, 5)
    bench.cache.write_in_place(bench.located(0), 5, b"-" * 40)
    if torn:
        bench.files.write_within(old, 0, b"torn", 0)

    await cut_power(bench, new)

    assert content(bench) == OLD
    with pytest.raises(LostBlockError):
        bench.cache.read_local(bench.located(0), 0, 45)
    assert block_origins.blocks(bench.db) == []


async def test_origin_that_went_at_once_comes_from_its_pack(bench: CacheBench) -> None:
    """A clean copy that nothing names is removed before anything is synced."""
    old = await bench.upload_content(OLD)
    new = copy(bench, len(OLD))
    assert bench.files.size(old) is None

    await cut_power(bench, new)

    assert content(bench) == OLD


async def test_copy_of_a_dirty_block_gets_what_was_synced_of_it(bench: CacheBench) -> None:
    """Its file stays until the copy was synced."""
    bench.write(0, OLD)
    await bench.cache.sync_blocks()
    bench.cache.write_in_place(bench.located(0), len(OLD), b" and more")
    new = copy(bench, 25)

    await cut_power(bench, new)

    assert content(bench) == OLD


async def test_what_was_cut_off_does_not_come_back(bench: CacheBench) -> None:
    """A later write behind the cut does not show the bytes between them."""
    bench.write(0, OLD)
    await bench.cache.sync_blocks()
    new = copy(bench, 6, cuts=True)
    bench.cache.write_in_place(bench.located(0), 10, b"later")

    await cut_power(bench, new)

    assert content(bench) == OLD[:6]


async def test_copy_of_a_copy_gets_the_oldest_content(bench: CacheBench) -> None:
    """Each is restored before it is an origin itself."""
    await bench.upload_content(OLD)
    first = copy(bench, len(OLD))
    bench.cache.seal([first])
    second = copy(bench, 10, cuts=True)

    await cut_power(bench, first, second)

    assert content(bench) == OLD[:10]


async def test_hole_stays_a_hole(bench: CacheBench) -> None:
    """A write into it makes no part of it unreadable but its own."""
    bench.db.begin()
    block = bench.cache.write_new(INO, BlockIndex(0), 100, b"new")
    block_map.set(bench.db, INO, BlockIndex(0), block)
    bench.db.commit()
    bench.files.remove(block)

    await cut_power(bench)

    assert content(bench) == bytes(100)
    with pytest.raises(LostBlockError):
        bench.cache.read_local(bench.located(0), 0, 101)


async def test_overwritten_block_falls_back_to_its_former_content(bench: CacheBench) -> None:
    """Old bytes, rather than none."""
    await bench.upload_content(OLD)
    bench.db.begin()
    old = bench.located(0)
    new = bench.cache.write_new(INO, BlockIndex(0), 0, b"-" * len(OLD), replaced=old)
    block_map.set(bench.db, INO, BlockIndex(0), new)
    bench.cache.release(old.block)

    await cut_power(bench, new)

    assert content(bench) == OLD


async def test_uploaded_copy_needs_its_origin_no_more(bench: CacheBench) -> None:
    """Its content is in the store."""
    await bench.upload_content(OLD)
    copy(bench, len(OLD))
    await bench.upload(0)

    assert block_origins.blocks(bench.db) == []


async def test_store_that_is_away_delays_the_mount_and_loses_nothing(bench: CacheBench) -> None:
    """The next attempt finds the same rows."""
    await bench.upload_content(OLD)
    new = copy(bench, len(OLD))
    bench.store.fail("get_range", TransientStoreError("pack", "away"))

    with pytest.raises(TransientStoreError):
        await cut_power(bench, new)
    await cut_power(bench, new)

    assert content(bench) == OLD


async def test_origin_that_is_gone_leaves_an_error_and_no_zeros(bench: CacheBench) -> None:
    """A user deleted its pack."""
    await bench.upload_content(OLD)
    new = copy(bench, len(OLD))
    for key in [key async for key in bench.pack_keys()]:
        await bench.store.delete([key])

    await cut_power(bench, new)

    with pytest.raises(LostBlockError):
        bench.cache.read_local(bench.located(0), 0, 1)
