"""Dentries: names in directories, and their order in readdir."""

import random

import pytest

from s3fs_meta.errors import EntryExistsError, NoEntryError, NoSpaceLeftError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Cookie, Ino

ONE_HASH = 5  # The hash of every name in tests of hash collisions.


def make_file(db: Database, name: bytes, parent: Ino = ROOT_INO) -> Ino:
    """Create an inode with a name and return its number."""
    ino = inodes.create(db, 0o100644, 0, 0, parent, 7).ino
    dentries.add(db, parent, name, ino)
    return ino


def walk(db: Database, limit: int = 1000, parent: Ino = ROOT_INO) -> list[bytes]:
    """Return all names of a directory in readdir order."""
    names: list[bytes] = []
    after = Cookie(0)
    while page := dentries.page(db, parent, after, limit):
        names += [name for name, _, _ in page]
        after = page[-1][1]
    return names


def cookies(db: Database) -> dict[bytes, int]:
    """Return the cookie of every name in the root directory."""
    return {name: cookie for name, cookie, _ in dentries.page(db, ROOT_INO, Cookie(0), 1000)}


def test_name_is_found_only_in_its_directory(db: Database) -> None:
    ino = make_file(db, b"a")
    assert dentries.find(db, ROOT_INO, b"a") == ino
    assert dentries.find(db, Ino(99), b"a") is None
    assert dentries.find(db, ROOT_INO, b"b") is None


def test_lookup_of_a_name_returns_the_attributes_of_its_inode(db: Database) -> None:
    """One joined query for a name and its inode returns the same attributes as two queries."""
    ino = make_file(db, b"a")
    assert dentries.find_attributes(db, ROOT_INO, b"a") == inodes.get(db, ino)
    assert dentries.find_attributes(db, ROOT_INO, b"b") is None


@pytest.mark.parametrize(
    "name",
    [b"a" * 255, b"\xff\xfe", bytes(range(1, 47)), "ünïcode".encode(), b" ", b"...", b"1", b"\n"],
)
def test_name_of_unusual_bytes_is_read_back_unchanged(db: Database, name: bytes) -> None:
    """A name is stored as bytes, even if it looks like a number or like text."""
    make_file(db, name)
    assert walk(db) == [name]
    assert dentries.find(db, ROOT_INO, name) is not None


def test_adding_an_existing_name_is_refused(db: Database) -> None:
    """Adding an existing name keeps its dentry and changes no counter."""
    ino = make_file(db, b"a")
    with pytest.raises(EntryExistsError):
        dentries.add(db, ROOT_INO, b"a", Ino(77))
    assert dentries.find(db, ROOT_INO, b"a") == ino
    assert db.counters.dentries == 1


def test_removing_a_name_returns_its_inode(db: Database) -> None:
    """A removed name can be added again."""
    ino = make_file(db, b"a")
    assert dentries.remove(db, ROOT_INO, b"a") == ino
    assert db.counters.dentries == 0
    with pytest.raises(NoEntryError):
        dentries.remove(db, ROOT_INO, b"a")
    dentries.add(db, ROOT_INO, b"a", ino)


@pytest.mark.parametrize("shared", [False, True])
def test_name_that_was_just_looked_up_is_removed_by_its_hash(db: Database, shared: bool) -> None:
    """The correct name is removed even if another name has the same hash."""
    if shared:
        db.name_hash = lambda _name: ONE_HASH
    for name in (b"a", b"b"):
        make_file(db, name)
    dentries.remove_found(db, ROOT_INO, b"b")
    assert walk(db) == [b"a"]
    assert db.counters.dentries == 1
    with pytest.raises(NoEntryError):
        dentries.remove_found(db, ROOT_INO, b"b")


@pytest.mark.parametrize(
    ("hashes", "expected"),
    [
        ({b"a": 5, b"b": 6, b"c": 7}, [(b"b", 0x600), (b"c", 0x700)]),
        ({b"a": 5, b"b": 6, b"c": 5}, [(b"c", 0x500), (b"b", 0x600)]),
        ({b"a": 5, b"b": 6, b"c": 6}, [(b"b", 0x600), (b"c", 0x601)]),
        ({b"a": 5, b"b": 5, b"c": 5}, [(b"b", 0x501), (b"c", 0x502)]),
    ],
    ids=["free", "own position", "taken position", "shared"],
)
def test_name_that_was_just_looked_up_is_renamed(
    db: Database, hashes: dict[bytes, int], expected: list[tuple[bytes, int]]
) -> None:
    """A renamed name gets the lowest free cookie of its new hash."""
    db.name_hash = lambda name: hashes[name]
    ino = make_file(db, b"a")
    make_file(db, b"b")
    dentries.move_found(db, ROOT_INO, b"a", ROOT_INO, b"c", ino)
    assert list(cookies(db).items()) == expected
    assert dentries.find(db, ROOT_INO, b"c") == ino
    assert db.counters.dentries == 2
    assert db.shares_hashes == any(cookie & 0xFF for _, cookie in expected)


def test_rename_over_a_name_returns_its_old_inode_and_keeps_its_cookie(db: Database) -> None:
    """A rename over an existing name keeps its cookie, so readdir calls are not disturbed."""
    old = make_file(db, b"a")
    before = cookies(db)
    other = inodes.create(db, 0o100644, 0, 0, ROOT_INO, 7).ino
    assert dentries.replace(db, ROOT_INO, b"a", other) == old
    assert dentries.find(db, ROOT_INO, b"a") == other
    assert cookies(db) == before
    with pytest.raises(NoEntryError):
        dentries.replace(db, ROOT_INO, b"b", other)


def test_directory_without_names_is_empty(db: Database) -> None:
    assert dentries.is_empty(db, ROOT_INO)
    make_file(db, b"a")
    assert not dentries.is_empty(db, ROOT_INO)
    dentries.remove(db, ROOT_INO, b"a")
    assert dentries.is_empty(db, ROOT_INO)


# --- order of names in readdir -----------------------------------------------------------------


def test_readdir_pages_are_sorted_and_complete(db: Database) -> None:
    """For each page size, readdir returns each name once, in the same order."""
    expected = {b"%d" % number for number in range(50)}
    for name in expected:
        make_file(db, name)
    order = walk(db)
    assert set(order) == expected
    assert len(order) == 50
    for limit in (1, 7, 50):
        assert walk(db, limit) == order
    positions = [cookie for _, cookie, _ in dentries.page(db, ROOT_INO, Cookie(0), 50)]
    assert positions == sorted(positions)
    assert min(positions) >= 256


def test_readdir_page_contains_the_attributes_of_each_inode(db: Database) -> None:
    """Readdirplus needs no query for the inode of each dentry."""
    ino = make_file(db, b"a")
    assert dentries.page(db, ROOT_INO, Cookie(0), 9)[0][2] == inodes.get(db, ino)


@pytest.mark.parametrize("seed", range(8))
def test_readdir_returns_unchanged_names_exactly_once_during_changes(
    db: Database, seed: int
) -> None:
    """While readdir returns its pages, other names are added and removed."""
    rnd = random.Random(seed)
    stay = {b"stay-%d" % number for number in range(30)}
    for name in stay:
        make_file(db, name)
    coming = [b"extra-%d" % number for number in range(60)]
    present: list[bytes] = []
    seen: list[bytes] = []
    after = Cookie(0)
    while page := dentries.page(db, ROOT_INO, after, rnd.randint(1, 5)):
        seen += [name for name, _, _ in page]
        after = page[-1][1]
        for _ in range(rnd.randint(0, min(6, len(coming)))):
            present.append(coming.pop())
            make_file(db, present[-1])
        if present and rnd.random() < 0.7:
            name = present.pop(rnd.randrange(len(present)))
            dentries.remove(db, ROOT_INO, name)
    assert sorted(name for name in seen if name in stay) == sorted(stay)
    assert len(seen) == len(set(seen))


# --- collisions of name hashes -----------------------------------------------------------------


def test_names_with_equal_hashes_can_exist_in_one_directory(db: Database) -> None:
    """Names with equal hashes get consecutive cookies, and each name can be found."""
    db.name_hash = lambda _name: ONE_HASH
    inos = {name: make_file(db, name) for name in (b"a", b"b", b"c")}
    assert cookies(db) == {b"a": 0x500, b"b": 0x501, b"c": 0x502}
    assert {name: dentries.find(db, ROOT_INO, name) for name in inos} == inos
    assert dentries.find_attributes(db, ROOT_INO, b"c") == inodes.get(db, inos[b"c"])
    with pytest.raises(EntryExistsError):
        make_file(db, b"b")


def test_removing_a_name_keeps_the_cookies_of_names_with_equal_hashes(db: Database) -> None:
    """A removed name's cookie is free for the next name with the same hash."""
    db.name_hash = lambda _name: ONE_HASH
    for name in (b"a", b"b", b"c"):
        make_file(db, name)
    dentries.remove(db, ROOT_INO, b"a")
    dentries.remove(db, ROOT_INO, b"b")
    assert cookies(db) == {b"c": 0x502}
    with pytest.raises(EntryExistsError):
        make_file(db, b"c")
    make_file(db, b"d")
    assert cookies(db) == {b"d": 0x500, b"c": 0x502}


def test_reopened_database_detects_that_two_names_share_a_hash(db: Database) -> None:
    """The flag that two names share a hash must be correct after the database is reopened."""
    db.name_hash = lambda _name: ONE_HASH
    make_file(db, b"a")
    make_file(db, b"b")
    dentries.remove(db, ROOT_INO, b"a")
    db.commit()
    db.close()
    again = Database.open(db.path, db.pragmas)
    again.name_hash = lambda _name: ONE_HASH
    again.begin()
    assert again.shares_hashes
    with pytest.raises(EntryExistsError):
        make_file(again, b"b")
    again.close()


def test_hash_collision_in_another_directory_does_not_change_cookies(db: Database) -> None:
    """After a hash collision, slower code assigns cookies, but the cookies are the same."""
    usual = db.name_hash
    fast = {}
    for number in range(20):
        make_file(db, b"%d" % number)
    fast = cookies(db)
    for number in range(20):
        dentries.remove(db, ROOT_INO, b"%d" % number)
    db.name_hash = lambda _name: ONE_HASH
    make_file(db, b"a", Ino(2))
    make_file(db, b"b", Ino(2))
    db.name_hash = usual
    assert db.shares_hashes
    for number in range(20):
        make_file(db, b"%d" % number)
    assert cookies(db) == fast


def test_name_is_refused_if_256_names_already_have_the_same_hash(db: Database) -> None:
    """After one of 256 names with the same hash is removed, another name is accepted."""
    db.name_hash = lambda _name: ONE_HASH
    for number in range(256):
        dentries.add(db, ROOT_INO, b"%d" % number, Ino(2))
    with pytest.raises(NoSpaceLeftError, match="directory 1 has 256 names with the same hash"):
        dentries.add(db, ROOT_INO, b"one more", Ino(2))
    assert db.counters.dentries == 256
    dentries.remove(db, ROOT_INO, b"100")
    dentries.add(db, ROOT_INO, b"one more", Ino(2))
    row = db.one("SELECT cookie FROM dentries WHERE name = ?", (b"one more",))
    assert row == (0x500 + 100,)


def test_names_with_neighbouring_hashes_have_distinct_cookies(db: Database) -> None:
    """All cookies of a hash are lower than all cookies of the next hash."""
    hashes = {b"a": 5, b"b": 6, b"c": 4}
    db.name_hash = lambda name: hashes[name]
    for name in hashes:
        make_file(db, name)
    assert walk(db) == [b"c", b"a", b"b"]
    assert all(dentries.find(db, ROOT_INO, name) is not None for name in hashes)


@pytest.mark.parametrize("value", ["CAST(name AS TEXT)", "4611686018427387904", "1.5"])
def test_name_of_a_wrong_type_is_listed_as_bytes(db: Database, value: str) -> None:
    """bytes() of a large integer would allocate all memory."""
    make_file(db, b"name")
    db.run(f"UPDATE dentries SET name = {value}")

    [(_cookie, name)] = dentries.page_of_names(db, ROOT_INO, Cookie(0), 10)

    assert 0 < len(name) < 30
