"""The txgs that changed a file, or anything below a directory.

Owns: the check of whether a changed inode was below the path. Does not know: how txgs are shown.
Keeps: a txg is yielded if it changed an inode at or below the path, or if its changes are unknown.
Memory does not grow with the history.

The history index lists the inodes that a run of txgs changed. An inode is below the path if one of
its present or former ancestors is an inode of the path. The database has the present ancestors; the
removed names in the index give its former ancestors. The search starts at the last txg, so it knows
all names that were removed after the current run.

An inode is followed to its earlier names, as in ``path_versions``. So the log of a directory has
all earlier changes of a file that was moved into it, and no change of a file after it was moved
out.
"""

from collections.abc import AsyncGenerator, Sequence

from s3fs_meta.codec.changelog import Kind
from s3fs_meta.codec.history_index import ALL_BITS, HistoryIndex
from s3fs_meta.errors import UsageError
from s3fs_meta.limits import FORMER_NAMES_MAX, HISTORY_FAN_OUT, HISTORY_FETCHES_MAX
from s3fs_meta.meta import row_history
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.row_history import ChangedRows
from s3fs_meta.meta.trees.past_tree import Former, SubtreeHistory
from s3fs_meta.model import Txg
from s3fs_meta.sync.chain.chain import FetchedChangelog
from s3fs_meta.sync.history.index.index_search import HistorySearch
from s3fs_meta.sync.history.versions.changelog_reader import ChangelogReader, Scanned, UnreadableTxg
from s3fs_meta.sync.history.versions.path_versions import Binding
from s3fs_meta.sync.history.versions.txg_log import Gap


class PathLog:
    """Finds the txgs that changed a path; each PathLog can be used only once."""

    def __init__(
        self,
        db: Database,
        search: HistorySearch,
        changelogs: ChangelogReader,
        bindings: Sequence[Binding],
        last: Txg,
        *,
        former_names_max: int = FORMER_NAMES_MAX,
    ) -> None:
        """Create the search for the txgs that changed a path.

        Args:
            db: the state after the last txg.
            search: finds txgs in the history index.
            changelogs: reads the changes of these txgs.
            bindings: the inodes of the path.
            last: the last txg of the chain.
            former_names_max: the maximum number of removed names to follow.
        """
        self._search = search
        self._changelogs = changelogs
        self._former_names_max = former_names_max
        tops = {binding.ino: binding.last for binding in bindings}
        self._tree = SubtreeHistory(db, tops, last, names_max=former_names_max)

    async def backwards(self, first: Txg) -> AsyncGenerator[FetchedChangelog | Gap, None]:
        """Yield the changelogs that changed the path, latest first, down to the txg *first*.

        A changelog that is unreadable, or that fsck abandoned, becomes a gap.

        Raises:
            UsageError: too many names were removed, so not all of them can be followed.
            NewerFormatError: a newer version of the program wrote a changelog.
            StoreError: the bucket cannot be read.
        """
        walk = self._search.walk(self._match, first)
        while batch := await walk.take(HISTORY_FETCHES_MAX):
            txgs = [candidate.txg for candidate in batch]
            for one in await self._changelogs.scan(txgs, _changed_rows):
                if isinstance(one, Scanned) and not self._concerns(one):
                    continue
                if isinstance(one, UnreadableTxg):
                    yield await self._unknown(one)
                else:
                    yield await self._changelogs.fetch(one.txg)

    async def _unknown(self, one: UnreadableTxg) -> FetchedChangelog | Gap:
        """Return the changelog if its txg is an image; otherwise return a gap."""
        if one.created_ns is not None:
            fetched = await self._changelogs.fetch(one.txg)
            if fetched.changelog.kind is Kind.IMAGE:
                return fetched
        return Gap(one.txg, one.why)

    def _concerns(self, one: Scanned[ChangedRows]) -> bool:
        """Return whether a txg changed an inode of the path; record the names that it removed."""
        former = [(lost.ino, lost.parent, one.txg) for rows in one.results for lost in rows.names]
        self._tree.assume(former)
        changed = {ino for rows in one.results for ino in rows.content | rows.other}
        is_found = any(self._tree.until(ino) >= one.txg for ino in changed)
        self._add(former, one.txg)
        return is_found

    def _match(self, index: HistoryIndex) -> int:
        """Return the parts that may have changed the path; record names that other parts removed.

        If the index lacks the changes of a part, a name that this part removed may be the only link
        between the path and an inode of an earlier part. So earlier parts are also examined.
        """
        step = HISTORY_FAN_OUT ** (index.level - 1)

        def end_of(mask: int) -> Txg:
            """Return the last txg of the latest part of a run that is set in a mask."""
            return Txg(index.first + mask.bit_length() * step - 1)

        self._tree.assume([(row.ino, row.parent, end_of(row.mask)) for row in index.names])
        found = (1 << index.unknown.bit_length()) - 1
        for ino, content, other in index.inodes:
            more = (content | other) & ~found
            if more:
                # number of parts that begin while the inode is in the tree
                parts = (self._tree.until(ino) - index.first) // step + 1
                found |= more & ((1 << max(parts, 0)) - 1)
        # Removed names of a matching part are added later, when its txgs are read one by one.
        kept = ALL_BITS if index.level == 1 else ALL_BITS & ~found
        self._add(
            [
                (row.ino, row.parent, end_of(row.mask & kept))
                for row in index.names
                if row.mask & kept
            ],
            index.first,
        )
        return found

    def _add(self, former: Sequence[Former], txg: Txg) -> None:
        self._tree.add(former)
        if self._tree.is_full:
            raise UsageError(
                f"more than {self._former_names_max:,} names were removed or renamed since txg {txg}:"
                " list fewer transaction groups with -n, --since or --until"
            )


def _changed_rows(changeset: bytes, is_complete: bool) -> ChangedRows:
    return row_history.changed_rows(changeset, is_complete=is_complete)
