"""Paths of inodes and names in one state of the database, for messages.

Owns: following parents up to the root; finding the paths that recorded changes affect.
Does not know: the caller, the upload of changes, the time of a state.
Tasks: calls block, so make them in a thread. The name of an inode is found by a scan of its parent
directory, because no index maps inodes to names.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import apsw

from s3fs_meta.limits import FSCK_PATH_DEPTH_MAX
from s3fs_meta.meta import changesets
from s3fs_meta.meta.db import connections
from s3fs_meta.meta.tables import pending
from s3fs_meta.model import ROOT_INO, Ino

_NAME: Final = (
    "SELECT i.parent, CAST(d.name AS BLOB) FROM inodes AS i CROSS JOIN dentries AS d"
    " ON d.parent = i.parent AND d.ino = i.ino WHERE i.ino = ? LIMIT 1"
)


class TreePaths:
    """Finds paths in one state of a database. Each directory is looked up once."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._directories: dict[Ino, str | None] = {ROOT_INO: ""}

    def of_name(self, parent: Ino, name: bytes) -> str | None:
        """Return the path of a name, even a deleted name; None if its directory has no path."""
        above = self._directory(parent)
        return None if above is None else f"{above}/{_text(name)}"

    def of_inode(self, ino: Ino) -> str | None:
        """Return one path of an inode, or None if it has no path from the root."""
        if ino == ROOT_INO:
            return "/"
        step = self.step(ino)
        return None if step is None else self.of_name(*step)

    def _directory(self, ino: Ino) -> str | None:
        """Return the path of a directory, "" for the root, or None if it has no path."""
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
        """Return a name of an inode with its directory, or None if it has no name.

        A name that fsck would convert to a blob is returned as a blob.
        """
        with connections.translating(self._connection.filename):
            for parent, name in self._connection.execute(_NAME, (ino,)).fetchall():
                if isinstance(parent, int) and isinstance(name, bytes):
                    return Ino(parent), name
        return None


def bytes_of(connection: apsw.Connection, ino: Ino) -> bytes | None:
    """Return one path of an inode, without a leading slash, or None if it has no path."""
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
    """Return at most *limit* paths that the records after *seq_after* change, sorted.

    A path is listed if its name was added, removed or changed, or if its content or attributes
    changed. A directory is not listed if only its entries changed.
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
