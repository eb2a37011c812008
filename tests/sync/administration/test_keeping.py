"""Kept points: the objects that they need stay in the bucket until the points are dropped."""

import random
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from s3fs_meta.codec import changelog
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.errors import (
    FencedError,
    NewerFormatError,
    ReadOnlyStateError,
    SettingsError,
    StoreError,
    UsageError,
)
from s3fs_meta.meta.tables import packs, properties
from s3fs_meta.model import PointInTime, Txg
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.administration.keeping import PointKeeper
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.hooks import STEPS
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.packs import stray_pack
from tests.sync.conftest import (
    TAKEOVER,
    HandClock,
    Power,
    keys_of,
    read_file,
    remove_file,
    unmount,
    write_file,
)
from tests.sync.histories import fork, keep_theirs, publish, put_back
from tests.sync.history.readers import at, bucket_of
from tests.sync.kept import Files, empty, files_at, fill, forget, kept_files
from tests.sync.kills import KillAt, Killed
from tests.sync.opening.histories import end_at, rot
from tests.sync.rolling_back import roll_back
from tests.tasks import held

pytestmark = pytest.mark.thorough

DAY = 86_400
_RECLAIM_STEPS = STEPS[STEPS.index("packs condemned") : STEPS.index("level put")]


# --- objects that a kept point needs -----------------------------------------------------------


async def test_kept_point_survives_retention_until_it_is_dropped(power: Power) -> None:
    await power.retain(0)
    async with power.session(tasks=False) as session:
        files = await kept_files(session)
        point = (await session.reclaimer.kept_points()).points[0]
        empty(session, dict(files))
        await forget(session)
        assert session.link.floor > point.txg
        assert await files_at(power, "a") == files
        bucket = await bucket_of(power)
        assert (await bucket.find(at(point.txg))).hash == point.hash
        with pytest.raises(SettingsError, match="before the oldest retained"):
            await bucket.find(at(point.txg - 1))
        needed = keys_of(power, "pack/")

        await PointKeeper(session).drop(["a"])
        await session.reclaimer.run(unless_idle=True)
        assert keys_of(power, "kept/") == []
        assert len(keys_of(power, "pack/")) < len(needed)
        first = min(
            name.txg for name in map(image_codec.parse_manifest_key, power.store.objects) if name
        )
        assert [changelog.parse_key(key) for key in keys_of(power, "changelog/")] == list(
            range(first, session.link.txg + 1)
        )
        with pytest.raises(SettingsError, match="no kept point"):
            await files_at(power, "a")


async def test_retained_point_in_time_can_be_kept_later(power: Power, clock: HandClock) -> None:
    """A point that is kept later also pins packs stored between its txg and the keep command."""
    await power.retain(3 * DAY)
    async with power.session(tasks=False) as session:
        files: Files = {}
        fill(session, files, b"old" * 999)
        await session.flush()
        past, then = dict(files), session.link.txg
        clock.pass_by(DAY)
        empty(session, files)
        fill(session, files, b"between" * 500)
        await session.flush()
        clock.pass_by(DAY)
        point = await PointKeeper(session).keep("then", at(then))
        assert point.txg == then
        empty(session, files)
        for _ in range(5):
            clock.pass_by(2 * DAY)
            await forget(session)
        assert session.link.floor > then + 3
        assert await files_at(power, "then") == past


async def test_point_in_time_that_is_no_longer_retained_cannot_be_kept(power: Power) -> None:
    await power.retain(0)
    async with power.session(tasks=False) as session:
        await kept_files(session)
        old = (await session.reclaimer.kept_points()).points[0].txg
        await forget(session)
        with pytest.raises(SettingsError, match="retained"):
            await PointKeeper(session).keep("b", at(old + 1))
        with pytest.raises(SettingsError):
            await PointKeeper(session).keep("b", at(session.link.txg + 1))
        assert len(keys_of(power, "kept/")) == 1


async def test_kept_point_can_be_kept_under_a_second_name(power: Power) -> None:
    """The state of a nightly point survives its expiry if it is also kept under a second name."""
    await power.retain(0)
    async with power.session(tasks=False) as session:
        keeper = PointKeeper(session)
        files: Files = {}
        fill(session, files, b"x" * 999)
        first = await keeper.keep("nightly", auto=True)
        empty(session, dict(files))
        await forget(session)
        again = await keeper.keep("for-ever", PointInTime("nightly", kept="nightly"))
        assert (again.txg, again.next_pack, again.auto) == (first.txg, first.next_pack, False)
        await keeper.drop(["nightly"])
        await forget(session)
        assert await files_at(power, "for-ever") == files


async def test_compaction_and_zero_retention_keep_the_objects_of_a_kept_point(power: Power) -> None:
    """Compaction moves blocks out of a pack, but a kept point still needs the pack."""
    await power.retain(0)
    async with power.session(tasks=False) as session:
        files: Files = {}
        rnd = random.Random(3)
        fill(session, files, *(rnd.randbytes(3000) for _ in range(8)))
        await session.flush()
        await PointKeeper(session).keep("a")
        state = dict(files)
        old = set(keys_of(power, "pack/"))
        for ino in list(files)[:-1]:
            remove_file(session, ino)
            del files[ino]
        await session.flush()
        await session.compactor.run_once()
        await forget(session)
        assert set(keys_of(power, "pack/")) > old
        assert await files_at(power, "a") == state
        [(ino, content)] = files.items()
        assert await read_file(session, ino) == content


@pytest.mark.parametrize("back", ["before", "after", "to it"])
async def test_rollback_keeps_the_kept_points_of_both_histories(power: Power, back: str) -> None:
    """A rollback loses no kept point, whether its txg is before or after the target."""
    async with power.session(tasks=False) as session:
        files: Files = {}
        fill(session, files, b"first" * 500)
        await session.flush()
        before = session.link
        fill(session, files, b"second" * 500)
        point = await PointKeeper(session).keep("future")
        state, link = dict(files), session.link
        fill(session, files, b"third" * 500)
        await session.flush()
        after = session.link
        await unmount(session)
    await power.retain(0)
    target = {"before": before, "after": after, "to it": link}[back]
    await roll_back(power, target)
    async with power.session("a", tasks=False) as session:
        await forget(session)
        assert session.link.floor > point.txg
        assert await files_at(power, "future") == state
        await session.close()
    bucket = await bucket_of(power)
    await roll_back(power, await bucket.find(PointInTime("future", kept="future")))
    async with power.session("b", options=TAKEOVER, tasks=False) as session:
        for ino, content in state.items():
            assert await read_file(session, ino) == content
        await forget(session)
        assert await files_at(power, "future") == state


async def test_kept_point_of_another_history_remains_readable(power: Power) -> None:
    """A kept point needs a pack that died earlier in the history of this host."""
    files: Files = {}
    older = await fork(power, files)
    died = max(changelog.parse_key(key) or 0 for key in power.store.objects)
    put_back(power, older)
    point = await keep_theirs(power, files, died)
    await power.retain(0)
    await publish(power)
    async with power.session("a", tasks=False) as session:
        await forget(session, times=2)
        assert session.link.floor > point
        assert await files_at(power, "theirs") == files


async def test_kept_point_remains_readable_if_a_repair_abandons_its_txg(power: Power) -> None:
    """A repair may abandon an unreadable changelog, which a backup may restore later."""
    async with power.session("a", tasks=False) as session:
        files: Files = {}
        fill(session, files, b"shared" * 500)
        await session.make_image()
        fork = session.link.txg
        for number in range(6):
            fill(session, files, b"%d" % number * 900)
            await session.flush()
        point = await PointKeeper(session).keep("abandoned")
        await unmount(session)
    lost = changelog.key_of(Txg(fork + 1))
    data = power.store.objects[lost]
    rot(power, fork + 1)
    await power.retain(0)
    async with power.session("b", options=end_at(fork), tasks=False) as session:
        remove_file(session, next(iter(files)))
        await session.flush_at_end()
        await forget(session, times=2)
        assert session.link.floor > point.txg
    power.store.objects[lost] = data
    assert await files_at(power, "abandoned") == files


async def _with_garbage(power: Power) -> Files:
    """Make a filesystem with garbage of each kind; return the files in its kept point in time."""
    await power.make()
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        files = await kept_files(session)
        await session.leveler.make_due()
        empty(session, dict(files))
        for number in range(40):
            ino = write_file(session, b"%d" % number * 900)
            await session.shipper.ship(anyway=True)
            remove_file(session, ino)
        await session.leveler.make_due()
        await session.indexer.make_due()
        await session.close()
    return files


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, marks=pytest.mark.slow, id="plain"),
        pytest.param(True, id="encrypted"),
    ],
)
def garbage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Power, Files]:
    """Return a filesystem with garbage, and the files of a kept point; each test uses a copy."""
    power = Power(MemoryStore(), tmp_path_factory.mktemp("garbage"))
    power.encrypted = request.param
    return power, trio.run(_with_garbage, power)


@pytest.mark.parametrize("step", _RECLAIM_STEPS)
async def test_kill_during_reclaim_damages_no_kept_point(
    garbage: tuple[Power, Files], tmp_path: Path, step: str
) -> None:
    original, files = garbage
    power = original.copy(tmp_path)
    kill = KillAt(step)
    async with power.session("a", tasks=False, hook=kill) as session:
        for number in range(3):
            write_file(session, b"later %d" % number)
            await session.imager.make()
        kill.armed = True
        with pytest.raises(Killed):
            await session.reclaimer.reclaim_all()
    for host in ("a", "b"):
        async with power.session(host, options=TAKEOVER, tasks=False) as session:
            await forget(session)
        assert await files_at(power, "a") == files


async def test_host_whose_state_equals_a_kept_point_restores_the_newest_state(power: Power) -> None:
    """A host at a kept point can continue although later changelogs were deleted."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        files = await kept_files(session)
        await session.close()
    async with power.session("b", tasks=False) as session:
        await forget(session)
        new = write_file(session, b"new")
        await unmount(session)
    async with power.session("a", tasks=False) as session:
        assert session.volume.notices == ()
        assert await read_file(session, new) == b"new"
        for ino, content in files.items():
            assert await read_file(session, ino) == content
    assert list((power.home / "a").glob("kept-*")) == []


async def test_host_whose_state_precedes_a_kept_point_restores_the_newest_state(
    power: Power,
) -> None:
    """A host restores the newest state even if the changelogs that it missed were deleted."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        write_file(session, b"first")
        await unmount(session)
        left = session.link.txg
    async with power.session("b", tasks=False) as session:
        files = await kept_files(session)
        await forget(session)
        assert session.link.floor > (await session.reclaimer.kept_points()).points[0].txg
        new = write_file(session, b"new")
        await unmount(session)
    assert changelog.key_of(Txg(left + 1)) in power.store.objects
    async with power.session("a", tasks=False) as session:
        assert session.volume.notices == ()
        assert await read_file(session, new) == b"new"
        for ino, content in files.items():
            assert await read_file(session, ino) == content
    assert list((power.home / "a").glob("kept-*")) == []


# --- keeping a point ---------------------------------------------------------------------------


async def test_older_program_cannot_open_a_filesystem_with_a_kept_point(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feature flag stops older programs, which would delete objects that the point needs."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        await session.make_image()
        assert (await power.keys()).superblock.features == ()
        files = await kept_files(session)
        assert (await power.keys()).superblock.features == (superblock_codec.KEPT_POINTS,)
        assert session.volume.superblock.features == (superblock_codec.KEPT_POINTS,)
        generation = session.volume.superblock.generation
        await PointKeeper(session).keep("b")
        assert session.volume.superblock.generation == generation
        for number in range(3):
            write_file(session, b"later %d" % number)
            await session.imager.make()
        before = dict(power.store.objects)
        monkeypatch.setattr(superblock_codec, "KNOWN_FEATURES", frozenset())
        with pytest.raises(NewerFormatError, match="upgrade"):
            await session.reclaimer.reclaim()
        assert power.store.objects == before
    with pytest.raises(NewerFormatError, match="upgrade"):
        async with power.session("b", options=TAKEOVER):
            pass
    monkeypatch.undo()
    assert await files_at(power, "a") == files


async def test_superblock_gets_the_kept_point_feature_flag_before_the_first_point_is_stored(
    power: Power,
) -> None:
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        write_file(session, b"x")
        await session.flush()
        store.fail("create")
        with pytest.raises(StoreError):
            await PointKeeper(session).keep("a")
        assert keys_of(power, "kept/") == []
        assert (await power.keys()).superblock.features == (superblock_codec.KEPT_POINTS,)
        await PointKeeper(session).keep("a")


async def test_kept_point_of_a_host_that_lost_the_lease_is_not_confirmed(power: Power) -> None:
    """After a takeover the new writer may delete objects before the kept point is stored."""
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        write_file(session, b"x")
        await session.flush()
        await PointKeeper(session).keep("first")
        async with power.session("b", options=TAKEOVER, tasks=False):
            pass
        with pytest.raises(FencedError):
            await PointKeeper(session).keep("second")
        with pytest.raises((FencedError, ReadOnlyStateError)):
            await PointKeeper(session).drop(["first"])
        assert len(keys_of(power, "kept/")) == 1


async def test_host_that_lost_the_lease_stores_no_kept_point(power: Power) -> None:
    """Keeping a retained point ships no txg, so the lease is checked for a takeover."""
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        write_file(session, b"x")
        await session.flush()
        wanted = at(session.link.txg)
        await PointKeeper(session).keep("first", wanted)
        async with power.session("b", options=TAKEOVER, tasks=False):
            pass
        with pytest.raises(FencedError):
            await PointKeeper(session).keep("second", wanted)
        assert len(keys_of(power, "kept/")) == 1


async def test_point_in_time_before_an_unshipped_retention_floor_cannot_be_kept(
    power: Power,
) -> None:
    """Garbage collection may have deleted objects of txgs before its new retention floor."""
    async with power.session("a", tasks=False) as session:
        for number in range(3):
            write_file(session, b"%d" % number)
            await session.flush()
        txg = session.link.txg
        session.db.begin()
        chain.want_floor(session.db, txg)
        with pytest.raises(SettingsError, match=f"the oldest retained txg is {txg}"):
            await PointKeeper(session).keep("early", at(txg - 1))
        await PointKeeper(session).keep("late", at(txg))


async def test_no_point_can_be_kept_while_garbage_collection_deletes_objects(power: Power) -> None:
    """A keep command waits, because garbage collection may delete objects that its point needs."""
    await power.retain(0)
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        files: Files = {}
        for number in range(3):
            fill(session, files, b"%d" % number * 900)
            await session.imager.make()
        wanted = at(session.link.txg)
        async with held(store.hold("delete"), session.reclaimer.run) as nursery:
            nursery.start_soon(PointKeeper(session).keep, "a", wanted)
            for _ in range(20):
                await trio.testing.wait_all_tasks_blocked(0.01)
            assert keys_of(power, "kept/") == []
        assert await files_at(power, "a") == files


async def test_takeover_during_the_upload_of_a_kept_point_fences_the_former_writer(
    power: Power,
) -> None:
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        write_file(session, b"x")
        await session.flush()
        keeper = PointKeeper(session)
        await keeper.keep("first")
        async with (
            held(store.hold("create"), partial(keeper.keep, "second"), FencedError),
            power.session("b", options=TAKEOVER, tasks=False),
        ):
            pass


async def test_kept_point_can_be_dropped_if_the_response_to_its_creation_was_lost(
    power: Power,
) -> None:
    await power.retain(0)
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        files: Files = {}
        fill(session, files, b"x" * 999)
        await session.flush()
        keeper = PointKeeper(session)
        await keeper.keep("first")
        store.lose_reply("create")
        with pytest.raises(StoreError):
            await keeper.keep("second")
        await forget(session)
        assert await files_at(power, "second") == files
        with pytest.raises(UsageError):
            await keeper.keep("second")
        await keeper.drop(["first", "second"])
        assert keys_of(power, "kept/") == []


# --- packs that a kept point needs -------------------------------------------------------------


async def test_packs_without_a_row_are_kept_if_a_kept_point_may_need_them(power: Power) -> None:
    """A pack has no row if its row was lost or a repair abandoned the txgs of its writer."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        await kept_files(session)
        keyring, epoch = session.volume.keyring, session.volume.keeper.epoch
        await session.close()
    key, data = stray_pack(keyring, epoch)
    power.store.objects[key] = data
    for host in ("a", "b", "a"):
        async with power.session(host, options=TAKEOVER, tasks=False) as session:
            await forget(session)
            assert key in power.store.objects
    async with power.session("a", options=TAKEOVER, tasks=False) as session:
        await PointKeeper(session).drop(["a"])
        await forget(session)
    assert key not in power.store.objects


async def test_pack_renumbered_by_a_repair_stays_pinned(power: Power) -> None:
    """Kept points from before a repair need a pack even if the repair gave it a new number."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        files = await kept_files(session, count=1)
        db = session.db
        [(number, key)] = packs.all_keys(db)
        db.begin()
        new = db.counters.take_pack()
        db.run("UPDATE packs SET pack = ? WHERE pack = ?", (new, number))
        db.run("UPDATE blocks SET pack = ? WHERE pack = ?", (new, number))
        properties.renumber_packs(db, db.counters.txg, new + 1)
        await session.publish_as_txg()
        empty(session, dict(files))
        await forget(session)
        assert key in power.store.objects
        assert await files_at(power, "a") == files
