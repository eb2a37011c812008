"""A check of every test: only certain modules execute statements on the table ``inodes``.

Rows of ``inodes`` may be newer in memory than in the table (``meta.db.inode_table``). A statement
that reads the table directly can therefore read old rows. SQLite reports which tables a statement
uses. Only the owner of the table, and modules that also read the rows in memory, may execute
statements on it. Any other statement makes the test fail.
"""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import apsw

import s3fs_meta

_PACKAGE = f"{Path(s3fs_meta.__file__).parent}/"
_TABLE = "inodes"
_DOORS = "meta/db/statements.py"
_CHANGES = frozenset({"run", "run_many"})
_USES = frozenset({apsw.SQLITE_READ, apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE})

# The inode table may be used only by its owner and by modules that merge rows in memory.
OWNERS = frozenset({"meta/db/inode_table.py", "meta/tables/inodes.py", "meta/tables/dentries.py"})

_known: dict[str, bool] = {}  # True if the SQL statement uses the table ``inodes``.


def watch(connection: apsw.Connection) -> None:
    """Check every statement that a database connection executes."""
    connection.exec_trace = _check


def _check(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
    if _known.get(sql) is False:
        return True  # Avoid the search for the caller, which most statements do not need.
    door = sys._getframe(1)  # noqa: SLF001 - the only way to find the caller
    if _file(door) == _DOORS and not _is_declared(door):
        assert not uses_table(cursor.connection, sql, bindings), (
            f"the statement bypasses db.inodes: {sql}"
        )
    return True


def _is_declared(door: FrameType) -> bool:
    """Return whether the calling code may use the table ``inodes``.

    Tests may read the table, because they commit all rows first.
    """
    caller = door.f_back
    assert caller is not None, "a method must have a caller"
    file, reads = _file(caller), door.f_code.co_name not in _CHANGES
    return file in OWNERS or (file is None and reads) or door.f_locals["self"].inodes.writes_through


def _file(frame: FrameType) -> str | None:
    """Return the file of the package that contains the code, or None for other code."""
    name = frame.f_code.co_filename
    return name.removeprefix(_PACKAGE) if name.startswith(_PACKAGE) else None


def uses_table(connection: apsw.Connection, sql: str, bindings: Any = None) -> bool:
    """Return whether a statement reads or changes the table ``inodes``, as SQLite compiles it."""
    if sql in _known:
        return _known[sql]
    uses = False

    def authorize(
        use: int, table: str | None, _column: str | None, _schema: str | None, _by: str | None
    ) -> int:
        nonlocal uses
        uses = uses or (table == _TABLE and use in _USES)
        return apsw.SQLITE_OK

    connection.authorizer = authorize
    try:
        cursor = connection.cursor()
        cursor.exec_trace = lambda *_: False  # The SQL statement is compiled, but not executed.
        cursor.execute(sql, bindings, can_cache=False)
    except apsw.ExecTraceAbort:
        pass
    finally:
        connection.authorizer = None
    _known[sql] = uses
    return uses
