"""A check of the schema of a database that was downloaded from the bucket.

Owns: comparing tables, columns and indexes with schema.sql, for each schema version.
Does not know: the source of the file, rows.
Keeps: SQL in the file is used only as definitions of tables and indexes, by a connection in
defensive mode. The file is changed only by creating missing indexes.

Columns are compared as SQLite parses them (``table_xinfo``), because the text of an upgraded table
differs. Other clauses (CHECK, COLLATE, generated columns) must occur as often as in schema.sql.
A local table is rejected, because this host would take its rows for its own facts. Other additional
tables are harmless. An additional or different index is rejected, because SQLite
evaluates indexes at every change.
"""

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import IMAGE_VALUE_BYTES_MAX
from s3fs_meta.meta.db import connections, schema
from s3fs_meta.meta.db.connections import translated
from s3fs_meta.meta.offline.page_trees import SCHEMA_ROOT, PageTrees

_OBJECTS: Final = "SELECT type, name, tbl_name, sql FROM main.sqlite_schema"
_ROOTS: Final = (
    "SELECT rootpage FROM main.sqlite_schema WHERE typeof(rootpage) = 'integer' AND rootpage <> 0"
)
_KIND: Final = "SELECT type, wr FROM pragma_table_list(?) WHERE schema = 'main'"
_COLUMNS: Final = 'SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?)'
# The "+" forces a scan. An index search would load complete rows of any length.
_VERSION: Final = "SELECT value FROM properties WHERE +name = 'schema_version'"
_NOT_IN_COLUMNS: Final = re.compile(
    r"\b(?:CHECK|COLLATE|GENERATED|AS|REFERENCES|CONSTRAINT|UNIQUE|CONFLICT|STRICT)\b",
    re.IGNORECASE,
)
_TABLES: Final = frozenset((*schema.REPLICATED_TABLES, *schema.LOCATION_TABLES))
_FORMER_VERSION: Final = 1
_INTEGER: Final = "INTEGER"  # declared type of a column


class _Table(NamedTuple):
    """The properties of a table, independent of its definition's text."""

    kind: str  # kind of the table: table, shadow, virtual or view
    without_rowid: bool
    columns: tuple[tuple[object, ...], ...]
    keywords: Counter[str]


class _Schema(NamedTuple):
    """The tables and indexes that a database file defines."""

    tables: dict[str, _Table]  # the replicated tables and the location tables
    indexes: dict[str, str]  # definitions of the indexes on *tables*


def require_ours(path: Path, key: str, *, authentic: bool = False) -> None:
    """Raise FormatError unless a database has the tables of its schema version. Call in a thread.

    Args:
        path: path of the file; only missing indexes are created in it.
        key: key of the object from which the file was downloaded, for the error.
        authentic: a writer of this filesystem made the file. If not, its pages must form trees, and
            no value may be longer than IMAGE_VALUE_BYTES_MAX.

    Raises:
        NewerFormatError: the file has a schema version that this program does not know.
        FormatError: the file has a different schema, or SQLite cannot read it.
        DatabaseError: the disk failed.
    """
    try:
        _require(path, key, authentic=authentic)
    # SQLite failed because a table is missing or a definition is invalid.
    except (apsw.SQLError, UnicodeDecodeError) as exc:
        raise FormatError(key, str(exc)) from exc
    except apsw.Error as exc:
        error = translated(exc, str(path))
        raise (FormatError(key, str(exc)) if isinstance(error, FormatError) else error) from exc


def require_ours_damaged(connection: apsw.Connection, key: str) -> int:
    """Check the schema of a database with missing pages; return its schema version.

    The row with the version may be missing, so the tables determine the version. Missing
    indexes are not created.

    Raises:
        FormatError: the database has a different schema, or the schema is unreadable.
    """
    try:
        found = _schema_of(connection, key)
    except (apsw.SQLError, UnicodeDecodeError) as exc:
        raise FormatError(key, str(exc)) from exc
    except apsw.Error as exc:
        raise translated(exc, key) from exc
    try:
        _require_same(found, _wanted(schema.SCHEMA_VERSION), key)
    except FormatError:
        _require_same(found, _wanted(_FORMER_VERSION), key)
        return _FORMER_VERSION
    return schema.SCHEMA_VERSION


def _require(path: Path, key: str, *, authentic: bool) -> None:
    if not authentic:
        _require_trees(path, key)
    connection = connections.connect(
        path, read_only=False, defensive=True, value_bytes_max=IMAGE_VALUE_BYTES_MAX
    )
    try:
        found = _schema_of(connection, key)
        wanted = _wanted(_version(connection, key))
        _require_same(found, wanted, key)
        for _kind, name, *_rest in connection.execute(_OBJECTS):
            if str(name).lower() in schema.LOCAL_TABLES:
                raise FormatError(key, f"the database contains the local table {name}")
        if not authentic:
            _require_short_values(path, wanted, key)
        for name in sorted(wanted.indexes.keys() - found.indexes.keys()):
            connection.execute(wanted.indexes[name])
    finally:
        connection.close()


def _require_short_values(path: Path, wanted: _Schema, key: str) -> None:
    """Raise FormatError if any value exceeds IMAGE_VALUE_BYTES_MAX; check two tables at a time.

    Longer values would let one request fill the memory. The check itself loads no long value.
    SQLite reads the length of a BLOB from the header of its row. Before it loads a long text or
    number, it raises TooBigError.
    """
    check = partial(_require_short_values_of, path, key)
    with ThreadPoolExecutor(2, "check-values") as executor:
        for _ in executor.map(check, *zip(*wanted.tables.items(), strict=True)):
            pass  # the iteration raises the first error of a check


def _require_short_values_of(path: Path, key: str, name: str, table: _Table) -> None:
    numbers = [str(column[0]) for column in table.columns if column[1] == _INTEGER]
    others = [str(column[0]) for column in table.columns if column[1] != _INTEGER]
    sums = [f"count({' | '.join(numbers)})"] if numbers else []
    lengths = [f"max(length({column}))" for column in others]
    connection = connections.connect_immutable(path, IMAGE_VALUE_BYTES_MAX)
    try:
        [row] = connection.execute(f"SELECT {', '.join((*lengths, *sums))} FROM {name}")
        longest = max((bytes_ or 0 for bytes_ in row[: len(lengths)]), default=0)
    except apsw.TooBigError:
        longest = IMAGE_VALUE_BYTES_MAX + 1
    finally:
        connection.close()
    if longest > IMAGE_VALUE_BYTES_MAX:
        what = f"its table {name} has a value of more than {IMAGE_VALUE_BYTES_MAX} bytes"
        raise FormatError(key, what)


def _require_trees(path: Path, key: str) -> None:
    """Raise FormatError if a page occurs twice in a tree; SQLite would read it repeatedly."""
    trees = PageTrees(path, key)
    try:
        trees.require_trees([SCHEMA_ROOT])  # this check must run before SQLite reads the schema
        connection = connections.connect(
            path, read_only=True, defensive=True, value_bytes_max=IMAGE_VALUE_BYTES_MAX
        )
        try:
            roots = connection.execute(_ROOTS).fetchall()
        finally:
            connection.close()
        trees.require_trees(row[0] for row in roots if isinstance(row[0], int))
    finally:
        trees.close()


def _wanted(version: int) -> _Schema:
    reference = connections.in_memory()
    try:
        schema.create_tables(reference)
        wanted = _schema_of(reference, "schema.sql")
    finally:
        reference.close()
    if version == _FORMER_VERSION:
        inodes = wanted.tables["inodes"]
        wanted.tables["inodes"] = inodes._replace(columns=inodes.columns[:-1])
    return wanted


def _require_same(found: _Schema, wanted: _Schema, key: str) -> None:
    for name, table in wanted.tables.items():
        if found.tables.get(name) != table:
            raise FormatError(key, f"the definition of table {name} differs from the schema")
    for name, sql in found.indexes.items():
        if wanted.indexes.get(name) != sql:
            raise FormatError(
                key, f"the index {name} is not in the schema, or is defined differently"
            )


def _schema_of(connection: apsw.Connection, key: str) -> _Schema:
    """Return the schema of a database.

    Raises:
        FormatError: the database has an object that is neither a table nor an index, or has a table
            in which SQLite stores statistics for query plans.
    """
    found = _Schema({}, {})
    for kind, name, of_table, sql in connection.execute(_OBJECTS):
        if kind not in {"table", "index"} or not isinstance(sql, str) or name.startswith("sqlite_"):
            raise FormatError(key, f"the schema contains an unexpected object: {kind} {name}")
        text = _normal(sql)
        if kind == "table" and name in _TABLES:
            [[table_kind, without_rowid]] = connection.execute(_KIND, (name,)).fetchall()
            keywords = Counter(word.upper() for word in _NOT_IN_COLUMNS.findall(text))
            columns = tuple(connection.execute(_COLUMNS, (name,)).fetchall())
            found.tables[name] = _Table(str(table_kind), bool(without_rowid), columns, keywords)
        elif kind == "index" and of_table in _TABLES:
            found.indexes[name] = text
        elif kind == "table" and text.upper().startswith("CREATE VIRTUAL"):
            raise FormatError(key, f"the database has an unexpected virtual table {name}")
    return found


def _normal(sql: str) -> str:
    """Return a definition without comments and with normalized white space."""
    bare = re.sub(r"--[^\n]*", " ", sql)
    return re.sub(r"\s+", " ", re.sub(r"\s*([(),])\s*", r"\1", bare)).strip()


def _version(connection: apsw.Connection, key: str) -> int:
    rows = connection.execute(_VERSION).fetchall()
    text = bytes(rows[0][0]) if len(rows) == 1 and isinstance(rows[0][0], bytes) else b""
    if not re.fullmatch(rb"[1-9][0-9]{0,8}", text):
        raise FormatError(key, "the schema version of the database is missing or invalid")
    if int(text) > schema.SCHEMA_VERSION:
        raise NewerFormatError(key, f"the schema version {int(text)} is unknown")
    return int(text)
