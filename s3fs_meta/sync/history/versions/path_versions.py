"""The versions of a path: the inodes that had this path, and the changes of each inode.

Owns: the search for the versions of a path, latest first. Does not know: how versions are shown.
Keeps: memory grows with the number of versions that a caller requests, not with the history.

A name can refer to several inodes over time, because programs replace a file by renaming a new one
over it. For each name in a directory, the history index lists the txgs that removed the name or
gave it another inode. Between two of these txgs, the name refers to one inode. Such a range of txgs
is a *binding* of the name. The search follows the bindings of each name from the root to the end of
the path. The versions of the path are the changes of these inodes, including changes under earlier
names.

The newest state is in a database. The attributes of an inode at each earlier txg are computed by
undoing its changes one by one, latest first.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import aclosing
from fnmatch import fnmatchcase
from functools import reduce
from heapq import nsmallest
from itertools import takewhile
from operator import or_
from typing import Any, Final, NamedTuple, TypeVar

import trio

from s3fs_meta.codec.history_index import HistoryIndex, RemovedName
from s3fs_meta.errors import UsageError, quoted
from s3fs_meta.limits import (
    COOKIE_COLLISION_BITS,
    HISTORY_BINDINGS_MAX,
    HISTORY_FETCHES_MAX,
    HISTORY_KEPT_RESULTS_MAX,
    HISTORY_NAMES_KEPT_MAX,
    HISTORY_NAMES_PAGE,
)
from s3fs_meta.meta import row_history
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.row_history import InodeChange, LostName
from s3fs_meta.meta.tables import dentries
from s3fs_meta.model import ROOT_INO, Cookie, Ino, Txg
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.index.index_search import HistorySearch, Match
from s3fs_meta.sync.history.versions.changelog_reader import (
    ChangelogReader,
    Scanned,
    UnreadableTxg,
)
from s3fs_meta.sync.history.versions.kept_scan import KeptScan

_Row = dict[str, int]
_T = TypeVar("_T", bound=Collection[object])
_Losses = KeptScan[list[LostName]]
_Changes = KeptScan[dict[Ino, InodeChange]]

# A change of one of these columns is shown as a change of attributes.
_ATTRIBUTES: Final = frozenset({"mode", "uid", "gid", "flags"})


class Binding(NamedTuple):
    """A range of txgs in which a path had one inode; the path may be created within the range."""

    ino: Ino
    first: Txg
    last: Txg  # txg that removed the name or gave it to another inode, or the last txg of the chain


class _Bindings(NamedTuple):
    """The bindings of one path, latest first."""

    found: list[Binding]
    are_all: bool  # False if a name referred to more inodes than the search considers


class Version(NamedTuple):
    """One version of a path: a txg that changed the path's inode."""

    txg: Txg
    created_ns: int | None  # time of the txg's cut; None if the changelog is unreadable
    ino: Ino
    # Kinds of changes: either only "unknown", or one or more others in a fixed order.
    # The order: created, content, attributes, renamed, linked, unlinked, replaced, removed.
    changes: tuple[str, ...]
    name: bytes | None  # the name that the txg added to the inode, or removed from it
    size_bytes: int | None  # size, mtime and mode after the txg; None if unknown
    mtime_ns: int | None
    mode: int | None
    why: str = ""  # reason why the changes are unknown; "" if they are known
    # False if the changes are in no changelog yet, so that their txg number may change
    is_uploaded: bool = True


class Versions(NamedTuple):
    """The versions of a path, latest first."""

    found: list[Version]
    is_complete: bool  # False if the file has earlier versions that are not listed


class _Names:
    """The first names, in order, that match a pattern.

    ``are_all`` is False if more than *names_max* names match and some of them were dropped.
    """

    def __init__(self, pattern: bytes, names_max: int) -> None:
        self._pattern = pattern
        self._names_max = names_max
        self.kept: set[bytes] = set()
        self.are_all = True

    def add(self, names: Iterable[bytes]) -> None:
        """Keep the names that match the pattern; drop the last names if there are too many."""
        self.kept.update(name for name in names if fnmatchcase(name, self._pattern))
        if len(self.kept) > 2 * self._names_max:  # drop names rarely, because nsmallest is slow
            self.kept = set(nsmallest(self._names_max, self.kept))
            self.are_all = False


class PathVersions:
    """Finds the versions of paths in one filesystem's history."""

    def __init__(  # noqa: PLR0913 - one argument for each part that it uses
        self,
        db: Database,
        search: HistorySearch,
        changelogs: ChangelogReader,
        first: Txg,
        end: Link,
        *,
        unshipped: bytes = b"",
        top: Ino = ROOT_INO,
        bindings_max: int = HISTORY_BINDINGS_MAX,
        kept_max: int = HISTORY_KEPT_RESULTS_MAX,
        names_max: int = HISTORY_NAMES_KEPT_MAX,
    ) -> None:
        """Create the search for versions of paths.

        Args:
            db: the state after the last txg and the unshipped changes.
            search: finds txgs in the history index.
            changelogs: reads the changes of these txgs.
            first: the first retained txg.
            end: the chain position of the last txg.
            unshipped: the changeset of later changes that are not uploaded.
            top: the directory to which paths are relative.
            bindings_max: the maximum number of inodes of one path to consider.
            kept_max: the maximum number of results that the searches for several files share.
            names_max: the number of names of one directory that are always considered for a
                pattern; at most twice as many are in memory.
        """
        self._db = db
        self._search = search
        self._changelogs = changelogs
        self._first = first
        self._end = end
        self._unshipped = unshipped
        # The txg that will contain the unshipped changes; the last shipped txg if there are none.
        self._last = end.next_txg if unshipped else end.txg
        self._top = top
        self._bindings_max = bindings_max
        self._kept_max = kept_max
        self._names_max = names_max
        # False if a name referred to more than *bindings_max* inodes.
        self.has_all_bindings = True

    async def of_path(self, names: Sequence[bytes], most: int, *, attributes: bool) -> Versions:
        """Return the latest versions of a path.

        Args:
            names: the components of the path, from the root.
            most: the maximum number of versions.
            attributes: also return txgs that changed only attributes.

        Raises:
            UsageError: the path exists in no retained txg.
            StoreError: the bucket cannot be read.
        """
        reached = self._required(names, await self._reached(names))
        scan = self._scan_of_changes([binding.ino for binding in reached.found])
        return await self._of_bindings(reached, most, scan, attributes=attributes)

    async def of_names(
        self, above: Sequence[bytes], names: Sequence[bytes], most: int, *, attributes: bool
    ) -> list[Versions]:
        """Return the latest versions of several names in one directory, in the given order.

        The searches share the changes that they read, so large txgs are not read again for each
        name.

        Args:
            above: the components of the directory's path.
            names: the names.
            most: the maximum number of versions of each name.
            attributes: also return txgs that changed only attributes.

        Raises:
            UsageError: one of the paths exists in no retained txg.
            StoreError: the bucket cannot be read.
        """
        directories = await self._reached(above)
        losses = self._scan_of_losses([binding.ino for binding in directories.found], names)
        reached = [
            self._required([*above, name], await self._below(directories, name, losses))
            for name in names
        ]
        scan = self._scan_of_changes([binding.ino for one in reached for binding in one.found])
        return [await self._of_bindings(one, most, scan, attributes=attributes) for one in reached]

    async def _of_bindings(
        self, reached: _Bindings, most: int, scan: _Changes, *, attributes: bool
    ) -> Versions:
        """Return the latest versions of the inodes of one path."""
        found: list[Version] = []
        for binding in reached.found:
            if _are_later(found, most, binding.last):
                break  # the remaining inodes had the path before the listed versions
            found += await self._of_binding(binding, most + 1, scan, attributes=attributes)
        unique = {
            (one.txg, one.ino): one._replace(is_uploaded=one.txg <= self._end.txg) for one in found
        }
        latest = sorted(unique.values(), key=lambda one: (one.txg, one.ino), reverse=True)
        return Versions(latest[:most], len(latest) <= most and reached.are_all)

    async def names_like(
        self, above: Sequence[bytes], pattern: bytes, most: int
    ) -> tuple[list[bytes], bool]:
        """Return the present and past names in a directory that match a pattern.

        Names that the directory lost before it was renamed to this path are included.

        Args:
            above: the components of the directory's path.
            pattern: a shell pattern as in glob(7), without a slash.
            most: the maximum number of names.

        Returns:
            The names in order, and whether all matching names are included.

        Raises:
            UsageError: the directory exists in no retained txg.
            StoreError: the bucket cannot be read.
        """
        reached = await self._reached(above)
        self._required(above, reached)
        found: set[bytes] = set()
        are_all = reached.are_all
        bindings_of: defaultdict[Ino, list[Binding]] = defaultdict(list)
        for binding in reached.found:
            bindings_of[binding.ino].append(binding)
        for ino, bindings in bindings_of.items():
            names = _Names(pattern, self._names_max)  # names that existed after the binding ended
            await self._add_present(ino, names)
            after = self._last  # *names* contains all names removed after this txg
            for binding in bindings:
                lost = _Names(pattern, self._names_max)
                await self._add_lost(binding, lost)
                at_end = set(names.kept)
                if binding.last < self._last:  # names may have been added after the binding
                    await self._add_lost(Binding(ino, binding.last, after), names)
                    after = binding.last
                    possible = sorted(names.kept - lost.kept)
                    at_end = await self._existing(binding, possible, most + 1)
                are_all &= names.are_all and lost.are_all
                found |= at_end | lost.kept
        matching = sorted(found)
        return matching[:most], are_all and len(matching) <= most

    async def _add_present(self, parent: Ino, names: "_Names") -> None:
        """Add the names in a directory, a page at a time, so that other tasks can run."""
        after = Cookie(0)
        while page := dentries.page_of_names(self._db, parent, after, HISTORY_NAMES_PAGE):
            names.add(name for _, name in page)
            after = page[-1][0]
            await trio.lowlevel.checkpoint()

    async def _existing(self, binding: Binding, possible: Sequence[bytes], most: int) -> set[bytes]:
        """Return the first names in *possible*, at most *most*, that exist when a binding ends."""
        losses = self._scan_of_losses([binding.ino], possible)
        found: set[bytes] = set()
        for name in possible:
            if await self._inode_at(binding.ino, name, binding.last, losses) is not None:
                found.add(name)
            if len(found) == most:
                break
        return found

    async def _add_lost(self, binding: Binding, names: "_Names") -> None:
        """Add the names that were removed from a directory in the txgs of a binding to *names*."""

        def take(index: HistoryIndex, mask: int) -> None:
            rows = takewhile(
                lambda row: row.parent == binding.ino, index.names.beginning_at(binding.ino)
            )
            names.add(row.name for row in rows if row.name and row.mask & mask)

        def lost(changeset: bytes, is_complete: bool) -> set[bytes]:
            rows = row_history.changed_rows(changeset, is_complete=is_complete)
            return {row.name for row in rows.names if row.parent == binding.ino and row.name}

        if binding.last == self._last and self._unshipped:
            names.add(lost(self._unshipped, True))
        missing = await self._search.collect(binding.first, min(binding.last, self._end.txg), take)
        for at in range(0, len(missing), HISTORY_FETCHES_MAX):
            txgs = missing[at : at + HISTORY_FETCHES_MAX]
            for one in await self._changelogs.scan(txgs, lost):
                if not isinstance(one, UnreadableTxg):
                    for part in one.results:
                        names.add(part)

    # --- find the inodes of a path ---------------------------------------------------------------

    async def bindings(self, names: Sequence[bytes]) -> list[Binding]:
        """Return the inodes that a path referred to, latest first, each inode once.

        Raises:
            UsageError: the path exists in no retained txg.
        """
        reached = self._required(names, await self._reached(names))
        self.has_all_bindings &= reached.are_all
        return reached.found

    def _required(self, names: Sequence[bytes], reached: _Bindings) -> _Bindings:
        """Return the bindings of a path, with only the latest binding of each inode."""
        if not reached.found:
            path = quoted(b"/".join(names))
            raise UsageError(f"no retained point in time has a file or directory {path}")
        latest_of = {binding.ino: binding for binding in reversed(reached.found)}
        latest = sorted(latest_of.values(), key=_end_of, reverse=True)
        return _Bindings(latest, reached.are_all)

    async def _reached(self, names: Sequence[bytes]) -> _Bindings:
        """Return all bindings of a path, latest first; there may be none."""
        reached = _Bindings([Binding(self._top, self._first, self._last)], True)
        for name in names:
            losses = self._scan_of_losses([binding.ino for binding in reached.found], [name])
            reached = await self._below(reached, name, losses)
        return reached

    async def _below(self, above: _Bindings, name: bytes, losses: _Losses) -> _Bindings:
        """Return the bindings of a name in a directory with the bindings *above*, latest first."""
        found: list[Binding] = []
        are_all = above.are_all
        for binding in above.found:
            lost = await self._losses(
                binding.ino, name, binding.first, binding.last, losses, most=self._bindings_max
            )
            are_all &= len(lost) < self._bindings_max
            found += await self._bindings_of_name(binding, name, lost, losses)
        latest = sorted(found, key=_end_of, reverse=True)[: self._bindings_max]
        return _Bindings(latest, are_all and len(found) <= self._bindings_max)

    async def _bindings_of_name(
        self, above: Binding, name: bytes, lost: Sequence[tuple[Txg, Ino]], losses: _Losses
    ) -> list[Binding]:
        """Return the bindings of a name during one binding of its directory."""
        bindings: list[Binding] = []
        first = above.first
        for txg, ino in reversed(lost):
            bindings.append(Binding(ino, first, txg))
            first = txg
        at_end = await self._inode_at(above.ino, name, above.last, losses)
        if at_end is not None:
            bindings.append(Binding(at_end, first, above.last))
        return bindings

    async def _inode_at(self, parent: Ino, name: bytes, txg: Txg, losses: _Losses) -> Ino | None:
        """Return the inode that a name referred to after a txg, or None if the name did not exist.

        The result is the next inode that later loses the name or, failing that, the present inode
        of the name. The result is None if that inode was given the name only after the txg.
        """
        ino = dentries.find(self._db, parent, name)
        if txg >= self._last:
            return ino
        first, last = Txg(txg + 1), self._last
        later = await self._losses(parent, name, first, last, losses, most=None)
        if later:
            last, ino = later[-1]
        if ino is None or await self._gets_name(ino, parent, name, first, last):
            return None
        return ino

    async def _gets_name(self, ino: Ino, parent: Ino, name: bytes, first: Txg, last: Txg) -> bool:
        """Return whether an inode was given a name within a range of txgs."""
        hashed = self._db.name_hash(name)

        def match(index: HistoryIndex) -> int:
            row = index.inodes.find(ino)
            return 0 if row is None else row.content | row.other

        def gets(changes: dict[Ino, InodeChange]) -> bool:
            change = changes.get(ino)
            return change is not None and (
                (parent, name) in change.gained
                or any(
                    at == parent and cookie >> COOKIE_COLLISION_BITS == hashed
                    for at, cookie in change.replaced
                )
            )

        scan = self._scan_of_changes([ino])
        async with aclosing(self._scanned(match, scan, first, last)) as scanned:
            return any([any(map(gets, one.results)) async for one in scanned])

    def _scan_of_losses(self, parents: Sequence[Ino], names: Sequence[bytes]) -> _Losses:
        """Return a scan for the txgs that removed certain names or gave them another inode."""
        within, wanted = frozenset(parents), frozenset(names)
        hashes = frozenset(map(self._db.name_hash, names))

        def lost(changeset: bytes, is_complete: bool) -> list[LostName]:
            rows = row_history.changed_rows(changeset, is_complete=is_complete)
            return [
                row
                for row in rows.names
                if row.parent in within
                and (row.name in wanted or row.cookie >> COOKIE_COLLISION_BITS in hashes)
            ]

        return KeptScan(self._changelogs, lost, self._kept_max)

    def _scan_of_changes(self, inos: Sequence[Ino]) -> _Changes:
        """Return a scan for the changes of the given inodes."""
        wanted = frozenset(inos)

        def changes(changeset: bytes, is_complete: bool) -> dict[Ino, InodeChange]:
            return row_history.changes_of(changeset, wanted, is_complete=is_complete)

        return KeptScan(self._changelogs, changes, self._kept_max)

    async def _losses(
        self,
        parent: Ino,
        name: bytes,
        first: Txg,
        last: Txg,
        losses: _Losses,
        *,
        most: int | None,
    ) -> list[tuple[Txg, Ino]]:
        """Return the txgs of a range that removed a name or gave it another inode, latest first."""
        hashed = self._db.name_hash(name)

        def is_wanted(row: RemovedName | LostName) -> bool:
            found = row.name == name if row.name else row.cookie >> COOKIE_COLLISION_BITS == hashed
            return row.parent == parent and found

        def match(index: HistoryIndex) -> int:
            # A row that lacks the name has the cookie of the name instead.
            rows = [*index.names.of_name(parent, b""), *index.names.of_name(parent, name)]
            return reduce(or_, [row.mask for row in rows if is_wanted(row)], 0)

        found: list[tuple[Txg, Ino]] = []
        async with aclosing(self._scanned(match, losses, first, last)) as scanned:
            async for one in scanned:
                found += [
                    (one.txg, row.ino) for rows in one.results for row in rows if is_wanted(row)
                ]
                if most is not None and len(found) >= most:
                    break
        return found

    async def _scanned(
        self, match: Match, scan: KeptScan[_T], first: Txg, last: Txg
    ) -> AsyncGenerator[Scanned[_T], None]:
        """Yield the results of a scan for the readable txgs of a range, latest first."""
        walk = self._search.walk(match, first, last)
        batch = await self._scan_unshipped(scan) if last == self._last else []
        while True:
            for one in batch:
                if not isinstance(one, UnreadableTxg):
                    yield one
            txgs = [candidate.txg for candidate in await walk.take(HISTORY_FETCHES_MAX)]
            if not txgs:
                return
            batch = await scan.scan(txgs)

    async def _scan_unshipped(self, scan: KeptScan[_T]) -> list[Scanned[_T] | UnreadableTxg]:
        """Scan the changes that are not uploaded yet as if they were a txg."""
        if not self._unshipped:
            return []
        return await scan.scan_changes(Link(self._last, "", 0), self._unshipped)

    # --- find the changes of an inode ------------------------------------------------------------

    async def _of_binding(
        self, binding: Binding, most: int, scan: _Changes, *, attributes: bool
    ) -> list[Version]:
        ino = binding.ino
        found: list[Version] = []
        after: _Row | None = row_history.inode_row(self._db, ino)
        # A removed inode has no row. The change that removed it contains its last attributes.
        after = {} if after is None else after

        def match(index: HistoryIndex) -> int:
            row = index.inodes.find(ino)
            return 0 if row is None else row.content | row.other

        walk = self._search.walk(match, self._first, self._end.txg)
        hidden = {(), () if attributes else ("attributes",)}
        batch = await self._scan_unshipped(scan)
        while True:
            for one in batch:
                if isinstance(one, UnreadableTxg):
                    version, after = _unknown(one, ino), _Row()
                else:
                    change = _joined([result[ino] for result in one.results if ino in result])
                    if change is None:
                        continue
                    version, after = _undone(one.link, ino, change, after)
                if one.txg <= binding.last and version.changes not in hidden:
                    found.append(version)
                if after is None:
                    return found
            txgs = [candidate.txg for candidate in await walk.take(HISTORY_FETCHES_MAX)]
            if not txgs or len(found) >= most:
                return found
            batch = await scan.scan(txgs)


def _are_later(found: Sequence[Version], most: int, txg: Txg) -> bool:
    """Return whether more than *most* versions are later than a txg."""
    return sum(one.txg > txg for one in found) > most


def _end_of(binding: Binding) -> tuple[Txg, Txg]:
    return binding.last, binding.first


def _joined(changes: Sequence[InodeChange]) -> InodeChange | None:
    """Join the changes in the sections of a txg, last section first."""
    return reduce(InodeChange.with_earlier, changes) if changes else None


def _undone(link: Link, ino: Ino, change: InodeChange, after: _Row) -> tuple[Version, _Row | None]:
    """Return the version from a txg, and the attributes before it (None: no inode existed).

    Args:
        link: the chain position of the txg.
        ino: the inode.
        change: the changes of the inode in the txg.
        after: the known attributes after the txg.
    """
    if change.after is None:
        shown = before = change.before
    else:
        shown = {**after, **change.after}
        before = None if change.before is None else {**shown, **change.before}
    shown = shown or {}
    mtime_ns = None
    if {"ctime_ns", "mtime_delta_ns"} <= shown.keys():
        mtime_ns = shown["ctime_ns"] + shown["mtime_delta_ns"]
    version = Version(
        txg=link.txg,
        created_ns=link.created_ns,
        ino=ino,
        changes=_labels(change),
        name=_name(change),
        size_bytes=shown.get("size_bytes"),
        mtime_ns=mtime_ns,
        mode=shown.get("mode"),
    )
    return version, before


def _labels(change: InodeChange) -> tuple[str, ...]:
    is_new, is_removed = change.before is None, change.after is None
    gained = bool(change.gained or change.replaced)
    columns = (change.before or {}).keys()
    shown: dict[str, Any] = {
        "created": is_new,
        "content": not (is_new or is_removed) and change.is_content_changed,
        "attributes": not (is_new or is_removed)
        and bool(_ATTRIBUTES & columns or change.xattrs or change.is_target_changed),
        "renamed": gained and bool(change.lost) and not is_new,
        "linked": gained and not change.lost and not is_new,
        "unlinked": any(row.name for row in change.lost) and not (gained or is_removed),
        "replaced": any(not row.name for row in change.lost) and not gained,
        "removed": is_removed,
    }
    return tuple(label for label, is_true in shown.items() if is_true)


def _name(change: InodeChange) -> bytes | None:
    names = [name for _parent, name in change.gained] + [
        row.name for row in change.lost if row.name
    ]
    return names[0] if names else None


def _unknown(one: UnreadableTxg, ino: Ino) -> Version:
    return Version(one.txg, one.created_ns, ino, ("unknown",), None, None, None, None, one.why)
