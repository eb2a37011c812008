"""Paths of inodes and names in one state of the database, for messages.

Owns: walking up to the root; the paths that recorded changes concern; whether changes concern a
given path.
Does not know: the caller, whether a change is uploaded, the time of a state of the tree.
Tasks: in a thread, because an inode's name is found by a scan of its parent directory: no index
leads from inodes to names.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import apsw

from s3fs_meta.limits import DIRECTORY_DEPTH_MAX, FSCK_PATH_DEPTH_MAX, WATCHED_DIRECTORIES_MAX
from s3fs_meta.meta import changesets
from s3fs_meta.meta.changesets import Touched
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, hard_links, inodes, pending
from s3fs_meta.model import ROOT_INO, Cookie, Ino

_NAME: Final = "SELECT name FROM dentries WHERE parent = ? AND ino = ? LIMIT 1"
_NAME_AT: Final = "SELECT name FROM dentries WHERE parent = ? AND cookie = ?"


class TreePaths:
    """Finds paths in one state of a database; looks up each directory once."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._directories: dict[Ino, str | None] = {ROOT_INO: ""}

    def of_name(self, parent: Ino, name: bytes) -> str | None:
        """Return the path of a name, even of a deleted name; None if its directory has no path."""
        above = self._directory(parent)
        return None if above is None else f"{above}/{_text(name)}"

    def of_inode(self, ino: Ino) -> str | None:
        """Return one path of an inode; None if it has no path from the root."""
        if ino == ROOT_INO:
            return "/"
        step = self.step(ino)
        return None if step is None else self.of_name(*step)

    def _directory(self, ino: Ino) -> str | None:
        """Return the path of a directory, "" for the root."""
        above: list[tuple[Ino, bytes]] = []
        at = ino
        while at not in self._directories:
            step = self.step(at)
            if step is None or len(above) == FSCK_PATH_DEPTH_MAX:
                self._directories[at] = None
                break
            above.append((at, step[1]))
            at = step[0]
        path = self._directories[at]
        for child, name in reversed(above):
            path = None if path is None else f"{path}/{_text(name)}"
            self._directories[child] = path
        return path

    def step(self, ino: Ino) -> tuple[Ino, bytes] | None:
        """Return a name of an inode with its directory, None if it has no name."""
        rows = self._connection.execute(
            "SELECT parent FROM inodes WHERE ino = ?", (ino,)
        ).fetchall()
        for (parent,) in rows:
            for (name,) in self._connection.execute(_NAME, (parent, ino)):
                assert isinstance(parent, int), "inodes.parent is an integer"
                assert isinstance(name, bytes), "dentries.name is a blob"
                return Ino(parent), name
        return None


def bytes_of(connection: apsw.Connection, ino: Ino) -> bytes | None:
    """Return one path of an inode, without a leading slash; None if it has no path from the root."""
    paths = TreePaths(connection)
    names: list[bytes] = []
    while ino != ROOT_INO:
        step = paths.step(ino)
        if step is None or len(names) == FSCK_PATH_DEPTH_MAX:
            return None
        ino = step[0]
        names.append(step[1])
    return b"/".join(reversed(names))


def texts_of(connection: apsw.Connection, inos: Iterable[Ino]) -> list[str]:
    """Return a path of each inode that has one, for messages."""
    paths = TreePaths(connection)
    found = [paths.of_inode(ino) for ino in inos]
    return [path for path in found if path is not None]


def unshipped(connection: apsw.Connection, seq_after: int, limit: int) -> list[str]:
    """Return the paths that the records after *seq_after* change, at most *limit*, in order.

    A path is listed if its name was added, removed or changed, or if its content or attributes
    changed. A directory in which only entries changed is left out.
    """
    paths = TreePaths(connection)
    found: set[str] = set()
    for path in _spoken_of(connection, paths, seq_after):
        if path is not None:
            found.add(path)
        if len(found) >= limit:
            break
    return sorted(found)


def _spoken_of(
    connection: apsw.Connection, paths: TreePaths, seq_after: int
) -> Iterator[str | None]:
    for _seq, changeset in pending.records(connection, seq_after):
        touched = changesets.touched(changeset)
        parents = {parent for parent, _name in touched.names}
        for parent, name in touched.names:
            yield paths.of_name(parent, name)
        for ino in changesets.inodes_of(changeset) - parents:
            yield paths.of_inode(ino)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


class PathWatch:
    """Checks whether changes concern one path, in one state of a database.

    Make a new watch when rows change. At most WATCHED_DIRECTORIES_MAX directories are cached.
    """

    def __init__(self, db: Database, names: list[bytes]) -> None:
        """Find the inode at a path.

        Args:
            names: the names of the path, from the root.
        """
        self._db = db
        self._way: set[tuple[Ino, bytes]] = set()  # names of the path, up to the first missing name
        self._below: dict[Ino, bool] = {}
        at: Ino | None = ROOT_INO
        for name in names:
            if at is None:
                break
            self._way.add((at, name))
            at = dentries.find(db, at, name)
        self.ino = at  # the inode at the path, None if there is none

    def is_touched(self, touched: Touched) -> bool:
        """Return whether changes concern the path, a name above it, or an entry below it."""
        return (
            any(self._is_name(parent, name) for parent, name in touched.names)
            or any(self._is_cookie(parent, cookie) for parent, cookie in touched.cookies)
            or any(self._is_below(ino) for ino in touched.inodes | touched.contents)
        )

    def _is_name(self, parent: Ino, name: bytes) -> bool:
        return (parent, name) in self._way or self._is_directory_below(parent)

    def _is_cookie(self, parent: Ino, cookie: Cookie) -> bool:
        if self._is_directory_below(parent):
            return True
        row = self._db.one(_NAME_AT, (parent, cookie))
        return row is not None and (parent, bytes(row[0])) in self._way

    def _is_below(self, ino: Ino) -> bool:
        """Return whether an inode is at the path or has a name below it."""
        if self.ino is None:
            return False
        if ino == self.ino:
            return True
        return any(self._is_directory_below(parent) for parent, _names in self._parents(ino))

    def _parents(self, ino: Ino) -> list[tuple[Ino, int]]:
        return [] if ino == ROOT_INO else hard_links.parents(self._db, ino)

    def _is_directory_below(self, ino: Ino) -> bool:
        """Return whether a directory is at the path or below it."""
        if self.ino is None:
            return False
        way: list[Ino] = []
        found: bool | None = None
        while found is None:
            if ino == self.ino:
                found = True
            elif ino == ROOT_INO or len(way) > DIRECTORY_DEPTH_MAX:
                found = False
            elif ino in self._below:
                found = self._below[ino]
            else:
                way.append(ino)
                row = inodes.find(self._db, ino)
                if row is None:
                    found = False
                else:
                    ino = row.parent
        if len(self._below) + len(way) > WATCHED_DIRECTORIES_MAX:
            self._below.clear()
        self._below.update(dict.fromkeys(way[:WATCHED_DIRECTORIES_MAX], found))
        return found
