"""Sessions: their background tasks, the failures of these tasks, and the unmount."""

import errno
import os
from collections.abc import Callable

import pytest
import trio
import trio.testing

from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.errors import (
    DatabaseError,
    HeldError,
    LostBlockError,
    PermanentStoreError,
    ReadOnlyStateError,
)
from s3fs_meta.meta.tables import cached_blocks, dentries, inodes, pending
from s3fs_meta.model import ROOT_INO, BlockState, Ino
from s3fs_meta.mount_state import MountState, MountStatus
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.chain import abandoned_txgs
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import close_filesystem, open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.descriptors import no_more_files
from tests.faults import raising
from tests.sync.conftest import Power, read_file, remove_file, write_file

CONTENT = b"hello" * 1000
FULL = OSError(errno.ENOSPC, "the disk is full")


async def test_failure_of_a_background_task_does_not_stop_the_mount(power: Power) -> None:
    """An unexpected exception in a background task makes the mount read-only."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        session.durability.commit()

        async def broken() -> None:
            raise RuntimeError("a bug")

        await session.supervise("broken", broken)

        assert session.status.state is MountState.DEGRADED
        assert "broken" in session.status.why
        assert await read_file(session, ino) == CONTENT


async def test_failure_of_a_background_task_leaves_no_partial_operation(power: Power) -> None:
    """If a background task fails, the open commit group is rolled back."""
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)

        async def broken() -> None:
            session.db.begin_local()
            session.db.run("DELETE FROM block_map")
            raise RuntimeError("a bug")

        await session.supervise("broken", broken)

        assert not session.db.in_group
        assert session.db.inodes.one("SELECT count(*) FROM inodes") == (1,)


async def test_session_that_is_degraded_before_its_start_stays_degraded(power: Power) -> None:
    """A background task may fail before the mount is complete."""
    async with power.session("a", tasks=False) as session:
        status = session.status = MountStatus()
        status.degrade("the disk failed")

        session.start()

        assert status.state is MountState.DEGRADED


async def test_recovery_deletes_no_block_file_before_the_first_sync(power: Power) -> None:
    """A power cut may undo the removal of a file, whose blocks are then needed."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        [block] = cached_blocks.in_state(session.db, BlockState.DIRTY)
        await session.durability.sync_all()
        remove_file(session, ino)
        session.durability.commit()

    async with power.session("a", tasks=False) as session:
        assert session.files.size(block) == len(CONTENT)

        await session.durability.sync_all()

        assert session.files.size(block) is None
        assert cached_blocks.get(session.db, block) is None


async def test_clean_unmount_syncs_cached_blocks(power: Power) -> None:
    """Cached blocks are synced at unmount, because the next mount does not verify them."""
    order: list[str] = []
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        sync_everything, commit = session.files.sync_everything, session.db.commit_durable
        session.files.sync_everything = lambda: (order.append("files"), sync_everything())[1]  # type: ignore[method-assign,func-returns-value]
        session.db.commit_durable = lambda: (order.append("rows"), commit())[1]  # type: ignore[method-assign,func-returns-value]

        await session.close()

    assert order[0] == "files"
    assert "rows" in order


async def test_unmount_with_a_failed_sync_counts_as_a_crash(power: Power) -> None:
    """After an unmount with a failed sync, the next mount verifies the cached blocks."""
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        session.files.sync_everything = raising(OSError(errno.EIO, "Input/output error"))  # type: ignore[method-assign]
        with pytest.raises(OSError, match="Input/output"):
            await session.close()

    async with power.session("a", tasks=False) as session:
        assert session.volume.crashed


async def test_background_tasks_stop_before_the_last_upload(power: Power) -> None:
    """Background tasks end before the last upload, because a later change would stay unshipped."""
    async with power.session("a", tasks=False) as session:
        uploaded = trio.Event()

        async def reclaim() -> None:
            await uploaded.wait()
            session.db.changed = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run_upkeep, {"reclaim": reclaim})
            await trio.testing.wait_all_tasks_blocked()
            write_file(session, CONTENT)
            await session.flush_at_end()
            uploaded.set()
        await session.close()

    lease = lease_codec.decode(lease_codec.KEY, power.store.objects[lease_codec.KEY])
    assert lease.released


async def test_last_upload_waits_for_the_end_of_cancelled_background_tasks(power: Power) -> None:
    """The last upload waits for cancelled tasks, which may still run in threads."""
    async with power.session("a", tasks=False) as session:
        begun, gate = trio.Event(), trio.Event()

        async def reclaim() -> None:
            with trio.CancelScope(shield=True):
                begun.set()
                await gate.wait()
                write_file(session, CONTENT)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run_upkeep, {"reclaim": reclaim})
            await begun.wait()
            nursery.start_soon(session.flush_at_end)
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
        assert session.is_everything_shipped
        await session.close()


@pytest.mark.parametrize("left", ["nothing", "operation", "block", "attempt", "repair"])
async def test_unmount_keeps_the_lease_while_a_change_is_not_uploaded(
    power: Power, left: str
) -> None:
    """The lease is kept, so that no other host continues the chain without the change."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"one")
        await session.flush_at_end()
        db = session.db
        if left == "operation":
            db.begin()
            inodes.create(db, 0o100644, 0, 0, ROOT_INO, 5)
        elif left == "block":
            write_file(session, b"two")
            db.mark_changed(False)
        elif left == "attempt":
            db.begin_local()
            pending.put_outbox(db, session.link.next_txg, b"attempted")
        elif left == "repair":
            db.begin_local()
            abandoned_txgs.want(db, "its changelog is damaged")
        await session.close()

    lease = lease_codec.decode(lease_codec.KEY, power.store.objects[lease_codec.KEY])
    assert lease.released == (left == "nothing")


@pytest.mark.parametrize("is_dirty", [False, True])
async def test_start_that_ends_after_a_killed_mount_releases_the_lease_unless_data_is_dirty(
    power: Power, is_dirty: bool
) -> None:
    """A killed read-only mount changed no rows, so the lease can be released."""
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        await session.flush_at_end()
        if is_dirty:
            write_file(session, CONTENT)
            session.durability.commit()
        await close_filesystem(session.volume, release=True)
    async with power.session("a", options=OpenOptions(read_only=True), tasks=False):
        pass  # The end of the context acts as if the process was killed.
    opened = await open_filesystem(
        power.store, StateDir(power.home / "a"), power.secret, power.clock, OpenOptions()
    )
    session = Session(opened, SessionOptions(), power.clock)
    session.recover()
    await session.close()

    assert opened.crashed
    lease = lease_codec.decode(lease_codec.KEY, power.store.objects[lease_codec.KEY])
    assert lease.released != is_dirty


async def test_unmount_that_cannot_release_the_lease_leaves_clean_local_state(power: Power) -> None:
    """If the lease cannot be released after the last upload, the local state is still clean."""
    faulty = FaultyStore(power.store)
    async with power.session("a", store=faulty, tasks=False) as session:
        write_file(session, CONTENT)
        await session.flush()
        faulty.down = PermanentStoreError("away")
        with pytest.raises(PermanentStoreError):
            await session.close()

    async with power.session("a", tasks=False) as session:
        assert not session.volume.crashed
        assert await session.flush() is None


async def test_unmount_reports_the_loss_of_a_commit_group(power: Power) -> None:
    """An unmount that loses operations must report an error."""
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        await session.flush()
        write_file(session, CONTENT)

        def fail() -> None:
            session.db.rollback()
            raise DatabaseError("database or disk is full")

        commit = session.db.commit
        session.db.commit = fail  # type: ignore[method-assign]
        try:
            with pytest.raises(DatabaseError, match="full"):
                await session.close()
        finally:
            session.db.commit = commit  # type: ignore[method-assign]


async def test_flush_that_loses_a_commit_group_reports_a_read_only_mount(power: Power) -> None:
    """The error is the same as after the group commit has noticed the failed disk."""
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        session.db.connection.set_commit_hook(lambda: True)
        with pytest.raises(ReadOnlyStateError, match="operations were lost"):
            await session.flush()
        session.db.connection.set_commit_hook(None)
        with pytest.raises(ReadOnlyStateError, match="operations were lost"):
            await session.flush()


async def test_flush_without_a_possible_commit_reports_a_read_only_mount(power: Power) -> None:
    """If a commit fails before COMMIT, its commit group stays open."""
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        session.db.run("ALTER TABLE pending RENAME TO missing")

        with pytest.raises(ReadOnlyStateError, match="operations were lost"):
            await session.flush()
        session.db.rollback()


async def test_failed_read_of_the_database_leaves_the_mount_writable(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that loses no change does not make the mount read-only."""
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        monkeypatch.setattr(session.shipper, "ship", raising(DatabaseError("a failed read")))

        with pytest.raises(DatabaseError, match="a failed read"):
            await session.flush()
        assert session.status.state is MountState.SERVING


async def test_local_state_is_not_encrypted_and_contains_no_master_key(power: Power) -> None:
    """Names and cached content are not encrypted in local state (see SECURITY.md)."""
    content = os.urandom(5000)  # Random bytes are stored without compression.
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, content)
        dentries.add(session.db, Ino(1), b"a telling name", ino)
        session.durability.commit()
        await session.flush()
        await session.durability.sync_all()
        keyring = session.volume.keyring
        await session.close()
    state = [path.read_bytes() for path in (power.home / "a").rglob("*") if path.is_file()]
    objects = [bytes(data) for data in power.store.objects.values()]

    assert any(b"a telling name" in data for data in state)
    assert content in state
    assert any(content in data for data in objects) != power.encrypted
    if power.encrypted:
        stored = b"".join(state + objects)
        assert keyring.master_key not in stored
        assert keyring.master_key.hex().encode() not in stored
        assert not any(b"a telling name" in data for data in objects)


@pytest.mark.parametrize("step", ["sync", "mark"])
async def test_end_of_a_session_releases_the_lease_although_the_disk_is_full(
    power: Power, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The bucket has all changes, so the lease is released even if the local disk is full."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        await session.flush_at_end()
        if step == "sync":
            monkeypatch.setattr(session.files, "sync_everything", raising(FULL))
        else:
            session.db.connection.execute("PRAGMA query_only = ON")

        with pytest.raises((OSError, DatabaseError)):
            await session.close()

    async with power.session("b", tasks=False) as session:
        assert await read_file(session, ino) == CONTENT


async def test_end_of_a_session_keeps_the_lease_that_protects_unshipped_changes(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        session.durability.commit()
        monkeypatch.setattr(session.files, "sync_everything", raising(FULL))

        with pytest.raises(OSError, match="full"):
            await session.close()

    with pytest.raises(HeldError):
        async with power.session("b"):
            pass


@pytest.mark.parametrize("read_only", [False, True])
async def test_session_end_reports_the_first_error_if_the_database_also_fails(
    power: Power, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    """Closing a session unlocks the state directory even if several errors occur."""
    async with power.session("a", tasks=False) as session:
        await session.flush_at_end()
        await session.close()
    options = OpenOptions(read_only=read_only)
    async with power.session("a", options=options, tasks=False) as session:
        session.db.connection.execute("DROP TABLE outbox")
        monkeypatch.setattr(session.files, "sync_everything", raising(FULL))

        with pytest.raises(OSError, match="the disk is full"):
            await session.close()

        assert not session.volume.state_dir.is_locked_by_other
        assert session.db.is_closed


async def test_failed_recovery_after_a_power_loss_is_repeated_by_the_next_mount(
    power: Power, reboot: Callable[[], None]
) -> None:
    """If a recovery fails, the next mount must repeat it before it trusts the block files."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        session.durability.commit()
    reboot()
    opened = await open_filesystem(
        power.store, StateDir(power.home / "a"), power.secret, power.clock, OpenOptions()
    )
    session = Session(opened, SessionOptions(), power.clock)
    with no_more_files(), pytest.raises(OSError, match="Too many open files"):
        session.recover()
    await session.close()

    async with power.session("a", tasks=False) as session:
        assert session.volume.power_lost
        with pytest.raises(LostBlockError):
            await read_file(session, ino)


async def test_kept_lease_is_reported_only_at_the_end_of_a_session(
    power: Power, caplog: pytest.LogCaptureFixture
) -> None:
    """A mount that closes the filesystem to change the page size does not report the kept lease."""
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        session.durability.commit()
        await close_filesystem(session.volume, release=False)
    assert "keeps the lease" not in caplog.text

    async with power.session("a", tasks=False) as session:
        await session.close()
    assert "keeps the lease" in caplog.text
