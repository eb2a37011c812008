"""A bucket that is replaced by an older copy, during a mount or between mounts."""

import secrets
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
from typing_extensions import override

from s3fs_meta.bucket_errors import OlderBucketError
from s3fs_meta.codec.changelog import Kind, key_of
from s3fs_meta.errors import FencedError, HeldError, NoSpaceLeftError, StoreUnavailableError
from s3fs_meta.limits import MIB, WAL_BYTES_MAX
from s3fs_meta.meta.tables import damage_marks, local_state
from s3fs_meta.model import Ino, ObjectKey, PointInTime, Txg
from s3fs_meta.mount_state import MountState
from s3fs_meta.objects.contract import ETag
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.chain import abandoned_txgs, chain
from s3fs_meta.sync.chain.abandoned_txgs import Mend
from s3fs_meta.sync.history.versions import txg_log
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.upload.bounds import UploadBounds
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore, StoreGate
from tests.polling import until
from tests.sync.conftest import Power, location_of, read_file, unmount, write_file
from tests.sync.history.readers import bucket_of
from tests.tasks import held

pytestmark = pytest.mark.thorough

READ_ONLY = OpenOptions(read_only=True)


async def ship(session: Session, *numbers: int) -> dict[int, Ino]:
    """Write a file for each number, and ship each file in a separate txg."""
    inos = {}
    for number in numbers:
        inos[number] = write_file(session, b"%d" % number * 5000)
        await session.flush()
    return inos


def put_back(power: Power, older: Mapping[ObjectKey, bytes]) -> None:
    """Replace the content of the bucket with an older copy."""
    power.store.objects.clear()
    power.store.objects.update(older)


async def require_all(power: Power, inos: Mapping[int, Ino], host: str = "c") -> None:
    """Require that a host without local state can read all files."""
    async with power.session(host, options=READ_ONLY, tasks=False) as session:
        for number, ino in inos.items():
            assert await read_file(session, ino) == b"%d" % number * 5000
        assert session.volume.notices == ()


@pytest.mark.parametrize("end", ["a change", "nothing", "unmount", "fsync=remote"])
async def test_running_mount_repairs_a_bucket_replaced_by_an_older_copy(
    power: Power, end: str
) -> None:
    """A running mount publishes an image and uploads missing packs from the cache."""
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
        await unmount(session)
    await require_all(power, inos, "d")
    async with power.session("a", tasks=False) as session:
        assert session.volume.notices == ()


async def test_repair_of_an_older_bucket_ships_an_image_before_changelogs(power: Power) -> None:
    """After the image that repairs an older bucket, a mount ships changelogs as usual."""
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


async def test_writer_restores_its_own_lease_in_an_older_bucket(power: Power) -> None:
    """The lease in the older bucket belongs to this host, so the host may replace it."""
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
        await unmount(session)
    async with power.session("a", tasks=False) as session:
        assert session.volume.notices == ()


async def test_several_tasks_may_notice_an_older_lease_at_the_same_time(power: Power) -> None:
    """If several tasks notice the older lease, one task restores it and all calls succeed."""
    inos = await shipped(power, "a", 1)
    older = dict(power.store.objects)
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        inos |= await ship(session, 2)
        put_back(power, older)
        async with held(store.hold("replace"), session.flush) as nursery:
            nursery.start_soon(session.flush)
            await trio.testing.wait_all_tasks_blocked(0.05)
        assert session.status.state is MountState.SERVING
        await require_all(power, inos)
        await unmount(session)


@pytest.mark.parametrize("step", ["image pieces put", "image manifest put"])
async def test_writer_restores_its_own_lease_after_a_reset_during_an_image(
    power: Power, step: str
) -> None:
    """If the bucket is reset during the upload of an image, the mount stays writable."""
    inos = await shipped(power, "a", 1)
    older = dict(power.store.objects)
    resets: list[str] = []

    def reset(now: str) -> None:
        if now == step and not resets:
            resets.append(now)
            put_back(power, older)

    async with power.session("a", tasks=False, hook=reset) as session:
        inos |= await ship(session, 2, 3)
        with pytest.raises(OlderBucketError):
            await session.make_image()
        await session.flush()
        assert session.status.state is MountState.SERVING
        await require_all(power, inos)
        await unmount(session)
    assert resets
    await require_all(power, inos, "d")


async def test_unmount_fails_if_the_bucket_is_reset_before_the_lease_is_released(
    power: Power,
) -> None:
    """The unmount keeps the lease, so that no other host writes to the older bucket."""
    inos = await shipped(power, "a", 1)
    older = dict(power.store.objects)
    async with power.session("a", tasks=False) as session:
        inos |= await ship(session, 2)
        await session.flush_at_end()
        put_back(power, older)
        with pytest.raises(OlderBucketError):
            await session.close()
    with pytest.raises(HeldError):
        async with power.session("b"):
            pass
    async with power.session("a", options=FSCK, tasks=False) as session:
        await unmount(session)
    await require_all(power, inos)


async def test_writer_does_not_replace_the_lease_of_another_host_in_an_older_bucket(
    power: Power,
) -> None:
    """A mount turns read-only if another host has mounted the older bucket."""
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


async def test_lease_that_is_read_after_a_lost_reply_may_be_from_an_older_bucket(
    power: Power,
) -> None:
    """If a read finds an older lease of this host, the writer stores its current lease."""
    await shipped(power, "a", 1)
    older = dict(power.store.objects)
    async with power.session("a", tasks=False) as session:
        await ship(session, 2)
        keeper = session.volume.keeper
        lease = keeper.lease
        put_back(power, older)
        with pytest.raises(OlderBucketError):
            await keeper.reread()
        assert (keeper.lease, await keeper.reread()) == (lease, lease)
        await session.flush()
        assert session.status.state is MountState.SERVING


async def test_missing_pack_without_cached_blocks_is_reported_and_marked_as_damaged(
    power: Power, caplog: pytest.LogCaptureFixture
) -> None:
    async with power.session("a", tasks=False) as session:
        inos = await ship(session, 1)
        older = dict(power.store.objects)
        inos |= await ship(session, 2, 3)
        located = location_of(session, inos[2])
        await session.durability.sync_all()
        session.db.begin_local()
        session.cache.drop_copy(located.block)
        session.db.commit()
        put_back(power, older)
        await session.flush()
        [mark] = [one for one in damage_marks.marks(session.db) if one.pack == located.pack]
        again = write_file(session, b"2" * 5000)
        await unmount(session)
    assert mark.pack_offset is None
    assert "has been missing since the bucket was reset" in caplog.text
    async with power.session("c", options=READ_ONLY, tasks=False) as session:
        # The lost block was healed, because its content was written again.
        for ino in (inos[1], inos[3], inos[2], again):
            assert len(await read_file(session, ino)) == 5000


class _NoImages(FaultyStore):
    """A store that refuses to create images while *refuses* is set."""

    refuses = False

    @override
    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Create an object, but refuse objects of images while *refuses* is set."""
        if self.refuses and key.startswith("image/"):
            raise StoreUnavailableError(key, 1, 0.0, "away")
        return await super().create(key, data)


@pytest.mark.parametrize("killed", [False, True], ids=["goes on", "killed"])
async def test_flush_fails_while_an_older_bucket_cannot_be_repaired(
    power: Power, killed: bool
) -> None:
    """If the repair of an older bucket fails, the next flush retries the repair.

    If the writer is killed, a mount is refused until fsck -y repairs the bucket.
    """
    store = _NoImages(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        inos = await ship(session, 1)
        older = dict(power.store.objects)
        inos |= await ship(session, 2)
        put_back(power, older)
        store.refuses = True
        with pytest.raises(StoreUnavailableError):
            await session.flush()
        inos[3] = write_file(session, b"3" * 5000)
        session.db.commit()
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                await session.flush()
            assert session.shipper.oldest_ns > 0
        store.refuses = False
        if not killed:
            await session.flush()
    if killed:
        with pytest.raises(OlderBucketError):
            async with power.session("a"):
                pass
        async with power.session("a", options=OpenOptions(mend=Mend()), tasks=False) as session:
            await session.publish_as_txg()
            await session.close()
    await require_all(power, inos)


@pytest.mark.parametrize("what", ["flush", "image"])
async def test_full_disk_postpones_the_image_that_repairs_an_older_bucket(
    power: Power, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """If the disk has no space for an image, the mount continues and retries later."""
    async with power.session("a", tasks=False) as session:
        inos = await ship(session, 1)
        older = dict(power.store.objects)
        inos |= await ship(session, 2)
        put_back(power, older)
        lost = session.link.txg
        inos[3] = write_file(session, b"3" * 5000)
        with monkeypatch.context() as patch:
            patch.setattr(session.cache.disk, "spare_bytes", lambda: 0)
            work = session.flush if what == "flush" else session.make_image
            first = NoSpaceLeftError if what == "flush" else OlderBucketError
            for error in (first, NoSpaceLeftError):
                with pytest.raises(error):
                    await work()
        assert abandoned_txgs.wanted(session.db) is not None
        # The next append notices the reset; no further txg precedes the image.
        assert key_of(Txg(lost + 2)) not in power.store.objects

        await session.flush()
        assert session.status.state is MountState.SERVING
        await require_all(power, inos)


async def test_check_for_an_older_bucket_sends_one_request_per_txg(power: Power) -> None:
    """A small range read checks whether the last changelog still exists."""
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


class _HeldImages(FaultyStore):
    """A store that delays the creation of packs or images while *held* is set."""

    held: str | None = None

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.gate = StoreGate()

    @override
    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Create an object; if its key begins with *held*, wait first."""
        if self.held is not None and key.startswith(self.held):
            await self.gate.pass_through()
        return await super().create(key, data)


@pytest.mark.parametrize("prefix", ["pack/", "image/"])
async def test_wal_size_is_limited_while_an_older_bucket_is_repaired(
    power: Power, prefix: str
) -> None:
    """The image that repairs an older bucket must not keep its snapshot open during an outage."""
    store = _HeldImages(power.store)
    bounds, cuts = UploadBounds(image_wal_bytes=8 * MIB), list[str]()

    def hook(step: str) -> None:
        if step == "txg cut":
            cuts.append(step)

    async def until_cut(count: int) -> None:
        await until(lambda: len(cuts) >= count)

    async with power.session("a", tasks=False, store=store, hook=hook, bounds=bounds) as session:
        inos = await ship(session, 1)
        older = dict(power.store.objects)
        inos |= await ship(session, 2)
        put_back(power, older)
        session.db.begin_local()
        abandoned_txgs.want(session.db, abandoned_txgs.put_back("reset"))
        inos[3] = write_file(session, b"3" * 5000)
        store.held = prefix
        async with held(store.gate, session.flush):
            cuts.clear()
            for number in range(14):
                session.db.begin()
                local_state.put(session.db, "filler", secrets.token_hex(5 * MIB))
                inos[4 + number] = write_file(session, b"%d" % (4 + number) * 5000)
                session.db.commit()
                # The rows of two passes exceed image_wal_bytes.
                if prefix == "pack/" and number % 2:
                    await until_cut(number // 2 + 1)
                await trio.to_thread.run_sync(session.db.checkpoint)
            assert session.db.wal_bytes < WAL_BYTES_MAX + 30 * MIB
        await session.flush()
        assert session.status.state is MountState.SERVING
        await require_all(power, inos)


async def test_cancelled_upload_of_blocks_before_an_image_undoes_the_cut(power: Power) -> None:
    """If a cut is undone by a cancellation, the next flush ships its changes."""
    store = _HeldImages(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        inos = await ship(session, 1)
        session.db.begin_local()
        abandoned_txgs.want(session.db, abandoned_txgs.put_back("reset"))
        inos[2] = write_file(session, b"2" * 5000)
        session.db.commit()
        store.held = "pack/"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.flush)
            await store.gate.wait_started()
            nursery.cancel_scope.cancel()
        assert session.shipper.oldest_ns > 0
        assert session.db.changed
        store.held = None
        await session.flush()
        await require_all(power, inos)


# --- bucket replaced between two mounts ----------------------------------------------------------

FSCK = OpenOptions(mend=Mend())
PUBLISH = OpenOptions(mend=Mend(publish_local=True))


def quarantined(power: Power, host: str) -> list[Path]:
    """Return the directories that contain quarantined states of a host."""
    return list((power.home / host).glob("kept-*"))


async def shipped(power: Power, host: str, *numbers: int) -> dict[int, Ino]:
    """Mount, write and ship a file for each number, and unmount."""
    async with power.session(host, tasks=False) as session:
        inos = await ship(session, *numbers)
        await unmount(session)
    return inos


async def publish(power: Power, options: OpenOptions) -> None:
    """Publish the local state of host a, and require that nothing is lost or quarantined."""
    before = dict(power.store.objects)
    async with power.session("a", options=options, tasks=False) as session:
        assert session.volume.mended
        await unmount(session)
    for key, data in before.items():
        assert key == "lease" or power.store.objects[key] == data
    assert quarantined(power, "a") == []


@pytest.mark.parametrize("before", ["a", "b"])
async def test_fsck_publishes_the_local_state_if_no_other_host_wrote(
    power: Power, before: str
) -> None:
    """fsck publishes the local state if the older lease belongs to this host or its predecessor."""
    inos = await shipped(power, before, 1, 2)
    older = dict(power.store.objects)
    inos |= await shipped(power, "a", 3, 4)
    put_back(power, older)
    with pytest.raises(OlderBucketError, match="fsck -y"):
        async with power.session("a"):
            pass
    assert power.store.objects == older

    await publish(power, FSCK)
    await require_all(power, inos)


async def test_fsck_requires_the_publish_local_option_after_another_host_wrote(
    power: Power,
) -> None:
    """The txgs of the other host stay in the history, and the local state becomes current."""
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

    await publish(power, PUBLISH)
    await require_all(power, inos)
    bucket = await bucket_of(power)
    newest = await bucket.find(PointInTime("newest"))
    async with aclosing(txg_log.backwards(bucket, newest, Txg(0))) as found:
        read = [one.txg async for one in found if isinstance(one, chain.FetchedChangelog)]
    last_of_theirs = max(txg for txg in read if key_of(txg) in before)
    assert set(range(1, last_of_theirs + 1)) <= set(read)
    link = await bucket.find(PointInTime("theirs", txg=last_of_theirs))
    await bucket.restore(link, power.home / "theirs.db")
    async with power.session("b", options=READ_ONLY, tasks=False) as session:
        assert await read_file(session, inos[4]) == b"4" * 5000


async def test_interrupted_publication_is_not_resumed_after_another_host_wrote(
    power: Power,
) -> None:
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
        await unmount(session)

    async with power.session("a", tasks=False) as session:
        assert await read_file(session, inos[6]) == b"6" * 5000
        assert any("recover-state" in notice for notice in session.volume.notices)
    assert len(quarantined(power, "a")) == 1


@pytest.mark.parametrize("step", ["fence put", "fence confirmed"])
async def test_next_mount_of_this_host_completes_an_interrupted_publication(
    power: Power, step: str
) -> None:
    """After a kill, the publication has a fence record but no image."""
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
        await unmount(session)

    assert quarantined(power, "a") == []
    await require_all(power, inos)
