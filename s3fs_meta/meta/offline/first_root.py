"""The root directory as mkfs made it, from the changes of it that were recorded later.

Owns: which values of the root directory are known. Does not know: where changesets come from.
Keeps: a value is only corrected before the first change of it is applied, since that change lists the
value before it. Owner and mode that no change ever touched keep the values of the empty database.
Tasks: any thread, inside a transaction.
"""

from typing import Final

from s3fs_meta.meta import changesets
from s3fs_meta.meta.db.database import Database
from s3fs_meta.model import ROOT_INO

_COLUMNS: Final = "SELECT name FROM pragma_table_info('inodes', 'main') ORDER BY cid"


class FirstRoot:
    """Corrects the root directory of an empty database while changesets are applied to it."""

    def __init__(self, db: Database) -> None:
        self._db = db
        db.inodes.write_through()  # a statement here uses the table
        self._columns = [str(name) for (name,) in db.all(_COLUMNS)]
        self._known: set[int] = set()  # columns whose first change was met

    def hear(self, changeset: bytes) -> None:
        """Give the root directory the values that a changeset found in it; then apply that.

        Raises:
            FormatError: it is damaged.
        """
        for column, value in changesets.former_values(changeset, "inodes", ROOT_INO).items():
            if column not in self._known:
                self._known.add(column)
                sql = f"UPDATE inodes SET {self._columns[column]} = ? WHERE ino = ?"
                self._db.run(sql, (value, ROOT_INO))
