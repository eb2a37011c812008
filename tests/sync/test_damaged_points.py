"""Damaged, missing or foreign kept points, and the objects that these points may need."""

from dataclasses import replace

import pytest

from s3fs_meta.bucket_errors import NoImageError
from s3fs_meta.codec import changelog
from s3fs_meta.errors import FormatError, ObjectMissingError, SettingsError, StoreError
from s3fs_meta.model import ObjectKey, PointInTime, Txg
from s3fs_meta.sync.administration.keeping import PointKeeper
from s3fs_meta.sync.chain.abandoned_txgs import Mend
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.damage import flipped
from tests.sync.conftest import Power, keys_of, unmount, write_file
from tests.sync.kept import empty, files_at, forget, kept_files

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("harm", ["point", "manifest", "piece"])
async def test_unreadable_kept_point_protects_all_objects_it_may_need(
    power: Power, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The objects of an unreadable kept point stay, because a backup may restore the point."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        files = await kept_files(session)
        point = (await session.reclaimer.kept_points()).points[0]
        empty(session, dict(files))
        await session.flush()
        await session.close()
    [piece] = [
        key for key in keys_of(power, point.image.key.rpartition("/")[0]) if key.endswith("/000000")
    ]
    key = {"point": point.key, "manifest": point.image.key, "piece": piece}[harm]
    data = power.store.objects[key]
    if harm == "piece":
        del power.store.objects[key]
    else:
        power.store.objects[key] = flipped(data, len(data) // 2)
    async with power.session("a", tasks=False) as session:
        await forget(session, times=2)
        assert session.link.floor > point.txg
        assert point.key in caplog.text
        assert caplog.text.count("keep --drop drops the point") == 1
        power.store.objects[key] = data
        assert await files_at(power, "a") == files


@pytest.mark.parametrize("harm", ["manifest", "piece", "changelog", "own changelog", "exchanged"])
async def test_incomplete_kept_point_cannot_be_kept_under_another_name(
    power: Power, harm: str
) -> None:
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        files = await kept_files(session)
        point = (await session.reclaimer.kept_points()).points[0]
        image = point.image.key.rpartition("/")[0]
        key = {
            "manifest": point.image.key,
            "piece": ObjectKey(f"{image}/000000"),
            "changelog": changelog.key_of(Txg(point.txg - 1)),
            "own changelog": changelog.key_of(point.txg),
            "exchanged": changelog.key_of(point.txg),
        }[harm]
        empty(session, dict(files))
        await forget(session)
        data = power.store.objects.pop(key)
        if harm == "exchanged":
            found = changelog.decode(key, data, session.volume.keyring)
            other = changelog.encode(replace(found, nonce="00" * 16), session.volume.keyring)
            power.store.objects[key] = other
        wanted = PointInTime("a", kept="a")
        with pytest.raises((FormatError, ObjectMissingError)):
            await PointKeeper(session).keep("again", wanted)
        assert len(keys_of(power, "kept/")) == 1
        power.store.objects[key] = data
        await PointKeeper(session).keep("again", wanted)
        assert await files_at(power, "again") == files


async def test_unreadable_kept_point_can_be_dropped_by_its_key(power: Power) -> None:
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        await kept_files(session)
        await session.close()
    [key] = keys_of(power, "kept/")
    power.store.objects[key] = b"damaged"
    async with power.session("a", tasks=False) as session:
        keeper = PointKeeper(session)
        with pytest.raises(SettingsError, match=key):
            await keeper.drop(["a"])
        assert await keeper.drop([key]) == [key]
        await forget(session)
        assert keys_of(power, "kept/") == []


async def test_reclaim_stops_if_the_store_fails_to_list_kept_points(power: Power) -> None:
    await power.retain(0)
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        files = await kept_files(session)
        empty(session, dict(files))
        for number in range(3):
            write_file(session, b"later %d" % number)
            await session.imager.make()
        before = dict(power.store.objects)
        store.fail("list")
        with pytest.raises(StoreError):
            await session.reclaimer.reclaim()
        assert power.store.objects == before
        await session.reclaimer.run()
        assert await files_at(power, "a") == files


async def test_foreign_objects_among_kept_points_are_not_deleted(power: Power) -> None:
    await power.retain(0)
    foreign = {ObjectKey("kept/readme.txt"): b"mine", ObjectKey("kept/a"): b"mine, too"}
    power.store.objects.update(foreign)
    async with power.session("a", tasks=False) as session:
        files = await kept_files(session)
        await forget(session)
        assert await files_at(power, "a") == files
        await PointKeeper(session).drop(["a"])
    assert foreign.items() <= power.store.objects.items()
    assert keys_of(power, "kept/") == sorted(foreign)


async def test_image_of_a_kept_point_does_not_become_the_current_state(power: Power) -> None:
    """Neither a mount nor fsck -y uses the image, even if no other image is valid."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        await kept_files(session)
        kept = set(keys_of(power, "image/"))
        await forget(session)
        point = (await session.reclaimer.kept_points()).points[0]
        files = await files_at(power, "a")
        await unmount(session)
    for key in set(keys_of(power, "image/")) - kept:
        power.store.objects[key] = flipped(power.store.objects[key], -1)
    before = dict(power.store.objects)
    for mend in (None, Mend(), Mend(anything=True)):
        with pytest.raises(NoImageError):
            async with power.session("b", options=OpenOptions(mend=mend)):
                pass
    assert power.store.objects == before
    assert point.image.key in before
    assert await files_at(power, "a") == files
