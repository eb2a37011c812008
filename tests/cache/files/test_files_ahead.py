"""Block files that are created in advance for later blocks."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.cache.files.files_ahead import Numbers
from s3fs_meta.limits import FILES_AHEAD, FILES_AHEAD_MARGIN
from s3fs_meta.model import BlockId
from tests.polling import WAIT_S_MAX, until
from tests.tasks import running

MARGIN = FILES_AHEAD_MARGIN


class Blocks:
    """Creates blocks with consecutive numbers in a directory of block files."""

    def __init__(self, home: Path) -> None:
        self.files = BlockFiles(home / "blocks", home / "tmp")
        self.next = 1
        self.cached: set[int] = set()

    def create(self) -> bool:
        """Create the next block; return True if the directory entry of its file is durable."""
        block = BlockId(self.next)
        self.next += 1
        self.cached.add(block)
        return self.files.create(block, 0, b"content of %d" % block)

    async def run(self) -> None:
        """Run the task that creates block files in advance."""
        await self.files.ahead.run(Numbers(lambda: self.next, self.cached.__contains__))

    async def until_made(self, count: int = 1) -> None:
        """Wait until at least *count* files have been created in advance."""
        await until(lambda: len(self.files.ahead) >= count)


@pytest.fixture
def blocks(tmp_path: Path) -> Blocks:
    """Return an empty directory of block files."""
    return Blocks(tmp_path)


async def test_first_block_file_is_not_created_in_advance(blocks: Blocks) -> None:
    """No block file is created before the first write, because some mounts never write."""
    async with running(blocks.run):
        await trio.testing.wait_all_tasks_blocked()
        assert list(blocks.files.numbers()) == []


async def test_later_blocks_use_files_whose_directory_entries_are_already_durable(
    blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later blocks use files created in advance, so the directory is rarely synced."""
    synced: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    async with running(blocks.run):
        first = [blocks.create() for _ in range(MARGIN + 1)]
        await blocks.until_made()
        named = []
        for _ in range(4 * FILES_AHEAD):
            await blocks.until_made(FILES_AHEAD // 4)
            named.append(blocks.create())
    assert not any(first)
    assert named.count(False) <= MARGIN
    assert synced.count("xxx") <= 10
    for block in blocks.cached:
        content = b"content of %d" % block
        assert blocks.files.read(BlockId(block), 0, len(content)) == content


async def test_unused_files_created_in_advance_are_removed_at_unmount(blocks: Blocks) -> None:
    async with running(blocks.run):
        blocks.create()
        await blocks.until_made()
        assert len(list(blocks.files.numbers())) > 1
    assert set(blocks.files.numbers()) == blocks.cached
    assert not len(blocks.files.ahead)


def _pass_over(blocks: Blocks) -> None:
    blocks.next += MARGIN + FILES_AHEAD


def _replace(blocks: Blocks) -> None:
    """Replace a file that was created in advance with the file of another block."""
    blocks.next += MARGIN
    taken = BlockId(max(blocks.files.numbers()))
    blocks.files.take_over(BlockId(1), taken, 7)
    blocks.cached = {taken}
    blocks.next = taken + 1


@pytest.mark.parametrize("pass_over", [_pass_over, _replace])
async def test_files_created_in_advance_for_skipped_block_numbers_are_removed(
    blocks: Blocks, pass_over: Callable[[Blocks], None]
) -> None:
    """If a block already uses the file of a skipped number, the file is not removed."""
    async with running(blocks.run):
        blocks.create()
        await blocks.until_made()
        pass_over(blocks)
        passed = blocks.next
        with trio.fail_after(WAIT_S_MAX):
            while any(n < passed for n in set(blocks.files.numbers()) - blocks.cached):
                blocks.create()
                await trio.sleep(0.001)
    assert set(blocks.files.numbers()) == blocks.cached
    for block in blocks.cached:
        assert blocks.files.read(BlockId(block), 0, 7) == b"content"


async def test_late_creation_in_advance_keeps_the_content_of_a_used_block_file(
    blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow thread may create a file in advance although a block already uses its number."""
    real = os.open
    made: list[str] = []

    def overtake() -> None:
        while blocks.next < MARGIN + 20:
            blocks.create()

    def slow(path: str, flags: int, mode: int = 0o777) -> int:
        fd = real(path, flags, mode)
        if flags & os.O_EXCL:
            made.append(path)
            if len(made) == 10:
                trio.from_thread.run_sync(overtake)
        return fd

    monkeypatch.setattr(os, "open", slow)
    async with running(blocks.run):
        blocks.create()
        await blocks.until_made()
    assert set(blocks.files.numbers()) == blocks.cached
    assert blocks.next == MARGIN + 20
    for block in blocks.cached:
        assert blocks.files.read(BlockId(block), 0, 7) == b"content"


async def test_leftover_block_file_does_not_count_as_created_in_advance(blocks: Blocks) -> None:
    """An existing block file can contain data, so it does not count as created in advance."""
    leftover = BlockId(39)
    blocks.files.create(leftover, 0, b"x" * 1000)
    async with running(blocks.run):
        blocks.create()
        await blocks.until_made()
        while blocks.next <= leftover:
            blocks.create()
    assert blocks.files.size(leftover) == len(b"content of 39")


async def test_blocks_can_be_created_if_creation_of_files_in_advance_fails(
    blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk each block creates its own file and reports its own error."""
    real = os.open
    refused: list[str] = []

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_EXCL and len(refused) < 2:
            refused.append(path)
            raise OSError(28, "No space left on device")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    async with running(blocks.run):
        while len(refused) < 2:
            assert not blocks.create()
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(0.001)
        blocks.create()
        await blocks.until_made()
    assert set(blocks.files.numbers()) == blocks.cached


async def test_creation_of_files_in_advance_opens_no_file_if_no_descriptor_is_free(
    blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a free descriptor, no directory is synced; the disk does not count as failed."""
    real = os.open
    made: list[str] = []

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if len(made) == 3:
            raise OSError(errno.EMFILE, "Too many open files")
        if flags & os.O_EXCL:
            made.append(path)
        return real(path, flags, mode)

    async with running(blocks.run):
        monkeypatch.setattr(os, "open", refuse)
        blocks.create()
        await until(lambda: len(made) == 3)
        await until(lambda: set(blocks.files.numbers()) == blocks.cached)
        monkeypatch.undo()
        assert not len(blocks.files.ahead)

        blocks.create()
        await blocks.until_made()
    assert set(blocks.files.numbers()) == blocks.cached
