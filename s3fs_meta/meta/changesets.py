"""Recorded changes of the replicated tables: merging, applying and listing them.

Owns: parsing SQLite session changesets, and handling conflicts.
Does not know: the origin and the storage of a changeset, commit groups, counters.
Keeps: a changeset is applied in full or not at all. Its bytes are not trusted: the columns of every
table, and the types of all used values, are checked first.
Tasks: any thread. apsw reads a changeset passed as bytes with the interpreter lock held, which
stalls the event loop for 165 ms for 100,000 changes. So ``apply`` and ``merge`` pass apsw a Python
function that returns parts of 1 KiB, and another thread waits for at most 6 ms. One change takes
1.2 us, and its check 0.4 us.

For each changed row, a changeset has an INSERT with the new values, a DELETE with the old values,
or an UPDATE. In an UPDATE, ``old`` has the primary key and the former values of changed columns,
and ``new`` has their new values. Every other value is ``apsw.no_change``.
Source: https://www.sqlite.org/sessionintro.html, chapter 2; apsw, "Session extension".
"""

import functools
import io
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final, NamedTuple, NoReturn

import apsw

from s3fs_meta.errors import FormatError
from s3fs_meta.limits import IMAGE_VALUE_BYTES_MAX
from s3fs_meta.meta.db import connections, schema
from s3fs_meta.meta.db.connections import translated
from s3fs_meta.model import BlockId, Cookie, Ino

_Row = tuple[Any, ...]

# The name of a changeset in error messages if its source is unknown.
_CHANGESET: Final = "changeset"

# Column numbers. The first column of each table is the primary key, or a part of it.
_SIZE_BYTES: Final = 5  # column number in the table inodes
_NAME: Final = 2  # column number in the table dentries
_BLOCK: Final = 2  # column number in the table block_map
NEXT_BLOCK: Final = 2  # column number in the table counters

# Tables without names, attributes or content of files.
_BOOKKEEPING: Final = frozenset({"counters", "properties"})
_OF_INODES: Final = frozenset({"inodes", "hard_links", "symlinks", "xattrs"})

# The column of each table that contains the inode number.
_INO_COLUMN: Final = {**dict.fromkeys(_OF_INODES, 0), "block_map": 0, "dentries": 3}

# The columns of each table that contain numbers of inodes or blocks.
_NUMBER_COLUMNS: Final = {
    **dict.fromkeys(_OF_INODES, (0,)),
    "block_map": (0, _BLOCK),
    "dentries": (0, 3),
}

_CONFLICTS: Final = {
    apsw.SQLITE_CHANGESET_DATA: "the row has different values",
    apsw.SQLITE_CHANGESET_NOTFOUND: "the row is missing",
    apsw.SQLITE_CHANGESET_CONFLICT: "the row already exists",
    apsw.SQLITE_CHANGESET_CONSTRAINT: "a constraint forbids it",
    apsw.SQLITE_CHANGESET_FOREIGN_KEY: "a foreign key forbids it",
}

# SQLite errors that indicate a damaged changeset. Other errors concern the disk, memory or a lock.
_DAMAGE: Final = (
    apsw.CorruptError,
    apsw.SQLError,
    apsw.SchemaChangeError,
    apsw.MismatchError,
    apsw.RangeError,
    apsw.ConstraintError,
    apsw.TooBigError,
)


class Touched(NamedTuple):
    """The names and inodes that a changeset changes; any of the sets may be empty."""

    # Names that were created, removed, or replaced by a rename, as (parent, name).
    names: set[tuple[Ino, bytes]]
    cookies: set[tuple[Ino, Cookie]]  # names that now refer to another inode, as (parent, cookie)
    inodes: set[Ino]  # inodes with changes in inodes, hard_links, symlinks or xattrs
    contents: set[Ino]  # inodes that were deleted, or whose size or block map changed


class Summary(NamedTuple):
    """The numbers of inodes, names and blocks that a changeset changes, for display."""

    created: int  # number of created inodes
    removed: int
    changed: int
    names: int  # number of changed rows in dentries
    blocks: int  # number of changed rows in block_map


class _Shape(NamedTuple):
    """The columns and the primary key that a table must have in a changeset."""

    # The numbers of columns that the table has in the current and in earlier schema versions.
    columns: frozenset[int]
    key: set[int]  # positions of the primary-key columns


# --- merge, split and apply changesets ---------------------------------------------------------


def merge(changesets: Iterable[bytes], tables: apsw.Connection | None = None) -> bytes:
    """Merge changesets, given in order, into one changeset with their net effect.

    A row that is inserted and later deleted is not in the result. If there are no changes, the
    result is ``b""``.
    Changes of earlier schema versions are converted to the current one: missing columns get their
    defaults, as in a database that was upgraded.

    Args:
        changesets: the changesets to merge.
        tables: a database with the tables of the current schema version; no row is read. Without
            it, the tables are created in memory, which takes 0.5 ms.

    Raises:
        FormatError: a changeset is damaged, or has a table with unknown columns.
    """
    if tables is None:
        with closing(_empty_tables()) as made:
            return merge(changesets, made)
    builder = apsw.ChangesetBuilder()  # type: ignore[no-untyped-call]  # stub without a return type
    try:
        builder.schema(tables, "main")
        for number, changeset in enumerate(changesets, 1):
            with _errors(f"{_CHANGESET} {number} of a merge"):
                builder.add(_pieces(changeset))
        merged = io.BytesIO()  # getvalue() returns its buffer without a copy

        # The callback is a Python function, so that other threads can run between its calls.
        def keep(part: memoryview) -> None:
            merged.write(part)

        with _errors("merged changeset"):
            builder.output_stream(keep)
        return merged.getvalue()
    finally:
        builder.close()


def split(changeset: bytes, bytes_max: int) -> list[bytes]:
    """Split a changeset into parts of about *bytes_max* bytes, which may be applied in any order.

    A single change is never split.

    Raises:
        FormatError: the changeset is damaged.
    """
    if len(changeset) <= bytes_max:
        return [changeset]
    found: list[bytes] = []
    builder = apsw.ChangesetBuilder()  # type: ignore[no-untyped-call]  # stub without a return type
    size = 0
    with _errors(_CHANGESET):
        for _table, change in _changes(changeset):
            values = (*(change.old or ()), *(change.new or ()))
            change_bytes = sum(len(one) if isinstance(one, bytes) else 9 for one in values)
            if size and size + change_bytes > bytes_max:
                found.append(builder.output())
                builder.close()
                builder = apsw.ChangesetBuilder()  # type: ignore[no-untyped-call]
                size = 0
            builder.add_change(change)
            size += change_bytes
        found.append(builder.output())
        builder.close()
    return found


def apply(connection: apsw.Connection, changeset: bytes, where: str) -> None:
    """Apply a changeset inside a transaction; an error undoes only this changeset.

    The database must have every table in the changeset, with the same primary key and columns.
    Columns that a later schema version added may be missing in the changeset; new rows then have
    the default values. SQLite itself would skip all changes to a table with different columns, and
    report success. Each row must have the values that it had when the changes were recorded.

    Args:
        where: the source of the changeset, for errors.

    Raises:
        FormatError: the changeset is damaged or does not fit the rows; none of its changes was
            made. (Under journal_mode=off nothing can be undone: the database is then unusable.)
        DatabaseError: SQLite failed; it may have rolled back the transaction.
    """
    assert connection.in_transaction, "changes are applied inside a transaction"

    def refuse(reason: int, change: apsw.TableChange) -> NoReturn:
        # If this function raises, apsw aborts the changeset, and apply() raises the same exception.
        # For a foreign key conflict, SQLite passes no table name.
        _misfit(where, change.name or "(unknown)", _CONFLICTS[reason])

    with _errors(where, connection.filename):
        for _ in _changes(changeset, where, _shapes(connection)):
            pass  # an invalid changeset raises an error before any row changes
        with connections.short_values(connection, IMAGE_VALUE_BYTES_MAX):
            apsw.Changeset.apply(_pieces(changeset), connection, conflict=refuse)


# --- read the content of a changeset -----------------------------------------------------------


def rows(
    changeset: bytes, only: str | None = None
) -> Iterator[tuple[str, _Row | None, _Row | None]]:
    """Yield the table, the old values and the new values of each changed row.

    An INSERT has no old values, and a DELETE has no new values. Values that an UPDATE does not
    change are ``apsw.no_change``, but the old values always contain the primary key.

    Args:
        changeset: the changeset.
        only: the table whose changes to yield; None for all tables.

    Raises:
        FormatError: the changeset is damaged.
    """
    with _errors(_CHANGESET):
        for table, change in _changes(changeset):
            if only is None or table == only:
                yield table, change.old, change.new


def has_invalid_values(changeset: bytes) -> bool:
    """Return whether other hosts would refuse a value, because a row was damaged.

    Such a value has the wrong type for its column, or is a negative number of an inode or block.
    """
    types = _column_types()
    try:
        for table, change in _changes(changeset):
            for values in (change.old, change.new):
                if values is not None and _is_damaged(table, values, types[table]):
                    return True
    except UnicodeDecodeError:
        return True
    return False


def _is_damaged(table: str, values: _Row, kinds: tuple[type, ...]) -> bool:
    # Comparing all types at once takes a third of the time.
    if tuple(map(type, values)) != kinds:
        for value, kind in zip(values, kinds, strict=True):
            if type(value) is not kind and value is not apsw.no_change:
                return True
    for column in _NUMBER_COLUMNS.get(table, ()):
        if values[column] is not apsw.no_change and values[column] < 0:
            return True
    return False


def is_news(changeset: bytes) -> bool:
    """Return whether a changeset changes more than the tables ``counters`` and ``properties``.

    The changeset is read only up to the first such change. Raises the errors of ``rows``.
    """
    return any(table not in _BOOKKEEPING for table, _old, _new in rows(changeset))


def former_values(changeset: bytes, table: str, key: int | str) -> dict[int, Any]:
    """Return the old values replaced by an UPDATE of one row, keyed by column number.

    *key* is the row's primary key, its first column. Columns that the UPDATE does not change are
    not in the result. Raises the errors of ``rows``.
    """
    found: dict[int, Any] = {}
    for _, old, new in rows(changeset, table):
        if old and new and old[0] == key:
            values = enumerate(old[1:], 1)
            found |= {column: one for column, one in values if one is not apsw.no_change}
    return found


def inserts(changeset: bytes, table: str, key: int | str) -> bool:
    """Return whether a changeset inserts the row with the primary key *key*, its first column.

    Raises the errors of ``rows``.
    """
    changes = rows(changeset, table)
    return any(new is not None and not old and new[0] == key for _, old, new in changes)


def block_refs(changeset: bytes) -> dict[BlockId, int]:
    """Compute the change in each block's reference count from the changes to block_map.

    Blocks with an unchanged count are not in the result. Raises the errors of ``rows``.
    """
    refs: Counter[BlockId] = Counter()
    for _, old, new in rows(changeset, "block_map"):
        if old is not None:
            refs[old[_BLOCK]] -= 1
        if new is not None:
            refs[new[_BLOCK]] += 1
    require_identifiers(refs)
    return {block: count for block, count in refs.items() if count}


def named_blocks(changeset: bytes) -> set[BlockId]:
    """Return the blocks to which new and changed rows of block_map refer.

    Raises the errors of ``rows``.
    """
    blocks = {new[_BLOCK] for _, _old, new in rows(changeset, "block_map") if new}
    require_identifiers(blocks)
    return blocks


def first_new_block(changeset: bytes) -> BlockId | None:
    """Return the number of the first new block: next_block as it was before the changes.

    Returns:
        None if the changes created no block.

    Raises:
        FormatError: the changeset is damaged.
    """
    for _, old, new in rows(changeset, "counters"):
        if old and new and old[NEXT_BLOCK] is not apsw.no_change:
            require_numbers([old[NEXT_BLOCK]])
            return BlockId(old[NEXT_BLOCK])
    return None


def inodes_of(changeset: bytes) -> set[Ino]:
    """Return the inodes with a changed row, block or name. Raises the errors of ``rows``."""
    found: set[Ino] = set()
    for table, *changed in rows(changeset):
        column = _INO_COLUMN.get(table)
        if column is not None:
            found.update(row[column] for row in changed if row is not None)
    found.discard(apsw.no_change)  # no_change stands for a value that an UPDATE keeps
    require_identifiers(found)
    return found


def summary(changeset: bytes) -> Summary:
    """Count the changed inodes, dentries and block_map rows of a changeset.

    Raises the errors of ``rows``.
    """
    counts: Counter[str] = Counter()
    for table, old, new in rows(changeset):
        if table == "inodes":
            counts["created" if old is None else "removed" if new is None else "changed"] += 1
        else:
            counts[table] += 1
    return Summary(
        counts["created"],
        counts["removed"],
        counts["changed"],
        names=counts["dentries"],
        blocks=counts["block_map"],
    )


def touched(changeset: bytes) -> Touched:
    """Return the names and inodes that a changeset changes, and the inodes with changed content.

    If a name now refers to another inode, the changeset contains only the cookie of the name. The
    cookie is returned in ``cookies``, and the database can look up the name.

    Raises:
        FormatError: the changeset is damaged.
    """
    found = Touched(set(), set(), set(), set())
    names, _, inodes, contents = found
    for table, old, new in rows(changeset):
        row = new if old is None else old
        assert row is not None, "a change has old values, new values, or both"
        if table == "dentries":
            if old is not None and new is not None:
                _touch_changed_entry(found, old, new)
            else:
                names.add((row[0], row[_NAME]))
        elif table in _OF_INODES:
            inodes.add(row[0])
            # A DELETE contains the old size; an UPDATE contains it only if the size changes.
            if table == "inodes" and old is not None and old[_SIZE_BYTES] is not apsw.no_change:
                contents.add(row[0])
        elif table == "block_map":
            contents.add(row[0])
    require_identifiers(inodes)
    require_identifiers(contents)
    _require_pairs(names, (int, bytes))
    _require_pairs(found.cookies, (int, int))
    return found


def _touch_changed_entry(found: Touched, old: _Row, new: _Row) -> None:
    if old[_NAME] is apsw.no_change:
        found.cookies.add((old[0], old[1]))
    else:  # a new name reuses the cookie of a removed name
        found.names.update(((old[0], old[_NAME]), (old[0], new[_NAME])))


def require_numbers(values: Iterable[object]) -> None:
    """Raise FormatError if a value is not an integer. A set of types is faster than a loop."""
    if not {*map(type, values)} <= {int}:
        raise FormatError(_CHANGESET, "an integer column has a value of a different type")


def require_identifiers(values: Collection[int]) -> None:
    """Raise FormatError if a value cannot be the number of an inode or of a block."""
    require_numbers(values)
    if min(values, default=0) < 0:
        raise FormatError(_CHANGESET, "the number of an inode or of a block is negative")


# --- decode changes ----------------------------------------------------------------------------


def _changes(
    changeset: bytes, where: str = _CHANGESET, shapes: Mapping[str, _Shape] | None = None
) -> Iterator[tuple[str, apsw.TableChange]]:
    """Yield each change with its table name; the change is valid until the next iteration."""
    if shapes is None:
        shapes = _expected_shapes()
    last, columns = "", 0
    for change in apsw.Changeset.iter(changeset):
        table, count = change.name, change.column_count
        if table != last or count != columns:
            last, columns = table, count
            if table not in shapes:
                _misfit(where, repr(table), "not a replicated table")
            shape = shapes[table]
            if columns not in shape.columns or change.pk_columns != shape.key:
                _misfit(where, table, "the columns differ")
        yield table, change


def _misfit(where: str, table: str, why: str) -> NoReturn:
    raise FormatError(where, f"the changeset does not fit table {table}: {why}")


@functools.cache
def _expected_shapes() -> Mapping[str, _Shape]:
    connection = _empty_tables()
    try:
        return _shapes(connection)
    finally:
        connection.close()


@functools.cache
def _column_types() -> Mapping[str, tuple[type, ...]]:
    """Return the types of the columns of each replicated table; all are NOT NULL."""
    kinds = {"INTEGER": int, "BLOB": bytes, "TEXT": str}
    sql = "SELECT type FROM pragma_table_info(?) ORDER BY cid"
    with closing(_empty_tables()) as connection:
        return {
            table: tuple(kinds[row[0]] for row in connection.execute(sql, (table,)))
            for table in schema.REPLICATED_TABLES
        }


def _empty_tables() -> apsw.Connection:
    """Return an empty database with the tables of the current schema; the caller closes it."""
    connection = connections.in_memory()
    schema.create_tables(connection)
    return connection


def _shapes(connection: apsw.Connection) -> dict[str, _Shape]:
    """Return the columns and the primary key of each replicated table in a database."""
    shapes: dict[str, _Shape] = {}
    for table in schema.REPLICATED_TABLES:
        query = "SELECT cid, pk FROM pragma_table_info(?, 'main')"
        columns: list[_Row] = connection.execute(query, (table,)).fetchall()
        former = {count for count in schema.FORMER_COLUMNS.get(table, ()) if count < len(columns)}
        key = {position for position, key in columns if key}
        shapes[table] = _Shape(frozenset({len(columns), *former}), key)
    return shapes


def _pieces(changeset: bytes) -> Callable[[int], memoryview]:
    """Return a function that reads the next bytes of a changeset, up to the requested number."""
    rest = memoryview(changeset)

    def read(count: int) -> memoryview:
        nonlocal rest
        piece, rest = rest[:count], rest[count:]
        return piece

    return read


def _require_pairs(values: Iterable[tuple[object, object]], types: tuple[type, type]) -> None:
    if not {(type(one), type(other)) for one, other in values} <= {types}:
        raise FormatError(_CHANGESET, "a directory entry has a name or number of the wrong type")


@contextmanager
def _errors(where: str, path: str = "") -> Iterator[None]:
    """Translate apsw's exceptions into errors of this program."""
    try:
        yield
    except UnicodeDecodeError as exc:
        raise FormatError(where, "a string in the changeset is not valid UTF-8") from exc
    except _DAMAGE as exc:
        raise FormatError(where, str(exc) or type(exc).__name__) from exc
    except apsw.Error as exc:
        raise translated(exc, path or where) from exc
