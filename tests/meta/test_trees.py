"""Rows of removed trees, many at once."""

from collections import Counter

from s3fs_meta.meta import block_map, blocks, dentries, inodes, links, packs, trees
from s3fs_meta.meta.database import Database
from s3fs_meta.meta.trees import Freed
from s3fs_meta.model import ROOT_INO, Attributes, BlockId, BlockIndex, Ino, InodeFlag, ObjectKey

from .conftest import NOW_NS


def _make(db: Database, parent: Ino, name: bytes, mode: int = 0o100644) -> Attributes:
    made = inodes.create(db, mode, 0, 0, parent, NOW_NS, nlink=2 if mode == 0o040755 else 1)
    dentries.add(db, parent, name, made.ino)
    inodes.change_directory(db, parent, NOW_NS, entries=1)
    return made


def test_names_come_by_directory_and_tell_what_is_plain(db: Database) -> None:
    """A length is enough of a plain file; of the others more is asked for."""
    first, second = (_make(db, ROOT_INO, name, 0o040755).ino for name in (b"1", b"2"))
    plain = _make(db, second, b"plain")
    inodes.set_size(db, plain.ino, 5, 0)
    pipe = _make(db, first, b"pipe", 0o010644)
    found = trees.names(db, [second, first], 9)

    assert [(name.parent, name.ino, name.plain_bytes) for name in found] == [
        (second, plain.ino, 5),
        (first, pipe.ino, -1),
    ]
    assert trees.names(db, [second, first], 1) == found[:1]
    assert trees.others(db, [pipe.ino, Ino(999)])[pipe.ino].mode == 0o010644


def test_tops_are_found_and_marked_with_a_new_ctime(db: Database) -> None:
    """The other times stay."""
    top = _make(db, ROOT_INO, b"top", 0o040755).ino
    trees.mark_removed(db, [top], NOW_NS + 5)
    row = inodes.get(db, top)

    assert trees.tops(db) == [top]
    assert (row.nlink, row.flags) == (0, InodeFlag.REMOVED)
    assert (row.ctime_ns, row.mtime_ns) == (NOW_NS + 5, NOW_NS)


def test_part_of_a_directory_counts_what_is_left(db: Database) -> None:
    """Its size is the number of its entries at every commit."""
    top = _make(db, ROOT_INO, b"top", 0o040755).ino
    for number in range(5):
        _make(db, top, b"%d" % number)
    second = trees.names(db, [top], 2)[-1]
    trees.remove_names(db, [], (top, second.cookie))

    assert inodes.get(db, top).size_bytes == 3
    trees.remove_names(db, [top])
    assert dentries.is_empty(db, top)
    assert db.counters.dentries == 1


def test_links_that_stay_are_counted_and_have_a_parent(db: Database) -> None:
    """Three names, of which one, and two, stay."""
    one, two = (_make(db, ROOT_INO, name, 0o040755).ino for name in (b"1", b"2"))
    made = [_make(db, one, name) for name in (b"a", b"b")]
    for parent in (two, ROOT_INO):
        for each in made:
            links.link_added(db, inodes.get(db, each.ino), parent)
            inodes.add_links(db, each.ino, 1, NOW_NS)
    a, b = (each.ino for each in made)
    before = trees.others(db, [a, b])
    trees.drop_links(db, {(a, one): 1, (a, two): 1, (b, one): 1})
    trees.lose_names(db, Counter({a: 2, b: 1}), before, NOW_NS + 1)

    assert [inodes.get(db, ino).nlink for ino in (a, b)] == [1, 2]
    assert inodes.get(db, a).parent == ROOT_INO
    assert inodes.get(db, b).parent == ROOT_INO
    assert links.parents(db, b) == [(ROOT_INO, 1), (two, 1)]
    assert not links.has_rows(db, a)


def test_blocks_go_with_their_last_name(db: Database) -> None:
    """Shared ones stay, and so does one that is on its way; packs and sums follow."""
    file, other = (_make(db, ROOT_INO, name).ino for name in (b"f", b"o"))
    made: list[BlockId] = []
    for index in range(4):
        block = db.counters.take_block()
        blocks.create_dirty(db, block, file, BlockIndex(index), 10)
        block_map.set(db, file, BlockIndex(index), block)
        made.append(block)
    pack = packs.create(db, ObjectKey("pack/00/1-00"), 100)
    packs.stored(db, pack)
    blocks.set_location(db, made[0], b"h" * 32, pack, 0, 7)
    block_map.set(db, other, BlockIndex(0), made[1])
    blocks.add_refs(db, made[1])
    named = trees.unmap_all(db, [file])
    freed = trees.drop_refs(db, named, {made[2]})

    assert freed == [Freed(made[0], 10, pack, 7), Freed(made[3], 10, None, None)]
    assert [blocks.get(db, block).refs for block in made[1:3]] == [1, 0]
    assert blocks.find(db, made[0]) is None
    assert packs.get(db, pack).died_txg is not None
    assert db.counters.block_bytes == 20
