"""Syncs of block files: what counts as durable after success, failure and cancellation."""

import errno
from collections.abc import Collection, Sequence

import pytest
import trio

from s3fs_meta.limits import LOOP_SLICE_ROWS
from s3fs_meta.meta.tables import cached_blocks
from s3fs_meta.model import BlockId
from tests.cache.conftest import CacheBench


async def test_sync_records_the_synced_size_of_each_block_file(bench: CacheBench) -> None:
    """The rows of cached blocks change only if the synced sizes of their files have changed."""
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


async def test_failed_sync_leaves_its_blocks_unsynced(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later sync must not report success for blocks that the failed sync left unsynced."""
    bench.write(0, b"content")

    def fail(*_arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(bench.files, "sync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            await bench.cache.block_sync.sync_files()
    assert _synced_lengths(bench) == [0]

    await bench.cache.block_sync.sync_files()

    assert _synced_lengths(bench) == [7]


async def test_sync_that_is_cancelled_while_it_records_lengths_is_repeated(
    bench: CacheBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut truncates a block to its recorded length, so a cancelled sync is repeated."""
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
    """Bytes that are written after a running sync has passed the file are not synced."""
    bench.write(0, b"content")

    await bench.cache.block_sync.sync_files(
        meanwhile=lambda: bench.cache.write_in_place(bench.located(0), 7, b" and more")
    )

    assert _synced_lengths(bench) == [7]
    await bench.cache.block_sync.sync_files()
    assert _synced_lengths(bench) == [16]
