"""Foreign objects whose keys contain a txg slightly after the end of the chain."""

import contextlib

import pytest

from s3fs_meta.bucket_errors import BrokenChainError, OlderBucketError
from s3fs_meta.check.report import Report
from s3fs_meta.check.run import Examined, FsckOptions, check_filesystem
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import level as level_codec
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.errors import SettingsError
from s3fs_meta.limits import LEVEL_FAN_OUT
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.sync.chain.abandoned_txgs import Mend
from s3fs_meta.sync.chain.names import CHANGELOG_STEP_MAX
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from tests.damage import claim_newer
from tests.sync.conftest import TAKEOVER, Power, unmount, write_file
from tests.sync.history.readers import bucket_of
from tests.sync.opening.histories import READ_ONLY, end_at, require_files, written

pytestmark = pytest.mark.thorough

MEND = OpenOptions(mend=Mend())
JUNK = (b"?", b"")


def level_at(last: int) -> ObjectKey:
    """Return the key of the lowest level object that ends at a txg."""
    return level_codec.key_of(1, Txg(last))


async def checked(session: Session) -> tuple[Report, set[str]]:
    """Run fsck; return its report and the objects that it calls foreign."""
    volume = session.volume
    examined = Examined(volume.db, volume.store, volume.keyring)
    report = await check_filesystem(examined, FsckOptions(), Report(), SystemClock())
    rows = volume.db.all("SELECT object_key FROM temp.seen_foreign")
    return report, {str(row[0]) for row in rows}


@pytest.mark.parametrize("last", [15, 60, 105])
@pytest.mark.parametrize("content", JUNK, ids=["junk", "empty"])
async def test_mount_ignores_a_foreign_object_with_the_key_of_a_later_level_object(
    power: Power, last: int, content: bytes
) -> None:
    """A foreign object with the key of a later level object does not prove a loss of txgs."""
    inos = await written(power)
    power.store.objects[level_at(last)] = content

    for host, options in (("r", READ_ONLY), ("b", None), ("a", None), ("c", MEND)):
        async with power.session(host, options=options, tasks=False) as session:
            await require_files(session, inos, 9)
            assert session.volume.mended == ()
            await session.close()
    bucket = await bucket_of(power)
    newest = await bucket.points.newest()
    assert bucket.points.unreadable_end == []
    await bucket.restore(newest, power.home / "restored.db")
    assert power.store.objects[level_at(last)] == content


async def test_fsck_counts_an_object_with_the_key_of_a_later_level_object_as_foreign(
    power: Power,
) -> None:
    await written(power)
    power.store.objects[level_at(15)] = b"?"
    async with power.session("b", options=TAKEOVER, tasks=False) as session:
        report, foreign = await checked(session)
        assert level_at(15) in foreign
        assert [one.invariant for one in report.verdicts if one.left] == ["I26"], report.lines()


async def test_authentic_level_object_proves_the_loss_of_its_changelogs(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        for number in range(9):
            write_file(session, b"%d" % number)
            await session.flush()
        await session.leveler.make_due()
        await session.close()
    assert level_at(10) in power.store.objects
    del power.store.objects[key_of(Txg(10))]
    bucket = await bucket_of(power)
    assert (await bucket.points.newest()).txg == 10

    power.store.objects[level_at(10)] = b"?"
    del power.store.objects[key_of(Txg(9))]
    bucket = await bucket_of(power)
    assert (await bucket.points.newest()).txg == 8


async def test_damaged_changelog_that_a_level_object_contains_is_not_foreign(power: Power) -> None:
    """The changelog follows a gap, but the level object proves that the chain reached it."""
    last = 4 * LEVEL_FAN_OUT
    async with power.session("a", tasks=False) as session:
        while session.volume.db.counters.txg <= last:
            write_file(session, b"content")
            await session.flush()
        await session.leveler.make_due()
        assert level_at(last) in power.store.objects
        for txg in range(last - CHANGELOG_STEP_MAX - 1, last):
            del power.store.objects[key_of(Txg(txg))]
        for key in [key for key in power.store.objects if key.startswith("changelog/")]:
            if key > key_of(Txg(last)):
                del power.store.objects[key]
        damaged = key_of(Txg(last))
        power.store.objects[damaged] = b"?"

        report, foreign = await checked(session)

        faults = {str(row[0]) for row in session.db.all("SELECT object_key FROM seen_chain_faults")}
        assert damaged in faults
        assert not foreign & faults
        assert report.foreign_count == 0


@pytest.mark.parametrize(("host", "ahead"), [("a", 1), ("b", 1), ("a", CHANGELOG_STEP_MAX)])
async def test_mount_needs_fsck_if_a_foreign_object_has_the_key_of_one_of_the_next_changelogs(
    power: Power, host: str, ahead: int
) -> None:
    """The object could be a damaged changelog after lost ones, so it is not ignored.

    The last writer skips it with fsck -y; other hosts also need --end-at.
    """
    inos = await written(power)
    key = key_of(Txg(9 + ahead))
    power.store.objects[key] = b"?"
    before = dict(power.store.objects)

    with pytest.raises(BrokenChainError, match=r"at=txg=9 .* fsck -y"):
        async with power.session("b", tasks=False):
            pass
    with pytest.raises(SettingsError, match="fsck -y --end-at=9"):
        async with power.session("b", options=MEND, tasks=False):
            pass
    assert power.store.objects == before
    options = MEND if host == "a" else end_at(9)
    async with power.session(host, options=options, tasks=False) as session:
        await require_files(session, inos, 9)
        inos[200] = write_file(session, b"200")
        await unmount(session)

    for other in ("c", "d"):
        async with power.session(other, tasks=False) as session:
            await require_files(session, inos, 200)
            await session.close()
    assert power.store.objects[key] == b"?"


@pytest.mark.parametrize("ahead", [CHANGELOG_STEP_MAX + 10, 100])
async def test_mount_ignores_a_foreign_object_with_the_key_of_a_changelog_after_a_gap(
    power: Power, ahead: int
) -> None:
    """Such an object does not prove that the chain has reached its txg."""
    inos = await written(power)
    key = key_of(Txg(9 + ahead))
    power.store.objects[key] = b"?"

    bucket = await bucket_of(power)
    assert (await bucket.points.newest()).txg == 9
    assert bucket.points.unreadable_end == []
    for host, options in (("r", READ_ONLY), ("b", None), ("a", None), ("c", MEND)):
        async with power.session(host, options=options, tasks=False) as session:
            await require_files(session, inos, 9)
            assert session.volume.mended == ()
            if host == "b":
                await session.reclaimer.reclaim()
            await session.close()
    assert power.store.objects[key] == b"?"


async def test_fsck_counts_an_object_with_the_key_of_a_changelog_after_a_gap_as_foreign(
    power: Power,
) -> None:
    await written(power)
    power.store.objects[key_of(Txg(99))] = b"?"
    async with power.session("b", options=TAKEOVER, tasks=False) as session:
        report, foreign = await checked(session)
        assert key_of(Txg(99)) in foreign
        assert [one.invariant for one in report.verdicts if one.left] == ["I26"], report.lines()


async def test_writer_passes_a_foreign_object_that_a_mount_has_ignored(power: Power) -> None:
    """The writer skips the occupied key when its chain has reached the key."""
    inos = await written(power)
    key = key_of(Txg(20))
    power.store.objects[key] = b"?"

    async with power.session("b", tasks=False) as session:
        for number in range(10, 23):
            inos[number] = write_file(session, b"%d" % number)
            with contextlib.suppress(OlderBucketError):  # The next object key is already used.
                await session.flush()
        await unmount(session)
    async with power.session("c", tasks=False) as session:
        await require_files(session, inos, 22)
    assert power.store.objects[key] == b"?"


async def test_authentic_changelog_after_a_gap_proves_the_loss_of_changelogs(power: Power) -> None:
    await written(power)
    for txg in (7, 8):
        del power.store.objects[key_of(Txg(txg))]

    with pytest.raises(BrokenChainError, match=r"at=txg=6 .* fsck -y"):
        async with power.session("b", tasks=False):
            pass


async def test_writer_that_lost_its_lease_is_not_ended_by_a_foreign_changelog(
    power: Power,
) -> None:
    """A foreign object after a gap does not prove that another host has written."""
    async with power.session("a", tasks=False) as session:
        inos = {2: write_file(session, b"2")}
        await session.flush()
        power.store.objects[key_of(Txg(50))] = b"?"
        del power.store.objects[ObjectKey("lease")]
        inos[3] = write_file(session, b"3")
        await session.flush()
        await unmount(session)
    async with power.session("b", tasks=False) as session:
        await require_files(session, inos, 3)


@pytest.mark.parametrize("content", ["junk", "claims to be newer"])
async def test_running_writer_skips_txgs_whose_changelog_keys_are_in_use(
    power: Power, content: str
) -> None:
    """The writer skips occupied changelog keys and loses no change; other hosts read the chain."""
    async with power.session("a", tasks=False) as session:
        inos = {2: write_file(session, b"2")}
        await session.flush()
        junk = b"?" if content == "junk" else claim_newer(power.store.objects[key_of(Txg(2))])
        for txg in (3, 5):
            power.store.objects[key_of(Txg(txg))] = junk
        for number in range(3, 9):
            inos[number] = write_file(session, b"%d" % number)
            with contextlib.suppress(OlderBucketError):  # The next object key is already used.
                await session.flush()
        await unmount(session)
    async with power.session("b", tasks=False) as session:
        await require_files(session, inos, 9)


@pytest.mark.parametrize("content", ["junk", "claims to be newer"])
async def test_fsck_counts_an_object_named_like_a_much_later_image_as_foreign(
    power: Power, content: str
) -> None:
    """An object at the key of a slightly later image may be a damaged image of this filesystem."""
    await written(power)
    manifest = next(key for key in power.store.objects if key.endswith("/manifest"))
    junk = b"?" if content == "junk" else claim_newer(power.store.objects[manifest])
    far, near = (image_codec.manifest_key(Txg(txg), Epoch(1), b"foreign!") for txg in (5000, 20))
    power.store.objects[far] = power.store.objects[near] = junk

    async with power.session("b", options=TAKEOVER, tasks=False) as session:
        report, foreign = await checked(session)

    assert far in foreign
    assert near not in foreign
    assert not any(far in note and "damaged" in note for note in report.notes)
    assert any(near in note and "damaged" in note for note in report.notes) == (content == "junk")
