"""The last txg in which an inode was below a directory."""

from pathlib import Path

import pytest

from s3fs_meta.limits import WATCHED_DIRECTORIES_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import dentries, hard_links, inodes
from s3fs_meta.meta.trees.past_tree import SubtreeHistory
from s3fs_meta.model import ROOT_INO, Ino, Txg

FACTS = {"uuid": b"u", "block_bytes": b"65536", "cookie_key": b"k" * 16}
LAST = Txg(100)
REMOVED = Ino(900)  # Inode numbers that the database does not contain any more.
REMOVED_DIRECTORY = Ino(901)


@pytest.fixture
def db(tmp_path: Path) -> Database:
    """Return a tree with the paths a/b/c/f, a/g and h, and with h2 as a hard link to f."""
    made = Database.create(tmp_path / "meta.db", Pragmas(), FACTS)
    made.begin()
    a = add(made, ROOT_INO, b"a", 0o40755)
    b = add(made, a, b"b", 0o40755)
    f = add(made, add(made, b, b"c", 0o40755), b"f")
    add(made, a, b"g")
    add(made, ROOT_INO, b"h")
    parent = inodes.get(made, f).parent
    dentries.add(made, ROOT_INO, b"h2", f)
    inodes.add_links(made, f, 1, 0)
    made.run("INSERT INTO hard_links VALUES (?, ?, 1), (?, ?, 1)", (f, ROOT_INO, f, parent))
    assert len(hard_links.parents(made, f)) == 2
    made.commit()
    return made


def add(db: Database, parent: Ino, name: bytes, mode: int = 0o100644) -> Ino:
    """Create an inode with a name."""
    ino = inodes.create(db, mode, 0, 0, parent, 0).ino
    dentries.add(db, parent, name, ino)
    return ino


def at(db: Database, path: str) -> Ino:
    """Return the inode at a path."""
    found = ROOT_INO
    for name in path.split("/"):
        below = dentries.find(db, found, name.encode())
        assert below is not None
        found = below
    return found


@pytest.mark.parametrize("limit", [1, WATCHED_DIRECTORIES_MAX])
@pytest.mark.parametrize(
    ("top", "of", "is_below"),
    [
        ("a", "a/b/c/f", True),
        ("a/b", "a/b", True),
        ("a/b", "a/g", False),
        ("a/b", "a", False),
        ("h2", "a/b/c/f", True),  # The paths h2 and a/b/c/f belong to one file.
        ("h", "a/b/c/f", False),
        ("a/b/c", "h2", True),
    ],
)
def test_inode_belongs_to_a_tree_if_the_tree_has_one_of_its_names(
    db: Database, top: str, of: str, is_below: bool, limit: int
) -> None:
    """The result does not depend on the number of directories that are kept in memory."""
    tree = SubtreeHistory(db, {at(db, top): LAST}, LAST, directories_max=limit)

    for _ in range(2):
        assert tree.until(at(db, of)) == (LAST if is_below else 0)


def test_removed_inode_belonged_to_a_tree_until_its_removal(db: Database) -> None:
    """An inode was in a tree until its last name or a directory above it was removed."""
    tree = SubtreeHistory(db, {at(db, "a"): LAST}, LAST)
    assert tree.until(REMOVED) == 0

    tree.add([(REMOVED, at(db, "a/b"), Txg(30)), (REMOVED, ROOT_INO, Txg(70))])
    assert tree.until(REMOVED) == 30
    tree.add([(REMOVED, at(db, "a/b"), Txg(40)), (REMOVED, at(db, "a/b"), Txg(20))])
    assert tree.until(REMOVED) == 40
    tree.add([(REMOVED, REMOVED_DIRECTORY, Txg(90)), (REMOVED_DIRECTORY, at(db, "a"), Txg(60))])
    assert tree.until(REMOVED) == 60
    assert tree.until(at(db, "h")) == 0


def test_directory_that_moves_takes_its_tree_out_of_the_old_parent(db: Database) -> None:
    tree = SubtreeHistory(db, {at(db, "h"): LAST}, LAST)
    tree.add([(at(db, "a"), at(db, "h"), Txg(50))])

    assert tree.until(at(db, "a/b/c")) == 50
    assert tree.until(at(db, "a/b/c/f")) == 50
    assert tree.until(ROOT_INO) == 0


def test_inode_leaves_the_tree_when_the_last_top_directory_above_it_is_replaced(
    db: Database,
) -> None:
    """An inode below two top directories is in the tree until both directories are replaced."""
    tree = SubtreeHistory(db, {at(db, "a"): Txg(10), at(db, "a/b/c"): Txg(20)}, LAST)

    assert [tree.until(at(db, path)) for path in ("a", "a/g", "a/b", "a/b/c/f")] == [10, 10, 10, 20]


def test_past_names_assumed_earlier_are_forgotten_when_others_are_assumed(db: Database) -> None:
    tree = SubtreeHistory(db, {at(db, "a"): LAST}, LAST)

    tree.assume([(REMOVED, at(db, "a"), Txg(30))])
    assert tree.until(REMOVED) == 30
    tree.assume([])
    assert tree.until(REMOVED) == 0


def test_search_in_the_past_ends_even_if_directories_formed_a_cycle(db: Database) -> None:
    """The search ends if a was below h in one txg and h was below a/b in another txg."""
    a, b, h = (at(db, path) for path in ("a", "a/b", "h"))
    tree = SubtreeHistory(db, {REMOVED: LAST}, LAST)
    tree.add([(a, h, Txg(50)), (h, b, Txg(40))])
    assert tree.until(b) == 0

    tree.add([(h, REMOVED, Txg(45))])
    assert tree.until(b) == 45


def test_number_of_past_names_is_limited(db: Database) -> None:
    tree = SubtreeHistory(db, {at(db, "a"): LAST}, LAST, names_max=2)
    tree.add([(REMOVED, ROOT_INO, Txg(1)), (REMOVED, ROOT_INO, Txg(2))])
    assert not tree.is_full

    tree.add([(REMOVED_DIRECTORY, ROOT_INO, Txg(1))])
    assert tree.is_full
