"""The table of open block files: which descriptors stay open, which are closed first."""

import gc
import os
import resource
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.cache.files import open_blocks
from s3fs_meta.cache.files.open_blocks import OpenBlocks
from s3fs_meta.model import BlockId

ONE, TWO, THREE = BlockId(1), BlockId(2), BlockId(3)


def opened(tmp_path: Path) -> int:
    """Return a new descriptor of a file in *tmp_path*."""
    return os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)


def is_open(fd: int) -> bool:
    """Return whether a descriptor is open."""
    return os.path.exists(f"/proc/self/fd/{fd}")


def test_oldest_open_block_file_is_closed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most OPEN_BLOCKS_MAX block files stay open; the file opened first is closed first."""
    monkeypatch.setattr(open_blocks, "OPEN_BLOCKS_MAX", 2)
    held = OpenBlocks()
    fds = [opened(tmp_path) for _ in range(3)]
    for block, fd in zip((ONE, TWO, THREE), fds, strict=True):
        held.put(block, fd)

    assert [held.get(block) for block in (ONE, TWO, THREE)] == [None, *fds[1:]]
    assert [is_open(fd) for fd in fds] == [False, True, True]


def test_block_file_dropped_by_a_thread_is_closed_by_the_event_loop(tmp_path: Path) -> None:
    """If a thread may still read a dropped block file, the event loop closes the file later."""
    held = OpenBlocks()
    fd = opened(tmp_path)
    held.put(ONE, fd)

    held.forget(ONE)
    assert held.get(ONE) is None
    assert is_open(fd)

    held.close_forgotten()
    assert not is_open(fd)


def test_new_block_file_replaces_the_old_descriptor_with_the_same_number(tmp_path: Path) -> None:
    """A new block may reuse the number of a rolled-back block, but not its open file."""
    held = OpenBlocks()
    old, new = opened(tmp_path), opened(tmp_path)
    held.put(ONE, old)

    held.put(ONE, new)

    assert held.get(ONE) == new
    assert not is_open(old)


def test_deletion_of_the_table_of_open_block_files_closes_all_files(tmp_path: Path) -> None:
    held = OpenBlocks()
    fds = [opened(tmp_path), opened(tmp_path)]
    held.put(ONE, fds[0])
    held.put(TWO, fds[1])
    held.forget(ONE)

    del held
    gc.collect()

    assert not any(is_open(fd) for fd in fds)


@pytest.fixture
def _hasty_threads() -> Iterator[None]:
    """Make the interpreter switch threads as often as possible."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("_hasty_threads")
@pytest.mark.parametrize("rounds", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_threads_may_drop_block_files_while_the_event_loop_closes_other_files(
    monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    monkeypatch.setattr(open_blocks, "OPEN_BLOCKS_MAX", 64)
    held = OpenBlocks()
    newest, ended = 0, threading.Event()
    gc.collect()  # Tables of earlier tests must not close their files during this test.
    before = len(os.listdir("/proc/self/fd"))

    def forget() -> None:
        while not ended.is_set():
            held.forget(BlockId(newest - 32))

    threads = [threading.Thread(target=forget) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for newest in range(rounds):
            held.put(BlockId(newest), os.dup(0))
    finally:
        ended.set()
        for thread in threads:
            thread.join()

    held.close_forgotten()
    kept = sum(held.get(BlockId(number)) is not None for number in range(rounds))
    assert kept <= 64
    assert len(os.listdir("/proc/self/fd")) == before + kept


@pytest.mark.usefixtures("_hasty_threads")
def test_block_file_stays_open_for_its_reader_if_a_thread_drops_it(tmp_path: Path) -> None:
    """The event loop may read a file that it has just opened, although a thread removes the block.

    Otherwise the number of the closed descriptor could already belong to another file.
    """
    held, ended = OpenBlocks(), threading.Event()

    def forget() -> None:
        while not ended.is_set():
            held.forget(ONE)

    thread = threading.Thread(target=forget)
    thread.start()
    try:
        for _ in range(20_000):
            fd = opened(tmp_path)
            held.put(ONE, fd)
            os.fstat(fd)
    finally:
        ended.set()
        thread.join()


def test_process_with_a_low_file_limit_keeps_fewer_block_files_open(tmp_path: Path) -> None:
    """The table keeps at most a quarter of RLIMIT_NOFILE block files open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, limits[1]))
    try:
        held = OpenBlocks()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    fds = [opened(tmp_path) for _ in range(150)]
    for number, fd in enumerate(fds):
        held.put(BlockId(number), fd)

    assert sum(map(is_open, fds)) == 100
