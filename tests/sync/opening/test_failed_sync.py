"""Local state after a failed sync: the next mount writes the state to the disk again."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from s3fs_meta import machine, sync_failures
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.errors import DatabaseError
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import block_map, cached_blocks
from s3fs_meta.model import BlockIndex, BlockState, Ino
from s3fs_meta.mount_state import MountState
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.offline import open_offline
from s3fs_meta.sync.opening.opening import close_filesystem, open_filesystem
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.failing_vfs import failing_sqlite
from tests.sync.conftest import TAKEOVER, Power, location_of, read_file, write_file

pytestmark = pytest.mark.thorough

CONTENT = b"hello" * 1000


def _fail(monkeypatch: pytest.MonkeyPatch, part: str, *calls: str) -> None:
    """Make calls of ``os`` fail for files whose path contains *part*."""
    for call in calls:
        real: Callable[..., object] = getattr(os, call)

        def refuse(fd: int, *words: object, real: Callable[..., object] = real) -> object:
            if part in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(errno.EIO, "Input/output error")
            return real(fd, *words)

        monkeypatch.setattr(os, call, refuse)


def _is_noted(power: Power) -> bool:
    return sync_failures.is_noted(power.home / "a")


async def _write_and_fail(
    power: Power, monkeypatch: pytest.MonkeyPatch, part: str, *, seals: bool = False
) -> Ino:
    """Write a dirty block, make a sync fail and kill the session; return the inode of the file."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        if seals:
            session.cache.seal(cached_blocks.in_state(session.db, BlockState.DIRTY))
        session.durability.commit()
        with monkeypatch.context() as failing:
            _fail(failing, part, "fdatasync")
            with pytest.raises(OSError, match="Input/output"):
                await session.durability.sync_all()
    return ino


@pytest.mark.parametrize("part", ["/blocks/", "-wal"])
@pytest.mark.parametrize("seals", [False, True], ids=["dirty", "sealed"])
async def test_mount_after_a_failed_sync_writes_dirty_state_again(
    power: Power, monkeypatch: pytest.MonkeyPatch, part: str, seals: bool
) -> None:
    """A mount writes the WAL before the database, and both files before its first commit."""
    ino = await _write_and_fail(power, monkeypatch, part, seals=seals)
    assert _is_noted(power)
    synced = _note_fsyncs(monkeypatch)
    async with power.session("a", tasks=False) as session:
        [block] = cached_blocks.in_state(session.db, BlockState.DIRTY)
        assert f"again-{block:x}" in synced
        logs = (
            ["again-meta.db-wal"] if part == "-wal" else []
        )  # In the other cases, closing the database has checkpointed the WAL.
        assert [name for name in synced if "meta.db" in name] == [*logs, "again-meta.db"]
        for name in (*logs, "again-meta.db"):
            assert synced[synced.index(name) + 1] == "a", "sync the directory before the next file"
        assert await read_file(session, ino) == CONTENT
        assert any("written to the disk again" in one for one in session.volume.notices)
        await session.durability.sync_file(ino)

    assert not _is_noted(power)


async def test_mount_after_a_failed_sync_rewrites_a_deleted_source_of_a_copied_block(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copied block's source is written again, because recovery may need it after a power cut."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        located = location_of(session, ino)
        session.db.begin()
        copy = session.cache.copy_on_write(located, ino, BlockIndex(0), 5)
        block_map.replace(session.db, ino, BlockIndex(0), located.block, copy)
        session.cache.release(located.block)
        session.durability.commit()
        with monkeypatch.context() as failing:
            _fail(failing, "/blocks/", "fdatasync")
            with pytest.raises(OSError, match="Input/output"):
                await session.durability.sync_all()
    synced = _note_fsyncs(monkeypatch)

    async with power.session("a", tasks=False):
        assert {f"again-{located.block:x}", f"again-{copy:x}"} <= set(synced)


async def test_uploaded_blocks_are_verified_after_a_failed_sync(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync, pages of uploaded blocks may be lost, so the blocks are verified."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        await session.flush()
        await session.durability.sync_all()
        [block] = cached_blocks.in_state(session.db, BlockState.CLEAN)
    await _write_and_fail(power, monkeypatch, "-wal")
    dropped: list[str] = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda fd, *_: dropped.append(os.readlink(f"/proc/self/fd/{fd}"))
    )

    async with power.session("a", tasks=False) as session:
        assert session.cache.suspects.blocks == {block}
        assert [Path(path).name for path in dropped] == [f"{block:x}"]
        assert await read_file(session, ino) == CONTENT


async def test_block_file_that_is_written_again_stays_sparse(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        files = session.files
        block = session.db.counters.take_block()
        files.create(block, 1 << 20, CONTENT)
        path = next(files.root.rglob(f"{block:x}"))
        before = path.stat()
        files.write_again([block], {})
        assert path.stat().st_blocks == before.st_blocks
        assert path.stat().st_ino != before.st_ino
        assert path.read_bytes() == bytes(1 << 20) + CONTENT
        files.write_again([session.db.counters.take_block()], {})  # The block has no file.


async def test_unreadable_block_file_does_not_prevent_a_mount(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a block file is unreadable, only this block is lost."""
    await _write_and_fail(power, monkeypatch, "-wal")
    with monkeypatch.context() as failing:
        _fail(failing, "/blocks/", "pread")
        async with power.session("a", tasks=False):
            pass

    assert not _is_noted(power)


@pytest.mark.parametrize("part", ["/blocks/", "meta.db"])
async def test_mount_is_refused_while_syncs_fail(
    power: Power, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """While syncs fail, a mount must not discard the page cache, which may have the only copy."""
    ino = await _write_and_fail(power, monkeypatch, "-wal")
    with monkeypatch.context() as failing:
        _fail(failing, part, "fsync")
        with pytest.raises(DatabaseError, match="cannot be written to the disk again") as failed:
            async with power.session("a", tasks=False):
                pass
    # Some files may already be replaced by copies, so the message must not say "nothing was
    # changed".
    assert "no readable content was lost" in failed.value.message
    assert "nothing was changed" not in failed.value.message
    assert _is_noted(power)

    async with power.session("a", tasks=False) as session:
        assert await read_file(session, ino) == CONTENT


async def test_local_state_is_not_rewritten_after_a_failed_sync_and_a_reboot(
    power: Power, monkeypatch: pytest.MonkeyPatch, reboot: Callable[[], None]
) -> None:
    """A reboot has emptied the page cache, so the state is verified as after a power loss."""
    await _write_and_fail(power, monkeypatch, "-wal")
    assert _is_noted(power)
    reboot()
    synced = _note_fsyncs(monkeypatch)
    async with power.session("a", tasks=False) as session:
        assert session.volume.power_lost

    assert not [name for name in synced if name.startswith("again-")]
    assert not _is_noted(power)


async def test_offline_mount_writes_dirty_state_again_after_a_failed_sync(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with power.session("a") as session:
        write_file(session, CONTENT)
        await session.flush()
    await _write_and_fail(power, monkeypatch, "-wal")

    volume = await open_offline(
        power.store, StateDir(power.home / "a"), power.secret, power.clock, OpenOptions(), "why"
    )
    volume.db.close()
    volume.state_dir.unlock()

    assert any("written to the disk again" in one for one in volume.notices)
    assert not _is_noted(power)


async def test_commit_group_lost_to_a_full_disk_or_a_bug_is_not_recorded_as_a_failed_sync(
    power: Power,
) -> None:
    """The loss of a commit group is no failed sync, because no page of a file was lost."""
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        session.db.rollback()

    assert not _is_noted(power)


async def test_disk_error_in_sqlite_is_recorded_as_a_failed_sync(power: Power) -> None:
    """With synchronous=full, the sync that fails is part of a commit by SQLite."""
    with failing_sqlite("-wal") as failing:
        options = OpenOptions(pragmas=Pragmas(synchronous="full"))
        async with power.session("a", tasks=False, options=options) as session:
            write_file(session, CONTENT)
            failing.armed = True
            session.durability.commit()
            assert session.status.state is MountState.DEGRADED

    assert _is_noted(power)


async def test_failed_sync_during_opening_or_closing_is_recorded(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed sync is recorded, so that the next mount writes the state again."""
    state_dir = StateDir(power.home / "a")
    with monkeypatch.context() as failing:
        _fail(failing, "-wal", "fdatasync")
        with pytest.raises(OSError, match="Input/output"):
            await open_filesystem(power.store, state_dir, power.secret, power.clock, OpenOptions())
    assert sync_failures.is_noted(state_dir.path)
    volume = await open_filesystem(power.store, state_dir, power.secret, power.clock, OpenOptions())
    assert not sync_failures.is_noted(state_dir.path)

    _fail(monkeypatch, "-wal", "fdatasync")
    with pytest.raises(OSError, match="Input/output"):
        await close_filesystem(volume, release=True)
    assert sync_failures.is_noted(state_dir.path)


@pytest.mark.parametrize("part", ["blocks", "-wal", "meta.db"])
async def test_failed_sync_during_an_unmount_is_recorded(
    power: Power, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """The next mount rewrites all pages, because the kernel reports lost pages only once."""
    with failing_sqlite(part) as failing:
        async with power.session("a", tasks=False) as session:
            ino = write_file(session, CONTENT)
            await session.durability.sync_all()
            if part == "blocks":
                session.files.create(session.db.counters.take_block(), 0, CONTENT)
                monkeypatch.setattr(session.files, "_syncfs", _refuse)
            elif part == "-wal":
                _fail(monkeypatch, part, "fdatasync")
            else:
                failing.armed = True
            if part == "meta.db":
                await session.close()
            else:
                with pytest.raises(OSError, match="Input/output"):
                    await session.close()
    monkeypatch.undo()
    assert _is_noted(power)

    async with power.session("a", tasks=False) as session:
        assert await read_file(session, ino) == CONTENT
        assert any("written to the disk again" in one for one in session.volume.notices)
    assert not _is_noted(power)


def _refuse() -> None:
    raise OSError(errno.EIO, "Input/output error")


async def test_failed_sync_after_the_loss_of_a_commit_group_is_recorded(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync that fails is recorded even if a commit group is lost at the same time."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        session.durability.commit()

        def lose_and_fail(_fd: int) -> None:
            trio.from_thread.run_sync(session.db.begin, trio_token=token)
            trio.from_thread.run_sync(session.db.rollback, trio_token=token)
            raise OSError(errno.ENOSPC, "No space left on device")

        token = trio.lowlevel.current_trio_token()
        with monkeypatch.context() as failing:
            failing.setattr(os, "fdatasync", lose_and_fail)
            with pytest.raises(OSError, match="No space"):
                await session.durability.sync_file(ino)
        assert session.status.why == "the last operations were lost"

    assert _is_noted(power)


async def test_failed_sync_during_a_quarantine_is_recorded(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dirty blocks in quarantine may not be on the disk, so the failure is recorded."""
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        session.durability.commit()
        unknown = session.db.counters.take_block()
        session.db.rollback()
        session.files.create(unknown, 0, b"of a database that was put back")
        database = session.db.path
    os.utime(database)  # The block file is now older than the database.
    state_dir = StateDir(power.home / "a")
    with monkeypatch.context() as failing:
        failing.setattr(BlockFiles, "_syncfs", lambda _files: _refuse())
        with pytest.raises(OSError, match="Input/output"):
            await open_filesystem(power.store, state_dir, power.secret, power.clock, OpenOptions())
    assert list(state_dir.path.glob("kept-*"))
    assert _is_noted(power)


async def test_read_only_fsck_writes_the_database_again_but_not_the_blocks(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only fsck syncs the WAL before it closes the database, which checkpoints the WAL."""
    await _write_and_fail(power, monkeypatch, "/blocks/")
    synced = _note_fsyncs(monkeypatch)
    options = OpenOptions(read_only=True, repairing=True)
    async with power.session("a", tasks=False, options=options):
        assert [name for name in synced if name.startswith("again-")] == ["again-meta.db"]
    assert _is_noted(power), "the next mount must still write the blocks"


async def test_blocks_of_an_unreadable_database_are_written_again(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of an unreadable database are written again before they are quarantined."""
    await _write_and_fail(power, monkeypatch, "/blocks/")
    state_dir = StateDir(power.home / "a")
    [block] = BlockFiles(state_dir.blocks, state_dir.tmp).numbers()
    state_dir.database.unlink()
    synced = _note_fsyncs(monkeypatch)
    async with power.session("a", tasks=False, options=TAKEOVER):
        assert f"again-{block:x}" in synced
    assert list(state_dir.path.glob("kept-*/blocks/*/*"))
    assert not _is_noted(power)


def _note_fsyncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that receives the file name of each later sync."""
    synced: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    return synced


async def test_disk_that_is_attached_a_second_time_is_treated_like_a_disk_after_a_power_loss(
    power: Power, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If a disk is detached, the kernel drops pages that are not on the disk yet."""
    device = power.home.stat().st_dev
    disk = tmp_path / "sysfs" / f"{os.major(device)}:{os.minor(device)}"
    disk.mkdir(parents=True)
    monkeypatch.setattr(machine, "BLOCK_DEVICES", disk.parent)
    found = []
    for sequence in ("7", "7", "8"):
        (disk / "diskseq").write_text(sequence)
        async with power.session("a", tasks=False) as session:
            found.append((session.volume.crashed, session.volume.power_lost))
            write_file(session, CONTENT)
            session.durability.commit()
            sync_failures.note(power.home / "a")

    assert found == [(False, False), (True, False), (True, True)]
