"""Replay of the intent log: which entries a mount applies after a power cut or a kill."""

from collections.abc import Collection, Sequence

import pytest
import trio

from s3fs_meta.cache.crash_safety import intent_replay
from s3fs_meta.cache.crash_safety.intent_log import NAME
from s3fs_meta.cache.crash_safety.recovery import distrust, restore_content
from s3fs_meta.errors import DatabaseError, LostBlockError
from s3fs_meta.limits import KIB
from s3fs_meta.meta.tables import block_map, block_origins, cached_blocks, local_state
from s3fs_meta.model import BlockId, BlockIndex, BlockState
from tests.cache.conftest import INO, CacheBench

EPOCH = 3


@pytest.fixture
async def logged(bench: CacheBench) -> CacheBench:
    """Return a cache whose next sync can use the intent log."""
    bench.db.begin_local()
    local_state.put(bench.db, "epoch", str(EPOCH))
    await bench.prepare_log(32 * KIB)
    return bench


async def fsync(bench: CacheBench) -> None:
    """Make all content durable by writing a log entry."""
    assert await bench.log_writes()


async def lose_power(bench: CacheBench) -> None:
    """Recover the cache as a mount does after a power cut."""
    bench.db.commit()
    await restore_content(bench.db, bench.files, bench.keyring, bench.store, power_lost=True)
    bench.db.begin_local()
    distrust(bench.db, bench.files)
    bench.new_cache()


async def kill(bench: CacheBench) -> None:
    """Recover the cache as a mount does after the daemon was killed."""
    bench.db.commit()
    await restore_content(bench.db, bench.files, bench.keyring, bench.store, power_lost=False)
    bench.new_cache()


def content(bench: CacheBench, index: int) -> bytes:
    """Return the content of a block in the file INO."""
    located = bench.located(index)
    return bench.cache.read_local(located, 0, located.plain_bytes)


def overwrite(bench: CacheBench, offset: int, data: bytes) -> None:
    """Write into block 0 of the file INO."""
    bench.db.begin()
    bench.cache.write_in_place(bench.located(0), offset, data)


def lose_file(bench: CacheBench, block: BlockId) -> None:
    """Delete a block file whose name was never synced, as a power cut may."""
    bench.files.remove(block)


async def test_logged_block_survives_the_loss_of_its_block_file(logged: CacheBench) -> None:
    block = logged.write(0, b"fsynced")
    await fsync(logged)
    lose_file(logged, block)

    await lose_power(logged)

    assert content(logged, 0) == b"fsynced"
    assert cached_blocks.unsynced_tails(logged.db) == []


async def test_power_cut_loses_only_bytes_written_after_the_last_fsync(logged: CacheBench) -> None:
    block = logged.write(0, b"fsynced")
    await fsync(logged)
    overwrite(logged, 7, b" and not")
    logged.files.cut_after(block, 3)

    await lose_power(logged)

    assert logged.cache.read_local(logged.located(0), 0, 7) == b"fsynced"
    with pytest.raises(LostBlockError, match="ends at byte 7"):
        content(logged, 0)


async def test_intent_log_entries_are_applied_in_the_order_of_their_writes(
    logged: CacheBench,
) -> None:
    block = logged.write(0, b"one one one")
    await fsync(logged)
    overwrite(logged, 4, b"two")
    await fsync(logged)
    lose_file(logged, block)

    await lose_power(logged)

    assert content(logged, 0) == b"one two one"


async def test_hole_before_replayed_content_stays_a_hole(logged: CacheBench) -> None:
    logged.db.begin()
    block = logged.cache.write_new(INO, BlockIndex(1), 5, b"after a hole")
    await fsync(logged)
    lose_file(logged, block)

    await lose_power(logged)

    assert logged.cache.read_local(logged.located(1), 0, 17) == bytes(5) + b"after a hole"
    assert block_origins.blocks(logged.db) == []


async def test_lost_write_after_replayed_content_leaves_zeros_before_its_offset(
    logged: CacheBench,
) -> None:
    """Zeros before an unsynced write are restored as zeros after a power cut loses the write."""
    logged.write(0, b"ab")
    await fsync(logged)
    overwrite(logged, 5, b"lost")

    await lose_power(logged)

    assert logged.cache.read_local(logged.located(0), 0, 5) == b"ab\0\0\0"
    with pytest.raises(LostBlockError, match="ends at byte 5"):
        content(logged, 0)


async def test_zeros_before_a_lost_write_remain_after_the_replay_of_an_overwrite(
    logged: CacheBench,
) -> None:
    """An overwrite in place does not change which bytes of the block are durable."""
    logged.write(0, b"ab")
    await fsync(logged)
    for offset, data in ((0, b"A"), (5, b"lost")):
        overwrite(logged, offset, data)

    await lose_power(logged)

    assert logged.cache.read_local(logged.located(0), 1, 5) == b"b\0\0\0"


@pytest.mark.parametrize("hole_bytes", [0, 5])
async def test_zeros_of_a_replayed_gap_or_hole_remain_if_a_later_write_is_lost(
    logged: CacheBench, hole_bytes: int
) -> None:
    """The table ``copies`` records only one gap of a block; the intent log has the other gaps."""
    logged.db.begin()
    logged.cache.write_new(INO, BlockIndex(0), hole_bytes, b"a")
    await fsync(logged)
    expected = bytes(hole_bytes) + b"a"
    for gap_end in (9, 20):
        expected = expected.ljust(gap_end, b"\0")
        overwrite(logged, gap_end, b"b")
        if gap_end == 9:
            await fsync(logged)
            expected += b"b"
    logged.files.remove(logged.located(0).block)

    await lose_power(logged)

    assert logged.cache.read_local(logged.located(0), 0, 20) == expected


async def test_restored_hole_uses_no_disk_space(logged: CacheBench) -> None:
    logged.db.begin()
    block = logged.cache.write_new(INO, BlockIndex(0), 512 * KIB, b"lost")
    lose_file(logged, block)

    await lose_power(logged)

    assert logged.files.size(block) == 512 * KIB
    [path] = logged.files.root.rglob(str(block))
    assert path.stat().st_blocks == 0


def write_after_gap(bench: CacheBench) -> None:
    """Write to block 0 after a gap of three bytes; a power cut will lose the written bytes."""
    overwrite(bench, 5, b"lost")


async def write_after_gap_during_sync(
    bench: CacheBench,
    monkeypatch: pytest.MonkeyPatch,
    *,
    uploads: bool = False,
    undoes: bool = False,
) -> None:
    """Call ``write_after_gap`` while a thread syncs the block files.

    Args:
        uploads: upload the block after the write.
        undoes: undo the group of the write.
    """
    sync, token = bench.files.sync, trio.lowlevel.current_trio_token()

    async def write() -> None:
        write_after_gap(bench)
        if uploads:
            await bench.upload(0)
        if undoes:
            bench.db.undo()

    def sync_and_write(blocks: Sequence[BlockId], named: Collection[BlockId] = ()) -> None:
        sync(blocks, named)
        trio.from_thread.run(write, trio_token=token)

    with monkeypatch.context() as patched:
        patched.setattr(bench.files, "sync", sync_and_write)
        await bench.cache.block_sync.sync_files(meanwhile=bench.db.commit)


@pytest.mark.parametrize("is_logged", [True, False])
async def test_sync_keeps_the_zeros_of_a_gap_that_is_made_during_the_sync(
    logged: CacheBench, monkeypatch: pytest.MonkeyPatch, is_logged: bool
) -> None:
    """The zeros of a gap belong to the synced file; only the bytes after the gap may be lost."""
    logged.write(0, b"ab")
    if is_logged:
        await fsync(logged)
    await write_after_gap_during_sync(logged, monkeypatch)

    await lose_power(logged)

    assert logged.cache.read_local(logged.located(0), 0, 5) == b"ab\0\0\0"


async def test_gap_of_an_undone_write_does_not_replace_later_content_with_zeros(
    logged: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a write is undone during a sync, the record of its gap must not affect later writes."""
    logged.db.begin()
    block = logged.cache.write_new(INO, BlockIndex(0), 1, b"a")
    await write_after_gap_during_sync(logged, monkeypatch, undoes=True)
    overwrite(logged, 2, b"lost")
    logged.files.cut_after(block, 2)

    await lose_power(logged)

    assert logged.cache.read_local(logged.located(0), 0, 2) == b"\0a"
    with pytest.raises(LostBlockError):
        logged.cache.read_local(logged.located(0), 2, 3)


async def test_sync_of_a_copied_block_keeps_its_content_and_the_zeros_of_a_new_gap(
    logged: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A synced copy must not be restored from its origin, because the origin has older content."""
    await logged.upload_content(b"xy")
    before = logged.located(0)
    logged.db.begin()
    block = logged.cache.copy_on_write(before, INO, BlockIndex(0), 2)
    block_map.replace(logged.db, INO, BlockIndex(0), before.block, block)
    logged.cache.release(before.block)
    overwrite(logged, 0, b"ab")
    await write_after_gap_during_sync(logged, monkeypatch)

    await lose_power(logged)

    assert logged.cache.read_local(logged.located(0), 0, 5) == b"ab\0\0\0"


async def test_block_that_is_uploaded_during_a_sync_has_no_record_of_a_gap(
    logged: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the record of a gap stayed, recovery would replace uploaded content with zeros."""
    block = logged.write(0, b"ab")
    await write_after_gap_during_sync(logged, monkeypatch, uploads=True)

    assert block not in block_origins.blocks(logged.db)


async def log_during_write_after_gap(bench: CacheBench) -> None:
    """Write a log entry; call ``write_after_gap`` while a thread writes the entry."""

    def write_meanwhile() -> None:
        bench.db.commit()
        write_after_gap(bench)

    assert await bench.cache.block_sync.log_writes(
        meanwhile=write_meanwhile, afterwards=bench.db.sync_wal
    )


async def test_log_entry_keeps_the_zeros_of_a_gap_that_is_made_while_it_is_written(
    logged: CacheBench,
) -> None:
    logged.write(0, b"a")
    overwrite(logged, 1, b"b")
    logged.write(1, b"other")  # The next write becomes a separate piece of the entry.
    overwrite(logged, 0, b"a")
    await log_during_write_after_gap(logged)

    await lose_power(logged)

    assert logged.cache.read_local(logged.located(0), 0, 5) == b"ab\0\0\0"


@pytest.mark.parametrize("is_logged", [True, False])
async def test_next_sync_keeps_the_bytes_after_a_gap_that_was_made_during_a_sync(
    logged: CacheBench, monkeypatch: pytest.MonkeyPatch, is_logged: bool
) -> None:
    """A sync must delete the record of a gap, or recovery would remove the bytes after the gap."""
    logged.write(0, b"ab")
    if is_logged:
        await log_during_write_after_gap(logged)
    else:
        await write_after_gap_during_sync(logged, monkeypatch)
    await logged.cache.block_sync.sync_files()

    await lose_power(logged)

    assert content(logged, 0) == b"ab\0\0\0lost"


async def test_bytes_of_an_undone_write_do_not_reappear_in_a_gap(logged: CacheBench) -> None:
    """A gap must not show bytes that a killed daemon left in the block file at its offset."""
    block = logged.write(0, b"ab")
    await logged.cache.block_sync.sync_files()
    overwrite(logged, 5, b"lost")
    logged.files.put(block, 2, b"old")

    await lose_power(logged)

    assert logged.cache.read_local(logged.located(0), 0, 5) == b"ab\0\0\0"


async def test_recovery_succeeds_if_the_log_entry_before_a_gap_is_lost(logged: CacheBench) -> None:
    """A power cut may leave the row of a block on the disk without the block file."""
    block = logged.write(0, b"ab")

    def write_meanwhile() -> None:
        logged.db.commit()
        overwrite(logged, 5, b"c")
        logged.db.commit()

    assert await logged.cache.block_sync.log_writes(
        meanwhile=write_meanwhile, afterwards=logged.db.sync_wal
    )
    lose_file(logged, block)
    (logged.files.root / NAME).write_bytes(b"torn")

    await lose_power(logged)

    with pytest.raises(LostBlockError):
        content(logged, 0)


async def test_intent_log_entry_older_than_a_file_sync_is_not_applied(logged: CacheBench) -> None:
    """Replay of an entry older than a sync would replace content that the sync made durable."""
    logged.write(0, b"old")
    await fsync(logged)
    overwrite(logged, 0, b"new")
    await logged.cache.block_sync.sync_files()

    await lose_power(logged)

    assert content(logged, 0) == b"new"


async def test_intent_log_replay_does_not_change_uploaded_or_removed_blocks(
    logged: CacheBench,
) -> None:
    """Uploaded blocks are not restored from the log, because their files are verified by hash."""
    uploaded = logged.write(0, b"uploaded")
    removed = logged.write(1, b"removed")
    await fsync(logged)
    await logged.upload(0)
    logged.db.begin()
    logged.cache.release(removed)
    for block in (uploaded, removed):
        lose_file(logged, block)

    await lose_power(logged)

    assert [logged.files.size(block) for block in (uploaded, removed)] == [None, None]


def _truncate(bench: CacheBench, size_bytes: int) -> list[BlockId]:
    """Replace block 0 with a copy of its beginning; return the old block and the new block."""
    bench.db.begin()
    located = bench.located(0)
    copy = bench.cache.copy_on_write(located, INO, BlockIndex(0), size_bytes)
    block_map.replace(bench.db, INO, BlockIndex(0), located.block, copy)
    bench.cache.release(located.block)
    return [located.block, copy]


async def test_copy_of_a_deleted_block_is_restored_from_the_intent_log(logged: CacheBench) -> None:
    """If fsynced content of a deleted block is only in the log, a copy is restored from the log."""
    logged.write(0, b"fsynced")
    await fsync(logged)
    for block in _truncate(logged, 4):
        lose_file(logged, block)

    await lose_power(logged)

    assert content(logged, 0) == b"fsyn"


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_replayed_content_fills_a_hole_in_a_copied_block(
    logged: CacheBench, is_deleted: bool
) -> None:
    """The origin of a copy is restored first, because its hole must not replace logged content."""
    logged.db.begin()
    logged.cache.write_new(INO, BlockIndex(0), 5, b"after a hole")
    overwrite(logged, 1, b"in it")
    await fsync(logged)
    if not is_deleted:
        logged.db.begin()
        logged.cache.seal([logged.located(0).block])
    for block in _truncate(logged, 4):
        lose_file(logged, block)

    await lose_power(logged)

    assert content(logged, 0) == b"\0in "


async def test_deleted_block_stays_durable_after_a_kill_until_its_copy_is_durable(
    logged: CacheBench,
) -> None:
    """A deleted block's file must be durable, because the next mount discards the intent log."""
    logged.write(0, b"fsynced")
    await fsync(logged)
    _deleted, copy = _truncate(logged, 4)
    await kill(logged)
    lose_file(logged, copy)

    await lose_power(logged)

    assert content(logged, 0) == b"fsyn"


async def test_intent_log_replay_can_be_repeated_after_another_power_cut(
    logged: CacheBench,
) -> None:
    block = logged.write(0, b"fsynced")
    await fsync(logged)
    logged.db.commit()
    await intent_replay.replay(logged.db, logged.files)
    lose_file(logged, block)

    await lose_power(logged)
    await lose_power(logged)

    assert content(logged, 0) == b"fsynced"
    assert intent_replay.needed_pieces(logged.db, logged.files.root) == []


async def test_replay_ignores_intent_log_entries_of_another_epoch(logged: CacheBench) -> None:
    """A host of an older epoch may have used the same block numbers for different content."""
    block = logged.write(0, b"fsynced")
    await fsync(logged)
    logged.db.begin_local()
    local_state.put(logged.db, "epoch", str(EPOCH + 1))
    lose_file(logged, block)

    await lose_power(logged)

    assert logged.files.size(block) is None
    assert not intent_replay.is_in_use(logged.db)


async def test_overwrite_after_the_last_fsync_survives_a_kill_and_becomes_durable(
    logged: CacheBench,
) -> None:
    block = logged.write(0, b"fsynced")
    await fsync(logged)
    overwrite(logged, 0, b"FS")

    await kill(logged)

    assert content(logged, 0) == b"FSynced"
    assert cached_blocks.synced_bytes(logged.db, block) == 7
    assert intent_replay.needed_pieces(logged.db, logged.files.root) == []


async def test_append_after_the_last_fsync_survives_a_kill_and_becomes_durable(
    logged: CacheBench,
) -> None:
    """The synced length of a recovered block includes the zeros of a gap."""
    logged.write(0, b"ab")
    await fsync(logged)
    overwrite(logged, 5, b"c")
    await kill(logged)

    await lose_power(logged)

    assert content(logged, 0) == b"ab\0\0\0c"


async def test_lost_end_of_a_block_is_restored_from_the_newest_intent_log_entry(
    logged: CacheBench,
) -> None:
    block = logged.write(0, b"fsynced")
    await fsync(logged)
    overwrite(logged, 4, b"AGAIN")
    await fsync(logged)
    logged.files.cut_after(block, 3)

    await kill(logged)

    assert content(logged, 0) == b"fsynAGAIN"


async def test_end_of_a_truncated_block_file_is_restored_from_the_log(logged: CacheBench) -> None:
    """If a sync failed, recovery truncates the block file before its first lost byte."""
    block = logged.write(0, b"fsynced")
    await fsync(logged)
    overwrite(logged, 0, b"FS")
    logged.files.cut_after(block, 4)

    await kill(logged)

    assert content(logged, 0) == b"FSynced"


async def test_second_intent_log_of_an_epoch_contains_no_entries_of_the_first_log(
    logged: CacheBench,
) -> None:
    logged.write(0, b"first")
    await fsync(logged)
    logged.write(1, b"second")
    await fsync(logged)
    await kill(logged)
    await logged.prepare_log(32 * KIB)

    logged.write(2, b"third")
    await fsync(logged)

    [piece] = intent_replay.needed_pieces(logged.db, logged.files.root)
    assert piece.data == b"third"


async def test_first_intent_log_entry_makes_older_programs_quarantine_the_state(
    logged: CacheBench,
) -> None:
    """Older programs cannot read the intent log, so they quarantine the local state and the log."""
    assert not intent_replay.is_in_use(logged.db)
    logged.write(0, b"first")
    await fsync(logged)

    assert local_state.get(logged.db, "volatile") == "power"
    assert intent_replay.is_in_use(logged.db)
    assert cached_blocks.in_state(logged.db, BlockState.DIRTY)


async def test_mount_with_an_unreadable_intent_log_is_refused_with_advice_to_the_user(
    logged: CacheBench,
) -> None:
    """If the mount ignored an unreadable intent log, fsynced content would be lost."""
    logged.write(0, b"fsynced")
    await fsync(logged)
    log = logged.files.root / NAME
    log.unlink()
    log.mkdir()

    with pytest.raises(DatabaseError, match=r"intent-log' cannot be read .*move it away"):
        await lose_power(logged)


async def test_intent_log_keeps_content_if_the_cache_file_cannot_be_written(
    logged: CacheBench,
) -> None:
    """If a cache file cannot be written, the mount is refused until the disk is repaired."""
    block = logged.write(0, b"fsynced")
    await fsync(logged)
    lose_file(logged, block)
    in_the_way = logged.files.root / "xxx" / f"{block:x}"
    in_the_way.mkdir(parents=True)

    with pytest.raises(
        DatabaseError, match=r"Is a directory\); the content is still in .*/intent-log"
    ):
        await lose_power(logged)
    in_the_way.rmdir()
    await lose_power(logged)

    assert content(logged, 0) == b"fsynced"
