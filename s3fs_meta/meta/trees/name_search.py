"""A search for names below a directory, in one state.

Owns: the pass over all names. Does not know: the display of names.
Keeps: the table of names is read once, in slices, so that the caller can run other tasks between
them. Only directories above matching names stay in memory, at most NAME_SEARCH_DIRECTORIES_MAX.
"""

import contextlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from s3fs_meta.errors import BadRowError, DamagedDatabaseError, NoInodeError
from s3fs_meta.limits import FSCK_PATH_DEPTH_MAX, NAME_SEARCH_DIRECTORIES_MAX, NAME_SEARCH_SLICE
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import inodes
from s3fs_meta.meta.trees import tree_paths
from s3fs_meta.model import ROOT_INO, Attributes, Ino

_AFTER: Final = "(parent, cookie) > (?, ?)"
_LAST: Final = (
    f"SELECT parent, cookie FROM dentries WHERE {_AFTER} ORDER BY parent, cookie LIMIT 1 OFFSET ?"
)
_MATCHING: Final = (
    "SELECT parent, CAST(name AS BLOB), ino FROM dentries"
    f" WHERE {_AFTER} AND (parent, cookie) <= (?, ?)"
    r" AND CAST(name AS TEXT) LIKE ? ESCAPE '\'"
)
_PARENT: Final = "SELECT parent FROM inodes WHERE ino = ?"
_END: Final = ((1 << 63) - 1, (1 << 63) - 1)


class FoundName(NamedTuple):
    """A directory entry whose name matches the pattern."""

    path: bytes  # path from the root of the filesystem
    attributes: Attributes


class NameSearch:
    """The entries below a directory whose names match, in the order of their directories."""

    def __init__(
        self,
        db: Database,
        top: Ino,
        like: str,
        most: int,
        *,
        slice_rows: int = NAME_SEARCH_SLICE,
        directories_max: int = NAME_SEARCH_DIRECTORIES_MAX,
    ) -> None:
        r"""Store the arguments; ``read`` runs the search.

        Args:
            db: the state.
            top: the directory.
            like: a pattern of SQL's LIKE, with ``\`` as the escape character.
            most: the maximum number of entries.
            slice_rows: the number of rows to read in one slice.
            directories_max: the maximum number of directories to keep in memory.
        """
        self._slice_rows = slice_rows
        self._directories_max = directories_max
        self.found: list[FoundName] = []
        self.is_complete = False
        self._db = db
        self._top = top
        self._like = like
        self._most = most
        self._below: dict[Ino, bool] = {}
        self._paths: dict[Ino, bytes | None] = {}

    def read(self) -> Iterator[None]:
        """Search for names; yield after each slice. Raises DatabaseError."""
        at: tuple[int, int] = (0, 0)
        while at != _END:
            last = self._db.one(_LAST, (*at, self._slice_rows - 1))
            stop = _END if last is None else (last[0], last[1])
            rows = self._db.all(_MATCHING, (*at, *stop, self._like))
            for number, (parent, name, ino) in enumerate(rows):
                if self._is_below(Ino(parent)):
                    if len(self.found) == self._most:
                        return
                    self._add(Ino(parent), name, Ino(ino))
                    yield
                elif number % self._slice_rows == 0:
                    yield
            at = stop
            yield
        self.is_complete = True

    def _is_below(self, parent: Ino) -> bool:
        """Return whether a directory is the top of the search or below it."""
        if self._top == ROOT_INO:
            return True
        if len(self._below) >= self._directories_max:
            self._below.clear()
        above: list[Ino] = []
        at = parent
        while at not in self._below:
            above.append(at)
            row = self._db.inodes.one(_PARENT, (at,))
            if at in {self._top, ROOT_INO} or row is None or len(above) == FSCK_PATH_DEPTH_MAX:
                self._below[at] = at == self._top
                break
            at = Ino(row[0])
        found = self._below[at]
        self._below.update(dict.fromkeys(above, found))
        return found

    def _add(self, parent: Ino, name: bytes, ino: Ino) -> None:
        if parent not in self._paths:
            self._paths[parent] = tree_paths.bytes_of(self._db.connection, parent)
        above = self._paths[parent]
        if above is not None:
            path = above + b"/" + name if above else name
            with contextlib.suppress(NoInodeError, BadRowError, DamagedDatabaseError):
                # A damaged row is omitted; fsck reports it.
                self.found.append(FoundName(path, inodes.get(self._db, ino)))
