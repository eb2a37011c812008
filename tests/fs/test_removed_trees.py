"""Which directories lie in a removed tree."""

import pytest

from s3fs_meta.errors import MetadataError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.removed_trees import TreeProgress
from s3fs_meta.model import ROOT_INO, Ino
from tests.fs.conftest import make_directory


async def test_what_came_last_is_taken_apart_first(fs: Filesystem) -> None:
    """So that the list stays short; what is noted twice is there once."""
    trees = fs.orphans.trees
    for top in (1, 2, 3, 2):
        trees.add(Ino(top))

    assert trees.last(2) == [3, 2]
    trees.finish(2)
    assert trees.last(9) == [1]
    trees.finish(1)
    assert not trees


async def test_directory_is_held_by_any_top_above_it(fs: Filesystem) -> None:
    """And by its own end; the root never is."""
    top = make_directory(fs, b"top")
    below = make_directory(fs, b"below", top)
    beside = make_directory(fs, b"beside")
    trees = fs.orphans.trees
    assert not trees.hold(below)
    fs.tree_removal.remove(ROOT_INO, b"top", top)

    assert [trees.hold(ino) for ino in (ROOT_INO, beside, top, below)] == [False, False, True, True]
    assert trees.hold(Ino(999))


async def test_directories_in_a_ring_are_an_error(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no endless loop."""
    monkeypatch.setattr("s3fs_meta.fs.removed_trees.DIRECTORY_DEPTH_MAX", 10)
    ring = make_directory(fs, b"ring")
    fs.db.begin()
    fs.db.inodes.run("UPDATE inodes SET parent = ino WHERE ino = ?", (ring,))
    with pytest.raises(MetadataError):
        fs.orphans.trees.hold(ring)


def test_known_rest_grows_with_directories() -> None:
    """And is never negative, even if a process adds names meanwhile."""
    progress = TreeProgress(1, 3).step(2, 10)
    assert progress == (3, 11)
    assert progress.step(20, 0) == (23, 0)
