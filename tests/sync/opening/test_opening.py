"""The choice at mount between the local state and the bucket."""

import os
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from typing_extensions import override

from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.errors import (
    DatabaseFullError,
    FencedError,
    HeldError,
    PassphraseError,
    StoreUnavailableError,
)
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import cached_blocks, inodes, local_state
from s3fs_meta.model import ROOT_INO, BlockState
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.hooks import Hook, no_hook
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.lease.keeper import LeaseKeeper
from s3fs_meta.sync.lease.lease_repair import mend_lease
from s3fs_meta.sync.opening.opening import open_filesystem
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import Fault, FaultyStore
from tests.faults import raising
from tests.polling import until
from tests.sync.conftest import REGULAR, Power, failing_append, read_file, unmount, write_file
from tests.sync.opening.histories import end_at, require_files, rot, written

CONTENT = b"hello" * 1000


async def test_second_host_is_refused_until_the_first_releases_the_lease(power: Power) -> None:
    """A crashed holder does not release its lease; only the same host can acquire it again."""
    async with power.session("a"):
        pass

    with pytest.raises(HeldError):
        async with power.session("b"):
            pass
    async with power.session("a") as session:
        await session.flush()
        await session.close()
    async with power.session("b") as session:
        assert session.status.writable


def failing_at(step: str) -> Hook:
    """Return a hook that fails at one step, as a full disk does."""

    def hook(reached: str) -> None:
        if reached == step:
            raise DatabaseFullError("the disk is full")

    return hook


STEPS = ["lease taken", "epoch noted", "fence attempted", "fence put", "fence confirmed"]


@pytest.mark.parametrize("step", STEPS)
async def test_failed_opening_releases_the_lease_that_no_host_held_before(
    power: Power, step: str
) -> None:
    """After a failed opening, another host can mount the filesystem, and later this host again."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        await unmount(session)

    with pytest.raises(DatabaseFullError):
        async with power.session("a", options=OpenOptions(hook=failing_at(step))):
            pass

    for host in ("b", "a"):
        async with power.session(host, tasks=False) as session:
            assert await read_file(session, ino) == CONTENT
            assert session.volume.notices == ()
            await unmount(session)


@pytest.mark.parametrize("step", STEPS)
async def test_failed_opening_keeps_the_lease_that_protects_unshipped_changes(
    power: Power, step: str
) -> None:
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        session.durability.commit()

    with pytest.raises(DatabaseFullError):
        async with power.session("a", options=OpenOptions(hook=failing_at(step))):
            pass

    with pytest.raises(HeldError):
        async with power.session("b"):
            pass
    async with power.session("a", tasks=False) as session:
        assert await read_file(session, ino) == CONTENT


@pytest.mark.parametrize("left", ["block", "row", "attempt"])
async def test_failed_opening_keeps_the_lease_that_replaces_a_lost_lease(
    power: Power, left: str
) -> None:
    """fsck -y makes a released lease, although this host has changes that are not in the bucket."""
    store = FaultyStore(power.store)
    hook = failing_append(store) if left == "attempt" else no_hook
    async with power.session("a", tasks=False, store=store, hook=hook) as session:
        if left == "row":
            session.db.begin()
            inodes.create(session.db, REGULAR, 0, 0, ROOT_INO, 0)
        else:
            write_file(session, CONTENT)
        if left == "attempt":
            with pytest.raises(StoreUnavailableError):
                await session.flush()
        session.durability.commit()
    del power.store.objects[lease_codec.KEY]
    await mend_lease(power.store, (await power.keys()).keyring, power.clock)

    with pytest.raises(DatabaseFullError):
        async with power.session("a", options=OpenOptions(hook=failing_at("epoch noted"))):
            pass

    with pytest.raises(HeldError):
        async with power.session("b"):
            pass


class LateStore(FaultyStore):
    """A store that waits for another host before it creates the next changelog."""

    def __init__(self, inner: ObjectStore, before: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._before: Callable[[], Awaitable[None]] | None = before

    @override
    async def enter(self, method: str, key: str) -> Fault | None:
        """Record a call, and wait for the other host if the call creates a changelog."""
        before = self._before
        if before is not None and method == "create" and key.startswith("changelog/"):
            self._before = None
            await before()
        return await super().enter(method, key)


async def test_late_txg_of_the_former_writer_does_not_count_as_a_crash(power: Power) -> None:
    """The opening applies the txg, although it began in another state, and needs no check."""
    async with power.session("b", tasks=False) as session:
        await unmount(session)
    async with power.session("a", tasks=False) as writer:
        ino = write_file(writer, CONTENT)

        async def append() -> None:
            with pytest.raises(FencedError):
                await writer.flush()

        options = OpenOptions(force_takeover=True)
        store = LateStore(power.store, append)
        async with power.session("b", store=store, options=options, tasks=False) as session:
            assert await read_file(session, ino) == CONTENT
            assert local_state.get(session.db, "unchecked") is None
            assert not session.db.changed


async def test_failed_repair_of_the_chain_keeps_the_lease(power: Power) -> None:
    """If the lease were released, another host could replace the state that the repair needs."""
    inos = await written(power)
    rot(power, 9)
    mend = replace(end_at(8), hook=failing_at("fence attempted"))
    with pytest.raises(DatabaseFullError):
        async with power.session("b", options=mend):
            pass

    with pytest.raises(HeldError):
        async with power.session("c"):
            pass
    async with power.session("b", options=end_at(8), tasks=False) as session:
        await require_files(session, inos, 8)


async def test_committed_changes_survive_a_killed_session(power: Power) -> None:
    """A block that a killed session had not uploaded is still dirty and readable."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        session.durability.commit()

    async with power.session("a") as session:
        assert session.volume.crashed
        assert await read_file(session, ino) == CONTENT
        assert await session.flush() is not None
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT


async def test_unshipped_changes_are_quarantined_after_a_takeover(power: Power) -> None:
    """The former writer restores the state in the bucket and reports its quarantined state."""
    async with power.session("a") as session:
        write_file(session, b"only on a")
        session.durability.commit()
    async with power.session("b", options=OpenOptions(force_takeover=True)) as session:
        ino = write_file(session, b"from b")
        await session.flush()
        await session.close()

    async with power.session("a") as session:
        assert await read_file(session, ino) == b"from b"
        [notice] = session.volume.notices
        assert "kept in" in notice
    [kept] = (power.home / "a").glob("kept-*")
    assert (kept / "meta.db").exists()
    assert list((kept / "blocks").rglob("*"))


async def test_wrong_passphrase_is_refused(power: Power) -> None:
    """A mount with a wrong passphrase changes nothing in the bucket."""
    if not power.encrypted:
        pytest.skip("an unencrypted filesystem has no passphrase")
    before = dict(power.store.objects)
    power.passphrase = b"wrong"

    with pytest.raises(PassphraseError):
        async with power.session("a"):
            pass

    assert power.store.objects == before


@pytest.mark.parametrize("journal_mode", ["off", "memory"])
async def test_local_state_is_quarantined_after_a_crash_without_a_journal(
    power: Power, journal_mode: str
) -> None:
    """After the quarantine, the host restores the bucket and acquires its own lease again."""
    options = OpenOptions(pragmas=Pragmas(journal_mode=journal_mode))
    async with power.session("a", options=options) as session:
        ino = write_file(session, CONTENT)
        await session.flush()

    async with power.session("a", options=options) as session:
        [notice] = session.volume.notices
        assert "kept in" in notice
        assert await read_file(session, ino) == CONTENT


async def test_verification_after_a_power_loss_continues_after_a_remount(
    power: Power, reboot: Callable[[], None]
) -> None:
    """A clean block that was torn by a power cut is detected even in the second mount."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        await session.flush()
        await session.durability.sync_all()
        [block] = cached_blocks.in_state(session.db, BlockState.CLEAN)
    reboot()
    async with power.session("a", tasks=False) as session:
        # The block is now torn and has not been read.
        session.files.write_within(block, 0, b"\0" * 100, 0)
        await session.flush()
        await session.close()

    async with power.session("a") as session:
        assert await read_file(session, ino) == CONTENT


async def test_power_loss_is_recorded_until_all_cached_blocks_are_verified(
    power: Power, reboot: Callable[[], None]
) -> None:
    """If a mount is killed before it has verified all block files, the next mount verifies them."""
    async with power.session("a") as session:
        write_file(session, CONTENT)
        session.db.commit()
    reboot()
    state_dir = StateDir(power.home / "a")
    lost = []
    for _ in range(2):
        opened = await open_filesystem(
            power.store, state_dir, power.secret, SystemClock(), OpenOptions()
        )
        lost.append(opened.power_lost)
        opened.db.close()
        state_dir.unlock()
    async with power.session("a", tasks=False) as session:
        lost.append(session.volume.power_lost)
    async with power.session("a", tasks=False) as session:
        lost.append(session.volume.power_lost)

    assert lost == [True, True, True, False]


async def test_power_loss_without_a_recovery_counts_even_if_the_state_is_marked_as_clean(
    power: Power,
) -> None:
    """An older version marked the state as clean after a recovery that had failed."""
    async with power.session("a", tasks=False) as session:
        session.db.begin_local()
        local_state.put(session.db, "power_lost", "1")
        local_state.put(session.db, "clean", "1")
        session.db.commit()

    async with power.session("a", tasks=False) as session:
        assert session.volume.crashed
        assert session.volume.power_lost
        assert local_state.get(session.db, "power_lost") is None


async def test_record_of_a_power_loss_is_removed_when_every_cached_block_is_verified(
    power: Power, reboot: Callable[[], None]
) -> None:
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        await session.flush()
        await session.durability.sync_all()
    reboot()
    async with power.session("a", tasks=False) as session:
        assert session.cache.suspects
        await session.verify_copies()
        assert await read_file(session, ino) == CONTENT
        assert session.cache.fetcher.fetched_blocks == 0
        await session.close()

    async with power.session("a", tasks=False) as session:
        assert not session.cache.suspects


async def test_record_of_a_power_loss_is_removed_if_the_cache_is_empty(
    power: Power, reboot: Callable[[], None]
) -> None:
    """A later mount would otherwise verify a cache that no power cut has touched."""
    async with power.session("a", tasks=False) as session:
        await session.flush()
    reboot()

    async with power.session("a") as session:
        await until(lambda: local_state.get(session.db, "suspect") is None)


async def test_wal_without_its_database_is_quarantined_and_not_applied(power: Power) -> None:
    """SQLite would apply a leftover WAL to the restored database, which is in a different state."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        await session.flush()
        write_file(session, b"unshipped")
        session.durability.commit()
        database = session.volume.state_dir.database
        log = database.with_name("meta.db-wal").read_bytes()
    database.unlink()
    database.with_name("meta.db-wal").write_bytes(log)

    async with power.session("a", options=OpenOptions(force_takeover=True)) as session:
        assert await read_file(session, ino) == CONTENT
        [notice] = session.volume.notices
        assert "kept in" in notice
    [kept] = (power.home / "a").glob("kept-*")
    assert (kept / "meta.db-wal").read_bytes() == log
    assert list((kept / "blocks").rglob("*"))


async def test_interrupted_deletion_of_outdated_state_leaves_no_stray_block_file(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is deleted last, so the next mount can continue an interrupted deletion."""
    async with power.session("a") as session:
        write_file(session, CONTENT)
        await session.flush()
        session.db.begin_local()
        # With another capacity, the local state differs from the bucket.
        session.db.counters.capacity_bytes = 1 << 40
        await session.close()
    async with power.session("b") as session:
        write_file(session, b"from b")
        await session.flush()
        await session.close()
    monkeypatch.setattr(os, "rmdir", raising(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        async with power.session("a"):
            pass
    monkeypatch.undo()
    async with power.session("a") as session:
        assert list(session.files.numbers()) == []
        assert not list((power.home / "a").glob("kept-*"))


@pytest.mark.parametrize("left", ["doubtful", "remains"])
async def test_refused_mount_leaves_local_state_in_place(power: Power, left: str) -> None:
    """Local state stays in its directory while another host holds the lease."""
    options = OpenOptions(pragmas=Pragmas(journal_mode="memory"))
    async with power.session("a", options=options, tasks=False) as session:
        write_file(session, CONTENT)
        session.durability.commit()
        state_dir = session.volume.state_dir
    if left == "remains":
        state_dir.database.unlink()
    before = sorted(path.name for path in state_dir.path.iterdir())

    by_force = OpenOptions(force_takeover=True)
    async with power.session("b", options=by_force, tasks=False):
        with pytest.raises(HeldError):
            async with power.session("a", options=options):
                pass
        assert sorted(path.name for path in state_dir.path.iterdir()) == before

    async with power.session("a", options=by_force, tasks=False) as session:
        [notice] = session.volume.notices
        assert "kept in" in notice


async def test_error_of_a_mount_refused_after_a_quarantine_names_the_moved_directories(
    power: Power, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another host may acquire the lease after a mount has quarantined its local state."""
    options = OpenOptions(pragmas=Pragmas(journal_mode="memory"))
    async with power.session("a", options=options, tasks=False) as session:
        write_file(session, CONTENT)

    async def refused(*_arguments: object, **_more: object) -> None:
        raise HeldError("another host holds the lease")

    monkeypatch.setattr(LeaseKeeper, "acquire", refused)
    with pytest.raises(HeldError):
        async with power.session("a", options=options):
            pass

    assert "kept in" in caplog.text


async def test_host_killed_during_restore_recovers_its_lease(power: Power) -> None:
    """A host without a database is identified by its holder file."""
    async with power.session("a") as session:
        ino = write_file(session, b"shipped")
        await session.flush()
    StateDir(power.home / "a").drop_contents()

    async with power.session("a") as session:
        assert await read_file(session, ino) == b"shipped"
        epoch = session.volume.keeper.epoch
    StateDir(power.home / "a").drop_contents()
    (power.home / "a" / "holder").unlink()
    with pytest.raises(HeldError):
        async with power.session("a"):
            pass
    assert epoch > 1
