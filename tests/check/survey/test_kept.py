"""Tests of the survey of kept points (named txgs) by fsck."""

from dataclasses import replace

import pytest

from s3fs_meta.check.report import Mode, Report
from s3fs_meta.check.run import Examined, FsckOptions, check_filesystem
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import changelog, kept_point
from s3fs_meta.codec.kept_point import KeptPoint
from s3fs_meta.limits import KEPT_FAULTS_MAX
from s3fs_meta.meta.tables import packs
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.sync.administration.keeping import PointKeeper
from s3fs_meta.sync.session import Session
from tests.check.survey.checking import EarlyListing, checked
from tests.damage import flipped
from tests.packs import stray_pack
from tests.sync.conftest import Power
from tests.sync.kept import Files, empty, fill, forget

pytestmark = pytest.mark.thorough


FAR = Txg(300_000)


def found_by(report: Report) -> list[str]:
    """Return the findings of fsck about kept points."""
    verdicts = [one for one in report.verdicts if one.invariant == "I72"]
    return [finding.what for one in verdicts for finding in one.examples]


async def kept_below_the_floor(power: Power, session: Session) -> KeptPoint:
    """Keep a point in time, remove its files, and raise the retention floor above it."""
    await power.retain(0)
    files: Files = {}
    for number in range(3):
        fill(session, files, b"%d" % number * 3000)
        await session.flush()
    point = await PointKeeper(session).keep("before-upgrade")
    empty(session, files)
    await forget(session)
    assert session.link.floor > point.txg
    return point


def needed(session: Session, point: KeptPoint, kind: str) -> ObjectKey:
    """Return the key of an object of a given kind that a kept point needs."""
    image = point.image.key.rpartition("/")[0]
    return {
        "point": point.key,
        "manifest": point.image.key,
        "piece": ObjectKey(f"{image}/000000"),
        "changelog": changelog.key_of(Txg(point.txg - 1)),
        "own changelog": changelog.key_of(point.txg),
        "pack": packs.find_dead(session.db, session.link.floor, 1)[0].object_key,
    }[kind]


async def test_objects_of_kept_points_are_not_reported_as_foreign_or_damaged(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        point = await kept_below_the_floor(power, session)
        foreign = ObjectKey("kept/readme.txt")
        power.store.objects[foreign] = b"mine"
        for deep in (False, True):
            report = await checked(session, Mode.SAFE, deep=deep)
            assert not {"I46", "I48", "I49", "I67", "I68", "I72"} & set(report.broken)
            assert report.foreign_keys == [foreign]
        assert power.store.objects[foreign] == b"mine"
        assert point.key in power.store.objects


@pytest.mark.parametrize("kind", ["manifest", "piece", "changelog", "own changelog", "pack"])
async def test_report_of_a_missing_object_names_its_kept_point(power: Power, kind: str) -> None:
    """A kept point with a missing object cannot be restored, even after a repair.

    Invariant I72.
    """
    async with power.session("a", tasks=False) as session:
        point = await kept_below_the_floor(power, session)
        key = needed(session, point, kind)
        data = power.store.objects.pop(key)
        for mode in (Mode.REPORT, Mode.SAFE):
            report = await checked(session, mode)
            assert report.exit_status
            assert any(key in what and "before-upgrade" in what for what in found_by(report))
        power.store.objects[key] = data
        assert "I72" not in (await checked(session)).broken
        del power.store.objects[key]
        await PointKeeper(session).drop(["before-upgrade"])
        assert "I72" not in (await checked(session)).broken


@pytest.mark.parametrize("prefix", ["changelog/", "image/"])
async def test_point_that_was_kept_during_the_listing_is_not_reported(
    power: Power, prefix: str
) -> None:
    """A mount may store objects and keep a point after fsck has listed the bucket."""
    async with power.session("a", tasks=False) as session:
        store = EarlyListing(power.store, prefix)
        fill(session, {}, b"content")
        await session.flush()
        await session.make_image()
        await PointKeeper(session).keep("just-now")

        assert found_by(await checked(session, store=store)) == []


@pytest.mark.parametrize("kind", ["piece", "changelog", "own changelog"])
async def test_deep_check_finds_a_damaged_object_of_a_kept_point(power: Power, kind: str) -> None:
    async with power.session("a", tasks=False) as session:
        key = needed(session, await kept_below_the_floor(power, session), kind)
        power.store.objects[key] = flipped(power.store.objects[key], -1)
        assert "I72" not in (await checked(session)).broken
        report = await checked(session, deep=True)
        assert "I72" in report.broken
        assert any(key in what for what in found_by(report))


@pytest.mark.parametrize("deep", [False, True])
async def test_unreadable_kept_point_is_reported_and_not_deleted(power: Power, deep: bool) -> None:
    async with power.session("a", tasks=False) as session:
        point = await kept_below_the_floor(power, session)
        damaged = flipped(power.store.objects[point.key], -1)
        power.store.objects[point.key] = damaged
        report = await checked(session, Mode.SAFE, deep=deep)
        assert "I72" in report.broken
        assert power.store.objects[point.key] == damaged


async def test_unknown_packs_are_not_deleted_if_a_kept_point_may_need_them(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        point = await kept_below_the_floor(power, session)
        strays = [stray_pack(session.volume.keyring, epoch) for epoch in (point.epoch, 7)]
        power.store.objects.update(strays)
        session.durability.commit()
        opened = session.volume
        examined = Examined(opened.db, opened.store, opened.keyring, epoch=Epoch(9))
        wanted = FsckOptions(repair=Mode.ALL, delete_unknown=True)
        report = await check_filesystem(examined, wanted, Report(), SystemClock())
        assert [key in power.store.objects for key, _data in strays] == [True, False]
        assert any("kept points may need" in note for note in report.notes)


async def test_deep_check_finds_a_changelog_from_another_history_of_the_filesystem(
    power: Power,
) -> None:
    """After an older bucket was restored, the txg numbers of a kept point are used again."""
    async with power.session("a", tasks=False) as session:
        point = await kept_below_the_floor(power, session)
        volume, key = session.volume, changelog.key_of(point.txg)
        found = changelog.decode(key, power.store.objects[key], volume.keyring)
        power.store.objects[key] = changelog.encode(replace(found, nonce="00" * 16), volume.keyring)
        report = await checked(session, deep=True)
    assert "I72" in report.broken


async def test_kept_point_in_the_far_future_causes_a_bounded_number_of_findings(
    power: Power,
) -> None:
    """If a kept point seems to need many changelogs, fsck lists only a few of them."""
    async with power.session("a", tasks=False) as session:
        point = await kept_below_the_floor(power, session)
        keyring = session.volume.keyring
        key = kept_point.new_key(FAR, point.name, keyring, bytes(8))
        power.store.objects[key] = kept_point.encode(replace(point, key=key, txg=FAR), keyring)
        report = await checked(session, deep=True)
        [verdict] = [one for one in report.verdicts if one.invariant == "I72"]
        assert 0 < verdict.found <= KEPT_FAULTS_MAX + 1
        await PointKeeper(session).drop([key])
        assert found_by(await checked(session)) == []


async def test_missing_pack_is_not_reported_for_a_kept_point_that_is_older_than_the_pack(
    power: Power,
) -> None:
    async with power.session("a", tasks=False) as session:
        point = await kept_below_the_floor(power, session)
        files: Files = {}
        fill(session, files, b"later" * 900)
        await session.flush()
        [later] = [row for row in packs.iterate(session.db) if row.pack >= point.next_pack][-1:]
        empty(session, files)
        await session.flush()
        assert packs.get(session.db, later.pack).died_txg is not None
        del power.store.objects[later.object_key]
        assert found_by(await checked(session)) == []
