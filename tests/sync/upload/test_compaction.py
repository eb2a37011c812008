"""Compaction: live blocks of mostly dead packs are moved into new packs."""

import itertools
import os
from collections.abc import Callable, Iterator

import pytest
import trio

from s3fs_meta.errors import ObjectMissingError, StoreUnavailableError
from s3fs_meta.limits import COMPACT_LIVE_FRACTION, COMPACT_PACKS_MAX, LOOP_SLICE_ROWS
from s3fs_meta.meta.tables import blocks, damage_marks, local_state, packs
from s3fs_meta.model import BlockRow, BlockState, Ino, ObjectKey
from s3fs_meta.options.rate_limit import rate_limit
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.upload import compaction
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.damage import flipped
from tests.polling import until
from tests.sync.conftest import Power, location_of, read_file, remove_file, write_file
from tests.tasks import running

pytestmark = pytest.mark.thorough


async def test_pack_with_mostly_dead_blocks_is_compacted_and_deleted(power: Power) -> None:
    """A compacted pack is deleted after two later images."""
    await power.retain(0)
    async with power.session("a") as session:
        kept = write_file(session, os.urandom(2000))
        content = await read_file(session, kept)
        doomed = write_file(session, os.urandom(50_000))
        await session.make_image()
        [(_pack, old_key)] = packs.all_keys(session.db)
        remove_file(session, doomed)
        await session.make_image()

        assert await session.compactor.run_once() == 1
        for _ in range(3):
            write_file(session, os.urandom(100_000))
            await session.make_image()

        assert old_key not in power.store.objects
        assert await read_file(session, kept) == content
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, kept) == content


async def test_block_is_readable_after_a_kill_during_compaction(power: Power) -> None:
    """After a kill during compaction, a block can be read at its old location."""
    async with power.session("a") as session:
        kept = write_file(session, b"kept" * 500)
        doomed = write_file(session, os.urandom(50_000))
        await session.make_image()
        remove_file(session, doomed)
        await session.make_image()
        assert await session.compactor.run_once() == 1
        session.durability.commit()

    async with power.session("a") as session:
        assert await read_file(session, kept) == b"kept" * 500
        assert session.uploader.pending == 0


async def test_pack_of_tiny_files_is_not_compacted_repeatedly(power: Power) -> None:
    """A pack of tiny files consists mostly of its index, so compaction would not shrink it."""
    async with power.session("a") as session:
        for number in range(20):
            write_file(session, b"tiny %d" % number)
        await session.make_image()

        assert await session.compactor.run_once() == 0


async def test_torn_cached_block_is_not_moved_into_a_pack(power: Power) -> None:
    """Compaction must not upload a cached block whose bytes have changed."""
    async with power.session("a") as session:
        kept, content = await _mostly_dead_pack(session)
        located = location_of(session, kept)
        session.files.write_within(located.block, 7, b"rotten", 7)

        await session.compactor.run_once()
        await session.make_image()

        assert session.uploader.pending == 0
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, kept) == content


async def test_block_evicted_during_compaction_is_not_lost(power: Power) -> None:
    """If a block is evicted during compaction, it stays in its old pack."""
    async with power.session("a") as session:
        kept, content = await _mostly_dead_pack(session)
        await session.compactor.run_once()
        located = location_of(session, kept)
        session.files.remove(located.block)

        await session.make_image()

        assert session.uploader.lost == {}
        assert await read_file(session, kept) == content


@pytest.mark.parametrize("damage", ["missing", "short"])
async def test_block_to_move_without_a_cache_file_is_read_from_its_old_pack(
    power: Power, damage: str
) -> None:
    """A sealed block whose cache file is missing or short is read from its old pack."""
    async with power.session("a", tasks=False) as session:
        kept, content = await _mostly_dead_pack(session)
        await session.compactor.run_once()
        located = location_of(session, kept)
        assert located.state is BlockState.SEALED
        if damage == "missing":
            session.files.remove(located.block)
        else:
            os.truncate(session.files.root / "xxx" / f"{located.block:x}", 5)

        assert await read_file(session, kept) == content
        await session.make_image()
        assert await read_file(session, kept) == content

        moved = location_of(session, kept)
        assert moved.pack != located.pack


async def test_torn_block_that_compaction_moves_stays_suspect_until_it_is_downloaded(
    power: Power,
) -> None:
    """A torn cache file of the right length is detected only by the hash of its content."""
    async with power.session("a", tasks=False) as session:
        kept, content = await _mostly_dead_pack(session)
        await session.compactor.run_once()
        located = location_of(session, kept)
        assert located.state is BlockState.SEALED
        session.files.write_within(located.block, 0, b"torn", len(content))
        session.cache.suspects.blocks.add(located.block)
        local_state.put(session.db, "suspect", "1")

        await session.verify_copies()
        assert not session.cache.is_local(located)
        assert local_state.get(session.db, "suspect") == "1"

        assert await read_file(session, kept) == content
        assert session.cache.is_local(located)
        assert session.files.read(located.block, 0, len(content)) == content


@pytest.mark.parametrize("ends", ["damaged", "cancelled"])
async def test_failed_compaction_leaves_no_stray_block_file(
    power: Power, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """A compaction that fails removes the block files that it has fetched."""
    async with power.session("a", tasks=False) as session:
        kept = [write_file(session, os.urandom(2000)) for _ in range(3)]
        doomed = write_file(session, os.urandom(50_000))
        await session.make_image()
        remove_file(session, doomed)
        await session.make_image()
        await session.durability.sync_all()
        session.db.begin_local()
        session.cache.evictor.evict_bytes(1 << 60)
        located = location_of(session, kept[-1])
        assert located.pack_offset is not None
        [key] = [key for _pack, key in packs.all_keys(session.db)]
        data = power.store.objects[key]
        if ends == "damaged":
            at = located.pack_offset + 100
            power.store.objects[key] = flipped(data, at)
            assert await session.compactor.run_once() == 0
            assert key in session.compactor.last_error
        else:
            with trio.CancelScope() as scope:
                monkeypatch.setattr(compaction, "slices", cancelling(scope))
                await session.compactor.run_once()

        files = set(session.files.numbers())
        assert files == set(session.cache.index.sealed)
        assert len(files) == (0 if ends == "damaged" else 1)


def cancelling(scope: trio.CancelScope) -> Callable[[list[BlockRow]], Iterator[list[BlockRow]]]:
    """Return a replacement for ``slices`` that cancels its caller after a slice of one block."""

    def cancel(items: list[BlockRow]) -> Iterator[list[BlockRow]]:
        scope.cancel()
        yield items[:1]
        yield items[1:]

    return cancel


async def test_file_removed_during_the_move_of_its_block_leaves_no_row(power: Power) -> None:
    async with power.session("a") as session:
        kept, _content = await _mostly_dead_pack(session)
        await session.compactor.run_once()
        located = location_of(session, kept)
        session.files.remove(located.block)
        remove_file(session, kept)

        await session.make_image()

        assert session.db.one("SELECT count(*) FROM blocks") == (0,)


async def test_block_removed_during_compaction_is_not_reused_by_deduplication(power: Power) -> None:
    """A block that was removed during compaction must not be shared with new content."""
    async with power.session("a", tasks=False) as session:
        kept, content = await _mostly_dead_pack(session)
        await session.compactor.run_once()
        moving = location_of(session, kept)
        remove_file(session, kept)
        again = write_file(session, content)

        await session.flush()

        assert blocks.find(session.db, moving.block) is None
        await session.shipper.ship(anyway=True)
    async with power.session("b", options=OpenOptions(force_takeover=True), tasks=False) as session:
        assert session.volume.notices == ()
        assert await read_file(session, again) == content


async def test_another_host_records_that_a_pack_emptied_by_an_image_died_after_earlier_txgs(
    power: Power,
) -> None:
    """A pack that an image emptied is still needed by points in time before this image."""
    async with power.session("a", tasks=False) as session:
        kept, _content = await _mostly_dead_pack(session)
        [(emptied,)] = session.db.all("SELECT pack FROM blocks")
        for _ in range(3):
            session.db.begin()
            session.db.inodes.run("UPDATE inodes SET uid = uid + 1 WHERE ino = ?", (kept,))
            await session.flush()
        needed_by = session.link
        await session.compactor.run_once()
        await session.imager.make()
    async with power.session("b", options=OpenOptions(force_takeover=True), tasks=False) as session:
        died = packs.get(session.db, emptied).died_txg
        assert died is not None
        assert died > needed_by.txg


async def _mostly_dead_pack(session: Session) -> tuple[Ino, bytes]:
    """Make a pack with one small live file; return the file and the file's content."""
    content = os.urandom(2000)
    kept = write_file(session, content)
    doomed = write_file(session, os.urandom(50_000))
    await session.make_image()
    remove_file(session, doomed)
    await session.make_image()
    return kept, content


async def test_compaction_of_many_small_blocks_does_not_block_other_tasks(power: Power) -> None:
    """Compaction of thousands of small blocks must not stall the event loop."""
    async with power.session("a", tasks=False) as session:
        count = 5 * LOOP_SLICE_ROWS
        contents = [os.urandom(200) for _ in range(count)]
        for content in contents:
            write_file(session, content)
        doomed = write_file(session, os.urandom(1_000_000))
        await session.make_image()
        remove_file(session, doomed)
        await session.make_image()
        sealed_at_turns: set[int] = set()

        async def watch() -> None:
            while True:
                sealed_at_turns.add(session.cache.index.count_in[BlockState.SEALED])
                await trio.lowlevel.checkpoint()

        async with running(watch):
            assert await session.compactor.run_once() == count

        steps = sorted(sealed_at_turns)
        # trio runs ready tasks in random order, so two slices may follow each other.
        assert max(b - a for a, b in itertools.pairwise(steps)) <= 2 * LOOP_SLICE_ROWS


async def _mostly_dead_packs(session: Session, count: int) -> list[tuple[Ino, bytes, ObjectKey]]:
    """Make packs with one small uncached live file each; return the files, contents and keys."""
    made = []
    for _ in range(count):
        content = os.urandom(2000)
        kept, doomed = write_file(session, content), write_file(session, os.urandom(50_000))
        await session.flush()
        located = location_of(session, kept)
        assert located.pack is not None
        made.append((kept, content, packs.object_key(session.db, located.pack)))
        remove_file(session, doomed)
    await session.flush()
    await session.durability.sync_all()
    session.db.begin_local()
    session.cache.evictor.evict_bytes(1 << 60)
    return made


@pytest.mark.parametrize("damage", ["missing", "flipped"])
async def test_unreadable_pack_does_not_stop_the_compaction_of_other_packs(
    power: Power, damage: str
) -> None:
    """An unreadable pack is tried once and marked as damaged; other packs are compacted."""
    async with power.session("a", tasks=False) as session:
        made = await _mostly_dead_packs(session, COMPACT_PACKS_MAX + 3)
        for _ino, _content, key in made[:COMPACT_PACKS_MAX]:
            data = power.store.objects.pop(key)
            if damage == "flipped":
                power.store.objects[key] = flipped(data, len(data) - 5)

        assert await session.compactor.run_once() == 3
        assert "pack/" in session.compactor.last_error
        assert session.imager.last_error == ""
        assert len(damage_marks.marks(session.db)) == COMPACT_PACKS_MAX
        await session.flush_at_end()

        assert await session.compactor.run_once() == 0
        assert session.compactor.last_error == ""
        for ino, content, _key in made[COMPACT_PACKS_MAX:]:
            assert await read_file(session, ino) == content
        await session.close()


async def test_wrong_location_of_a_cached_block_does_not_stop_compaction(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        (ino, content, key), _other = await _mostly_dead_packs(session, 2)
        assert await read_file(session, ino) == content  # The read brings the block into the cache.
        located = location_of(session, ino)
        session.db.begin()
        offset = "UPDATE blocks SET pack_offset = pack_offset + 1 WHERE block = ?"
        session.db.run(offset, (located.block,))

        assert await session.compactor.run_once() == 1

        assert key in session.compactor.last_error
        assert await read_file(session, ino) == content


@pytest.mark.parametrize("value", ["'text'", "CAST(x'ff00' AS TEXT)"])
async def test_unreadable_row_of_a_block_does_not_stop_compaction(power: Power, value: str) -> None:
    """The pack of the block is skipped and not marked, because it may be intact."""
    async with power.session("a", tasks=False) as session:
        (ino, _content, key), _other = await _mostly_dead_packs(session, 2)
        block = location_of(session, ino).block
        session.db.begin()
        session.db.run(f"UPDATE blocks SET plain_bytes = {value} WHERE block = ?", (block,))

        assert await session.compactor.run_once() == 1

        assert session.compactor.last_error
        assert damage_marks.marks(session.db) == []
        assert key in power.store.objects


async def test_compaction_continues_after_a_wrong_response_of_the_store(power: Power) -> None:
    """A pack that is reported as missing is requested once more; an outage ends compaction."""
    faulty = FaultyStore(power.store)
    async with power.session("a", store=faulty, tasks=False) as session:
        await _mostly_dead_packs(session, 1)
        faulty.fail("get", StoreUnavailableError("pack", 1, 0.0, "away"))
        await session.compactor.run()
        assert "away" in session.compactor.last_error
        faulty.fail("get", ObjectMissingError("pack"))
        assert await session.compactor.run_once() == 1
        assert (session.compactor.last_error, damage_marks.marks(session.db)) == ("", [])


async def test_compaction_waits_for_the_download_limit(power: Power) -> None:
    """The downloads of compaction count as background traffic."""
    async with power.session("a", tasks=False) as session:
        await _mostly_dead_packs(session, 1)
        session.throttles.download.set(rate_limit("download_limit", "1K"))
        async with running(session.compactor.run_once):
            await until(lambda: session.throttles.download.waiting_bytes)


@pytest.mark.parametrize("is_cut", [False, True])
async def test_packs_that_would_not_shrink_do_not_delay_other_packs(
    power: Power, is_cut: bool
) -> None:
    """A pack that would not shrink does not count towards the limit of packs per run.

    A run that examined as many packs as it may is continued by the next run.
    """
    async with power.session("a", tasks=False) as session:
        tiny = [write_file(session, b"tiny %d" % number) for number in range(200)]
        await session.flush()
        for ino in tiny[:100]:
            remove_file(session, ino)
        content = os.urandom(2000)
        kept, doomed = write_file(session, content), write_file(session, os.urandom(3500))
        await session.flush()
        remove_file(session, doomed)
        await session.flush()
        [every] = packs.slices(session.db)
        first, _second = packs.mostly_dead(session.db, every, COMPACT_LIVE_FRACTION, 9)

        if is_cut:  # Each run examines one pack; the first pack would not shrink.
            assert await session.compactor.run_once(candidates_max=1) == 0
            assert await session.compactor.run_once(candidates_max=1) == 1
        else:
            assert await session.compactor.run_once(packs_max=1) == 1

        assert first.live_bytes == packs.get(session.db, first.pack).live_bytes
        await session.flush_at_end()
        assert await read_file(session, kept) == content
