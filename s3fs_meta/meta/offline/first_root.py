"""The root directory that mkfs created, reconstructed from later changes to it.

Owns: the reconstruction of the root directory's columns, and of the cookie key.
Does not know: the source of changesets.
Keeps: a value is set only before its first change is applied, because that change records the
former value. An owner or mode that never changed keeps the value of the empty database.
Tasks: any thread, inside a transaction.
"""

from typing import Final

from s3fs_meta.meta import changesets
from s3fs_meta.meta.db.database import Database
from s3fs_meta.model import ROOT_INO

_COLUMNS: Final = "SELECT name FROM pragma_table_info('inodes', 'main') ORDER BY cid"
_COOKIE_KEY: Final = "cookie_key"


class FirstRoot:
    """Corrects the root directory of an empty database while changesets are applied to it."""

    def __init__(self, db: Database) -> None:
        self._db = db
        db.inodes.write_through()  # ``hear`` changes rows of the table inodes with SQL
        self._columns = [str(name) for (name,) in db.all(_COLUMNS)]
        self._known: set[int] = set()  # columns of the root inode whose original values are known

    def hear(self, changeset: bytes) -> None:
        """Set the root directory to the old values in a changeset, before the caller applies it.

        Raises:
            FormatError: the changeset is damaged.
        """
        for column, value in changesets.former_values(changeset, "inodes", ROOT_INO).items():
            if column not in self._known:
                self._known.add(column)
                sql = f"UPDATE inodes SET {self._columns[column]} = ? WHERE ino = ?"
                self._db.run(sql, (value, ROOT_INO))
        self._hear_cookie_key(changeset)

    def _hear_cookie_key(self, changeset: bytes) -> None:
        """Set the old cookie key, if the changeset of an interrupted repair changes the key."""
        former = changesets.former_values(changeset, "properties", _COOKIE_KEY)
        for value in former.values():
            sql = "UPDATE properties SET value = ? WHERE name = ?"
            self._db.run(sql, (value, _COOKIE_KEY))
        if changesets.inserts(changeset, "properties", _COOKIE_KEY):
            self._db.run("DELETE FROM properties WHERE name = ?", (_COOKIE_KEY,))
