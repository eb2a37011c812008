"""Invariants of the database file: SQLite's checks, tables, properties, numbers, types, counters.

All other invariants rely on those in FOUNDATION: ``fsck`` stops if one of these cannot be repaired.
"""

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Final

from s3fs_meta.check.context import Examination, Invariant
from s3fs_meta.check.observations import Need
from s3fs_meta.check.sums import IS_REGULAR
from s3fs_meta.limits import BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, PAST_INO_MIN
from s3fs_meta.meta.db import connections, schema
from s3fs_meta.meta.db.counters import TABLE_OF, sum_of
from s3fs_meta.meta.db.database import COOKIE_KEY_BYTES, FACTS
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.tables import damage_marks, properties
from s3fs_meta.model import Ino, PackState

_RESTORE: Final = (
    "the bucket has an intact copy of an earlier point in time: move the state directory away and"
    " mount to restore it"
)

# --- pages and indexes -------------------------------------------------------------------------

_INDEXES: Final = (
    ("blocks_by_hash", "blocks", "hash IS NOT NULL"),
    ("blocks_by_pack", "blocks", "pack IS NOT NULL"),
    ("inodes_orphaned", "inodes", "nlink = 0"),
    ("dentries_collided", "dentries", "cookie & 255 <> 0"),
    ("packs_dead", "packs", "died_txg IS NOT NULL"),
    ("cached_blocks_pending", "cached_blocks", "state <> 4"),
)
_INDEX_COUNTS: Final = " UNION ALL ".join(
    f"SELECT '{index}' AS name,"
    f" (SELECT count(*) FROM {table} INDEXED BY {index} WHERE {where}) AS entries,"
    f" (SELECT count(*) FROM {table} NOT INDEXED WHERE {where}) AS wanted"
    for index, table, where in _INDEXES
)


# Replacements for NULL in NOT NULL columns. Other invariants then correct the values.
_NOTHING: Final = {"INTEGER": "0", "TEXT": "''", "BLOB": "x''"}
_REQUIRED_COLUMNS: Final = (
    "SELECT t.name, c.name, c.type FROM pragma_table_list AS t JOIN pragma_table_info(t.name) AS c"
    " WHERE t.schema = 'main' AND t.type = 'table' AND t.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    ' AND c."notnull" AND NOT c.pk'
)
_SCANS: Final = {
    "inodes": "SELECT count(*) FROM inodes",
    "dentries": "SELECT count(*) FROM dentries",
    "file_bytes": f"SELECT {sum_of('i.size_bytes')} FROM inodes AS i WHERE {IS_REGULAR}",
    "block_bytes": f"SELECT {sum_of('plain_bytes')} FROM blocks",
    "stored_bytes": (
        f"SELECT {sum_of('object_bytes')} FROM packs WHERE state = {PackState.STORED:d}"
    ),
    "capacity_bytes": "SELECT max(capacity_bytes, 0) FROM counters",
    "txg": "SELECT max(txg, 0) FROM counters",
}
_COUNTS: Final = " UNION ALL ".join(
    f"SELECT '{name}' AS name, (SELECT {name} FROM {TABLE_OF[name]}) AS counted,"
    f" ({scan}) AS scanned"
    for name, scan in _SCANS.items()
)
_COLUMNS: Final = "SELECT name, type, pk FROM pragma_table_info(?)"
_TABLES: Final = (*schema.REPLICATED_TABLES, *schema.LOCATION_TABLES)
_WRONG: Final = "typeof({0}) IN ('text', 'blob', 'real')"
# Key columns: a row with a value of the wrong type is deleted, and other repairs recreate the row.
_DERIVED: Final = (("dentries", "parent"), ("hard_links", "ino"), ("hard_links", "parent"))


def _reindex(exam: Examination, _invariant: Invariant) -> None:
    exam.run("REINDEX")
    exam.touched()


def _mend_rows(exam: Examination, invariant: Invariant) -> None:
    """Replace NULL in columns that forbid it, then rebuild the indexes."""
    for table, column, declared in exam.db.all(_REQUIRED_COLUMNS):
        # SQLite assumes that a NOT NULL column is never NULL, so only typeof() finds NULL values.
        exam.run(
            f"UPDATE {table} SET {column} = {_NOTHING[declared]} WHERE typeof({column}) = 'null'"
        )
    _reindex(exam, invariant)


# --- schema of the database --------------------------------------------------------------------


_IS_MISSING: Final = "is missing"
_DROPPABLE: Final = (
    "SELECT type FROM sqlite_schema WHERE name = ? AND type IN ('trigger', 'view', 'index')"
)


def _schema_faults(exam: Examination) -> Iterator[Row]:
    """Yield missing, different and additional tables and indexes, by name."""
    wanted = _wanted_objects()
    rows = exam.db.all(
        "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%'"
        " ESCAPE '\\'"
    )
    present = {name: _normal(sql) for name, sql in rows}
    for name in sorted(wanted.keys() | present.keys()):
        if name not in present:
            yield name, _IS_MISSING
        elif name not in wanted:
            yield name, "is not in the schema"
        elif present[name] != wanted[name][0]:
            yield name, "is defined differently in the schema"


@cache
def _wanted_objects() -> Mapping[str, tuple[str, str]]:
    """Return the normalized definition and the statement of each table and index, by name."""
    objects = {}
    for script in ("schema.sql", "local.sql"):
        text = resources.files("s3fs_meta.meta").joinpath(script).read_text("utf-8")
        for statement in re.sub(r"--[^\n]*", "", text).split(";"):
            match = re.match(r"\s*CREATE (?:TABLE|INDEX) (?:IF NOT EXISTS )?(\w+)", statement)
            if match is not None:
                objects[match[1]] = (_normal(statement), statement)
    return objects


def _normal(sql: str) -> str:
    """Return an SQL definition without comments, IF NOT EXISTS and redundant white space."""
    bare = re.sub(r"--[^\n]*", " ", sql).replace("IF NOT EXISTS", " ")
    return re.sub(r"\s+", " ", re.sub(r"\s*([(),])\s*", r"\1", bare)).strip()


def _mend_schema(exam: Examination, _invariant: Invariant) -> None:
    """Recreate missing or wrong indexes, and local tables; drop unknown triggers, views, indexes.

    Other missing tables are not created, because their rows are lost. Unknown tables are not dropped,
    because they may contain data.
    """
    wanted = _wanted_objects()
    for name, fault in list(_schema_faults(exam)):
        is_index = name in wanted and wanted[name][0].startswith("CREATE INDEX")
        if is_index:
            exam.run(f"DROP INDEX IF EXISTS {name}")
        if is_index or (fault == _IS_MISSING and name in schema.LOCAL_TABLES):
            exam.run(wanted[name][1])
            exam.touched()
        if name not in wanted:
            for kind in exam.db.all(_DROPPABLE, (name,)):
                exam.run(f"DROP {kind[0]} {_quoted(name)}")
                exam.touched()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# --- properties and highest numbers ------------------------------------------------------------

_FACT: Final = "SELECT value FROM properties WHERE name = ? AND typeof(value) = 'blob'"
_NUMBER: Final = re.compile(rb"[1-9][0-9]{0,8}")


def _property_faults(exam: Examination) -> Iterator[Row]:
    """Yield the names of properties that are missing, invalid, or different from the superblock.

    Also yields damaged records of repairs, and damage marks that name no location.
    """
    for name in FACTS:
        row = exam.db.one(_FACT, (name,))
        value = None if row is None else row[0]
        if not isinstance(value, bytes) or not _is_valid(exam, name, value):
            yield (name,)
    for name in _damaged_records(exam):
        yield (name,)


def _damaged_records(exam: Examination) -> list[str]:
    return [*properties.damaged_records(exam.db), *damage_marks.invalid(exam.db)]


def _is_valid(exam: Examination, name: str, value: bytes) -> bool:
    if name == "cookie_key":
        return len(value) == COOKIE_KEY_BYTES
    if name in exam.facts:
        return value == exam.facts[name]
    if name == "block_bytes":
        return _NUMBER.fullmatch(value) is not None and (
            BLOCK_BYTES_MIN <= int(value) <= BLOCK_BYTES_MAX
        )
    return bool(value)


def _mend_facts(exam: Examination, invariant: Invariant) -> None:
    """Copy properties from the superblock; generate a missing cookie key (I23 then moves names).

    Damaged records of repairs are replaced by records that retain more packs.
    """
    faulty = list(exam.rows(invariant))
    if _damaged_records(exam):
        properties.replace_damaged_records(exam.db)
        damage_marks.remove_invalid(exam.db)
        exam.touched()
    for (name,) in faulty:
        value = exam.facts.get(name)
        if name == "cookie_key":
            value = os.urandom(COOKIE_KEY_BYTES)
            exam.db.take_cookie_key(value)
        if value is not None:
            exam.run("INSERT OR REPLACE INTO properties VALUES (?, ?)", (name, value))


# All columns with inode, block or pack numbers. Each has an index, which finds its maximum fast.
# Every valid number is below PAST_INO_MIN; larger numbers are damaged and are ignored here.
# The repairs of I8 and of rows without an inode replace damaged inode numbers.
# ``meta.next_numbers`` rejects the same next numbers when a host mounts for writing.
_NUMBERS: Final = (
    ("next_ino", "ino", ("inodes", "temp.check_names", "block_map", "symlinks", "xattrs")),
    ("next_ino", "parent", ("dentries",)),
    ("next_block", "block", ("blocks", "temp.check_refs", "cached_blocks")),
    ("next_pack", "pack", ("packs", "temp.check_live")),
)
_NEXT_NUMBERS: Final = " UNION ALL ".join(
    f"SELECT '{counter}' AS name, (SELECT {counter} FROM {TABLE_OF[counter]}) AS next,"
    f" (SELECT coalesce(max({column}), 0) FROM {table} WHERE {column} < {PAST_INO_MIN}) AS highest"
    for counter, column, tables in _NUMBERS
    for table in tables
)


# Distance from the highest number in use to a lowered next number of blocks or packs.
# Points in time may use numbers in between; no filesystem has so many blocks or packs.
_UNKNOWN_NUMBERS: Final = 1 << 40


def _set_next_numbers(exam: Examination, invariant: Invariant) -> None:
    """Raise each next number above all numbers in use; lower a next number above the maximum."""
    for name, _next, highest in list(exam.rows(invariant)):
        following = getattr(exam.db.counters, name)
        if following > PAST_INO_MIN:
            unknown = 0 if name == "next_ino" else _UNKNOWN_NUMBERS
            following = min(highest + unknown, PAST_INO_MIN)
        exam.set_counter(name, max(following, highest + 1))


SQLITE: Final = (
    Invariant(
        1,
        "SQLite's own check finds no fault in pages, rows and keys",
        source="pragma_quick_check AS q",
        damaged="q.quick_check <> 'ok'",
        columns="q.quick_check",
        text="{0}",
        repair=_mend_rows,
        about_inode=False,
        advice=_RESTORE,
    ),
    Invariant(
        2,
        "the tables and indexes match the schema",
        text="{0} {1}",
        scan=_schema_faults,
        repair=_mend_schema,
        about_inode=False,
        advice=_RESTORE,
    ),
    Invariant(
        3,
        "an index has one entry for each row that it covers",
        source=f"({_INDEX_COUNTS}) AS x",
        damaged="x.entries <> x.wanted",
        columns="x.name, x.entries, x.wanted",
        text="index {0} has {1} entries instead of {2}",
        repair=_reindex,
        safe=True,
        about_inode=False,
        advice=_RESTORE,
    ),
    Invariant(
        4,
        "every index entry matches its row (with --deep)",
        source="pragma_integrity_check AS q",
        damaged="q.integrity_check <> 'ok'",
        columns="q.integrity_check",
        text="{0}",
        repair=_reindex,
        needs=Need.CONTENT,
        about_inode=False,
        advice=_RESTORE,
    ),
)

NUMBERS: Final = (
    Invariant(
        5,
        "the uuid and the block size match the superblock; the cookie key, the records of repairs and"
        " the damage marks are valid",
        text="property {0} is missing or wrong",
        scan=_property_faults,
        repair=_mend_facts,
        about_inode=False,
        advice=_RESTORE,
    ),
    Invariant(
        6,
        "the next number of each kind is greater than every number in use, and at most 2^62",
        source=f"({_NEXT_NUMBERS}) AS x",
        damaged=f"x.next <= x.highest OR x.next > {PAST_INO_MIN}",
        columns="x.name, x.next, x.highest",
        text="{0} is {1}, but {2} is the highest number in use",
        repair=_set_next_numbers,
        safe=True,
        about_inode=False,
    ),
)


# --- the row of counters -----------------------------------------------------------------------


def _set_counters(exam: Examination, invariant: Invariant) -> None:
    for name, _counted, scanned in list(exam.rows(invariant)):
        exam.set_counter(name, scanned)


TOTALS: Final = (
    Invariant(
        65,
        "the counters equal the results of a scan",
        source=f"({_COUNTS}) AS x",
        damaged="x.counted <> x.scanned",
        columns="x.name, x.counted, x.scanned",
        text="counter {0} is {1} instead of {2}",
        repair=_set_counters,
        safe=True,
        about_inode=False,
    ),
)


# --- types of column values --------------------------------------------------------------------
#
# SQLite stores values of any type in any column, and all other queries compute with integers.
# Types are checked and repaired first. SQLite converts a wrong value to an integer, usually 0.
# Other invariants correct the converted values. A row whose key has a wrong type is deleted.
# Names and counts are recomputed from other rows, and content is moved to a separate file.


@cache
def integer_columns() -> Mapping[str, Mapping[str, bool]]:
    """Return the integer columns of each table, and whether a column is in the primary key."""
    reference = connections.in_memory()
    try:
        schema.create_tables(reference)
        found = {}
        for table in _TABLES:
            columns = reference.execute(_COLUMNS, (table,)).fetchall()
            keys = [name for name, _kind, key in columns if key]
            found[table] = {
                str(name): bool(key)
                for name, kind, key in columns
                # A rowid needs no check, because it is always an integer.
                if kind == "INTEGER" and [name] != keys
            }
        return {table: columns for table, columns in found.items() if columns}
    finally:
        reference.close()


def _wrong(column: str) -> str:
    return _WRONG.format(column)


def _type_faults(exam: Examination) -> Iterator[Row]:
    """Yield (table, column, number of values that are not integers), with one scan per table."""
    for table, columns in integer_columns().items():
        sums = ", ".join(f"total({_wrong(column)})" for column in columns)
        [counts] = exam.db.all(f"SELECT {sums} FROM {table}")
        for column, count in zip(columns, counts, strict=True):
            if count:
                yield table, column, int(count)


def _mend_types(exam: Examination, _invariant: Invariant) -> None:
    columns = integer_columns()
    for table, column, _count in list(_type_faults(exam)):
        if (table, column) in _DERIVED or (table, column) == ("xattrs", "ino"):
            exam.run(f"DELETE FROM {table} WHERE {_wrong(column)}")
        elif table == "block_map" and columns[table][column]:
            _move_blocks(exam, column)
        else:
            exam.run(
                f"UPDATE OR IGNORE {table} SET {column} = {_value(table, column)}"
                f" WHERE {_wrong(column)}"
            )
            if columns[table][column]:  # rows whose corrected key is already in use are deleted
                exam.run(f"DELETE FROM {table} WHERE {_wrong(column)}")
    exam.touched()
    exam.db.load_counters()


def _value(table: str, column: str) -> str:
    """Return an SQL expression for the replacement of a value with a wrong type.

    If the value cannot be derived, the replacement violates another invariant, which reports it.
    """
    number = f"CAST({column} AS INTEGER)"
    if table == "block_map":  # also in cached_blocks, which may have the same block number
        found = "SELECT c.block FROM cached_blocks AS c WHERE c.ino = block_map.ino"
        return f"coalesce(({found} AND c.block_index = block_map.block_index), {number})"
    if table == "inodes" and not column.endswith("_delta_ns"):
        return f"CASE typeof({column}) WHEN 'real' THEN {number} ELSE -1 END"
    return number


def _move_blocks(exam: Examination, column: str) -> None:
    """Move blocks with an invalid inode or index to a new inode number; I15 creates the inode."""
    found = exam.db.all(f"SELECT CAST(block AS INTEGER) FROM block_map WHERE {_wrong(column)}")
    exam.run(f"DELETE FROM block_map WHERE {_wrong(column)}")
    ino = Ino(max(exam.db.counters.next_ino, _highest_ino(exam) + 1))
    for index, (block,) in enumerate(found):
        exam.run("INSERT INTO block_map VALUES (?, ?, ?)", (ino, index, block))


def _highest_ino(exam: Examination) -> int:
    row = exam.db.one(
        f"SELECT max((SELECT coalesce(max(ino), 0) FROM inodes WHERE ino < {PAST_INO_MIN}),"
        " (SELECT coalesce(max(ino), 0) FROM block_map WHERE typeof(ino) = 'integer'"
        f" AND ino < {PAST_INO_MIN}))"
    )
    return int(row[0] or 0) if row is not None else 0


TYPES: Final = (
    Invariant(
        70,
        "every integer column contains only integers",
        text="column {1} of table {0} has {2} values that are not integers",
        scan=_type_faults,
        repair=_mend_types,
        about_inode=False,
        advice="requests that need these rows return an error; -y converts the values to integers",
    ),
)
