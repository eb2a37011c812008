"""A follower's database, to which another connection commits at the same time."""

from collections.abc import Iterator

import pytest

from s3fs_meta.errors import DatabaseError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import cached_blocks, dentries
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex, BlockState, Ino
from tests.meta.conftest import MakeDatabase, create_file


def note_copy(db: Database, block: int) -> None:
    """Add the row of a cached block in a separate commit group."""
    db.begin_local()
    cached_blocks.put(db, BlockId(block), BlockState.CLEAN, Ino(0), BlockIndex(0))
    db.commit()


@pytest.fixture
def follower(make_database: MakeDatabase) -> Database:
    """Return the database of a follower with one cached block."""
    db = make_database()
    note_copy(db, 7)
    db.follow()
    return db


@pytest.fixture
def other(follower: Database) -> Iterator[Database]:
    """Yield a second connection to the follower's database."""
    db = Database.open(follower.path, follower.pragmas)
    yield db
    db.close()


def test_follower_sees_no_commit_before_it_advances(follower: Database, other: Database) -> None:
    """A follower sees commits of other connections only after it calls go_on()."""
    create_file(other, b"f")
    other.commit()
    assert dentries.find(follower, ROOT_INO, b"f") is None
    assert follower.counters.dentries == 0

    follower.go_on()

    assert dentries.find(follower, ROOT_INO, b"f") is not None
    assert follower.counters.dentries == 1


def test_commit_groups_of_a_follower_do_not_wait_for_a_writer(
    follower: Database, other: Database
) -> None:
    """A follower changes only its own temporary rows, so it needs no write lock."""
    other.begin()  # The other connection holds the write lock from here on.
    note_copy(follower, 8)
    other.commit()
    create_file(other, b"f")
    other.commit()

    assert cached_blocks.get(follower, BlockId(7)) is not None
    assert cached_blocks.get(follower, BlockId(8)) is not None
    assert cached_blocks.get(other, BlockId(8)) is None
    assert dentries.find(follower, ROOT_INO, b"f") is None
    follower.go_on()
    assert cached_blocks.get(follower, BlockId(8)) is not None


def test_follower_that_becomes_the_writer_keeps_the_rows_of_its_cached_blocks(
    follower: Database, other: Database
) -> None:
    """A promoted follower writes its rows of cached blocks from temporary tables to the file."""
    note_copy(follower, 8)
    follower.begin_local()
    cached_blocks.delete(follower, BlockId(7))

    follower.lead()

    assert not follower.follows
    assert [row[0] for row in cached_blocks.rows_with_size(other)] == [8]
    create_file(follower, b"f")
    follower.commit()
    assert dentries.find(other, ROOT_INO, b"f") is not None
    note_copy(follower, 9)
    assert [row[0] for row in cached_blocks.rows_with_size(other)] == [8, 9]


def test_follower_does_not_cache_query_results(follower: Database, other: Database) -> None:
    """A follower's cached query result could be outdated: another connection changes rows."""
    follower.recent()["known"] = 1
    create_file(other, b"f")
    other.commit()
    follower.go_on()

    assert follower.recent() == {}


def test_changes_made_by_a_follower_are_not_recorded(follower: Database) -> None:
    """A follower must not write change records into a database that another connection changes."""

    class Recorder:
        def group_opened(self) -> None:
            raise AssertionError

        def group_committing(self) -> None:
            raise AssertionError

    follower.recorder = Recorder()
    note_copy(follower, 9)
    assert cached_blocks.get(follower, BlockId(9)) is not None


def test_follower_detects_two_names_with_equal_hashes(follower: Database, other: Database) -> None:
    """When a follower advances, it checks whether two names have the same hash."""
    other.take_cookie_key(bytes(16))
    assert not follower.shares_hashes
    other.begin()
    for cookie in (256, 257):
        other.run("INSERT INTO dentries VALUES (1, ?, ?, 1)", (cookie, b"%d" % cookie))
    other.commit()

    follower.go_on()

    assert follower.shares_hashes


def test_follower_can_be_promoted_after_a_failed_promotion(
    follower: Database, other: Database
) -> None:
    """After a failed promotion, a follower can still advance, and keeps its temporary rows."""
    note_copy(follower, 9)
    follower.connection.pragma("query_only", True)
    with pytest.raises(DatabaseError):
        follower.lead()
    follower.connection.pragma("query_only", False)
    assert follower.follows
    assert follower.connection.in_transaction
    create_file(other, b"f")
    other.commit()

    follower.go_on()
    follower.lead()

    assert cached_blocks.get(other, BlockId(9)) is not None
