"""Block reads that bypass the cache."""

import random

import pytest
import trio

from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.limits import KIB, MIB, NEIGHBOUR_FETCH_BYTES
from s3fs_meta.meta.tables import block_map, packs
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import BlockIndex, Ino
from s3fs_meta.objects.metrics import CountingStore
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.uncached_reads import UncachedReader
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.damage import flipped
from tests.sync.conftest import Power, write_file


def located(session: Session, *inos: Ino) -> list[Located]:
    """Return the locations of one-block files, in the order of their packs."""
    found = [block_map.locate(session.db, ino, BlockIndex(0)) for ino in inos]
    rows = [row for row in found if row is not None]
    assert len(rows) == len(inos)
    return sorted(rows, key=lambda row: (row.pack or 0, row.pack_offset or 0))


def noise(seed: int, size: int) -> bytes:
    """Return incompressible bytes."""
    return random.Random(seed).randbytes(size)


async def written(session: Session, *contents: bytes) -> list[Located]:
    """Write files, ship them, and return the locations of their blocks."""
    inos = [write_file(session, content) for content in contents]
    await session.flush()
    return located(session, *inos)


def content_of(session: Session, store: CountingStore) -> UncachedReader:
    """Return a reader of uncached blocks for a session."""
    return UncachedReader(session.db, store, session.volume.keyring)


async def test_adjacent_blocks_are_read_with_one_request(power: Power) -> None:
    """Blocks of one upload are adjacent in their pack."""
    async with power.session(tasks=False) as session:
        contents = [noise(number, MIB) for number in range(6)]
        rows = await written(session, *contents)
        store = CountingStore(power.store)

        found = await content_of(session, store).read(rows)

        assert {one.data for one in found} == set(contents)
        assert all(one.sure_bytes == MIB for one in found)
        assert store.counts["get_range"].requests == 1


async def test_uncached_reads_of_small_blocks_fetch_adjacent_blocks(power: Power) -> None:
    """Four tasks read a thousand small files in random order with few requests."""
    async with power.session(tasks=False) as session:
        contents = [noise(number, 3000) for number in range(1000)]
        rows = await written(session, *contents)
        store = CountingStore(power.store)
        content = content_of(session, store)
        random.Random(1).shuffle(rows)
        found: list[bytes] = []

        async def read(some: list[Located]) -> None:
            for row in some:
                found.extend(one.data for one in await content.read([row]))

        async with trio.open_nursery() as nursery:
            for part in range(4):
                nursery.start_soon(read, rows[part::4])

        assert sorted(found) == sorted(contents)
        stored_bytes = sum(row.stored_bytes or 0 for row in rows)
        windows = stored_bytes // NEIGHBOUR_FETCH_BYTES + 1
        assert store.counts["get_range"].requests <= 3 * windows  # Two read windows may overlap.


async def test_block_without_a_location_is_reported_as_missing(power: Power) -> None:
    """A missing block does not affect reads of the blocks before and after it."""
    async with power.session(tasks=False) as session:
        one, other = await written(session, b"one" * 100, b"other" * 100)
        lost = one._replace(hash=None, pack=None, pack_offset=None, stored_bytes=None)

        found = await content_of(session, CountingStore(power.store)).read([one, lost, other])

        assert [len(each.data) for each in found] == [one.plain_bytes, 0, other.plain_bytes]


@pytest.mark.parametrize("size", [2 * KIB, 200 * KIB])
async def test_damaged_pack_loses_only_the_damaged_blocks(power: Power, size: int) -> None:
    """The same pack first has a flipped byte, is then truncated and is finally deleted."""
    async with power.session(tasks=False) as session:
        rows = await written(session, *(noise(number, size) for number in range(3)))
        assert rows[0].pack is not None
        key = packs.object_key(session.db, rows[0].pack)
        whole, start = power.store.objects[key], rows[1].pack_offset
        assert start is not None

        async def lengths() -> list[int]:
            content = content_of(session, CountingStore(power.store))
            return [len(one.data) for one in await content.read(rows)]

        power.store.objects[key] = flipped(whole, start + 60)
        assert await lengths() == [size, 0, size]
        power.store.objects[key] = whole[: start + size]
        assert await lengths() == [size, 0, 0]
        del power.store.objects[key]
        assert await lengths() == [0, 0, 0]


async def test_uncached_read_from_an_unreachable_store_is_an_error(power: Power) -> None:
    """If the store is unreachable, a read fails instead of returning zeros."""
    async with power.session(tasks=False) as session:
        rows = await written(session, b"x" * 100)
        store = FaultyStore(power.store)
        store.fail("get_range", StoreUnavailableError("pack", 1, 1.0, "away"))

        with pytest.raises(StoreUnavailableError):
            await UncachedReader(session.db, store, session.volume.keyring).read(rows)
