"""Garbage collection: it condemns a pack, ships this change and then deletes the pack."""

import itertools
import os
from pathlib import Path

import pytest
import trio
import trio.testing

from s3fs_meta.codec import changelog, image, level
from s3fs_meta.errors import FencedError
from s3fs_meta.limits import LOOP_SLICE_ROWS
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import packs, properties
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.billing import Meter, MeteredStore
from s3fs_meta.sync.image.restore import Restorer
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.packs import stray_pack
from tests.sync.conftest import (
    HandClock,
    Power,
    changelogs,
    figures_of,
    flushed,
    keys_of,
    read_file,
    remove_file,
    ship,
    unmount,
    write_file,
)
from tests.tasks import running

pytestmark = pytest.mark.thorough

CONTENT = b"hello" * 1000
DAY = 86_400


def manifests(power: Power) -> list[Txg]:
    """Return the txgs of the images in the bucket."""
    names = [image.parse_manifest_key(key) for key in power.store.objects]
    return sorted(name.txg for name in names if name is not None)


async def _txg(session: Session, content: bytes = b"") -> Txg:
    """Ship a txg and return its number."""
    write_file(session, content or b"x")
    return await ship(session)


async def test_dead_pack_is_deleted_when_no_retained_image_refers_to_it(power: Power) -> None:
    """Even without retention, the last two images are kept with all packs that they refer to."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        await session.make_image()
        [key] = keys_of(power, "pack/")
        remove_file(session, ino)

        await session.make_image()
        assert key in power.store.objects  # The previous image still refers to the pack.
        write_file(session, b"other")
        await session.make_image()
        assert key not in power.store.objects
        assert len(manifests(power)) == 2
        assert changelogs(power) == list(range(manifests(power)[0], session.link.txg + 1))


async def test_retained_points_in_time_can_be_restored_and_others_are_deleted(
    power: Power, clock: HandClock
) -> None:
    """Each txg within the retention can be restored, and the bucket has its live packs."""
    await power.retain(3 * DAY)
    async with power.session("a", tasks=False) as session:
        states: dict[Txg, dict[str, bytes]] = {}
        times: dict[Txg, int] = {}
        ino = None
        for number in range(20):
            if ino is not None:
                remove_file(session, ino)
            content = b"day %d" % number * 500
            ino = write_file(session, content)
            link = await flushed(session)
            states[link.txg], times[link.txg] = {str(ino): content}, link.created_ns
            if number % 2:
                await session.make_image()
            clock.pass_by(DAY / 2)
        floor = session.link.floor

        retained = {txg for txg, made in times.items() if made >= clock.ns - 3 * DAY * 10**9}
        assert len(retained) == 5
        assert floor <= min(retained)
        for txg in retained:
            path = power.home / f"at-{txg}.db"
            opened = session.volume
            restorer = Restorer(
                power.store, opened.keyring, opened.superblock.uuid, lambda *_: None
            )
            assert (await restorer.restore(None, path, txg)).txg == txg
            assert restorer.notices == []
            keys = _live_packs(path)
            assert keys
            assert keys <= power.store.objects.keys()
        gone = {txg for txg in times if txg < floor}
        assert gone
        assert len(keys_of(power, "pack/")) < len(states)
        assert changelogs(power)[0] == max(txg for txg in manifests(power) if txg <= floor)


def _live_packs(path: Path) -> set[str]:
    db = Database.open(path, Pragmas())
    try:
        return {row.object_key for row in packs.iterate(db) if row.live_bytes}
    finally:
        db.close()


async def test_default_retention_keeps_packs_and_changelogs_for_a_week(
    power: Power, clock: HandClock
) -> None:
    async with power.session("a", tasks=False) as session:
        remove_file(session, write_file(session, CONTENT))
        ino = write_file(session, CONTENT)
        await session.make_image()
        [key] = keys_of(power, "pack/")
        remove_file(session, ino)
        for _ in range(3):
            clock.pass_by(2 * DAY)
            await _txg(session)
            await session.make_image()
        assert session.link.floor == 0
        assert key in power.store.objects
        assert changelogs(power)[0] == 1

        for _ in range(3):
            clock.pass_by(2 * DAY)
            await _txg(session)
            await session.make_image()
        assert session.link.floor > 0
        assert key not in power.store.objects


async def test_fast_clock_deletes_no_object_that_the_last_images_need(
    power: Power, clock: HandClock
) -> None:
    """A clock a year ahead must not move the retention floor past the second-last image."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        for _ in range(3):
            await _txg(session)
            await session.make_image()
        second = manifests(power)[-2]
        before = set(keys_of(power, "pack/"))
        clock.pass_by(365 * DAY)

        await session.reclaimer.run()

        assert session.link.floor == second
        assert set(keys_of(power, "pack/")) == before
        assert await read_file(session, ino) == CONTENT


async def test_retention_floor_does_not_fall(power: Power, clock: HandClock) -> None:
    """The floor stays if the clock is set back, the retention grows or another host mounts."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        for _ in range(3):
            await _txg(session)
            await session.make_image()
        floor = session.link.floor
        assert floor > 0
        clock.pass_by(-300 * DAY)
        await power.retain(100 * DAY)
        for _ in range(2):
            await _txg(session)
            await session.make_image()
        assert session.link.floor == floor
        await unmount(session)

    async with power.session("b", tasks=False) as session:
        assert session.volume.link.floor == floor
        await _txg(session)
        await session.make_image()
        assert session.link.floor == floor


async def test_nothing_is_deleted_before_the_new_retention_floor_is_shipped(power: Power) -> None:
    """Objects are deleted only after the changelog with the new floor is confirmed."""
    await power.retain(0)
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        ino = write_file(session, CONTENT)
        await session.make_image()
        remove_file(session, ino)
        await _txg(session)
        await session.imager.make()
        await session.imager.make()
        before = dict(power.store.objects)
        store.fail("create")

        await session.reclaimer.run()

        assert session.reclaimer.last_error
        assert power.store.objects == before
        assert len(packs.find_condemned(session.db, range(10_000))) == 1
        await session.reclaimer.run()
        assert session.reclaimer.last_error == ""
        assert len(keys_of(power, "pack/")) == 1


async def test_idle_mount_searches_for_garbage_once_per_day(power: Power, clock: HandClock) -> None:
    """A search for garbage follows a new txg, a new retention or the end of a day."""
    meter = Meter()
    store = MeteredStore(power.store, meter)

    async def listings(session: Session) -> int:
        meter.take()
        await session.reclaimer.run(unless_idle=True)
        assert session.reclaimer.last_error == ""
        counts = [one for counts in meter.take().values() for one in counts.items()]
        return sum(billed.requests for (_cause, kind), billed in counts if kind == "list")

    async with power.session("a", tasks=False, store=store) as session:
        await _txg(session)
        assert await listings(session) > 0
        assert [await listings(session) for _ in range(3)] == [0, 0, 0]
        await _txg(session)
        assert await listings(session) > 0
        assert await listings(session) == 0
        await power.retain(9 * DAY)
        assert await listings(session) > 0
        assert await listings(session) == 0
        clock.pass_by(DAY + 1)
        assert await listings(session) > 0


async def test_search_for_garbage_is_repeated_if_it_failed_or_found_garbage(power: Power) -> None:
    await power.retain(0)
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        for _ in range(3):
            await _txg(session)
            await session.imager.make()
        before = len(power.store.objects)
        store.fail("delete")
        await session.reclaimer.run(unless_idle=True)
        assert session.reclaimer.last_error
        await session.reclaimer.run(unless_idle=True)
        assert session.reclaimer.last_error == ""
        assert len(power.store.objects) < before


async def test_garbage_collection_of_an_idle_filesystem_eventually_stops(
    power: Power, clock: HandClock
) -> None:
    """Each garbage collection ships a txg, but these txgs must not cause further collections."""
    await power.retain(5)
    async with power.session("a", tasks=False) as session:
        for _ in range(4):
            ino = write_file(session, CONTENT)
            await session.make_image()
            remove_file(session, ino)
        for _ in range(3):
            clock.pass_by(100)
            await session.reclaimer.run()
        txg = session.link.txg
        objects = set(power.store.objects)

        for _ in range(3):
            clock.pass_by(100)
            await session.reclaimer.run()

        assert (session.link.txg, set(power.store.objects)) == (txg, objects)


async def test_orphan_packs_are_deleted_and_other_objects_are_kept(
    power: Power, clock: HandClock
) -> None:
    """A pack without a row is garbage if its epoch ended before the retention floor."""
    await power.retain(5)
    foreign = [ObjectKey(f"{kind}/notes.txt") for kind in ("pack", "image", "changelog")]
    foreign.append(ObjectKey("pack/ab/1-ab" + "1" * 30))
    async with power.session("a") as session:
        await _txg(session)
        keyring = session.volume.keyring
        await session.close()
    (orphan, data), (own, later) = stray_pack(keyring, 1), stray_pack(keyring, 7)
    power.store.objects.update({orphan: data, own: later, **dict.fromkeys(foreign, b"?")})
    async with power.session("a", tasks=False) as session:
        for _ in range(4):
            await _txg(session)
            await session.make_image()
            clock.pass_by(10)
        assert orphan not in power.store.objects
        assert {own, *foreign} <= power.store.objects.keys()
        assert all(key != orphan for _pack, key in packs.all_keys(session.db))


async def test_orphan_pack_within_the_retention_is_kept(power: Power, clock: HandClock) -> None:
    """A young pack without a row is kept, because a quarantined state may need it."""
    async with power.session("a") as session:
        await _txg(session)
        await session.close()
        keyring = session.volume.keyring
    orphan, data = stray_pack(keyring, 1)
    power.store.objects[orphan] = data
    async with power.session("a", tasks=False) as session:
        for _ in range(4):
            await _txg(session)
            await session.make_image()
            clock.pass_by(DAY)
        assert orphan in power.store.objects


async def test_unreferenced_parts_of_changelogs_are_deleted(power: Power) -> None:
    """Parts of a later txg are kept, because the next changelog may refer to these parts."""
    async with power.session("a", tasks=False) as session:
        txg = await _txg(session)
        prefix = changelog.part_prefix(txg, session.volume.keeper.epoch, bytes(8))
        stray = changelog.part_key(prefix, 0)
        coming = changelog.part_key(prefix.replace(f"{txg:012d}", f"{txg + 5:012d}"), 0)
        keyring, section = session.volume.keyring, changelog.Section(b"", ())
        power.store.objects[stray] = changelog.encode_part(stray, section, keyring)
        power.store.objects[coming] = changelog.encode_part(coming, section, keyring)
        await session.make_image()
        assert stray not in power.store.objects
        assert coming in power.store.objects


FORESEEABLE = (
    changelog.key_of(Txg(2)),
    ObjectKey("changelog-part/000000000001-1-0000000000000000/000000"),
    level.key_of(1, Txg(5)),
)


@pytest.mark.parametrize("key", FORESEEABLE)
async def test_foreign_object_with_a_predictable_key_is_not_deleted(
    power: Power, key: ObjectKey, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys of changelogs are predictable, so the content shows whether an object is foreign."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        for _ in range(6):
            await _txg(session)
        await session.leveler.make_due()
        power.store.objects[key] = b"the only copy of a thesis"

        for _ in range(3):
            await _txg(session)
            await session.make_image()

        assert power.store.objects[key] == b"the only copy of a thesis"
        assert caplog.text.count(f"{key} is damaged or was not written by this filesystem") == 1
        assert caplog.text.count("does not need the object: delete it if nothing else uses it") == 1
        assert session.link.floor > 5, "only the foreign object is kept"
        others = {*changelogs(power), *map(str, power.store.objects)} - {Txg(2), str(key)}
        assert not {Txg(1), Txg(3), Txg(4), Txg(5), str(level.key_of(1, Txg(5)))} & others


async def test_incomplete_image_does_not_count_as_one_of_the_last_images(power: Power) -> None:
    """Garbage collection keeps the last two images that can be restored."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        for _ in range(3):
            await _txg(session)
            await session.make_image()
        oldest, newest = manifests(power)
        [piece] = [
            key
            for key in power.store.objects
            if key.startswith(f"image/{newest:012d}-") and not key.endswith("manifest")
        ]
        del power.store.objects[piece]
        await session.reclaimer.run()
        await _txg(session)
        await session.make_image()

        assert oldest in manifests(power)
        assert changelogs(power)[0] == oldest
    async with power.session("b", options=OpenOptions(force_takeover=True)) as session:
        assert session.volume.notices == ()


async def test_old_images_are_thinned_out_if_there_are_many(power: Power, clock: HandClock) -> None:
    """If a day has many images, some are deleted, but all retained points stay restorable."""
    await power.retain(8 * DAY)
    async with power.session("a", tasks=False) as session:
        for _ in range(40):
            clock.pass_by(DAY / 4)
            await _txg(session)
            await session.make_image()
        found = manifests(power)
        assert 8 <= len(found) <= 12
        assert changelogs(power)[0] == found[0] <= session.link.floor


async def test_txg_published_as_an_image_is_kept_while_later_txgs_are_retained(
    power: Power, clock: HandClock
) -> None:
    await power.retain(8 * DAY)
    async with power.session("a", tasks=False) as session:
        for _ in range(2):
            clock.pass_by(6 * DAY)
            await _txg(session)
            await session.make_image()
        await session.publish_as_txg()
        wanted = await _txg(session)
        for _ in range(4):
            clock.pass_by(DAY / 4)
            await _txg(session)
            await session.make_image()
        await session.reclaimer.run()

        assert session.link.floor <= wanted
        opened = session.volume
        restorer = Restorer(power.store, opened.keyring, opened.superblock.uuid, no_progress)
        link = await restorer.restore(None, power.home / "past.db", upto=wanted)
        assert link.txg == wanted
        assert restorer.notices == []


async def test_fenced_writer_without_changes_to_ship_deletes_nothing(
    power: Power, clock: HandClock
) -> None:
    """The fenced writer must not delete an image on which the next writer's floor may depend."""
    await power.retain(8 * DAY)
    async with power.session("a", tasks=False) as session:
        for _ in range(4):
            clock.pass_by(60)
            await _txg(session)
            await session.imager.make()
        assert (await session.reclaimer.plan()).total
        async with power.session("b", options=OpenOptions(force_takeover=True), tasks=False):
            before = dict(power.store.objects)
            with pytest.raises(FencedError):
                await session.reclaimer.reclaim()
            assert power.store.objects == before
    assert not session.status.ships


async def test_condemning_many_packs_does_not_block_other_tasks(power: Power) -> None:
    """Rows of many condemned or deleted packs are changed in slices."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        session.db.begin()
        for number in range(5 * LOOP_SLICE_ROWS):
            pack = packs.create(session.db, ObjectKey(f"pack/00/1-{number:032x}"), 1000)
            packs.stored(session.db, pack)
            packs.note_if_dead(session.db, pack)
        session.db.commit()
        await session.make_image()
        seen: set[tuple[int, int]] = set()

        async def watch() -> None:
            while True:
                known = packs.condemned(session.db), list(packs.all_keys(session.db))
                seen.add((len(known[0]), len(known[1])))
                await trio.lowlevel.checkpoint()

        async with running(watch):
            write_file(session, CONTENT)
            await session.make_image()

        for counts in ({one for one, _ in seen}, {one for _, one in seen}):
            steps = sorted(counts)
            assert len(steps) > 2
            assert max(b - a for a, b in itertools.pairwise(steps)) <= 2 * LOOP_SLICE_ROWS
        assert len(list(packs.all_keys(session.db))) == 1


async def test_dry_run_of_garbage_collection_lists_exactly_the_next_deletions(power: Power) -> None:
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        await session.imager.make()
        remove_file(session, ino)
        for _ in range(2):
            await _txg(session)
            await session.imager.make()
        before = dict(power.store.objects)
        plan = await session.reclaimer.plan()
        assert power.store.objects == before
        assert plan.counts["packs"][0] == 1

        assert (await session.reclaimer.reclaim()).counts == plan.counts
        gone = before.keys() - power.store.objects.keys()
        assert len(gone) == plan.total
        assert sum(len(before[key]) for key in gone) == sum(
            size for _number, size in plan.counts.values()
        )


async def test_each_garbage_collection_deletes_a_limited_number_of_objects(power: Power) -> None:
    """A run deletes at most a given number of objects; later runs delete the others."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        for _ in range(6):
            await _txg(session)
            await session.imager.make()
        total = (await session.reclaimer.plan()).total
        assert (await session.reclaimer.reclaim(limit=3)).total == 3
        rest = total - 3
        while (gone := (await session.reclaimer.reclaim(limit=3)).total) == 3:
            rest -= gone
        assert gone == rest
        assert len(manifests(power)) == 2
        assert changelogs(power)[0] == manifests(power)[0]


async def _restore_at(power: Power, session: Session, txg: Txg) -> list[str]:
    """Restore a txg and return the notices."""
    opened = session.volume
    restorer = Restorer(power.store, opened.keyring, opened.superblock.uuid, no_progress)
    assert (await restorer.restore(None, power.home / f"at-{txg}.db", txg)).txg == txg
    return restorer.notices


async def test_late_deletion_of_an_old_image_loses_no_point_in_time(
    power: Power, clock: HandClock
) -> None:
    """A shipped row announces the deletion of an image, so no later floor relies on the image."""
    await power.retain(8 * DAY)
    faulty = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=faulty) as slow:
        for _ in range(4):
            clock.pass_by(DAY / 4)
            await _txg(slow)
            await slow.imager.make()
        _mkfs, _apart, thinned, later, _newest = manifests(power)
        gate = faulty.hold("delete")
        async with running(slow.reclaimer.run):
            await gate.wait_started()
            async with power.session("b", options=OpenOptions(force_takeover=True)) as session:
                clock.pass_by(8 * DAY - 3 * DAY / 8)
                for _ in range(2):
                    await _txg(session)
                    await session.imager.make()
                await session.reclaimer.run()
                assert thinned <= session.link.floor < later
                gate.open()
                await trio.testing.wait_all_tasks_blocked()
                assert thinned not in manifests(power)
                assert await _restore_at(power, session, session.link.floor) == []


async def test_row_of_an_abandoned_image_is_deleted_after_the_image(
    power: Power, clock: HandClock
) -> None:
    """If the response to a deletion is lost, the row of the abandoned image is still deleted."""
    await power.retain(8 * DAY)
    faulty = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=faulty) as session:
        for _ in range(4):
            clock.pass_by(60)
            await _txg(session)
            await session.imager.make()
        faulty.lose_reply("delete")
        await session.reclaimer.run()
        assert session.reclaimer.last_error
        assert len(properties.abandoned_images(session.db)) == 1
        await session.reclaimer.run()
        assert properties.abandoned_images(session.db) == set()
        assert len(manifests(power)) == 4


async def test_status_reports_why_garbage_collection_failed(power: Power, clock: HandClock) -> None:
    """The status reports why garbage collection failed until a later pass succeeds."""
    async with power.session("a", tasks=False) as session:
        power.store.clock = HandClock()
        power.store.clock.pass_by(DAY)
        await session.reclaimer.run()
        shown = figures_of(session)["reclaim"]
        assert shown == {"last_error": session.reclaimer.last_error}
        assert shown["last_error"]
        assert "clock" in shown["last_error"]
        power.store.clock = clock
        await session.reclaimer.run()
        assert figures_of(session)["reclaim"] == {"last_error": ""}


async def test_garbage_collection_is_retried_if_the_superblock_copy_cannot_be_written(
    power: Power,
) -> None:
    async with power.session("a", tasks=False) as session:
        await power.retain(3 * DAY)
        obstacle = session.volume.state_dir.path / f"superblock.new-{os.getpid()}"
        obstacle.mkdir()
        await session.reclaimer.run()
        assert "directory" in session.reclaimer.last_error
        obstacle.rmdir()
        await session.reclaimer.run()
        assert session.reclaimer.last_error == ""
