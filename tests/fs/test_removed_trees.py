"""Recognising directories in removed trees."""

import pytest

from s3fs_meta.errors import MetadataError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.removed_trees import TreeProgress
from s3fs_meta.model import ROOT_INO, Ino
from tests.fs.conftest import make_directory


async def test_last_top_is_taken_apart_first(fs: Filesystem) -> None:
    """The last top is taken apart first, which keeps the list short."""
    trees = fs.orphans.trees
    for top in (1, 2, 3, 2):
        trees.add(Ino(top))

    assert trees.last(2) == [3, 2]
    trees.finish(2)
    assert trees.last(9) == [1]
    trees.finish(1)
    assert not trees


async def test_directory_below_a_top_counts_as_removed(fs: Filesystem) -> None:
    """A removed directory and all directories below it count as removed."""
    top = make_directory(fs, b"top")
    below = make_directory(fs, b"below", top)
    beside = make_directory(fs, b"beside")
    trees = fs.orphans.trees
    assert not trees.hold(below)
    fs.tree_removal.remove(ROOT_INO, b"top", top)

    assert [trees.hold(ino) for ino in (ROOT_INO, beside, top, below)] == [False, False, True, True]
    assert trees.hold(Ino(999))


async def test_cycle_of_directories_is_an_error(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cycle of directories is an error, without an endless loop."""
    monkeypatch.setattr("s3fs_meta.fs.removed_trees.DIRECTORY_DEPTH_MAX", 10)
    ring = make_directory(fs, b"ring")
    fs.db.begin()
    fs.db.inodes.run("UPDATE inodes SET parent = ino WHERE ino = ?", (ring,))
    with pytest.raises(MetadataError):
        fs.orphans.trees.hold(ring)


def test_known_remainder_grows_with_directories() -> None:
    """The known remainder grows with directories and is never negative."""
    progress = TreeProgress(1, 3).step(2, 10)
    assert progress == (3, 11)
    assert progress.step(20, 0) == (23, 0)
