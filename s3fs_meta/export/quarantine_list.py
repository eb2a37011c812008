"""The list of quarantined states, and the changes in them that may not be in the bucket.

Owns: finding the directories, reading their databases, comparing a database with its base in the
bucket, the paths of inodes. Does not know: contents (``from_quarantine``), the command line.
Keeps: a quarantined state is never changed.
"""

import re
import stat
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any, Final, NamedTuple

from s3fs_meta.counted import counted
from s3fs_meta.errors import FormatError, S3fsError
from s3fs_meta.export.copier import is_name
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.lost_names import LOST_FOUND
from s3fs_meta.meta.tables import cached_blocks
from s3fs_meta.model import ROOT_INO, BlockState, Ino, Txg
from s3fs_meta.sync.chain import head as image_head

PREFIX: Final = "kept-"
_STAMP: Final = re.compile(r"\d{1,19}", re.ASCII)  # nanoseconds up to the year 2286

# A damaged row may contain any value. The addition turns text, which may not be UTF-8, into a number.
_NAMED: Final = (
    "SELECT ino, mode + 0, nlink + 0, uid + 0, gid + 0, size_bytes + 0, ctime_ns + 0,"
    " mtime_delta_ns + 0 FROM inodes WHERE nlink > 0"
)
_BEFORE: Final = (
    "SELECT mode + 0, nlink + 0, uid + 0, gid + 0, size_bytes + 0, ctime_ns + 0,"
    " mtime_delta_ns + 0 FROM inodes WHERE ino = ?"
)
_NAMES: Final = (
    "SELECT d.parent + 0, CAST(d.name AS BLOB), i.ino, i.mode + 0"
    " FROM dentries d JOIN inodes i ON i.ino = d.ino"
)
_PENDING_INODES: Final = "SELECT ino + 0 FROM cached_blocks WHERE state = ? OR state = ?"


class Kept(NamedTuple):
    """One quarantined state: its directory, and the time of the quarantine."""

    path: Path
    set_aside_ns: int

    @property
    def database(self) -> Path:
        """Return the path of the metadata database; the file may be missing."""
        return self.path / "meta.db"

    @property
    def blocks(self) -> Path:
        """Return the path of the directory with the block files; it may be missing."""
        return self.path / "blocks"


def find_all(state: Path) -> list[Kept]:
    """Return the quarantined states of a state directory, oldest first.

    Other files whose names begin with the prefix are omitted, for example a broken symbolic link.
    """
    paths = [path for path in state.glob(f"{PREFIX}*") if path.is_dir()]
    return sorted(
        (Kept(path, _quarantined_ns(path)) for path in paths),
        key=lambda kept: (kept.set_aside_ns, kept.path),
    )


def _quarantined_ns(path: Path) -> int:
    """Return the time in the name of a quarantined directory; a renamed one has its own time."""
    stamp = path.name.removeprefix(PREFIX)
    return int(stamp) if _STAMP.fullmatch(stamp) else path.stat().st_mtime_ns


def open_database(kept: Kept) -> Database:
    """Open the database of a quarantined state, for reading.

    The database may lack properties that mkfs writes.

    Raises:
        DatabaseError, FormatError: the database is missing or cannot be read.
    """
    return Database.open(kept.database, Pragmas(), read_only=True, repairing=True)


def summary(kept: Kept) -> dict[str, Any]:
    """Return facts about a quarantined state, including damage, without reading the bucket."""
    known: dict[str, Any] = {
        "name": kept.path.name,
        "path": str(kept.path),
        "set_aside_ns": kept.set_aside_ns,
        "why_unreadable": "",
        "txg": None,
        "only_here_bytes": None,
    }
    if not kept.database.exists():
        return {**known, "why_unreadable": without_database(kept)}
    try:
        db = open_database(kept)
    except S3fsError as exc:
        return {**known, "why_unreadable": exc.message}
    try:
        totals = cached_blocks.totals(db)
        known["txg"] = _head_txg(db)
        known["only_here_bytes"] = sum(
            totals[state].plain_bytes for state in (BlockState.DIRTY, BlockState.SEALED)
        )
    except S3fsError as exc:
        known["why_unreadable"] = exc.message
    finally:
        db.close()
    return known


def _head_txg(db: Database) -> Txg | None:
    """Return the txg of the head, or None if it is unknown, because its row is missing or damaged."""
    try:
        head = image_head.recorded(db, "head")
    except FormatError:  # copying files does not need this row
        return None
    return None if head is None else head.txg


def without_database(kept: Kept) -> str:
    """Return why no file can be copied out of a quarantined state without a database."""
    sizes = [path.stat().st_size for path in kept.blocks.rglob("*") if path.is_file()]
    return (
        f"it has no database, only {counted(len(sizes), 'block file')}, {sum(sizes)} bytes: raw"
        " content of files whose names are not known"
    )


def changed(db: Database, base: Database | None) -> list[Ino]:
    """Return the named inodes that differ from *base*; all named inodes if *base* is None.

    A directory is returned only if it is new: other directories differ only in their entries.
    """
    states = (int(BlockState.DIRTY), int(BlockState.SEALED))
    pending = {row[0] for row in db.iterate(_PENDING_INODES, states)}
    found = []
    for ino, *row in db.inodes.iterate(_NAMED):
        before = None if base is None else base.inodes.one(_BEFORE, (ino,))
        is_old_directory = before is not None and _is_directory(row[0])
        if ino != ROOT_INO and not is_old_directory and (before != tuple(row) or ino in pending):
            found.append(Ino(ino))
    return found


def _is_directory(mode: object) -> bool:
    """Return whether a mode has the type directory; a damaged row may have any value."""
    return isinstance(mode, int) and stat.S_ISDIR(mode)


class Names:
    """Finds the paths of inodes in the database of a quarantined state."""

    def __init__(self, db: Database, wanted: Set[Ino]) -> None:
        self._directories: dict[Ino, tuple[Ino, bytes]] = {}
        self._names: dict[Ino, list[tuple[Ino, bytes]]] = {}
        self._paths: dict[Ino, bytes | None] = {ROOT_INO: b""}
        for parent, raw, ino, mode in db.inodes.iterate(_NAMES):
            name = raw or b""
            if _is_directory(mode):
                self._directories[ino] = (parent, name)
            if ino in wanted:
                self._names.setdefault(ino, []).append((parent, name))

    def paths(self, ino: Ino) -> list[bytes]:
        """Return all paths of an inode, or a path in ``lost+found`` if no path is known."""
        if ino in self._directories:
            self._directory(ino)  # so that ``directories`` yields it
        found = [self._path(parent, name) for parent, name in self._names.get(ino, ())]
        return [path for path in found if path is not None] or [LOST_FOUND + b"/#%d" % ino]

    def directories(self) -> Iterator[tuple[Ino, bytes]]:
        """Yield the directories of all paths returned so far, parents before children."""
        known = [(ino, path) for ino, path in self._paths.items() if path]
        yield from sorted(known, key=lambda one: one[1].count(b"/"))

    def _path(self, parent: Ino, name: bytes) -> bytes | None:
        """Return the path of a name, or None if its parent is missing or the name is invalid."""
        above = self._directory(parent)
        if above is None or not is_name(name):
            return None
        return above + b"/" + name if above else name

    def _directory(self, ino: Ino) -> bytes | None:
        """Return the path of a directory, without recursion, because trees may be deep."""
        ancestors: list[Ino] = []
        while ino not in self._paths:  # the loop ends, because each pass adds a directory
            ancestors.append(ino)
            self._paths[ino] = None  # avoids an endless loop if damaged rows form a cycle
            if ino not in self._directories:
                break
            ino = self._directories[ino][0]
        for one in reversed(ancestors):
            if one in self._directories:
                self._paths[one] = self._path(*self._directories[one])
        return self._paths[ancestors[0]] if ancestors else self._paths[ino]
