"""A lease that is lost while a host holds it: the host restores the lease or reports an error."""

import pytest
import trio
import trio.testing

from s3fs_meta.bucket_errors import LostLeaseError, OlderBucketError
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.lease import Lease
from s3fs_meta.errors import FencedError, ReadOnlyStateError
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from s3fs_meta.mount_state import MountState
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.chain.abandoned_txgs import Mend
from s3fs_meta.sync.lease.keeper import Hold, LeaseKeeper, new_nonce
from s3fs_meta.sync.lease.lease_repair import mend_lease
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.polling import WAIT_S_MAX
from tests.sync.conftest import TAKEOVER, Power, read_file, unmount, write_file
from tests.tasks import held

pytestmark = pytest.mark.thorough

DAMAGES = ["missing", "rotten", "huge", "empty"]


def _lose_lease(store: MemoryStore, damage: str) -> None:
    sizes = {"rotten": 9, "huge": TEXT_OBJECT_BYTES_MAX + 1, "empty": 0}
    if damage == "missing":
        del store.objects[lease_codec.KEY]
    else:
        store.objects[lease_codec.KEY] = b"r" * sizes[damage]


def _lease_in(store: MemoryStore) -> Lease:
    return lease_codec.decode(lease_codec.KEY, store.objects[lease_codec.KEY])


def _lose_last_changelog(power: Power, session: Session) -> None:
    del power.store.objects[changelog_codec.key_of(session.link.txg)]


@pytest.mark.parametrize("news", [True, False], ids=["news", "nothing new"])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_flush_restores_a_lost_lease(power: Power, damage: str, news: bool) -> None:
    """A flush restores a lost lease if the last changelog shows that this host is the writer."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"before")
        await session.flush()
        before = _lease_in(power.store)
        _lose_lease(power.store, damage)
        if news:
            ino = write_file(session, b"after")

        await session.flush()

        assert _lease_in(power.store) == before
        assert session.status.state is MountState.SERVING
        await session.make_image()
        await unmount(session)
    assert _lease_in(power.store).released
    async with power.session("b") as session:
        assert await read_file(session, ino) == (b"after" if news else b"before")


async def test_upload_of_an_image_restores_a_lost_lease(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        write_file(session, b"content")
        await session.flush()
        with trio.fail_after(WAIT_S_MAX):
            _lose_lease(power.store, "missing")
            await session.make_image()
        assert _lease_in(power.store).head == session.volume.keeper.lease.head
        await session.close()


@pytest.mark.parametrize("damage", DAMAGES)
async def test_fenced_host_does_not_restore_its_lease(power: Power, damage: str) -> None:
    """A lost lease is not restored if the chain contains the fence record of another host."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"of a")
        await session.flush()
        async with power.session("b", options=TAKEOVER, tasks=False):
            _lose_lease(power.store, damage)
            lost = power.store.objects.get(lease_codec.KEY)

            with pytest.raises(FencedError):
                await session.flush()

        assert power.store.objects.get(lease_codec.KEY) == lost
        assert session.status.state is MountState.FENCED


async def test_new_holder_restores_its_lease_before_it_appends_its_fence_record(
    power: Power,
) -> None:
    """Until a fence record is appended, only the new holder knows which lease it replaced."""
    store = power.store
    first, second = (LeaseKeeper(store, power.clock) for _ in range(2))
    await first.acquire(Hold("one", (new_nonce(),)), force=True)
    await second.acquire(Hold("two", (new_nonce(),)), force=True)
    _lose_lease(store, "missing")
    with pytest.raises(LostLeaseError) as lost:
        await first.require_hold()
    await first.put_back(lost.value)

    with pytest.raises(OlderBucketError):
        await second.require_hold()

    assert _lease_in(store) == second.lease
    with pytest.raises(FencedError):
        await first.require_hold()


async def test_lost_lease_is_not_restored_if_the_last_changelog_is_missing(power: Power) -> None:
    """A mount that cannot restore its lease is read-only, advises fsck and keeps its changes."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"shipped")
        await session.flush()
        _lose_lease(power.store, "missing")
        _lose_last_changelog(power, session)
        ino = write_file(session, b"not shipped")

        with pytest.raises(LostLeaseError, match="fsck -y here"):
            await session.flush()

        assert lease_codec.KEY not in power.store.objects
        assert session.status.state is MountState.DEGRADED
        with pytest.raises(ReadOnlyStateError, match="fsck -y here"):
            await session.flush()
        assert await read_file(session, ino) == b"not shipped"
        await session.close()

    await mend_lease(power.store, (await power.keys()).keyring, power.clock)
    async with power.session("a", options=OpenOptions(mend=Mend())) as session:
        assert await read_file(session, ino) == b"not shipped"


@pytest.mark.parametrize("has_tombstone", [True, False])
async def test_lost_lease_is_not_restored_in_a_removed_filesystem(
    power: Power, has_tombstone: bool
) -> None:
    """A changelog shipped during destroy may still exist, but the superblock is removed."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"shipped")
        await session.flush()
        _lose_lease(power.store, "missing")
        del power.store.objects[superblock_codec.COPY_KEY]
        if has_tombstone:
            tombstone = superblock_codec.encode_tombstone("test")
            power.store.objects[superblock_codec.KEY] = tombstone
        else:
            del power.store.objects[superblock_codec.KEY]
        before = dict(power.store.objects)

        with pytest.raises(LostLeaseError, match="superblock is removed, as after"):
            await session.flush_now()

        assert power.store.objects == before
        assert session.status.state is MountState.DEGRADED


@pytest.mark.parametrize("check", ["require_shipped", "require_hold"])
async def test_lost_lease_is_restored_while_another_task_appends_a_txg(
    power: Power, check: str
) -> None:
    """A check of the lease must not mistake a txg that this host appends for a foreign txg."""
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        write_file(session, b"before")
        await session.flush()
        before = _lease_in(power.store)
        _lose_lease(power.store, "missing")
        async with held(store.hold("get_range"), getattr(session.shipper, check)) as nursery:
            ino = write_file(session, b"after")
            nursery.start_soon(session.flush)
            await trio.testing.wait_all_tasks_blocked(0.05)

        assert session.status.state is MountState.SERVING
        assert _lease_in(power.store) == before
        await unmount(session)
    async with power.session("b") as session:
        assert await read_file(session, ino) == b"after"
