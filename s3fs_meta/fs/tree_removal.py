"""Removing a whole tree: at once for whoever looks, in the background for the space.

Owns: ``s3fs-meta rm``: one operation takes the name away and marks the directory as removed; slices
take the rest apart. Does not know: FUSE, who may ask.
Keeps: what is open, or otherwise known to the kernel, stays as an orphan until it is let go; what
has names elsewhere keeps them and is counted right; each slice is one group, so that a crash leaves
a smaller removed tree, which the next mount goes on with.
Tasks: ``remove`` by the control socket; one ``run`` per mount.
Design: docs/design/semantics.md, "Trees".
"""

import logging
import stat
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import trio

from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.errors import NoEntryError, NoSpaceLeftError, S3fsError
from s3fs_meta.fs.changes import Changes, Lost
from s3fs_meta.fs.lookup_counts import LookupCounts
from s3fs_meta.fs.namespace import Namespace
from s3fs_meta.fs.open_files import OpenFiles
from s3fs_meta.fs.orphans import Orphans
from s3fs_meta.limits import (
    DISK_RESERVE_BYTES,
    PURGE_BLOCKS_MAX,
    TREE_BUSY_S,
    TREE_PAUSE_S,
    TREE_SLICE_DIRECTORIES,
    TREE_SLICE_NAMES,
    TREE_WAL_BYTES_MAX,
)
from s3fs_meta.meta import dentries, inodes, trees
from s3fs_meta.meta.database import Database
from s3fs_meta.meta.trees import Name, Other
from s3fs_meta.model import Attributes, BlockState, Ino, InodeFlag
from s3fs_meta.mount_state import MountStatus

_log = logging.getLogger(__name__)


class _Slice(NamedTuple):
    """Names that go together."""

    names: list[Name]
    others: dict[Ino, Other]  # what is more than a plain file
    emptied: list[Ino]  # tops that have no further names
    part: Name | None  # the last name of a top that has, perhaps


class _Untold(NamedTuple):
    """A name that the kernel has to forget."""

    parent: Ino
    name: bytes
    told: trio.Event


class _Sorted(NamedTuple):
    """What becomes of the inodes of a slice."""

    gone: list[Ino]
    mapped: list[Ino]  # of them those with blocks
    linked: Counter[Ino]  # names lost by inodes that keep some
    orphans: list[Ino]  # stay without a name
    tops: list[Ino]  # directories that become tops
    file_bytes: int  # of what is gone


class TreeRemoval:
    """Removes trees of one mount."""

    def __init__(  # noqa: PLR0913 - its neighbours, wired once
        self,
        db: Database,
        cache: BlockCache,
        changes: Changes,
        status: MountStatus,
        *,
        namespace: Namespace,
        orphans: Orphans,
        lookups: LookupCounts,
        open_files: OpenFiles,
        now_ns: Callable[[], int],
    ) -> None:
        self._db = db
        self._cache = cache
        self._changes = changes
        self._status = status
        self._namespace = namespace
        self._orphans = orphans
        self._trees = orphans.trees
        self._lookups = lookups
        self._open_files = open_files
        self._now_ns = now_ns
        self._untold: deque[_Untold] = deque()
        self._untold_arrived = trio.Event()
        self._all_told = trio.Event()
        self._all_told.set()
        self.removed_names = 0  # since the mount, in the background
        self.on_changed: Callable[[Lost], None] = _tell_nobody
        self.forget_name: Callable[[Ino, bytes], Awaitable[None]] = _forget_nothing

    # --- the command ---------------------------------------------------------------------------

    def remove(self, parent: Ino, name: bytes, ino: Ino) -> trio.Event:
        """Remove a name and all that is below it.

        Args:
            parent: the directory.
            name: in it.
            ino: what the caller saw there: something else is left alone.

        Returns:
            What is set as soon as the kernel has forgotten the name, too.

        Raises:
            NoEntryError: it is not there (any more).
            ReadOnlyStateError, NoSpaceLeftError: nothing was changed.

        Schedule point: never.
        """
        self._status.require_writable()
        found = self._namespace.lookup(parent, name)
        if found is None or found.ino != ino:
            raise NoEntryError(parent, name)
        if not stat.S_ISDIR(found.mode):
            self._namespace.unlink(parent, name)
        elif not found.size_bytes:
            self._namespace.remove_directory(parent, name)
        else:
            self._remove_tree(parent, name, found)
        self.on_changed(Lost([], [ino]))
        return self.announce(parent, name)

    def announce(self, parent: Ino, name: bytes) -> trio.Event:
        """Let the kernel forget a name, what it knows below it, and the size of its directory.

        Returns:
            What is set when it has.
        """
        self.on_changed(Lost([], [parent]))
        return self._tell(parent, name)

    def _tell(self, parent: Ino, name: bytes) -> trio.Event:
        untold = _Untold(parent, name, trio.Event())
        self._untold.append(untold)
        self._untold_arrived.set()
        self._all_told = trio.Event()
        return untold.told

    def _remove_tree(self, parent: Ino, name: bytes, top: Attributes) -> None:
        now_ns = self._now_ns()
        self._changes.begin_removal(parent, name)
        dentries.remove(self._db, parent, name)
        inodes.change_directory(self._db, parent, now_ns, entries=-1, subdirectories=-1)
        trees.mark_removed(self._db, [top.ino], now_ns)
        self._trees.add(top.ino)

    # --- the background ------------------------------------------------------------------------

    async def run(self) -> None:
        """Take removed trees apart, until cancelled. After a failure the next mount goes on."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_telling)
            nursery.start_soon(self._run_slices)

    async def _run_telling(self) -> None:
        """Let the kernel forget names, and with them all that it knows below them.

        What it has forgotten before its turn goes with many others, and not one by one.
        """
        while True:
            await self._untold_arrived.wait()
            self._untold_arrived = trio.Event()
            while self._untold:
                parent, name, told = self._untold[0]
                await self.forget_name(parent, name)
                self._untold.popleft()
                told.set()
            self._all_told.set()

    async def _run_slices(self) -> None:
        while True:
            await self._trees.wait()
            await self._all_told.wait()
            if not self._status.writable or not self._has_room():
                await trio.sleep(TREE_PAUSE_S)
                continue
            began_s = trio.current_time()
            try:
                self._remove_slice()
            except S3fsError as exc:
                _log.exception("taking a removed tree apart failed")
                self._status.break_off(f"taking a removed tree apart failed: {exc}")
            await give_way(trio.current_time() - began_s)

    def _has_room(self) -> bool:
        """Return whether disk and log can take a slice: it may use half of the disk's reserve."""
        if self._db.wal_uncopied_bytes > TREE_WAL_BYTES_MAX:
            return False
        try:
            self._cache.disk.spend()
        except NoSpaceLeftError:
            return self._cache.disk.spare_bytes() >= -DISK_RESERVE_BYTES // 2
        return True

    def _remove_slice(self) -> None:
        """Remove some names and what they stand for, as one group. Schedule point: never."""
        self._db.commit()
        chosen = self._choose()
        now_ns = self._now_ns()
        self._db.begin()
        held = self._held([name.ino for name in chosen.names])
        if held:
            self._tell_names(name for name in chosen.names if name.ino in held)
        part = None if chosen.part is None else (chosen.part.parent, chosen.part.cookie)
        trees.remove_names(self._db, chosen.emptied, part)
        fates = _sort(chosen, held)
        if fates.linked or any(other.nlink > 1 for other in chosen.others.values()):
            self._drop_links(chosen, fates, now_ns)
        self._drop_contents(chosen, fates)
        trees.delete(self._db, fates.gone, fates.file_bytes)
        self._end_tops(chosen.emptied)
        if fates.tops:
            trees.mark_removed(self._db, fates.tops, now_ns)
        if fates.orphans:
            trees.orphan(self._db, fates.orphans, now_ns)
            self._tell_inodes(ino for ino in fates.orphans if self._open_files.find(ino))
        self._trees.finish(len(chosen.emptied))
        for top in fates.tops:
            self._trees.add(top)
        for ino in fates.orphans:
            self._orphans.unlinked(ino)
        self._db.commit()
        self.removed_names += len(chosen.names)

    def _choose(self) -> _Slice:
        """Return the names that go next: so many as a stretch may take, with their blocks."""
        parents = self._trees.last(TREE_SLICE_DIRECTORIES)
        names = trees.names(self._db, parents, TREE_SLICE_NAMES)
        is_all = len(names) < TREE_SLICE_NAMES
        others = trees.others(self._db, [name.ino for name in names if name.plain_bytes < 0])
        fitting = _fitting(names, others)
        if is_all and fitting == len(names):
            return _Slice(names, others, parents, None)
        names = names[:fitting]
        last = names[-1]
        return _Slice(names, others, parents[: parents.index(last.parent)], last)

    def _held(self, inos: Sequence[Ino]) -> set[Ino]:
        """Return those that the kernel knows, or that are open."""
        held = self._lookups.known_among(inos)
        if len(self._open_files):
            held.update(ino for ino in inos if self._open_files.find(ino) is not None)
        return held

    def _drop_links(self, chosen: _Slice, fates: _Sorted, now_ns: int) -> None:
        """Count the names that are left of what has, or had, several."""
        several = {
            ino for ino, other in chosen.others.items() if other.nlink > 1 and not _is_dir(other)
        }
        lost = Counter((name.ino, name.parent) for name in chosen.names if name.ino in several)
        trees.drop_links(self._db, lost)
        if fates.linked:
            trees.lose_names(self._db, fates.linked, chosen.others, now_ns)
            self._tell_inodes(self._held(list(fates.linked)))

    def _tell_names(self, names: Iterable[Name]) -> None:
        """Let the kernel forget names that it still has below the first, so that it lets go."""
        for each in names:
            name = dentries.name_at(self._db, each.parent, each.cookie)
            if name is not None:
                self._tell(each.parent, name)

    def _tell_inodes(self, inos: Iterable[Ino]) -> None:
        """Let the kernel ask again for link counts."""
        known = sorted(inos)
        if known:
            self.on_changed(Lost([], known))

    def _drop_contents(self, chosen: _Slice, fates: _Sorted) -> None:
        """Remove blocks, targets and attributes of what goes."""
        if fates.mapped:
            self._release(fates.mapped)
        gone = [chosen.others[ino] for ino in fates.gone if ino in chosen.others]
        trees.delete_targets(self._db, [each.ino for each in gone if stat.S_ISLNK(each.mode)])
        with_xattrs = [each.ino for each in gone if each.flags & InodeFlag.HAS_XATTRS]
        trees.delete_xattrs(self._db, with_xattrs)

    def _release(self, inos: Collection[Ino]) -> None:
        named = trees.unmap_all(self._db, inos)
        index = self._cache.index
        sealed = set()
        for block in named:
            held = index.get(block)
            if held is not None and held.state is BlockState.SEALED:
                sealed.add(block)  # on its way to a pack: the uploader ends it
        for freed in trees.drop_refs(self._db, named, sealed):
            self._cache.doom(freed.block)

    def _end_tops(self, emptied: Sequence[Ino]) -> None:
        """Remove directories without names; those that somebody has open stay as orphans."""
        held = self._held(emptied)
        if held:
            trees.emptied_in_use(self._db, held)
            for ino in held:
                self._orphans.unlinked(ino)
        ended = [ino for ino in emptied if ino not in held]
        trees.delete_xattrs(self._db, ended)
        trees.delete(self._db, ended, 0)


async def give_way(worked_s: float) -> None:
    """Let everybody else have a turn; if somebody used it, let them have half of the loop."""
    began_s = trio.current_time()
    await trio.lowlevel.checkpoint()
    if trio.current_time() - began_s > TREE_BUSY_S:
        await trio.sleep(worked_s)


def _is_dir(other: Other) -> bool:
    return stat.S_ISDIR(other.mode)


def _fitting(names: Sequence[Name], others: dict[Ino, Other]) -> int:
    """Return how many names have no more blocks than one stretch may release, at least one."""
    blocks = 0
    for count, name in enumerate(names):
        other = others.get(name.ino)
        if other is None or other.mapped_blocks > PURGE_BLOCKS_MAX:
            continue
        blocks += other.mapped_blocks
        if blocks > PURGE_BLOCKS_MAX:
            return count
    return len(names)


def _sort(chosen: _Slice, held: Collection[Ino]) -> _Sorted:
    """Decide what becomes of each inode."""
    plain = [name for name in chosen.names if name.plain_bytes >= 0]
    gone = [name.ino for name in plain if name.ino not in held]
    file_bytes = sum(name.plain_bytes for name in plain if name.ino not in held)
    orphans = [name.ino for name in plain if name.ino in held]
    fates = _Sorted(gone, [], Counter(), orphans, [], file_bytes)
    lost = Counter(name.ino for name in chosen.names if name.plain_bytes < 0)
    for ino, count in lost.items():
        other = chosen.others.get(ino)
        if other is not None:
            file_bytes += _put(fates, other, count, is_held=ino in held)
    return fates._replace(file_bytes=file_bytes)


def _put(fates: _Sorted, other: Other, count: int, *, is_held: bool) -> int:
    """Note the fate of one inode that is more than a plain file; return the file bytes that go."""
    if _is_dir(other) and (other.size_bytes or is_held):
        fates.tops.append(other.ino)
    elif not _is_dir(other) and other.nlink > count:
        fates.linked[other.ino] = count
    elif is_held or other.mapped_blocks > PURGE_BLOCKS_MAX:
        fates.orphans.append(other.ino)
    else:
        fates.gone.append(other.ino)
        if other.mapped_blocks:
            fates.mapped.append(other.ino)
        return other.size_bytes if stat.S_ISREG(other.mode) else 0
    return 0


async def _forget_nothing(_parent: Ino, _name: bytes) -> None:
    """Stand for a kernel that knows nothing."""
    await trio.lowlevel.checkpoint()


def _tell_nobody(_lost: Lost) -> None:
    """Hear what changed behind the kernel's back, and do nothing."""
