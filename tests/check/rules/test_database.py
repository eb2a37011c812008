"""Tests of damage to the database itself, one invariant at a time."""

from typing import Final

import apsw
import pytest

from s3fs_meta.check.report import Mode
from s3fs_meta.check.rules import database as rules
from s3fs_meta.errors import FormatError
from s3fs_meta.limits import FILE_BYTES_MAX, PAST_INO_MIN
from s3fs_meta.meta.db import counters
from s3fs_meta.meta.db.counters import TABLE_OF
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import dentries
from tests.check.healthy import Healthy

pytestmark = pytest.mark.thorough

COUNTED = [name for name in counters.COLUMNS if not name.startswith(("next_", "capacity", "txg"))]

VALUES: Final = ("x'ff00'", "'text'", "1.5")
TYPED: Final = [
    (table, column) for table, columns in rules.integer_columns().items() for column in columns
]
KEYS: Final = {
    "dentries": "parent, cookie",
    "hard_links": "ino, parent",
    "xattrs": "ino, name",
    "block_map": "ino, block_index",
}


def _edit_schema(db: Database, sql: str) -> None:
    """Change the table ``sqlite_schema`` with SQL, which SQLite forbids by default."""
    version = db.connection.pragma("schema_version")
    db.connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    db.connection.execute("PRAGMA writable_schema = ON")
    db.connection.execute(sql)
    db.connection.execute("PRAGMA writable_schema = OFF")
    db.connection.execute(f"PRAGMA schema_version = {version + 1}")


def _leave_index_behind(healthy: Healthy, change: str) -> None:
    """Change a hash without changing its index entry, by temporarily hiding the index."""
    db = healthy.db
    [(block, digest)] = db.all("SELECT block, hash FROM blocks WHERE hash IS NOT NULL LIMIT 1")
    healthy.sql(f"UPDATE blocks SET hash = {change} WHERE block = ?", block)
    [row] = db.all("SELECT * FROM sqlite_schema WHERE name = 'blocks_by_hash'")
    _edit_schema(db, "DELETE FROM sqlite_schema WHERE name = 'blocks_by_hash'")
    healthy.sql("UPDATE blocks SET hash = ? WHERE block = ?", digest, block)
    _edit_schema(db, f"INSERT INTO sqlite_schema VALUES {row}")
    assert healthy.dump() == healthy.before


def _set_null(healthy: Healthy, table: str, column: str, declared: str, where: str) -> None:
    """Set a NOT NULL column to NULL while the schema temporarily permits NULL."""
    required, optional = f"{column:<12} {declared} NOT NULL", f"{column:<12} {declared}"
    for before, after in ((required, optional), (optional, required)):
        change = f"sql = replace(sql, '{before}', '{after}') WHERE name = '{table}'"
        _edit_schema(healthy.db, f"UPDATE sqlite_schema SET {change}")
        if after == optional:
            healthy.sql(f"UPDATE {table} SET {column} = NULL WHERE {where}")


async def test_null_value_in_a_not_null_column_is_found(healthy: Healthy) -> None:
    """fsck replaces a forbidden NULL. The repair of another invariant corrects the value.

    Invariant I1.
    """
    _set_null(healthy, "packs", "object_key", "TEXT   ", "pack = 1")
    assert (await healthy.check_all()).broken == ["I1"]

    report = await healthy.check_all(Mode.ALL)

    assert report.exit_status == 1
    assert (await healthy.check_all()).lines() == ["clean"]
    assert healthy.dump()["block_map"] == healthy.before["block_map"]


def test_irreparable_damage_prevents_all_repairs(healthy: Healthy) -> None:
    """fsck cannot repair damage that only SQLite detects, and then makes no other repair."""
    healthy.sql("UPDATE inodes SET nlink = 7 WHERE ino = ?", healthy.fifo)
    healthy.sql("CREATE TABLE notes (text TEXT)")
    _edit_schema(healthy.db, "DELETE FROM sqlite_schema WHERE name = 'notes'")
    before = healthy.dump()

    assert healthy.check().broken == ["I1"]
    report = healthy.check(Mode.ALL)
    assert (report.exit_status, report.broken) == (4, ["I1"])
    assert "bucket" in report.lines()[0]
    assert healthy.dump() == before


async def test_repairs_are_undone_if_irreparable_damage_remains(healthy: Healthy) -> None:
    """fsck undoes its repairs if damage remains, because a new image would publish the damage."""
    _set_null(healthy, "packs", "object_key", "TEXT   ", "pack = 1")
    healthy.sql("CREATE TABLE notes (text TEXT)")
    before = healthy.dump()

    report = healthy.check(Mode.ALL)

    assert (report.exit_status, report.broken) == (4, ["I1", "I2"])
    assert (report.is_undone, report.changes_rows) == (True, False)
    assert healthy.dump() == before
    healthy.sql("DROP TABLE notes")
    await healthy.assert_all_repaired()


def test_index_with_missing_entries_is_rebuilt(healthy: Healthy) -> None:
    """fsck rebuilds an index that has fewer entries than its table has rows.

    Invariant I3.
    """
    _leave_index_behind(healthy, "NULL")
    healthy.assert_mended("I3")


async def test_deep_check_finds_wrong_index_entries(healthy: Healthy) -> None:
    """fsck rebuilds an index with the correct number of entries but a wrong value.

    Invariant I4.
    """
    _leave_index_behind(healthy, "zeroblob(32)")
    assert healthy.check().lines() == ["clean"]
    await healthy.assert_all_mended("I4", deep=True)


def test_missing_index_is_created(healthy: Healthy) -> None:
    """An index contains no data of its own, so fsck creates it again.

    Invariant I2.
    """
    healthy.sql("DROP INDEX blocks_by_pack")
    healthy.assert_mended("I2")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER x AFTER INSERT ON inodes BEGIN DELETE FROM inodes; END",
        "CREATE VIEW x AS SELECT * FROM inodes",
        "CREATE INDEX x ON inodes (mode)",
        'CREATE VIEW "x""; y" AS SELECT 1',
    ],
)
def test_unknown_indexes_triggers_and_views_are_dropped(healthy: Healthy, statement: str) -> None:
    """fsck drops unknown indexes, triggers and views, which contain no data of their own."""
    healthy.sql(statement)

    healthy.assert_mended("I2")

    assert healthy.dump() == healthy.before


def test_table_outside_the_schema_is_reported_and_kept(healthy: Healthy) -> None:
    """fsck keeps an unknown table, because another program may need it."""
    healthy.sql("CREATE TABLE notes (text TEXT)")

    report = healthy.check(Mode.ALL)

    assert (report.exit_status, report.broken) == (4, ["I2"])
    assert report.verdicts[0].examples[0].what == "notes is not in the schema"
    assert healthy.db.all("SELECT * FROM notes") == []


@pytest.mark.parametrize("name", ["uuid", "block_bytes"])
async def test_missing_property_is_read_from_the_superblock(healthy: Healthy, name: str) -> None:
    """fsck reads a missing property from the superblock.

    Without a superblock the property stays missing.

    Invariant I5.
    """
    healthy.sql("DELETE FROM properties WHERE name = ?", name)
    report = healthy.check(Mode.ALL)
    assert (report.exit_status, report.broken) == (4, ["I5"])

    await healthy.assert_all_mended("I5")

    assert healthy.dump() == healthy.before


@pytest.mark.parametrize("name", ["renumbered/packs", "replaced/history", "damaged/junk"])
async def test_damaged_record_in_the_properties_is_repaired(healthy: Healthy, name: str) -> None:
    """fsck repairs rows of the table ``properties`` that record repairs or damage (I5)."""
    healthy.sql("INSERT INTO properties VALUES (?, 'junk')", name)

    await healthy.assert_all_mended("I5")


async def test_names_get_new_cookies_if_the_cookie_key_is_missing(healthy: Healthy) -> None:
    """fsck makes a new cookie key, and computes every name's cookie with this key."""
    healthy.sql("UPDATE properties SET value = x'' WHERE name = 'cookie_key'")
    names = {row[2] for row in healthy.before["dentries"]}
    assert (await healthy.check_all()).broken == ["I5"]

    report = await healthy.check_all(Mode.ALL)

    assert (report.exit_status, report.broken) == (1, ["I5", "I23"])
    again = Database.open(healthy.db.path, healthy.db.pragmas)
    for _, _, name, ino in healthy.before["dentries"]:
        parents = [row[0] for row in healthy.before["dentries"] if (row[2], row[3]) == (name, ino)]
        assert all(dentries.find(again, parent, name) == ino for parent in parents)
    assert {row[2] for row in healthy.dump()["dentries"]} == names
    again.close()
    assert (await healthy.check_all()).lines() == ["clean"]


@pytest.mark.parametrize("counter", ["next_ino", "next_block", "next_pack"])
def test_next_unused_number_is_raised_above_all_used_numbers(
    healthy: Healthy, counter: str
) -> None:
    """fsck raises each next number above all numbers in use, so that none is assigned twice.

    Invariant I6.
    """
    before = getattr(healthy.db.counters, counter)
    healthy.db.begin()
    setattr(healthy.db.counters, counter, before - 1)
    healthy.db.commit()

    healthy.assert_mended("I6")
    assert getattr(healthy.db.counters, counter) == before
    assert healthy.dump() == healthy.before


def test_number_beyond_all_assigned_numbers_does_not_raise_the_next_number(
    healthy: Healthy,
) -> None:
    """The next number stays below the numbers of points in time and the largest integer (I6)."""
    last = (1 << 63) - 1
    for table, column in (("packs", "pack"), ("blocks", "pack")):
        healthy.sql(f"UPDATE {table} SET {column} = {last} WHERE {column} = 1")
    healthy.sql(f"UPDATE inodes SET ino = {PAST_INO_MIN} WHERE ino = ?", healthy.fifo)
    next_ino, next_pack = healthy.db.counters.next_ino, healthy.db.counters.next_pack

    healthy.assert_repaired()

    assert healthy.db.counters.next_pack == next_pack
    assert next_ino < healthy.db.counters.next_ino < PAST_INO_MIN


@pytest.mark.parametrize("next_ino", [PAST_INO_MIN + 6, (1 << 63) - 1])
def test_next_inode_number_of_a_point_in_time_is_lowered(healthy: Healthy, next_ino: int) -> None:
    """fsck lowers the next number, and renumbers inodes whose numbers belong to points in time.

    Invariants I6 and I8.
    """
    before = healthy.db.counters.next_ino
    healthy.sql(f"UPDATE inodes SET ino = {PAST_INO_MIN + 5} WHERE ino = ?", healthy.fifo)
    healthy.db.begin()
    healthy.db.counters.next_ino = next_ino
    healthy.db.commit()

    healthy.assert_repaired()

    assert before <= healthy.db.counters.next_ino < PAST_INO_MIN
    assert healthy.db.one("SELECT max(ino) < ? FROM inodes", (PAST_INO_MIN,)) == (1,)


@pytest.mark.parametrize("counter", ["next_block", "next_pack"])
def test_next_number_that_counting_cannot_reach_is_lowered(healthy: Healthy, counter: str) -> None:
    """fsck leaves a gap above the numbers in use, which points in time may use (I6)."""
    before = getattr(healthy.db.counters, counter)
    healthy.sql(f"UPDATE {TABLE_OF[counter]} SET {counter} = {(1 << 63) - 1}")
    healthy.db.load_counters()

    healthy.assert_mended("I6")

    assert before + (1 << 39) < getattr(healthy.db.counters, counter) < PAST_INO_MIN


@pytest.mark.parametrize("counter", COUNTED)
def test_wrong_counters_are_corrected_by_a_scan_of_all_rows(healthy: Healthy, counter: str) -> None:
    """fsck sets each counter to the value that a scan finds.

    Invariant I65.
    """
    healthy.db.begin()
    setattr(healthy.db.counters, counter, getattr(healthy.db.counters, counter) + 5)
    healthy.db.commit()

    healthy.assert_mended("I65")

    assert healthy.dump() == healthy.before


@pytest.mark.parametrize("counter", ["capacity_bytes", "txg"])
def test_negative_capacity_or_txg_number_is_corrected(healthy: Healthy, counter: str) -> None:
    healthy.sql(f"UPDATE counters SET {counter} = -1")

    assert "I65" in healthy.check().broken
    healthy.check(Mode.SAFE)

    assert healthy.check().lines() == ["clean"]
    assert healthy.dump() == healthy.before


def spoil(healthy: Healthy, table: str, column: str, value: str) -> None:
    """Write a value of the given type into the last row of a table."""
    key = KEYS.get(table, "rowid")
    where = f"({key}) = (SELECT {key} FROM {table} ORDER BY {key} DESC LIMIT 1)"
    healthy.sql(f"UPDATE {table} SET {column} = {value} WHERE {where}")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("table", "column", "value"),
    [  # Fast tests use one wrong value for each column; slow tests use all wrong values.
        pytest.param(*one, value, marks=() if (at + row) % 3 == 0 else pytest.mark.slow)
        for row, one in enumerate(TYPED)
        for at, value in enumerate(VALUES)
    ],
)
async def test_value_of_the_wrong_type_is_found_and_repaired(
    healthy: Healthy, table: str, column: str, value: str
) -> None:
    """fsck -n reports a value of the wrong type, and two runs of fsck -y repair all damage.

    Invariant I70.
    """
    healthy.add_lease()
    spoil(healthy, table, column, value)

    assert "I70" in (await healthy.check_all()).broken
    await healthy.check_all(Mode.ALL)
    # The second run of fsck also checks lost+found.
    assert (await healthy.check_all(Mode.ALL)).exit_status in {0, 1}

    assert set((await healthy.check_all()).broken) <= {"I48"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        ("UPDATE dentries SET name = CAST(:bad AS TEXT) WHERE ino = :ino", "I22"),
        ("UPDATE symlinks SET target = CAST(:bad AS TEXT)", "I19"),
        ("UPDATE xattrs SET name = CAST(:bad AS TEXT) WHERE value = x'626c7565'", "I20"),
        ("UPDATE xattrs SET value = CAST(:bad AS TEXT) WHERE value = x'626c7565'", "I20"),
        ("UPDATE blocks SET hash = CAST(hash AS TEXT)", "I31"),
        ("UPDATE blocks SET hash = CAST(:bad AS TEXT) WHERE hash IS NOT NULL", "I31"),
        ("UPDATE packs SET object_key = CAST(object_key AS BLOB)", "I38"),
        ("UPDATE packs SET object_key = CAST(:bad AS TEXT) WHERE pack = 1", "I38"),
        ("UPDATE properties SET value = CAST(:bad AS TEXT) WHERE name = 'uuid'", "I5"),
        ("UPDATE properties SET value = CAST(:bad AS TEXT) WHERE name = 'cookie_key'", "I5"),
        ("UPDATE cached_blocks SET state = CAST(:bad AS TEXT)", "I40"),
        ("UPDATE cached_blocks SET ino = CAST(:bad AS TEXT)", "I41"),
        ("UPDATE counters SET next_block = CAST(:bad AS TEXT)", "I70"),
    ],
)
async def test_text_that_is_not_utf8_is_repaired(
    healthy: Healthy, damage: str, invariant: str
) -> None:
    """One damaged bit in the header of a row lets SQLite take bytes for text."""
    statement = damage.replace(":bad", "x'fffe80'").replace(":ino", str(healthy.fifo))
    healthy.sql(statement)

    assert invariant in (await healthy.check_all()).broken
    assert (await healthy.check_all(Mode.ALL)).exit_status == 1

    assert (await healthy.check_all(deep=True)).lines() == ["clean"]


@pytest.mark.parametrize(
    ("table", "column"), [one for one in TYPED if one[0] in {"packs", "blocks", "block_map"}]
)
async def test_number_that_became_text_is_repaired_by_a_deep_check(
    healthy: Healthy, table: str, column: str
) -> None:
    """The text is not UTF-8. A pack with a damaged row is read after the repair of the row."""
    healthy.add_lease()
    healthy.sql(f"UPDATE OR IGNORE {table} SET {column} = CAST(x'fffe80' AS TEXT)")

    assert "I70" in (await healthy.check_all(deep=True)).broken
    for _ in range(2):
        await healthy.check_all(Mode.ALL, deep=True)

    assert (await healthy.check_all(deep=True)).lines() == ["clean"]


async def test_block_is_kept_if_its_position_has_an_invalid_inode_number(healthy: Healthy) -> None:
    """If the inode number of a block's position is text, the block is not freed (I70)."""
    healthy.add_lease()
    before = healthy.db.one("SELECT count(*) FROM blocks")
    spoil(healthy, "block_map", "ino", "'x'")

    await healthy.check_all(Mode.ALL)

    assert healthy.db.one("SELECT count(*) FROM blocks") == before


@pytest.mark.thorough
def test_fsck_opens_a_database_with_invalid_counters(healthy: Healthy) -> None:
    """A mount refuses a database with invalid counters, but fsck opens it for a repair."""
    spoil(healthy, "counters", "next_ino", "x'ff'")
    path = healthy.db.path
    healthy.db.close()

    with pytest.raises(FormatError, match="counter"):
        Database.open(path, Pragmas())
    Database.open(path, Pragmas(), repairing=True).close()


async def test_sizes_whose_sum_exceeds_the_largest_integer_are_repaired(healthy: Healthy) -> None:
    """Impossible sizes in rows are reported and repaired; their sum does not stop fsck."""
    healthy.sql(f"UPDATE blocks SET stored_bytes = {1 << 62} WHERE pack = 1")
    healthy.sql(f"UPDATE blocks SET plain_bytes = {1 << 62}")
    healthy.sql(f"UPDATE packs SET object_bytes = {1 << 62}")
    healthy.sql(f"UPDATE inodes SET size_bytes = {FILE_BYTES_MAX} WHERE mode & 61440 = 32768")

    assert "I33" in (await healthy.check_all()).broken

    await healthy.assert_all_repaired()


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("column", ["pack", "pack_offset", "stored_bytes"])
async def test_location_of_the_wrong_type_is_found_in_the_bucket(
    healthy: Healthy, column: str, value: str
) -> None:
    """The survey of the bucket runs before the repair of types, and skips invalid locations."""
    healthy.sql(
        f"UPDATE blocks SET {column} = {value} WHERE block = (SELECT min(block) FROM blocks)"
    )
    assert "I70" in (await healthy.check_all()).broken

    await healthy.check_all(Mode.ALL)

    assert (await healthy.check_all()).lines() == ["clean"]
    assert healthy.dump()["block_map"] == healthy.before["block_map"]
