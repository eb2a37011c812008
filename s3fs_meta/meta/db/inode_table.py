"""The table ``inodes``, with a write-back cache of recently read rows and changed rows.

Owns: the rows that are newer in memory than in the table, writing these rows, and every statement
on the table.
Does not know: the meaning of a change (``tables.inodes``), commit groups (``database``).
Keeps: a row that the open group changed is written before any other statement on the table, and
before the group commits. Apart from such rows, at most INODE_ROWS_MAX rows stay in memory.

Use the methods of ``Database.inodes`` for every statement on the table: the methods of ``Database``
ignore the rows in memory. Exceptions are ``tables.inodes`` and ``tables.dentries``, which merge the
rows in memory themselves, and offline tools, after ``write_through``.
Why: docs/decisions/0016-owner-of-the-inode-cache.md

Most inodes change several times within a group, and the group writes each inode once. A statement
for each change would add 3 to 5 us to a request; a change in memory takes a tenth of this time.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from s3fs_meta.limits import INODE_ROWS_MAX
from s3fs_meta.meta.db.statements import Arguments, Row, Statements
from s3fs_meta.model import Attributes, Ino

_INSERT: Final = "INSERT INTO inodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_UPDATE: Final = (
    "UPDATE inodes SET mode = ?2, nlink = ?3, uid = ?4, gid = ?5, size_bytes = ?6,"
    " mapped_blocks = ?7, ctime_ns = ?8, mtime_delta_ns = ?9, atime_delta_ns = ?10, rdev = ?11,"
    " parent = ?12, flags = ?13, btime_delta_ns = ?14 WHERE ino = ?1"
)

_Row = tuple[int, ...]


class InodeTable:
    """The table ``inodes``, with some of its rows cached in memory as ``Attributes``."""

    def __init__(self, db: Statements) -> None:
        self._db = db
        self._rows: dict[Ino, Attributes] = {}
        # Inodes to write. The value is True if the table has no row for the inode yet.
        self.changed: dict[Ino, bool] = {}
        self.writes_through = False
        # Rows changed in memory, which total_changes() does not count yet.
        self.unwritten_changes = 0
        self.get = self._rows.get

    def __len__(self) -> int:
        return len(self._rows)

    # --- rows cached in memory -----------------------------------------------------------------

    def read(self, attributes: Attributes) -> None:
        """Cache a row that was just read from the table ``inodes``."""
        if self.writes_through:
            return
        if len(self._rows) >= INODE_ROWS_MAX:
            self._make_room()
        self._rows[attributes.ino] = attributes

    def made(self, attributes: Attributes) -> None:
        """Cache a new row of ``inodes``, to be written later. Requires an open transaction."""
        self.unwritten_changes += 1
        self.changed[attributes.ino] = True
        self._rows[attributes.ino] = attributes
        if self.writes_through:
            self.settle()

    def change(self, attributes: Attributes) -> None:
        """Cache a changed row of ``inodes``, to be written later. Requires an open transaction."""
        self.unwritten_changes += 1
        ino = attributes.ino
        if ino not in self.changed:
            self.changed[ino] = False
        self._rows[ino] = attributes
        if self.writes_through:
            self.settle()

    def has_row(self, ino: Ino) -> bool:
        """Return whether the table already has a row for an inode, even if it is outdated."""
        return not self.changed.get(ino, False)

    def drop(self, ino: Ino) -> None:
        """Drop the row of a deleted inode from memory."""
        self.unwritten_changes += 1
        self._rows.pop(ino, None)
        self.changed.pop(ino, None)

    def forget(self) -> None:
        """Drop all rows of ``inodes`` from memory, including unwritten changes."""
        self._rows.clear()
        self.changed.clear()

    # --- write rows ----------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the changed rows of ``inodes`` from memory to the table.

        Raises:
            DatabaseError: the commit group is lost.
        """
        if not self.changed:
            return
        total_changes = self._db.connection.total_changes
        before = total_changes()
        try:
            made, changed = self._take_changes()
            self._db.run_many(_INSERT, made)
            self._db.run_many(_UPDATE, changed)
            written = total_changes() - before
            assert written == len(made) + len(changed), "every changed inode must have a row"
        except BaseException:  # SQLite refused a row, for example because a number is too large
            self._db.rollback()  # without a rollback, a commit would keep names without inodes
            raise
        self.unwritten_changes -= written
        if len(self._rows) >= INODE_ROWS_MAX:
            self._make_room()

    def settle(self) -> None:
        """Write all changes and empty the cache. Call this before a statement changes the table."""
        self.flush()
        self.forget()

    def write_through(self) -> None:
        """Disable the cache, so that any statement may use the table; for offline tools."""
        self.settle()
        self.writes_through = True

    # --- run statements on the table -----------------------------------------------------------

    def one(self, sql: str, arguments: Arguments = ()) -> Row | None:
        """Return the first row of a query on the table ``inodes``, or None if it has no row."""
        self.flush()
        return self._db.one(sql, arguments)

    def all(self, sql: str, arguments: Arguments = ()) -> list[Row]:
        """Return all rows of a query on the table ``inodes``; the query must limit their number."""
        self.flush()
        return self._db.all(sql, arguments)

    def iterate(self, sql: str, arguments: Arguments = ()) -> Iterator[Row]:
        """Yield the rows of a query on the table ``inodes``."""
        self.flush()
        yield from self._db.iterate(sql, arguments)

    def run(self, sql: str, arguments: Arguments = ()) -> int:
        """Run a statement on the table ``inodes``; return the number of changed rows."""
        self.settle()
        return self._db.run(sql, arguments)

    def run_many(self, sql: str, rows: Iterable[Arguments]) -> None:
        """Run one statement on the table ``inodes`` for each row of arguments."""
        self.settle()
        self._db.run_many(sql, rows)

    def _take_changes(self) -> tuple[list[_Row], list[_Row]]:
        """Return the rows to insert and the rows to update, and mark them as written."""
        made: list[_Row] = []
        changed: list[_Row] = []
        rows = self._rows
        for ino, is_new in self.changed.items():
            (*before, ctime_ns, mtime_ns, atime_ns, rdev, parent, flags, btime_ns) = rows[ino]
            deltas = ctime_ns, mtime_ns - ctime_ns, atime_ns - ctime_ns
            (made if is_new else changed).append(
                (*before, *deltas, rdev, parent, flags, btime_ns - ctime_ns)
            )
        self.changed.clear()
        return made, changed

    def _make_room(self) -> None:
        """Drop unchanged rows from memory, because the table has the same values."""
        kept = {ino: self._rows[ino] for ino in self.changed}
        self._rows.clear()
        self._rows.update(kept)
