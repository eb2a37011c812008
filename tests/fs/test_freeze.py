"""A freeze of one tree, which blocks the writers of that tree only."""

from collections.abc import Sequence

import pytest
import trio

from s3fs_meta.errors import FreezeEndedError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.freeze import FreezeWish
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.model import ROOT_INO, Ino
from tests.fs.conftest import look, make_directory, make_file
from tests.fs.trees.samples import COPY, assert_sound, ignore

LONG_S = 1000.0  # longer than the waits of these tests


async def _is_held(fs: Filesystem, *inos: Ino) -> bool:
    with trio.move_on_after(1) as scope:
        await fs.freeze.passed(inos)
    return scope.cancelled_caught


async def test_only_files_in_the_tree_are_blocked(
    fs: Filesystem, autojump_clock: trio.testing.MockClock
) -> None:
    """Inodes are blocked at any depth of the tree, even if only one of their names is in it."""
    top = make_directory(fs, b"top")
    below = make_directory(fs, b"below", top)
    deep, beside = make_file(fs, b"deep", below), make_file(fs, b"beside")
    linked = make_file(fs, b"linked")
    fs.namespace.link(linked, below, b"linked")
    with fs.freeze.hold(top, LONG_S):
        for ino in (top, below, deep, linked):
            assert await _is_held(fs, beside, ino)
        for ino in (ROOT_INO, beside, Ino(999)):
            assert not await _is_held(fs, ino)
    assert not await _is_held(fs, top)


async def test_all_waiting_writers_continue_when_a_freeze_ends(
    fs: Filesystem, autojump_clock: trio.testing.MockClock
) -> None:
    """All waiting writers continue when a freeze ends, even by an exception."""
    top = make_directory(fs, b"top")
    heard: list[bool] = []
    fs.freeze.when_changed(heard.append)
    async with trio.open_nursery() as nursery:
        with pytest.raises(RuntimeError), fs.freeze.hold(top, LONG_S):  # noqa: PT012 - both wait
            for _ in range(3):
                nursery.start_soon(fs.freeze.passed, [top])
            await trio.testing.wait_all_tasks_blocked()
            assert fs.freeze.waiting == 3
            raise RuntimeError
    assert fs.freeze.waiting == 0
    assert heard == [True, False]


async def test_freeze_ends_after_its_time_limit(
    fs: Filesystem, autojump_clock: trio.testing.MockClock
) -> None:
    """After its limit a freeze ends with an error that has the limit."""
    top = make_directory(fs, b"top")
    with pytest.raises(FreezeEndedError, match="blocked for 3 s"), fs.freeze.hold(top, 3):
        await trio.sleep_forever()
    assert not fs.freeze.is_held


async def test_too_many_waiting_requests_end_a_freeze(
    fs: Filesystem, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A freeze ends when too many requests wait, so that other requests find free workers."""
    monkeypatch.setattr("s3fs_meta.fs.freeze.HELD_BACK_MAX", 2)
    top = make_directory(fs, b"top")
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(_wait_until_frozen, fs, [top])
        with (
            pytest.raises(FreezeEndedError, match="2 blocked requests wait"),
            fs.freeze.hold(top, LONG_S),
        ):
            await trio.sleep_forever()
    assert not await _is_held(fs, top)


async def _wait_until_frozen(fs: Filesystem, inos: Sequence[Ino]) -> None:
    await trio.sleep(1)
    await fs.freeze.passed(inos)


async def test_copy_in_a_freeze_that_takes_too_long_is_removed(
    fs: Filesystem, autojump_clock: trio.testing.MockClock
) -> None:
    """If the freeze exceeds its limit, the incomplete copy is removed and no writer waits."""
    top = make_directory(fs, b"tree")
    make_file(fs, b"f", top)

    with pytest.raises(FreezeEndedError):
        await fs.tree_clone.clone(
            CloneTarget(ROOT_INO, b"tree"),
            top,
            COPY,
            ignore,
            freeze=FreezeWish(5, trio.sleep_forever),
        )
    assert fs.lookup(*COPY) is None
    assert not fs.freeze.is_held
    assert_sound(fs)


async def test_copy_begins_after_the_kernel_s_write_back(fs: Filesystem) -> None:
    """Writes that arrive while the kernel writes back are part of the copy."""
    top = make_directory(fs, b"tree")

    async def settle() -> None:
        await trio.lowlevel.checkpoint()
        assert fs.freeze.is_held
        assert not fs.freeze.is_still
        make_file(fs, b"late", top)

    await fs.tree_clone.clone(
        CloneTarget(ROOT_INO, b"tree"), top, COPY, ignore, freeze=FreezeWish(5, settle)
    )
    look(fs, b"late", look(fs, b"copy").ino)
    assert not fs.freeze.is_still
