"""Followers, retention and rollback with a damaged chain, before and after a repair."""

import pytest
import trio.testing

from s3fs_meta.clock import SystemClock
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.errors import NoInodeError
from s3fs_meta.limits import FOLLOW_RESYNC_S
from s3fs_meta.model import ObjectKey, PointInTime, Txg
from s3fs_meta.mount_state import MountState
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.administration import rollback
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import open_filesystem
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import (
    HandClock,
    Power,
    changelogs,
    follower_of,
    read_file,
    unmount,
    write_file,
)
from tests.sync.history.readers import bucket_of
from tests.sync.opening.histories import end_at, require_files, require_healthy, rot, written

pytestmark = pytest.mark.thorough

FOLLOW = OpenOptions(read_only=True, follow=True)
FOLLOWED = SessionOptions(follow=True)
DAY = 86_400


@pytest.mark.parametrize("seen", [True, False], ids=["saw the abandoned txgs", "did not"])
async def test_follower_continues_after_a_repair_of_the_chain(
    power: Power, autojump_clock: trio.testing.MockClock, seen: bool
) -> None:
    """A follower serves its last txg until the damaged chain is repaired."""
    inos = await written(power)
    last = power.store.objects[key_of(Txg(9))]
    if not seen:
        del power.store.objects[key_of(Txg(9))]
    async with power.session("f", options=FOLLOW, session_options=FOLLOWED, tasks=False) as session:
        follower = follower_of(session)
        power.store.objects[key_of(Txg(9))] = last
        rot(power, 9)
        await follower.poll_once()
        assert follower.link.txg == (9 if seen else 8)
        await require_files(session, inos, follower.link.txg)

        async with power.session("b", options=end_at(8), tasks=False) as other:
            # The bucket has the fence record of the repair, but no image yet.
            await follower.poll_once()
            assert follower.link.txg in {8, 9}
            await require_files(session, inos, 8)
            inos[11] = write_file(other, b"11")
            await other.flush_at_end()
            end = other.link.txg
            await other.close()
        for _ in range(3):
            autojump_clock.jump(FOLLOW_RESYNC_S + 1)
            await follower.poll_once()
        assert follower.link.txg == end
        assert follower.last_error == ""
        await require_files(session, {txg: ino for txg, ino in inos.items() if txg != 9}, 11)
        assert session.status.state is MountState.FOLLOWING
        await session.close()


async def test_changelogs_of_abandoned_txgs_are_deleted_after_the_retention(power: Power) -> None:
    clock = HandClock()
    power.clock = clock
    await power.retain(3 * DAY)
    inos = await written(power)
    rot(power, 8)
    async with power.session("b", options=end_at(7), tasks=False) as session:
        await session.flush_at_end()
        given_up = ObjectKey(key_of(Txg(9)))
        for number in range(20, 40):
            inos[number] = write_file(session, b"%d" % number)
            await session.flush()
            if number % 3 == 0:
                await session.make_image()
                await session.reclaimer.reclaim()
            if number == 21:
                # The retention period of the abandoned txgs has not expired.
                assert given_up in power.store.objects
            clock.pass_by(DAY / 2)
        assert given_up not in power.store.objects
        assert changelogs(power)[0] == 8
        assert changelogs(power)[1] > 12
        floor = session.link.floor
        await unmount(session)
    bucket = await bucket_of(power)
    assert (await bucket.points.oldest()).txg == floor
    left = {txg: ino for txg, ino in inos.items() if txg < 8 or txg > 9}
    await require_healthy(power, left, 100, "c")


async def test_rollback_across_a_damaged_changelog_succeeds(power: Power) -> None:
    """A rollback can return to txgs before and after a damaged changelog."""
    inos = await written(power)  # Txg 4 is an image.
    rot(power, 3)
    before = dict(power.store.objects)
    for txg in (6, 2):
        opened = await open_filesystem(
            power.store, StateDir(power.home / "a"), power.secret, SystemClock(), OpenOptions()
        )
        to = await (await bucket_of(power)).find(PointInTime("then", txg=Txg(txg)))
        await rollback.roll_back(opened, to, SystemClock())
        for host in ("a", f"new-{txg}"):
            async with power.session(
                host, options=OpenOptions(force_takeover=True), tasks=False
            ) as session:
                await require_files(session, inos, txg)
                later = inos[7]
                with pytest.raises(NoInodeError):
                    await read_file(session, later)
                await session.close()
    for key, data in before.items():
        assert key == "lease" or power.store.objects[key] == data


async def test_rollback_of_a_chain_with_a_damaged_last_changelog_succeeds(power: Power) -> None:
    """The rollback first publishes the local state, so that the rollback can be undone."""
    inos = await written(power)
    rot(power, 9)
    opened = await open_filesystem(
        power.store, StateDir(power.home / "a"), power.secret, SystemClock(), OpenOptions()
    )
    to = await (await bucket_of(power)).find(PointInTime("then", txg=Txg(5)))
    done = await rollback.roll_back(opened, to, SystemClock())

    await require_healthy(power, inos, 5, "c")
    bucket = await bucket_of(power)
    assert (await bucket.find(PointInTime("then", txg=done.before.txg))).txg == done.before.txg
    async with power.session("a", options=OpenOptions(force_takeover=True), tasks=False) as session:
        await session.close()
    opened = await open_filesystem(
        power.store, StateDir(power.home / "a"), power.secret, SystemClock(), OpenOptions()
    )
    await rollback.roll_back(opened, done.before, SystemClock())
    await require_healthy(power, inos, 9, "d")
