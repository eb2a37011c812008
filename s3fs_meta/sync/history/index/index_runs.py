"""Computing the content of an index object from changelogs or from objects one level below.

Owns: merging changes, the bounds of one object, listing and decoding objects. Does not know: tasks.
Keeps: changes that are not in an index object are marked as unknown, so a search reads them from
changelogs.
Design: docs/design/durability.md, "History index".
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any, Final, NamedTuple

from s3fs_meta.background_task import in_thread
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import history_index
from s3fs_meta.codec.changelog import Kind
from s3fs_meta.codec.history_index import (
    ALL_BITS,
    HistoryIndex,
    Inodes,
    NameKey,
    RemovedName,
    RemovedNames,
)
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError
from s3fs_meta.limits import (
    HISTORY_FAN_OUT,
    HISTORY_INODES_MAX,
    HISTORY_NAME_BYTES_MAX,
    HISTORY_NAMES_MAX,
)
from s3fs_meta.meta import row_history
from s3fs_meta.meta.row_history import ChangedRows
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import FetchedChangelog, Link

_ROWS_AT_ONCE: Final = 200  # number of rows that one merge step takes from each part of a run


class TooManyChangesError(Exception):
    """A run of txgs has more changes than one index object may contain. Nothing is damaged."""


async def listed(store: ObjectStore, end: Txg) -> set[ObjectKey]:
    """Return the index objects of runs up to a txg; later objects belong to another history."""
    found: set[ObjectKey] = set()
    async with aclosing(store.list(history_index.PREFIX)) as listing:
        async for info in listing:
            name = history_index.RUNS.parse_key(info.key)
            if name is not None and name[1] <= end:
                found.add(info.key)
    return found


async def decoded(key: ObjectKey, data: bytes, keyring: Keyring, uuid: str) -> HistoryIndex:
    """Decode an index object; raise FormatError if it is damaged or of another filesystem."""
    index = await in_thread(history_index.decode, key, data, keyring)
    if index.uuid != uuid:
        raise FormatError(key, "the index object belongs to another filesystem")
    return index


class RunChanges(NamedTuple):
    """The changed inodes and removed names of a txg or a run."""

    inodes: Inodes
    names: RemovedNames

    @property
    def size(self) -> int:
        """Return the number of inodes and names, which determines the memory needed."""
        return len(self.inodes) + len(self.names)

    def marked(self, bit: int) -> "RunChanges":
        """Return the same changes with each nonzero mask replaced by *bit*, the bit of one part."""
        return RunChanges(self.inodes.marked(bit), self.names.marked(bit))


class TxgChanges(NamedTuple):
    """The changed inodes and removed names of one txg, whose change masks are 0 or 1."""

    link: Link
    previous: str  # content_hash of the previous changelog
    # None if the txg is an image or contains too many changes
    changes: RunChanges | None

    @property
    def size(self) -> int:
        """Return the number of inodes and names, which determines the memory needed."""
        return 0 if self.changes is None else self.changes.size


async def changes_of(store: ObjectStore, keyring: Keyring, fetched: FetchedChangelog) -> TxgChanges:
    """Return the changes in a changelog, reading its parts one after another.

    Raises:
        ObjectMissingError, FormatError: a part is missing or damaged.
    """
    changelog, joined = fetched.changelog, _Joined()
    unknown = TxgChanges(fetched.link, changelog.previous, None)
    if changelog.kind is Kind.IMAGE:
        return unknown
    changes, is_complete = joined.join(), not changelog.parts
    async with aclosing(chain.sections(store, keyring, changelog)) as sections:
        async for section in sections:
            try:
                changes = await in_thread(_with_section, joined, section.changeset, is_complete)
            except TooManyChangesError:
                return unknown
    return TxgChanges(fetched.link, changelog.previous, changes)


def _with_section(joined: "_Joined", changeset: bytes, is_complete: bool) -> RunChanges:
    joined.add(1, changes_in(row_history.changed_rows(changeset, is_complete=is_complete)))
    return joined.join()


def changes_in(rows: ChangedRows) -> RunChanges:
    """Return changed rows as columns, with change masks of 0 or 1. The call blocks."""
    inos = array("Q", sorted(rows.content | rows.other))
    inodes = Inodes(
        inos,
        array("I", map(rows.content.__contains__, inos)),
        array("I", map(rows.other.__contains__, inos)),
    )
    return RunChanges(inodes, RemovedNames.of(RemovedName(*lost, 1) for lost in sorted(rows.names)))


class RunMerger:
    """Merges all parts of one run, in any order, into an index object.

    After adding a part, the caller must call ``join`` if ``is_full`` is true. ``join`` fails for a
    run with too many changes. At any time, memory therefore holds at most the changes of two
    objects and one part.
    """

    def __init__(self, level: int, uuid: str) -> None:
        """Start a run.

        Args:
            level: the level of the run.
            uuid: identifier of the filesystem.
        """
        self._level = level
        self._uuid = uuid
        self._unknown = 0
        self._ends: dict[int, _Ends | None] = {}
        self._joined = _Joined()

    @property
    def is_full(self) -> bool:
        """Return whether ``join`` must be called before the next part is added."""
        return self._joined.is_full

    def add_txg(self, at: int, txg: TxgChanges | None) -> None:
        """Add a txg to this run of level 1; None means that its changelog is unreadable.

        Args:
            at: the position of the part in the run, counted from 0.
            txg: the changes of the part.
        """
        ends = None if txg is None else (txg.link, txg.link, txg.previous)
        changes = None if txg is None else txg.changes
        self._add(at, ends, changes, is_unknown=changes is None)

    def add_run(self, at: int, run: HistoryIndex | None) -> None:
        """Add a lower-level run to this run; None means that it has no readable index object.

        Args:
            at: the position of the part in the run, counted from 0.
            run: the index object of the part.
        """
        ends = None if run is None else (_first_of(run), _last_of(run), run.previous)
        changes = None if run is None else RunChanges(run.inodes, run.names)
        self._add(at, ends, changes, is_unknown=run is None or run.unknown != 0)

    def _add(
        self, at: int, ends: "_Ends | None", changes: RunChanges | None, *, is_unknown: bool
    ) -> None:
        self._ends[at] = ends
        self._unknown |= is_unknown << at
        if changes is not None:
            self._joined.add(1 << at, changes)

    def join(self) -> None:
        """Join the changes of the added parts. The call blocks.

        Raises:
            TooManyChangesError: the changes exceed the bounds of one object.
        """
        self._joined.join()

    def finish(self) -> HistoryIndex:
        """Return the index object of the run, after all its parts were added. The call blocks.

        Raises:
            TooManyChangesError: the changes exceed the bounds of one object.
            FormatError: the first or the last changelog cannot be read, or a changelog does not
                contain the hash of its predecessor.
        """
        ends = [self._ends[at] for at in range(HISTORY_FAN_OUT)]
        first, last = ends[0], ends[-1]
        if first is None or last is None:
            raise FormatError(
                "history index", "the first or last changelog of the run cannot be read"
            )
        for one, other in pairwise(ends):
            if one is not None and other is not None and other[2] != one[1].hash:
                key = changelog_codec.key_of(other[0].txg)
                raise FormatError(
                    key, f"the object does not directly follow changelog {one[1].txg}"
                )
        changes = self._joined.join()
        return HistoryIndex(
            level=self._level,
            last=Txg(last[1].txg),
            uuid=self._uuid,
            first_ns=first[0].created_ns,
            created_ns=last[1].created_ns,
            previous=first[2],
            hash=last[1].hash,
            unknown=self._unknown,
            inodes=changes.inodes,
            names=changes.names,
        )


class _Joined:
    """Joins changes into one row for each inode and one row for each name.

    Added changes wait until they exceed the bounds of one object. Each row is therefore joined only
    a few times, even if the run has many parts.
    """

    def __init__(self) -> None:
        self._done = RunChanges(Inodes.of(()), RemovedNames.of(()))
        # for each added part, its bit and its changes
        self._waiting: list[tuple[int, RunChanges]] = []

    def add(self, mask: int, changes: RunChanges) -> None:
        """Add the changes of one part of the run; *mask* is the bit of this part."""
        self._waiting.append((mask, changes))

    @property
    def is_full(self) -> bool:
        """Return whether ``join`` must be called before more changes are added."""
        inodes = sum(len(one.inodes) for _, one in self._waiting)
        names = sum(len(one.names) for _, one in self._waiting)
        return inodes > HISTORY_INODES_MAX or names > HISTORY_NAMES_MAX

    def join(self) -> RunChanges:
        """Join all changes and return them. The call blocks.

        Raises:
            TooManyChangesError: the changes exceed the bounds of one object.
        """
        parts = [self._done, *(one.marked(mask) for mask, one in self._waiting)]
        self._done = RunChanges(
            _joined_inodes([one.inodes for one in parts]),
            RemovedNames.of(_joined_names([one.names for one in parts])),
        )
        self._waiting = []
        return self._done


# First and last chain position of a run, and the hash of the changelog before the run.
_Ends = tuple[Link, Link, str]


def _first_of(index: HistoryIndex) -> Link:
    return Link(index.first, "", index.first_ns)


def _last_of(index: HistoryIndex) -> Link:
    return Link(index.last, index.hash, index.created_ns)


def _joined_inodes(parts: Sequence[Inodes]) -> Inodes:
    """Join the rows of each inode, from all parts of a run, into one row."""
    joined = Inodes.of(())
    for ranges in _ranges([part.inos for part in parts], lambda ino: ino):
        content: dict[int, int] = {}
        other: dict[int, int] = {}
        for part, rows in zip(parts, ranges, strict=True):
            columns = (part.inos[rows], part.content[rows], part.other[rows])
            for ino, content_mask, other_mask in zip(*columns, strict=True):
                content[ino] = content.get(ino, 0) | content_mask
                other[ino] = other.get(ino, 0) | other_mask
        inos = sorted(content)
        joined.inos.extend(inos)
        joined.content.extend(map(content.__getitem__, inos))
        joined.other.extend(map(other.__getitem__, inos))
        if len(joined) > HISTORY_INODES_MAX:
            raise TooManyChangesError(f"more than {HISTORY_INODES_MAX} inodes changed")
    return joined


def _joined_names(parts: Sequence[RemovedNames]) -> Iterator[RemovedName]:
    """Join the rows of each pair of name and inode, from all parts of a run, into one row."""
    number = name_bytes = 0
    for ranges in _ranges(parts, lambda row: (*row[:4], ALL_BITS)):
        masks: dict[NameKey, int] = {}
        for part, rows in zip(parts, ranges, strict=True):
            for key, mask in part.keys_and_masks(rows):
                masks[key] = masks.get(key, 0) | mask
        number += len(masks)
        name_bytes += sum(len(name) for _, name, _, _ in masks)
        if number > HISTORY_NAMES_MAX:
            raise TooManyChangesError(f"more than {HISTORY_NAMES_MAX} names were removed")
        if name_bytes > HISTORY_NAME_BYTES_MAX:
            raise TooManyChangesError(
                f"the removed names take more than {HISTORY_NAME_BYTES_MAX} bytes"
            )
        for key in sorted(masks):
            yield RemovedName(*key, masks[key])


def _ranges(parts: Sequence[Any], largest: Callable[[Any], object]) -> Iterator[list[slice]]:
    """Split all sorted parts at the same rows; yield one slice of each part at a time.

    Args:
        parts: the parts, whose rows can be compared with each other.
        largest: returns the largest row that must be in the same range as a given row.

    Yields:
        one slice of each part, which contains at most _ROWS_AT_ONCE rows.
    """
    starts = [0] * len(parts)
    while True:
        lasts = [
            part[min(start + _ROWS_AT_ONCE, len(part)) - 1]
            for part, start in zip(parts, starts, strict=True)
            if start < len(part)
        ]
        if not lasts:
            return
        limit = largest(min(lasts))
        ends = [bisect_right(part, limit, start) for part, start in zip(parts, starts, strict=True)]
        yield [slice(*one) for one in zip(starts, ends, strict=True)]
        starts = ends
