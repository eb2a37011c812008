"""Following another host's session, without FUSE."""

import pytest

from s3fs_meta.codec import lease
from s3fs_meta.errors import SettingsError, TransientStoreError
from s3fs_meta.limits import FOLLOW_LISTING_POLLS
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, BlockIndex
from s3fs_meta.mount_state import MountState
from s3fs_meta.objects.metrics import CountingStore
from s3fs_meta.sync.follower import follower as follower_module
from s3fs_meta.sync.kernel import Turned
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import Power, read_file, remove_file, write_file
from tests.sync.follower.following import FOLLOWS, READS, following, ship

LEASE = lease.KEY


async def test_follower_shows_txg_after_txg(power: Power) -> None:
    """Files appear and disappear; the lease is never touched."""
    async with power.session("a") as writer:
        kept, gone = write_file(writer, b"kept"), write_file(writer, b"gone")
        await ship(writer)
        before = power.store.objects[LEASE]
        async with following(power) as (session, listener):
            assert session.status.state is MountState.FOLLOWING
            assert await read_file(session, gone) == b"gone"

            remove_file(writer, gone)
            late = write_file(writer, b"late")
            await listener.wait_for(await ship(writer))

            assert inodes.find(session.db, gone) is None
            assert await read_file(session, kept) == b"kept"
            assert await read_file(session, late) == b"late"
            assert not session.status.writable
            assert power.store.objects[LEASE] == before


async def test_cached_blocks_of_removed_files_are_deleted(power: Power) -> None:
    """Rows and files; other cached blocks stay."""
    async with power.session("a") as writer:
        kept, gone = write_file(writer, b"kept" * 20_000), write_file(writer, b"gone" * 20_000)
        await ship(writer)
        async with following(power) as (session, listener):
            for ino in (kept, gone):
                await read_file(session, ino)
            block = session.cache.located(gone, BlockIndex(0))
            assert block is not None

            remove_file(writer, gone)
            await listener.wait_for(await ship(writer))
            async with session.follower.paused():  # type: ignore[union-attr]  # it is a follower
                pass  # waits until the switch is complete

            assert session.cache.index.get(block.block) is None
            assert block.block not in set(session.files.numbers())
            assert session.cache.index.total_count == 1


async def test_listener_gets_exactly_the_changes(power: Power) -> None:
    """Names, inodes and contents of a txg; also of an entry that names another inode."""
    async with power.session("a") as writer:
        one, other = write_file(writer, b"one"), write_file(writer, b"other")
        writer.db.begin()
        dentries.add(writer.db, ROOT_INO, b"name", one)
        await ship(writer)
        async with following(power) as (_session, listener):
            writer.db.begin()
            dentries.replace(writer.db, ROOT_INO, b"name", other)
            inodes.touch(writer.db, one, atime_ns=5)
            await listener.wait_for(await ship(writer))

            assert listener.turns == [Turned({(ROOT_INO, b"name")}, {one}, set())]


async def test_each_poll_costs_one_small_request(power: Power) -> None:
    """Independent of the size of the filesystem; sometimes a listing is added."""
    async with power.session("a") as writer:
        write_file(writer, b"x")
        await ship(writer)
        store = CountingStore(power.store)
        async with power.session(
            "b", options=READS, session_options=FOLLOWS, store=store, tasks=False
        ) as session:
            follower = session.follower
            assert follower is not None
            before = {name: one.requests for name, one in store.counts.items()}
            for _ in range(FOLLOW_LISTING_POLLS):
                await follower.poll_once()

            made = {name: one.requests - before[name] for name, one in store.counts.items()}
            assert {name: count for name, count in made.items() if count} == {
                "get": FOLLOW_LISTING_POLLS,
                "list": 1,
            }
            assert store.counts["get"].errors == 0


async def test_cache_survives_a_remount(power: Power) -> None:
    """The next mount on this host finds the blocks that a follower fetched."""
    async with power.session("a") as writer:
        ino = write_file(writer, b"x" * 100_000)
        await ship(writer)
        async with following(power) as (session, _listener):
            await read_file(session, ino)
            await session.close()
        async with following(power) as (session, _listener):
            located = session.cache.located(ino, BlockIndex(0))
            assert located is not None
            assert session.cache.is_local(located)


async def test_killed_follower_continues(power: Power) -> None:
    """Changes that it applied are kept; unapplied ones are fetched again."""
    async with power.session("a") as writer:
        async with following(power) as (session, listener):
            ino = write_file(writer, b"x" * 100_000)
            await listener.wait_for(await ship(writer))
            await read_file(session, ino)
        second = write_file(writer, b"second")
        txg = await ship(writer)
        async with following(power) as (session, listener):
            await listener.wait_for(txg)
            assert await read_file(session, ino) == b"x" * 100_000
            assert await read_file(session, second) == b"second"
            assert session.volume.notices == ()


async def test_host_with_changes_of_its_own_cannot_follow(power: Power) -> None:
    """These changes exist on this host alone, and other hosts' changes would not fit; nothing is deleted."""
    async with power.session("a") as writer:
        write_file(writer, b"unshipped")
        writer.durability.commit()

    with pytest.raises(SettingsError, match="not in the bucket"):
        async with following(power, "a"):
            pass
    async with power.session("a") as writer:
        assert writer.db.counters.inodes == 2


async def test_huge_txg_invalidates_all_inodes(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Touched inodes are not remembered one by one: memory is bounded."""
    monkeypatch.setattr(follower_module, "FOLLOW_TOUCHED_MAX", 5)
    async with power.session("a") as writer, following(power) as (session, listener):
        small = write_file(writer, b"x")
        await listener.wait_for(await ship(writer))
        large = [write_file(writer, b"%d" % number) for number in range(9)]
        await listener.wait_for(await ship(writer))

        assert listener.turns[0] is not None
        assert listener.turns[0].inodes == {small}
        assert listener.turns[1] is None
        assert await read_file(session, large[-1]) == b"8"


async def test_log_of_a_follower_stays_short(power: Power, monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent of the number of applied txgs: the log restarts after a checkpoint."""
    monkeypatch.setattr(follower_module, "WAL_CHECKPOINT_BYTES", 4096)
    async with power.session("a") as writer, following(power) as (session, listener):
        lengths = []
        for _ in range(8):
            for _ in range(20):
                write_file(writer, b"x")
            await listener.wait_for(await ship(writer))
            assert session.follower is not None
            async with session.follower.paused():
                lengths.append((await session.follower.applier()).wal_bytes)
        assert max(lengths[4:]) <= max(lengths[:4])


async def test_outage_of_the_store_is_reported_and_waited_out(power: Power) -> None:
    """The follower shows its last state; when the store is back it continues."""
    async with power.session("a", tasks=False) as writer:
        store = FaultyStore(power.store)
        async with power.session(
            "b", options=READS, session_options=FOLLOWS, store=store, tasks=False
        ) as session:
            follower = session.follower
            assert follower is not None
            ino = write_file(writer, b"x")
            await ship(writer)
            store.down = TransientStoreError("anything", "away")
            await follower.poll_once()
            assert "away" in follower.last_error
            assert session.status.state is MountState.FOLLOWING

            store.down = None
            await follower.poll_once()

            assert follower.last_error == ""
            assert await read_file(session, ino) == b"x"
