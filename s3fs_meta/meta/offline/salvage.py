"""Reading all readable rows of a database file in which pages are missing.

Owns: finding the readable parts of a table, and checking that values match their columns.
Does not know: the source of the file, the use of the rows.
Keeps: the file is opened read-only and immutable, its schema is checked, and no SQL in it runs. A
row is accepted only if its key is beyond that of the previous row, so a cycle of pages ends a run.
The number of searches is limited. A long row that ends in zeros is skipped, because its last page
may be missing. A row longer than any valid row ends the reading of its table.

A table is read upwards until SQLite finds an invalid page, then downwards from its end. In the gap
between, searches start at growing distances from both ends, and at evenly spread positions. If a
search finds a row, the run around it is read, and the gaps on both sides are searched again.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from s3fs_meta.errors import BadRowError, FormatError, NewerFormatError
from s3fs_meta.limits import (
    IMAGE_VALUE_BYTES_MAX,
    SALVAGE_PROBES_MAX,
    SALVAGE_PROBES_OF_GAP,
)
from s3fs_meta.meta.db import connections
from s3fs_meta.meta.db.schema import SCHEMA_VERSION
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.offline import restored_schema
from s3fs_meta.meta.offline.page_trees import require_schema_tree
from s3fs_meta.meta.tables import row_types

_NUMBER_MAX: Final = (1 << 63) - 1
_NUMBER_BYTES: Final = 8
# Number of leading bytes of an xattr name in a key; enough to distinguish the names of ACLs.
_NAME_BYTES: Final = 24
_LOCAL_BYTES: Final = 80  # a row up to this length has no overflow page
_UNREADABLE: Final = (apsw.CorruptError, apsw.TooBigError, apsw.NotADBError, apsw.FormatError)


class Table(NamedTuple):
    """The description of a table, for reading its rows by primary key.

    Attributes:
        columns: all columns; the columns of the primary key come first.
        key: number of columns of the primary key.
        blobs: columns that contain bytes; all others contain integers.
        optional: columns that may be NULL.
        texts: columns that contain texts, which are read as bytes; also listed in *blobs*.
    """

    name: str
    columns: tuple[str, ...]
    key: int
    blobs: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()


_INODES: Final = (
    "ino mode nlink uid gid size_bytes mapped_blocks ctime_ns mtime_delta_ns atime_delta_ns rdev"
    " parent flags btime_delta_ns"
)
INODES: Final = Table("inodes", tuple(_INODES.split()), 1)
INODES_FORMER: Final = INODES._replace(columns=INODES.columns[:-1])
BLOCKS: Final = Table(
    "blocks",
    ("block", "plain_bytes", "hash", "pack", "pack_offset", "stored_bytes"),
    1,
    frozenset({"hash"}),
    frozenset({"hash", "pack", "pack_offset", "stored_bytes"}),
)
PACKS: Final = Table(
    "packs",
    ("pack", "object_key"),
    1,
    frozenset({"object_key"}),
    texts=frozenset({"object_key"}),
)
NAMING: Final = (
    Table("dentries", ("parent", "cookie", "name", "ino"), 2, frozenset({"name"})),
    Table("hard_links", ("ino", "parent", "names"), 2),
    Table("symlinks", ("ino", "target"), 1, frozenset({"target"})),
    Table("xattrs", ("ino", "name", "value"), 2, frozenset({"name", "value"})),
    Table("block_map", ("ino", "block_index", "block"), 2),
)
_COUNTERS: Final = Table("counters", ("id", "next_ino", "next_block", "capacity_bytes"), 1)
# The "+" forces a scan. An index search would load complete rows of any length.
_PROPERTY: Final = "SELECT value FROM properties WHERE +name = ?"

_VERSION: Final = re.compile(rb"[1-9][0-9]{0,8}")
_MAGIC: Final = b"SQLite format 3\0"
_PAGE_SIZE: Final = slice(16, 18)  # offset of the page size in a database header
_PAGES: Final = slice(28, 32)
_LARGEST_PAGE: Final = (1, 1 << 16)  # a database header encodes a page size of 64 KiB as 1


def size_in_header(start: bytes) -> int:
    """Return the size of a database according to its header, or 0 if the header is invalid."""
    if not start.startswith(_MAGIC) or len(start) < _PAGES.stop:
        return 0
    page_bytes = int.from_bytes(start[_PAGE_SIZE], "big")
    if page_bytes == _LARGEST_PAGE[0]:
        page_bytes = _LARGEST_PAGE[1]
    return page_bytes * int.from_bytes(start[_PAGES], "big")


class DamagedDatabase:
    """A database file with missing pages, opened for reading."""

    def __init__(self, path: Path, key: str) -> None:
        """Open a damaged database file and check its schema.

        Args:
            path: path of the file, which no process may change during the call.
            key: key of the object from which it was restored, for errors.

        Raises:
            FormatError: the schema of the file is unreadable or different.
            NewerFormatError: a newer version of the program wrote the file.
        """
        require_schema_tree(path, key)
        try:
            self._connection = connections.connect_immutable(path, IMAGE_VALUE_BYTES_MAX)
        except apsw.Error as exc:
            raise connections.translated(exc, key) from exc
        try:
            version = restored_schema.require_ours_damaged(self._connection, key)
            self._refuse_newer(key)
        except BaseException:
            self._connection.close()
            raise
        self._key = key
        self.inodes = INODES if version > 1 else INODES_FORMER

    def close(self) -> None:
        """Close the damaged database file."""
        self._connection.close()

    def require_intact(self) -> None:
        """Raise FormatError if the file is not a single consistent database."""
        try:
            [(found,)] = self._connection.execute("PRAGMA integrity_check(1)").fetchall()
        except apsw.Error as exc:
            raise connections.translated(exc, self._key) from exc
        if found != "ok":
            raise FormatError(
                self._key, f"the image pieces do not form a consistent database: {found}"
            )

    def cookie_key(self) -> bytes | None:
        """Return the cookie key, or None if it cannot be read."""
        return self._property("cookie_key")

    def _property(self, name: str) -> bytes | None:
        try:
            rows = self._connection.execute(_PROPERTY, (name,)).fetchall()
        except (*_UNREADABLE, UnicodeDecodeError):
            return None
        return rows[0][0] if rows and isinstance(rows[0][0], bytes) else None

    def _refuse_newer(self, key: str) -> None:
        version = self._property("schema_version") or b""
        if _VERSION.fullmatch(version) and int(version) > SCHEMA_VERSION:
            raise NewerFormatError(key, f"the schema version {int(version)} is unknown")

    def counters(self) -> tuple[int, int, int] | None:
        """Return next_ino, next_block and capacity_bytes, or None if they cannot be read."""
        for row in self.reader(_COUNTERS).rows():
            return row[1], row[2], row[3]
        return None

    def reader(self, table: Table) -> "TableReader":
        """Return a reader for one table in the damaged database."""
        return TableReader(self._connection, table)


class TableReader:
    """Reads the readable rows of one table. Use each object only once."""

    def __init__(self, connection: apsw.Connection, table: Table) -> None:
        self._connection = connection
        self._table = table
        names = table.columns[: table.key]
        self._key = f"({', '.join(names)})" if table.key > 1 else names[0]
        self._order = {
            order: ", ".join(f"{name}{order}" for name in names) for order in ("", " DESC")
        }
        self._places = "(?, ?)" if table.key > 1 else "?"
        self._has_name = table.columns[table.key - 1] in table.blobs
        self._part = 1 << 8 * (_NAME_BYTES if self._has_name else _NUMBER_BYTES)
        self._broke = False
        self._probes = 0
        self._reached = 0
        self._has_long_rows = False  # True if the table has a row that is too long to be loaded
        self.is_complete = True  # False after ``rows`` found an unreadable page

    def rows(self) -> Iterator[Row]:
        """Yield each readable row once, in no particular order, with values of the right types."""
        low, high = -1, self._bound()
        yield from self._run(low, high, "")
        if self.is_complete:
            return
        low = max(low, self._reached)
        yield from self._run(low, high, " DESC")
        gaps = [(low, self._reached)] if self._broke and not self._has_long_rows else []
        while gaps and self._probes < SALVAGE_PROBES_MAX:
            yield from self._search(*gaps.pop(), gaps)

    def _search(self, low: int, high: int, gaps: list[tuple[int, int]]) -> Iterator[Row]:
        """Search for a row between two keys; yield rows around it; add unread gaps to *gaps*."""
        for place in self._between(low, high):
            found = self._probe(place)
            # Skip the lower key, which the search may find again: a position is rounded down.
            if found is None or found <= low:
                continue
            if found >= high or self._probes > SALVAGE_PROBES_MAX:
                return  # the rest of the gap has no readable row, or the search took too long
            yield from self._run(found - 1, high, "")
            if self._broke:
                gaps.append((max(found, self._reached), high))
            yield from self._run(low, found, " DESC")
            if self._broke:
                gaps.append((low, self._reached))
            return

    def _probe(self, place: int) -> int | None:
        """Return the first key at or after a position, or None if the search hits a bad page."""
        self._probes += 1
        sql = (
            f"SELECT {self._columns()} FROM {self._table.name} WHERE {self._key} >= {self._places}"
            f" ORDER BY {self._order['']} LIMIT 1"
        )
        try:
            rows = self._connection.execute(sql, self._parts(place)).fetchall()
        except _UNREADABLE:
            return None
        return self._bound() if not rows else self._packed(rows[0])

    def _run(self, low: int, high: int, order: str) -> Iterator[Row]:
        """Yield rows between two keys, up to an unreadable page; set ``_reached`` to the last."""
        self._probes += 1
        self._broke = False
        self._reached = high if order else low
        start = high if order else low + 1
        last: Row | None = None
        where = f" WHERE {self._key} {'<' if order else '>='} {self._places}"
        bound = self._parts(start)
        if start in {0, self._bound()}:  # scan from the end, because a search would load long rows
            where, bound = "", ()
        sql = (
            f"SELECT {self._columns()} FROM {self._table.name}{where} ORDER BY {self._order[order]}"
        )
        try:
            for row in self._connection.execute(sql, bound):
                key = self._packed(row)
                if key is None:
                    break  # without a valid key, a cycle of pages cannot be detected
                if key >= high or key <= low:
                    return
                names = row[: self._table.key]
                if last is not None and not (names < last if order else names > last):
                    break  # keys out of order: the pages may form a cycle
                last, self._reached = names, key
                if self._is_intact(row):
                    yield row
            else:
                return
        except apsw.TooBigError:
            self._has_long_rows = True
        except _UNREADABLE:
            pass
        self._broke = True
        self.is_complete = False

    def _between(self, low: int, high: int) -> list[int]:
        """Return sorted positions to search between two keys: near both keys, and evenly spread."""
        width = high - low
        steps = [1 << bits for bits in range(width.bit_length())]
        places = {low + step for step in steps} | {high - step for step in steps}
        places.update(_evenly(low, high))
        if self._table.key > 1:  # rows whose keys start with the same part are often adjacent
            first, last = low // self._part, high // self._part
            for one in {first, first + 1, first + 2, last}:
                places.update(_evenly(one * self._part, (one + 1) * self._part))
                places.update(_evenly(one * self._part, one * self._part + _NUMBER_MAX))
        return sorted(place for place in places if low < place < high)

    def _columns(self) -> str:
        """Return the SQL for all columns, without texts, which may be invalid UTF-8.

        In a column of texts, each text is read as bytes. In any other column it is read as NULL.
        """
        value = "CASE typeof({0}) WHEN 'text' THEN {1} ELSE {0} END"
        texts = self._table.texts
        return ", ".join(
            value.format(name, f"CAST({name} AS BLOB)" if name in texts else "NULL")
            for name in self._table.columns
        )

    def _bound(self) -> int:
        return self._part * (_NUMBER_MAX if self._table.key > 1 else 1)

    def _parts(self, key: int) -> tuple[int | bytes, ...]:
        if self._table.key == 1:
            return (min(key, _NUMBER_MAX),)
        first, second = divmod(key, self._part)
        if self._has_name:
            return min(first, _NUMBER_MAX), second.to_bytes(_NAME_BYTES, "big").rstrip(b"\0")
        return min(first, _NUMBER_MAX), min(second, _NUMBER_MAX)

    def _packed(self, row: Row) -> int | None:
        """Return a row's key as one number that sorts like the key, or None if it is invalid."""
        first = row[0]
        if type(first) is not int or first < 0:
            return None
        if self._table.key == 1:
            return first
        second = row[1]
        if self._has_name:
            if type(second) is not bytes:
                return None
            second = int.from_bytes(second[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0"), "big")
        if type(second) is not int or second < 0:
            return None
        return first * self._part + second

    def _is_intact(self, row: Row) -> bool:
        """Return whether each value has the type of its column, and no overflow page is missing."""
        table = self._table
        try:
            for name, value in zip(table.columns, row, strict=True):
                if value is None and name in table.optional:
                    continue
                if name in table.blobs:
                    row_types.blob(value, name, row[0])
                else:
                    row_types.require_numbers([(value,)], name, row[0])
        except BadRowError:
            return False
        values = [value for value in row if type(value) is bytes]
        if sum(map(len, values)) <= _LOCAL_BYTES:
            return True
        return not any(value.endswith(b"\0") for value in values)


def _evenly(low: int, high: int) -> list[int]:
    width = high - low
    return [low + width * part // SALVAGE_PROBES_OF_GAP for part in range(SALVAGE_PROBES_OF_GAP)]
