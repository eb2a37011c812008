"""Failed syncs: a failure is not treated as success, even if a later sync succeeds.

The kernel reports a lost page to only one fsync(2), and later calls succeed.
"""

import errno
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest
import trio

from s3fs_meta.errors import DatabaseError
from s3fs_meta.limits import MIB, WAL_BYTES_MAX
from s3fs_meta.meta.db import wal
from s3fs_meta.meta.tables import cached_blocks, local_state
from s3fs_meta.model import BlockId, BlockState
from s3fs_meta.mount_state import MountState
from s3fs_meta.sync import durability
from s3fs_meta.testing.failing_vfs import failing_sqlite
from tests.descriptors import no_more_files
from tests.faults import raising
from tests.polling import until
from tests.sync.conftest import Power, write_file
from tests.tasks import running

CONTENT = b"hello" * 1000


async def test_failed_checkpoint_turns_the_mount_read_only(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the sync of the WAL in a checkpoint fails, later calls of fsync must fail."""
    monkeypatch.setattr(durability, "WAL_BYTES_MAX", 1)
    with failing_sqlite("-wal") as failing:
        async with power.session("a", tasks=False) as session:
            ino = write_file(session, CONTENT)
            failing.armed = True
            with pytest.raises(DatabaseError, match="Input/output"):
                await session.durability.sync_all()

            assert session.status.state is MountState.DEGRADED
            with pytest.raises(DatabaseError, match="checkpoint failed"):
                await session.durability.sync_file(ino)


async def test_checkpoint_without_descriptors_leaves_the_mount_writable(power: Power) -> None:
    """If a checkpoint finds no free file descriptor, the WAL grows, but no data is lost."""
    async with power.session("a", tasks=False) as session:
        await session.durability.sync_all()
        session.db.begin_local()
        large = {f"large {number}": "x" * MIB for number in range(WAL_BYTES_MAX // MIB + 1)}
        local_state.put_all(session.db, large)
        with no_more_files():
            await session.durability.sync_all()

        assert session.status.state is MountState.SERVING
        assert session.db.wal_uncopied_bytes > WAL_BYTES_MAX
        await session.durability.sync_all()
        assert session.db.wal_uncopied_bytes == 0


async def test_first_sync_without_descriptors_makes_the_file_durable(power: Power) -> None:
    """If no file descriptor is free, the disk does not count as failed."""
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        with no_more_files():
            await session.durability.sync_all()

        assert session.status.state is MountState.SERVING
        assert cached_blocks.unsynced_tails(session.db) == []


async def test_failed_restart_of_the_wal_turns_the_mount_read_only(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the WAL cannot be restarted, the last commit group may not be durable."""
    monkeypatch.setattr(wal, "WAL_CHECKPOINT_BYTES", 1)
    with failing_sqlite("-wal") as failing:
        async with power.session("a", tasks=False) as session:
            write_file(session, CONTENT)
            session.db.checkpoint()
            failing.armed = True
            session.durability.commit()

            assert failing.failures == 1
            assert session.status.state is MountState.DEGRADED


async def test_fsync_fails_after_a_failed_sync_of_a_wal_extension(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the thread that extends the WAL gets the error of lost pages, later fsyncs must fail."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        async with running(session.durability.run_log_room):
            await session.durability.sync_file(ino)
            monkeypatch.setattr(os, "fdatasync", raising(OSError(errno.EIO, "Input/output error")))
            await until(lambda: session.status.state is MountState.DEGRADED)
            monkeypatch.undo()

        with pytest.raises(DatabaseError, match="failed to sync"):
            await session.durability.sync_file(ino)


async def test_failed_sync_of_the_disk_turns_the_mount_read_only(power: Power) -> None:
    """After a failed sync the content on the disk is unknown, so the mount accepts no writes."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)

        def refuse(blocks: Sequence[BlockId], named: Collection[BlockId] = ()) -> None:
            raise OSError(errno.EIO, "Input/output error", str(blocks))

        session.files.sync = refuse  # type: ignore[method-assign]

        with pytest.raises(OSError, match="Input/output"):
            await session.durability.sync_file(ino)

        assert session.status.state is MountState.DEGRADED
        assert "failed to sync" in session.status.why


async def test_fsync_after_a_failed_fsync_fails(power: Power) -> None:
    """A second fsync must not succeed, because the kernel reports a lost page only once."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        sync = session.files.sync

        def refuse(blocks: Sequence[BlockId], named: Collection[BlockId] = ()) -> None:
            session.files.sync = sync  # type: ignore[method-assign]
            raise OSError(errno.EIO, "Input/output error", str(blocks))

        session.files.sync = refuse  # type: ignore[method-assign]
        with pytest.raises(OSError, match="Input/output"):
            await session.durability.sync_all()

        with pytest.raises(DatabaseError, match="failed to sync"):
            await session.durability.sync_file(ino)


async def test_fsync_that_waited_for_a_failed_sync_records_no_synced_bytes(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of a failed sync must not be recorded as synced, or a mount would trust them."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        [block] = cached_blocks.in_state(session.db, BlockState.DIRTY)
        calls = _fail_once(monkeypatch, f"{block:x}")
        failed: list[str] = []

        async def fsync() -> None:
            with pytest.raises((OSError, DatabaseError)) as raised:
                await session.durability.sync_file(ino)
            failed.append(str(raised.value))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fsync)
            nursery.start_soon(fsync)
        session.durability.commit()

        assert (len(failed), len(calls)) == (2, 1)
        assert [tail.block for tail in cached_blocks.unsynced_tails(session.db)] == [block]


def _fail_once(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Make the next sync of a file fail and later syncs succeed, as the kernel would."""
    calls: list[str] = []
    for call, real in (("fsync", os.fsync), ("fdatasync", os.fdatasync)):

        def sync(fd: int, real: Callable[[int], None] = real) -> None:
            if Path(os.readlink(f"/proc/self/fd/{fd}")).name == name:
                calls.append(name)
                if len(calls) == 1:
                    raise OSError(errno.EIO, "Input/output error", name)
            real(fd)

        monkeypatch.setattr(os, call, sync)
    return calls


@pytest.mark.parametrize("name", ["xxx", "blocks"])
async def test_fsync_fails_if_the_directory_of_a_new_block_file_cannot_be_synced(
    power: Power, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A failed sync of a directory may be reported only to the thread that prepares block files."""
    async with power.session("a", tasks=False) as session:
        calls = _fail_once(monkeypatch, name)
        ino = write_file(session, CONTENT)
        with pytest.raises(OSError, match="Input/output"):
            await session.cache.make_files_ahead()
        assert calls == [name]

        with pytest.raises(OSError, match="earlier sync failed"):
            await session.durability.sync_file(ino)


async def test_first_sync_after_a_kill_detects_write_errors_of_closed_files(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sync after a kill calls syncfs, which reports lost pages even of closed files."""
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        session.durability.commit()
    async with power.session("a", tasks=False) as session:
        syncfs = session.files._syncfs  # noqa: SLF001 - the test counts this call
        synced: list[str] = []

        def note() -> None:
            synced.append("syncfs")
            syncfs()

        monkeypatch.setattr(session.files, "_syncfs", note)
        await session.durability.sync()
        assert synced == ["syncfs"]
        write_file(session, CONTENT)
        await session.durability.sync()
        assert synced == ["syncfs"]
