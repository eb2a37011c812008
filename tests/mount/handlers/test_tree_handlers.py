"""Tests of the handlers of rm, clone and lock requests: argument checks and progress."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from s3fs_meta.control.plain_call import no_report
from s3fs_meta.control.protocol import Message
from s3fs_meta.errors import (
    DatabaseError,
    HeldError,
    NoEntryError,
    ReadOnlyStateError,
    UsageError,
)
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.slices import DEFAULT_SLICES, Slices
from s3fs_meta.fs.write_gate import Invalidations, KernelNotices
from s3fs_meta.model import ROOT_INO, InodeFlag
from s3fs_meta.mount.handlers.change_requests import ChangeRequests
from s3fs_meta.mount.handlers.tree_handlers import TreeHandlers
from s3fs_meta.mount_state import MountState
from tests.fs.conftest import Volume, look, make_directory, make_file


@pytest.fixture
async def fs(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Filesystem]:
    """Return a filesystem with a tree of 43 names."""
    volume = Volume(tmp_path)
    await volume.make()
    slices = getattr(request, "param", DEFAULT_SLICES)
    async with volume.mounted(slices=slices) as filesystem:
        top = make_directory(filesystem, b"tree")
        for number in range(6):
            below = make_directory(filesystem, b"%d" % number, top)
            for each in range(6):
                make_file(filesystem, b"%d" % each, below)
        yield filesystem


async def _collected() -> bool:
    """Collect dirty pages of a kernel that has none."""
    await trio.lowlevel.checkpoint()
    return True


def _tree(fs: Filesystem) -> dict[str, Any]:
    return {"parent": ROOT_INO, "name": "tree", "ino": look(fs, b"tree").ino}


async def test_file_name_in_a_control_request_can_contain_arbitrary_bytes(fs: Filesystem) -> None:
    ino = make_directory(fs, b"a\xff")
    trees = TreeHandlers(fs, check_remount=bool, collect=_collected)
    arguments = {"parent": ROOT_INO, "name": "a\udcff", "ino": ino}
    assert await trees.handlers()["lock"](arguments, print) == {"entries": 1}


@pytest.mark.parametrize(
    "arguments", [{}, {"parent": "1", "name": "a", "ino": 2}, {"parent": 1, "name": 3, "ino": 2}]
)
async def test_malformed_request_about_a_tree_is_refused(
    fs: Filesystem, arguments: Message
) -> None:
    """If a field is missing or has a wrong type, the error names the required fields."""
    trees = TreeHandlers(fs, check_remount=bool, collect=_collected)
    for command in ("remove", "lock"):
        with pytest.raises(UsageError, match="needs the fields parent, name and ino"):
            await trees.handlers()[command](arguments, print)


@pytest.mark.parametrize("fs", [Slices(names=4, cloned_names=4)], indirect=True)
async def test_clone_and_lock_commands_report_progress(
    fs: Filesystem, mock_clock: MockClock
) -> None:
    """Progress of clone and lock is sent to the client, and included in the mount's figures."""
    mock_clock.rate = 1e6  # The clock is so fast that each slice causes a progress report.
    trees = TreeHandlers(fs, check_remount=bool, collect=_collected)
    reported: list[Message] = []
    seen: list[dict[str, Any]] = []

    def report(event: Message) -> None:
        reported.append(event)
        seen.append(trees.figures())

    handlers = trees.handlers()
    target = {"parent": ROOT_INO, "name": "copy", "ino": 0}
    result = await handlers["clone"]({"source": _tree(fs), "target": target}, report)
    assert result == {"entries": 43}
    assert reported[0] == {"what": "copying", "done": 5, "total": 31}
    assert seen[0]["copying"] == {"done": 5, "left": 26}
    assert reported[-1] == {"what": "copying", "done": 43, "total": 43}
    assert await handlers["lock"](_tree(fs), report) == {"entries": 43}
    assert reported[-1] == {"what": "locking", "done": 43, "total": 43}
    assert seen[-1]["locking"] == {"done": 43, "left": 0}
    assert trees.figures()["copying"] is trees.figures()["locking"] is None


async def test_waiting_for_a_removal_fails_if_the_mount_becomes_degraded(
    fs: Filesystem, mock_clock: MockClock
) -> None:
    """A handler that waits for a removal fails if the mount no longer accepts changes."""
    mock_clock.autojump_threshold = 0
    trees = TreeHandlers(fs, check_remount=bool, collect=_collected)
    reported: list[Message] = []
    arguments = {**_tree(fs), "wait": True}
    with trio.move_on_after(0.3):  # The call waits forever, because no task removes the tree.
        await trees.handlers()["remove"](arguments, reported.append)
    assert reported[0] == {"what": "removing", "done": 0, "total": 6}
    fs.tree_removal.remove_slice()
    assert trees.figures()["removing"] is None
    fs.orphans.trees.add(ROOT_INO, 1)
    fs.status.degrade("a test")
    with pytest.raises(ReadOnlyStateError):
        await trees.wait_for_removal(lambda _progress: None)


async def test_removal_that_fails_in_the_middle_is_undone(fs: Filesystem) -> None:
    """The next commit must not contain a removed name whose tree was not marked as removed."""
    fs.db.commit()
    fs.db.connection.execute(
        "CREATE TEMP TRIGGER failing BEFORE UPDATE ON inodes WHEN NEW.nlink = 0"
        " BEGIN SELECT RAISE(ABORT, 'a test'); END"
    )
    trees = TreeHandlers(fs, check_remount=bool, collect=_collected)
    before, arguments = fs.getattr(ROOT_INO), _tree(fs)

    with pytest.raises(DatabaseError):
        await trees.handlers()["remove"](arguments, no_report)

    fs.db.commit()
    assert (fs.getattr(ROOT_INO), _tree(fs)) == (before, arguments)
    assert fs.status.state is MountState.DEGRADED


async def test_removal_is_undone_if_an_unexpected_exception_ends_it(tmp_path: Path) -> None:
    bugs = [RuntimeError("a test")]

    def fail_once(_changed: Invalidations) -> None:
        if bugs:
            raise bugs.pop()

    volume = Volume(tmp_path)
    await volume.make()
    async with volume.mounted(notices=KernelNotices(changed=fail_once)) as fs:
        make_directory(fs, b"tree")
        fs.db.commit()
        trees = TreeHandlers(fs, check_remount=bool, collect=_collected)

        with pytest.raises(RuntimeError):
            await trees.handlers()["remove"](_tree(fs), no_report)

        assert fs.lookup(ROOT_INO, b"tree") is not None
        assert fs.status.state is MountState.DEGRADED


async def test_refused_removal_leaves_the_mount_writable(fs: Filesystem) -> None:
    trees = TreeHandlers(fs, check_remount=bool, collect=_collected)

    with pytest.raises(NoEntryError):
        await trees.handlers()["remove"]({**_tree(fs), "name": "absent"}, no_report)

    assert fs.status.writable


async def test_malformed_clone_request_is_refused(fs: Filesystem) -> None:
    """A clone from the past is also refused if the mount does not serve the past yet."""
    trees = TreeHandlers(fs, check_remount=bool, collect=_collected)
    handlers = trees.handlers()
    target = {"parent": ROOT_INO, "name": "copy", "ino": 0}
    for arguments in ({}, {"source": _tree(fs)}, {"target": target}, {"source": 1, "target": 2}):
        for command in ("clone", "clone_past"):
            with pytest.raises(UsageError):
                await handlers[command](arguments, print)
    with pytest.raises(UsageError, match="does not serve"):
        await handlers["clone_past"]({"source": {"ino": 1}, "target": target}, print)


@pytest.mark.parametrize(("command", "name"), [("clone", b"copy"), ("remove", b"tree")])
async def test_unmount_does_not_hide_the_result_of_a_complete_request(
    fs: Filesystem, mock_clock: MockClock, command: str, name: bytes
) -> None:
    """The unmount cancels a request that only waits for the kernel to forget a name."""
    mock_clock.autojump_threshold = 0
    trees = TreeHandlers(fs, check_remount=bool, collect=_collected)
    requests = ChangeRequests()
    handler = requests.guarded(trees.handlers())[command]
    target = {"parent": ROOT_INO, "name": "copy", "ino": 0}
    arguments = {"clone": {"source": _tree(fs), "target": target}, "remove": _tree(fs)}[command]
    was_there = fs.lookup(ROOT_INO, name) is not None
    answers: list[Message] = []

    async def call() -> None:
        answers.append(await handler(arguments, no_report))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        while (fs.lookup(ROOT_INO, name) is not None) == was_there:  # noqa: ASYNC110 - no event
            await trio.lowlevel.checkpoint()
        assert not answers
        await requests.end()

    assert answers == [{"clone": {"entries": 43}, "remove": {}}[command]]


async def test_tree_is_not_locked_while_the_kernel_has_dirty_pages(fs: Filesystem) -> None:
    """The kernel's later writes to a locked file would fail, and their data would be lost."""

    async def collect() -> bool:
        await trio.lowlevel.checkpoint()
        return False

    trees = TreeHandlers(fs, check_remount=bool, collect=collect)

    with pytest.raises(HeldError, match="nothing was locked"):
        await trees.handlers()["lock"](_tree(fs), no_report)

    assert not look(fs, b"tree").flags & InodeFlag.LOCKED
