"""Tests of the walk over the content of trees."""

from collections.abc import Sequence

import pytest

from s3fs_meta.errors import MetadataError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.slices import Slices
from s3fs_meta.fs.trees.tree_walk import walk
from s3fs_meta.meta.trees.tree_content import TreeBlock
from s3fs_meta.model import ROOT_INO, Ino
from tests.fs.conftest import BLOCK_BYTES, look, make_directory, make_file

SMALL = Slices(names=2, directories=2, walked_blocks=3)


async def _found(fs: Filesystem, *roots: Ino) -> dict[Ino, int]:
    """Return the inodes that a walk finds, with the number of their blocks."""
    found: dict[Ino, set[int]] = {}
    slices_seen: list[int] = []

    def take(some: Sequence[TreeBlock]) -> None:
        slices_seen.append(len(some))
        for one in some:
            found.setdefault(one.ino, set()).add(one.block_index)

    await walk(fs.db, roots, take, SMALL)
    assert max(slices_seen) <= SMALL.walked_blocks
    return {ino: len(indexes) for ino, indexes in found.items()}


async def test_tree_walk_finds_every_block(fs: Filesystem) -> None:
    """A tree walk finds exactly the blocks of the tree, even with very small slices."""
    wanted = {}
    parents = [make_directory(fs, b"top")]
    for number in range(5):
        parents.append(make_directory(fs, b"d%d" % number, parents[number // 2]))
    for number, parent in enumerate(parents):
        for name in range(3):
            ino = make_file(fs, b"f%d" % name, parent)
            for index in range(number):
                await fs.write(ino, index * BLOCK_BYTES, b"x%d" % index)
            if number:
                wanted[ino] = number
    other = make_file(fs, b"other")
    await fs.write(other, 0, b"content")

    assert await _found(fs, parents[0]) == wanted
    assert await _found(fs, other) == {other: 1}
    assert await _found(fs, ROOT_INO, parents[0], ROOT_INO) == {**wanted, other: 1}
    assert await _found(fs, parents[0], other) == {**wanted, other: 1}


async def test_walk_of_two_nested_trees_reads_each_tree_completely(fs: Filesystem) -> None:
    """A walk of nested trees continues in the directory in which the last slice ended."""
    top = make_directory(fs, b"top")
    below = make_directory(fs, b"below", top)
    files = [make_file(fs, b"f%d" % number, below) for number in range(3)]
    for ino in files:
        await fs.write(ino, 0, b"content %d" % ino)

    assert await _found(fs, below, top) == dict.fromkeys(files, 1)
    assert await _found(fs, top, below) == dict.fromkeys(files, 1)


async def test_tree_walk_counts_all_blocks_of_a_hard_linked_file_once(fs: Filesystem) -> None:
    """A slice of a tree walk may end at either of the two names of a file."""
    top = make_directory(fs, b"top")
    long, short = make_file(fs, b"long", top), make_file(fs, b"short", top)
    fs.namespace.link(long, top, b"again")
    for index in range(4):
        await fs.write(long, index * BLOCK_BYTES, b"x%d" % index)
    await fs.write(short, 0, b"short")

    assert await _found(fs, top) == {long: 4, short: 1}


async def test_tree_walk_of_a_removed_inode_finds_no_blocks(fs: Filesystem) -> None:
    assert await _found(fs, make_directory(fs, b"empty"), Ino(99)) == {}


async def test_cycle_of_directories_stops_the_tree_walk_with_an_error(fs: Filesystem) -> None:
    """If damaged rows form a cycle of directories, the walk raises an error and ends."""
    top = make_directory(fs, b"top")
    below = make_directory(fs, b"below", top)
    make_directory(fs, b"again", below)
    fs.db.begin()
    fs.db.run("UPDATE dentries SET ino = ? WHERE parent = ?", (top, look(fs, b"below", top).ino))
    with pytest.raises(MetadataError, match="cycle"):
        await _found(fs, top)
