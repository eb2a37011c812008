"""Salvage: reading rows from a database file in which pages are missing."""

import random
from pathlib import Path

import apsw
import pytest

from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import MIB
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.offline.salvage import INODES, NAMING, DamagedDatabase, Table, size_in_header
from s3fs_meta.meta.tables import dentries, inodes, xattrs
from s3fs_meta.model import ROOT_INO, Ino
from tests.meta.conftest import MakeDatabase

pytestmark = pytest.mark.thorough

PAGE = 4096
DENTRIES, _HARD_LINKS, _SYMLINKS, XATTRS, _BLOCK_MAP = NAMING
FILES = 3000


def rows_of(path: Path, table: Table) -> tuple[list[tuple[object, ...]], bool]:
    """Return the readable rows of a table, and whether these are all of its rows."""
    damaged = DamagedDatabase(path, "image/x")
    try:
        reader = damaged.reader(table)
        return list(reader.rows()), reader.is_complete
    finally:
        damaged.close()


@pytest.fixture
def filled(make_database: MakeDatabase) -> Database:
    """Return a database with thousands of files and extended attributes."""
    db = make_database()
    db.begin()
    for number in range(FILES):
        ino = inodes.create(db, 0o100600, 1, 2, ROOT_INO, 5).ino
        dentries.add(db, ROOT_INO, b"file %d" % number, ino)
        xattrs.set(db, ino, b"user.first", b"1" * 20)
        xattrs.set(db, ino, b"user.second", b"2" * 20)
    db.commit()
    return db


def copied(db: Database, path: Path) -> Path:
    """Copy a database into one file, and return its path."""
    db.all("VACUUM INTO ?", (str(path),))
    return path


def pages_of(path: Path, table: str, kind: str = "leaf") -> list[int]:
    """Return pages of one kind of a table in key order; the first page of the file has number 0."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        rows = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = ? ORDER BY path",
            (table, kind),
        ).fetchall()
    finally:
        connection.close()
    return [int(str(row[0])) - 1 for row in rows]


def lose(path: Path, pages: list[int]) -> None:
    """Overwrite pages of a database file with zeros."""
    with path.open("r+b") as file:
        for page in pages:
            file.seek(page * PAGE)
            file.write(bytes(PAGE))


@pytest.mark.parametrize("table", [INODES, DENTRIES, XATTRS], ids=lambda table: table.name)
def test_salvage_finds_all_rows_in_intact_pages_despite_lost_pages(
    filled: Database, tmp_path: Path, table: Table
) -> None:
    path = copied(filled, tmp_path / "copy.db")
    everything, complete = rows_of(path, table)
    assert complete
    wanted = filled.all(f"SELECT {', '.join(table.columns)} FROM {table.name}")
    assert sorted(everything, key=repr) == sorted(wanted, key=repr)
    leaves = pages_of(path, table.name)
    scattered = random.Random(7).sample(leaves[8:-3], 3)
    lose(path, [leaves[0], leaves[-1], *leaves[4:7], *scattered])

    rows, complete = rows_of(path, table)

    assert not complete
    assert len(set(rows)) == len(rows)
    assert set(rows) <= set(everything)
    lost_part = 8 / len(leaves)
    assert len(rows) > len(everything) * (1 - lost_part) * 0.9


def test_salvage_skips_a_row_with_a_wrong_type_of_value(filled: Database, tmp_path: Path) -> None:
    """SQLite allows any type in any column, so a damaged or forged image may have a wrong type."""
    path = copied(filled, tmp_path / "copy.db")
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE inodes SET mode = 'many' WHERE ino = 70")
    connection.close()

    rows, complete = rows_of(path, INODES)

    assert complete
    assert {row[0] for row in rows} == set(range(1, FILES + 2)) - {70}


def test_salvage_ends_if_many_pages_repeat_the_same_rows(filled: Database, tmp_path: Path) -> None:
    """Copies of one page replace the later pages of the table; no row is returned twice."""
    path = copied(filled, tmp_path / "copy.db")
    leaves = pages_of(path, "inodes")
    with path.open("r+b") as file:
        file.seek(leaves[2] * PAGE)
        page = file.read(PAGE)
        for leaf in leaves[3:]:
            file.seek(leaf * PAGE)
            file.write(page)

    rows, complete = rows_of(path, INODES)

    assert not complete
    assert len(set(rows)) == len(rows) < FILES


def test_salvage_skips_a_row_with_a_lost_overflow_page(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    """SQLite reads a missing overflow page as zeros without an error, so such a row is skipped."""
    db = make_database()
    wanted = {(Ino(2 + number), b"user.long"): b"v" * 1500 for number in range(100)}
    db.begin()
    for (ino, name), value in wanted.items():
        xattrs.set(db, ino, name, value)
    db.commit()
    path = copied(db, tmp_path / "copy.db")
    overflow = pages_of(path, "xattrs", "overflow")
    lose(path, overflow[::3])

    rows, _complete = rows_of(path, XATTRS)

    found = {(ino, name): value for ino, name, value in rows}
    assert 0 < len(found) < len(wanted)
    assert found.items() <= wanted.items()


def test_salvage_reads_the_row_with_the_largest_key_once(filled: Database, tmp_path: Path) -> None:
    """After the row with the largest key, salvage must end instead of reading the row again."""
    last = (1 << 63) - 1
    filled.begin()
    filled.run("INSERT INTO dentries VALUES (2, ?, x'61', 3)", (last,))
    filled.run("INSERT INTO dentries VALUES (3, x'00', x'62', 3)")
    filled.run("INSERT INTO dentries VALUES (?, ?, x'63', 3)", (last, last))
    filled.commit()

    rows, complete = rows_of(copied(filled, tmp_path / "copy.db"), DENTRIES)

    assert not complete
    assert [row for row in rows if row[0] == 2] == [(2, last, b"a", 3)]


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TRIGGER t AFTER INSERT ON inodes BEGIN SELECT 1; END",
        "CREATE VIEW v AS SELECT * FROM inodes",
        "DROP TABLE xattrs",
        "CREATE INDEX other ON inodes (abs(ino))",
    ],
)
def test_damaged_database_with_an_unexpected_schema_is_refused(
    filled: Database, tmp_path: Path, sql: str
) -> None:
    path = copied(filled, tmp_path / "copy.db")
    connection = apsw.Connection(str(path))
    connection.execute(sql)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(FormatError):
        DamagedDatabase(path, "image/x")
    assert path.read_bytes() == before


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_in_a_database_cause_only_format_errors(
    filled: Database, tmp_path: Path, seed: int
) -> None:
    """Random bytes in the pages of a database must not raise errors other than FormatError."""
    path = copied(filled, tmp_path / "copy.db")
    noise = random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(200):
        data[noise.randrange(8 * PAGE, len(data))] = noise.randrange(256)
    path.write_bytes(bytes(data))
    for table in (INODES, *NAMING):
        try:
            rows, _complete = rows_of(path, table)
        except FormatError:
            continue
        assert all(type(row[0]) is int for row in rows)


def test_cookie_key_and_counters_of_a_damaged_database_can_be_read(
    filled: Database, tmp_path: Path
) -> None:
    """When a database is rebuilt, the cookie key and the counters come from a damaged image."""
    damaged = DamagedDatabase(copied(filled, tmp_path / "copy.db"), "image/x")
    try:
        assert damaged.cookie_key() == filled.cookie_key
        counters = filled.counters
        assert damaged.counters() == (counters.next_ino, counters.next_block, 0)
    finally:
        damaged.close()
    assert inodes.get(filled, Ino(2)).uid == 1


def test_misplaced_page_of_a_database_is_reported(filled: Database, tmp_path: Path) -> None:
    """Salvage reports a page of a table that was overwritten with another page of the table."""
    path = copied(filled, tmp_path / "copy.db")
    data = path.read_bytes()
    assert size_in_header(data[:PAGE]) == len(data)
    damaged = DamagedDatabase(path, "image/x")
    damaged.require_intact()
    damaged.close()
    first, second, *_ = pages_of(path, "dentries")
    with path.open("r+b") as file:
        file.seek(first * PAGE)
        file.write(data[second * PAGE :][:PAGE])
    damaged = DamagedDatabase(path, "image/x")
    try:
        with pytest.raises(FormatError, match="do not form a consistent database"):
            damaged.require_intact()
    finally:
        damaged.close()


@pytest.mark.parametrize(
    ("start", "size_bytes"),
    [
        (b"", 0),
        (b"noise" * 20, 0),
        (b"SQLite format 3\0" + bytes(10), 0),
        (b"SQLite format 3\0" + b"\0\1" + bytes(10) + b"\0\0\0\3" + bytes(68), 3 << 16),
    ],
)
def test_size_of_a_database_is_read_from_its_header(start: bytes, size_bytes: int) -> None:
    """If the bytes are not the header of a database, its size is 0."""
    assert size_in_header(start) == size_bytes


def test_salvage_refuses_rows_of_a_newer_schema(filled: Database, tmp_path: Path) -> None:
    """Rows of a newer schema may have a different meaning even if the tables look the same."""
    filled.begin()
    filled.run("UPDATE properties SET value = ? WHERE name = 'schema_version'", (b"999",))
    filled.commit()
    path = copied(filled, tmp_path / "copy.db")
    with pytest.raises(NewerFormatError, match="schema version 999"):
        DamagedDatabase(path, "image/x")


@pytest.mark.parametrize("table", [INODES, DENTRIES, XATTRS], ids=lambda table: table.name)
def test_salvage_skips_an_oversized_row_without_reading_it_into_memory(
    filled: Database, tmp_path: Path, table: Table
) -> None:
    """Salvage skips an overlong row, and reads all rows before and after it."""
    path = copied(filled, tmp_path / "copy.db")
    connection = apsw.Connection(str(path))
    wide = f"zeroblob({64 * MIB})"
    [(middle,)] = connection.execute("SELECT max(ino) / 2 FROM inodes").fetchall()
    change = {
        "inodes": f"UPDATE inodes SET mode = {wide} WHERE ino = {middle}",
        "dentries": f"INSERT INTO dentries VALUES (1, 1 << 62, {wide}, 1)",
        "xattrs": f"INSERT INTO xattrs VALUES ({middle}, x'00', {wide})",
    }
    connection.execute(change[table.name])
    [(count,)] = connection.execute(f"SELECT count(*) FROM {table.name}").fetchall()
    connection.close()
    apsw.memory_high_water(True)
    before = apsw.memory_used()

    rows, complete = rows_of(path, table)

    assert apsw.memory_high_water() - before < 16 * MIB
    assert not complete
    assert len(rows) == int(str(count)) - 1
