"""Offline mounts: reading local state while the bucket is unreachable."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from s3fs_meta import machine
from s3fs_meta.bucket_errors import OlderBucketError
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.errors import (
    MetadataError,
    OfflineError,
    PassphraseError,
    ReadOnlyStateError,
    StoreError,
)
from s3fs_meta.limits import OFFLINE_AFTER_S, TEXT_OBJECT_BYTES_MAX
from s3fs_meta.meta.tables import inodes, local_state
from s3fs_meta.model import AbbreviatedLink, Txg
from s3fs_meta.mount_state import MountState
from s3fs_meta.objects.retry import RetryingStore, RetryPolicy
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.offline import open_offline, why_unreachable
from s3fs_meta.sync.opening.opening import close_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.sync.volume import OpenOptions, Volume
from s3fs_meta.testing.faulty_store import ANY, FaultyStore
from tests.polling import WAIT_S_MAX
from tests.sync.conftest import Power, figures_of, location_of, read_file, write_file
from tests.sync.follower.following import FOLLOWS, READS

CONTENT = b"hello" * 1000
WHY = "there is no network"


async def offline(power: Power, host: str = "a", mark: AbbreviatedLink | None = None) -> Volume:
    """Open the local state of a host, with a store whose requests all fail."""
    store = FaultyStore(power.store)
    store.fail(ANY, times=1000)
    return await open_offline(
        store,
        StateDir(power.home / host),
        power.secret,
        power.clock,
        OpenOptions(read_only=True, at_least=mark),
        WHY,
    )


@asynccontextmanager
async def reading(power: Power) -> AsyncIterator[Session]:
    """Run a session on the local state of host a."""
    opened = await offline(power)
    session = Session(opened, SessionOptions(), power.clock)
    session.recover()
    session.start()
    try:
        yield session
    finally:
        with trio.fail_after(WAIT_S_MAX, shield=True):
            await close_filesystem(opened, release=True)


async def test_offline_mount_reads_cached_content_and_reports_the_outage(power: Power) -> None:
    """Cached content can be read offline, and the bucket does not change."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        await session.flush()
        await session.close()
    before = dict(power.store.objects)

    async with reading(power) as session:
        assert await read_file(session, ino) == CONTENT
        assert WHY in session.volume.offline
        assert any(WHY in notice for notice in session.volume.notices)
        with pytest.raises(ReadOnlyStateError):
            session.status.require_writable()
    assert power.store.objects == before
    async with power.session("b") as session:  # The lease in the bucket is unchanged.
        assert session.status.writable


async def test_offline_mount_shows_unshipped_changes(power: Power) -> None:
    """Unshipped changes of a killed mount are readable offline, and are shipped later."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        session.durability.commit()

    async with reading(power) as session:
        assert session.volume.crashed
        assert await read_file(session, ino) == CONTENT
    async with power.session("a") as session:
        assert await session.flush() is not None
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT


async def test_offline_read_of_uncached_content_fails_until_the_bucket_is_reachable(
    power: Power,
) -> None:
    """Offline, names are readable; content can be read when the bucket responds."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        await session.flush()
        await session.durability.sync_all()
        session.cache.evictor.evict_bytes(1 << 60)
        session.durability.commit()
        await session.close()
    store = FaultyStore(power.store)
    store.fail(ANY, times=1)
    opened = await open_offline(
        store,
        StateDir(power.home / "a"),
        power.secret,
        power.clock,
        OpenOptions(read_only=True),
        WHY,
    )
    session = Session(opened, SessionOptions(), power.clock)
    session.recover()
    session.start()
    try:
        with pytest.raises(StoreError, match="store"):
            await read_file(session, ino)
        assert await read_file(session, ino) == CONTENT
    finally:
        with trio.fail_after(WAIT_S_MAX, shield=True):
            await close_filesystem(opened, release=True)


@asynccontextmanager
async def following(power: Power, store: FaultyStore, host: str = "b") -> AsyncIterator[Session]:
    """Run a follower that is started while the store does not respond."""
    opened = await open_offline(
        store, StateDir(power.home / host), power.secret, power.clock, READS, WHY
    )
    session = Session(opened, FOLLOWS, power.clock)
    session.recover()
    session.start()
    try:
        yield session
    finally:
        with trio.fail_after(WAIT_S_MAX, shield=True):
            await session.close()


@pytest.mark.parametrize("killed", [False, True])
async def test_follower_starts_offline_and_continues_later(power: Power, killed: bool) -> None:
    """A follower that was started offline applies missed changelogs when the bucket responds."""
    async with power.session("a", tasks=False) as writer:
        before = write_file(writer, CONTENT)
        await writer.flush()
        async with power.session(
            "b", options=READS, session_options=FOLLOWS, tasks=False
        ) as session:
            assert await read_file(session, before) == CONTENT
            missed = write_file(writer, b"of the first day")
            await writer.flush()
            assert session.follower is not None
            await session.follower.poll_once()
            shown = session.link
            if not killed:
                await session.close()
        after = write_file(writer, b"written meanwhile")
        newest = await writer.flush()

        store = FaultyStore(power.store)
        store.fail(ANY)
        async with following(power, store) as session:
            assert session.link == shown
            assert session.status.state is MountState.FOLLOWING
            assert figures_of(session)["offline"] == WHY
            if not killed:  # A clean unmount has stored the rows of cached blocks.
                assert await read_file(session, before) == CONTENT
            assert inodes.get(session.db, missed).size_bytes == len(b"of the first day")
            assert session.follower is not None
            await session.follower.poll_once()
            assert session.follower.last_error
            assert session.volume.offline

            await session.follower.poll_once()

            assert session.link == newest
            assert figures_of(session)["offline"] == ""
            assert await read_file(session, after) == b"written meanwhile"


async def test_local_state_of_a_follower_can_be_mounted_offline(power: Power) -> None:
    """A follower's local state has no totals, but it can be mounted offline."""
    async with (
        power.session("a", tasks=False) as writer,
        power.session("b", options=READS, session_options=FOLLOWS, tasks=False) as session,
    ):
        ino = write_file(writer, CONTENT)
        await writer.flush()
        assert session.follower is not None
        await session.follower.poll_once()
    opened = await offline(power, "b")
    try:
        assert inodes.get(opened.db, ino).size_bytes == len(CONTENT)
    finally:
        with trio.fail_after(WAIT_S_MAX, shield=True):
            await close_filesystem(opened, release=True)


async def test_host_with_unshipped_changes_cannot_become_an_offline_follower(power: Power) -> None:
    """A host with unshipped changes cannot follow, because it could not apply other txgs."""
    async with power.session("a") as session:
        write_file(session, CONTENT)
        session.durability.commit()
    store = FaultyStore(power.store)
    store.fail(ANY, times=100)

    with pytest.raises(OfflineError, match="use the option ro without follow"):
        async with following(power, store, "a"):
            pass
    async with reading(power):
        pass


async def test_offline_mount_of_an_incomplete_state_is_refused(power: Power) -> None:
    """An offline mount needs a copy of the superblock, a database and the right passphrase."""
    async with power.session("a") as session:
        await session.close()
    path = power.home / "a"

    with pytest.raises(OfflineError, match="no copy of the superblock"):
        await offline(power, "never mounted")
    shutil.copytree(path, power.home / "no database")
    (power.home / "no database" / "meta.db").unlink()
    with pytest.raises(OfflineError, match="may be incomplete"):
        await offline(power, "no database")
    if power.encrypted:
        power.passphrase = b"wrong"
        with pytest.raises(PassphraseError):
            await offline(power)


async def test_offline_mount_is_refused_if_recovery_from_a_power_loss_needs_the_bucket(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If recovery needs blocks from the bucket, an offline mount is refused."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        await session.flush()
        await session.durability.sync_all()
        located = location_of(session, ino)
        session.db.begin()
        copied = session.cache.copy_on_write(located, ino, 0, 10)  # type: ignore[arg-type]
        session.db.commit()
        session.cache.evictor.evict_bytes(1 << 60)
        assert copied
    monkeypatch.setattr(machine, "this_boot", lambda: "another boot")

    with pytest.raises(OfflineError, match="blocks that a power loss damaged"):
        await offline(power)
    assert not StateDir(power.home / "a").is_locked_by_other


async def test_offline_mount_is_refused_if_its_txg_is_older_than_at_least(power: Power) -> None:
    """If --at-least names a later txg than the local state has, an offline mount is refused."""
    async with power.session("a") as session:
        link = session.link
        await session.close()
    good = AbbreviatedLink(link.txg, link.hash)

    await close_filesystem(await offline(power, mark=good), release=False)
    for mark in (
        AbbreviatedLink(Txg(link.txg + 1), link.hash),
        AbbreviatedLink(link.txg, "0123456789abcdef"),
    ):
        with pytest.raises(OlderBucketError, match="this host has only txgs up to"):
            await offline(power, mark=mark)


async def test_offline_mount_is_refused_if_its_block_size_differs_from_the_superblock(
    power: Power,
) -> None:
    """With a different block size, reads would return bytes from wrong positions."""
    async with power.session("a") as session:
        session.db.begin_local()
        session.db.run("UPDATE properties SET value = x'31' WHERE name = 'block_bytes'")
        await session.close()

    with pytest.raises(MetadataError, match="'block_bytes' differs from the superblock"):
        await offline(power)
    assert not StateDir(power.home / "a").is_locked_by_other


async def test_bucket_without_a_readable_lease_counts_as_reachable(
    power: Power, autojump_clock: trio.testing.MockClock
) -> None:
    """A mount with -o ro needs no lease."""
    store = FaultyStore(power.store)
    assert await why_unreachable(store) == ""
    power.store.objects[lease_codec.KEY] = bytes(TEXT_OBJECT_BYTES_MAX + 1)
    assert await why_unreachable(store) == ""
    store.fail("get", times=1000)
    hasty = RetryingStore(store, RetryPolicy(attempts_max=2))
    assert "store unavailable" in await why_unreachable(hasty)

    silent = FaultyStore(power.store)
    silent.hold("get")
    began_s = trio.current_time()
    assert "has not responded within" in await why_unreachable(silent)
    assert trio.current_time() - began_s == OFFLINE_AFTER_S
    power.store.objects.pop("lease")  # type: ignore[call-overload]
    assert await why_unreachable(power.store) == ""


async def test_offline_mount_with_keys_of_another_filesystem_is_refused(power: Power) -> None:
    """The keys must match the local state; unencrypted local state accepts no passphrase."""
    async with power.session("a") as session:
        session.db.begin_local()
        local_state.put(session.db, "key_check", "00")
        session.db.commit()
        await session.close()
    given = Passphrase(lambda: power.passphrase, given="in a file")
    state_dir, options = StateDir(power.home / "a"), OpenOptions(read_only=True)

    error = OfflineError if power.encrypted else PassphraseError
    with pytest.raises(error, match=r"was written with other keys|is not encrypted"):
        await open_offline(power.store, state_dir, given, power.clock, options, WHY)
    assert not state_dir.is_locked_by_other
