"""Healing: proven damage in the bucket is marked, and repaired from an intact copy."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.errors import (
    BadRowError,
    ObjectMissingError,
    S3fsError,
    StoreAccessError,
    StoreError,
    StoreUnavailableError,
    UnexpectedStoreError,
)
from s3fs_meta.meta.tables import block_map, blocks, damage_marks, packs
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import BlockIndex, Ino, ObjectKey, PackId
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.history.newest_locations import newest_state
from s3fs_meta.sync.opening.opening import close_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.uncached_reads import UncachedReader
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.damage import flipped
from tests.polling import until
from tests.sync.conftest import Power, location_of, read_file, remove_file, unmount, write_file
from tests.sync.history.readers import open_at
from tests.sync.rolling_back import roll_back
from tests.tasks import running

pytestmark = pytest.mark.thorough

CONTENT = os.urandom(5000)


def _missing(objects: dict[ObjectKey, bytes], key: ObjectKey) -> None:
    del objects[key]


def _flipped(objects: dict[ObjectKey, bytes], key: ObjectKey) -> None:
    objects[key] = flipped(objects[key], 100)


def _short(objects: dict[ObjectKey, bytes], key: ObjectKey) -> None:
    objects[key] = objects[key][:50]


def _empty(objects: dict[ObjectKey, bytes], key: ObjectKey) -> None:
    objects[key] = b""


Damage = Callable[[dict[ObjectKey, bytes], ObjectKey], None]
EVERY_DAMAGE = pytest.mark.parametrize("damage", [_missing, _flipped, _short, _empty])


async def _upload_and_evict(session: Session) -> None:
    """Upload all blocks, and evict them from the cache."""
    await session.flush()
    await session.durability.sync_all()
    _evict(session)


def _evict(session: Session) -> None:
    """Evict all blocks from the cache that are in the bucket."""
    session.db.begin_local()
    session.cache.evictor.evict_bytes(1 << 60)
    session.db.commit()


async def _damaged_file(
    power: Power, session: Session, damage: Damage, content: bytes = CONTENT
) -> tuple[Ino, Ino]:
    """Write two files that share a block, damage the block's pack, and read one file."""
    first, second = write_file(session, content), write_file(session, content)
    await _upload_and_evict(session)
    [(_pack, key)] = packs.all_keys(session.db)
    damage(power.store.objects, key)
    with pytest.raises(S3fsError):
        await read_file(session, first)
    return first, second


@EVERY_DAMAGE
async def test_write_of_equal_content_heals_every_file_that_shares_the_block(
    power: Power, damage: Damage
) -> None:
    """Restoring one file from a backup heals all files that share its damaged block."""
    async with power.session("a", tasks=False) as session:
        first, second = await _damaged_file(power, session, damage)
        third = write_file(session, CONTENT)
        remove_file(session, first)
        await session.flush_at_end()

        assert session.db.one("SELECT count(*), sum(refs) FROM blocks") == (1, 2)
        _evict(session)
        for ino in (second, third):
            assert await read_file(session, ino) == CONTENT
        await session.close()

    async with power.session("b", tasks=False) as session:
        for ino in (second, third):
            assert await read_file(session, ino) == CONTENT


@EVERY_DAMAGE
async def test_file_overwritten_with_equal_content_heals_other_files(
    power: Power, damage: Damage
) -> None:
    """Overwriting a file in place heals all files that share its damaged block."""
    async with power.session("a", tasks=False) as session:
        first, second = await _damaged_file(power, session, damage)
        session.db.begin()
        index = BlockIndex(0)
        before = block_map.locate(session.db, first, index)
        assert before is not None
        session.cache.write_new(first, index, 0, CONTENT, replaced=before)
        await unmount(session)

    async with power.session("b", tasks=False) as session:
        for ino in (first, second):
            assert await read_file(session, ino) == CONTENT
        assert session.db.one("SELECT block, refs FROM blocks") == (before.block, 2)


async def test_follower_reads_healed_content(power: Power) -> None:
    async with power.session("a", tasks=False) as writer:
        first, _second = await _damaged_file(power, writer, _missing)
        await writer.flush_at_end()
        reads = OpenOptions(read_only=True, follow=True)
        follows = SessionOptions(follow=True)
        follower = power.session("b", options=reads, session_options=follows, tasks=False)
        async with follower as session:
            assert session.follower is not None
            with pytest.raises(ObjectMissingError):
                await read_file(session, first)
            assert not session.db.changed
            write_file(writer, CONTENT)
            await writer.flush_at_end()

            await session.follower.poll_once()

            assert await read_file(session, first) == CONTENT


@pytest.mark.parametrize("ends", ["flushed", "killed"])
async def test_damage_marked_by_one_writer_is_known_to_the_next_writer(
    power: Power, ends: str
) -> None:
    """Damage marks are shipped, so that the next writer need not find the damage by reading."""
    async with power.session("a", tasks=False) as session:
        first, _second = await _damaged_file(power, session, _flipped)
        if ends == "flushed":
            await unmount(session)
        else:
            session.durability.commit()
    host = "b" if ends == "flushed" else "a"
    async with power.session(host, tasks=False) as session:
        write_file(session, CONTENT)
        await session.flush_at_end()

        assert await read_file(session, first) == CONTENT


async def test_read_only_mount_marks_no_damage(power: Power) -> None:
    """Damage marks are replicated rows, so a read-only mount must not set them."""
    async with power.session("a", tasks=False) as session:
        first = write_file(session, CONTENT)
        await session.flush()
        await session.close()
    [key] = [key for key in power.store.objects if key.startswith("pack/")]
    del power.store.objects[key]
    async with power.session("b", options=OpenOptions(read_only=True), tasks=False) as session:
        with pytest.raises(ObjectMissingError):
            await read_file(session, first)

        assert damage_marks.marks(session.db) == []
        assert not session.db.changed


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailableError("pack", 8, 60.0, "HTTP 503"),
        StoreAccessError("pack", "AccessDenied", "check the permissions of the user"),
        UnexpectedStoreError("pack", "odd"),
    ],
)
async def test_store_error_is_not_treated_as_damage(power: Power, error: StoreError) -> None:
    """An error of the store, such as in an outage, does not mean that the block is damaged."""
    faulty = FaultyStore(power.store)
    options = SessionOptions(read_timeout_s=0.1)
    async with power.session("a", store=faulty, session_options=options, tasks=False) as session:
        first = write_file(session, CONTENT)
        await _upload_and_evict(session)
        faulty.fail("get_range", error, times=100)
        with pytest.raises(S3fsError):
            await read_file(session, first)

        assert damage_marks.marks(session.db) == []


async def test_empty_store_is_not_treated_as_damage(power: Power) -> None:
    """If the superblock is missing too, the bucket was replaced or its disk is unmounted."""
    async with power.session("a", tasks=False) as session:
        first = write_file(session, CONTENT)
        await _upload_and_evict(session)
        objects = dict(power.store.objects)
        power.store.objects.clear()
        with pytest.raises(ObjectMissingError):
            await read_file(session, first)
        power.store.objects.update(objects)

        assert damage_marks.marks(session.db) == []
        assert await read_file(session, first) == CONTENT


async def test_single_wrong_response_of_the_store_is_not_treated_as_damage(power: Power) -> None:
    """After a response with wrong content, a second request succeeds, and no damage is marked."""
    faulty = FaultyStore(power.store)
    async with power.session("a", store=faulty, tasks=False) as session:
        first = write_file(session, CONTENT)
        await session.flush()
        await session.durability.sync_all()
        for wrong in ("corrupt", "missing"):
            _evict(session)
            if wrong == "corrupt":
                faulty.corrupt("get_range")
            else:
                faulty.fail("get_range", ObjectMissingError("pack"))
            faulty.calls.clear()
            assert await read_file(session, first) == CONTENT
            assert [call.method for call in faulty.calls].count("get_range") == 2

        assert damage_marks.marks(session.db) == []


@EVERY_DAMAGE
async def test_damage_found_by_a_read_marks_the_complete_pack(
    power: Power, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """A read stops at the first damaged block, so the complete pack is marked."""
    async with power.session("a", tasks=False) as session:
        await _damaged_file(power, session, damage)
        [(pack, _key)] = packs.all_keys(session.db)
        assert damage_marks.marks(session.db) == [Mark(pack, None)]
        assert "s3fs-meta fsck -n --deep lists all damage" in caplog.text


async def _missing_pack(power: Power, session: Session) -> tuple[Ino, Ino]:
    """Delete a pack with a cached and an evicted file; return both files after a failed read."""
    cached_one, evicted, key = await _two_blocks(session)
    del power.store.objects[key]
    with pytest.raises(ObjectMissingError):
        await read_file(session, evicted)
    return cached_one, evicted


async def _two_blocks(session: Session) -> tuple[Ino, Ino, ObjectKey]:
    """Write a cached and an evicted file into one pack; return both files and the pack's key."""
    cached_one, evicted = write_file(session, b"cached" * 900), write_file(session, CONTENT)
    await session.flush()
    await session.durability.sync_all()
    assert (await session.cache.evictor.drop([location_of(session, evicted).block])).blocks == 1
    session.db.commit()
    [(_pack, key)] = packs.all_keys(session.db)
    return cached_one, evicted, key


async def test_cached_blocks_heal_content_of_a_missing_pack(power: Power) -> None:
    """If a read finds that a pack is missing, cached blocks of this pack are uploaded."""
    async with power.session("a", tasks=False) as session:
        cached_one, evicted = await _missing_pack(power, session)

        assert await session.healer.heal() == 1
        await session.flush_at_end()

        assert await session.healer.heal() == 0
        assert session.uploader.pending == 0
        await session.close()
    async with power.session("b", tasks=False) as session:
        assert await read_file(session, cached_one) == b"cached" * 900
        with pytest.raises(ObjectMissingError):
            await read_file(session, evicted)


@pytest.mark.parametrize("value", ["'text'", "CAST(x'ff00' AS TEXT)", "1.5"])
async def test_unreadable_row_in_a_missing_pack_does_not_prevent_healing(
    power: Power, value: str
) -> None:
    async with power.session("a", tasks=False) as session:
        cached_one, evicted = await _missing_pack(power, session)
        block = location_of(session, evicted).block
        session.db.begin()
        session.db.run(f"UPDATE blocks SET plain_bytes = {value} WHERE block = ?", (block,))

        assert await session.healer.heal() == 1
        await session.flush_at_end()

        assert await read_file(session, cached_one) == b"cached" * 900


@pytest.mark.parametrize("column", ["plain_bytes", "pack_offset", "stored_bytes", "pack"])
async def test_row_with_an_impossible_number_does_not_mark_an_intact_pack(
    power: Power, column: str
) -> None:
    async with power.session("a", tasks=False) as session:
        _cached_one, evicted, _key = await _two_blocks(session)
        block = location_of(session, evicted).block
        session.db.begin()
        session.db.run(f"UPDATE blocks SET {column} = ? WHERE block = ?", ((1 << 63) - 1, block))

        with pytest.raises(BadRowError):
            await read_file(session, evicted)

        assert damage_marks.marks(session.db) == []


async def test_copy_that_cannot_be_uploaded_stays_while_its_pack_is_missing(power: Power) -> None:
    """A last copy stays after a failed upload, because the disk may become readable later."""
    async with power.session("a", tasks=False) as session:
        cached_one, _evicted = await _missing_pack(power, session)
        path = session.files.root / "xxx" / f"{location_of(session, cached_one).block:x}"
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        assert await session.healer.heal() == 1
        await session.flush()
        await session.durability.sync_all()
        with pytest.raises(ObjectMissingError):
            await read_file(session, cached_one)

        path.write_bytes(content)

        assert await read_file(session, cached_one) == content
        assert await session.healer.heal() == 1
        await session.flush_at_end()
        await session.close()
    async with power.session("b", tasks=False) as session:
        assert await read_file(session, cached_one) == content


async def test_cached_block_of_a_damaged_pack_is_not_evicted_before_its_upload(
    power: Power,
) -> None:
    """A cached block of a damaged pack must not be evicted before it is uploaded."""
    async with power.session("a", tasks=False) as session:
        cached_one, _evicted = await _missing_pack(power, session)
        _evict(session)

        assert await session.healer.heal() == 1
        await session.flush_at_end()
        await session.durability.sync_all()

        _evict(session)
        assert session.cache.index.blocks() == []
        assert await read_file(session, cached_one) == b"cached" * 900


async def test_kill_during_an_overwrite_preserves_the_last_copy_of_a_block(power: Power) -> None:
    """An overwrite that a kill undoes must not destroy the last copy of a block."""
    async with power.session("a", tasks=False) as session:
        cached_one, _evicted = await _missing_pack(power, session)
        session.durability.commit()
        session.db.begin()
        index = BlockIndex(0)
        session.cache.write_new(
            cached_one, index, 0, b"new", replaced=location_of(session, cached_one)
        )

    async with power.session("a", tasks=False) as session:
        assert await read_file(session, cached_one) == b"cached" * 900


async def test_cached_blocks_of_a_damaged_pack_are_uploaded_in_the_background(power: Power) -> None:
    """A damage mark starts the upload of cached blocks without a request by the user."""
    async with power.session("a") as session:
        cached_one, evicted, key = await _two_blocks(session)
        before = location_of(session, cached_one).pack
        del power.store.objects[key]
        with pytest.raises(ObjectMissingError):
            await read_file(session, evicted)

        await until(lambda: location_of(session, cached_one).pack != before)


async def test_fetched_block_is_uploaded_again_with_its_position_in_the_file(power: Power) -> None:
    """A pack index contains the file position of each block, even of a block that was fetched."""
    async with power.session("a", tasks=False) as session:
        inos = [write_file(session, b"%d" % number * 900) for number in range(9)]
        await session.flush()
        await session.close()
    async with power.session("b", tasks=False) as session:
        # The cache also fetches blocks next to the requested block.
        await session.cache.fetch(location_of(session, inos[6]))
        row = blocks.get(session.db, location_of(session, inos[6]).block)
        assert row.pack is not None
        session.damage.mark(Mark(row.pack, None), "is damaged")
        assert await session.healer.heal(scan_rows=2) == 9
        await session.flush_at_end()

        places = [
            (entry.ino, entry.block_index)
            for pack, key in packs.all_keys(session.db)
            if pack != row.pack
            for entry in pack_codec.read_index(
                session.volume.keyring,
                key,
                power.store.objects[key],
                len(power.store.objects[key]),
            )
        ]
        assert sorted(places) == [(ino, 0) for ino in inos]


async def test_torn_cached_block_is_not_used_for_healing(power: Power) -> None:
    """A cached block whose bytes have changed must not be uploaded."""
    async with power.session("a", tasks=False) as session:
        cached_one, evicted, key = await _two_blocks(session)
        session.files.write_within(location_of(session, cached_one).block, 7, b"rotten", 7)
        del power.store.objects[key]
        with pytest.raises(ObjectMissingError):
            await read_file(session, evicted)

        await session.healer.heal()
        await session.flush_at_end()

        with pytest.raises(ObjectMissingError):
            await read_file(session, cached_one)
        assert await session.healer.heal() == 0


async def test_equal_block_in_another_pack_heals_a_damaged_block_on_both_hosts(
    power: Power,
) -> None:
    """Concurrent uploads may have stored equal blocks in two packs."""
    async with power.session("a", tasks=False) as session:
        first = write_file(session, CONTENT)
        await session.flush()
        second = write_file(session, b"another" * 700)
        await session.flush_at_end()
        lost, equal = location_of(session, first), location_of(session, second)
        session.db.begin()
        session.db.run("UPDATE blocks SET hash = ? WHERE block = ?", (lost.hash, equal.block))
        _evict(session)
        assert lost.pack is not None
        session.damage.mark(Mark(lost.pack, 0), "is damaged")

        assert await session.healer.heal() == 1

        healed = location_of(session, first)
        assert (healed.pack, healed.pack_offset) == (equal.pack, equal.pack_offset)
        assert session.db.changed
        assert await session.healer.heal() == 0
        await session.flush_at_end()
        await session.close()

    async with power.session("b", tasks=False) as session:
        found = location_of(session, first)
        assert (found.pack, found.pack_offset) == (equal.pack, equal.pack_offset)


async def test_earlier_point_in_time_reads_healed_content_from_its_new_location(
    power: Power, tmp_path: Path
) -> None:
    """A point in time refers to the damaged location, but is read at the new location."""
    async with power.session("a", tasks=False) as session:
        first, _second = await _damaged_file(power, session, _flipped)
        link = session.link
        write_file(session, CONTENT)
        await unmount(session)

    opened = await open_at(power, link.txg, tmp_path / "then")
    past = Session(opened, SessionOptions(), SystemClock())
    past.recover()
    async with running(past.run):
        assert await read_file(past, first) == CONTENT
    elsewhere = newest_state(opened)
    async with running(elsewhere.run):
        located = location_of(past, first)._replace(state=None)
        content = UncachedReader(opened.db, opened.store, opened.keyring, elsewhere.find)
        assert [one.data for one in await content.read([located])] == [CONTENT]
    await close_filesystem(opened, release=False)


async def test_rollback_uses_the_new_location_of_healed_content(power: Power) -> None:
    """A rollback uses the location at which healed content was uploaded a second time."""
    async with power.session("a", tasks=False) as session:
        first, second = await _damaged_file(power, session, _missing)
        before = session.link
        lost = write_file(session, b"lost")
        await session.flush()
        past = session.link
        key = packs.object_key(session.db, location_of(session, lost).pack or PackId(0))
        del power.store.objects[key]
        session.damage.note(location_of(session, lost), True)
        write_file(session, CONTENT)
        await unmount(session)
    assert past.txg > before.txg

    done = await roll_back(power, past)

    assert [notice for notice in done.notices if "1 block" in notice and "cannot be read" in notice]
    async with power.session("c", tasks=False) as session:
        assert session.db.inodes.one("SELECT count(*) FROM inodes WHERE size_bytes = 5000") == (2,)
        for ino in (first, second):
            assert await read_file(session, ino) == CONTENT
        with pytest.raises(ObjectMissingError):
            await read_file(session, lost)
        write_file(session, b"lost")
        await session.flush_at_end()
        assert await read_file(session, lost) == b"lost"


async def test_damage_marks_are_deleted_with_their_packs(power: Power) -> None:
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        first, _second = await _damaged_file(power, session, _flipped)
        write_file(session, CONTENT)
        for _ in range(4):
            write_file(session, os.urandom(1000))
            await session.make_image()

        assert damage_marks.marks(session.db) == []
        assert await read_file(session, first) == CONTENT
