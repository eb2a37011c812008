"""Opening a filesystem: the lease, the local state and the bucket."""

import os
from collections.abc import Awaitable, Callable
from contextlib import closing
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
from s3fs_meta.export.from_quarantine import KeptContent
from s3fs_meta.export.quarantine_list import find_all, open_database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import cached_blocks, inodes, local_state
from s3fs_meta.meta.tables.block_map import Located
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
from tests.sync.conftest import (
    REGULAR,
    TAKEOVER,
    Power,
    failing_append,
    location_of,
    read_file,
    unmount,
    write_file,
)
from tests.sync.opening.histories import end_at, require_files, rot, written

CONTENT = b"hello" * 1000


async def test_second_host_is_refused_until_the_first_host_releases_the_lease(power: Power) -> None:
    """The lease of a crashed host is not released, so only this host can acquire it."""
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
    """Return a hook that fails at one step, as if the disk were full."""

    def hook(reached: str) -> None:
        if reached == step:
            raise DatabaseFullError("the disk is full")

    return hook


STEPS = ["lease taken", "epoch noted", "fence attempted", "fence put", "fence confirmed"]


@pytest.mark.parametrize("step", STEPS)
async def test_failed_opening_releases_the_lease_that_no_host_held_before(
    power: Power, step: str
) -> None:
    """After a failed opening, this host and another host can mount the filesystem."""
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


@pytest.mark.parametrize("step", ["nonce noted", *STEPS])
@pytest.mark.parametrize("is_clean", [True, False])
async def test_failed_opening_counts_as_a_crash_only_if_the_state_was_unclean_before(
    power: Power, step: str, *, is_clean: bool
) -> None:
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        session.durability.commit()
        if is_clean:
            await session.close()

    with pytest.raises(DatabaseFullError):
        async with power.session("a", options=OpenOptions(hook=failing_at(step))):
            pass

    async with power.session("a", tasks=False) as session:
        assert session.volume.crashed != is_clean
        assert await read_file(session, ino) == CONTENT
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
    """After fsck -y replaces a lost lease, a host with unshipped changes keeps the new lease."""
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
    """A store that lets another host run before it creates the next changelog."""

    def __init__(self, inner: ObjectStore, before: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._before: Callable[[], Awaitable[None]] | None = before

    @override
    async def enter(self, method: str, key: str) -> Fault | None:
        """Record a call; if it creates a changelog, let the other host run first."""
        before = self._before
        if before is not None and method == "create" and key.startswith("changelog/"):
            self._before = None
            await before()
        return await super().enter(method, key)


async def test_late_txg_of_the_former_writer_does_not_count_as_a_crash(power: Power) -> None:
    """A txg that arrives while a host opens the filesystem needs no check of the database."""
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


async def test_takeover_that_fails_while_the_state_is_advanced_does_not_count_as_a_crash(
    power: Power,
) -> None:
    """The former writer appends a txg, and then the store becomes unavailable."""
    async with power.session("b", tasks=False) as session:
        await unmount(session)
    async with power.session("a", tasks=False) as writer:
        ino = write_file(writer, CONTENT)

        async def append() -> None:
            with pytest.raises(FencedError):
                await writer.flush()
            store.fail("get", StoreUnavailableError("changelog", 8, 9.0, "timeout"), times=99)

        store = LateStore(power.store, append)
        with pytest.raises(StoreUnavailableError):
            async with power.session("b", store=store, options=TAKEOVER, tasks=False):
                pass

    async with power.session("b", options=TAKEOVER, tasks=False) as session:
        assert not session.volume.crashed
        assert await read_file(session, ino) == CONTENT


async def test_restore_during_a_takeover_does_not_count_as_a_crash(power: Power) -> None:
    """A late image of the former writer replaces the state of the crash, so nothing is doubtful."""
    async with power.session("b", tasks=False) as session:
        await session.flush()
    async with power.session("a", options=TAKEOVER, tasks=False) as writer:
        ino = write_file(writer, CONTENT)

        async def append() -> None:
            with pytest.raises(FencedError):
                await writer.publish_as_txg()

        store = LateStore(power.store, append)
        async with power.session("b", store=store, options=TAKEOVER, tasks=False) as session:
            assert await read_file(session, ino) == CONTENT
            assert not session.volume.crashed


async def _reliable_bytes(power: Power, host: str, located: Located) -> int:
    """Return the reliable bytes of a block in the only quarantined state of a host."""
    [kept] = find_all(power.home / host)
    keyring = (await power.keys()).keyring
    with closing(open_database(kept)) as db:
        [content] = await KeptContent(db, kept.blocks, power.store, keyring).read([located])
    return content.sure_bytes


@pytest.mark.parametrize("is_power_lost", [False, True])
async def test_state_quarantined_after_a_kill_is_reliable_unless_power_was_lost_before(
    power: Power, reboot: Callable[[], None], *, is_power_lost: bool
) -> None:
    """The quarantine syncs the content, so only a reboot before it is a power loss."""
    async with power.session("b", tasks=False) as session:
        located = location_of(session, write_file(session, CONTENT))
        session.durability.commit()
    if is_power_lost:
        reboot()
    async with power.session("a", options=TAKEOVER, tasks=False) as session:
        await unmount(session)
    async with power.session("b", tasks=False):
        pass
    reboot()

    expected = 0 if is_power_lost else len(CONTENT)
    assert await _reliable_bytes(power, "b", located) == expected


async def test_state_quarantined_during_a_takeover_is_reliable_after_a_reboot(
    power: Power, reboot: Callable[[], None]
) -> None:
    async with power.session("b", tasks=False) as session:
        located = location_of(session, write_file(session, CONTENT))
        session.durability.commit()

    async def take_over() -> None:
        async with power.session("a", options=TAKEOVER, tasks=False):
            pass

    with pytest.raises(HeldError):
        async with power.session("b", store=LateStore(power.store, take_over)):
            pass
    reboot()

    assert await _reliable_bytes(power, "b", located) == len(CONTENT)


async def test_failed_repair_of_the_chain_keeps_the_lease(power: Power) -> None:
    """A released lease would let another host replace the state that the repair needs."""
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
    """A block that a killed session has not uploaded is dirty and readable in the next session."""
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


async def test_wrong_passphrase_is_refused(power: Power) -> None:
    """A mount with a wrong passphrase fails and changes nothing in the bucket."""
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
    """After a crash without a journal, local state is not trusted and is quarantined."""
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
    """The second mount after a power cut still detects a clean block that the cut has torn."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        await session.flush()
        await session.durability.sync_all()
        [block] = cached_blocks.in_state(session.db, BlockState.CLEAN)
    reboot()
    async with power.session("a", tasks=False) as session:
        # The power cut has torn the block, which has not been read yet.
        session.files.write_within(block, 0, b"\0" * 100, 0)
        await session.flush()
        await session.close()

    async with power.session("a") as session:
        assert await read_file(session, ino) == CONTENT


async def test_power_loss_is_recorded_until_all_cached_blocks_are_verified(
    power: Power, reboot: Callable[[], None]
) -> None:
    """If a mount is killed during verification, the next mount verifies the cached blocks."""
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
    """A state that is marked as clean needs recovery if a recovery has failed before."""
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
    """Without cached blocks nothing needs verification, so the record is removed."""
    async with power.session("a", tasks=False) as session:
        await session.flush()
    reboot()

    async with power.session("a") as session:
        await until(lambda: local_state.get(session.db, "suspect") is None)


async def test_wal_without_its_database_is_quarantined_and_not_applied(power: Power) -> None:
    """SQLite would apply a leftover WAL to a restored database that does not belong to the WAL."""
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
    """The database is deleted last, so that the next mount can finish the deletion."""
    async with power.session("a") as session:
        write_file(session, CONTENT)
        await session.flush()
        session.db.begin_local()
        # The local state has a different capacity than the bucket.
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
    """A mount that is refused because of the lease must not move its local state."""
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


async def test_mount_refused_after_a_quarantine_reports_the_moved_directories(
    power: Power, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If a mount quarantines its state and is then refused, the log names the directories."""
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
    """A host whose database is lost is recognised by its holder file."""
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
