"""The cache of inode rows: reads see unwritten changes, and a commit writes each row once."""

import pytest

from s3fs_meta.errors import DatabaseFullError, NoInodeError
from s3fs_meta.limits import INODE_ROWS_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Attributes, Cookie, Ino
from tests.meta.conftest import MakeDatabase
from tests.meta.recorders import recorded

FILE = 0o100644
T0 = 1_760_000_000_000_000_000


def make_file(db: Database, name: bytes) -> Attributes:
    """Create a file in the root directory."""
    db.begin()
    made = inodes.create(db, FILE, 1, 2, ROOT_INO, T0)
    dentries.add(db, ROOT_INO, name, made.ino)
    return made


def nlink_in_table(db: Database, ino: Ino) -> int | None:
    """Return the link count of an inode as a query of the table returns it."""
    row = db.inodes.one("SELECT nlink FROM inodes WHERE ino = ?", (ino,))
    return None if row is None else int(row[0])


def test_lookup_and_listing_return_inodes_that_only_memory_contains(db: Database) -> None:
    """Lookups and listings return a new inode before its row is written, with all its changes."""
    made = make_file(db, b"f")
    assert dentries.find_attributes(db, ROOT_INO, b"f") == made
    inodes.add_links(db, made.ino, 1, T0 + 5)
    found = dentries.find_attributes(db, ROOT_INO, b"f")
    assert found is not None
    assert (found.nlink, found.ctime_ns, found.mtime_ns) == (2, T0 + 5, T0)
    assert [row[2] for row in dentries.page(db, ROOT_INO, 0, 9)] == [found]  # type: ignore[arg-type]


def test_sql_statement_on_the_inode_table_sees_changes_that_were_only_in_memory(
    db: Database,
) -> None:
    """Before a statement on the table of inodes runs, changed rows are written to the table."""
    made = make_file(db, b"f")
    assert nlink_in_table(db, made.ino) == 1
    inodes.add_links(db, made.ino, 1, T0)
    assert [row[0] for row in db.inodes.all("SELECT nlink FROM inodes WHERE ino > 1")] == [2]
    inodes.add_links(db, made.ino, 1, T0)
    assert list(db.inodes.iterate("SELECT nlink FROM inodes WHERE ino > 1")) == [(3,)]
    inodes.add_links(db, made.ino, 1, T0)
    db.inodes.run("UPDATE inodes SET nlink = nlink * 10 WHERE ino = ?", (made.ino,))
    assert inodes.get(db, made.ino).nlink == 40
    inodes.add_links(db, made.ino, 1, T0)
    db.inodes.run_many("UPDATE inodes SET nlink = nlink * 10 WHERE ino = ?", [(made.ino,)])
    assert inodes.get(db, made.ino).nlink == 410


def test_rollback_discards_the_inode_rows_of_the_commit_group(db: Database) -> None:
    kept = make_file(db, b"kept")
    db.commit()
    made = make_file(db, b"made")
    inodes.add_links(db, kept.ino, 1, T0)
    db.rollback()

    assert inodes.get(db, kept.ino) == kept
    assert inodes.find(db, made.ino) is None
    assert dentries.find_attributes(db, ROOT_INO, b"made") is None


def test_inode_row_is_written_once_per_commit_group(db: Database) -> None:
    """Twenty changes of one inode within a commit group write its row once."""
    db.commit()
    made = make_file(db, b"f")
    for number in range(20):
        inodes.change_directory(db, ROOT_INO, T0 + number, entries=1)
        inodes.set_size(db, made.ino, number, 0)
    before = db.connection.total_changes()
    db.commit()
    # The commit writes three rows: the file, the directory and the counters.
    assert db.connection.total_changes() == before + 3
    assert inodes.get(db, ROOT_INO).size_bytes == 20


def test_inode_created_and_deleted_within_a_commit_group_is_never_written(
    make_database: MakeDatabase,
) -> None:
    """An inode created and deleted within a commit group has no row and no change record."""
    db = make_database()
    recorder = recorded(db)
    db.begin()
    made = inodes.create(db, FILE, 1, 2, ROOT_INO, T0)
    inodes.add_links(db, made.ino, -1, T0)
    assert inodes.delete_bare_orphan(db, made.ino)
    other = inodes.create(db, FILE, 1, 2, ROOT_INO, T0)
    inodes.delete(db, other.ino)
    db.commit()
    assert nlink_in_table(db, made.ino) is None
    assert b"inodes" not in recorder.changesets[-1]
    assert db.counters.inodes == 1


def test_number_of_unchanged_inode_rows_in_memory_is_bounded(db: Database) -> None:
    """Reading many inodes removes unchanged rows from memory, but keeps changed rows."""
    db.inodes.run_many(
        "INSERT INTO inodes VALUES (?, 33188, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0)",
        [(ino,) for ino in range(10, INODE_ROWS_MAX + 1000)],
    )
    made = make_file(db, b"f")
    inodes.add_links(db, ROOT_INO, 1, T0)
    for number in range(10, INODE_ROWS_MAX + 1000):
        inodes.get(db, Ino(number))
    assert len(db.inodes) <= INODE_ROWS_MAX
    assert (inodes.get(db, made.ino), inodes.get(db, ROOT_INO).nlink) == (made, 3)


def test_number_of_written_inode_rows_in_memory_is_bounded(db: Database) -> None:
    """The number of inode rows in memory stays limited while commit groups create many files."""
    for number in range(INODE_ROWS_MAX + 1000):
        db.begin()
        inodes.create(db, FILE, 1, 2, ROOT_INO, T0)
        if number % 1000 == 0:
            db.commit()
    db.commit()
    assert len(db.inodes) <= INODE_ROWS_MAX


def test_commit_group_is_rolled_back_if_its_inode_rows_do_not_fit_on_the_disk(
    make_database: MakeDatabase,
) -> None:
    """If a query has to write inode rows to a full disk, the commit group is rolled back."""
    db = make_database()
    kept = make_file(db, b"kept")
    db.commit()
    pages = db.one("PRAGMA page_count")
    assert pages is not None
    db.connection.pragma("max_page_count", pages[0])
    db.begin()
    many = [inodes.create(db, FILE, 1, 2, ROOT_INO, T0) for _ in range(5000)]
    inodes.add_links(db, kept.ino, 1, T0)
    with pytest.raises(DatabaseFullError):
        nlink_in_table(db, kept.ino)

    assert not db.in_group
    assert inodes.get(db, kept.ino) == kept
    with pytest.raises(NoInodeError):
        inodes.get(db, many[0].ino)
    assert db.counters.inodes == 2


def test_inode_value_out_of_range_rolls_back_the_commit_group(db: Database) -> None:
    """If an inode row cannot be written, the inode's new name is undone as well."""
    db.commit()
    made = make_file(db, b"f")
    inodes.add_links(db, made.ino, 1 << 63, T0)
    with pytest.raises(OverflowError):
        dentries.page(db, ROOT_INO, Cookie(0), 9)
    db.commit()

    assert dentries.find(db, ROOT_INO, b"f") is None
    assert inodes.find(db, made.ino) is None
    assert db.counters.inodes == 1


def test_changing_a_missing_inode_row_rolls_back_the_commit_group(db: Database) -> None:
    lost = make_file(db, b"lost")
    db.commit()
    made = make_file(db, b"f")
    inodes.add_links(db, lost.ino, 1, T0)
    db.connection.execute("DELETE FROM inodes WHERE ino = ?", (lost.ino,))
    with pytest.raises(AssertionError, match="must have a row"):
        dentries.page(db, ROOT_INO, Cookie(0), 9)
    db.commit()

    assert dentries.find(db, ROOT_INO, b"f") is None
    assert inodes.find(db, made.ino) is None
    assert inodes.get(db, lost.ino) == lost


def test_inode_rows_stay_in_memory_after_a_commit(db: Database) -> None:
    made = make_file(db, b"f")
    db.commit()
    assert db.inodes.get(made.ino) == made
    assert nlink_in_table(db, made.ino) == 1
