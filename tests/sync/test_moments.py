"""Which transaction group was current when."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from s3fs_meta.codec.image import parse_manifest_key
from s3fs_meta.errors import OlderBucketError, SettingsError
from s3fs_meta.model import Mark, Moment, Txg
from s3fs_meta.sync import chain, past
from s3fs_meta.sync.chain import Link
from s3fs_meta.sync.moments import mark_of, require_at_least
from s3fs_meta.sync.opening import OpenOptions, close_filesystem, open_filesystem
from s3fs_meta.sync.past import Bucket
from s3fs_meta.sync.session import Session, SessionOptions
from s3fs_meta.sync.state_dir import StateDir

from .conftest import Power, write_file

S = 10**9


class SetClock:
    """A clock that shows what a test says."""

    def __init__(self, now_ns: int) -> None:
        self.time_ns = now_ns

    def now_ns(self) -> int:
        """Return the time."""
        return self.time_ns


@asynccontextmanager
async def session_at(power: Power, clock: SetClock, host: str = "a") -> AsyncIterator[Session]:
    """Run a session without tasks; it ends in order."""
    options = OpenOptions(force_takeover=True)
    opened = await open_filesystem(
        power.store, StateDir(power.home / host), power.secret, clock, options
    )
    session = Session(opened, SessionOptions(), clock)
    session.recover()
    session.start()
    yield session
    await close_filesystem(opened, release=True)


async def ship_at(session: Session, clock: SetClock, time_ns: int) -> Link:
    """Change something and ship it at a time."""
    clock.time_ns = time_ns
    write_file(session, b"%d" % time_ns)
    link = await session.flush()
    assert link is not None
    return link


async def bucket_of(power: Power, now_ns: int = 0) -> Bucket:
    """Return the filesystem as a reader has it."""
    return await past.read_bucket(
        power.store, power.remembered("-"), power.secret, SetClock(now_ns)
    )


async def txg_at(power: Power, time_ns: int) -> Txg:
    """Return the txg of a time."""
    return (await (await bucket_of(power)).find(Moment("then", time_ns))).txg


FAR = 10**19 // 5  # later than the real clock that mkfs looked at


async def test_time_finds_the_last_txg_that_is_not_later(power: Power) -> None:
    """Exactly at a cut it is that one, a nanosecond before it the one before."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        links = [await ship_at(session, clock, FAR + number * S) for number in range(1, 18)]

    for before, link in itertools.pairwise(links):
        assert await txg_at(power, link.created_ns) == link.txg
        assert await txg_at(power, link.created_ns - 1) == before.txg
    assert await txg_at(power, FAR * 2) == links[-1].txg


async def test_search_takes_few_requests(power: Power) -> None:
    """One for each halving, whatever lies between."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        for number in range(1, 65):
            await ship_at(session, clock, FAR + number * S)
    bucket = await bucket_of(power)

    await bucket.find(Moment("then", FAR + 40 * S))

    assert len(bucket.moments._known) <= 2 + 7  # the ends, and log2 of 64 with one to spare


async def test_clock_that_jumps_back_keeps_the_order(power: Power) -> None:
    """What was shipped after the jump is a moment later than what was shipped before it."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        before = await ship_at(session, clock, FAR + 100 * S)
        after = await ship_at(session, clock, FAR + 50 * S)
        last = await ship_at(session, clock, FAR + 200 * S)

    assert after.created_ns == before.created_ns + 1
    assert await txg_at(power, FAR + 60 * S) < before.txg
    assert await txg_at(power, FAR + 100 * S) == before.txg
    assert await txg_at(power, FAR + 150 * S) == after.txg
    assert await txg_at(power, FAR + 200 * S) == last.txg


async def test_fence_records_are_moments_with_nothing_new(power: Power) -> None:
    """Of a host whose clock is an hour behind: they come after what they end, all the same."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        first = await ship_at(session, clock, FAR + 3600 * S)
    clock.time_ns = FAR
    async with session_at(power, clock, "b") as session:
        fence = session.opened.link
        second = await ship_at(session, clock, FAR + 4000 * S)

    assert fence.txg == first.txg + 1
    assert await txg_at(power, FAR + 3600 * S) == first.txg
    assert await txg_at(power, FAR + 3601 * S) == fence.txg
    assert await txg_at(power, FAR + 4000 * S) == second.txg


async def test_time_before_the_filesystem_names_the_oldest(power: Power) -> None:
    """That is what mkfs made."""
    async with session_at(power, SetClock(FAR)):
        pass

    with pytest.raises(SettingsError, match=r"then is before the oldest .* txg 0 of 20"):
        await txg_at(power, 5)
    with pytest.raises(SettingsError, match="there is no txg 9 yet: the newest is txg 1 of"):
        await (await bucket_of(power)).find(Moment("txg=9", txg=Txg(9)))


async def test_reclaimed_moments_are_before_the_oldest(power: Power) -> None:
    """A moment needs an image, and every changelog after it."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        links = [await ship_at(session, clock, FAR + number * S) for number in range(1, 4)]
        head = await session.make_image()
        links.append(await ship_at(session, clock, FAR + 9 * S))
    for key in list(power.store.objects):
        image = parse_manifest_key(key)
        if key == f"changelog/{links[0].txg:012}" or (image is not None and image.txg == 0):
            del power.store.objects[key]
    bucket = await bucket_of(power)

    assert (await bucket.moments.oldest()).txg == head.txg
    with pytest.raises(SettingsError, match=f"txg 2 is before .* txg {head.txg} of"):
        await bucket.find(Moment("txg=2", txg=Txg(2)))
    assert await txg_at(power, FAR + 9 * S) == links[-1].txg


async def test_what_is_retained_begins_with_the_floor(power: Power) -> None:
    """Changelogs before it may be there: packs that they need may not."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        first = await ship_at(session, clock, FAR + S)
        floor = await ship_at(session, clock, FAR + 2 * S)
        session.db.begin_local()
        chain.want_floor(session.db, floor.txg)
        last = await ship_at(session, clock, FAR + 3 * S)
    bucket = await bucket_of(power)

    assert last.floor == floor.txg
    assert (await bucket.moments.oldest()).txg == floor.txg
    assert await txg_at(power, floor.created_ns) == floor.txg
    with pytest.raises(SettingsError, match=f"before the oldest .* txg {floor.txg} of"):
        await bucket.find(Moment("then", first.created_ns))


async def test_future_is_the_newest_and_says_so(power: Power) -> None:
    """A moment between the newest one and now is not the future."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        link = await ship_at(session, clock, FAR + S)
    bucket = await bucket_of(power, FAR + 10 * S)

    assert await bucket.find(Moment("then", FAR + 9 * S)) == link
    assert bucket.moments.notices == []
    assert await bucket.find(Moment("2100", FAR + 11 * S)) == link
    assert bucket.moments.notices[0].startswith("2100 is in the future: taking txg 2 of ")


async def test_filesystem_that_was_never_mounted_has_one_moment(power: Power) -> None:
    """The empty one."""
    bucket = await bucket_of(power)

    link = await bucket.find(Moment("txg=0", txg=Txg(0)))

    assert link == await bucket.moments.newest() == await bucket.moments.oldest()
    assert await require_at_least(power.store, Mark(link.txg, link.hash)) is None


async def test_older_bucket_is_refused_by_who_remembers_more(power: Power) -> None:
    """Also one that went another way from there on; what is no longer kept cannot be compared."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        old = dict(power.store.objects)
        link = await ship_at(session, clock, FAR + S)
        await ship_at(session, clock, FAR + 2 * S)
    txg, _, digits = mark_of(link).partition(":")
    mark = Mark(Txg(int(txg)), digits)

    assert await require_at_least(power.store, mark) is None
    with pytest.raises(OlderBucketError, match="another txg has that number"):
        await require_at_least(power.store, Mark(mark.txg, "0123456789abcdef"))
    del power.store.objects[f"changelog/{link.txg:012}"]  # type: ignore[arg-type]
    assert "no longer kept" in str(await require_at_least(power.store, mark))
    power.store.objects = old
    with pytest.raises(OlderBucketError, match="it ends before that"):
        await require_at_least(power.store, mark)
