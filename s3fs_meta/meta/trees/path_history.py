"""Checking whether recorded changes concern a path, in one state of the tree.

Owns: looking up the path, and whether an inode or a name is at the path, above it, or below it.
Does not know: the time of that state; the caller provides the states before and after a change.
Keeps: memory is bounded: only the most recently checked directories are remembered.
"""

from typing import Final

from s3fs_meta.limits import DIRECTORY_DEPTH_MAX, WATCHED_DIRECTORIES_MAX
from s3fs_meta.meta.changesets import Touched
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, hard_links, inodes
from s3fs_meta.model import ROOT_INO, Cookie, Ino

_NAME_AT: Final = "SELECT name FROM dentries WHERE parent = ? AND cookie = ?"


class PathWatch:
    """One path in one state of a database; made anew when its rows change."""

    def __init__(self, db: Database, names: list[bytes]) -> None:
        """Look the path up.

        Args:
            names: of the path, from the root on.
        """
        self._db = db
        self._way: set[tuple[Ino, bytes]] = set()  # names on the path, up to the first missing one
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
        """Return whether an inode is at the path, or has a name below it."""
        if self.ino is None:
            return False
        if ino == self.ino:
            return True
        return any(self._is_directory_below(parent) for parent, _names in self._parents(ino))

    def _parents(self, ino: Ino) -> list[tuple[Ino, int]]:
        return [] if ino == ROOT_INO else hard_links.parents(self._db, ino)

    def _is_directory_below(self, ino: Ino) -> bool:
        """Return whether a directory is what is at the path, or lies below it."""
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
