"""Packs that have a different number, row or txg of death in another history."""

import pytest

from s3fs_meta.codec import changelog
from s3fs_meta.model import PointInTime
from s3fs_meta.sync.administration.keeping import PointKeeper
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from tests.check import rebuilding
from tests.sync.conftest import TAKEOVER, HandClock, Power, keys_of, read_file, unmount, write_file
from tests.sync.histories import fork, keep_theirs, publish, put_back
from tests.sync.history.readers import at, bucket_of
from tests.sync.kept import (
    Files,
    empty,
    files_at,
    files_of,
    fill,
    forget,
    kept_files,
)
from tests.sync.kills import KillAt, Killed
from tests.sync.rolling_back import roll_back

pytestmark = pytest.mark.thorough

DAY = 86_400


async def require_files(session: Session, files: Files) -> None:
    """Require that all files have the expected content."""
    for ino, content in files.items():
        assert await read_file(session, ino) == content


async def test_rollback_to_another_history_uses_the_packs_of_that_history(power: Power) -> None:
    """In two histories, the same pack numbers may mean different packs."""
    files: Files = {}
    older = await fork(power, files)
    async with power.session("a", tasks=False) as session:
        write_file(session, b"ours" * 700)
        await session.flush_at_end()
        last = session.link.txg
        await session.close()
    put_back(power, older)
    point = await keep_theirs(power, files, last)
    await power.retain(0)
    await publish(power)
    async with power.session("a", tasks=False) as session:
        await forget(session, times=2)
        assert session.link.floor > point
        await session.close()

    bucket = await bucket_of(power)
    await roll_back(power, await bucket.find(PointInTime("theirs", kept="theirs")))

    async with power.session("c", options=TAKEOVER, tasks=False) as session:
        await require_files(session, files)
        await forget(session)
        await session.close()
    async with power.session("d", options=TAKEOVER, tasks=False) as session:
        await PointKeeper(session).drop(["theirs"])
        await forget(session)
        await require_files(session, files)


async def test_rollback_to_a_kept_point_older_than_a_rebuild_uses_the_former_packs(
    power: Power,
) -> None:
    """A rebuild of the filesystem gives new numbers to all packs."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        files = await kept_files(session)
        await unmount(session)
    async with power.session("a", tasks=False) as session:
        await forget(session)
        [point] = (await session.reclaimer.kept_points()).points
        await unmount(session)
    image = point.image.key.rpartition("/")[0]
    for key in keys_of(power, "image/"):
        if not key.startswith(image):
            del power.store.objects[key]
    await rebuilding.run(power)
    async with power.session("b", tasks=False) as session:
        await unmount(session)

    bucket = await bucket_of(power)
    await roll_back(power, await bucket.find(PointInTime("a", kept="a")), host="b")

    for host in ("b", "c"):
        async with power.session(host, options=TAKEOVER, tasks=False) as session:
            await require_files(session, files)
            await forget(session)
            await require_files(session, files)
        assert await files_at(power, "a") == files


async def test_pack_emptied_by_an_unshipped_removal_is_kept_until_the_next_fence_record(
    power: Power,
) -> None:
    """A killed host had not shipped a removal, and its next fence record gets the removal's txg.

    The state at the fence record is the state before the removal.
    """
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        files: Files = {}
        fill(session, files, b"x" * 999)
        await session.make_image()
        state = dict(files)
        empty(session, files)
        session.durability.commit()
    async with power.session("a", tasks=False) as session:
        fence = session.link.txg
        await session.flush()
        assert session.link.txg > fence
        await PointKeeper(session).keep("a", at(fence))
        await forget(session)
        assert await files_at(power, "a") == state


@pytest.mark.parametrize("step", ["fence attempted", "fence put", "fence confirmed"])
async def test_pack_emptied_by_an_unshipped_removal_is_kept_for_several_fence_records(
    power: Power, step: str
) -> None:
    """Several mounts in a row are killed, each while it appends its fence record."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        files: Files = {}
        fill(session, files, b"x" * 999)
        await session.make_image()
        state, before = dict(files), session.link.txg
        empty(session, files)
        session.durability.commit()

    for _ in range(2):
        kill = KillAt(step, armed=True)
        with pytest.raises(Killed):
            async with power.session("a", options=OpenOptions(hook=kill), tasks=False):
                pass
    async with power.session("a", tasks=False) as session:
        last = session.link.txg
        await session.flush()
        for txg in range(before + 1, last + 1):
            await PointKeeper(session).keep(f"at-{txg}", at(txg))
        await forget(session)
        for txg in range(before + 1, last + 1):
            assert await files_at(power, f"at-{txg}") == state


async def test_retained_txg_of_another_history_keeps_packs_of_earlier_epochs(power: Power) -> None:
    """The published local state has no rows for packs of the other history."""
    power.clock = clock = HandClock()
    await power.retain(3 * DAY)
    files: Files = {}
    older = await fork(power, files)
    put_back(power, older)
    theirs: Link | None = None
    for number in range(3):
        async with power.session("b", tasks=False) as session:
            fill(session, files, b"theirs %d" % number * 300)
            await session.flush_at_end()
            theirs = session.link
            await session.close()
    assert theirs is not None
    clock.pass_by(2 * DAY)
    await publish(power)
    clock.pass_by(2 * DAY)
    async with power.session("a", tasks=False) as session:
        for number in range(3):
            write_file(session, b"later %d" % number)
            await session.make_image()
        await session.reclaimer.reclaim_all()
        assert session.link.floor == theirs.txg
        assert await files_of(power, at(theirs.txg)) == files


async def test_condemned_pack_of_another_history_is_retained_for_a_kept_point(power: Power) -> None:
    """The store was unavailable when the host that condemned the pack tried to delete it.

    The bucket was then restored to an older copy, in which another host kept a point that needs the
    pack.
    """
    await power.retain(0)
    files: Files = {}
    older = await fork(power, files, fails_to_delete=True)
    last = max(changelog.parse_key(key) or 0 for key in power.store.objects)
    put_back(power, older)
    point = await keep_theirs(power, files, last)
    await publish(power)
    async with power.session("a", tasks=False) as session:
        await forget(session, times=2)
        assert session.link.floor > point
        assert await files_at(power, "theirs") == files
