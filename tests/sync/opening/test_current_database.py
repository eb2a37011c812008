"""The database that a mount continues with, and local state that is kept during repairs."""

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio
import trio.testing

from s3fs_meta.bucket_errors import BrokenChainError, OlderBucketError
from s3fs_meta.codec.changelog import Kind, key_of
from s3fs_meta.errors import (
    S3fsError,
    SettingsError,
    StoreAccessError,
    StoreError,
    StoreUnavailableError,
)
from s3fs_meta.model import ObjectKey, PointInTime, Txg
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.chain import abandoned_txgs, chain
from s3fs_meta.sync.chain.abandoned_txgs import Mend
from s3fs_meta.sync.hooks import Hook
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.check.rebuilding import rebuilt
from tests.sync.conftest import TAKEOVER, Power, flushed, unmount, write_file
from tests.sync.history.readers import bucket_of
from tests.sync.opening.histories import (
    READ_ONLY,
    end_at,
    require_files,
    require_healthy,
    rot,
    written,
)
from tests.sync.refusing_store import RefusingStore

pytestmark = pytest.mark.thorough

FSCK = OpenOptions(mend=Mend())


def require_untouched(power: Power, before: Mapping[ObjectKey, bytes]) -> None:
    """Require that only the lease was overwritten, and that no object was deleted."""
    for key, data in before.items():
        assert key == "lease" or power.store.objects[key] == data


def kept(power: Power, host: str) -> list[Path]:
    """Return the directories that contain quarantined states of a host."""
    return list((power.home / host).glob("kept-*"))


# --- local state with txgs that the bucket lacks ------------------------------------------------


async def test_writer_continues_after_a_damaged_last_changelog(power: Power) -> None:
    """A writer publishes its local state as an image if its last changelog is damaged."""
    inos = await written(power)
    rot(power, 9)
    before = dict(power.store.objects)

    async with power.session("a", tasks=False) as session:
        assert any("changelog/000000000009" in one for one in session.volume.notices)
        await require_files(session, inos, 9)
        assert abandoned_txgs.wanted(session.db) is not None
        link = await flushed(session)
        assert abandoned_txgs.wanted(session.db) is None
        own = await chain.fetch(
            power.store, session.volume.keyring, session.volume.superblock.uuid, link.txg
        )
        assert own.changelog.kind is Kind.IMAGE
        assert await session.flush() is None
        await session.close()

    require_untouched(power, before)
    assert kept(power, "a") == []
    await require_healthy(power, inos, 9, "c")
    async with power.session("a", tasks=False) as session:
        assert session.volume.notices == ()


async def test_unmount_without_changes_repairs_a_damaged_changelog(power: Power) -> None:
    """An unmount releases the lease only after the repair of the chain."""
    inos = await written(power)
    rot(power, 9)
    faulty = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=faulty) as session:
        faulty.fail("create", StoreUnavailableError("image", 1, 0.0, "away"))
        with contextlib.suppress(S3fsError):
            await session.flush_at_end()
        await session.close()
        assert not session.volume.keeper.lease.released
    async with power.session("a", tasks=False) as session:
        await unmount(session)
    await require_healthy(power, inos, 9, "c")


async def test_background_task_repairs_a_damaged_chain(
    power: Power, autojump_clock: trio.testing.MockClock
) -> None:
    """The task that ships changes also repairs the chain, even if there are no changes."""
    inos = await written(power)
    rot(power, 9)
    options, mended = SessionOptions(sync_interval_s=1), trio.Event()

    def listen(step: str) -> None:
        if step == "image confirmed":
            mended.set()

    async with power.session("a", session_options=options, hook=listen):
        await mended.wait()
    await require_healthy(power, inos, 9, "c")


async def test_host_recognises_a_damaged_unconfirmed_changelog_as_its_own(power: Power) -> None:
    """A killed host had uploaded its last changelog without recording the success."""

    def die(step: str) -> None:
        if step == "changelog put":
            raise KeyboardInterrupt

    inos = await written(power, last=5)
    async with power.session("a", tasks=False, hook=die) as session:
        inos[7] = write_file(session, b"7")
        with pytest.raises(KeyboardInterrupt):
            await session.flush()
    rot(power, 7)

    async with power.session("a", tasks=False) as session:
        await require_files(session, inos, 7)
        await unmount(session)
    assert kept(power, "a") == []
    await require_healthy(power, inos, 7, "c")


@pytest.mark.parametrize("damage", ["rotten", "missing"])
async def test_follower_with_a_damaged_last_changelog_keeps_its_local_state(
    power: Power, damage: str
) -> None:
    """A damaged last changelog does not stop a follower, but a missing changelog needs fsck -y."""
    inos = await written(power)
    follow = OpenOptions(read_only=True, follow=True)
    followed = SessionOptions(follow=True)
    async with power.session("f", options=follow, session_options=followed, tasks=False) as session:
        await session.close()
    if damage == "rotten":
        rot(power, 9)
    else:
        del power.store.objects[key_of(Txg(9))]
        with pytest.raises(OlderBucketError, match="fsck -y"):
            async with power.session("f", options=follow, session_options=followed):
                pass
        return
    async with power.session("f", options=follow, session_options=followed, tasks=False) as session:
        await require_files(session, inos, 9)
        await session.close()
    async with power.session(
        "f", tasks=False
    ) as session:  # The state of a follower is as complete as the state of a writer.
        await unmount(session)
    await require_healthy(power, inos, 9, "c")


async def test_fsck_on_the_host_that_wrote_last_publishes_its_missing_changelogs(
    power: Power,
) -> None:
    """Lost changelogs look like a bucket restored on purpose, so a mount does not publish them."""
    inos = await written(power)
    before = dict(power.store.objects)
    del power.store.objects[key_of(Txg(9))]
    with pytest.raises(OlderBucketError, match="fsck -y"):
        async with power.session("a"):
            pass

    async with power.session("a", options=FSCK, tasks=False) as session:
        assert session.volume.mended
        await session.publish_as_txg()
        await session.close()
    del before[key_of(Txg(9))]
    require_untouched(power, before)
    await require_healthy(power, inos, 9, "c")


async def test_fsck_does_not_publish_missing_last_changelogs_of_another_host(power: Power) -> None:
    """fsck does not publish changelogs that another host may have written."""
    await written(power)
    async with power.session("b", tasks=False) as session:
        await session.close()
    for txg in (9, 10):
        del power.store.objects[key_of(Txg(txg))]
    with pytest.raises(OlderBucketError):
        async with power.session("a", options=FSCK):
            pass
    assert kept(power, "a") == []


async def test_last_changelog_of_another_history_is_not_treated_as_damage(power: Power) -> None:
    """A last changelog with a different hash belongs to another history of the filesystem."""
    await written(power, last=8)
    older = dict(power.store.objects)
    async with power.session("a", tasks=False) as session:
        write_file(session, b"ours")
        await unmount(session)
    power.store.objects.clear()
    power.store.objects.update(older)
    async with power.session("b", options=TAKEOVER, tasks=False) as session:
        write_file(session, b"theirs")
        await unmount(session)
    for options in (OpenOptions(), FSCK, READ_ONLY):
        with pytest.raises(OlderBucketError, match="different txg"):
            async with power.session("a", options=options):
                pass
    assert kept(power, "a") == []


async def test_last_changelog_with_a_wrong_predecessor_is_treated_as_damage(power: Power) -> None:
    """A last changelog that is authentic but has a wrong predecessor is damage."""
    inos = await written(power, last=8)
    older = dict(power.store.objects)
    async with power.session("a", tasks=False) as session:
        inos[10] = write_file(session, b"10")
        await session.flush_at_end()
        last = session.link.txg
        await session.close()
    ours = dict(power.store.objects)
    power.store.objects.clear()
    power.store.objects.update(older)
    async with power.session("b", options=TAKEOVER, tasks=False) as session:
        while session.link.txg < last:
            write_file(session, b"theirs")
            await session.flush()
        await session.close()
    theirs = power.store.objects[key_of(last)]
    power.store.objects.clear()
    power.store.objects.update({**ours, key_of(last): theirs})

    for options in (OpenOptions(), FSCK):
        async with power.session("a", options=options, tasks=False) as session:
            await require_files(session, inos, 10)
            await unmount(session)
    assert power.store.objects[key_of(last)] == theirs
    assert kept(power, "a") == []
    await require_healthy(power, inos, 10, "c")


@pytest.mark.parametrize(
    "error",
    [StoreUnavailableError("x", 1, 0.0, "away"), StoreAccessError("x", "AccessDenied", "ask")],
    ids=["away", "refused"],
)
async def test_unreachable_changelog_is_not_treated_as_damage(
    power: Power, error: StoreError
) -> None:
    """If a changelog is unreachable, no txg is abandoned and no state is quarantined."""
    await written(power)
    before = dict(power.store.objects)
    for host, options in (("a", FSCK), ("new", end_at(8)), ("new", FSCK)):
        faulty = RefusingStore(power.store, key_of(Txg(9)), error)
        with pytest.raises(type(error)):
            async with power.session(host, options=options, store=faulty):
                pass
        assert kept(power, host) == []
    assert power.store.objects == before


# --- txgs that every host has lost ---------------------------------------------------------------


@pytest.mark.parametrize("lost", [[9], [8], [8, 9], [5, 7]], ids=str)
async def test_last_txgs_of_another_host_are_abandoned_only_with_the_end_at_option(
    power: Power, lost: list[int]
) -> None:
    """Without --end-at, fsck -y abandons only txgs that this host has written."""
    inos = await written(power)
    rot(power, *lost)
    before = dict(power.store.objects)
    last = lost[0] - 1

    for options, message in (
        (OpenOptions(), f"All txgs up to {last}"),
        (FSCK, f"--end-at={last} abandons"),
        (end_at(last - 1), f"is {last}, so the chain cannot end at txg"),
    ):
        with pytest.raises((BrokenChainError, SettingsError), match=message):
            async with power.session("new", options=options):
                pass
        assert power.store.objects == before

    async with power.session("new", options=end_at(last), tasks=False) as session:
        reported = "\n".join(session.volume.mended)
        for txg in range(last + 1, 10):
            assert f"txg {txg} is abandoned" in reported
        await require_files(session, inos, last)
        assert session.link.txg == 10
        inos[11] = write_file(session, b"11")
        await session.flush_at_end()
        assert session.link.txg >= 11
        await session.close()

    require_untouched(power, before)
    left = {txg: ino for txg, ino in inos.items() if txg <= last or txg == 11}
    await require_healthy(power, left, 11, "c")
    bucket = await bucket_of(power)
    for txg in (last - 1, last, 11):
        assert (await bucket.find(PointInTime("then", txg=Txg(txg)))).txg == txg


async def test_sole_writer_can_abandon_its_last_txgs_without_the_end_at_option(
    power: Power,
) -> None:
    inos = await written(power)
    rot(power, 9)
    for path in (power.home / "a").glob("meta.db*"):
        path.unlink()

    async with power.session("a", options=FSCK, tasks=False) as session:
        assert "txg 9 is abandoned" in "\n".join(session.volume.mended)
        await session.publish_as_txg()
        await session.close()
    await require_healthy(power, inos, 8, "c")


async def test_older_copy_of_the_state_directory_does_not_abandon_readable_txgs(
    power: Power,
) -> None:
    """If no image is left, a repair with an older copy is refused, and a rebuild finds every txg."""
    inos = {}
    async with power.session("a", tasks=False) as session:
        for txg in range(2, 8):
            inos[txg] = write_file(session, b"%d" % txg)
            if txg == 4:
                session.db.commit()
                await session.durability.sync_all()
                shutil.copytree(power.home / "a", power.home / "older")
            await session.flush()
        assert session.link.txg == 7
        await session.close()
    shutil.rmtree(power.home / "a")
    (power.home / "older").rename(power.home / "a")
    for key in [key for key in power.store.objects if key.startswith("image/")]:
        del power.store.objects[key]
    before = dict(power.store.objects)

    with pytest.raises(SettingsError, match=r"older copy.* txg 7.*--rebuild.*--end-at=3"):
        async with power.session("a", options=FSCK, tasks=False):
            pass
    require_untouched(power, before)
    assert power.store.objects.keys() == before.keys()

    await rebuilt(power)
    async with power.session("b", options=READ_ONLY, tasks=False) as session:
        await require_files(session, inos, 7)


async def test_failed_mount_keeps_local_state_that_does_not_match_the_chain(power: Power) -> None:
    """A mount that fails must not delete local state that it cannot continue."""
    inos = await written(power)
    async with power.session("b", tasks=False) as session:
        await session.close()
    async with power.session("a", tasks=False) as session:
        for number in (11, 12):
            inos[number] = write_file(session, b"%d" % number)
            await session.flush_at_end()
        await session.close()
    rot(power, 11)
    for key in list(power.store.objects):
        if key.startswith("image/"):
            power.store.objects[key] = b"rotten"

    with pytest.raises(S3fsError):
        async with power.session("b"):
            pass
    assert kept(power, "b") == []

    async with power.session("b", options=end_at(10), tasks=False) as session:
        await require_files(session, inos, 9)
        await session.publish_as_txg()
        await session.close()
    await require_healthy(power, inos, 9, "c")


async def test_state_with_abandoned_txgs_is_quarantined(power: Power) -> None:
    inos = await written(power)
    rot(power, 9)
    async with power.session("b", options=end_at(8), tasks=False) as session:
        await session.publish_as_txg()
        await session.close()

    async with power.session("a", tasks=False) as session:
        await require_files(session, inos, 8)
        assert any("recover-state" in one for one in session.volume.notices)
    assert len(kept(power, "a")) == 1


async def published(power: Power, options: OpenOptions, hook: Hook) -> None:
    """Repair the chain as fsck -y does, and publish the repaired state."""
    async with power.session("b", options=options, hook=hook, tasks=False) as session:
        await session.publish_as_txg()


@pytest.mark.parametrize(
    "step",
    [
        "epoch noted",
        "fence attempted",
        "fence put",
        "txg attempted",
        "changelog put",
        "txg confirmed",
    ],
)
async def test_interrupted_repair_of_the_chain_can_be_retried(power: Power, step: str) -> None:
    """After a kill at any step of a chain repair, a second repair loses no data."""
    inos = await written(power)
    rot(power, 9)
    before = dict(power.store.objects)

    def die(at: str) -> None:
        if at == step:
            raise KeyboardInterrupt

    options = OpenOptions(mend=Mend(Txg(8)), hook=die)
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - the nursery raises an exception group
        await published(power, options, die)
    assert "KeyboardInterrupt" in repr(caught.value)
    require_untouched(power, before)

    async with power.session("b", options=end_at(8), tasks=False) as session:
        await session.flush_at_end()
        if session.volume.mended:
            await session.publish_as_txg()
        await session.close()
    await require_healthy(power, inos, 8, "c")
