"""A follower of another host's session, without FUSE."""

import errno

import pytest
import trio

from s3fs_meta.codec import lease
from s3fs_meta.errors import SettingsError, TransientStoreError
from s3fs_meta.limits import FOLLOW_LISTING_POLLS
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO
from s3fs_meta.mount_state import MountState
from s3fs_meta.objects.metrics import CountingStore
from s3fs_meta.sync.follower import follower as follower_module
from s3fs_meta.sync.kernel import SwitchChanges
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import Power, location_of, read_file, remove_file, ship, write_file
from tests.sync.follower.following import FOLLOWS, READS, following

LEASE = lease.KEY


async def test_follower_shows_new_and_removed_files_of_a_shipped_txg(power: Power) -> None:
    """A follower reads the bucket, and does not change the lease."""
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


async def test_follower_evicts_cached_blocks_of_removed_files(power: Power) -> None:
    """When files are removed, a follower deletes their rows and block files, and no others."""
    async with power.session("a") as writer:
        kept, gone = write_file(writer, b"kept" * 20_000), write_file(writer, b"gone" * 20_000)
        await ship(writer)
        async with following(power) as (session, listener):
            for ino in (kept, gone):
                await read_file(session, ino)
            block = location_of(session, gone)

            remove_file(writer, gone)
            await listener.wait_for(await ship(writer))
            async with session.follower.paused():  # type: ignore[union-attr]
                pass  # paused() waits until the follower has switched to the new txg.

            assert session.cache.index.get(block.block) is None
            assert block.block not in set(session.files.numbers())
            assert session.cache.index.total_count == 1


async def test_follower_shows_a_txg_whose_display_failed_at_the_next_poll(power: Power) -> None:
    """A second application of the txg would fail and cause a resync, which empties the cache."""
    async with power.session("a", tasks=False) as writer:
        kept, gone = write_file(writer, b"kept" * 20_000), write_file(writer, b"gone" * 20_000)
        await ship(writer)
        async with following(power) as (session, listener):
            for ino in (kept, gone):
                await read_file(session, ino)

            failed = trio.Event()

            async def fail() -> None:
                failed.set()
                listener.react = trio.lowlevel.checkpoint
                raise OSError(errno.EIO, "the disk failed")

            listener.react = fail
            remove_file(writer, gone)
            await listener.wait_for(await ship(writer))
            async with session.follower.paused():  # type: ignore[union-attr]  # it follows
                pass

            assert failed.is_set()
            assert session.status.state is MountState.FOLLOWING
            assert session.cache.index.get(location_of(session, kept).block) is not None
            assert session.cache.index.total_count == 1


async def test_follower_notifies_the_kernel_of_exactly_the_changes_in_a_txg(power: Power) -> None:
    """The announced changes also include a name that refers to a new inode."""
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

            assert listener.turns == [SwitchChanges({(ROOT_INO, b"name")}, {one}, set())]


async def test_each_poll_of_a_follower_costs_one_small_request(power: Power) -> None:
    """Each poll sends one GET; after FOLLOW_LISTING_POLLS polls, one LIST is sent in addition."""
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


async def test_cache_of_a_follower_stays_valid_after_a_remount(power: Power) -> None:
    """The blocks that a follower has fetched are in the cache of the next mount."""
    async with power.session("a") as writer:
        ino = write_file(writer, b"x" * 100_000)
        await ship(writer)
        async with following(power) as (session, _listener):
            await read_file(session, ino)
            await session.close()
        async with following(power) as (session, _listener):
            located = location_of(session, ino)
            assert session.cache.is_local(located)


async def test_killed_follower_resumes_after_its_last_applied_txg(power: Power) -> None:
    """After a kill, a follower keeps the applied changes and fetches only later txgs."""
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


async def test_host_with_unshipped_changes_cannot_become_a_follower(power: Power) -> None:
    """A host with unshipped changes cannot follow, because other hosts' changes may conflict."""
    async with power.session("a") as writer:
        write_file(writer, b"unshipped")
        writer.durability.commit()

    with pytest.raises(SettingsError, match="not in the bucket"):
        async with following(power, "a"):
            pass
    async with power.session("a") as writer:
        assert writer.db.counters.inodes == 2


async def test_follower_invalidates_all_inodes_after_a_huge_txg(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower lists a limited number of changed inodes; after a huge txg it announces all."""
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


async def test_wal_size_of_a_follower_is_limited(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each checkpoint, the WAL of a follower restarts."""
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


async def test_follower_reports_an_outage_and_continues_afterwards(power: Power) -> None:
    """During an outage, a follower reports the error and stays in the state FOLLOWING."""
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
