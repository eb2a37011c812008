"""Promotion: a follower becomes the writer."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
import trio
import trio.testing
from typing_extensions import override

from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec.changelog import Kind
from s3fs_meta.errors import (
    DatabaseError,
    FencedError,
    HeldError,
    ReadOnlyStateError,
    TransientStoreError,
    UsageError,
)
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import Ino, ObjectKey
from s3fs_meta.mount_state import MountState
from s3fs_meta.objects.contract import ETag, ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.hooks import TAKEOVER_STEPS, Hook, no_hook
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.polling import WAIT_S_MAX, until
from tests.sync.conftest import (
    TAKEOVER,
    Power,
    read_file,
    remove_file,
    ship,
    unmount,
    write_file,
)
from tests.sync.follower.following import FOLLOWS, READS, following
from tests.sync.kept import forget
from tests.sync.kills import KillAt

pytestmark = pytest.mark.thorough


class FenceStore(FaultyStore):
    """A store that runs a hook before it creates a changelog, and can fail in two ways."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.before: Callable[[], Awaitable[None]] | None = None
        self.loses_reply = False
        self.refuses_lease = False

    @override
    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        """Replace an object, unless it is a lease that the store refuses."""
        if self.refuses_lease and key == lease_codec.KEY:
            raise TransientStoreError(key, "no connection")
        return await super().replace(key, data, etag)

    @override
    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Create an object; before a changelog is created, run the hook."""
        if not key.startswith("changelog/"):
            return await super().create(key, data)
        if self.before is not None:
            before, self.before = self.before, None
            await before()
        etag = await super().create(key, data)
        if self.loses_reply:
            self.loses_reply = False
            raise TransientStoreError(key, "no reply")
        return etag


class Killed(BaseException):
    """Raised to simulate that SIGKILL ends the process."""


class KillingStore(FaultyStore):
    """A store that simulates a kill before or after a chosen conditional write."""

    def __init__(self, inner: ObjectStore, change: int) -> None:
        super().__init__(inner)
        self._left = change
        self.killed = False

    def _count_change(self) -> None:
        self._left -= 1
        if self._left < 0:
            self.killed = True
            raise Killed

    @override
    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Create an object, and raise Killed before or after the chosen write."""
        self._count_change()
        etag = await super().create(key, data)
        self._count_change()
        return etag

    @override
    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        """Replace an object, and raise Killed before or after the chosen write."""
        self._count_change()
        new_etag = await super().replace(key, data, etag)
        self._count_change()
        return new_etag


async def test_promoted_follower_writes_and_fences_the_former_writer(power: Power) -> None:
    """A promoted follower has the lease and a fence record, and can write files."""
    async with power.session("a") as writer:
        kept, gone = write_file(writer, b"kept"), write_file(writer, b"gone" * 30_000)
        await ship(writer)
        async with following(power) as (session, _listener):
            await read_file(session, gone)
            link = await session.promote(force=True)

            fence = await chain.fetch(
                power.store, session.volume.keyring, session.volume.superblock.uuid, link.txg
            )
            assert fence.changelog.kind is Kind.FENCE
            assert fence.changelog.epoch == session.volume.keeper.epoch
            assert session.status.state is MountState.SERVING
            assert session.db.counters.block_bytes == 120_004
            remove_file(session, gone)
            new = write_file(session, b"new")
            await ship(session)
            await session.close()
        write_file(writer, b"not shipped")
        with pytest.raises(FencedError):
            await writer.shipper.ship()
        assert writer.status.state is MountState.FENCED

    async with power.session("c") as session:
        assert await read_file(session, new) == b"new"
        assert await read_file(session, kept) == b"kept"
        assert session.db.counters.inodes == 3


async def test_promotion_is_refused_while_another_host_has_the_lease(power: Power) -> None:
    """If a promotion is refused, the writer and the follower continue as before."""
    async with power.session("a") as writer, following(power) as (session, listener):
        before = dict(power.store.objects)
        with pytest.raises(HeldError):
            await session.promote()
        assert power.store.objects == before

        ino = write_file(writer, b"x")
        await listener.wait_for(await ship(writer))
        assert await read_file(session, ino) == b"x"


async def test_promotion_after_a_clean_unmount_of_the_writer_needs_no_force(power: Power) -> None:
    async with following(power) as (session, _listener):
        assert session.follower is not None
        async with session.follower.paused(), power.session("a") as writer:
            # The follower is promoted before it has polled the last txg.
            ino = write_file(writer, b"last")
            await writer.flush()
            await writer.close()
        await session.promote()
        assert await read_file(session, ino) == b"last"
        assert session.status.writable


async def test_promotion_restores_the_newest_state_if_the_next_changelogs_were_deleted(
    power: Power,
) -> None:
    """A fence record with the key of a deleted changelog would fork the chain."""
    await power.retain(0)
    async with following(power) as (other, listener):
        assert other.follower is not None
        async with power.session("a", tasks=False) as writer:
            old = write_file(writer, b"old")
            await listener.wait_for(await ship(writer))
            async with other.follower.paused():
                remove_file(writer, old)
                new = write_file(writer, b"new")
                await forget(writer)
                await unmount(writer)
        last = writer.link.txg
        assert changelog_codec.key_of(other.link.next_txg) not in power.store.objects
        await other.promote()
        assert other.link.txg > last
        assert await read_file(other, new) == b"new"
        assert inodes.find(other.db, old) is None


async def test_only_a_follower_can_be_promoted(power: Power) -> None:
    async with power.session("a") as writer:
        with pytest.raises(UsageError, match="ro,follow"):
            await writer.promote(force=True)
    async with following(power) as (session, _listener):
        await session.promote(force=True)
        with pytest.raises(UsageError, match="serving"):
            await session.promote(force=True)


async def test_promotion_applies_a_changelog_appended_during_the_promotion(power: Power) -> None:
    """The promotion applies a changelog that the old writer appends before the fence record."""
    async with power.session("a", tasks=False) as writer:
        await writer.flush()
        ino = write_file(writer, b"last moment")
        store = FenceStore(power.store)

        async def append() -> None:
            # The flush of the old writer fails, although its changelog is in the bucket.
            with pytest.raises(FencedError):
                await writer.flush()

        store.before = append
        async with power.session(
            "b", options=READS, session_options=FOLLOWS, store=store, tasks=False
        ) as session:
            await session.promote(force=True)

            assert await read_file(session, ino) == b"last moment"
            assert session.status.writable


async def test_promotion_can_be_retried_after_a_failure(power: Power) -> None:
    """If the response is lost, a follower cannot know whether its fence record is stored."""
    async with power.session("a"):
        pass
    store = FenceStore(power.store)
    async with power.session(
        "b", options=READS, session_options=FOLLOWS, store=store, tasks=False
    ) as session:
        assert session.follower is not None
        store.loses_reply = True
        with pytest.raises(TransientStoreError):
            await session.promote(force=True)
        assert session.status.state is MountState.FOLLOWING
        lost = ObjectKey(changelog_codec.key_of(session.follower.link.next_txg))
        assert lost in power.store.objects

        link = await session.promote()  # The failed promotion has acquired the lease.

        assert changelog_codec.key_of(link.txg) > lost
        ino = write_file(session, b"x")
        await ship(session)
        await session.close()
    async with power.session("c") as session:
        assert await read_file(session, ino) == b"x"


@pytest.mark.parametrize("is_stored", [True, False])
async def test_unmount_after_a_failed_promotion_releases_the_lease(
    power: Power, is_stored: bool
) -> None:
    """After the unmount another host can write, whether or not the fence record was stored."""
    async with power.session("a") as writer:
        ino = write_file(writer, b"shipped")
        await unmount(writer)
    store = FenceStore(power.store)
    store.loses_reply = is_stored

    async def fail() -> None:
        if not is_stored:
            raise TransientStoreError(ObjectKey("changelog"), "no connection")

    store.before = fail
    async with power.session(
        "b", options=READS, session_options=FOLLOWS, store=store, tasks=False
    ) as session:
        with pytest.raises(TransientStoreError):
            await session.promote()
        assert session.volume.keeper.is_held
        await session.close()

    for host in ("c", "b"):
        async with power.session(host) as session:
            assert await read_file(session, ino) == b"shipped"
            await unmount(session)


async def _lose_connection() -> None:
    raise TransientStoreError(ObjectKey("changelog"), "no connection")


async def test_unmount_after_a_failed_promotion_keeps_the_lease_of_a_later_host(
    power: Power,
) -> None:
    """A second promotion reads the other host's lease, which this host must not release."""
    store = FenceStore(power.store)
    store.before = _lose_connection
    async with power.session(
        "b", options=READS, session_options=FOLLOWS, store=store, tasks=False
    ) as session:
        with pytest.raises(TransientStoreError):
            await session.promote()
        async with power.session("c", options=TAKEOVER, tasks=False) as writer:
            with pytest.raises(HeldError):
                await session.promote()
            await session.close()

            held = lease_codec.decode(lease_codec.KEY, power.store.objects[lease_codec.KEY])
            assert held == writer.volume.keeper.lease
            await unmount(writer)
    async with power.session("b") as again:
        assert again.status.writable


@pytest.mark.parametrize("way", ["promotion", "mount"])
@pytest.mark.parametrize("has_image", [False, True])
async def test_host_appends_no_fence_record_after_the_takeover_by_another_host(
    power: Power, way: str, has_image: bool
) -> None:
    """A late fence record would end the chain of the other host and make both hosts read-only."""
    store = FenceStore(power.store)
    async with AsyncExitStack() as opened:
        writers: list[Session] = []

        async def take_over() -> None:
            writer = await opened.enter_async_context(
                power.session("c", options=TAKEOVER, tasks=False)
            )
            # The host that lost the lease restores this image, and reads the lease to find it.
            if has_image:
                await writer.publish_as_txg()
            writers.append(writer)

        if way == "mount":
            store.before = take_over
            with pytest.raises(HeldError):
                await opened.enter_async_context(power.session("b", store=store, tasks=False))
        else:
            session = await opened.enter_async_context(
                power.session("b", options=READS, session_options=FOLLOWS, store=store, tasks=False)
            )
            store.before = take_over
            with pytest.raises(HeldError):
                await session.promote()
            assert not session.status.writable
            await session.close()

        [writer] = writers
        write_file(writer, b"written after it")
        await ship(writer)
        assert writer.status.writable
        await unmount(writer)


@pytest.mark.parametrize("is_stored", [True, False])
async def test_former_writer_retries_its_promotion_after_a_failure(
    power: Power, is_stored: bool
) -> None:
    """The database has the nonces of the earlier mount, but not that of the failed promotion."""
    async with power.session("b", tasks=False) as writer:
        await unmount(writer)
    store = FenceStore(power.store)
    store.loses_reply = is_stored
    store.before = None if is_stored else _lose_connection
    async with power.session(
        "b", options=READS, session_options=FOLLOWS, store=store, tasks=False
    ) as session:
        with pytest.raises(TransientStoreError):
            await session.promote()
        await session.promote()
        assert session.status.writable


async def test_host_writes_after_an_unmount_that_could_not_release_its_lease(power: Power) -> None:
    """The host recognises the last fence record as its own, not as one of a copied directory."""
    async with power.session("b", tasks=False) as writer:
        await unmount(writer)
    store = FenceStore(power.store)
    async with power.session(
        "b", options=READS, session_options=FOLLOWS, store=store, tasks=False
    ) as session:
        store.loses_reply = True
        with pytest.raises(TransientStoreError):
            await session.promote()
        store.refuses_lease = True
        with pytest.raises(TransientStoreError):
            await session.close()
    async with power.session("b", tasks=False) as session:
        assert session.status.writable


async def test_promotion_can_be_retried_if_the_local_disk_fails_at_its_end(power: Power) -> None:
    """The mount follows until its promotion succeeds; then it runs the tasks of a writer."""
    async with following(power) as (session, _listener):
        session.db.connection.pragma("query_only", True)
        with pytest.raises(DatabaseError):
            await session.promote()
        session.db.connection.pragma("query_only", False)
        follower = session.follower
        assert follower is not None
        before_ns = follower.polled_ns
        await until(lambda: follower.polled_ns > before_ns)

        await session.promote()
        write_file(session, b"written after it")
        session.durability.commit()
        await session.shipper.wait_until_shipped(WAIT_S_MAX)


async def test_unmount_during_a_promotion_releases_the_lease(power: Power) -> None:
    """A follower that is unmounted during its promotion accepts no changes."""
    store = FenceStore(power.store)
    async with power.session("b", options=READS, session_options=FOLLOWS, store=store) as session:

        async def end() -> None:
            session.status.enter(MountState.STOPPING, "umount --force")
            await trio.lowlevel.checkpoint()

        store.before = end
        with pytest.raises(ReadOnlyStateError, match="umount --force"):
            await session.promote(force=True)
        assert not session.status.writable
        await unmount(session)
    async with power.session("c") as session:
        assert session.volume.keeper.is_held


async def _promote_until_killed(
    power: Power, killed: Callable[[], bool], store: ObjectStore | None = None, hook: Hook = no_hook
) -> None:
    try:
        async with power.session(
            "b", options=READS, session_options=FOLLOWS, store=store, hook=hook, tasks=False
        ) as session:
            await session.promote(force=True)
    except BaseException:  # noqa: ASYNC103 - the simulated kill is expected
        if not killed():
            raise


# A promotion makes six conditional writes: four probes, the lease and the fence record.
_CHANGES = 2 + 1 + 2 + 1 + 2 + 2


async def _requires_what_was_shipped(power: Power, ino: Ino, goes_on: str) -> None:
    """Require that the killed host and another host can read the shipped file."""
    if goes_on == "follows":
        async with following(power) as (session, _listener):
            assert await read_file(session, ino) == b"shipped"
            assert session.volume.notices == ()
            await session.promote(force=True)
    async with power.session("b", options=OpenOptions(force_takeover=True)) as session:
        assert await read_file(session, ino) == b"shipped"
        second = write_file(session, b"second")
        await ship(session)
        assert session.volume.notices == ()
        await session.close()
    async with power.session("c") as session:
        assert await read_file(session, second) == b"second"


@pytest.mark.parametrize("goes_on", ["follows", "writes"])
@pytest.mark.parametrize("step", TAKEOVER_STEPS)
async def test_kill_after_any_step_of_a_promotion_loses_no_shipped_data(
    power: Power, step: str, goes_on: str
) -> None:
    """A kill during a promotion loses no shipped data, and both hosts can continue."""
    kill = KillAt(step, armed=True)
    async with power.session("a", tasks=False) as writer:
        ino = write_file(writer, b"shipped")
        await ship(writer)
    await _promote_until_killed(power, lambda: kill.reached, hook=kill)
    assert kill.reached

    await _requires_what_was_shipped(power, ino, goes_on)


@pytest.mark.parametrize("step", TAKEOVER_STEPS)
async def test_follower_killed_during_its_promotion_can_be_mounted_for_writing(
    power: Power, step: str
) -> None:
    """A follower that has applied txgs recounts its totals, despite an unsent fence record."""
    kill = KillAt(step, armed=True)
    async with power.session("a", tasks=False) as writer:
        ino = write_file(writer, b"shipped")
        try:
            async with power.session(
                "b", options=READS, session_options=FOLLOWS, hook=kill, tasks=False
            ) as session:
                await ship(writer)
                assert session.follower is not None
                await session.follower.poll_once()
                await unmount(writer)
                await session.promote()
        except BaseException:  # noqa: ASYNC103 - the simulated kill is expected
            if not kill.reached:
                raise
    assert kill.reached
    async with power.session("b", tasks=False) as session:
        assert await read_file(session, ino) == b"shipped"
        assert session.volume.notices == ()


@pytest.mark.parametrize("goes_on", ["follows", "writes"])
@pytest.mark.parametrize("change", range(_CHANGES + 1))
async def test_kill_at_any_write_of_a_promotion_loses_no_shipped_data(
    power: Power, change: int, goes_on: str
) -> None:
    """A host that is killed during its promotion can follow or write again."""
    async with power.session("a", tasks=False) as writer:
        ino = write_file(writer, b"shipped")
        await ship(writer)
    store = KillingStore(power.store, change)
    await _promote_until_killed(power, lambda: store.killed, store)
    assert store.killed is (change < _CHANGES)

    await _requires_what_was_shipped(power, ino, goes_on)


async def test_promoted_writer_uploads_in_the_background(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with power.session("a") as session:
        await session.flush()
        await session.close()
    rarely = replace(FOLLOWS, poll_interval_s=3600)
    async with power.session("b", options=READS, session_options=rarely) as session:
        follower = session.follower
        assert follower is not None
        close = follower.close

        async def close_slowly() -> None:
            await close()
            await trio.testing.wait_all_tasks_blocked()

        monkeypatch.setattr(follower, "close", close_slowly)
        await trio.testing.wait_all_tasks_blocked()
        await follower.poll_once()  # The follower is waiting for its next poll.
        await trio.testing.wait_all_tasks_blocked()
        await session.promote()
        write_file(session, b"written after it")
        before = session.link.txg
        session.durability.commit()

        await session.shipper.wait_until_shipped(WAIT_S_MAX)

        assert session.link.txg > before
