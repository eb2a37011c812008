"""The read view of a follower's mount: one txg until the follower switches to a later one.

Owns: a long read transaction, and temporary copies of the local tables that a read-only mount
writes. Does not know: the source of txgs (``replica`` applies them through a second connection).
Keeps: no statement reads a partly applied txg or takes the write lock of the database. SQLite
resolves a table name to a temporary table first, so rows of fetched blocks are written there.
Groups run in the read transaction.
Tasks: the event loop; no method is a schedule point.
Source: https://www.sqlite.org/wal.html, "Concurrency"; lang_naming.html.
"""

from collections.abc import Callable
from typing import Final

import apsw

# Tables that change when blocks are fetched, verified or evicted.
# ``local_state`` is not copied: the connection that applies txgs stores its position there.
_TABLES: Final = ("cached_blocks", "copies")


class View:
    """The read view of one connection: every query returns the state of one txg."""

    def __init__(self, connection: apsw.Connection, load_counters: Callable[[], None]) -> None:
        """Pin the newest committed state, and copy the local tables to temporary tables.

        Args:
            connection: the connection of a database.
            load_counters: reads the counters of the database from their rows again.
        """
        self._connection = connection
        self._load_counters = load_counters
        assert not self._connection.in_transaction, "a view must begin between two groups"
        for table in _TABLES:
            for kind, sql in self._connection.execute(
                "SELECT type, sql FROM main.sqlite_schema WHERE tbl_name = ? AND sql IS NOT NULL"
                " ORDER BY type DESC",  # a table must be created before its indexes
                (table,),
            ).fetchall():
                words = "CREATE TABLE ", "CREATE TEMP TABLE "
                if kind == "index":
                    words = "CREATE INDEX ", "CREATE INDEX temp."
                self._connection.execute(str(sql).replace(*words, 1))
            self._connection.execute(f"INSERT INTO temp.{table} SELECT * FROM main.{table}")
        self.pin()

    def pin(self) -> None:
        """Switch to the newest committed state; the temporary tables keep their rows."""
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")
        self._connection.execute("BEGIN")
        # A transaction takes its snapshot at its first read, not at BEGIN.
        self._connection.execute("SELECT txg FROM counters").fetchall()
        self._load_counters()

    def end(self) -> None:
        """End the view: write the local rows to the file, and let queries read all later commits.

        The call takes a few hundred milliseconds for the largest cache. Unchanged rows are not
        written. After an error, for example because the disk is full, the view still exists.
        """
        execute = self._connection.execute
        execute("COMMIT")
        try:
            self._write_rows()
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            self.pin()
            raise
        for table in _TABLES:
            execute(f"DROP TABLE temp.{table}")
        self._load_counters()

    def _write_rows(self) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        for table in _TABLES:
            execute(f"DELETE FROM main.{table} WHERE block NOT IN (SELECT block FROM temp.{table})")
            execute(
                f"INSERT OR REPLACE INTO main.{table} SELECT * FROM temp.{table}"
                f" EXCEPT SELECT * FROM main.{table}"
            )
        execute("COMMIT")
