"""Running statements on the writing connection, while changed rows of inodes are in memory.

Owns: the cursor, the translation of SQLite's errors, and that no statement sees a row of
``inodes`` without the changes of the open group. Does not know: when groups begin and end
(``database``).
"""

import abc
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import apsw

from s3fs_meta.errors import S3fsError
from s3fs_meta.limits import RECENT_ANSWERS_MAX, STATEMENTS_CACHED_MAX
from s3fs_meta.meta.db import inode_rows
from s3fs_meta.meta.db.inode_rows import InodeRows

Row = tuple[Any, ...]
Arguments = tuple[int | str | bytes | None, ...]


@functools.lru_cache(maxsize=STATEMENTS_CACHED_MAX)
def _mentions_inodes(sql: str) -> bool:
    return "inodes" in sql


class Statements(abc.ABC):
    """The interface of ``Database`` for the modules of ``tables`` and ``trees``."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._use(connection)
        self.in_group = False
        self.inode_rows = InodeRows()
        self._written_late = 0  # rows that hold what was changed before
        self._recent: dict[Any, Any] = {}
        self.remembers = True  # false where another connection changes rows

    def _use(self, connection: apsw.Connection) -> None:
        self.connection = connection  # for recorders; rows are changed through run()
        self._cursor = connection.cursor()
        self._total_changes = connection.total_changes
        self._recent_at = -1  # what total_changes() was when something was remembered first

    @property
    def rows_changed(self) -> int:
        """Return a number that grows with each change of a row by a caller; compare two of them.

        What a commit writes, and inodes that were changed in memory before, counts for nothing.
        """
        return int(self._total_changes()) - self._written_late + self.inode_rows.changes

    @abc.abstractmethod
    def rollback(self) -> None:
        """Undo the group."""

    @abc.abstractmethod
    def _failed(
        self, exc: apsw.Error, *, changing: bool = False, committing: bool = False
    ) -> S3fsError:
        """Find out what an error left of the group; return our error for it."""

    def one(self, sql: str, arguments: Arguments = ()) -> Row | None:
        """Return the first row, None without one. For queries that have at most few rows."""
        if self.inode_rows.changed and _mentions_inodes(sql):
            self._write_inodes()
        return self.peek(sql, arguments)

    def peek(self, sql: str, arguments: Arguments = ()) -> Row | None:
        """As ``one``; the caller knows that ``inode_rows`` may have newer rows than the table."""
        try:
            rows = self._cursor.execute(sql, arguments).fetchall()
        except apsw.Error as exc:
            raise self._failed(exc) from exc
        return rows[0] if rows else None

    def recent(self) -> dict[Any, Any]:
        """Return what was remembered since a row changed last, for the caller to add to.

        Where another connection changes rows nothing is remembered.
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
        """Remember nothing of rows that are as they were before some changes, which counted."""
        self._recent_at = -1

    def all(self, sql: str, arguments: Arguments = ()) -> list[Row]:
        """Return all rows; the query bounds them."""
        if self.inode_rows.changed and _mentions_inodes(sql):
            self._write_inodes()
        try:
            return self._cursor.execute(sql, arguments).fetchall()
        except apsw.Error as exc:
            raise self._failed(exc) from exc

    def iterate(self, sql: str, arguments: Arguments = ()) -> Iterator[Row]:
        """Yield rows one by one. Exhaust or close it before the next schedule point."""
        if self.inode_rows.changed and _mentions_inodes(sql):
            self._write_inodes()
        try:
            cursor = self.connection.cursor()
            try:
                yield from cursor.execute(sql, arguments)
            finally:
                cursor.close()
        except apsw.Error as exc:
            raise self._failed(exc) from exc

    def run(self, sql: str, arguments: Arguments = ()) -> int:
        """Change rows and return how many. Transaction: inside a group.

        Raises:
            DatabaseFullError: the whole group is gone.
            DatabaseError: this statement did nothing; if ``in_group`` is false now, the group
                is gone too.
        """
        if _mentions_inodes(sql):
            self.settle_inodes()
        return self.poke(sql, arguments)

    def poke(self, sql: str, arguments: Arguments = ()) -> int:
        """As ``run``, for callers that update ``inode_rows`` themselves."""
        assert self.in_group, "rows change only inside a group: call begin() first"
        try:
            self._cursor.execute(sql, arguments)
        except apsw.Error as exc:
            raise self._failed(exc, changing=True) from exc
        return self.connection.changes()

    def run_many(self, sql: str, rows: Iterable[Arguments]) -> None:
        """Run one statement for each row. Transaction: inside a group. Raises as ``run``."""
        assert self.in_group, "rows change only inside a group: call begin() first"
        if _mentions_inodes(sql):
            self.settle_inodes()
        try:
            self._cursor.executemany(sql, rows)
        except apsw.Error as exc:
            raise self._failed(exc, changing=True) from exc

    def settle_inodes(self) -> None:
        """Let the table be the truth, before a statement that changes its rows."""
        if self.inode_rows.changed:
            self._write_inodes()
        self.inode_rows.forget()

    def _write_inodes(self) -> None:
        """Bring rows that were changed in memory into the table; if that fails, the group is lost."""
        assert self.in_group, "only a group changes rows"
        total = self.connection.total_changes()
        try:
            made, changed = self.inode_rows.take_changes()
            self._cursor.executemany(inode_rows.INSERT, made)
            self._cursor.executemany(inode_rows.UPDATE, changed)
            written = self.connection.total_changes() - total
            assert written == len(made) + len(changed), "whatever was changed is a row of the table"
            self._written_late += written
        except apsw.Error as exc:
            failure = self._failed(exc, changing=True)
            self.rollback()
            raise failure from exc
        except BaseException:  # a number that no column can hold
            self.rollback()  # else names would be there without their inodes
            raise
