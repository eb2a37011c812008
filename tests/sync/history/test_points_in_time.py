"""The search for the txg of a point in time."""

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from typing_extensions import override

from s3fs_meta.bucket_errors import NoImageError, OlderBucketError
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.image import parse_manifest_key
from s3fs_meta.errors import ObjectMissingError, SettingsError
from s3fs_meta.limits import IMAGES_KEPT
from s3fs_meta.model import NEWEST, AbbreviatedLink, ObjectKey, PointInTime, Txg
from s3fs_meta.objects.contract import Fetched, ObjectInfo, ObjectStore
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history import snapshot_mount
from s3fs_meta.sync.history.points_in_time import mark_of, require_at_least
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import close_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.damage import flipped
from tests.sync.conftest import HandClock, Power, flushed, write_file
from tests.sync.history.set_clock import FAR, SECOND_NS, SetClock, bucket_at, session_at
from tests.sync.opening.histories import rot, written

pytestmark = pytest.mark.thorough


async def ship_at(session: Session, clock: SetClock, time_ns: int) -> Link:
    """Ship a change at a given time."""
    clock.time_ns = time_ns
    write_file(session, b"%d" % time_ns)
    return await flushed(session)


async def txg_at(power: Power, time_ns: int) -> Txg:
    """Return the txg that a time selects."""
    return (await (await bucket_at(power)).find(PointInTime("then", time_ns))).txg


async def required(
    power: Power,
    mark: AbbreviatedLink,
    served: Link | None = None,
    store: ObjectStore | None = None,
) -> str | None:
    """Require a txg as the option at_least does."""
    keys = await power.keys()
    uuid = keys.superblock.uuid
    return await require_at_least(store or power.store, keys.keyring, uuid, mark, served)


async def test_images_are_listed_once_while_unreadable_changelogs_are_skipped(
    power: Power,
) -> None:
    """An image may record the chain position of an unreadable changelog."""
    await written(power)
    rot(power, 6, 7, 8, 9)
    store = FaultyStore(power.store)
    bucket = await snapshot_mount.read_bucket(
        store, power.remembered("-"), power.secret, SystemClock()
    )

    assert (await bucket.points.newest()).txg == 5
    assert bucket.points.unreadable_end == [6, 7, 8, 9]
    assert [call.key for call in store.calls if call.method == "list"].count("image/") == 1


async def test_search_by_time_finds_the_last_txg_at_or_before_the_time(power: Power) -> None:
    """The time of a txg selects this txg; one nanosecond less selects the previous txg."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        links = [await ship_at(session, clock, FAR + number * SECOND_NS) for number in range(1, 18)]

    for before, link in itertools.pairwise(links):
        assert await txg_at(power, link.created_ns) == link.txg
        assert await txg_at(power, link.created_ns - 1) == before.txg
    assert await txg_at(power, FAR * 2) == links[-1].txg


async def test_search_for_a_point_in_time_sends_few_requests(power: Power) -> None:
    """The search for a time reads about log2(n) of n changelogs."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        for number in range(1, 65):
            await ship_at(session, clock, FAR + number * SECOND_NS)
    store = FaultyStore(power.store)
    bucket = await bucket_at(power, store=store)

    await bucket.find(PointInTime("then", FAR + 40 * SECOND_NS))

    read = {call.key for call in store.calls if call.method == "get"}
    changelogs = [key for key in read if key.startswith("changelog/")]
    # The search reads both ends and log2(64) changelogs; one further read is accepted.
    assert 3 <= len(changelogs) <= 2 + 7


async def test_search_for_an_earlier_txg_does_not_search_for_the_end_of_the_chain(
    power: Power,
) -> None:
    """The end of the chain is remembered, because finding it needs many requests."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        links = [await ship_at(session, clock, FAR + number * SECOND_NS) for number in (1, 2, 3)]
    store = FaultyStore(power.store)
    bucket = await bucket_at(power, store=store)
    assert await bucket.find(NEWEST) == links[2]
    store.calls.clear()

    for link in reversed(links):
        assert await bucket.find(PointInTime("txg", txg=link.txg)) == link
    oldest = await bucket.points.oldest(bucket.points.end)

    listed = {call.key for call in store.calls if call.method == "list"}
    assert listed == {"changelog/", "image/"}
    assert [call.method for call in store.calls].count("list") == len(listed)
    assert oldest.txg == 0


async def test_txg_after_the_known_end_of_the_chain_is_found(power: Power) -> None:
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        first = await ship_at(session, clock, FAR + SECOND_NS)
        bucket = await bucket_at(power)
        assert await bucket.find(NEWEST) == first
        second = await ship_at(session, clock, FAR + 2 * SECOND_NS)

    assert await bucket.find(PointInTime("txg", txg=second.txg)) == second


async def test_txg_times_increase_even_if_the_clock_is_set_back(power: Power) -> None:
    """After the clock was set back, the next txg still gets a later time than its predecessor."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        before = await ship_at(session, clock, FAR + 100 * SECOND_NS)
        after = await ship_at(session, clock, FAR + 50 * SECOND_NS)
        last = await ship_at(session, clock, FAR + 200 * SECOND_NS)

    assert after.created_ns == before.created_ns + 1
    assert await txg_at(power, FAR + 60 * SECOND_NS) < before.txg
    assert await txg_at(power, FAR + 100 * SECOND_NS) == before.txg
    assert await txg_at(power, FAR + 150 * SECOND_NS) == after.txg
    assert await txg_at(power, FAR + 200 * SECOND_NS) == last.txg


async def test_fence_records_are_points_in_time_without_changes(power: Power) -> None:
    """A fence record gets a later time than its predecessor even if the host's clock is behind."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        first = await ship_at(session, clock, FAR + 3600 * SECOND_NS)
    clock.time_ns = FAR
    async with session_at(power, clock, "b") as session:
        fence = session.volume.link
        second = await ship_at(session, clock, FAR + 4000 * SECOND_NS)

    assert fence.txg == first.txg + 1
    assert await txg_at(power, FAR + 3600 * SECOND_NS) == first.txg
    assert await txg_at(power, FAR + 3601 * SECOND_NS) == fence.txg
    assert await txg_at(power, FAR + 4000 * SECOND_NS) == second.txg


async def test_error_about_a_time_before_mkfs_names_the_oldest_point_in_time(power: Power) -> None:
    """The oldest point in time is txg 0, which mkfs has made."""
    async with session_at(power, SetClock(FAR)):
        pass

    with pytest.raises(SettingsError, match=r"then is before the oldest .* txg 0 of 20"):
        await txg_at(power, 5)
    with pytest.raises(
        SettingsError, match="txg 9 does not exist yet; the newest point in time is txg 1 of"
    ):
        await (await bucket_at(power)).find(PointInTime("txg=9", txg=Txg(9)))


async def test_oldest_point_in_time_has_an_image_and_all_later_changelogs(power: Power) -> None:
    """A point in time is complete if it has an image and all changelogs after the image."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        links = [await ship_at(session, clock, FAR + number * SECOND_NS) for number in range(1, 4)]
        head = await session.make_image()
        links.append(await ship_at(session, clock, FAR + 9 * SECOND_NS))
    for key in list(power.store.objects):
        image = parse_manifest_key(key)
        if key == f"changelog/{links[0].txg:012}" or (image is not None and image.txg == 0):
            del power.store.objects[key]
    bucket = await bucket_at(power)

    assert (await bucket.points.oldest()).txg == head.txg
    with pytest.raises(SettingsError, match=f"txg 2 is before .* txg {head.txg} of"):
        await bucket.find(PointInTime("txg=2", txg=Txg(2)))
    assert await txg_at(power, FAR + 9 * SECOND_NS) == links[-1].txg


async def test_damage_to_the_only_manifest_is_reported_as_a_missing_image(power: Power) -> None:
    """If the lease exists but no image can be read, the error reports the missing image."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        await ship_at(session, clock, FAR + SECOND_NS)
    [manifest] = [key for key in power.store.objects if parse_manifest_key(key) is not None]
    power.store.objects[manifest] = flipped(power.store.objects[manifest], -1)

    with pytest.raises(NoImageError, match="no image of the metadata up to txg"):
        await (await bucket_at(power)).points.oldest()


async def test_retained_history_begins_with_the_retention_floor(power: Power) -> None:
    """Below the retention floor, packs may be deleted although changelogs exist."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        first = await ship_at(session, clock, FAR + SECOND_NS)
        floor = await ship_at(session, clock, FAR + 2 * SECOND_NS)
        session.db.begin_local()
        chain.want_floor(session.db, floor.txg)
        last = await ship_at(session, clock, FAR + 3 * SECOND_NS)
    bucket = await bucket_at(power)

    assert last.floor == floor.txg
    assert (await bucket.points.oldest()).txg == floor.txg
    assert await txg_at(power, floor.created_ns) == floor.txg
    with pytest.raises(SettingsError, match=f"before the oldest .* txg {floor.txg} of"):
        await bucket.find(PointInTime("then", first.created_ns))


async def test_time_in_the_future_selects_the_newest_txg_and_prints_a_notice(power: Power) -> None:
    """A time between the newest txg and now does not count as future."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        link = await ship_at(session, clock, FAR + SECOND_NS)
    bucket = await bucket_at(power, FAR + 10 * SECOND_NS)

    assert await bucket.find(PointInTime("then", FAR + 9 * SECOND_NS)) == link
    assert bucket.points.notices == []
    assert await bucket.find(PointInTime("2100", FAR + 11 * SECOND_NS)) == link
    assert bucket.points.notices[0].startswith("2100 is in the future: using txg 2 of ")


async def test_filesystem_that_was_never_mounted_has_one_point_in_time(power: Power) -> None:
    bucket = await bucket_at(power)

    link = await bucket.find(PointInTime("txg=0", txg=Txg(0)))

    assert link == await bucket.points.newest() == await bucket.points.oldest()
    assert await required(power, AbbreviatedLink(link.txg, link.hash)) is None


async def test_host_refuses_a_bucket_older_than_the_state_that_it_has_seen(power: Power) -> None:
    """A host refuses a bucket without the last txg and hash that the host has seen."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        old = dict(power.store.objects)
        link = await ship_at(session, clock, FAR + SECOND_NS)
        await ship_at(session, clock, FAR + 2 * SECOND_NS)
    txg, _, digits = mark_of(link).partition(":")
    mark = AbbreviatedLink(Txg(int(txg)), digits)

    assert await required(power, mark) is None
    with pytest.raises(OlderBucketError, match="different txg with that number"):
        await required(power, AbbreviatedLink(mark.txg, "0123456789abcdef"))
    del power.store.objects[f"changelog/{link.txg:012}"]  # type: ignore[arg-type]
    assert "no longer retained" in str(await required(power, mark))
    power.store.objects = old
    with pytest.raises(OlderBucketError, match="the bucket's last txg is earlier"):
        await required(power, mark)


class BeforeGet(MemoryStore):
    """A store in which a call removes objects just before one object is read."""

    def __init__(self, power: Power, key: ObjectKey, call: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.objects = power.store.objects
        self.key: ObjectKey | None = key
        self.call = call

    @override
    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        if key == self.key:
            self.key = None
            await self.call()
        return await super().get(key, max_bytes)


async def test_point_in_time_whose_retention_ends_during_its_use_is_reported_as_not_retained(
    power: Power, clock: HandClock, tmp_path: Path
) -> None:
    """The writer removes the oldest txgs after a reader has found one of them."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:

        async def pass_two_images() -> None:
            for number in range(IMAGES_KEPT):
                write_file(session, b"%d" % number)
                await session.make_image()

        await pass_two_images()
        await pass_two_images()
        bucket = await bucket_at(power, clock.now_ns())
        newest = await bucket.points.newest()
        link = await bucket.find(PointInTime("oldest", txg=newest.floor))
        mark = AbbreviatedLink(link.txg, link.hash)
        racing = BeforeGet(power, changelog_codec.key_of(link.txg), pass_two_images)

        assert "no longer retained" in str(await required(power, mark, store=racing))
        assert session.link.floor > link.txg
        assert "no longer retained" in str(await required(power, mark, newest))
        for number, point in enumerate((link, newest)):
            with pytest.raises(SettingsError, match=f"txg {point.txg} is no longer retained"):
                await bucket.restore(point, tmp_path / f"{number}.db")


class HidingStore(MemoryStore):
    """A store that returns the last changelog a few times, and then hides the last changelogs."""

    def __init__(self, power: Power, last: Txg, end: Txg, times: int) -> None:
        super().__init__()
        self.objects = power.store.objects
        self.last, self.end = last, changelog_codec.key_of(end)
        self.times = times

    def _hidden(self, key: str) -> bool:
        txg = changelog_codec.parse_key(key)
        return self.times <= 0 and txg is not None and txg > self.last

    @override
    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        if self._hidden(key):
            raise ObjectMissingError(key)
        self.times -= key == self.end
        return await super().get(key, max_bytes)

    @override
    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        async with aclosing(super().list(prefix, after=after)) as found:
            async for info in found:
                if not self._hidden(info.key):
                    yield info


async def mark_at_end(power: Power) -> AbbreviatedLink:
    """Ship three changes; return the last txg and hash, as a mount prints them."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        links = [await ship_at(session, clock, FAR + number * SECOND_NS) for number in range(1, 4)]
    txg, _, digits = mark_of(links[-1]).partition(":")
    return AbbreviatedLink(Txg(int(txg)), digits)


@pytest.mark.parametrize("read_only", [True, False])
async def test_store_that_hides_changelogs_after_a_listing_is_refused(
    power: Power, read_only: bool
) -> None:
    """A mount checks the state that it has restored; if the check fails, it writes nothing."""
    mark = await mark_at_end(power)
    before = dict(power.store.objects)
    store = HidingStore(power, Txg(mark.txg - 2), mark.txg, times=1)
    options = OpenOptions(read_only=read_only, force_takeover=not read_only, at_least=mark)

    with pytest.raises(OlderBucketError, match=f"can be shown is {mark.txg - 2}"):
        async with power.session("b", options=options, store=store):
            pass

    assert power.store.objects == before


async def test_new_host_without_the_at_least_option_accepts_a_store_that_hides_changelogs(
    power: Power,
) -> None:
    """A new host cannot detect that a store hides changelogs (see SECURITY.md)."""
    mark = await mark_at_end(power)
    store = HidingStore(power, Txg(mark.txg - 2), mark.txg, times=0)

    async with power.session("b", options=OpenOptions(read_only=True), store=store) as session:
        assert session.link.txg == mark.txg - 2


async def test_point_in_time_from_a_store_that_hides_changelogs_is_refused(
    power: Power, tmp_path: Path
) -> None:
    """The search for a point in time requires that the chain contains the txg of --at-least."""
    mark = await mark_at_end(power)
    options = OpenOptions(at_least=mark)
    for times in (0, 1):
        store = HidingStore(power, Txg(mark.txg - 1), mark.txg, times)
        bucket = await bucket_at(power, FAR, store)
        point = PointInTime("txg=2", txg=Txg(2))
        if times:
            opened = await snapshot_mount.open_snapshot(
                bucket, StateDir(tmp_path / "at"), options, point
            )
            assert opened.link.txg == 2
            await close_filesystem(opened, release=False)
            continue
        with pytest.raises(OlderBucketError, match="can be shown is"):
            await snapshot_mount.open_snapshot(bucket, StateDir(tmp_path / "at"), options, point)


async def test_hash_of_the_restored_txg_is_compared_with_the_at_least_option(power: Power) -> None:
    """The option --at-least requires a txg and the hash of the restored state."""
    mark = await mark_at_end(power)
    end = await (await bucket_at(power)).points.newest()
    other = AbbreviatedLink(end.txg, "0123456789abcdef")
    assert await required(power, mark, end) is None
    with pytest.raises(OlderBucketError, match="different txg"):
        await required(power, other, end)
    with pytest.raises(OlderBucketError, match="different txg"):
        await required(power, other, end._replace(txg=Txg(end.txg + 1)))
    missing = AbbreviatedLink(Txg(end.txg + 1), mark.hash)
    later = end._replace(txg=Txg(end.txg + 2))
    assert "no longer retained" in str(await required(power, missing, later))
    with pytest.raises(OlderBucketError, match="should be retained"):
        await required(power, missing, later._replace(floor=Txg(1)))
    assert await required(power, AbbreviatedLink(Txg(0), "0" * 16), end) is None
