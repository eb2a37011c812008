"""Creation of the rows of tree copies in bulk."""

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, hard_links, inodes, symlinks, xattrs
from s3fs_meta.meta.trees import removed_trees, tree_copies
from s3fs_meta.meta.trees.tree_copies import LIVING, CopiedSlice, SourceDirectory
from s3fs_meta.model import ROOT_INO, Attributes, Cookie, Ino, InodeFlag
from tests.meta.conftest import NOW_NS

LATER_NS = NOW_NS + 7


def _make(db: Database, parent: Ino, name: bytes, mode: int = 0o100644) -> Attributes:
    is_directory = mode == 0o040755
    made = inodes.create(db, mode, 1, 2, parent, NOW_NS, nlink=2 if is_directory else 1)
    dentries.add(db, parent, name, made.ino)
    inodes.change_directory(db, parent, NOW_NS, entries=1, subdirectories=int(is_directory))
    return made


def _copy(db: Database, sources: list[SourceDirectory], names_max: int = 100) -> CopiedSlice:
    return tree_copies.copy_names(db, LIVING, sources, LATER_NS, names_max=names_max, blocks_max=10)


def _begin(db: Database, old: Ino) -> SourceDirectory:
    tree_copies.begin(db)
    new = tree_copies.copy_inode(db, LIVING, inodes.get(db, old), LATER_NS)
    return SourceDirectory(old, new, Cookie(0))


def test_unfinished_tree_copy_is_marked_as_removed(db: Database) -> None:
    """An unfinished copy is marked as removed, so that a mount deletes it after a crash."""
    top = _make(db, ROOT_INO, b"top", 0o040755).ino
    _make(db, top, b"f")
    xattrs.set(db, top, b"user.a", b"1")
    source = _begin(db, top)
    row = inodes.get(db, source.new)

    assert removed_trees.tops(db) == {source.new: 0}
    assert (row.nlink, row.size_bytes, row.uid, row.gid) == (0, 0, 1, 2)
    assert (row.ctime_ns, row.mtime_ns, row.btime_ns) == (LATER_NS, NOW_NS, LATER_NS)
    assert row.flags == InodeFlag.REMOVED | InodeFlag.HAS_XATTRS
    assert xattrs.get(db, source.new, b"user.a") == b"1"
    tree_copies.set_nlink_and_parent(db, source.new, ROOT_INO, 2)
    assert inodes.get(db, source.new).flags == InodeFlag.HAS_XATTRS


def test_names_of_a_tree_are_copied_with_their_inodes(db: Database) -> None:
    """A slice copies a directory before its entries, which later slices copy."""
    top = _make(db, ROOT_INO, b"top", 0o040755).ino
    below = _make(db, top, b"below", 0o040755).ino
    _make(db, below, b"f")
    link = inodes.create(db, 0o120777, 1, 2, top, NOW_NS, size_bytes=6).ino
    symlinks.create(db, link, b"target")
    dentries.add(db, top, b"link", link)
    inodes.change_directory(db, top, NOW_NS, entries=1)
    source = _begin(db, top)
    done = _copy(db, [source])

    new_below = dentries.find(db, source.new, b"below")
    new_link = dentries.find(db, source.new, b"link")
    assert new_below is not None
    assert new_link is not None
    assert done == CopiedSlice(2, [], 1, [SourceDirectory(below, new_below, Cookie(0))], [])
    assert tree_copies.directories_in(db, source.new) == 1
    assert inodes.get(db, source.new).size_bytes == 2
    assert symlinks.target(db, new_link) == b"target"
    _copy(db, done.directories)
    row = inodes.get(db, new_below)
    assert (row.nlink, row.size_bytes, row.parent) == (2, 1, source.new)
    assert {inodes.get(db, ino).btime_ns for ino in (new_below, new_link)} == {LATER_NS}


def test_slice_of_a_tree_copy_begins_where_the_previous_slice_ended(db: Database) -> None:
    """A slice continues with an unfinished directory before it begins the next directory."""
    first, second = (_make(db, ROOT_INO, name, 0o040755).ino for name in (b"1", b"2"))
    for number in range(3):
        _make(db, first, b"%d" % number)
        _make(db, second, b"%d" % number)
    sources = [_begin(db, first), _begin(db, second)]
    counts = []
    while sources:
        done = _copy(db, sources, 2)
        counts.append(done.names)
        sources = done.left

    assert counts == [2, 2, 2, 0]
    assert db.counters.dentries == 2 + 6 + 6


def test_hard_links_within_a_copied_tree_are_preserved(db: Database) -> None:
    """All names of a file within a copy belong to one inode; names outside the tree are ignored."""
    top = _make(db, ROOT_INO, b"top", 0o040755).ino
    made = _make(db, top, b"0")
    for parent, name in ((top, b"1"), (top, b"2"), (ROOT_INO, b"out")):
        hard_links.link_added(db, inodes.get(db, made.ino), parent)
        dentries.add(db, parent, name, made.ino)
        inodes.add_links(db, made.ino, 1, NOW_NS)
        inodes.change_directory(db, parent, NOW_NS, entries=1)
    source = _begin(db, top)
    sources, seen, new = [source], [], Ino(db.counters.next_ino)
    while sources:
        sources = _copy(db, sources, 1).left
        seen.append((inodes.get(db, new).nlink, hard_links.has_rows(db, new)))

    assert seen == [(1, False), (2, True), (3, True), (3, True)]
    assert hard_links.parents(db, new) == [(source.new, 3)]
    assert inodes.get(db, made.ino).nlink == 4
