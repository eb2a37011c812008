"""Searching the history index for the txgs that may have changed an inode or a name.

Owns: which index objects a search reads, and the check that they describe this chain.
Does not know: how a txg changed an inode, paths.
Keeps: the result has every txg of the range that matches, and every txg that is not in the index.
An unusable index object causes more requests, but hides no txg. An index object is used only if the
chain records the same hash for its last changelog; an object of another history would hide changes.
Design: docs/design/durability.md, "History index".
"""

import logging
import shlex
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from s3fs_meta.background_task import run_concurrently
from s3fs_meta.codec import envelope
from s3fs_meta.codec.envelope import ENCODED_BYTES_MAX
from s3fs_meta.codec.history_index import ALL_BITS, RUNS, HistoryIndex
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, ObjectMissingError
from s3fs_meta.limits import (
    HISTORY_CACHED_ROWS_MAX,
    HISTORY_FAN_OUT,
    HISTORY_FETCHES_MAX,
    HISTORY_LEVELS_MAX,
)
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.index import index_runs

_log = logging.getLogger(__name__)

# fsck keeps an object of unknown origin, because it may be a file of the user.
_NOT_OWN: Final = (
    "fsck keeps the object, because it does not begin like an object of s3fs-meta; if no other"
    " program needs it, delete it, and the next mount for writing creates the index object again"
)
# A search returns the matching parts of a run as a bit mask.
Match = Callable[[HistoryIndex], int]


class TooManyError(Exception):
    """A search found more txgs than its caller allows. Nothing is damaged."""


class Candidate(NamedTuple):
    """A txg that a search found."""

    txg: Txg
    is_sure: bool  # False if the index does not contain the changes of the txg


class _Run(NamedTuple):
    """A run of txgs; level 0 is a single txg."""

    level: int
    last: Txg

    @property
    def first(self) -> Txg:
        return RUNS.first_of(self.level, self.last)

    def parts(self) -> list["_Run"]:
        """Return the runs of the next lower level that form this run, in ascending order."""
        step = HISTORY_FAN_OUT ** (self.level - 1)
        ends = range(self.first + step - 1, self.last + 1, step)
        return [_Run(self.level - 1, Txg(end)) for end in ends]


class HistorySearch:
    """Searches the history index of one filesystem up to one position in its chain."""

    def __init__(self, store: ObjectStore, keyring: Keyring, uuid: str, end: Link) -> None:
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        self._end = end
        command = f"s3fs-meta fsck -p --deep {shlex.quote(store.url)}"
        self._advice = f"{command} deletes the object if it is wrong"
        self._stored: set[ObjectKey] | None = None
        # Hashes of the changelogs read so far; an index object that contradicts them is not used.
        self._hashes: dict[Txg, str] = {end.txg: end.hash}
        self._cached: OrderedDict[ObjectKey, HistoryIndex | None] = OrderedDict()

    def walk(self, match: Match, first: Txg, last: Txg | None = None) -> "Walk":
        """Return a walk through the txgs in a range that match a search, latest first.

        Args:
            match: returns the parts of a run that match the search.
            first: the first txg of the range.
            last: the last txg of the range; None: the last txg of the chain.
        """
        last = self._end.txg if last is None else min(last, self._end.txg)
        return Walk(self, match, first, last)

    async def collect(
        self,
        first: Txg,
        last: Txg,
        take: Callable[[HistoryIndex, int], None],
        most: int | None = None,
    ) -> list[Txg]:
        """Pass the indexed changes of a range of txgs to a function; return the unindexed txgs.

        Args:
            first: the first txg of the range.
            last: the last txg of the range.
            take: called with an index object, and the mask of the parts that are in the range.
            most: the maximum number of txgs to return; None: any number.

        Returns:
            The txgs whose changes no index object contains, in any order.

        Raises:
            TooManyError: more than *most* txgs are not in the index.
            StoreError: the bucket cannot be read.
        """
        missing: list[Txg] = []
        # Read the latest run first: its index object has the hash at the end of the previous run.
        waiting = list(_covering(first, last))[::-1]
        while waiting:
            run = waiting.pop()
            if run.level == 0:
                missing.append(run.last)
                if most is not None and len(missing) > most:
                    raise TooManyError
                continue
            index = await self._index(run)
            parts = list(enumerate(run.parts()))
            within = {bit for bit, part in parts if part.first >= first and part.last <= last}
            if index is not None:
                mask = sum(1 << bit for bit in within)
                take(index, mask & ~index.unknown)
            waiting += [
                part
                for bit, part in parts
                if part.last >= first
                and part.first <= last
                and (index is None or bit not in within or index.unknown >> bit & 1)
            ]
        return missing

    async def parts_of(self, run: _Run, match: Match) -> list[tuple[_Run, bool]]:
        """Return the parts of a run that may match, each with whether the index has its changes.

        Raises:
            StoreError: the bucket cannot be read.
        """
        index = await self._index(run)
        mask = unknown = ALL_BITS
        if index is not None:
            mask, unknown = match(index) | index.unknown, index.unknown
        parts = [
            (part, not unknown >> bit & 1)
            for bit, part in enumerate(run.parts())
            if mask >> bit & 1
        ]
        if run.level > 1:
            await self._fetch_all([part for part, _ in parts[-HISTORY_FETCHES_MAX:]])
        return parts

    async def _fetch_all(self, runs: Sequence[_Run]) -> None:
        """Fetch the index objects of runs in parallel, then the hashes that verify them."""
        found: dict[_Run, HistoryIndex | None] = {}

        async def fetch(run: _Run) -> None:
            found[run] = await self._fetched(RUNS.key_of(run.level, run.last))

        await run_concurrently(partial(fetch, run) for run in runs if not self._is_cached(run))
        indexes = [index for index in found.values() if index is not None]
        recorded = {Txg(index.first - 1) for index in indexes}
        unknown = [index.last for index in indexes if index.last not in recorded]
        await run_concurrently(partial(self._find_hash, txg) for txg in unknown)
        # Read the latest run first: its index object has the hash at the end of the previous run.
        for run in sorted(found, key=lambda run: -run.last):
            await self._add(RUNS.key_of(run.level, run.last), found[run])

    async def _index(self, run: _Run) -> HistoryIndex | None:
        """Return the index object of a run, or None if no usable object exists."""
        key = RUNS.key_of(run.level, run.last)
        if not self._is_cached(run):
            await self._add(key, await self._fetched(key))
        self._cached.move_to_end(key)
        return self._cached[key]

    def _is_cached(self, run: _Run) -> bool:
        return RUNS.key_of(run.level, run.last) in self._cached

    async def _fetched(self, key: ObjectKey) -> HistoryIndex | None:
        """Return an index object of this filesystem, or None if it is missing or damaged."""
        if self._stored is None:
            self._stored = await index_runs.listed(self._store, self._end.txg)
        return await self._read(key) if key in self._stored else None

    async def _add(self, key: ObjectKey, index: HistoryIndex | None) -> None:
        """Cache an index object of this chain; for an object of another chain, cache None."""
        if index is not None and not await self._is_of_chain(index):
            index = None
        self._cached[key] = index
        self._bound(key)

    async def _read(self, key: ObjectKey) -> HistoryIndex | None:
        data = b""
        try:
            data = (await self._store.get(key, ENCODED_BYTES_MAX)).data
            return await index_runs.decoded(key, data, self._keyring, self._uuid)
        except ObjectMissingError:
            return None
        except FormatError as exc:
            _log.warning(
                "the index object %s cannot be read, so its changelogs are read instead: %s; %s",
                key,
                exc,
                self._advice if envelope.is_framed(data) else _NOT_OWN,
            )
            return None

    async def _is_of_chain(self, index: HistoryIndex) -> bool:
        """Return whether an index object describes changelogs of this chain.

        The hash of the last changelog proves this, because it depends on all earlier changelogs. An
        index object of a higher level does not contain the hashes of its parts, so it does not
        verify its parts.
        """
        await self._find_hash(index.last)
        ends = {Txg(index.first - 1): index.previous, index.last: index.hash}
        if index.last not in self._hashes:
            _log.info(
                "changelog %d does not confirm the hash in the index object %s",
                index.last + 1,
                index.key,
            )
            return False
        if any(self._hashes.get(txg, text) != text for txg, text in ends.items()):
            _log.warning(
                "ignoring the index object %s, which contradicts the hashes of changelogs: %s",
                index.key,
                self._advice,
            )
            return False
        self._hashes |= ends
        return True

    async def _find_hash(self, txg: Txg) -> None:
        """Record the hash of a changelog as found in the next changelog."""
        if txg in self._hashes:
            return
        found = await chain.hash_before(self._store, self._keyring, self._uuid, Txg(txg + 1))
        if found is not None:
            self._hashes[txg] = found

    def _bound(self, newest: ObjectKey) -> None:
        while self._rows() > HISTORY_CACHED_ROWS_MAX and len(self._cached) > 1:
            oldest = next(iter(self._cached))
            if oldest == newest:
                self._cached.move_to_end(oldest)
                continue
            del self._cached[oldest]

    def _rows(self) -> int:
        return sum(len(index.inodes) + len(index.names) for index in self._cached.values() if index)


class Walk:
    """A walk through the txgs that a search finds, latest first."""

    def __init__(self, search: HistorySearch, match: Match, first: Txg, last: Txg) -> None:
        self._search = search
        self._match = match
        self._first = first
        self._last = last
        self._waiting = [(run, True) for run in _covering(first, last)][::-1]

    async def take(self, most: int) -> list[Candidate]:
        """Return up to *most* more txgs, or an empty list at the end of the range.

        The search stops at a txg whose changes are not in the index. The caller can read these
        changes before the next call, whose matches may depend on them.

        Raises:
            StoreError: the bucket cannot be read.
        """
        found: list[Candidate] = []
        while self._waiting and len(found) < most:
            run, is_sure = self._waiting[-1]
            if run.level and not all(one.is_sure for one in found):
                break
            self._waiting.pop()
            if run.level == 0:
                found.append(Candidate(run.last, is_sure))
                continue
            self._waiting += [
                part
                for part in await self._search.parts_of(run, self._match)
                if part[0].last >= self._first and part[0].first <= self._last
            ]
        return found


def _covering(first: Txg, last: Txg) -> Iterator[_Run]:
    """Yield runs that together cover a range of txgs, latest first.

    Each run ends within the range, except perhaps the last run of level 1. The earliest run may
    start before the range.
    """
    end = RUNS.end_of(1, last)
    while end >= max(first, 1):
        level = 1
        while level < HISTORY_LEVELS_MAX and end == RUNS.end_of(level + 1, end) and end <= last:
            level += 1
        run = _Run(level, end)
        yield run
        end = Txg(run.first - 1)
