"""Rows of ``inodes`` in memory: those read last, and those that the open group changes.

Owns: which rows are newer here than in the table, and writing them. Does not know: what a change
means (``inodes``), when groups begin and end (``database``).
Keeps: a row that was changed or made in the open group is here until it is written, and it is
written before any other statement that mentions the table, and before the group commits.

Most inodes change several times within a group: a directory with each of its names, a new file
with its first bytes and then its times. So one statement for each of them is enough; it would
cost 3 to 5 us of a request, a tuple costs a tenth of that.
"""

from typing import Final

from s3fs_meta.limits import INODE_ROWS_MAX
from s3fs_meta.model import Attributes, Ino

INSERT: Final = "INSERT INTO inodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
UPDATE: Final = (
    "UPDATE inodes SET mode = ?2, nlink = ?3, uid = ?4, gid = ?5, size_bytes = ?6,"
    " mapped_blocks = ?7, ctime_ns = ?8, mtime_delta_ns = ?9, atime_delta_ns = ?10, rdev = ?11,"
    " parent = ?12, flags = ?13, btime_delta_ns = ?14 WHERE ino = ?1"
)

_Row = tuple[int, ...]


class InodeRows:
    """Some rows, each as the inode's attributes."""

    def __init__(self) -> None:
        self._rows: dict[Ino, Attributes] = {}
        self.changed: dict[Ino, bool] = {}  # those to be written; true: the table has no such row
        self.changes = 0  # how many were made here so far, written or not
        self.get = self._rows.get

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, attributes: Attributes) -> None:
        """Keep what was just read from the table."""
        if len(self._rows) >= INODE_ROWS_MAX:
            self._make_room()
        self._rows[attributes.ino] = attributes

    def made(self, attributes: Attributes) -> None:
        """Keep a new row. Transaction: inside a group."""
        self.changes += 1
        self.changed[attributes.ino] = True
        self._rows[attributes.ino] = attributes

    def change(self, attributes: Attributes) -> None:
        """Keep a row that differs from that in the table. Transaction: inside a group."""
        self.changes += 1
        ino = attributes.ino
        if ino not in self.changed:
            self.changed[ino] = False
        self._rows[ino] = attributes

    def has_row(self, ino: Ino) -> bool:
        """Return whether an inode that exists has a row in the table, perhaps an older one."""
        return not self.changed.get(ino, False)

    def drop(self, ino: Ino) -> None:
        """Forget a row that is gone."""
        self.changes += 1
        self._rows.pop(ino, None)
        self.changed.pop(ino, None)

    def forget(self) -> None:
        """Forget everything: the table is the truth again."""
        self._rows.clear()
        self.changed.clear()

    def take_changes(self) -> tuple[list[_Row], list[_Row]]:
        """Return the rows to insert and those to update; afterwards the table has them."""
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
        kept = {ino: self._rows[ino] for ino in self.changed}
        self._rows.clear()
        self._rows.update(kept)
