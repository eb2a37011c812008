"""Tests of marks on the directories above a locked or immutable inode."""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio

from s3fs_meta.errors import NoInodeError, NotPermittedError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.flags.inode_flags import FS_APPEND_FL, FS_IMMUTABLE_FL
from s3fs_meta.fs.flags.name_marks import mark_above
from s3fs_meta.fs.removed_trees import until_checked
from s3fs_meta.fs.slices import Slices
from s3fs_meta.limits import MARK_PASSES_MAX
from s3fs_meta.model import ROOT_INO, Ino, InodeFlag
from tests.fs.conftest import exists, look, make_deep, make_directory, make_file, rename, sliced
from tests.fs.trees.samples import assert_sound

Protect = Callable[[Filesystem, Ino], Awaitable[object]]

PROTECTIONS: tuple[Protect, ...] = (
    lambda fs, ino: fs.flags.set(ino, FS_IMMUTABLE_FL, is_root=True),
    lambda fs, ino: fs.flags.set(ino, FS_APPEND_FL, is_root=True),
    lambda fs, ino: fs.tree_lock.lock(ROOT_INO, b"file", ino),
)


def _marked(fs: Filesystem, directories: list[Ino]) -> list[bool]:
    return [bool(fs.getattr(ino).flags & InodeFlag.HOLDS_LOCKED) for ino in directories]


def _linked(fs: Filesystem, count: int) -> tuple[Ino, list[Ino]]:
    """Create a file with names in the root directory and in *count* other directories."""
    ino = make_file(fs, b"file")
    above = make_directory(fs, b"above")
    directories = [make_directory(fs, b"%d" % number, above) for number in range(count)]
    for directory in directories:
        fs.namespace.link(ino, directory, b"name")
    return ino, [ROOT_INO, above, *directories]


@pytest.mark.parametrize("protect", PROTECTIONS)
@sliced(names=3, directories=2)
async def test_other_tasks_run_while_the_directories_above_many_names_are_marked(
    fs: Filesystem, protect: Protect
) -> None:
    """A name that another task adds while directories are marked is found."""
    early = make_directory(fs, b"early")
    ino, directories = _linked(fs, 9)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(protect, fs, ino)
        while not any(_marked(fs, directories)):  # noqa: ASYNC110 - the task sets no event
            await trio.lowlevel.checkpoint()
        assert not fs.flags.get(ino)
        assert not all(_marked(fs, directories))
        fs.namespace.link(ino, early, b"late")

    assert all(_marked(fs, [early, *directories]))
    with pytest.raises(NotPermittedError):
        fs.tree_removal.remove(ROOT_INO, b"early", early)
    assert fs.flags.get(ino)
    assert_sound(fs)


@sliced(names=3, directories=2)
async def test_large_file_inside_a_locked_tree_is_marked_in_slices(fs: Filesystem) -> None:
    """A file with more names than fit into a slice does not block other tasks."""
    ino, directories = _linked(fs, 9)
    top = make_directory(fs, b"tree")
    fs.namespace.link(ino, top, b"inner")
    other = make_file(fs, b"other")
    passes = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fs.tree_lock.lock, ROOT_INO, b"tree", top)
        while not fs.flags.get(ino):  # noqa: ASYNC110 - the task sets no event
            passes += any(_marked(fs, directories[2:]))
            await trio.lowlevel.checkpoint()

    assert passes > 1
    assert all(_marked(fs, directories))
    assert not fs.flags.get(other)
    assert_sound(fs)


@sliced(names=3, directories=2)
async def test_marking_ends_although_another_task_keeps_adding_names(fs: Filesystem) -> None:
    """The earlier passes let other tasks run.

    The last pass does not, so it marks every directory.
    """
    early = [make_directory(fs, b"early %d" % number) for number in range(40 * MARK_PASSES_MAX)]
    ino, directories = _linked(fs, 9)
    is_marked = False

    async def add() -> None:
        for directory in reversed(early):
            if is_marked:
                break
            fs.namespace.link(ino, directory, b"name")
            directories.append(directory)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(add)
        await mark_above(fs.db, fs.changes, ino, Slices(directories=2, ancestors=2))
        is_marked = True
        assert len(directories) < len(early)
        assert all(_marked(fs, directories))


@sliced(directories=2)
async def test_removal_of_an_inode_while_its_directories_are_marked_is_reported(
    fs: Filesystem,
) -> None:
    ino, _directories = _linked(fs, 9)
    async with trio.open_nursery() as nursery:

        async def protect() -> None:
            with pytest.raises(NoInodeError):
                await fs.flags.set(ino, FS_IMMUTABLE_FL, is_root=True)

        nursery.start_soon(protect)
        await trio.lowlevel.checkpoint()
        fs.namespace.unlink(ROOT_INO, b"file")
        above = fs.lookup(ROOT_INO, b"above")
        assert above is not None
        for number in range(9):
            directory = fs.lookup(above.ino, b"%d" % number)
            assert directory is not None
            fs.namespace.unlink(directory.ino, b"name")
    assert not exists(fs, ino)


@pytest.mark.parametrize("protect", PROTECTIONS)
@sliced(ancestors=2)
async def test_directories_above_a_deep_directory_are_marked_from_the_top_in_slices(
    fs: Filesystem, protect: Protect
) -> None:
    """If the process is killed between two slices, no marked directory is below an unmarked one."""
    ino, chain = make_file(fs, b"file"), make_deep(fs)
    fs.namespace.link(ino, chain[-1], b"deep")
    slices = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(protect, fs, ino)
        while not look(fs, b"file").flags & InodeFlag.PROTECTED:  # noqa: ASYNC110 - no event
            marked = _marked(fs, chain)
            assert marked == sorted(marked, reverse=True)
            slices += 1
            await trio.lowlevel.checkpoint()

    assert slices > len(chain) // 2
    assert all(_marked(fs, chain))
    assert_sound(fs)


@sliced(ancestors=2)
async def test_directory_that_is_moved_between_two_slices_is_marked_at_its_new_location(
    fs: Filesystem,
) -> None:
    ino, chain, other = make_file(fs, b"file"), make_deep(fs), make_directory(fs, b"other")
    fs.namespace.link(ino, chain[-1], b"deep")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(fs.flags.set, ino, FS_IMMUTABLE_FL, is_root=True))
        while not any(_marked(fs, chain)):  # noqa: ASYNC110 - the task sets no event
            await trio.lowlevel.checkpoint()
        await rename(fs, chain[-3], b"7", other, b"7")

    assert all(_marked(fs, [other, *chain[-2:]]))
    with pytest.raises(NotPermittedError):
        fs.tree_removal.remove(ROOT_INO, b"other", other)
    assert_sound(fs)


@sliced(ancestors=2)
async def test_rename_marks_the_directories_above_the_new_name_in_slices(fs: Filesystem) -> None:
    chain, moved = make_deep(fs), make_directory(fs, b"moved")
    await fs.tree_lock.lock(moved, b"file", make_file(fs, b"file", moved))
    steps = 0

    def move() -> None:
        nonlocal steps
        steps += 1
        marked = _marked(fs, chain)
        assert marked == sorted(marked, reverse=True)
        fs.namespace.rename(ROOT_INO, b"moved", chain[-1], b"moved")

    await until_checked(move)
    assert steps > len(chain)
    assert all(_marked(fs, chain))
    with pytest.raises(NotPermittedError):
        fs.tree_removal.remove(ROOT_INO, b"0", chain[0])
    assert_sound(fs)
