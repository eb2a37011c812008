"""The root directory that mkfs made, reconstructed from later changes of it.

Owns: which values of the root directory are known. Does not know: the source of changesets.
Keeps: a value is corrected only before its first change is applied, because that change records the
former value. An owner and a mode that no change replaced keep the values of the empty database.
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
        db.inodes.write_through()  # ``hear`` updates the table directly
        self._columns = [str(name) for (name,) in db.all(_COLUMNS)]
        self._known: set[int] = set()  # columns that were corrected

    def hear(self, changeset: bytes) -> None:
        """Set the former values of the root directory in a changeset, before the caller applies it.

        Raises:
            FormatError: the changeset is damaged.
        """
        for column, value in changesets.former_values(changeset, "inodes", ROOT_INO).items():
            if column not in self._known:
                self._known.add(column)
                sql = f"UPDATE inodes SET {self._columns[column]} = ? WHERE ino = ?"
                self._db.run(sql, (value, ROOT_INO))
