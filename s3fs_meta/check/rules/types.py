"""Invariant of the values of columns: SQLite keeps any type in any of them.

All other queries compute with these numbers, so this one is judged and repaired before them. What
a number should have been is not known: it becomes what SQLite makes of the value, mostly 0, and the
invariants about that column find the right one. A row whose key is wrong stands for nothing: names
and counts are made anew from the rest, content goes to a file of its own.
"""

from collections.abc import Iterator
from typing import Final

from s3fs_meta.check.context import Examination, Invariant
from s3fs_meta.meta.db import connections, schema
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.model import Ino

_COLUMNS: Final = "SELECT name, type, pk FROM pragma_table_info(?)"
_TABLES: Final = (*schema.REPLICATED_TABLES, *schema.LOCATION_TABLES)
_WRONG: Final = "typeof({0}) IN ('text', 'blob', 'real')"
# Rows that no lookup by key finds, and that follow from other rows or belong to no inode.
_DERIVED: Final = (("dentries", "parent"), ("hard_links", "ino"), ("hard_links", "parent"))


def _integers() -> dict[str, dict[str, bool]]:
    """Return the columns of whole numbers by table, and which of them are in a key."""
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
                if kind == "INTEGER" and [name] != keys  # a rowid is nothing else
            }
        return {table: columns for table, columns in found.items() if columns}
    finally:
        reference.close()


def _wrong(column: str) -> str:
    return _WRONG.format(column)


def _type_faults(exam: Examination) -> Iterator[Row]:
    """Yield table, column and how many values of it are no whole numbers; one scan of a table."""
    for table, columns in _integers().items():
        sums = ", ".join(f"total({_wrong(column)})" for column in columns)
        [counts] = exam.db.all(f"SELECT {sums} FROM {table}")
        for column, count in zip(columns, counts, strict=True):
            if count:
                yield table, column, int(count)


def _mend_types(exam: Examination, _invariant: Invariant) -> None:
    columns = _integers()
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
            if columns[table][column]:  # another row has that key
                exam.run(f"DELETE FROM {table} WHERE {_wrong(column)}")
    exam.touched()
    exam.db.load_counters()


def _value(table: str, column: str) -> str:
    """Return what stands in for a value: for what cannot be known, one that others find wrong."""
    number = f"CAST({column} AS INTEGER)"
    if table == "block_map":  # the local copy may know which block it was
        found = "SELECT c.block FROM cached_blocks AS c WHERE c.ino = block_map.ino"
        return f"coalesce(({found} AND c.block_index = block_map.block_index), {number})"
    if table == "inodes" and not column.endswith("_delta_ns"):
        return f"CASE typeof({column}) WHEN 'real' THEN {number} ELSE -1 END"
    return number


def _move_blocks(exam: Examination, column: str) -> None:
    """Give blocks of an unknown place a file of their own, which has no inode yet."""
    found = exam.db.all(f"SELECT ino, block_index, block FROM block_map WHERE {_wrong(column)}")
    exam.run(f"DELETE FROM block_map WHERE {_wrong(column)}")
    ino = Ino(max(exam.db.counters.next_ino, _highest_ino(exam) + 1))
    for index, (_ino, _index, block) in enumerate(found):
        exam.run("INSERT INTO block_map VALUES (?, ?, ?)", (ino, index, block))


def _highest_ino(exam: Examination) -> int:
    row = exam.db.one(
        "SELECT max((SELECT max(ino) FROM inodes),"
        " (SELECT coalesce(max(ino), 0) FROM block_map WHERE typeof(ino) = 'integer'))"
    )
    return int(row[0] or 0) if row is not None else 0


TYPES: Final = (
    Invariant(
        70,
        "every column of whole numbers holds nothing else",
        source="",
        damaged="",
        columns="",
        text="table {0} has {2} values in column {1} that are no whole numbers",
        scan=_type_faults,
        repair=_mend_types,
        about_inode=False,
        advice="reading what they are about gives an error; -y makes them numbers",
    ),
)
