"""Computing the content of an index object, from changelogs or from objects one level below.

Owns: merging changes, and the bounds of one object. Does not know: the store, tasks.
Keeps: changes that are not in an index object are marked as unknown, so a search reads them
elsewhere.
Design: docs/design/durability.md, "History index".
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

import trio

from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.changelog import Kind
from s3fs_meta.codec.history_index import ChangedInode, HistoryIndex, Inodes, Names, RemovedName
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError
from s3fs_meta.limits import HISTORY_INODES_MAX, HISTORY_NAME_BYTES_MAX, HISTORY_NAMES_MAX
from s3fs_meta.meta import row_history
from s3fs_meta.meta.row_history import ChangedRows
from s3fs_meta.model import Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import FetchedChangelog, Link


class TooManyChangesError(Exception):
    """A run has more changes than one index object may contain. Nothing is damaged."""


class TxgChanges(NamedTuple):
    """The changed inodes and names of one txg."""

    link: Link
    previous: str  # content_hash of the previous changelog
    # None: unknown, because the txg is an image or contains too many changes
    rows: ChangedRows | None

    @property
    def size(self) -> int:
        """Return the number of inodes and names, which determines the memory needed."""
        rows = self.rows
        return 0 if rows is None else len(rows.content) + len(rows.other) + len(rows.names)


async def changes_of(store: ObjectStore, keyring: Keyring, fetched: FetchedChangelog) -> TxgChanges:
    """Return the changes in a changelog; read its parts one after the other.

    Raises:
        ObjectMissingError, FormatError: a part is missing or damaged.
    """
    changelog, rows = fetched.changelog, ChangedRows(set(), set(), set())
    if changelog.kind is Kind.IMAGE:
        return TxgChanges(fetched.link, changelog.previous, None)
    changed_rows = partial(row_history.changed_rows, is_whole=not changelog.parts)
    async with aclosing(chain.sections(store, keyring, changelog)) as sections:
        async for section in sections:
            found = await trio.to_thread.run_sync(changed_rows, section.changeset)
            rows.content.update(found.content)
            rows.other.update(found.other)
            rows.names.update(found.names)
            if len(rows.content) + len(rows.other) > HISTORY_INODES_MAX:
                return TxgChanges(fetched.link, changelog.previous, None)
    return TxgChanges(fetched.link, changelog.previous, rows)


def of_txgs(uuid: str, txgs: Sequence[TxgChanges | None]) -> HistoryIndex:
    """Return the level-1 index object of a run. Blocking.

    Args:
        uuid: identifier of the filesystem.
        txgs: all txgs of the run in order; None for a txg with an unreadable changelog.

    Raises:
        TooManyChangesError: the changes exceed the bounds of one object.
        FormatError: the first or the last changelog cannot be read, or a changelog does not contain
            the hash of its predecessor.
    """
    inodes = heapq.merge(
        *(_inodes_of(one.rows, 1 << bit) for bit, one in enumerate(txgs) if one and one.rows)
    )
    names = heapq.merge(
        *(_names_of(one.rows, 1 << bit) for bit, one in enumerate(txgs) if one and one.rows)
    )
    ends = [None if one is None else (one.link, one.link, one.previous) for one in txgs]
    unknown = sum(1 << bit for bit, one in enumerate(txgs) if one is None or one.rows is None)
    return _merged(1, uuid, ends, unknown, inodes, names)


def of_runs(level: int, uuid: str, runs: Sequence[HistoryIndex | None]) -> HistoryIndex:
    """Return the index object of a run, merged from the index objects one level below. Blocking.

    Args:
        level: the level of the run.
        uuid: identifier of the filesystem.
        runs: all runs of the level below in order; None for a run without a readable index object.

    Raises:
        TooManyChangesError, FormatError: as in ``of_txgs``.
    """
    inodes = heapq.merge(
        *(_marked_inodes(one.inodes, 1 << bit) for bit, one in enumerate(runs) if one)
    )
    names = heapq.merge(
        *(_marked_names(one.names, 1 << bit) for bit, one in enumerate(runs) if one)
    )
    ends = [None if one is None else (_first_of(one), _last_of(one), one.previous) for one in runs]
    unknown = sum(1 << bit for bit, one in enumerate(runs) if one is None or one.unknown)
    return _merged(level, uuid, ends, unknown, inodes, names)


# first link (only its time is used), last link, hash of the changelog before the run
_Ends = tuple[Link, Link, str]


def _first_of(index: HistoryIndex) -> Link:
    return Link(index.first, "", index.first_ns)


def _last_of(index: HistoryIndex) -> Link:
    return Link(index.last, index.hash, index.created_ns)


def _merged(
    level: int,
    uuid: str,
    ends: Sequence[_Ends | None],
    unknown: int,
    inodes: Iterable[ChangedInode],
    names: Iterable[RemovedName],
) -> HistoryIndex:
    first, last = ends[0], ends[-1]
    if first is None or last is None:
        raise FormatError("history index", "the first or last changelog of the run cannot be read")
    for one, other in pairwise(ends):
        if one is not None and other is not None and other[2] != one[1].hash:
            key = changelog_codec.key_of(other[0].txg)
            raise FormatError(key, f"the object does not match changelog {one[1].txg} before it")
    return HistoryIndex(
        level=level,
        last=Txg(last[1].txg),
        uuid=uuid,
        first_ns=first[0].created_ns,
        created_ns=last[1].created_ns,
        previous=first[2],
        hash=last[1].hash,
        unknown=unknown,
        inodes=Inodes.of(_bounded(_joined_inodes(inodes), HISTORY_INODES_MAX)),
        names=Names.of(_bounded_names(_joined_names(names))),
    )


def _inodes_of(rows: ChangedRows, bit: int) -> Iterator[ChangedInode]:
    for ino in sorted(rows.content | rows.other):
        yield ChangedInode(ino, bit if ino in rows.content else 0, bit if ino in rows.other else 0)


def _names_of(rows: ChangedRows, bit: int) -> Iterator[RemovedName]:
    return (RemovedName(*lost, bit) for lost in sorted(rows.names))


def _marked_inodes(inodes: Inodes, bit: int) -> Iterator[ChangedInode]:
    for ino, content, other in inodes:
        yield ChangedInode(ino, bit if content else 0, bit if other else 0)


def _marked_names(names: Names, bit: int) -> Iterator[RemovedName]:
    return (row._replace(mask=bit) for row in names)


def _joined_inodes(rows: Iterable[ChangedInode]) -> Iterator[ChangedInode]:
    """Join the rows of each inode into one row; no two rows of an inode have a common bit."""
    for ino, some in groupby(rows, itemgetter(0)):
        content = other = 0
        for row in some:
            content |= row.content
            other |= row.other
        yield ChangedInode(ino, content, other)


def _joined_names(rows: Iterable[RemovedName]) -> Iterator[RemovedName]:
    for row, some in groupby(rows, itemgetter(slice(0, 4))):
        parent, name, cookie, ino = row
        yield RemovedName(parent, name, cookie, ino, sum({one.mask for one in some}))


def _bounded(rows: Iterable[ChangedInode], most: int) -> Iterator[ChangedInode]:
    for number, row in enumerate(rows):
        if number == most:
            raise TooManyChangesError(f"more than {most} inodes changed")
        yield row


def _bounded_names(rows: Iterable[RemovedName]) -> Iterator[RemovedName]:
    name_bytes = 0
    for number, row in enumerate(rows):
        name_bytes += len(row.name)
        if number == HISTORY_NAMES_MAX:
            raise TooManyChangesError(f"more than {HISTORY_NAMES_MAX} names were removed")
        if name_bytes > HISTORY_NAME_BYTES_MAX:
            raise TooManyChangesError(
                f"the removed names take more than {HISTORY_NAME_BYTES_MAX} bytes"
            )
        yield row
