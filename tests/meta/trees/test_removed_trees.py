"""Deletion of the rows of removed trees in bulk."""

from collections import Counter

import pytest

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, blocks, dentries, hard_links, inodes, packs
from s3fs_meta.meta.trees import removed_trees
from s3fs_meta.meta.trees.removed_trees import Freed, Scope, TopTally
from s3fs_meta.model import ROOT_INO, Attributes, BlockId, BlockIndex, Ino, InodeFlag, ObjectKey
from tests.meta.conftest import NOW_NS


def _make(db: Database, parent: Ino, name: bytes, mode: int = 0o100644) -> Attributes:
    made = inodes.create(db, mode, 0, 0, parent, NOW_NS, nlink=2 if mode == 0o040755 else 1)
    dentries.add(db, parent, name, made.ino)
    inodes.change_directory(db, parent, NOW_NS, entries=1)
    return made


def test_ordinary_files_of_a_removed_directory_need_no_separate_queries(db: Database) -> None:
    """Only files with several names, blocks or xattrs need separate queries."""
    top = _make(db, ROOT_INO, b"top", 0o040755).ino
    plain = [_make(db, top, b"%d" % number).ino for number in range(3)]
    inodes.set_size(db, plain[0], 5, 0)
    pipe = _make(db, top, b"pipe", 0o010644).ino
    dentries.add(db, top, b"nothing", Ino(999))
    within = Scope([top], None)

    assert removed_trees.tally(db, within) == [TopTally(top, plain[0], plain[-1], 3, 5, 5, None)]
    found = {name.ino: name.mode for name in removed_trees.others(db, top, None)}
    assert found == {pipe: 0o010644, 999: None}
    assert len(removed_trees.others(db, top, None, plain=True)) == 5


@pytest.mark.parametrize(("names", "distance"), [(4, 0), (40, 0), (40, 100)])
def test_ordinary_files_of_a_removed_directory_are_deleted(
    db: Database, names: int, distance: int
) -> None:
    """Files are deleted whether their inode numbers are consecutive or scattered."""
    top = _make(db, ROOT_INO, b"top", 0o040755).ino
    for number in range(2 * names):
        _make(db, top, b"%d" % number)
        _make(db, ROOT_INO, b"kept %d" % number)
        db.counters.next_ino += distance
    for within in (removed_trees.scope(db, [top], names), Scope([top], None)):
        tallies = removed_trees.tally(db, within)
        assert [each.plain for each in tallies] == [names]
        removed_trees.delete_plain(db, tallies)
        removed_trees.remove_names(db, within)

    assert db.counters.inodes == 2 + 2 * names
    assert db.inodes.one("SELECT count(*) FROM inodes") == (db.counters.inodes,)
    assert db.counters.dentries == 1 + 2 * names


def test_files_of_many_removed_directories_are_deleted_together(db: Database) -> None:
    tops = [_make(db, ROOT_INO, b"%d" % number, 0o040755).ino for number in range(20)]
    for number, top in enumerate(tops):
        for each in range(number % 3):
            _make(db, top, b"%d" % each)
    within = Scope(tops, None)
    tallies = removed_trees.tally(db, within)
    assert sum(each.plain for each in tallies) == 19
    removed_trees.delete_plain(db, tallies)
    removed_trees.remove_names(db, within)

    assert db.counters.inodes == 1 + 20
    assert db.counters.dentries == 20


def test_slice_of_a_tree_removal_contains_complete_directories_or_part_of_the_first_directory(
    db: Database,
) -> None:
    tops = [_make(db, ROOT_INO, name, 0o040755).ino for name in (b"1", b"2", b"3")]
    for top in tops:
        for number in range(3):
            _make(db, top, b"%d" % number)

    assert removed_trees.scope(db, tops, 7) == Scope(tops[:2], None)
    assert removed_trees.scope(db, tops, 9) == Scope(tops, None)
    part = removed_trees.scope(db, tops, 2)
    assert part.parents == tops[:1]
    assert len(removed_trees.others(db, tops[0], part.until, plain=True)) == 2


def test_directories_that_are_marked_as_removed_are_listed(db: Database) -> None:
    """Marking a directory as removed changes only its ctime, link count and flags."""
    top = _make(db, ROOT_INO, b"top", 0o040755).ino
    removed_trees.mark_removed(db, [top], NOW_NS + 5)
    row = inodes.get(db, top)

    assert list(removed_trees.tops(db)) == [top]
    assert (row.nlink, row.flags) == (0, InodeFlag.REMOVED)
    assert (row.ctime_ns, row.mtime_ns, row.btime_ns) == (NOW_NS + 5, NOW_NS, NOW_NS)


def test_partly_removed_directory_has_the_size_of_its_remaining_entries(db: Database) -> None:
    """The size of a partly deleted directory is the number of its remaining entries."""
    top = _make(db, ROOT_INO, b"top", 0o040755).ino
    for number in range(5):
        _make(db, top, b"%d" % number)
    removed_trees.remove_names(db, removed_trees.scope(db, [top], 2))

    assert inodes.get(db, top).size_bytes == 3
    removed_trees.remove_names(db, Scope([top], None))
    assert dentries.is_empty(db, top)
    assert db.counters.dentries == 1


def test_inode_with_a_name_outside_a_removed_tree_keeps_the_name(db: Database) -> None:
    """An inode keeps its names outside the removed tree, and its parent contains one of them."""
    one, two = (_make(db, ROOT_INO, name, 0o040755).ino for name in (b"1", b"2"))
    made = [_make(db, one, name) for name in (b"a", b"b")]
    for parent in (two, ROOT_INO):
        for each in made:
            hard_links.link_added(db, inodes.get(db, each.ino), parent)
            inodes.add_links(db, each.ino, 1, NOW_NS)
    a, b = (each.ino for each in made)
    before = {name.ino: name for name in removed_trees.others(db, one, None)}
    removed_trees.drop_links(db, {(a, one): 1, (a, two): 1, (b, one): 1})
    removed_trees.lose_names(db, Counter({a: 2, b: 1}), before, NOW_NS + 1)

    assert [inodes.get(db, ino).nlink for ino in (a, b)] == [1, 2]
    assert inodes.get(db, a).parent == ROOT_INO
    assert inodes.get(db, b).parent == ROOT_INO
    assert hard_links.parents(db, b) == [(ROOT_INO, 1), (two, 1)]
    assert not hard_links.has_rows(db, a)


def test_unreferenced_blocks_of_removed_files_are_deleted(db: Database) -> None:
    """Rows of shared blocks and of blocks that are being uploaded are not deleted."""
    file, other = (_make(db, ROOT_INO, name).ino for name in (b"f", b"o"))
    made: list[BlockId] = []
    for index in range(4):
        block = db.counters.take_block()
        blocks.create_dirty(db, block, file, BlockIndex(index), 10)
        block_map.set(db, file, BlockIndex(index), block)
        made.append(block)
    pack = packs.create(db, ObjectKey("pack/00/1-00"), 100)
    packs.stored(db, pack)
    blocks.set_location(db, blocks.get(db, made[0]), b"h" * 32, pack, 0, 7)
    block_map.set(db, other, BlockIndex(0), made[1])
    blocks.add_ref(db, made[1])
    named = removed_trees.unmap_all(db, [file])
    dropped = removed_trees.drop_refs(db, named, {made[2]})

    assert dropped.skipped == 0
    assert dropped.freed == [Freed(made[0], 10, pack, 7), Freed(made[3], 10, None, None)]
    assert [blocks.get(db, block).refs for block in made[1:3]] == [1, 0]
    assert blocks.find(db, made[0]) is None
    assert packs.get(db, pack).died_txg is not None
    assert db.counters.block_bytes == 20
