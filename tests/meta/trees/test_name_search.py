"""The search for file names at one point in time."""

from functools import partial

import pytest

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.meta.trees.name_search import NameSearch
from s3fs_meta.model import ROOT_INO, Ino
from tests.meta.conftest import MakeDatabase


def add(db: Database, parent: Ino, name: bytes, mode: int = 0o100644) -> Ino:
    """Add an entry, as one operation of a commit group."""
    db.begin()
    ino = inodes.create(db, mode, 0, 0, parent, 0, nlink=1).ino
    dentries.add(db, parent, name, ino)
    return ino


def paths(search: NameSearch) -> list[bytes]:
    """Run the search and return the found paths."""
    for _ in search.read():
        pass
    return sorted(one.path for one in search.found)


@pytest.mark.parametrize("slice_", [1, 2, 10_000])
def test_name_search_finds_matching_names_below_the_directory(
    make_database: MakeDatabase, slice_: int
) -> None:
    db = make_database()
    search = partial(NameSearch, db, slice_rows=slice_, directories_max=2)
    one = add(db, ROOT_INO, b"one", 0o040755)
    two = add(db, one, b"two x", 0o040755)
    other = add(db, ROOT_INO, b"other", 0o040755)
    for parent in (ROOT_INO, one, two, other):
        add(db, parent, b"X\xff.pdf")
        add(db, parent, b"y")
    db.commit()
    everywhere = search(ROOT_INO, "%x%", 10)
    below = search(one, "%x%", 10)
    assert paths(everywhere) == [
        b"X\xff.pdf", b"one/X\xff.pdf", b"one/two x", b"one/two x/X\xff.pdf", b"other/X\xff.pdf",
    ]  # fmt: skip
    assert paths(below) == [b"one/X\xff.pdf", b"one/two x", b"one/two x/X\xff.pdf"]
    assert everywhere.is_complete
    assert below.is_complete


def test_name_search_with_too_many_results_is_incomplete(make_database: MakeDatabase) -> None:
    db = make_database()
    for number in range(5):
        add(db, ROOT_INO, b"%d" % number)
    db.commit()
    few, all_ = NameSearch(db, ROOT_INO, "%", 4), NameSearch(db, ROOT_INO, "%", 5)
    assert (len(paths(few)), few.is_complete) == (4, False)
    assert (len(paths(all_)), all_.is_complete) == (5, True)


def test_name_search_ends_if_a_directory_contains_itself(make_database: MakeDatabase) -> None:
    db = make_database()
    one = add(db, ROOT_INO, b"one", 0o040755)
    add(db, one, b"x")
    db.begin()
    inodes.set_parent(db, one, one)
    db.commit()
    assert paths(NameSearch(db, ROOT_INO, "x", 4)) == []
    assert paths(NameSearch(db, Ino(999), "x", 4)) == []
