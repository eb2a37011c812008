"""Damaged or missing changelogs: only txgs whose restore needs them are lost."""

from collections.abc import Callable
from contextlib import aclosing

import pytest

from s3fs_meta.bucket_errors import BrokenChainError
from s3fs_meta.codec import level as level_codec
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.errors import FormatError, SettingsError
from s3fs_meta.limits import LEVEL_FAN_OUT
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.model import PointInTime, Txg
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.snapshot_mount import Bucket
from s3fs_meta.sync.history.versions import txg_log
from s3fs_meta.sync.history.versions.txg_log import Gap
from s3fs_meta.sync.volume import OpenOptions
from tests.damage import claim_newer, flipped
from tests.sync.conftest import Power, flushed, write_file
from tests.sync.history.readers import at
from tests.sync.history.set_clock import FAR, SECOND_NS, SetClock, bucket_at, nine_txgs, session_at

pytestmark = pytest.mark.thorough

Damage = Callable[[Power, Txg], None]


def rot(power: Power, txg: Txg) -> None:
    """Flip one bit of a changelog."""
    data = power.store.objects[key_of(txg)]
    power.store.objects[key_of(txg)] = flipped(data, len(data) // 2)


def lose(power: Power, txg: Txg) -> None:
    """Delete a changelog."""
    del power.store.objects[key_of(txg)]


def rot_version(power: Power, txg: Txg) -> None:
    """Flip one bit in the version field of a changelog."""
    power.store.objects[key_of(txg)] = flipped(power.store.objects[key_of(txg)], 9, 3)


DAMAGES = pytest.mark.parametrize(
    "damage",
    [rot, lose, pytest.param(rot_version, marks=pytest.mark.slow)],
    ids=["rotten", "missing", "rotten version"],
)


async def eleven_txgs(power: Power, last: int) -> dict[int, Link]:
    """Ship txgs up to *last*, a second apart, with an image at txg 7 and all level objects."""
    clock = SetClock(FAR)
    links: dict[int, Link] = {}
    async with session_at(power, clock) as session:
        while session.link.txg < last:
            txg = session.link.next_txg
            clock.time_ns = FAR + txg * SECOND_NS
            if txg == 7:
                await session.imager.make()
            else:
                write_file(session, b"%d" % txg)
                await session.flush()
            links[txg] = session.link
            if txg % LEVEL_FAN_OUT == 0:
                await session.leveler.make_due()
    return links


async def contents(power: Power, bucket: Bucket, link: Link) -> list[bytes]:
    """Restore a txg and return the content hashes of its blocks."""
    target = power.home / f"restored-{link.txg}-{len(list(power.home.iterdir()))}.db"
    bucket.points.notices += await bucket.restore(link, target)
    db = Database.open(target, Pragmas(), read_only=True)
    try:
        return sorted(row[0] for row in db.all("SELECT hash FROM blocks"))
    finally:
        db.close()


@DAMAGES
@pytest.mark.parametrize("lost", [[9], [8], [8, 9], [2], [1], [4]], ids=str)
async def test_every_txg_with_intact_changelogs_can_be_restored(
    power: Power, damage: Damage, lost: list[int]
) -> None:
    """If a restore needs a lost changelog, the error names the last txg that can be restored."""
    links = await nine_txgs(power)
    bucket = await bucket_at(power, FAR)
    whole = {txg: await contents(power, bucket, link) for txg, link in links.items()}
    for txg in lost:
        damage(power, Txg(txg))

    for txg in range(1, 10):
        bucket = await bucket_at(power, FAR)
        gap = min((one for one in lost if one <= txg), default=None)
        if gap is None or gap < 6 <= txg:
            link = await bucket.find(at(txg))
            assert link == links[txg]
            assert await contents(power, bucket, link) == whole[txg]
            continue
        if txg == 9 and damage is lose and lost[-1] == 9:
            with pytest.raises(
                SettingsError,
                match=f"txg 9 does not exist yet; the newest point in time is txg {gap - 1}",
            ):
                await bucket.find(at(txg))
            continue
        if txg == 8 and damage is lose and lost == [8, 9]:
            with pytest.raises(SettingsError, match="txg 8 does not exist yet"):
                await bucket.find(at(txg))
            continue
        # Without txg 1, the bucket looks as if garbage collection had deleted the first txgs.
        if txg == 1 and damage is lose and lost == [1]:
            with pytest.raises(SettingsError, match=r"before the oldest .* txg 6 of"):
                await bucket.find(at(txg))
            assert (await bucket.find(at(0))).txg == 0
            continue
        with pytest.raises(BrokenChainError) as caught:
            await contents(power, bucket, await bucket.find(at(txg)))
        assert caught.value.key == key_of(Txg(gap))
        assert caught.value.last_txg == gap - 1
        assert f"at=txg={gap - 1}" in str(caught.value)


@DAMAGES
@pytest.mark.parametrize("lost", [5, 10], ids=str)
async def test_last_txg_of_a_level_object_is_restored_without_its_changelog(
    power: Power, damage: Damage, lost: int
) -> None:
    """A level object replaces all changelogs of its run, even the last changelog."""
    links = await eleven_txgs(power, last=max(lost, 6))
    bucket = await bucket_at(power, FAR)
    whole = await contents(power, bucket, links[lost])
    damage(power, Txg(lost))

    bucket = await bucket_at(power, FAR)
    for wanted in (at(lost), PointInTime("then", links[lost].created_ns)):
        assert await bucket.find(wanted) == links[lost]
    assert await contents(power, bucket, links[lost]) == whole
    if lost == max(links):
        assert await bucket.find(PointInTime("newest")) == links[lost]
        async with power.session("b", tasks=False) as session:
            # The newest txg is the fence record of the new mount.
            assert session.volume.link.txg == lost + 1
            await session.publish_as_txg()


@DAMAGES
async def test_level_object_of_another_history_is_not_used(power: Power, damage: Damage) -> None:
    """A level object of another history is detected by the hash in the next changelog."""
    links = await eleven_txgs(power, last=11)
    theirs = dict(power.store.objects)
    for key in list(power.store.objects):
        if key.startswith("level/") or key > key_of(Txg(7)) > key[:10]:
            del power.store.objects[key]
    async with power.session("b", options=OpenOptions(force_takeover=True), tasks=False) as session:
        while session.link.txg < 11:
            write_file(session, b"other %d" % session.link.txg)
            await session.flush()
        await session.leveler.make_due()
    key = level_codec.key_of(1, Txg(10))
    other = power.store.objects[key]
    assert other != theirs[key]
    power.store.objects.clear()
    power.store.objects.update({**theirs, key: other})
    damage(power, Txg(10))

    bucket = await bucket_at(power, FAR)
    with pytest.raises(BrokenChainError, match="All txgs up to 9"):
        await bucket.find(at(10))
    assert await bucket.find(at(9)) == links[9]


async def test_damaged_version_field_in_a_changelog_loses_only_that_txg(power: Power) -> None:
    """A version field that contradicts the next changelog is damage, so no upgrade is advised."""
    links = await nine_txgs(power)
    key = key_of(Txg(4))
    power.store.objects[key] = claim_newer(power.store.objects[key])
    bucket = await bucket_at(power, FAR)

    for txg in (3, 6, 9):
        assert await bucket.find(at(txg)) == links[txg]
    with pytest.raises(BrokenChainError, match="All txgs up to 3"):
        await contents(power, bucket, await bucket.find(at(5)))
    async with power.session("b", tasks=False) as session:
        assert session.link.txg >= 9
        await session.close()


async def test_damaged_last_changelog_is_reported(power: Power) -> None:
    """A damaged last changelog is reported, because it may contain the newest state."""
    links = await nine_txgs(power)
    rot(power, Txg(9))

    for wanted in (PointInTime("newest"), PointInTime("now", FAR + 20 * SECOND_NS)):
        bucket = await bucket_at(power, FAR + 30 * SECOND_NS)
        with pytest.raises(
            BrokenChainError, match=r"txg 9 cannot be restored from the bucket\. All txgs up to 8"
        ):
            await bucket.find(wanted)
    with pytest.raises(BrokenChainError, match="at=txg=8"):
        async with power.session("b", options=OpenOptions(read_only=True)):
            pass
    bucket = await bucket_at(power, FAR)
    assert await bucket.find(PointInTime("then", links[8].created_ns - 1)) == links[7]


@DAMAGES
async def test_search_by_time_is_refused_if_a_damaged_changelog_may_match(
    power: Power, damage: Damage
) -> None:
    links = await nine_txgs(power)
    damage(power, Txg(4))
    bucket = await bucket_at(power, FAR)

    assert await bucket.find(PointInTime("then", links[3].created_ns - 1)) == links[2]
    assert await bucket.find(PointInTime("then", links[5].created_ns)) == links[5]
    assert await bucket.find(PointInTime("then", links[8].created_ns + 1)) == links[8]
    with pytest.raises(BrokenChainError, match="All txgs up to 3"):
        await bucket.find(PointInTime("then", links[3].created_ns + 1))


@DAMAGES
@pytest.mark.parametrize("lost", [2, 4, 5, 7, 9], ids=str)
async def test_level_object_replaces_a_lost_changelog(
    power: Power, damage: Damage, lost: int
) -> None:
    """The restore reads the level object that contains the changes of the lost changelog."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        while session.link.txg < 11:
            if session.link.txg == 6:
                await session.imager.make()
            else:
                write_file(session, b"%d" % session.link.txg)
                await session.flush()
            if session.link.txg % LEVEL_FAN_OUT == 0:
                await session.leveler.make_due()
        newest = session.link
    bucket = await bucket_at(power, FAR)
    whole = await contents(power, bucket, newest)
    damage(power, Txg(lost))
    # Delete the later images, so that the restore begins with the image that mkfs created.
    for key in list(power.store.objects):
        if key.startswith("image/") and not key.startswith("image/000000000000"):
            del power.store.objects[key]

    bucket = await bucket_at(power, FAR)
    assert await contents(power, bucket, await bucket.find(PointInTime("newest"))) == whole


@DAMAGES
async def test_older_image_is_used_if_a_level_object_begins_before_the_newest_image(
    power: Power, damage: Damage
) -> None:
    """A required level object may begin before the newest image, so an older image is used."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        while session.link.txg < 11:
            if session.link.txg == 6:
                await session.imager.make()
            else:
                write_file(session, b"%d" % session.link.txg)
                await session.flush()
            if session.link.txg in {5, 10}:
                await session.leveler.make_due()
        newest = session.link
    bucket = await bucket_at(power, FAR)
    whole = await contents(power, bucket, newest)
    damage(power, Txg(9))

    bucket = await bucket_at(power, FAR)
    assert await contents(power, bucket, await bucket.find(PointInTime("newest"))) == whole
    assert any("level objects" in notice for notice in bucket.points.notices)


@DAMAGES
@pytest.mark.parametrize("next_too", [False, True], ids=["next is there", "next is lost too"])
async def test_image_can_be_restored_without_the_changelog_of_its_txg(
    power: Power, damage: Damage, next_too: bool
) -> None:
    """The manifest of an image contains the hash of its txg, whose changelog may be lost."""
    links = await nine_txgs(power)
    bucket = await bucket_at(power, FAR)
    whole = {txg: await contents(power, bucket, links[txg]) for txg in (6, 9)}
    damage(power, Txg(6))
    if next_too:
        damage(power, Txg(7))

    bucket = await bucket_at(power, FAR)
    found = await bucket.find(at(6))
    assert (found.txg, found.hash) == (6, links[6].hash)
    assert await contents(power, bucket, found) == whole[6]
    newest = await bucket.find(PointInTime("newest"))
    if next_too:
        with pytest.raises(BrokenChainError, match="All txgs up to 6"):
            await contents(power, bucket, newest)
    else:
        assert await contents(power, bucket, newest) == whole[9]


@DAMAGES
async def test_txg_published_as_an_image_can_be_restored_without_its_changelog(
    power: Power, damage: Damage
) -> None:
    """The hash of the lost changelog is read from the changelog of the next txg."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"before")
        await session.flush()
        await session.publish_as_txg()
        image = session.link
        write_file(session, b"after")
        newest = await flushed(session)
    bucket = await bucket_at(power, FAR)
    whole = [await contents(power, bucket, link) for link in (image, newest)]
    damage(power, image.txg)

    bucket = await bucket_at(power, FAR)
    assert [
        await contents(power, bucket, await bucket.find(at(txg))) for txg in (image.txg, newest.txg)
    ] == whole


async def test_history_listing_continues_past_a_damaged_changelog(power: Power) -> None:
    """The history listing reports each unreadable txg as a gap, and continues."""
    await nine_txgs(power)
    rot(power, Txg(9))
    rot(power, Txg(5))
    lose(power, Txg(4))
    bucket = await bucket_at(power, FAR)

    async with aclosing(
        txg_log.backwards(bucket, await bucket.points.newest(), Txg(0))
    ) as changelogs:
        found = [one async for one in changelogs]

    assert [one.txg for one in found] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert [one.txg for one in found if isinstance(one, Gap)] == [5, 4]
    assert bucket.points.unreadable_end == [9]


async def test_history_listing_fails_if_a_changelog_is_from_another_history(power: Power) -> None:
    """A changelog of another history is detected by the hash in the next changelog."""
    await nine_txgs(power)
    ours = dict(power.store.objects)
    for txg in (7, 8, 9):
        lose(power, Txg(txg))
    async with power.session("b", options=OpenOptions(force_takeover=True), tasks=False) as session:
        assert session.link.txg == 7
    ours[key_of(Txg(7))] = power.store.objects[key_of(Txg(7))]
    power.store.objects.clear()
    power.store.objects.update(ours)
    bucket = await bucket_at(power, FAR)

    with pytest.raises(FormatError, match="records a different hash"):
        async with aclosing(
            txg_log.backwards(bucket, await bucket.points.newest(), Txg(0))
        ) as changelogs:
            [one async for one in changelogs]
