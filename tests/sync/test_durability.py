"""Commits of groups of operations, and syncs of block files and rows."""

import os
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from s3fs_meta.errors import DatabaseError
from s3fs_meta.limits import (
    FILES_AHEAD_MARGIN,
    GROUP_AGE_S_MAX,
    GROUP_DELAY_S,
    WAL_ROOM_BYTES,
    WAL_ROOM_PIECE_BYTES,
)
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import block_map, cached_blocks, inodes
from s3fs_meta.model import BlockId, BlockIndex, BlockState, Ino
from s3fs_meta.mount_state import MountState
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from tests.calls import counting
from tests.polling import WAIT_S_MAX, until
from tests.sync.conftest import Power, read_file, remove_file, write_file
from tests.tasks import running

CONTENT = b"hello" * 1000


async def test_block_file_of_a_removed_file_is_kept_until_the_removal_is_synced(
    power: Power,
) -> None:
    """A block file is deleted when a power cut can no longer undo the removal of its file."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        [block] = cached_blocks.in_state(session.db, BlockState.DIRTY)
        remove_file(session, ino)

        assert session.files.size(block) == len(CONTENT)
        await session.durability.sync_all()
        assert session.files.size(block) is None
        assert cached_blocks.get(session.db, block) is None


async def test_open_commit_group_is_committed_without_an_fsync(power: Power) -> None:
    """A timer commits the open commit group."""
    async with power.session("a") as session:
        write_file(session, CONTENT)
        await until(lambda: not session.db.in_group)


async def test_single_operation_is_committed_after_the_commit_group_delay(
    power: Power, mock_clock: trio.testing.MockClock
) -> None:
    """A kill loses at most the operations within the last commit group delay."""
    async with power.session("a", tasks=False) as session, trio.open_nursery() as nursery:
        session.db.commit()
        nursery.start_soon(session.durability.run_group_commit)
        await _pass(mock_clock, 1.0)
        write_file(session, CONTENT)
        is_open = []
        for part in (0.9, 0.2):
            await _pass(mock_clock, GROUP_DELAY_S * part)
            is_open.append(session.db.in_group)
        assert is_open == [True, False]
        nursery.cancel_scope.cancel()


async def test_age_of_commit_groups_is_limited_during_continuous_operations(
    power: Power, mock_clock: trio.testing.MockClock
) -> None:
    """Even if operations follow without a pause, a commit group ends after GROUP_AGE_S_MAX."""
    async with power.session("a", tasks=False) as session, trio.open_nursery() as nursery:
        session.db.commit()
        nursery.start_soon(session.durability.run_group_commit)
        commits, age_ms = 0, 0
        for _ in range(200):
            session.db.begin()
            age_ms += 1
            await _pass(mock_clock, 0.001)
            if not session.db.in_group:
                assert age_ms <= GROUP_AGE_S_MAX * 1000 + 1
                commits, age_ms = commits + 1, 0
        assert commits == 4
        session.db.begin()
        for _ in range(2):
            await _pass(mock_clock, GROUP_DELAY_S)
        assert not session.db.in_group
        nursery.cancel_scope.cancel()


async def test_failing_commit_is_not_retried_without_a_pause(
    power: Power, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """If a commit fails before COMMIT, its commit group stays open and is retried later."""
    async with power.session("a", tasks=False) as session, trio.open_nursery() as nursery:
        nursery.start_soon(session.durability.run_group_commit)
        write_file(session, CONTENT)
        session.db.run("ALTER TABLE pending RENAME TO missing")
        for _ in range(100):
            await _pass(mock_clock, GROUP_DELAY_S)
        assert sum("cannot commit" in one for one in caplog.messages) == 1
        nursery.cancel_scope.cancel()
        session.db.rollback()


async def _pass(clock: trio.testing.MockClock, time_s: float) -> None:
    """Advance the clock and run all tasks that are due."""
    await trio.testing.wait_all_tasks_blocked()
    clock.jump(time_s)
    await trio.testing.wait_all_tasks_blocked()


async def test_fsync_makes_content_durable_before_rows(power: Power) -> None:
    """An fsync makes block files durable before it commits their rows."""
    order: list[str] = []
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        sync, commit = session.files.sync, session.db.commit_durable

        def note(blocks: Sequence[BlockId], named: Collection[BlockId] = ()) -> None:
            order.append("files")
            sync(blocks, named)

        session.files.sync = note  # type: ignore[method-assign]
        session.db.commit_durable = lambda: (order.append("rows"), commit())[1]  # type: ignore[method-assign,func-returns-value]

        await session.durability.sync_file(ino)

    assert order == ["files", "rows"]


async def test_commit_group_is_committed_during_syncs_of_block_files(power: Power) -> None:
    """The commit runs while block files are synced, and the WAL is synced after both."""
    order: list[str] = []
    committed = threading.Event()
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        sync, log = session.files.sync, session.db.sync_wal

        def note_commit() -> bool:
            committed.set()
            return False  # SQLite commits if this hook returns False.

        session.db.connection.set_commit_hook(note_commit)

        def note(blocks: Sequence[BlockId], named: Collection[BlockId] = ()) -> None:
            assert committed.wait(WAIT_S_MAX)
            sync(blocks, named)
            order.append("files")

        session.files.sync = note  # type: ignore[method-assign]
        session.db.sync_wal = lambda: (order.append("log"), log())[1]  # type: ignore[method-assign,func-returns-value]

        await session.durability.sync_file(ino)
        assert cached_blocks.unsynced_tails(session.db) == []
        session.db.connection.set_commit_hook(None)

    assert order == ["files", "log"]


async def test_in_rollback_journal_mode_content_is_synced_before_the_commit_of_its_rows(
    power: Power,
) -> None:
    """Each commit syncs the database in rollback journal mode, so content is synced before it."""
    options = OpenOptions(pragmas=Pragmas(journal_mode="delete", synchronous="full"))
    order: list[str] = []
    async with power.session("a", tasks=False, options=options) as session:
        ino = write_file(session, CONTENT)
        sync, token = session.files.sync, trio.lowlevel.current_trio_token()

        def note_commit() -> bool:
            order.append("rows")
            return False  # SQLite commits if this hook returns False.

        session.db.connection.set_commit_hook(note_commit)

        def note(blocks: Sequence[BlockId], named: Collection[BlockId] = ()) -> None:
            sync(blocks, named)
            # The event loop must answer this call, so it must not be blocked by the sync of the
            # content.
            trio.from_thread.run_sync(order.copy, trio_token=token)
            order.append("files")

        session.files.sync = note  # type: ignore[method-assign]
        await session.durability.sync_file(ino)
        session.db.connection.set_commit_hook(None)

    assert order[:2] == ["files", "rows"]


async def test_wal_is_extended_when_programs_call_fsync(power: Power) -> None:
    """WAL space is allocated in advance, so that syncs need no commit of the disk's journal."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        await session.durability.sync_all()
        async with running(session.durability.run_log_room):
            await trio.testing.wait_all_tasks_blocked()
            assert _lacks_room(session)  # No program has called fsync yet.
            write_file(session, CONTENT)
            await session.durability.sync_file(ino)
            await until(lambda: not _lacks_room(session))


def _lacks_room(session: Session) -> bool:
    """Return True if the WAL of a session has little allocated space left."""
    return session.db.wal is not None and session.db.wal.lacks_room


async def test_wal_is_extended_only_while_no_commit_group_is_open(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The WAL is extended only between commit groups, because its mtime records the last commit.

    After a kill, the next mount deletes block files without a row that are newer than the WAL,
    because they belong to undone operations. If the WAL were extended during a group, it could be
    newer than these files, and the next mount would quarantine them.
    """
    async with power.session("a", tasks=False) as session:
        were_open: list[bool] = []
        write = os.write

        def note(fd: int, data: bytes) -> int:
            if os.readlink(f"/proc/self/fd/{fd}").endswith("-wal"):
                were_open.append(session.db.in_group)
            return write(fd, data)

        async def write_often() -> None:
            while True:
                write_file(session, CONTENT)
                await trio.lowlevel.checkpoint()

        ino = write_file(session, CONTENT)
        monkeypatch.setattr(os, "write", note)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.durability.run_log_room)
            await session.durability.sync_file(ino)
            nursery.start_soon(write_often)
            await until(lambda: not _lacks_room(session))
            nursery.cancel_scope.cancel()

        assert len(were_open) >= WAL_ROOM_BYTES // WAL_ROOM_PIECE_BYTES // 2
        assert not any(were_open)


async def test_wal_is_not_extended_into_reserved_disk_space(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allocated space in the WAL must not use the disk reserve, which commits need."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        disk = session.cache.disk
        monkeypatch.setattr(disk, "spare_bytes", lambda: WAL_ROOM_BYTES - 1)
        async with running(session.durability.run_log_room):
            await session.durability.sync_file(ino)
            await trio.testing.wait_all_tasks_blocked()

        assert not _lacks_room(session)  # Later fsyncs do not request the extension again.
        log = session.db.path.with_name("meta.db-wal")
        assert log.stat().st_size < session.db.wal_bytes + WAL_ROOM_BYTES


async def test_directories_of_new_block_files_are_synced_only_once(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory of a block file is synced once for a new file, not for an overwrite."""
    synced = _note_syncs(monkeypatch)
    async with power.session("a", tasks=False) as session:

        async def sync() -> list[str]:
            synced.clear()
            await session.durability.sync()
            return [name for _call, name in synced if "wal" not in name]

        write_file(session, CONTENT)
        write_file(session, CONTENT)
        first, second = cached_blocks.in_state(session.db, BlockState.DIRTY)
        folders = ["xxx", session.files.root.name]
        found = await sync()
        assert sorted(found[:2]) == sorted([f"{first:x}", f"{second:x}"])
        assert found[2:] == folders

        located = block_map.locate(session.db, *_file_of(session, first))
        assert located is not None
        session.db.begin()
        session.cache.write_in_place(located, 0, b"HELLO")
        assert await sync() == [f"{first:x}"]

        session.db.begin()
        session.cache.seal([first])
        copy = session.cache.copy_on_write(located, *_file_of(session, first), len(CONTENT))
        assert await sync() == [f"{copy:x}", "xxx"]
        session.db.rollback()


async def test_fsync_of_a_new_small_file_syncs_no_directory(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An fsync of a new small file syncs two files: its block file and the WAL.

    Both syncs omit timestamps, because a sync of timestamps would commit the host's journal.
    """
    async with power.session("a", tasks=False) as session:
        async with running(session.cache.make_files_ahead):
            write_file(session, CONTENT)
            await until(lambda: len(session.files.ahead))
            for _ in range(FILES_AHEAD_MARGIN):
                write_file(session, CONTENT)
            await session.durability.sync()
            write_file(session, CONTENT)
        [*_others, block] = cached_blocks.in_state(session.db, BlockState.DIRTY)
        synced = _note_syncs(monkeypatch)
        await session.durability.sync()
        assert synced == [("fdatasync", f"{block:x}"), ("fdatasync", "meta.db-wal")]


def _note_syncs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return a list that receives the system call and the file name of each sync."""
    synced: list[tuple[str, str]] = []
    for call, real in (("fsync", os.fsync), ("fdatasync", os.fdatasync)):

        def note(fd: int, call: str = call, real: Callable[[int], None] = real) -> None:
            synced.append((call, Path(os.readlink(f"/proc/self/fd/{fd}")).name))
            real(fd)

        monkeypatch.setattr(os, call, note)
    return synced


def _file_of(session: Session, block: BlockId) -> tuple[Ino, BlockIndex]:
    """Return the inode number and the block index of a dirty block."""
    row = cached_blocks.get(session.db, block)
    assert row is not None
    return row.ino, row.block_index


async def test_concurrent_fsyncs_share_syncs_of_the_wal(power: Power) -> None:
    """Callers that wait for a running sync share the next sync, which covers all their commits."""
    async with power.session("a", tasks=False) as session:
        await session.durability.sync()
        synced = _count_row_syncs(session)
        marks: list[bool] = []

        async def change_and_sync() -> None:
            write_file(session, CONTENT)
            session.db.commit()
            last = session.volume.recorder.last_seq
            await session.durability.sync()
            marks.append(session.durability.synced_mark >= last)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(change_and_sync)
        assert marks == [True] * 10
        assert 1 <= len(synced) <= 3
        write_file(session, CONTENT)
        await session.durability.sync()
        assert 2 <= len(synced) <= 4


@pytest.mark.parametrize("data_only", [False, True])
async def test_fsync_waits_for_a_running_sync_of_its_content_or_rows(
    power: Power, monkeypatch: pytest.MonkeyPatch, *, data_only: bool
) -> None:
    """A file or a row that another task is syncing is not durable before this sync ends."""
    order: list[str] = []
    started, go_on = trio.Event(), threading.Event()
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        token = trio.lowlevel.current_trio_token()
        part, name = (session.db, "sync_wal") if data_only else (session.files, "sync")
        sync = getattr(part, name)

        def slow(*arguments: object) -> None:
            trio.from_thread.run_sync(started.set, trio_token=token)
            go_on.wait()
            sync(*arguments)
            order.append("sync")

        async def fsync() -> None:
            await started.wait()
            await session.durability.sync_file(ino, data_only=data_only)
            order.append("fsync")

        monkeypatch.setattr(part, name, slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.durability.sync_all)
            nursery.start_soon(fsync)
            await started.wait()
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert order == []
            go_on.set()

    assert order == ["sync", "fsync"]


async def test_fsync_of_one_file_syncs_the_dirty_blocks_of_all_files(power: Power) -> None:
    """An fsync of one file commits the rows of all files, so all dirty blocks are synced first."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        write_file(session, CONTENT * 2)
        synced = _synced_blocks(session)

        await session.durability.sync_file(ino)

        assert sorted(synced) == cached_blocks.in_state(session.db, BlockState.DIRTY)


async def test_content_of_a_block_is_synced_before_the_row_of_its_pack(power: Power) -> None:
    """The rows that an upload syncs include rows of other files, whose blocks are synced first."""
    synced: list[BlockId] = []
    at_intention: list[list[BlockId]] = []

    def hook(step: str) -> None:
        if step == "pack intended":
            at_intention.append(list(synced))

    async with power.session("a", tasks=False, hook=hook) as session:
        write_file(session, CONTENT)
        written = cached_blocks.in_state(session.db, BlockState.DIRTY)
        synced = _synced_blocks(session)

        await session.flush()

    assert at_intention == [written]


async def test_fsync_after_a_kill_syncs_blocks_written_by_the_killed_daemon(power: Power) -> None:
    """After a kill, blocks of the killed daemon may be only in the page cache."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        session.durability.commit()

    async with power.session("a", tasks=False) as session:
        synced = _synced_blocks(session)
        await session.durability.sync_file(ino)

        assert synced == cached_blocks.in_state(session.db, BlockState.DIRTY)


def _synced_blocks(session: Session) -> list[BlockId]:
    """Return a list that receives the blocks of each later sync of block files."""
    synced: list[BlockId] = []
    sync = session.files.sync
    session.files.sync = lambda blocks, named=(): (synced.extend(blocks), sync(blocks, named))[1]  # type: ignore[method-assign,func-returns-value]
    return synced


def _count_row_syncs(session: Session) -> list[int]:
    """Return a list that gets one item for each later sync of rows."""
    synced: list[int] = []
    sync = session.db.sync_wal
    session.db.sync_wal = lambda: (synced.append(1), sync())[1]  # type: ignore[method-assign,func-returns-value]
    return synced


async def _overwrite(session: Session, ino: Ino) -> None:
    """Overwrite bytes of a dirty block and set the times of its file, as the kernel does."""
    located = block_map.locate(session.db, ino, BlockIndex(0))
    assert located is not None
    session.cache.write_in_place(located, 0, b"HELLO")
    session.db.begin(times_only=True)
    inodes.touch(session.db, ino, mtime_ns=5)
    await trio.lowlevel.checkpoint()


async def test_fdatasync_of_overwritten_bytes_syncs_only_the_block_file(power: Power) -> None:
    """A fdatasync of overwritten bytes makes the bytes durable, but not the timestamps."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        await session.durability.sync_file(ino)
        await _overwrite(session, ino)
        blocks, rows = _synced_blocks(session), _count_row_syncs(session)

        await session.durability.sync_file(ino, data_only=True)
        assert (len(blocks), rows) == (1, [])

        await session.durability.sync_file(ino)
        assert (len(blocks), rows) == (1, [1])


async def test_fdatasync_syncs_changed_rows_of_other_files(power: Power) -> None:
    """A fdatasync makes all earlier changes durable except timestamps, even of other files."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        await session.durability.sync_file(ino)
        await _overwrite(session, ino)
        write_file(session, CONTENT)
        rows = _count_row_syncs(session)

        await session.durability.sync_file(ino, data_only=True)
        assert rows == [1]


async def test_unchanged_filesystem_is_not_synced_again(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        await session.durability.sync_all()
        rows = _count_row_syncs(session)

        await session.durability.sync_file(ino)
        await session.durability.sync_all()
        assert rows == []


async def test_loss_of_a_commit_group_turns_the_mount_read_only(power: Power) -> None:
    """After the loss of a commit group, later changes and fsyncs must fail."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)

        session.db.rollback()  # Simulate a full disk: SQLite rolls back the transaction.

        assert session.status.state is MountState.DEGRADED
        assert "lost" in session.status.why
        with pytest.raises(DatabaseError, match="lost"):
            await session.durability.sync_file(ino)


async def test_no_block_file_is_deleted_after_the_loss_of_a_commit_group(power: Power) -> None:
    """If the removal of a file is undone during its sync, the block file must not be deleted."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        session.durability.commit()
        [block] = cached_blocks.in_state(session.db, BlockState.DIRTY)
        remove_file(session, ino)
        # The commit group is committed while its block files are synced.
        # A commit hook that returns True makes the commit fail.
        session.db.connection.set_commit_hook(lambda: True)
        with pytest.raises(DatabaseError):
            await session.durability.sync_all()
        session.db.connection.set_commit_hook(None)
        with pytest.raises(DatabaseError, match="lost"):
            await session.durability.sync_all()

        assert cached_blocks.in_state(session.db, BlockState.DIRTY) == [block]
        assert session.files.size(block) == len(CONTENT)


async def test_incomplete_operation_is_not_committed(power: Power) -> None:
    """A bug in an operation undoes its commit group, and the mount becomes read-only."""
    async with power.session("a", tasks=False) as session:
        safe = write_file(session, CONTENT)
        session.durability.commit()
        write_file(session, CONTENT * 2)
        session.db.begin()
        # Simulate an exception after the first change of an operation.
        session.db.run("DELETE FROM block_map WHERE ino = ?", (safe,))

        session.status.break_off("a bug")

        assert (session.status.state, session.status.why) == (MountState.DEGRADED, "a bug")
        assert not session.db.in_group
        with pytest.raises(DatabaseError, match="lost"):
            await session.durability.sync_file(safe)

    async with power.session("a", tasks=False) as session:
        assert await read_file(session, safe) == CONTENT
        assert session.db.one("SELECT count(*) FROM blocks") == (1,)
        assert list(session.files.numbers()) == cached_blocks.in_state(session.db, BlockState.DIRTY)


async def test_few_changes_after_an_fsync_are_recorded_by_the_hook(power: Power) -> None:
    """SQLite's session extension prepares several statements for each group of changes."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        await session.sync_file(ino)
        with counting() as counted:
            write_file(session, CONTENT)
        session.db.commit()
        with counting() as later:
            write_file(session, CONTENT)
    noted = ("meta/group_changes.py", "_note")
    assert noted in counted.trip
    assert noted not in later.trip
