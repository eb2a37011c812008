"""Tests of walks towards the root in slices, which check that a rename makes no cycle."""

import pytest

from s3fs_meta.errors import InvalidRequestError, MetadataError, UnfinishedWalkError
from s3fs_meta.fs.ancestry import Ancestry
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.removed_trees import until_checked
from s3fs_meta.limits import DIRECTORY_DEPTH_MAX
from s3fs_meta.model import ROOT_INO, Ino
from tests.fs.conftest import DEEP_LEVELS, look, make_deep, make_directory, rename, sliced
from tests.fs.trees.samples import assert_sound

A_FEW = sliced(ancestors=2)


@A_FEW
async def test_rename_into_a_deep_directory_needs_several_slices(fs: Filesystem) -> None:
    deepest = make_deep(fs)[-1]
    moved = make_directory(fs, b"moved")
    slices = 0

    def move() -> None:
        nonlocal slices
        slices += 1
        fs.namespace.rename(ROOT_INO, b"moved", deepest, b"here")

    await until_checked(move)

    assert slices == DEEP_LEVELS // 2 + 1
    assert look(fs, b"here", deepest).ino == moved
    assert fs.lookup(ROOT_INO, b"moved") is None


@A_FEW
async def test_two_directories_inside_deep_directories_can_be_exchanged(fs: Filesystem) -> None:
    """Exchanging two deep directories takes two walks to the root, each in several slices."""
    left = make_deep(fs)
    top = make_directory(fs, b"top")
    await rename(fs, ROOT_INO, b"0", top, b"0")
    right = make_deep(fs)

    await rename(fs, left[-2], b"8", right[-2], b"8", 2)

    assert (look(fs, b"8", left[-2]).ino, look(fs, b"8", right[-2]).ino) == (right[-1], left[-1])
    assert_sound(fs)


@A_FEW
async def test_directory_cannot_be_moved_far_below_itself(fs: Filesystem) -> None:
    deepest = make_deep(fs)[-1]
    with pytest.raises(InvalidRequestError):
        await rename(fs, ROOT_INO, b"0", deepest, b"cycle")


@A_FEW
async def test_exchange_cannot_move_a_directory_far_below_itself(fs: Filesystem) -> None:
    """Only the second walk, from the other directory of the exchange, finds the cycle."""
    deepest = make_deep(fs)[-1]
    make_directory(fs, b"inner", deepest)
    with pytest.raises(InvalidRequestError):
        await rename(fs, deepest, b"inner", ROOT_INO, b"0", 2)


@A_FEW
async def test_walk_towards_the_root_begins_again_after_a_directory_was_moved(
    fs: Filesystem,
) -> None:
    """During the check, a directory above the target moves below the renamed directory."""
    chain = make_deep(fs)
    moved = make_directory(fs, b"moved")
    with pytest.raises(UnfinishedWalkError):
        fs.namespace.rename(ROOT_INO, b"moved", chain[-1], b"here")
    await rename(fs, chain[-3], b"7", moved, b"7")

    with pytest.raises(InvalidRequestError):
        await rename(fs, ROOT_INO, b"moved", chain[-1], b"here")


async def test_cycle_above_a_directory_is_detected(fs: Filesystem) -> None:
    ring = make_directory(fs, b"ring")
    fs.db.begin()
    fs.db.inodes.run("UPDATE inodes SET parent = ino WHERE ino = ?", (ring,))
    ancestry = Ancestry(fs.db, DIRECTORY_DEPTH_MAX)

    with pytest.raises(UnfinishedWalkError):
        ancestry.is_below(ring, Ino(999), outside=ROOT_INO)
    with pytest.raises(MetadataError):
        ancestry.is_below(ring, Ino(999), outside=ROOT_INO)
