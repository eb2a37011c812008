"""The list of removed trees, and the directories in these trees."""

import pytest

from s3fs_meta.errors import MetadataError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.removed_trees import TreeProgress
from s3fs_meta.meta.trees import removed_trees
from s3fs_meta.model import ROOT_INO, Ino, InodeFlag
from tests.fs.conftest import make_directory


async def test_newest_removed_tree_is_returned_first(fs: Filesystem) -> None:
    """The list of removed trees contains each tree once, and begins with the newest."""
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
    removed_trees.note_locked_below(fs.db, deep, depth_max=1)

    assert fs.getattr(ROOT_INO).flags & InodeFlag.HOLDS_LOCKED


async def test_cycle_of_directories_raises_an_error(fs: Filesystem) -> None:
    """The search for a removed ancestor fails at a maximum depth, so that a cycle ends it."""
    ring = make_directory(fs, b"ring")
    fs.db.begin()
    fs.db.inodes.run("UPDATE inodes SET parent = ino WHERE ino = ?", (ring,))
    with pytest.raises(MetadataError):
        fs.orphans.trees.hold(ring, depth_max=10)


def test_remaining_work_of_a_tree_removal_increases_with_each_directory_found() -> None:
    """Each directory that a removal finds adds to its remaining work, which is never negative."""
    progress = TreeProgress(1, 3).step(2, 10)
    assert progress == (3, 11)
    assert progress.step(20, 0) == (23, 0)
