"""Early write-back: large writes go to the disk before the next sync."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import trio
import trio.testing

from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.cache.files.early_write_back import EarlyWriteBack
from s3fs_meta.limits import EARLY_WRITE_BYTES, EARLY_WRITE_BYTES_MIN
from s3fs_meta.model import BlockId
from tests.cache.conftest import CacheBench
from tests.tasks import running

LARGE, REMOVED = BlockId(1), BlockId(2)
WAIT_S_MAX = 60.0


async def test_write_back_of_large_writes_starts_before_a_sync(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Early write-back skips the file of a removed block."""
    files = BlockFiles(tmp_path / "blocks", tmp_path / "tmp")
    real, started = files.start_write_back, trio.Event()
    begun: list[BlockId] = []

    def note(blocks: Iterable[BlockId]) -> None:
        begun.extend(blocks)
        real(begun)
        trio.from_thread.run_sync(started.set)

    monkeypatch.setattr(files, "start_write_back", note)
    early = EarlyWriteBack(files)
    files.create(LARGE, 0, b"x")
    with trio.fail_after(WAIT_S_MAX):
        async with running(early.run):
            early.note(REMOVED, EARLY_WRITE_BYTES_MIN)
            early.note(LARGE, EARLY_WRITE_BYTES)
            await started.wait()

    assert begun == [REMOVED, LARGE]


async def test_each_write_back_waits_for_the_same_number_of_new_bytes(tmp_path: Path) -> None:
    """Blocks that were synced or written back already do not count as new bytes."""
    early = EarlyWriteBack(BlockFiles(tmp_path / "blocks", tmp_path / "tmp"))
    left: list[list[BlockId]] = []
    async with running(early.run):
        for size_bytes in (EARLY_WRITE_BYTES - 1, EARLY_WRITE_BYTES - 1, EARLY_WRITE_BYTES):
            early.note(LARGE, size_bytes)
            await _idle()
            left.append(early.take())
        early.note(LARGE, EARLY_WRITE_BYTES - 1)
        await _idle()
        left.append(early.take())

    assert left == [[LARGE], [LARGE], [], [LARGE]]


async def _idle() -> None:
    """Wait for several thread calls, in which the task writes blocks back unless it waits."""
    for _ in range(5):
        await trio.testing.wait_all_tasks_blocked()
        await trio.to_thread.run_sync(int)


async def test_small_writes_do_not_start_early_write_back(bench: CacheBench) -> None:
    """Small files are left to the next sync, because programs often overwrite or remove them."""
    bench.write(0, bytes(EARLY_WRITE_BYTES_MIN - 1))
    large = bench.write(1, bytes(EARLY_WRITE_BYTES_MIN))
    new = bench.cache.block_sync.early.take()
    bench.cache.write_in_place(bench.located(1), 0, bytes(EARLY_WRITE_BYTES_MIN))
    bench.cache.write_in_place(bench.located(0), 0, b"x")

    assert [new, bench.cache.block_sync.early.take()] == [[large], [large]]


def test_early_write_back_skips_blocks_that_a_sync_already_takes(tmp_path: Path) -> None:
    early = EarlyWriteBack(BlockFiles(tmp_path / "blocks", tmp_path / "tmp"))
    early.note(LARGE, EARLY_WRITE_BYTES)

    assert [early.take(), early.take()] == [[LARGE], []]
