"""Syncs of block files: which bytes are durable after success, failure or cancellation."""

import contextlib
import errno
import threading
from collections.abc import Callable, Collection, Sequence

import pytest
import trio
import trio.testing

from s3fs_meta.cache.crash_safety.intent_log import NAME, IntentLog, LoggedPiece, read_entries
from s3fs_meta.limits import INTENT_CONTENT_BYTES_MAX, KIB, LOOP_SLICE_ROWS
from s3fs_meta.meta.tables import cached_blocks, local_state
from s3fs_meta.model import BlockId, BlockIndex
from tests.cache.conftest import INO, CacheBench
from tests.descriptors import no_more_files
from tests.faults import raising


async def test_sync_records_the_synced_size_of_each_block_file(bench: CacheBench) -> None:
    """A sync updates the rows of cached blocks only if the synced sizes of their files changed."""
    block = bench.write(0, b"abcdef")
    assert cached_blocks.unsynced_tails(bench.db) == [(block, 0, 6)]
    await bench.cache.block_sync.sync_files()
    assert cached_blocks.unsynced_tails(bench.db) == []

    bench.cache.write_in_place(bench.located(0), 6, b"gh")
    assert cached_blocks.unsynced_tails(bench.db) == [(block, 6, 8)]
    await bench.cache.block_sync.sync_files()
    bench.db.commit()
    bench.cache.write_in_place(bench.located(0), 0, b"A")
    await bench.cache.block_sync.sync_files()

    assert not bench.db.in_group


def _synced_lengths(bench: CacheBench) -> list[int]:
    return [row[0] for row in bench.db.all("SELECT synced_bytes FROM cached_blocks")]


async def test_blocks_stay_unsynced_after_a_failed_sync(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of blocks record no synced bytes until a later sync succeeds."""
    bench.write(0, b"content")
    with monkeypatch.context() as patched:
        patched.setattr(bench.files, "sync", raising(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OSError, match="Input/output error"):
            await bench.cache.block_sync.sync_files()
    assert _synced_lengths(bench) == [0]

    await bench.cache.block_sync.sync_files()

    assert _synced_lengths(bench) == [7]


async def test_content_that_cannot_be_read_for_the_log_is_synced_with_its_file(
    bench: CacheBench,
) -> None:
    """Content whose log entry failed is in no later entry, so only a sync makes it durable."""
    await bench.prepare_log(64 * KIB)
    block = bench.write(0, b"content")
    bench.files.let_go([block])
    with no_more_files():
        assert not await bench.log_writes()

    assert not await bench.log_writes()
    await bench.cache.block_sync.sync_files()

    assert _synced_lengths(bench) == [7]


class SecondSyncError(OSError):
    """The disk failed during the second sync of files."""


async def _sync_three_times(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch, during_second: Callable[[], object]
) -> list[list[BlockId]]:
    """Call ``sync_files``; during this sync, write another block and call ``sync_files`` twice.

    Args:
        bench: a cache with one unsynced block.
        monkeypatch: replaces the function that syncs files with one that records its calls.
        during_second: called on the event loop during the second sync of files.

    Returns:
        The blocks of each sync of files.
    """
    begun: list[list[BlockId]] = []
    first_began, go_on = trio.Event(), threading.Event()
    sync, token = bench.files.sync, trio.lowlevel.current_trio_token()

    def record(blocks: Sequence[BlockId], named: Collection[BlockId] = ()) -> None:
        begun.append(list(blocks))
        if len(begun) == 1:
            trio.from_thread.run_sync(first_began.set, trio_token=token)
            go_on.wait()
        elif len(begun) == 2:
            trio.from_thread.run_sync(during_second, trio_token=token)
        sync(blocks, named)

    async def call() -> None:
        with contextlib.suppress(SecondSyncError):
            await bench.cache.block_sync.sync_files()

    monkeypatch.setattr(bench.files, "sync", record)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await first_began.wait()
        bench.write(1, b"second")
        nursery.start_soon(call)
        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
    return begun


async def test_syncs_that_wait_for_a_running_sync_share_the_next_sync(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If several callers share a sync, the sync covers all bytes written before their calls."""
    first = bench.write(0, b"first")

    begun = await _sync_three_times(bench, monkeypatch, lambda: bench.write(2, b"third"))

    assert begun == [[first], [bench.located(1).block]]
    assert _synced_lengths(bench) == [5, 6, 0]


async def test_failed_sync_is_not_shared_with_waiting_callers(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench.write(0, b"first")
    begun = await _sync_three_times(
        bench, monkeypatch, raising(SecondSyncError(errno.EIO, "Input/output error"))
    )

    second = [bench.located(1).block]
    assert begun == [[first], second, second]
    assert _synced_lengths(bench) == [5, 6]


async def test_sync_cancelled_while_it_records_lengths_is_retried(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded length must match the synced file, because recovery truncates the file to it."""
    count = 2 * LOOP_SLICE_ROWS
    for index in range(count):
        bench.write(index, b"content")
    sync, token = bench.files.sync, trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope, monkeypatch.context() as patched:

        def cancel(blocks: Sequence[BlockId], named: Collection[BlockId] = ()) -> None:
            sync(blocks, named)
            trio.from_thread.run_sync(scope.cancel, trio_token=token)

        patched.setattr(bench.files, "sync", cancel)
        await bench.cache.block_sync.sync_files()
    assert scope.cancelled_caught
    assert 0 in _synced_lengths(bench)

    await bench.cache.block_sync.sync_files()

    assert _synced_lengths(bench) == [7] * count


async def test_bytes_written_during_a_sync_are_not_recorded_as_synced(bench: CacheBench) -> None:
    """Bytes written during a sync are not recorded as synced, because the sync may miss them."""
    bench.write(0, b"content")

    await bench.cache.block_sync.sync_files(
        meanwhile=lambda: bench.cache.write_in_place(bench.located(0), 7, b" and more")
    )

    assert _synced_lengths(bench) == [7]
    await bench.cache.block_sync.sync_files()
    assert _synced_lengths(bench) == [16]


# --- the intent log ------------------------------------------------------------------------------


@pytest.fixture
async def logged(bench: CacheBench) -> CacheBench:
    """Return a cache whose intent log is ready for entries."""
    bench.db.begin_local()
    local_state.put(bench.db, "epoch", "3")
    assert not await bench.log_writes()
    await bench.prepare_log(16 * KIB)
    return bench


def _entries(bench: CacheBench) -> list[list[LoggedPiece]]:
    _epoch, key, _settled = (local_state.get(bench.db, "intent_log") or "").split()
    entries = read_entries(bench.files.root, 3, bytes.fromhex(key))
    return [list(entry.pieces) for entry in entries]


async def test_new_block_is_written_to_the_intent_log_instead_of_a_synced_file(
    logged: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logged.files, "sync", None)
    block = logged.write(0, b"new")

    assert await logged.log_writes()
    assert _entries(logged) == [[LoggedPiece(block, 0, b"new")]]
    assert not logged.db.in_group
    assert cached_blocks.unsynced_tails(logged.db) == [(block, 0, 3)]


async def test_intent_log_entry_contains_only_writes_after_the_previous_entry(
    logged: CacheBench,
) -> None:
    block = logged.write(0, b"first")
    await logged.log_writes()
    logged.db.begin()
    logged.cache.write_in_place(logged.located(0), 5, b" and second")
    await logged.log_writes()

    assert _entries(logged)[1:] == [[LoggedPiece(block, 5, b" and second")]]
    assert await logged.log_writes()
    assert len(_entries(logged)) == 2


async def test_gap_before_a_write_is_written_to_the_intent_log_as_zeros(logged: CacheBench) -> None:
    """A gap must not show bytes that a killed daemon left after the end of a block."""
    block = logged.write(0, b"ab")
    await logged.log_writes()
    logged.db.begin()
    logged.cache.write_in_place(logged.located(0), 5, b"c")
    await logged.log_writes()

    assert _entries(logged)[1] == [LoggedPiece(block, 2, b"\0\0\0c")]


async def test_copied_block_is_made_durable_by_a_sync_of_its_file(logged: CacheBench) -> None:
    """A copied block is not logged, because its recovery could need the bucket during an outage."""
    logged.write(0, b"original")
    located = logged.located(0)
    logged.cache.seal([located.block])
    logged.cache.copy_on_write(logged.located(0), INO, BlockIndex(1), 8)

    assert not await logged.log_writes()
    await logged.cache.block_sync.sync_files()
    logged.write(2, b"new")
    assert await logged.log_writes()


async def test_removed_block_is_not_written_to_the_intent_log(logged: CacheBench) -> None:
    removed = logged.write(0, b"removed")
    kept = logged.write(1, b"kept")
    logged.cache.release(removed)

    assert await logged.log_writes()
    assert _entries(logged) == [[LoggedPiece(kept, 0, b"kept")]]


async def test_content_too_large_for_one_intent_log_entry_is_synced_instead(
    logged: CacheBench,
) -> None:
    logged.write(0, bytes(INTENT_CONTENT_BYTES_MAX + 1))
    assert not await logged.log_writes()


async def test_full_intent_log_is_restarted_only_when_its_content_is_in_block_files(
    logged: CacheBench,
) -> None:
    """Entries stay in the intent log until the block files with their content are synced."""
    sync = logged.cache.block_sync
    for index in range(4):
        logged.write(index, b"content")
        assert await logged.log_writes()
    logged.write(4, b"content")
    assert not await logged.log_writes()

    await sync.sync_files()
    logged.db.commit()
    logged.write(5, b"content")
    assert not await logged.log_writes()

    await sync.sync_files()
    logged.db.commit()
    sync.note_durable(sync.settled)
    logged.write(6, b"last")
    assert await logged.log_writes()
    [[piece]] = _entries(logged)
    assert piece.data == b"last"


async def test_syncs_fail_after_a_failed_append_to_the_intent_log(
    logged: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports the loss of a page only once, so later syncs must not report success."""
    logged.write(0, b"content")
    with monkeypatch.context() as patched:
        patched.setattr(IntentLog, "append", raising(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OSError, match="Input/output error"):
            await logged.log_writes()
    assert not await logged.log_writes()
    with pytest.raises(OSError, match="an earlier sync failed"):
        await logged.cache.block_sync.sync_files()


async def test_mount_runs_without_an_intent_log_if_the_disk_is_full(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.db.begin_local()
    local_state.put(bench.db, "epoch", "3")
    monkeypatch.setattr(
        IntentLog, "prepare", raising(OSError(errno.ENOSPC, "No space left on device"))
    )
    await bench.cache.block_sync.prepare_log()

    await bench.cache.block_sync.sync_files()
    bench.write(0, b"content")
    assert not await bench.log_writes()


async def test_no_intent_log_is_created_for_local_state_without_an_epoch(bench: CacheBench) -> None:
    await bench.cache.block_sync.prepare_log()
    assert not (bench.files.root / NAME).exists()


async def test_lack_of_file_descriptors_only_postpones_the_intent_log(bench: CacheBench) -> None:
    """If no file descriptor is free, the disk does not count as failed, and later syncs succeed."""
    bench.db.begin_local()
    local_state.put(bench.db, "epoch", "3")
    with no_more_files():
        await bench.cache.block_sync.prepare_log()
    bench.write(0, b"content")
    assert not await bench.log_writes()

    await bench.prepare_log(64 * KIB)
    bench.write(1, b"content")
    assert await bench.log_writes()
