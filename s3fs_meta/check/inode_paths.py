"""Paths of inodes for fsck reports, computed from dentries.

Owns: temporary tables ``path_*`` with the names of all directories and of the reported inodes.
Does not know: which inodes are reported. Requires the table ``check_dirs`` of ``sums``.
"""

from typing import Final

from s3fs_meta.check.sums import DIRECTORY
from s3fs_meta.limits import FSCK_PATH_DEPTH_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.model import ROOT_INO

_TABLE: Final = "(ino INTEGER PRIMARY KEY, parent INTEGER, name BLOB)"
_DIRECTORIES: Final = (
    "INSERT OR IGNORE INTO temp.path_directories SELECT d.ino, d.parent, CAST(d.name AS BLOB)"
    " FROM dentries AS d"
    f" WHERE d.ino IN (SELECT ino FROM temp.check_dirs WHERE kind = {DIRECTORY})"
)


class Paths:
    """The paths of inodes, as of the creation of this object.

    Requires the temporary tables that the module ``sums`` creates. All dentries are scanned twice:
    once for the directories, and once for the other inodes whose paths are requested. The column ``inodes.parent`` is not
    used, because it may be wrong.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        for name in ("path_directories", "path_others"):
            db.all(f"CREATE TEMP TABLE IF NOT EXISTS {name} {_TABLE}")
            db.all(f"DELETE FROM temp.{name}")
        db.all(_DIRECTORIES)

    def look_up(self, inodes_query: str) -> None:
        """Read the names of the inodes whose numbers a query returns."""
        self._db.all("DELETE FROM temp.path_others")
        self._db.all(
            "INSERT OR IGNORE INTO temp.path_others SELECT d.ino, d.parent, CAST(d.name AS BLOB)"
            f" FROM dentries AS d WHERE d.ino IN ({inodes_query})"
        )

    def of(self, ino: int) -> str | None:
        """Return one path of a directory or of an inode that was passed to ``look_up``.

        Return None if the inode has no path from the root, or only a path with more than
        FSCK_PATH_DEPTH_MAX names. Bytes that are not UTF-8 are escaped.
        """
        parts: list[str] = []
        while ino != ROOT_INO:
            row = self._step(ino)
            if row is None or len(parts) == FSCK_PATH_DEPTH_MAX:
                return None
            ino = row[0]
            parts.append(row[1].decode("utf-8", "backslashreplace"))
        return "/" + "/".join(reversed(parts))

    def _step(self, ino: int) -> tuple[int, bytes] | None:
        for table in ("path_directories", "path_others"):
            sql = f"SELECT parent, name FROM temp.{table} WHERE ino = ?"
            row = self._db.one(sql, (ino,))
            if row is not None:
                return row[0], row[1] or b""
        return None
