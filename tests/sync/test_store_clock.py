"""A host with a wrong clock, which must not damage the history or the times of txgs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
from typing_extensions import override

from s3fs_meta.codec import level
from s3fs_meta.errors import ClockError, SettingsError, TransientStoreError
from s3fs_meta.limits import CLOCK_OFF_S_MAX
from s3fs_meta.model import PointInTime, Txg
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.snapshot_mount import read_bucket
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.store_clock import StoreClock
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.fs.past.copying import points_of
from tests.sampled import sampled
from tests.sync.chain.stored_changelogs import changelogs
from tests.sync.conftest import HandClock, Power, flushed, remove_file, write_file
from tests.sync.follower.following import FOLLOWS, READS
from tests.sync.history.readers import bucket_of
from tests.sync.history.set_clock import SetClock

pytestmark = pytest.mark.thorough

S: Final = 1_000_000_000
HOUR: Final = 3600
DAY: Final = 86_400
YEARS_10: Final = 3652 * DAY
WRONG: Final = sampled([HOUR, YEARS_10, -YEARS_10, -HOUR], 2)


class Beside:
    """A clock that is wrong by a constant offset."""

    def __init__(self, right: HandClock, off_s: int) -> None:
        self._right = right
        self.off_s = off_s

    def now_ns(self) -> int:
        """Return the wrong time of this clock."""
        return self._right.now_ns() + self.off_s * S


class ClockStore(MemoryStore):
    """A store whose clock shows a given time, or a store without a clock."""

    def __init__(self, time_ns: int | None) -> None:
        super().__init__()
        self.time_ns = time_ns

    @override
    async def now_ns(self) -> int | None:
        """Return the time of the store, or None if it has no clock."""
        return self.time_ns


@pytest.fixture
def right(power: Power) -> HandClock:
    """Return the clock of the store and of every host with a correct clock."""
    power.clock = HandClock()
    return power.clock


async def ship(session: Session) -> Link:
    """Write a file and ship the change; return the txg and the hash of its changelog."""
    write_file(session, b"x")
    return await flushed(session)


async def history(session: Session, right: HandClock, days: int) -> list[Link]:
    """On each of *days* days, ship a change and make an image; return the txgs and hashes."""
    links = []
    for _ in range(days):
        right.pass_by(DAY)
        links.append(await ship(session))
        await session.make_image()
    return links


@asynccontextmanager
async def released(power: Power, host: str, clock: Beside | None = None) -> AsyncIterator[Session]:
    """Run a session that releases the lease when it ends."""
    async with power.session(host, tasks=False, clock=clock) as session:
        yield session
        await session.flush()
        await session.close()


async def txg_at(power: Power, time_ns: int) -> Txg:
    """Return the txg that a host with a correct clock finds for a given time."""
    bucket = await bucket_of(power)
    return (await bucket.points.find(PointInTime("then", time_ns), power.clock.now_ns())).txg


# --- one host with a wrong clock -------------------------------------------------------------


@pytest.mark.parametrize("off_s", WRONG)
async def test_host_with_a_wrong_clock_uses_the_time_of_the_store_and_deletes_nothing(
    power: Power, right: HandClock, off_s: int
) -> None:
    """A host with a wrong clock gives txgs the store's time, and refuses to reclaim."""
    async with released(power, "a") as session:
        links = await history(session, right, 10)
        floor, objects = session.link.floor, set(power.store.objects)
        assert floor > 0
    async with released(power, "wrong", Beside(right, off_s)) as session:
        [notice] = session.volume.notices
        assert ("ahead of" if off_s > 0 else "behind") in notice
        during = []
        for _ in range(2):
            right.pass_by(HOUR)
            during.append(await ship(session))
            await session.make_image()
        assert "set the clock" in session.reclaimer.last_error
        with pytest.raises(ClockError):
            await session.reclaimer.reclaim()
        assert session.link.floor == floor
        assert {key for key in objects if key.startswith(("pack/", "changelog/"))} <= set(
            power.store.objects
        )
    async with released(power, "b") as session:
        assert session.volume.notices == ()
        assert abs(session.volume.link.created_ns - right.ns) < HOUR * S
        assert await txg_at(power, during[0].created_ns) == during[0].txg
        assert await txg_at(power, links[-1].created_ns) == links[-1].txg
        await history(session, right, 10)
        assert session.reclaimer.last_error == ""
        assert session.link.floor > links[-1].txg


@pytest.mark.parametrize("off_s", WRONG)
async def test_clock_change_during_a_mount_does_not_affect_txg_times(
    power: Power, right: HandClock, off_s: int
) -> None:
    """Txgs get the store's time, and reclaim fails until the host's clock is correct again."""
    clock = Beside(right, 0)
    async with power.session("a", tasks=False, clock=clock) as session:
        await history(session, right, 3)
        clock.off_s = off_s
        wrong = await ship(session)
        assert abs(wrong.created_ns - right.ns) < HOUR * S / 2
        await session.make_image()
        assert "set the clock" in session.reclaimer.last_error

        clock.off_s = 0
        again = await ship(session)
        assert wrong.created_ns < again.created_ns
        assert abs(again.created_ns - right.ns) < HOUR * S / 2
        await session.make_image()
        assert session.reclaimer.last_error == ""


async def test_all_elapsed_time_is_accepted_if_the_store_confirms_it(
    power: Power, right: HandClock
) -> None:
    """After ten years without a txg, txgs get the current time and the retention floor advances."""
    async with power.session("a", tasks=False) as session:
        await history(session, right, 3)
        right.pass_by(YEARS_10)
        link = await ship(session)
        assert abs(link.created_ns - right.ns) < S
        await session.make_image()
        await session.make_image()
        assert session.link.floor >= link.txg - 1


@pytest.mark.parametrize("idle_s", [30 * DAY, YEARS_10])
async def test_elapsed_time_that_the_store_cannot_confirm_is_accepted_up_to_a_day(
    power: Power, right: HandClock, idle_s: int
) -> None:
    """A local store cannot confirm elapsed time, because it has the clock of this host."""
    power.store.has_own_clock = False
    await power.retain(7 * DAY)
    async with power.session("a", tasks=False) as session:
        remove_file(session, write_file(session, b"x" * 1000))
        links = await history(session, right, 4)
        objects = {key for key in power.store.objects if key.startswith(("pack/", "changelog/"))}
        right.pass_by(idle_s)
        for _ in range(3):
            await ship(session)
            await session.make_image()

        assert session.reclaimer.last_error == ""
        assert session.link.floor == 0
        assert objects <= set(power.store.objects)

        await history(session, right, 5)
        assert links[0].txg <= session.link.floor <= links[-1].txg
        await history(session, right, 5)
        assert session.link.floor > links[-1].txg


async def test_garbage_collection_keeps_objects_of_unknown_age(
    power: Power, right: HandClock
) -> None:
    """An object without a modification time counts as young, so it is kept."""
    async with power.session("a", tasks=False) as session:
        await history(session, right, 5)
        power.store.modified_ns.clear()
        right.pass_by(20 * DAY)
        await session.make_image()

        assert session.reclaimer.last_error == ""
        assert session.link.floor == 0


async def test_promoted_follower_uses_the_time_of_the_store(power: Power, right: HandClock) -> None:
    async with released(power, "a") as session:
        await ship(session)
    clock = Beside(right, YEARS_10)
    async with power.session(
        "b", options=READS, session_options=FOLLOWS, clock=clock, tasks=False
    ) as session:
        link = await session.promote()
        assert abs(link.created_ns - right.ns) < HOUR * S


# --- txgs dated by a wrong clock ---------------------------------------------------------------


@asynccontextmanager
async def wrong_everywhere(power: Power, right: HandClock) -> AsyncIterator[None]:
    """Set the clocks of host and store ten years ahead, as on a machine with a local store."""
    power.clock = Beside(right, YEARS_10)
    power.store.has_own_clock = False
    yield
    power.clock = right


async def mended(power: Power, right: HandClock) -> dict[str, Link]:
    """Ship two txgs dated in 2106 among others, and repair the times; return some txgs."""
    links = {}
    async with released(power, "a") as session:
        *_, links["before"] = await history(session, right, 5)
    async with wrong_everywhere(power, right), released(power, "a") as session:
        links["wrong"] = await ship(session)
        links["end"] = await ship(session)
    right.pass_by(HOUR)
    async with released(power, "a") as session:
        [notice] = session.volume.notices
        assert "fsck -y begins a new time span" in notice
        assert session.volume.link.created_ns > links["end"].created_ns
        await session.publish_as_txg()
        links["span"] = session.link
    return links


async def test_fsck_repair_begins_a_new_time_span_with_correct_times(
    power: Power, right: HandClock
) -> None:
    """After the repair, a search by time finds only txgs with correct times."""
    links = await mended(power, right)
    async with released(power, "b") as session:
        assert session.volume.notices == ()
        right.pass_by(HOUR)
        after = await ship(session)
        assert abs(after.created_ns - right.ns) < S
        last = session.volume

    assert await txg_at(power, after.created_ns) == after.txg
    assert await txg_at(power, links["span"].created_ns) == links["span"].txg
    assert await txg_at(power, links["before"].created_ns) == links["before"].txg
    assert await txg_at(power, links["before"].created_ns - 1) < links["before"].txg
    bucket = await bucket_of(power)
    for txg in range(links["before"].txg, after.txg + 1):
        found = await bucket.points.find(PointInTime("", txg=Txg(txg)), right.ns)
        assert found.txg == txg
    with pytest.raises(SettingsError, match="before the oldest"):
        await txg_at(power, 1)
    fetched = await chain.fetch(power.store, last.keyring, last.superblock.uuid, links["span"].txg)
    assert fetched.changelog.begins_span


async def test_retention_deletes_txgs_after_a_repair_of_wrong_times(
    power: Power, right: HandClock
) -> None:
    """Txgs with wrong times are deleted when the new time span is older than the retention."""
    links = await mended(power, right)
    async with power.session("a", tasks=False) as session:
        for _ in range(6):
            await history(session, right, 1)
        assert session.link.floor < links["wrong"].txg
        await history(session, right, 8)
        assert session.link.floor > links["span"].txg
        assert session.reclaimer.last_error == ""


async def test_level_objects_do_not_span_two_time_spans(power: Power, right: HandClock) -> None:
    """The image that begins a time span is not merged into a level object."""
    span = (await mended(power, right))["span"].txg
    async with power.session("a", tasks=False) as session:
        for _ in range(60):
            await ship(session)
        await session.leveler.make_due()
    runs = [level.parse_key(key) for key in power.store.objects if key.startswith("level/")]
    assert len(runs) > 5
    assert not [run for run in runs if run and level.first_of(*run) <= span <= run[1]]


async def test_fsck_begins_no_new_time_span_while_the_clocks_disagree(
    power: Power, right: HandClock
) -> None:
    """If a host's clock is behind, all txgs seem to be in the future, but fsck keeps their times."""
    async with released(power, "a") as session:
        await history(session, right, 2)
    async with released(power, "b", Beside(right, -YEARS_10)) as session:
        before = session.volume.link
        await session.publish_as_txg()
        assert session.link.created_ns > before.created_ns
        keyring = session.volume.keyring
    assert not any(one.begins_span for one in changelogs(power, keyring))
    bucket = await bucket_of(power)
    assert (
        await bucket.points.span_starts(await bucket.points.oldest(), await bucket.points.newest())
        == []
    )


# --- the clock of the store ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("off_s", "reported"),
    [
        (0, ""),
        (CLOCK_OFF_S_MAX, ""),
        (-CLOCK_OFF_S_MAX, ""),
        (CLOCK_OFF_S_MAX + 1, "10 minutes ahead of"),
        (-3 * HOUR, "3 hours behind"),
        (-YEARS_10, "3652 days behind"),
    ],
)
async def test_clock_difference_above_a_limit_is_reported(off_s: int, reported: str) -> None:
    """A small difference between the clocks is ignored; a large difference is reported."""
    ours = SetClock(YEARS_10 * S)
    clock = StoreClock(ClockStore(YEARS_10 * S - off_s * S), ours)
    await clock.compare()

    assert reported in clock.disagreement
    assert (clock.disagreement == "") == (reported == "")
    assert clock.now_ns() == ours.time_ns - (off_s * S if reported else 0)


async def test_host_uses_its_own_time_if_the_store_has_no_clock() -> None:
    """Without a clock in the store, the host's time is used unchecked."""
    clock = StoreClock(ClockStore(None), SetClock(5 * S))
    await clock.require_agreement()

    assert clock.now_ns() == 5 * S


async def test_time_of_the_store_is_requested_once_and_after_each_clock_jump() -> None:
    ours, theirs = SetClock(YEARS_10 * S), ClockStore(YEARS_10 * S)
    store = FaultyStore(theirs)
    clock = StoreClock(store, ours)
    await clock.compare()
    for _ in range(5):
        await clock.compare_after_a_jump()
    assert [call.method for call in store.calls] == ["now"]

    ours.time_ns -= 2 * CLOCK_OFF_S_MAX * S
    await clock.compare_after_a_jump()
    assert [call.method for call in store.calls] == ["now", "now"]
    assert clock.now_ns() == theirs.time_ns


async def test_unreachable_store_does_not_change_the_known_clock_difference() -> None:
    """If the store is unreachable, the check before reclaim fails; the known difference stays."""
    store = FaultyStore(ClockStore(YEARS_10 * S))
    clock = StoreClock(store, SetClock(1))
    await clock.compare()
    store.fail("now")
    with pytest.raises(TransientStoreError):
        await clock.require_agreement()

    assert "behind" in clock.disagreement
    assert clock.now_ns() == YEARS_10 * S


# --- one reader with a wrong clock -----------------------------------------------------------


@pytest.mark.parametrize("off_s", WRONG)
async def test_relative_time_is_computed_with_the_clock_of_the_store(
    power: Power, right: HandClock, off_s: int
) -> None:
    """A reader with a wrong clock finds the right txg for "2d ago" and prints a warning."""
    async with released(power, "a") as session:
        links = await history(session, right, 5)
    wrong = Beside(right, off_s)
    asked = PointInTime("2d ago", wrong.now_ns() - 2 * DAY * S, is_ago=True)
    expected = await txg_at(power, right.ns - 2 * DAY * S)
    bucket = await read_bucket(power.store, power.remembered("-"), power.secret, wrong)

    assert (await bucket.find(asked)).txg == expected < links[-1].txg
    [notice] = bucket.points.notices
    assert "'2d ago' counts back from the store's time" in notice
    then = PointInTime("then", links[2].created_ns)
    assert (await bucket.find(then)).txg == links[2].txg, "an absolute time needs no clock"
    assert "set the clock" in bucket.points.notices[-1]


@pytest.mark.parametrize("has_own_clock", [True, False])
@pytest.mark.parametrize("off_s", WRONG)
async def test_relative_time_in_a_mount_is_computed_with_the_clock_of_the_store(
    power: Power, right: HandClock, off_s: int, has_own_clock: bool
) -> None:
    """In a mount, "2d ago" is computed with the store's time, which also dates the txgs."""
    async with released(power, "a") as session:
        links = await history(session, right, 5)
    expected = await txg_at(power, right.ns - 2 * DAY * S)
    wrong = Beside(right, off_s)
    async with released(power, "a", wrong) as session:
        power.store.has_own_clock = has_own_clock
        asked = PointInTime("2d ago", wrong.now_ns() - 2 * DAY * S, is_ago=True)
        found = await points_of(session).find(asked)

    assert found is not None
    assert found.txg == expected < links[-1].txg


async def test_reader_with_a_correct_clock_gets_no_warning(power: Power, right: HandClock) -> None:
    """A reader does not request the store's time, because this would write an object."""
    async with released(power, "a") as session:
        await history(session, right, 3)
    asked = PointInTime("1d ago", right.ns - DAY * S, is_ago=True)
    for own, clock in ((True, right), (False, Beside(right, YEARS_10))):
        power.store.has_own_clock = own
        # A request would reveal that the local clock is wrong.
        power.store.clock = right if own else Beside(right, -YEARS_10)
        bucket = await read_bucket(power.store, power.remembered("-"), power.secret, clock)
        await bucket.find(asked)
        assert [one for one in bucket.points.notices if "clock" in one] == []


async def test_reply_without_a_time_does_not_change_the_known_clock_difference() -> None:
    """A proxy may answer without a Date header; nothing may be deleted with a wrong clock."""
    store = ClockStore(YEARS_10 * S)
    clock = StoreClock(store, SetClock(1))
    await clock.compare()
    store.time_ns = None

    with pytest.raises(ClockError):
        await clock.require_agreement()

    assert clock.now_ns() == YEARS_10 * S
