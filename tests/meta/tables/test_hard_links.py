"""Tests of the table hard_links, which lists the directories in which an inode has names."""

import random
from collections import Counter

import pytest

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import hard_links, inodes
from s3fs_meta.model import Ino
from tests.meta.conftest import steps_of

A, B, C = Ino(101), Ino(102), Ino(103)
NOW = 5


def make_file(db: Database, parent: Ino = A) -> Ino:
    """Create a file whose only name is in *parent*."""
    return inodes.create(db, 0o100644, 0, 0, parent, NOW).ino


def add(db: Database, ino: Ino, parent: Ino) -> None:
    """Add another name of a file in *parent*."""
    hard_links.link_added(db, inodes.get(db, ino), parent)
    inodes.add_links(db, ino, 1, NOW)


def remove(db: Database, ino: Ino, parent: Ino) -> None:
    """Remove a name of a file from *parent*."""
    hard_links.link_removed(db, inodes.get(db, ino), parent)
    inodes.add_links(db, ino, -1, NOW)


def rows(db: Database) -> list[tuple[int, ...]]:
    """Return all rows of the table of hard links."""
    return db.all("SELECT parent, names FROM hard_links ORDER BY parent")


def test_file_with_one_name_has_no_hard_link_rows(db: Database) -> None:
    ino = make_file(db)
    assert hard_links.parents(db, ino) == [(A, 1)]
    assert rows(db) == []


def test_second_name_of_a_file_adds_hard_link_rows_for_both_directories(db: Database) -> None:
    """If a file has several names, each row contains the number of its names in a directory."""
    ino = make_file(db)
    add(db, ino, B)
    add(db, ino, B)
    assert hard_links.parents(db, ino) == [(A, 1), (B, 2)]
    assert inodes.get(db, ino).parent == A


def test_directories_that_contain_names_of_a_file_are_listed_in_slices(db: Database) -> None:
    ino = make_file(db)
    assert hard_links.parents_after(db, ino, Ino(0), 2) == [A]
    assert hard_links.parents_after(db, ino, A, 2) == []
    for parent in (B, C, C):
        add(db, ino, parent)
    assert hard_links.parents_after(db, ino, Ino(0), 2) == [A, B]
    assert hard_links.parents_after(db, ino, B, 2) == [C]
    assert hard_links.parents_after(db, ino, C, 2) == []
    assert hard_links.parents_after(db, Ino(999), Ino(0), 2) == []


def test_two_names_of_a_file_in_one_directory_share_a_hard_link_row(db: Database) -> None:
    ino = make_file(db)
    add(db, ino, A)
    assert rows(db) == [(A, 2)]
    remove(db, ino, A)
    assert rows(db) == []
    assert hard_links.parents(db, ino) == [(A, 1)]


def test_directory_of_the_last_remaining_name_becomes_the_parent(db: Database) -> None:
    """When one name is left, the file has no hard link rows; the name's directory is its parent."""
    ino = make_file(db)
    add(db, ino, B)
    remove(db, ino, A)
    assert rows(db) == []
    assert inodes.get(db, ino).parent == B


def test_parent_of_a_file_contains_one_of_its_names_after_an_unlink(db: Database) -> None:
    """If a directory loses its last name of a file, another directory becomes the file's parent."""
    ino = make_file(db)
    add(db, ino, B)
    add(db, ino, C)
    remove(db, ino, A)
    assert hard_links.parents(db, ino) == [(B, 1), (C, 1)]
    assert inodes.get(db, ino).parent in {B, C}


def test_orphan_can_be_linked_again(db: Database) -> None:
    """An open file without names has no parent directory until a new name is linked."""
    ino = make_file(db)
    remove(db, ino, A)
    assert hard_links.parents(db, ino) == []
    add(db, ino, C)
    assert hard_links.parents(db, ino) == [(C, 1)]


def test_moving_a_directory_changes_only_its_parent(db: Database) -> None:
    directory = inodes.create(db, 0o040755, 0, 0, A, NOW, nlink=2)
    hard_links.moved(db, directory, A, B)
    assert inodes.get(db, directory.ino).parent == B
    assert rows(db) == []


def test_unknown_inode_has_no_parent_directories(db: Database) -> None:
    assert hard_links.parents(db, Ino(9999)) == []


def test_removal_of_a_name_reads_few_of_many_directories(db: Database) -> None:
    """A program may link a file into a million directories and then remove these one by one."""
    ino = make_file(db)
    for parent in range(A + 1, A + 500):
        add(db, ino, Ino(parent))

    assert 0 < steps_of(db, lambda: remove(db, ino, A)) < 300
    assert steps_of(db, lambda: hard_links.moved(db, inodes.get(db, ino), B, A)) < 300
    assert inodes.get(db, ino).parent == A


@pytest.mark.parametrize("seed", range(6))
def test_hard_link_rows_are_correct_after_random_operations(db: Database, seed: int) -> None:
    """After random links, unlinks and moves, the rows equal a simple count of names."""
    rnd = random.Random(seed)
    ino = make_file(db)
    names = Counter({A: 1})
    for _ in range(60):
        target = rnd.choice([A, B, C])
        named = sorted(+names)
        what = rnd.choice(["link", "unlink", "move"]) if named else "link"
        if what == "link":
            add(db, ino, target)
            names[target] += 1
        elif what == "unlink":
            source = rnd.choice(named)
            remove(db, ino, source)
            names[source] -= 1
        else:
            source = rnd.choice(named)
            hard_links.moved(db, inodes.get(db, ino), source, target)
            names[source] -= 1
            names[target] += 1
        check(db, ino, names)


def check(db: Database, ino: Ino, names: Counter[Ino]) -> None:
    """Compare the rows of an inode with a simple count of its names."""
    found = inodes.get(db, ino)
    assert found.nlink == sum(names.values())
    assert hard_links.parents(db, ino) == sorted((+names).items())
    assert bool(rows(db)) == (found.nlink > 1)
    assert found.nlink == 0 or names[found.parent] > 0
