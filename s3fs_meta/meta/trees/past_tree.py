"""The inodes that were below a directory, in one state of the database or in earlier states.

Owns: a temporary table of the directories in which inodes had names earlier.
Does not know: changelogs, the search for changes.
Keeps: SQLite stores the rows of the table; at most WATCHED_DIRECTORIES_MAX results are in memory.

The present directories of an inode are in the database. The caller adds the names that inodes have
lost, each with the txg that removed it. The txg that added a name is unknown, so a name counts as
valid from the first txg.
"""

import heapq
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from s3fs_meta.limits import FORMER_NAMES_MAX, WATCHED_DIRECTORIES_MAX
from s3fs_meta.meta.db.connections import translating
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import hard_links
from s3fs_meta.model import ROOT_INO, Ino, Txg

_NEVER: Final = Txg(0)
_TABLE: Final = (
    "CREATE TEMP TABLE former_parents (ino INTEGER NOT NULL, parent INTEGER NOT NULL,"
    " last INTEGER NOT NULL, PRIMARY KEY (ino, parent)) WITHOUT ROWID"
)
_ADD: Final = (
    "INSERT INTO former_parents VALUES (?, ?, ?)"
    " ON CONFLICT DO UPDATE SET last = max(last, excluded.last)"
)
_FIND: Final = "SELECT parent, last FROM former_parents WHERE ino = ?"

# An inode, a directory, and the last txg in which the directory contained the inode.
Former = tuple[Ino, Ino, Txg]
_Parent = tuple[Ino, Txg]


class SubtreeHistory:
    """Finds the last txg in which an inode was below any of the given directories."""

    def __init__(
        self,
        db: Database,
        tops: Mapping[Ino, Txg],
        last: Txg,
        *,
        names_max: int = FORMER_NAMES_MAX,
        directories_max: int = WATCHED_DIRECTORIES_MAX,
    ) -> None:
        """Create the temporary table.

        Args:
            db: the state after the last txg; no other object of this class uses it.
            tops: the directories, each with the last txg to consider.
            last: the last txg.
            names_max: the maximum number of names that may be added.
            directories_max: the maximum number of directories whose results stay in memory.
        """
        self._db = db
        self._names_max = names_max
        self._directories_max = directories_max
        self._tops = dict(tops)
        self._last = last
        self._kept = 0
        self._also: dict[Ino, list[_Parent]] = {}
        # For each directory, the last txg in which it was in a searched tree.
        self._known: dict[Ino, Txg] = {}
        db.all(_TABLE)

    @property
    def is_full(self) -> bool:
        """Return whether more names were added than the limit allows."""
        return self._kept > self._names_max

    def add(self, former: Collection[Former]) -> None:
        """Add former directories of inodes, each with the last txg of its name."""
        self._known.clear()
        self._kept += len(former)
        with translating(str(self._db.path)):
            self._db.connection.executemany(_ADD, former)

    def assume(self, former: Collection[Former]) -> None:
        """Use these former directories in addition to those of ``add``, until the next call."""
        self._known.clear()
        self._also = {}
        for ino, parent, last in former:
            self._also.setdefault(ino, []).append((parent, last))

    def until(self, ino: Ino) -> Txg:
        """Return the last txg in which an inode was in a searched tree; 0 if it never was."""
        found = self._tops.get(ino, _NEVER)
        for parent, last in self._parents(ino):
            if min(last, self._last) > found:
                found = max(found, min(last, self._until_of_directory(parent)))
        return found

    def _until_of_directory(self, start: Ino) -> Txg:
        """Return the last txg in which a directory was in a searched tree, and cache the result.

        A directory may have been above another directory and later below it. So the search
        first follows the parent with the latest txg, and visits each directory once.
        """
        if start in self._known:
            return self._known[start]
        waiting, visited = [(-self._last, start, False)], set[Ino]()
        found = _NEVER
        while waiting:
            negative, ino, is_result = heapq.heappop(waiting)
            if is_result:
                found = Txg(-negative)
                break
            if ino in visited:
                continue
            visited.add(ino)
            if ino in self._known:
                heapq.heappush(waiting, (max(negative, -self._known[ino]), ino, True))
                continue
            if ino in self._tops:
                heapq.heappush(waiting, (max(negative, -self._tops[ino]), ino, True))
            for parent, last in self._parents(ino):
                heapq.heappush(waiting, (max(negative, -last), parent, False))
        if len(self._known) >= self._directories_max:
            self._known.clear()
        self._known[start] = found
        return found

    def _parents(self, ino: Ino) -> Iterator[_Parent]:
        """Yield each directory in which an inode has or had a name, with the name's last txg."""
        if ino == ROOT_INO:
            return
        for parent, _names in hard_links.parents(self._db, ino):
            yield parent, self._last
        yield from self._also.get(ino, ())
        for parent, last in self._db.all(_FIND, (ino,)):
            yield Ino(parent), Txg(last)
