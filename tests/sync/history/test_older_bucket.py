"""A bucket that is restored from an older copy, under a running writer or between two mounts."""

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from s3fs_meta.codec.changelog import Kind, key_of
from s3fs_meta.errors import FencedError, OlderBucketError, StoreUnavailableError
from s3fs_meta.meta.tables import damage_marks
from s3fs_meta.model import Ino, ObjectKey, PointInTime, Txg
from s3fs_meta.mount_state import MountState
from s3fs_meta.objects.contract import ETag
from s3fs_meta.sync.chain import abandoned_txgs, chain
from s3fs_meta.sync.chain.abandoned_txgs import Mend
from s3fs_meta.sync.history import txg_log
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import Power, read_file, write_file
from tests.sync.history.readers import bucket_of

pytestmark = pytest.mark.thorough

READ_ONLY = OpenOptions(read_only=True)


async def ship(session: Session, *numbers: int) -> dict[int, Ino]:
    """Write a file for each number, and ship it."""
    inos = {}
    for number in numbers:
        inos[number] = write_file(session, b"%d" % number * 5000)
        await session.flush()
    return inos


def put_back(power: Power, older: Mapping[ObjectKey, bytes]) -> None:
    """Restore the bucket to an earlier content."""
    power.store.objects.clear()
    power.store.objects.update(older)


async def require_all(power: Power, inos: Mapping[int, Ino], host: str = "c") -> None:
    """Let a host without local state read everything."""
    async with power.session(host, options=READ_ONLY, tasks=False) as session:
        for number, ino in inos.items():
            assert await read_file(session, ino) == b"%d" % number * 5000
        assert session.volume.notices == ()


@pytest.mark.parametrize("end", ["a change", "nothing", "unmount", "fsync=remote"])
async def test_restored_bucket_is_noticed_before_the_next_success_and_repaired(
    power: Power, end: str
) -> None:
    """The next txg is an image; missing packs are uploaded again from the cache."""
    async with power.session("a", tasks=end == "fsync=remote") as session:
        inos = await ship(session, 1, 2)
        older = dict(power.store.objects)
        inos |= await ship(session, 3, 4)
        before = session.link.txg
        put_back(power, older)
        if end == "a change":
            inos |= await ship(session, 5)
        elif end == "nothing":
            await session.flush()
        elif end == "unmount":
            await session.flush_at_end()
        else:
            await session.shipper.wait_until_shipped(50)

        for key, data in older.items():
            assert key == "lease" or power.store.objects[key] == data
        assert session.link.txg > before
        assert abandoned_txgs.wanted(session.db) is None
        await require_all(power, inos)
        await session.flush_at_end()
        await session.close()
    await require_all(power, inos, "d")
    async with power.session("a", tasks=False) as session:
        assert session.volume.notices == ()


async def test_next_link_is_an_image_and_later_ones_are_changelogs(power: Power) -> None:
    """Changes are shipped as usual."""
    async with power.session("a", tasks=False) as session:
        await ship(session, 1)
        older = dict(power.store.objects)
        await ship(session, 2, 3)
        before = session.link.txg
        put_back(power, older)
        await session.flush()
        await ship(session, 4)
        uuid, kinds = session.volume.superblock.uuid, []
        for number in range(before + 1, session.link.txg + 1):
            own = await chain.fetch(power.store, session.volume.keyring, uuid, Txg(number))
            kinds.append(own.changelog.kind)
    assert kinds[0] is Kind.IMAGE
    assert set(kinds[1:]) == {Kind.GROUP}


async def test_copy_from_before_the_mount_has_an_older_lease(power: Power) -> None:
    """No other host can have taken it since: our own lease is written again."""
    async with power.session("a", tasks=False) as session:
        inos = await ship(session, 1)
        await session.close()
    older = dict(power.store.objects)
    async with power.session("a", tasks=False) as session:
        inos |= await ship(session, 2, 3)
        put_back(power, older)
        await session.flush()
        assert session.status.state is MountState.SERVING
        await require_all(power, inos)
        await session.flush_at_end()
        await session.close()
    async with power.session("a", tasks=False) as session:
        assert session.volume.notices == ()


async def test_lease_of_another_host_is_not_taken(power: Power) -> None:
    """The bucket was restored and mounted elsewhere: this mount turns read-only and keeps its state."""
    older = dict(power.store.objects)
    async with power.session("a", tasks=False) as session:
        await session.close()
    async with power.session("a", tasks=False) as session:
        await ship(session, 1, 2)
        put_back(power, older)
        async with power.session("b", tasks=False) as other:
            await ship(other, 3)
        with pytest.raises(FencedError):
            await session.flush()
        assert session.status.state is MountState.FENCED


async def test_pack_that_is_not_cached_is_reported_and_marked(
    power: Power, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing pack without cached copies is reported and marked as damaged."""
    async with power.session("a", tasks=False) as session:
        inos = await ship(session, 1)
        older = dict(power.store.objects)
        inos |= await ship(session, 2, 3)
        located = session.cache.located(inos[2], 0)  # type: ignore[arg-type]  # an index
        assert located is not None
        await session.durability.sync_all()
        session.db.begin_local()
        session.cache.drop_copy(located.block)
        session.db.commit()
        put_back(power, older)
        await session.flush()
        [mark] = [one for one in damage_marks.marks(session.db) if one.pack == located.pack]
        again = write_file(session, b"2" * 5000)
        await session.flush_at_end()
        await session.close()
    assert mark.pack_offset is None
    assert "is missing since the bucket was put back" in caplog.text
    async with power.session("c", options=READ_ONLY, tasks=False) as session:
        for ino in (inos[1], inos[3], inos[2], again):  # the lost one is healed by it
            assert len(await read_file(session, ino)) == 5000


class _NoImages(FaultyStore):
    """A store that refuses images for a while."""

    refuses = False

    @override
    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Store anything else."""
        if self.refuses and key.startswith("image/"):
            raise StoreUnavailableError(key, 1, 0.0, "away")
        return await super().create(key, data)


@pytest.mark.parametrize("killed", [False, True], ids=["goes on", "killed"])
async def test_failed_repair_is_not_reported_as_success(power: Power, killed: bool) -> None:
    """The next flush tries it again; after a kill fsck -y does, while a mount refuses."""
    store = _NoImages(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        inos = await ship(session, 1)
        older = dict(power.store.objects)
        inos |= await ship(session, 2)
        put_back(power, older)
        store.refuses = True
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                await session.flush()
        store.refuses = False
        if not killed:
            await session.flush()
    if killed:
        with pytest.raises(OlderBucketError):
            async with power.session("a"):
                pass
        async with power.session("a", options=OpenOptions(mend=Mend()), tasks=False) as session:
            await session.publish_anew()
            await session.close()
    await require_all(power, inos)


async def test_check_costs_at_most_one_request_for_each_txg(power: Power) -> None:
    """The request is small."""
    faulty = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=faulty) as session:
        await ship(session, 1, 2)
        session.db.begin()
        session.db.counters.take_ino()
        session.db.commit()
        session.db.changed = True
        faulty.calls.clear()
        link = await session.shipper.ship()
        assert link is not None
        looks = [call for call in faulty.calls if key_of(Txg(link.txg - 1)) in str(call)]
        assert [call.method for call in looks] == ["get_range"]


# --- between two mounts --------------------------------------------------------------------------

FSCK = OpenOptions(mend=Mend())
PUBLISH = OpenOptions(mend=Mend(publish_local=True))


def quarantined(power: Power, host: str) -> list[Path]:
    """Return the local state of a host that was quarantined."""
    return list((power.home / host).glob("kept-*"))


async def shipped(power: Power, host: str, *numbers: int) -> dict[int, Ino]:
    """Mount, write a file for each number, unmount."""
    async with power.session(host, tasks=False) as session:
        inos = await ship(session, *numbers)
        await session.flush_at_end()
        await session.close()
    return inos


@pytest.mark.parametrize("before", ["a", "b"])
async def test_unmounted_state_is_published_if_no_other_host_wrote(
    power: Power, before: str
) -> None:
    """The lease is an earlier one of this host, or the one that this host's own lease replaced."""
    inos = await shipped(power, before, 1, 2)
    older = dict(power.store.objects)
    inos |= await shipped(power, "a", 3, 4)
    put_back(power, older)
    with pytest.raises(OlderBucketError, match="fsck -y"):
        async with power.session("a"):
            pass
    assert power.store.objects == older

    async with power.session("a", options=FSCK, tasks=False) as session:
        assert session.volume.mended
        await session.flush_at_end()
        await session.close()
    for key, data in older.items():
        assert key == "lease" or power.store.objects[key] == data
    assert quarantined(power, "a") == []
    await require_all(power, inos)


async def test_unmounted_state_needs_an_option_after_another_host(power: Power) -> None:
    """That host's txgs stay as points in time; the local state becomes the current one."""
    inos = await shipped(power, "a", 1)
    older = dict(power.store.objects)
    inos |= await shipped(power, "a", 2, 3, 4)
    put_back(power, older)
    await shipped(power, "b", 5)
    before = dict(power.store.objects)
    with pytest.raises(OlderBucketError, match="fsck -y --publish-local"):
        async with power.session("a", options=FSCK):
            pass
    assert power.store.objects == before

    async with power.session("a", options=PUBLISH, tasks=False) as session:
        assert session.volume.mended
        await session.flush_at_end()
        await session.close()
    for key, data in before.items():
        assert key == "lease" or power.store.objects[key] == data
    assert quarantined(power, "a") == []
    await require_all(power, inos)
    bucket = await bucket_of(power)
    newest = await bucket.find(PointInTime("newest"))
    async with aclosing(txg_log.backwards(bucket, newest, Txg(0))) as found:
        read = [one.txg async for one in found if isinstance(one, chain.Fetched)]
    last_of_theirs = max(txg for txg in read if key_of(txg) in before)
    assert set(range(1, last_of_theirs + 1)) <= set(read)
    link = await bucket.find(PointInTime("theirs", txg=last_of_theirs))
    await bucket.restore(link, power.home / "theirs.db")
    async with power.session("b", options=READ_ONLY, tasks=False) as session:
        assert await read_file(session, inos[4]) == b"4" * 5000


async def test_interrupted_publication_never_follows_another_writer(power: Power) -> None:
    """A publication interrupted by a kill is not continued after another writer."""
    await shipped(power, "a", 1)
    older = dict(power.store.objects)
    await shipped(power, "a", 2, 3)
    put_back(power, older)
    await shipped(power, "b", 5)
    theirs = dict(power.store.objects)

    def die(step: str) -> None:
        if step == "fence confirmed":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with power.session("a", options=replace(PUBLISH, hook=die)):
            pass
    last = max(Txg(txg) for txg in range(1, 20) if key_of(Txg(txg)) in theirs)
    mend = OpenOptions(force_takeover=True, mend=Mend(last))
    async with power.session("b", options=mend, tasks=False) as session:
        inos = await ship(session, 6)
        await session.flush_at_end()
        await session.close()

    async with power.session("a", tasks=False) as session:
        assert await read_file(session, inos[6]) == b"6" * 5000
        assert any("recover-state" in notice for notice in session.volume.notices)
    assert len(quarantined(power, "a")) == 1


@pytest.mark.parametrize("step", ["fence put", "fence confirmed"])
async def test_next_mount_of_this_host_finishes_an_interrupted_publication(
    power: Power, step: str
) -> None:
    """Killed between the fence record and the image; other hosts see the local state after it."""
    inos = await shipped(power, "a", 1)
    older = dict(power.store.objects)
    inos |= await shipped(power, "a", 2, 3)
    put_back(power, older)
    await shipped(power, "b", 5)

    def die(now: str) -> None:
        if now == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with power.session("a", options=replace(PUBLISH, hook=die)):
            pass

    async with power.session("a", tasks=False) as session:
        await session.flush_at_end()
        await session.close()

    assert quarantined(power, "a") == []
    await require_all(power, inos)
