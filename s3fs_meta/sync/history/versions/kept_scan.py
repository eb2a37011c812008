"""Results of one function for the changes of txgs, cached so that several searches share them.

Owns: the cached results and their limit. Does not know: the meaning of the results.
Keeps: each changelog is decoded once for all searches, unless the results exceed the limit. Further
results are then computed again for each search.

Every search reads the same txgs, from the latest to the earliest. A cache that evicts the least
recently used result would always evict the result that the next search needs first.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

from s3fs_meta.background_task import in_thread
from s3fs_meta.model import Txg
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.versions.changelog_reader import ChangelogReader, Scanned, UnreadableTxg

# A function's result for one changeset: one item for each inode or name found.
_T = TypeVar("_T", bound=Collection[object])


class KeptScan(Generic[_T]):
    """Calls one function with the changes of txgs and caches the results."""

    def __init__(
        self,
        changelogs: ChangelogReader,
        function: Callable[[bytes, bool], _T],
        kept_max: int,
    ) -> None:
        """Create a scan that has no results yet.

        Args:
            changelogs: reads the changes of txgs.
            function: as in ``ChangelogReader.scan``; its results must not be changed later.
            kept_max: the maximum number of txgs and items to keep.
        """
        self._changelogs = changelogs
        self._function = function
        self._room = kept_max  # number of further txgs and items that may be kept
        self._kept: dict[Txg, Scanned[_T] | UnreadableTxg] = {}

    async def scan(self, txgs: Sequence[Txg]) -> list[Scanned[_T] | UnreadableTxg]:
        """Return the results for the txgs, in the same order; see ``ChangelogReader.scan``."""
        missing = [txg for txg in txgs if txg not in self._kept]
        read = await self._changelogs.scan(missing, self._function) if missing else []
        found = {one.txg: one for one in read}
        for one in read:
            self._keep(one)
        return [
            found[txg] if txg in found else self._changelogs.unless_abandoned(self._kept[txg])
            for txg in txgs
        ]

    async def scan_changes(self, link: Link, changeset: bytes) -> list[Scanned[_T] | UnreadableTxg]:
        """Return the results for changes that are in no changelog yet; *link* is their position."""
        if link.txg not in self._kept:
            results = [await in_thread(self._function, changeset, True)]
            one = Scanned(link, results)
            self._keep(one)
            return [one]
        return [self._kept[link.txg]]

    def _keep(self, one: Scanned[_T] | UnreadableTxg) -> None:
        size = 1 if isinstance(one, UnreadableTxg) else 1 + sum(map(len, one.results))
        if size <= self._room:
            self._room -= size
            self._kept[one.txg] = one
