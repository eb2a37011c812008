"""Sizes of all directories in one state, including their subdirectories.

Owns: the sums, in columns of numbers. Does not know: names, the display of sizes.
Keeps: the object uses 56 bytes of memory per directory, however many files there are. The table of
inodes is read once, in slices, so that the caller can run other tasks in between.

Shared content is counted in each file that has it, before deduplication and compression.
A file with several names is counted once, in one of its directories. If damaged metadata makes a
directory its own ancestor, its size counts only its own files.
"""

import json
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from s3fs_meta.errors import SettingsError
from s3fs_meta.limits import FOLDER_SIZES_MAX, FOLDER_SIZES_SLICE
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import properties
from s3fs_meta.model import ROOT_INO, Ino

_KIND: Final = 0o170000
_DIRECTORY: Final = 0o040000
_FILE: Final = 0o100000
_NO_PARENT: Final = -1
_MAX: Final = (1 << 63) - 1  # largest value of a column; a sum over damaged rows can be larger

_DIRECTORIES: Final = (
    f"SELECT ino, parent FROM inodes WHERE ino > ? AND mode & {_KIND} = {_DIRECTORY} AND nlink > 0"
    " ORDER BY ino LIMIT ?"
)
_LAST: Final = "SELECT max(ino) FROM (SELECT ino FROM inodes WHERE ino > ? ORDER BY ino LIMIT ?)"
_FILES: Final = (
    "SELECT parent, count(*), CAST(total(min(size_bytes, mapped_blocks * ?)) AS INTEGER) FROM inodes"
    f" WHERE ino > ? AND ino <= ? AND mode & {_KIND} = {_FILE} AND nlink > 0 GROUP BY parent"
)
_NAMES: Final = (
    "SELECT ino, CAST(name AS BLOB) FROM dentries"
    " WHERE parent = ? AND ino IN (SELECT value FROM json_each(?))"
)
_LARGEST: Final = (
    "SELECT CAST(d.name AS BLOB), min(i.size_bytes, i.mapped_blocks * ?) AS bytes"
    " FROM dentries d JOIN inodes i ON i.ino = d.ino"
    f" WHERE d.parent = ? AND i.mode & {_KIND} = {_FILE} AND i.nlink = 1"
    " ORDER BY bytes DESC LIMIT ?"
)


class FolderSize(NamedTuple):
    """The size of the content of one directory."""

    ino: Ino
    total_bytes: int  # size of all files in the tree, without holes
    total_files: int
    own_bytes: int  # size of the files in the directory itself, without holes
    own_files: int


class FolderSizes:
    """The sizes of the directories in one state."""

    def __init__(
        self, *, folders_max: int = FOLDER_SIZES_MAX, slice_rows: int = FOLDER_SIZES_SLICE
    ) -> None:
        """Create an empty object; ``read`` fills it.

        Args:
            folders_max: the maximum number of directories in the state.
            slice_rows: the number of rows to read in one slice.
        """
        self._folders_max = folders_max
        self._slice_rows = slice_rows
        self._inos = array("q")  # inode numbers of all directories, ascending
        self._above = array("q")  # the position of each directory's parent in these arrays
        self._bytes = array("q")
        self._files = array("q")
        self._own_bytes = array("q")
        self._own_files = array("q")
        self._by_parent = array("q")  # positions of directories, sorted by parent

    def __len__(self) -> int:
        return len(self._inos)

    def read(self, db: Database) -> Iterator[None]:
        """Read the sizes from the database of a state; yield after each slice.

        Raises:
            SettingsError: the state has too many directories.
            DatabaseError: the database cannot be read.
        """
        yield from self._read_directories(db)
        yield from self._read_files(db)
        self._own_bytes, self._own_files = self._bytes[:], self._files[:]
        yield
        yield from self._add_up()
        self._by_parent = array("q", sorted(range(len(self)), key=self._above.__getitem__))

    def of(self, ino: Ino) -> FolderSize | None:
        """Return the size of a directory, or None if the state does not contain it."""
        at = self._find(ino)
        return None if at is None else self._at(at)

    def below(self, ino: Ino) -> list[FolderSize]:
        """Return the sizes of the subdirectories of a directory, largest first."""
        at = self._find(ino)
        if at is None:
            return []
        first = bisect_left(self._by_parent, at, key=self._above.__getitem__)
        stop = bisect_left(self._by_parent, at + 1, key=self._above.__getitem__)
        found = [self._at(position) for position in self._by_parent[first:stop]]
        return sorted(found, key=lambda one: (-one.total_bytes, one.ino))

    def grown_since(self, before: "FolderSizes", most: int) -> list[tuple[FolderSize, int]]:
        """Return the directories whose own files grew most since an earlier state, and the growth.

        Args:
            before: the earlier state.
            most: the maximum number of directories.
        """
        grown: list[tuple[int, int]] = []
        inos, own_bytes = before.own()
        other = 0
        for at, ino in enumerate(self._inos):
            while other < len(inos) and inos[other] < ino:
                other += 1
            known = other < len(inos) and inos[other] == ino
            more = self._own_bytes[at] - (own_bytes[other] if known else 0)
            if more > 0:
                grown.append((more, at))
                if len(grown) > 2 * most:
                    grown = sorted(grown, reverse=True)[:most]
        return [(self._at(at), more) for more, at in sorted(grown, reverse=True)[:most]]

    def own(self) -> tuple["array[int]", "array[int]"]:
        """Return all directories, sorted by number, and the size of the files directly in each."""
        return self._inos, self._own_bytes

    # --- read and add up sizes --------------------------------------------------------------------

    def _read_directories(self, db: Database) -> Iterator[None]:
        parents = array("q")
        last = 0
        while rows := db.inodes.all(_DIRECTORIES, (last, self._slice_rows)):
            last = rows[-1][0]
            self._inos.extend(row[0] for row in rows)
            parents.extend(row[1] if type(row[1]) is int else 0 for row in rows)
            if len(self) > self._folders_max:
                raise SettingsError(
                    f"cannot show sizes: there are more than {self._folders_max:,} folders"
                )
            yield
        for ino, parent in zip(self._inos, parents, strict=True):
            at = None if ino == ROOT_INO else self._find(Ino(parent))
            self._above.append(_NO_PARENT if at is None else at)
            if len(self._above) % self._slice_rows == 0:
                yield
        zeros = bytes(len(self) * self._inos.itemsize)
        self._bytes, self._files = array("q", zeros), array("q", zeros)
        yield

    def _read_files(self, db: Database) -> Iterator[None]:
        block_bytes = int(properties.get(db, "block_bytes"))
        last = 0
        while True:
            row = db.inodes.one(_LAST, (last, self._slice_rows))
            if row is None or row[0] is None:
                return
            for parent, count, size_bytes in db.inodes.all(_FILES, (block_bytes, last, row[0])):
                at = self._find(Ino(parent)) if type(parent) is int else None
                if at is not None:
                    self._files[at] += count
                    self._bytes[at] = min(self._bytes[at] + size_bytes, _MAX)
            last = row[0]
            yield

    def _add_up(self) -> Iterator[None]:
        """Add the size of each directory to its parent, after the sizes of its subdirectories."""
        # For each directory, the number of subdirectories whose sizes are not added yet.
        waiting = array("q", bytes(len(self) * self._inos.itemsize))
        for at in self._above:
            if at != _NO_PARENT:
                waiting[at] += 1
        ready = array("q", (at for at, count in enumerate(waiting) if not count))
        done = 0
        while ready:
            at = ready.pop()
            above = self._above[at]
            if above != _NO_PARENT:
                self._bytes[above] = min(self._bytes[above] + self._bytes[at], _MAX)
                self._files[above] += self._files[at]
                waiting[above] -= 1
                if not waiting[above]:
                    ready.append(above)
            done += 1
            if done % self._slice_rows == 0:
                yield

    def _find(self, ino: Ino) -> int | None:
        at = bisect_left(self._inos, ino)
        return at if at < len(self) and self._inos[at] == ino else None

    def _at(self, at: int) -> FolderSize:
        return FolderSize(
            Ino(self._inos[at]),
            self._bytes[at],
            self._files[at],
            self._own_bytes[at],
            self._own_files[at],
        )


def names(db: Database, directory: Ino, inos: Sequence[Ino]) -> dict[Ino, bytes]:
    """Return the names of some entries of a directory, in one pass over all its names."""
    rows = db.all(_NAMES, (directory, json.dumps(inos)))
    return {Ino(ino): bytes(name) for ino, name in rows}


def largest_files(db: Database, directory: Ino, most: int) -> list[tuple[bytes, int]]:
    """Return the names and sizes of the largest files in a directory, at most *most* of them.

    A file with several names is omitted: its size is counted in only one of its directories.
    """
    block_bytes = int(properties.get(db, "block_bytes"))
    rows = db.inodes.all(_LARGEST, (block_bytes, directory, most))
    return [(bytes(name), int(size_bytes)) for name, size_bytes in rows if size_bytes]
