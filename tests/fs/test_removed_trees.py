"""Tests of the list of removed trees, and of the directories in these trees."""

from functools import partial

import pytest

from s3fs_meta.errors import MetadataError, NoEntryError, UnfinishedWalkError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.removed_trees import RemovedTrees, TreeProgress, until_checked
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.meta.trees import removed_trees
from s3fs_meta.model import ROOT_INO, Ino, InodeFlag
from tests.fs.conftest import USER, look, make_deep, make_directory, make_file, sliced
from tests.fs.trees.samples import assert_sound, clone, settled


async def test_newest_removed_tree_is_returned_first(fs: Filesystem) -> None:
    """The list contains each removed tree once, and begins with the tree that was removed last."""
    trees = fs.orphans.trees
    for top in (1, 2, 3, 2):
        trees.add(Ino(top))

    assert trees.last(2) == [3, 2]
    trees.finish(2)
    assert trees.last(9) == [1]
    trees.finish(1)
    assert not trees


async def test_all_directories_below_a_removed_directory_count_as_removed(fs: Filesystem) -> None:
    top = make_directory(fs, b"top")
    below = make_directory(fs, b"below", top)
    beside = make_directory(fs, b"beside")
    trees = fs.orphans.trees
    assert not trees.hold(below)
    fs.tree_removal.remove(ROOT_INO, b"top", top)

    assert [trees.hold(ino) for ino in (ROOT_INO, beside, top, below)] == [False, False, True, True]
    assert trees.hold(Ino(999))


async def test_very_deep_directory_is_not_mistaken_for_a_cycle(fs: Filesystem) -> None:
    """A walk towards the root may visit as many directories as there are inodes."""
    deep = make_directory(fs, b"below", make_directory(fs, b"top"))
    fs.db.begin()

    assert not fs.orphans.trees.hold(deep, depth_max=1)
    assert removed_trees.mark_upwards(fs.db, [deep], 9, depth_max=1)

    assert fs.getattr(ROOT_INO).flags & InodeFlag.HOLDS_LOCKED


async def test_removed_directories_are_skipped_when_parents_are_marked(fs: Filesystem) -> None:
    """A directory may lose its parent or its row before its mark is set."""
    removed = make_directory(fs, b"removed")
    fs.db.begin()
    fs.db.inodes.run("UPDATE inodes SET nlink = 0, parent = 999 WHERE ino = ?", (removed,))

    assert removed_trees.mark_upwards(fs.db, [removed, Ino(998)], 9)

    assert not fs.getattr(ROOT_INO).flags & InodeFlag.HOLDS_LOCKED


async def test_cycle_of_directories_raises_an_error(fs: Filesystem) -> None:
    """The search for a removed ancestor fails at a maximum depth, so it also ends in a cycle."""
    ring = make_directory(fs, b"ring")
    fs.db.begin()
    fs.db.inodes.run("UPDATE inodes SET parent = ino WHERE ino = ?", (ring,))
    with pytest.raises(MetadataError):
        RemovedTrees(fs.db, 11).hold(ring, depth_max=10)
    with pytest.raises(MetadataError):
        removed_trees.mark_upwards(fs.db, [ring], 30, depth_max=10)


@sliced(ancestors=2)
async def test_check_of_a_deep_directory_is_divided_into_slices(fs: Filesystem) -> None:
    """After each slice, the operation is refused and retried, so that other tasks can run."""
    chain = make_deep(fs)
    make_file(fs, b"file", make_directory(fs, b"other"))
    fs.tree_removal.remove(ROOT_INO, b"other", look(fs, b"other").ino)
    for _ in range(len(chain) // 2):
        with pytest.raises(UnfinishedWalkError):
            fs.namespace.make_directory(chain[-1], b"new", 0o755, USER)
    fs.namespace.make_directory(chain[-1], b"new", 0o755, USER)

    with pytest.raises(UnfinishedWalkError):
        fs.namespace.unlink(chain[-1], b"new")
    fs.tree_removal.remove(ROOT_INO, b"0", chain[0])
    with pytest.raises(NoEntryError):
        await until_checked(partial(fs.namespace.remove_directory, chain[-1], b"new"))
    await settled(fs)
    assert_sound(fs)


@sliced(ancestors=2)
async def test_directory_cannot_be_made_in_a_tree_that_is_removed_during_the_check(
    fs: Filesystem,
) -> None:
    """The check finds a removed tree even if it had passed the top of the tree before."""
    chain = make_deep(fs)
    make_file(fs, b"file", make_directory(fs, b"other"))
    fs.tree_removal.remove(ROOT_INO, b"other", look(fs, b"other").ino)
    with pytest.raises(UnfinishedWalkError):
        fs.namespace.make_directory(chain[-1], b"new", 0o755, USER)
    await until_checked(partial(fs.tree_removal.remove, chain[-3], b"7", chain[-2]))

    with pytest.raises(NoEntryError):
        await until_checked(partial(fs.namespace.make_directory, chain[-1], b"new", 0o755, USER))


@sliced(ancestors=2)
async def test_clone_into_a_very_deep_directory_succeeds(fs: Filesystem) -> None:
    chain = make_deep(fs)
    make_file(fs, b"file", make_directory(fs, b"other"))
    make_file(fs, b"file", chain[-1])
    fs.tree_removal.remove(ROOT_INO, b"other", look(fs, b"other").ino)

    await clone(fs, b"0", CloneTarget(chain[-1], b"copy"))
    assert fs.lookup(chain[-1], b"copy") is not None
    assert_sound(fs)


def test_remaining_work_of_a_tree_removal_increases_with_each_directory_found() -> None:
    """Each directory that a removal finds adds to its remaining work, which is never negative."""
    progress = TreeProgress(1, 3).step(2, 10)
    assert progress == (3, 11)
    assert progress.step(20, 0) == (23, 0)
