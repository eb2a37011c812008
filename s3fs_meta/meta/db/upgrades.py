"""Upgrading a database from an earlier schema version to the present one.

Owns: the steps of the upgrade. Does not know: who opens the database, the recording of changes.
Every database goes this way by itself, whether it was local, came as an image, or is a copy of
the past: nothing of it is recorded, so all that follow one chain must come to the same rows. For
that a new column stands at its default until the first change that knows it. So it does not matter
how many changes of the earlier version are applied before the upgrade, and how many after.

    version 2   inodes.btime_delta_ns; 0: an inode of version 1 was born when its ctime was, as
                that is at the first change by a program of version 2

Tasks: everything here blocks; before the connection is used for anything else.
Source: https://www.sqlite.org/lang_altertable.html, chapter 6: no row is touched.
"""

from typing import Final

import apsw

from s3fs_meta.meta.db.schema import SCHEMA_VERSION

_FORMER_VERSION: Final = 1
_FORMER: Final = b"%d" % _FORMER_VERSION
_PRESENT: Final = b"%d" % SCHEMA_VERSION
_VERSION: Final = "SELECT value FROM properties WHERE name = 'schema_version'"
_COLUMN: Final = "ALTER TABLE main.inodes ADD COLUMN btime_delta_ns INTEGER NOT NULL DEFAULT 0"
_NOTE: Final = "UPDATE main.properties SET value = ? WHERE name = 'schema_version'"
_VIEW: Final = "CREATE TEMP VIEW inodes AS SELECT *, 0 AS btime_delta_ns FROM main.inodes"

assert SCHEMA_VERSION == _FORMER_VERSION + 1, "another version needs another step here"


def upgrade(connection: apsw.Connection) -> None:
    """Give a database of an earlier version the tables of the present one; others stay.

    All of it or nothing, whatever happens on the way: before any pragma was set a database has
    a journal that survives a power cut. Transaction: its own.

    Raises:
        apsw.Error: it is as it was.
    """
    if not _is_former(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_former(connection):
            connection.execute(_COLUMN)
            connection.execute(_NOTE, (_PRESENT,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def show_as_present(connection: apsw.Connection) -> bool:
    """Let a connection that cannot write see the present tables in a former database.

    A temporary view stands before the table; only ``main.inodes`` is the table itself. It goes
    with the temporary storage, when that is exchanged.

    Returns:
        Whether the database is a former one.
    """
    if not _is_former(connection):
        return False
    connection.execute(_VIEW)
    return True


def _is_former(connection: apsw.Connection) -> bool:
    return connection.execute(_VERSION).fetchall() == [(_FORMER,)]
