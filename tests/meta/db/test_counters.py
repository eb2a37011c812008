"""The counters of a filesystem: one database row, kept in memory."""

import pytest

from s3fs_meta.meta.db.counters import COLUMNS, Counters
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries
from s3fs_meta.model import ROOT_INO
from tests.meta.conftest import create_file
from tests.meta.random_tree import Tree


def loaded() -> Counters:
    """Return counters with the values 1, 2, 3, … in column order."""
    counters = Counters()
    counters.load(tuple(range(1, len(COLUMNS) + 1)))
    return counters


def test_counters_are_read_and_written_in_column_order() -> None:
    """The method values() returns the counters in the order of their columns."""
    assert loaded().values() == tuple(range(1, len(COLUMNS) + 1))


def test_values_of_the_counters_include_every_changed_counter() -> None:
    """If values() omitted a counter, this counter would never be stored in the database."""
    counters = loaded()
    for number, name in enumerate(COLUMNS):
        setattr(counters, name, 1000 + number)
    assert counters.values() == tuple(range(1000, 1000 + len(COLUMNS)))


def test_numbers_of_inodes_and_blocks_and_packs_are_taken_in_ascending_order() -> None:
    """Each request for a number returns the next unused number."""
    counters = loaded()
    assert [counters.take_ino(), counters.take_ino()] == [1, 2]
    assert [counters.take_block(), counters.take_block()] == [2, 3]
    assert [counters.take_pack(), counters.take_pack()] == [8, 9]


@pytest.mark.parametrize("total", ["inodes", "dentries", "block_bytes", "stored_bytes"])
@pytest.mark.parametrize("value", [(1 << 63) - 1, -(1 << 63)])
def test_damaged_total_makes_no_commit_fail(db: Database, total: str, value: int) -> None:
    """A total beyond the integers of SQLite would make every commit fail, until fsck repairs it."""
    db.counters.put(total, value)
    db.commit()
    ino = create_file(db, b"file")
    for change in (1, -2):
        setattr(db.counters, total, getattr(db.counters, total) + change)
        db.begin()
        db.commit()
    assert dentries.find(db, ROOT_INO, b"file") == ino


@pytest.mark.parametrize("seed", range(4))
def test_counters_of_inodes_and_names_and_file_bytes_equal_the_rows(
    db: Database, seed: int
) -> None:
    """After random operations, the counters in memory and on disk equal counts of the rows."""
    tree = Tree(db, seed)
    for _ in range(150):
        tree.step()
    db.commit()
    scanned = db.one(
        "SELECT (SELECT count(*) FROM inodes), (SELECT count(*) FROM dentries),"
        " (SELECT coalesce(sum(size_bytes), 0) FROM inodes WHERE mode & 0xf000 = 0x8000)"
    )
    counters = db.counters
    assert scanned == (counters.inodes, counters.dentries, counters.file_bytes)
    assert scanned == db.one("SELECT inodes, dentries, file_bytes FROM counters")
    assert db.inodes.one("SELECT max(ino) < ? FROM inodes", (counters.next_ino,)) == (1,)
    wrong = "SELECT ino FROM inodes i WHERE mapped_blocks <> "
    assert db.all(wrong + "(SELECT count(*) FROM block_map m WHERE m.ino = i.ino)") == []
