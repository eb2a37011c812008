"""Reading individual changelogs, in any order, to examine their changes.

Owns: parallel requests, and a cache of the most recently read changes.
Does not know: the meaning of the changes.
Keeps: a changelog is used only if its content is authentic under its key and fsck has not abandoned
it. The reader knows abandoned changelogs once it has read the fence record after them. Hashes are
not compared, because the hash is in the next changelog, which a caller need not read.
"""

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from s3fs_meta.background_task import in_thread, run_concurrently
from s3fs_meta.codec.changelog import Kind
from s3fs_meta.codec.image import NO_HASH
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, NewerFormatError, ObjectMissingError
from s3fs_meta.limits import HISTORY_CACHED_BYTES_MAX, HISTORY_FETCHES_MAX, MEND_PROBES_MAX
from s3fs_meta.model import Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import FetchedChangelog, Link

_T = TypeVar("_T")

# Estimated memory for a changelog without changes, for one location, and for one other reference.
_CHANGELOG_BYTES: Final = 2000
_LOCATION_BYTES: Final = 400
_NOTE_BYTES: Final = 300

Function = Callable[[bytes, bool], _T]


class UnreadableTxg(NamedTuple):
    """A txg whose changes are unknown, with the reason."""

    txg: Txg
    created_ns: int | None  # time of the txg's cut; None if the changelog is unreadable
    why: str


@dataclass(frozen=True)
class Scanned(Generic[_T]):
    """The results of calling a function with the changes of one txg."""

    link: Link
    results: list[_T]  # one result per section, starting with the last section

    @property
    def txg(self) -> Txg:
        """Return the number of the txg that was read."""
        return self.link.txg


class ChangelogReader:
    """Reads individual changelogs of one filesystem."""

    def __init__(
        self,
        store: ObjectStore,
        keyring: Keyring,
        uuid: str,
        *,
        cached_bytes_max: int = HISTORY_CACHED_BYTES_MAX,
    ) -> None:
        self._cached_bytes_max = cached_bytes_max
        self._cached_bytes = 0
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        self._cached: OrderedDict[Txg, FetchedChangelog] = OrderedDict()
        # txgs that a fence record skipped, because fsck had abandoned them
        self._abandoned: list[range] = []

    async def scan(
        self, txgs: Sequence[Txg], function: Function[_T]
    ) -> list[Scanned[_T] | UnreadableTxg]:
        """Call a function with every changeset of the given txgs.

        Args:
            txgs: the numbers of the changelogs, which are all requested at the same time. A caller
                that reads backwards sees no abandoned txg, because it has already read the fence
                record that follows.
            function: called in a thread with a changeset, and True if the txg has only this
                changeset.

        Returns:
            One value for each txg, in the same order.

        Raises:
            NewerFormatError: a newer version of the program wrote a changelog.
            StoreError: the bucket cannot be read.
        """
        found: dict[Txg, Scanned[_T] | UnreadableTxg] = {}

        async def scan_one(txg: Txg) -> None:
            found[txg] = await self._scan(txg, function)

        await run_concurrently(partial(scan_one, txg) for txg in txgs)
        return [self.unless_abandoned(found[txg]) for txg in txgs]

    def unless_abandoned(self, one: Scanned[_T] | UnreadableTxg) -> Scanned[_T] | UnreadableTxg:
        """Return a result, or ``UnreadableTxg`` if a fence record shows that fsck abandoned it."""
        if isinstance(one, UnreadableTxg) or not any(one.txg in run for run in self._abandoned):
            return one
        return UnreadableTxg(one.txg, one.link.created_ns, "fsck ended the chain before this txg")

    async def _scan(self, txg: Txg, function: Function[_T]) -> Scanned[_T] | UnreadableTxg:
        try:
            fetched = await self.fetch(txg)
            if fetched.changelog.kind is Kind.IMAGE:
                return UnreadableTxg(
                    txg, fetched.link.created_ns, "fsck or rollback replaced the metadata"
                )
            if fetched.changelog.kind is Kind.FENCE:
                await self._find_abandoned(fetched)
            is_complete = not fetched.changelog.parts
            async with aclosing(
                chain.sections(self._store, self._keyring, fetched.changelog)
            ) as sections:
                results = [
                    await in_thread(function, section.changeset, is_complete)
                    async for section in sections
                ]
        except NewerFormatError:
            raise
        except ObjectMissingError:
            return UnreadableTxg(txg, None, "the changelog is missing")
        except FormatError as exc:
            return UnreadableTxg(txg, None, exc.what)
        return Scanned(fetched.link, results)

    async def _find_abandoned(self, fence: FetchedChangelog) -> None:
        """Record the abandoned txgs between a fence record and the changelog to which it refers.

        The search ends where the bucket has no readable changelog.
        """
        named, last = fence.changelog.previous, Txg(fence.link.txg - 1)
        if named == NO_HASH or any(last in run for run in self._abandoned):
            return
        batch, first = [last], max(last - MEND_PROBES_MAX, 1)
        while batch:
            hashes = await self._hashes(batch)
            for txg in batch:
                if hashes[txg] == named:
                    if txg != last:
                        self._abandoned.append(range(txg + 1, last + 1))
                    return
            if batch != [last] and not any(hashes.values()):
                return
            below = range(batch[-1] - 1, first - 1, -1)
            batch = [Txg(txg) for txg in below[:HISTORY_FETCHES_MAX]]

    async def _hashes(self, txgs: Sequence[Txg]) -> dict[Txg, str]:
        """Return the hashes of changelogs, with "" for each unreadable changelog."""
        found = dict.fromkeys(txgs, "")

        async def read(txg: Txg) -> None:
            with contextlib.suppress(ObjectMissingError, FormatError):
                found[txg] = (await self.fetch(txg)).link.hash

        await run_concurrently(partial(read, txg) for txg in txgs)
        return found

    async def fetch(self, txg: Txg) -> FetchedChangelog:
        """Return a changelog, from the cache if it was read recently.

        Raises:
            ObjectMissingError, FormatError, StoreError: the changelog cannot be read.
        """
        fetched = self._cached.get(txg)
        if fetched is None:
            fetched = await chain.fetch(self._store, self._keyring, self._uuid, txg)
            chain.require_known(fetched.changelog)
            self._cache(fetched)
        else:
            self._cached.move_to_end(txg)
        return fetched

    def _cache(self, fetched: FetchedChangelog) -> None:
        """Cache a changelog, which a concurrent call may have cached; drop the oldest ones."""
        former = self._cached.pop(fetched.txg, None)
        self._cached_bytes += _size_of(fetched) - (0 if former is None else _size_of(former))
        self._cached[fetched.txg] = fetched
        while self._cached_bytes > self._cached_bytes_max:
            self._cached_bytes -= _size_of(self._cached.popitem(last=False)[1])


def _size_of(fetched: FetchedChangelog) -> int:
    """Estimate the memory that a changelog uses."""
    changelog = fetched.changelog
    notes = len(changelog.packs) + len(changelog.parts) + len(changelog.forgotten)
    return (
        _CHANGELOG_BYTES
        + len(changelog.section.changeset)
        + _LOCATION_BYTES * len(changelog.section.locations)
        + _NOTE_BYTES * notes
    )
