"""Running statements on the writing connection.

Owns: the cursor, the translation of SQLite's errors, and cached results of queries.
Does not know: the start and end of groups (``database``); inodes whose rows are only in memory
(``inode_table`` runs the statements on the table ``inodes``).
"""

import abc
from collections.abc import Generator, Iterable
from typing import Any

import apsw

from s3fs_meta.errors import S3fsError
from s3fs_meta.limits import RECENT_ANSWERS_MAX
from s3fs_meta.model import PackId

Row = tuple[Any, ...]
Arguments = tuple[int | str | bytes | None, ...]


class Statements(abc.ABC):
    """The interface of ``Database`` for the modules in ``tables`` and ``trees``."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._use(connection)
        self.in_group = False
        self._recent: dict[Any, Any] = {}
        # Packs that a running copy of an earlier point in time needs; they must not be condemned.
        self.held_packs: frozenset[PackId] = frozenset()
        # Packs that changed after the last cut, so that its changelog does not report the changes.
        self.packs_changed_after_cut: set[PackId] = set()
        self.remembers = True  # True if results may be cached: no other connection changes rows

    def _use(self, connection: apsw.Connection) -> None:
        self.connection = connection  # the connection, which only recorders use directly
        self._cursor = connection.cursor()
        self._total_changes = connection.total_changes
        self._recent_at = -1  # value of total_changes() when the results were cached

    def hold_packs(self, packs: Iterable[PackId]) -> None:
        """Replace the set of packs that garbage collection must not condemn."""
        self.held_packs = frozenset(packs)

    @abc.abstractmethod
    def rollback(self) -> None:
        """Undo the changes of the open commit group."""

    @abc.abstractmethod
    def _failed(
        self, exc: apsw.Error, *, changing: bool = False, committing: bool = False
    ) -> S3fsError:
        """Return an S3fsError for an SQLite exception; discard the group if it cannot continue."""

    def one(self, sql: str, arguments: Arguments = ()) -> Row | None:
        """Return the first row of a query with few rows, or None if the query finds no row."""
        try:
            rows = self._cursor.execute(sql, arguments).fetchall()
        except (apsw.Error, UnicodeDecodeError) as exc:
            raise self._unread(exc) from exc
        return rows[0] if rows else None

    def recent(self) -> dict[Any, Any]:
        """Return the cache of query results, to which the caller may add results.

        Any change to a row empties the cache. It stays empty while another connection changes rows.
        """
        try:
            total = self._total_changes()
        except apsw.Error as exc:
            raise self._failed(exc) from exc
        if total != self._recent_at or len(self._recent) >= RECENT_ANSWERS_MAX:
            self._recent = {}
            self._recent_at = total if self.remembers else -1
        return self._recent

    def _forget_recent(self) -> None:
        """Empty the cache of query results, after a change that total_changes() does not count."""
        self._recent_at = -1

    def all(self, sql: str, arguments: Arguments = ()) -> list[Row]:
        """Return all rows of a query; the query must limit their number."""
        try:
            return self._cursor.execute(sql, arguments).fetchall()
        except (apsw.Error, UnicodeDecodeError) as exc:
            raise self._unread(exc) from exc

    def iterate(self, sql: str, arguments: Arguments = ()) -> Generator[Row, None, None]:
        """Yield a query's rows. Exhaust or close the iterator before the next schedule point."""
        try:
            cursor = self.connection.cursor()
            try:
                yield from cursor.execute(sql, arguments)
            finally:
                cursor.close()
        except (apsw.Error, UnicodeDecodeError) as exc:
            raise self._unread(exc) from exc

    def _unread(self, exc: apsw.Error | UnicodeDecodeError) -> S3fsError:
        """Return an S3fsError for a failed query.

        The driver raises UnicodeDecodeError for a damaged value that SQLite takes for text.
        """
        if isinstance(exc, apsw.Error):
            return self._failed(exc)
        return self._failed(apsw.CorruptError("a text value is not valid UTF-8"))

    def run(self, sql: str, arguments: Arguments = ()) -> int:
        """Run one SQL statement; return the number of changed rows. Requires an open transaction.

        Raises:
            DatabaseFullError: the disk is full; SQLite has undone all changes of the open commit
                group.
            DatabaseError: the statement failed and changed nothing. If ``in_group`` is false
                afterwards, SQLite has also undone all earlier changes of the commit group.
        """
        assert self.in_group, "rows change only inside a group: call begin() first"
        try:
            self._cursor.execute(sql, arguments)
        except apsw.Error as exc:
            raise self._failed(exc, changing=True) from exc
        return self.connection.changes()

    def run_many(self, sql: str, rows: Iterable[Arguments]) -> None:
        """Run one statement for each row. Requires an open transaction.

        Raises the same errors as ``run``.
        """
        assert self.in_group, "rows change only inside a group: call begin() first"
        try:
            self._cursor.executemany(sql, rows)
        except apsw.Error as exc:
            raise self._failed(exc, changing=True) from exc
