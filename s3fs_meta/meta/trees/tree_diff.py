"""The differences between two states of a filesystem, each in its own database.

Owns: comparing names and inodes, detecting renames, and finding paths in both states.
Does not know: points in time, the display of differences.
Keeps: only the inodes that the caller passes are compared, and memory grows only with their number.
Tasks: all calls block, so make them in a thread.

A directory whose entries changed is itself a changed inode, and its entries are compared by name. A
file that lost one name and has a new name was renamed. The rename of a directory is one difference:
the entries below it count as unchanged, unless they changed themselves.
"""

import json
import stat
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

from s3fs_meta.limits import DIFF_NAMES_CACHED_MAX, DIRECTORY_DEPTH_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.tables import hard_links, inodes, symlinks, xattrs
from s3fs_meta.model import ROOT_INO, Attributes, Ino

ADDED: Final = "added"
REMOVED: Final = "removed"
CHANGED: Final = "changed"
RENAMED: Final = "renamed"
ATTRIBUTES: Final = "attributes"

_Name = tuple[Ino, bytes]  # directory and name of an entry
_Row = tuple[Any, Any, Any]  # an entry of a directory: cookie, name, inode

_CONTENT: Final = (
    "SELECT m.block_index, b.plain_bytes, coalesce(b.hash, m.block) FROM block_map m"
    " LEFT JOIN blocks b ON b.block = m.block WHERE m.ino = ? ORDER BY m.block_index"
)
_DIRECTORIES: Final = (
    "SELECT value FROM json_each(?) WHERE EXISTS (SELECT 1 FROM dentries WHERE parent = value)"
)
# A damaged row may contain any value: fsck turns a name into bytes, too, and no inode is 0.
_ENTRIES: Final = (
    "SELECT cookie + 0, CAST(name AS BLOB), ino + 0 FROM dentries WHERE parent = ? ORDER BY cookie"
)
_EQUAL_HASHES: Final = "SELECT 1 FROM dentries WHERE parent = ? AND cookie & 255 <> 0 LIMIT 1"
_PIECE_ROWS: Final = 500  # rows that are compared in 1 ms, before other tasks may run
# The columns of each primary key; the first one is an inode number.
_TABLES: Final = {
    "inodes": "ino",
    "dentries": "parent, cookie",
    "block_map": "ino, block_index",
    "xattrs": "ino, name",
    "symlinks": "ino",
}


class Difference(NamedTuple):
    """One file or directory that differs between two states."""

    path: bytes  # path in the later state, or in the earlier state if the file was removed
    kind: str
    former_path: bytes | None  # path in the earlier state, only for a renamed file
    mode: int
    before_bytes: int | None  # size in the earlier state, or None if the file did not exist
    after_bytes: int | None
    is_content_changed: bool  # True if the content changed; computed only for a renamed file

    def is_below(self, top: bytes) -> bool:
        """Return whether one of the paths is *top* or below it; an empty *top* is the root."""
        paths = self.path, self.former_path
        return any(one is not None and _is_at(one, top) for one in paths)


def _is_at(path: bytes, top: bytes) -> bool:
    return not top or path == top or path.startswith(top + b"/")


def changed_inodes(before: Database, after: Database) -> Iterator[Ino]:
    """Yield inodes with different rows, and directories with different names.

    An inode may be yielded more than once. All rows are compared; this takes a few seconds for a
    million files.
    """
    for table, columns in _TABLES.items():
        count = len(columns.split(", "))
        query = f"SELECT * FROM {table} ORDER BY {columns}"
        old, new = (db.inodes.iterate(query) for db in (before, after))
        row, other = next(old, None), next(new, None)
        while row is not None or other is not None:
            if row == other:
                row, other = next(old, None), next(new, None)
                continue
            key, other_key = _key(row, count), _key(other, count)
            changed = row if key < other_key else other
            if changed is not None and type(changed[0]) is int:
                yield Ino(changed[0])
            if key <= other_key:
                row = next(old, None)
            if other_key <= key:
                other = next(new, None)


def _key(row: Row | None, count: int) -> list[tuple[bool, bool, Any]]:
    """Return the first *count* values of a row in a form that sorts them as SQLite does.

    A damaged row may contain values of any type. SQLite sorts numbers before texts before blobs.
    None means the end of a table, and sorts after all keys.
    """
    if row is None:
        return [(True, True, None)]
    return [(isinstance(one, bytes), isinstance(one, str), one) for one in row[:count]]


class TreeDiff:
    """Compares two states of one filesystem."""

    def __init__(self, before: Database, after: Database, *, piece_rows: int = _PIECE_ROWS) -> None:
        """Prepare a comparison of at most *piece_rows* names of each state at a time."""
        self._piece_rows = piece_rows
        for db in (before, after):
            db.inodes.flush()
        # Inodes from this number on are listed as added, so their names are not kept in memory.
        # A name that is not in memory is read again when needed.
        self._first_new = before.counters.next_ino
        # False if fsck replaced the cookie key, which changed the cookies of all names
        self._has_one_key = before.cookie_key == after.cookie_key
        self._before = _State(before)
        self._after = _State(after)

    def differences(self, changed: Collection[Ino]) -> Iterator[Difference]:
        """Yield the differences in no particular order, like ``steps`` but without pauses."""
        return (one for one in self.steps(changed) if one is not None)

    def steps(self, changed: Collection[Ino]) -> Iterator[Difference | None]:
        """Yield the differences in no particular order, and None after each short piece of work.

        Args:
            changed: every inode whose rows may differ, and every directory whose names may differ.
        """
        removed: dict[_Name, Ino] = {}
        added: dict[_Name, Ino] = {}
        yield from self._compare_names(changed, removed, added)
        taken = removed.keys() & added.keys()
        replaced = [
            name
            for name in taken
            if self._after.find(removed[name]) is None and self._before.find(added[name]) is None
        ]
        yield from self._before.find_paths({directory for directory, _ in removed})
        for name in replaced:
            yield from self._replaced(name, removed.pop(name), added.pop(name))
        moved = _in_both(removed.values(), added.values())
        lost, gained = _take(removed, moved), _take(added, moved)
        for ino in moved:
            pairs = min(len(lost[ino]), len(gained[ino]))
            for old, new in zip(lost[ino], gained[ino], strict=False):
                yield from self._renamed(ino, old, new)
            for old in lost[ino][pairs:]:
                yield from self._one(self._before, REMOVED, ino, old)
            for new in gained[ino][pairs:]:
                yield from self._one(self._after, ADDED, ino, new)
        # To save memory, remove each name from the dictionary before its difference is yielded.
        for state, kind, names in (
            (self._before, REMOVED, removed),
            (self._after, ADDED, added),
        ):
            while names:
                name, ino = names.popitem()
                yield from self._one(state, kind, ino, name)
        yield from self._in_place(ino for ino in changed if ino not in moved)

    def _compare_names(
        self, changed: Collection[Ino], removed: dict[_Name, Ino], added: dict[_Name, Ino]
    ) -> Iterator[Difference | None]:
        """Add the names that exist only in the earlier or only in the later state.

        To save memory, a name that can only be a new name of a new inode is yielded immediately.
        """
        directories: set[Ino] = set()
        for state in (self._before, self._after):
            yield from state.add_directories(changed, directories)
        yield from self._after.find_paths(directories)
        for directory in directories:
            rows = self._before.rows(directory), self._after.rows(directory)
            # A name keeps its cookie, unless it has the same hash as another name.
            are_cookies_kept = self._has_one_key and not any(
                state.has_equal_hashes(directory) for state in (self._before, self._after)
            )
            for old, new in _pieces(*rows, self._piece_rows):
                yield None
                self._before.note_names(directory, old, changed)
                self._after.note_names(directory, new, changed, self._first_new)
                same = set(old).intersection(new)
                lost = {row[1]: row[2] for row in old if row not in same}
                removed.update(((directory, name), ino) for name, ino in lost.items())
                for row in new:
                    _cookie, name, ino = row
                    if row in same:
                        continue
                    if are_cookies_kept and ino >= self._first_new and name not in lost:
                        yield from self._one(self._after, ADDED, ino, (directory, name))
                    else:
                        added[directory, name] = ino
        # Skip names that exist in both states: names with the same hash may exchange cookies.
        for kept in [name for name in removed if added.get(name) == removed[name]]:
            del removed[kept], added[kept]

    def _replaced(self, name: _Name, old: Ino, new: Ino) -> Iterator[Difference]:
        former, found = self._before.find(old), self._after.find(new)
        path = self._after.path(*name)
        if former is None or found is None or stat.S_IFMT(former.mode) != stat.S_IFMT(found.mode):
            yield from self._one(self._before, REMOVED, old, name)
            yield from self._one(self._after, ADDED, new, name)
        elif path is not None:
            yield Difference(
                path, CHANGED, None, found.mode, former.size_bytes, found.size_bytes, True
            )

    def _renamed(self, ino: Ino, old: _Name, new: _Name) -> Iterator[Difference]:
        former_path, path = self._before.path(*old), self._after.path(*new)
        former, found = self._before.find(ino), self._after.find(ino)
        if former_path is None or path is None or former is None or found is None:
            return
        is_changed = self._is_content_changed(former, found)
        yield Difference(
            path,
            RENAMED,
            former_path,
            found.mode,
            former.size_bytes,
            found.size_bytes,
            is_changed,
        )

    def _one(self, state: "_State", kind: str, ino: Ino, name: _Name) -> Iterator[Difference]:
        found, path = state.find(ino), state.path(*name)
        if found is not None and path is not None:
            size = found.size_bytes
            before, after = (size, None) if kind == REMOVED else (None, size)
            yield Difference(path, kind, None, found.mode, before, after, False)

    def _in_place(self, inos: Iterable[Ino]) -> Iterator[Difference | None]:
        """Yield changed files and directories that kept their names."""
        kept: list[tuple[Attributes, Attributes]] = []
        directories: set[Ino] = set()
        for number, ino in enumerate(inos):
            if number % _PIECE_ROWS == 0:
                yield None
            former = self._before.find(ino) if ino < self._first_new else None
            found = None if former is None else self._after.find(ino)
            if former is not None and found is not None:
                kept.append((former, found))
                directories.update(self._after.parents(ino))
        yield from self._after.find_paths(directories)
        # Sort by directory, so that each batch reads the names of only a few directories.
        kept.sort(key=lambda pair: pair[1].parent)
        for at in range(0, len(kept), DIFF_NAMES_CACHED_MAX):
            batch = kept[at : at + DIFF_NAMES_CACHED_MAX]
            yield from self._before.find_names([former for former, _ in batch])
            yield from self._after.find_names([found for _, found in batch])
            yield from self._changed_of(batch)

    def _changed_of(
        self, kept: Iterable[tuple[Attributes, Attributes]]
    ) -> Iterator[Difference | None]:
        for former, found in kept:
            yield None
            if self._is_content_changed(former, found):
                kind = CHANGED
            elif self._are_attributes_changed(former, found):
                kind = ATTRIBUTES
            else:
                continue
            path = self._kept_path(former, found)
            if path is not None:
                yield Difference(
                    path,
                    kind,
                    None,
                    found.mode,
                    former.size_bytes,
                    found.size_bytes,
                    kind == CHANGED,
                )

    def _kept_path(self, former: Attributes, found: Attributes) -> bytes | None:
        """Return the path, in the later state, of a name that an inode has in both states."""
        if found.ino == ROOT_INO:
            return b"."
        kept = self._before.names(former) & self._after.names(found)
        paths = (self._after.path(*name) for name in kept)
        return min((path for path in paths if path is not None), default=None)

    def _is_content_changed(self, former: Attributes, found: Attributes) -> bool:
        if stat.S_ISDIR(found.mode):
            return False  # for a directory, changed entries are listed separately
        if (former.size_bytes, former.mtime_ns) != (found.size_bytes, found.mtime_ns):
            return True
        if stat.S_ISLNK(found.mode):
            return self._before.target(found.ino) != self._after.target(found.ino)
        return self._before.content(found.ino) != self._after.content(found.ino)

    def _are_attributes_changed(self, former: Attributes, found: Attributes) -> bool:
        if (former.mode, former.uid, former.gid) != (found.mode, found.uid, found.gid):
            return True
        return self._before.xattrs(found.ino) != self._after.xattrs(found.ino)


def _in_both(some: Collection[Ino], others: Collection[Ino]) -> set[Ino]:
    few, many = sorted((some, others), key=len)
    known = set(few)
    return {ino for ino in many if ino in known}


def _take(names: dict[_Name, Ino], wanted: set[Ino]) -> dict[Ino, list[_Name]]:
    """Remove the names of the given inodes from *names*; return them grouped by inode."""
    found: dict[Ino, list[_Name]] = {}
    for name, ino in names.items():
        if ino in wanted:
            found.setdefault(ino, []).append(name)
    for taken in found.values():
        for name in taken:
            del names[name]
    return found


def _pieces(
    old: Iterator[_Row], new: Iterator[_Row], piece_rows: int
) -> Iterator[tuple[list[_Row], list[_Row]]]:
    """Yield the rows of two states of a directory in pieces.

    Rows with the same cookie are in one piece. A piece has at most *piece_rows* rows of each state.
    """
    sources = old, new
    rows: list[list[_Row]] = [[], []]
    while True:
        for source, found in zip(sources, rows, strict=True):
            found.extend(islice(source, piece_rows - len(found)))
        # A list that is shorter than a piece contains the last rows of its state.
        last = min((found[-1] for found in rows if len(found) == piece_rows), default=None)
        if last is None:
            break
        ends = [bisect_right(found, last[0], key=itemgetter(0)) for found in rows]
        yield rows[0][: ends[0]], rows[1][: ends[1]]
        rows = [found[end:] for found, end in zip(rows, ends, strict=True)]
    if rows[0] or rows[1]:
        yield rows[0], rows[1]


class _State:
    """One state of the filesystem, with the paths of some directories and names of some inodes."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._paths: dict[Ino, bytes | None] = {ROOT_INO: b""}
        # The names that ``note_names`` kept; the key is the directory and the inode.
        self._noted: dict[tuple[Ino, Ino], tuple[bytes, ...]] = {}
        # The names that the last ``find_names`` or ``find_paths`` read; same key.
        self._read: dict[tuple[Ino, Ino], tuple[bytes, ...]] = {}

    def find(self, ino: Ino) -> Attributes | None:
        """Return the attributes of an inode, or None if it does not exist."""
        return inodes.find(self._db, ino)

    def add_directories(self, inos: Iterable[Ino], found: set[Ino]) -> Iterator[None]:
        """Add to *found* the inodes of *inos* that are directories with entries."""
        source = iter(inos)
        while piece := list(islice(source, _PIECE_ROWS)):
            yield None
            found.update(ino for (ino,) in self._db.all(_DIRECTORIES, (json.dumps(piece),)))

    def has_equal_hashes(self, directory: Ino) -> bool:
        """Return whether two names in a directory have, or had, the same hash."""
        return self._db.one(_EQUAL_HASHES, (directory,)) is not None

    def rows(self, directory: Ino) -> Iterator[_Row]:
        """Yield the names in a directory in the order of their cookies."""
        return self._db.iterate(_ENTRIES, (directory,))

    def note_names(
        self,
        directory: Ino,
        rows: Iterable[_Row],
        wanted: Collection[Ino],
        first_new: int | None = None,
    ) -> None:
        """Keep the names of the inodes in *wanted*, so that their directory is not read again.

        Args:
            directory: the directory of the names.
            rows: names in the directory.
            wanted: the inodes whose names are kept.
            first_new: names of this inode and of later inodes are not kept.
        """
        for _cookie, name, ino in [row for row in rows if row[2] in wanted]:
            if first_new is None or ino < first_new:
                key = (directory, ino)
                self._noted[key] = (*self._noted.get(key, ()), name)

    def content(self, ino: Ino) -> list[Any]:
        """Return a value that identifies the content of a file."""
        return self._db.all(_CONTENT, (ino,))

    def target(self, ino: Ino) -> bytes:
        return symlinks.target(self._db, ino)

    def xattrs(self, ino: Ino) -> list[tuple[bytes, bytes]]:
        return sorted(xattrs.items(self._db, ino))

    def path(self, directory: Ino, name: bytes) -> bytes | None:
        """Return the path of a name, or None if its directory has no path from the root.

        ``find_paths`` must have found the path of the directory.
        """
        above = self._paths[directory]
        return None if above is None else b"%s/%s" % (above, name) if above else name

    def parents(self, ino: Ino) -> list[Ino]:
        """Return the directories that contain names of an inode."""
        return [parent for parent, _ in hard_links.parents(self._db, ino)]

    def names(self, attributes: Attributes) -> set[_Name]:
        """Return the names of an inode, which ``find_names`` must have found."""
        return {
            (parent, name)
            for parent in self.parents(attributes.ino)
            for name in self._names_in(parent, attributes.ino)
        }

    def find_names(self, found: Iterable[Attributes]) -> Iterator[None]:
        """Find all names of the given inodes; discard the names of the previous call."""
        self._read.clear()
        wanted: dict[Ino, set[Ino]] = {}
        for number, one in enumerate(found):
            if number % _PIECE_ROWS == 0:
                yield None
            for parent in self.parents(one.ino):
                if (parent, one.ino) not in self._noted:
                    wanted.setdefault(parent, set()).add(one.ino)
        yield from self._read_names(wanted)

    def find_paths(self, directories: Iterable[Ino]) -> Iterator[None]:
        """Find the paths of directories; each directory above them is read at most once."""
        self._read.clear()
        above: dict[Ino, Ino | None] = {}  # parent of each directory, or None if it has no parent
        wanted: dict[Ino, set[Ino]] = {}
        for number, directory in enumerate(directories):
            if number % _PIECE_ROWS == 0:
                yield None
            at: Ino | None = directory
            while at is not None and at not in self._paths and at not in above:
                row = self.find(at)
                above[at] = None if row is None else row.parent
                if row is not None and (row.parent, at) not in self._noted:
                    wanted.setdefault(row.parent, set()).add(at)
                at = above[at]
        yield from self._read_names(wanted)
        for number, directory in enumerate(above):
            if number % _PIECE_ROWS == 0:
                yield None
            self._join(directory, above)

    def _read_names(self, wanted: dict[Ino, set[Ino]]) -> Iterator[None]:
        """Read the names of inodes in directories, and keep only these names."""
        for directory, inos in wanted.items():
            rows = self.rows(directory)
            while piece := list(islice(rows, _PIECE_ROWS)):
                yield None
                for _cookie, name, ino in [row for row in piece if row[2] in inos]:
                    key = (directory, ino)
                    self._read[key] = (*self._read.get(key, ()), name)

    def _names_in(self, directory: Ino, ino: Ino) -> tuple[bytes, ...]:
        return self._noted.get((directory, ino)) or self._read.get((directory, ino), ())

    def _join(self, directory: Ino, above: dict[Ino, Ino | None]) -> None:
        """Record the path of a directory and of the directories above it."""
        below: list[tuple[Ino, bytes]] = []
        at = directory
        while at not in self._paths:
            parent = above[at]
            names = () if parent is None else self._names_in(parent, at)
            if parent is None or not names or len(below) > DIRECTORY_DEPTH_MAX:
                self._paths[at] = None
                break
            below.append((at, min(names)))
            at = parent
        path = self._paths[at]
        for child, name in reversed(below):
            path = None if path is None else b"%s/%s" % (path, name) if path else name
            self._paths[child] = path
