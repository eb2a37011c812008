"""Removing a complete tree: the name disappears immediately; a background task frees the space.

Owns: ``s3fs-meta rm``. One operation removes the name and marks the directory as removed; slices
then delete its content. Does not know: FUSE, permissions.
Keeps: an inode that is open or has a lookup count becomes an orphan until it is unused. An inode
with names outside the tree keeps these names and has a correct link count. A crash leaves a smaller
removed tree, which the next mount continues to delete.
Tasks: ``remove`` is called through the control socket; one ``run`` per mount.
Design: docs/design/semantics.md, "Trees".
"""

import logging
import stat
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

import trio

from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.errors import (
    BadRowError,
    DamagedDatabaseError,
    NoSpaceLeftError,
    NotPermittedError,
    S3fsError,
    quoted,
)
from s3fs_meta.fs.lookup_counts import LookupCounts
from s3fs_meta.fs.namespace import Namespace
from s3fs_meta.fs.open_files import OpenFiles
from s3fs_meta.fs.orphans import Orphans
from s3fs_meta.fs.removed_trees import TreeProgress
from s3fs_meta.fs.slices import Slices
from s3fs_meta.fs.write_gate import Changes, Invalidations
from s3fs_meta.limits import (
    DISK_RESERVE_BYTES,
    TREE_BUSY_S,
    TREE_PAUSE_S,
    TREE_SLICE_DISK_BYTES,
    TREE_WAL_BYTES_MAX,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import damage_marks, dentries, inodes
from s3fs_meta.meta.trees import removed_trees
from s3fs_meta.meta.trees.removed_trees import Name, Scope, TopTally
from s3fs_meta.model import Attributes, BlockState, Ino, InodeFlag
from s3fs_meta.mount_state import MountStatus
from s3fs_meta.sync.chain import abandoned_txgs

_log = logging.getLogger(__name__)

_LOCKS: Final = InodeFlag.PROTECTED | InodeFlag.HOLDS_LOCKED
_SMALL_SHARE: Final = 4  # directories with at most 1/4 of a slice's names are removed together


class _Slice(NamedTuple):
    """The names that one commit group removes."""

    scope: Scope
    tallies: list[TopTally]  # plain files without a lookup count; one SQL statement removes them
    names: list[Name]  # names that are removed one by one
    inner: list[Ino]  # directories that this slice empties completely

    @property
    def entries(self) -> int:
        """Return the number of names that this slice of a removal removes."""
        return sum(tally.plain for tally in self.tallies) + len(self.names)

    def blocks(self, purged_max: int) -> int:
        """Return the number of blocks that the slice releases.

        Files with more than *purged_max* blocks are purged later.
        """
        return sum(
            name.mapped_blocks
            for name in self.names
            if name.mode is not None and name.mapped_blocks <= purged_max
        )


class _PendingForget(NamedTuple):
    """A removed name that the kernel may still cache."""

    parent: Ino
    name: bytes
    forgotten: trio.Event


class _Sorted(NamedTuple):
    """The inodes of a slice, grouped by the effect of the removal on each inode."""

    removed: list[Ino]  # inodes whose rows are deleted
    mapped: list[Ino]  # deleted files that had blocks
    linked: Counter[Ino]  # number of removed names of each inode that keeps other names
    orphans: list[Ino]  # inodes that become orphans, because the kernel still uses them
    tops: list[Ino]  # directories with entries or in use; each becomes the top of a removed tree
    file_bytes: int  # total size of the deleted files


class TreeRemoval:
    """Removes files and directory trees of one mount."""

    def __init__(  # noqa: PLR0913 - one argument per collaborator
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
        slices: Slices,
    ) -> None:
        self._db = db
        self._cache = cache
        self._changes = changes
        self._notices = changes.notices
        self._status = status
        self._namespace = namespace
        self._orphans = orphans
        self._trees = orphans.trees
        self._lookups = lookups
        self._open_files = open_files
        self._now_ns = now_ns
        self._to_forget: deque[_PendingForget] = deque()
        self._forget_requested = trio.Event()
        self.all_forgotten = trio.Event()
        self.all_forgotten.set()
        self._slices = slices
        self._names_max = slices.names

    # --- remove trees on request ---------------------------------------------------------------

    def remove(self, parent: Ino, name: bytes, ino: Ino, *, locked: bool = False) -> trio.Event:
        """Remove a name; ``run`` then deletes everything below it.

        Args:
            parent: the directory that contains the name.
            name: the name to remove.
            ino: the expected inode of the name; with any other inode the call fails.
            locked: permit the removal even if the inode is protected, or the tree contains or once
                contained protected inodes.

        Returns:
            An event that is set once the kernel has dropped the name from its cache.

        Raises:
            NoEntryError: the name does not exist, or refers to another inode.
            NotPermittedError: the inode or its directory is protected, or the tree contains or once
                contained protected inodes.
            ReadOnlyStateError, NoSpaceLeftError: nothing was changed.
            UnfinishedWalkError: as in ``RemovedTrees.hold``; nothing was changed.

        Never yields to other tasks.
        """
        self._status.require_writable()
        found = self._namespace.require(parent, name, ino)
        if inodes.get(self._db, parent).flags & InodeFlag.PROTECTED:
            raise NotPermittedError(
                f"the directory of {quoted(name)} is locked, immutable or append-only, so no name in it"
                " can be removed; s3fs-meta rm --locked removes a locked tree only as a whole"
            )
        if found.flags & _LOCKS and not locked:
            raise NotPermittedError(
                f"the entry {quoted(name)} is protected, or its tree contains or once contained a locked,"
                " immutable or append-only inode; s3fs-meta rm --locked removes it"
            )
        protection = found.flags & InodeFlag.PROTECTED
        if protection:
            self._db.begin()
            inodes.set_flag(self._db, ino, protection, on=False)
        # True if the inode remains and needs its flags, because the file has other names.
        is_kept = not stat.S_ISDIR(found.mode) and found.nlink > 1
        try:
            self._remove_found(parent, name, found)
        except S3fsError:
            is_kept = True
            raise
        finally:
            # Set the flag again. If the commit group was lost, the row still has the flag.
            if protection and is_kept and self._db.in_group:
                inodes.set_flag(self._db, ino, protection, on=True)
        self._notices.changed(Invalidations([], [ino]))
        return self.announce(parent, name)

    def _remove_found(self, parent: Ino, name: bytes, found: Attributes) -> None:
        if not stat.S_ISDIR(found.mode):
            self._namespace.unlink(parent, name)
        elif not found.size_bytes:
            self._namespace.remove_directory(parent, name)
        else:
            self._remove_tree(parent, name, found)

    def announce(self, parent: Ino, name: bytes) -> trio.Event:
        """Make the kernel drop a name, everything below it, and its directory's attributes.

        Returns:
            An event that is set once the kernel has dropped the name.
        """
        self._notices.changed(Invalidations([], [parent]))
        return self._forget_name(parent, name)

    def _forget_name(self, parent: Ino, name: bytes) -> trio.Event:
        pending = _PendingForget(parent, name, trio.Event())
        self._to_forget.append(pending)
        self._forget_requested.set()
        if self.all_forgotten.is_set():  # otherwise ``_run_slices`` may wait for this event
            self.all_forgotten = trio.Event()
        return pending.forgotten

    def _remove_tree(self, parent: Ino, name: bytes, top: Attributes) -> None:
        now_ns = self._now_ns()
        self._changes.begin_removal(parent, name)
        dentries.remove(self._db, parent, name)
        inodes.change_directory(self._db, parent, now_ns, entries=-1, subdirectories=-1)
        removed_trees.mark_removed(self._db, [top.ino], now_ns)
        self._trees.add(top.ino, top.size_bytes)
        self._trees.restart_checks()

    @property
    def progress(self) -> TreeProgress | None:
        """Return the progress of the background task, or None if it is idle."""
        return self._trees.progress

    # --- remove trees in the background --------------------------------------------------------

    async def run(self) -> None:
        """Delete removed trees, until cancelled. After a failure the next writer continues."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_forgetting)
            nursery.start_soon(self._run_slices)

    async def _run_forgetting(self) -> None:
        """Make the kernel drop removed names, and its cached entries below them.

        Slices wait for this task, because only inodes without a lookup count are deleted in bulk.
        After a failure the next run begins with the name that was not dropped.
        """
        while True:
            while self._to_forget:
                parent, name, forgotten = self._to_forget[0]
                await self._notices.forget_name(parent, name)
                self._to_forget.popleft()
                forgotten.set()
            self.all_forgotten.set()
            await self._forget_requested.wait()
            self._forget_requested = trio.Event()

    async def _run_slices(self) -> None:
        while True:
            await self._trees.wait()
            await self.all_forgotten.wait()
            if not self._status.writable or not self._has_room():
                await trio.sleep(TREE_PAUSE_S)
                continue
            began_s, before = trio.current_time(), self._db.rows_changed()
            try:
                self.remove_slice()
            except (BadRowError, DamagedDatabaseError) as exc:
                if self._db.rows_changed() != before:
                    self._status.break_off(f"deleting a removed tree failed: {exc}")
                tops = len(self._trees.last(self._slices.directories))
                _log.error(
                    "cannot free the space of %d removed trees: %s; the next mount tries again",
                    tops,
                    exc,
                )
                self._trees.finish(tops)
            except S3fsError as exc:
                _log.exception("deleting a removed tree failed")
                self._status.break_off(f"deleting a removed tree failed: {exc}")
            await yield_to_tasks(trio.current_time() - began_s)

    def _has_room(self) -> bool:
        """Return whether the disk and the WAL have room for a slice.

        A slice may use half of the disk's reserve.
        """
        if self._db.wal_uncopied_bytes > TREE_WAL_BYTES_MAX:
            return False
        try:
            self._cache.disk.spend(TREE_SLICE_DISK_BYTES)
        except NoSpaceLeftError:
            return self._cache.disk.spare_bytes() >= -DISK_RESERVE_BYTES // 2
        return True

    def remove_slice(self) -> None:
        """Remove some names and their inodes in one commit. Never yields to other tasks."""
        self._db.commit()
        chosen = self._choose()
        now_ns = self._now_ns()
        held = self._held([name.ino for name in chosen.names])
        if held:
            self._forget_names(name for name in chosen.names if name.ino in held)
        inner = set(chosen.inner)
        names = [name for name in chosen.names if name.ino not in inner]
        fates = _sort(names, held, self._slices.purged_blocks)
        self._db.begin()
        removed_trees.delete_plain(self._db, chosen.tallies)
        removed_trees.remove_names(self._db, chosen.scope)
        if chosen.inner:
            removed_trees.remove_names(self._db, Scope(chosen.inner, None))
        if names:
            self._drop_links(names, fates, now_ns)
            self._drop_contents(names, fates)
            removed_trees.delete(self._db, fates.removed, fates.file_bytes)
        ended = chosen.scope.parents if chosen.scope.until is None else []
        self._end_tops([*ended, *chosen.inner])
        self._note_fates(fates, now_ns)
        self._trees.finish(len(ended))
        for top in fates.tops:
            self._trees.add(top)
        for ino in fates.orphans:
            self._orphans.unlinked(ino)
        self._db.commit()
        found = sum(name.size_bytes for name in chosen.names if _is_dir(name))
        self._trees.emptied(chosen.entries, found)

    def _note_fates(self, fates: _Sorted, now_ns: int) -> None:
        """Mark inodes that cannot be deleted yet as orphans or as removed trees."""
        if fates.tops:
            removed_trees.mark_removed(self._db, fates.tops, now_ns)
        if fates.orphans:
            removed_trees.orphan(self._db, fates.orphans, now_ns)
            self._invalidate_inodes(ino for ino in fates.orphans if self._open_files.find(ino))

    def _choose(self) -> _Slice:
        """Return the next slice, which is as large as the limits for names and blocks allow."""
        tops = self._trees.last(self._slices.directories)
        purged_max, most = self._slices.purged_blocks, self._slices.names
        names_max = min(self._names_max, most)
        chosen = self._select(removed_trees.scope(self._db, tops, names_max))
        while names_max > 1 and chosen.blocks(purged_max) > purged_max:
            names_max //= 2
            chosen = self._select(removed_trees.scope(self._db, tops, names_max))
        sizes = [name.size_bytes for name in chosen.names if _is_dir(name)]
        total = chosen.entries + sum(sizes)
        if sizes and total > most >= _SMALL_SHARE * max(sizes):
            # Choose fewer names, so that the entries of all chosen subdirectories fit too.
            names_max = max(most * chosen.entries // total, 1)
            chosen = self._select(removed_trees.scope(self._db, tops, names_max))
            self._names_max = names_max
        elif 2 * chosen.blocks(purged_max) > purged_max:
            self._names_max = names_max
        else:
            self._names_max = 2 * names_max
        return self._with_inner(chosen)

    def _select(self, scope: Scope) -> _Slice:
        """Separate names that one SQL statement removes from names that are checked one by one."""
        fast: list[TopTally] = []
        names: list[Name] = []
        for tally in removed_trees.tally(self._db, scope):
            if self._may_be_held(tally):
                names += removed_trees.others(self._db, tally.parent, scope.until, plain=True)
                continue
            fast.append(tally)
            if tally.names > tally.plain:
                names += removed_trees.others(self._db, tally.parent, scope.until)
        return _Slice(scope, fast, names, [])

    def _with_inner(self, chosen: _Slice) -> _Slice:
        """Add all entries of small directories, so that the slice removes complete directories."""
        room = left = self._slices.names - chosen.entries
        small: list[Ino] = []
        for name in chosen.names:
            if _is_dir(name) and 0 < name.size_bytes <= left and not self._held([name.ino]):
                left -= name.size_bytes
                small.append(name.ino)
        inner = removed_trees.complete(self._db, small, room)
        if not inner:
            return chosen
        below = self._select(Scope(inner, None))
        purged_max = self._slices.purged_blocks
        if chosen.blocks(purged_max) + below.blocks(purged_max) > purged_max:
            return chosen
        return _Slice(
            chosen.scope,
            [*chosen.tallies, *below.tallies],
            [*chosen.names, *below.names],
            inner,
        )

    def _may_be_held(self, tally: TopTally) -> bool:
        """Return whether any of the plain files in *tally* may be open or have a lookup count."""
        first, last = tally.first, tally.last
        if first is None or last is None:
            return False
        return self._lookups.may_know_between(first, last) or self._open_files.any_between(
            first, last
        )

    def _held(self, inos: Sequence[Ino]) -> set[Ino]:
        """Return the inodes that are open or have a lookup count."""
        held = self._lookups.known_among(inos)
        if len(self._open_files):
            held.update(ino for ino in inos if self._open_files.find(ino) is not None)
        return held

    def _drop_links(self, names: Sequence[Name], fates: _Sorted, now_ns: int) -> None:
        """Update the link counts of files that had several names before the slice."""
        several = [name for name in names if name.mode and name.nlink > 1 and not _is_dir(name)]
        if not several:
            return
        removed_trees.drop_links(self._db, Counter((name.ino, name.parent) for name in several))
        if fates.linked:
            before = {name.ino: name for name in several}
            removed_trees.lose_names(self._db, fates.linked, before, now_ns)
            self._invalidate_inodes(self._held(list(fates.linked)))

    def _forget_names(self, names: Iterable[Name]) -> None:
        """Make the kernel drop cached names of the tree, so that it releases their inodes."""
        for each in names:
            if each.cookie is None:
                continue
            name = dentries.name_at(self._db, each.parent, each.cookie)
            if name is not None:
                self._forget_name(each.parent, name)

    def _invalidate_inodes(self, inos: Iterable[Ino]) -> None:
        """Invalidate attributes in the kernel, so that it requests the link counts again."""
        known = sorted(inos)
        if known:
            self._notices.changed(Invalidations([], known))

    def _drop_contents(self, names: Sequence[Name], fates: _Sorted) -> None:
        """Release the blocks of deleted inodes, and remove their symlink targets and xattrs."""
        if fates.mapped:
            self._release(fates.mapped)
        removed = set(fates.removed)
        links = {each.ino for each in names if each.mode and stat.S_ISLNK(each.mode)}
        removed_trees.delete_targets(self._db, links & removed)
        flagged = {each.ino for each in names if each.mode and each.flags & InodeFlag.HAS_XATTRS}
        removed_trees.delete_xattrs(self._db, flagged & removed)

    def _release(self, inos: Collection[Ino]) -> None:
        named = removed_trees.unmap_all(self._db, inos)
        index, is_last_copy = self._cache.index, self._cache.evictor.is_last_copy
        has_marks = damage_marks.exist(self._db)
        sealed, last_copies = set(), set()
        for block in named:
            held = index.get(block)
            if held is not None and held.state is BlockState.SEALED:
                sealed.add(block)  # keep the row: the uploader deletes the block after the upload
            elif has_marks and held is not None and is_last_copy(block):
                last_copies.add(block)
        dropped = removed_trees.drop_refs(self._db, named, sealed)
        if dropped.skipped:
            # Other hosts could not release these blocks with a changelog, or would delete them.
            abandoned_txgs.want(self._db, "rows of blocks of removed files are damaged")
        for freed in dropped.freed:
            if freed.block in last_copies:
                # Keep the block file until the next sync, because a crash may restore its row.
                index.move(freed.block, BlockState.UPLOADED)
            self._cache.doom(freed.block)
        # The uploader deletes these blocks instead of uploading them.
        index.unnamed.update(removed_trees.without_refs(self._db, sealed))

    def _end_tops(self, emptied: Sequence[Ino]) -> None:
        """Delete empty directories; a directory that the kernel still uses becomes an orphan."""
        held = self._held(emptied)
        if held:
            removed_trees.emptied_in_use(self._db, held)
            for ino in held:
                self._orphans.unlinked(ino)
        ended = [ino for ino in emptied if ino not in held]
        removed_trees.delete_xattrs(self._db, ended)
        removed_trees.delete(self._db, ended, 0)


async def wait_for_log(db: Database, changes: Changes) -> None:
    """Wait until a background sync has copied enough of the WAL, to bound the size of the WAL.

    Raises:
        ReadOnlyStateError, NoSpaceLeftError: the mount accepts no changes, so no sync follows.
    """
    while db.wal_uncopied_bytes > TREE_WAL_BYTES_MAX:  # noqa: ASYNC110 - a sync sets no event
        changes.require()
        await trio.sleep(TREE_PAUSE_S)


async def yield_to_tasks(worked_s: float) -> None:
    """Let other tasks run; if they had work, sleep for *worked_s* seconds."""
    began_s = trio.current_time()
    await trio.lowlevel.checkpoint()
    if trio.current_time() - began_s > TREE_BUSY_S:
        await trio.sleep(worked_s)


def _is_dir(name: Name) -> bool:
    return stat.S_ISDIR(name.mode or 0)


def _sort(names: Sequence[Name], held: Collection[Ino], purged_max: int) -> _Sorted:
    """Group inodes by how the removal affects them; skip names without an inode."""
    fates = _Sorted([], [], Counter(), [], [], 0)
    lost = Counter(name.ino for name in names)
    file_bytes = sum(
        _put(
            fates,
            name,
            lost[name.ino],
            is_held=name.ino in held,
            is_large=name.mapped_blocks > purged_max,
        )
        for name in {name.ino: name for name in names if name.mode is not None}.values()
    )
    return fates._replace(file_bytes=file_bytes)


def _put(fates: _Sorted, name: Name, count: int, *, is_held: bool, is_large: bool) -> int:
    """Add one inode to the matching list; return the size of the inode if a file is deleted.

    Args:
        fates: the lists to extend.
        name: one of the inode's names.
        count: number of removed names of the inode.
        is_held: whether the inode is open or has a lookup count.
        is_large: whether the inode has more blocks than a slice releases.
    """
    is_directory = _is_dir(name)
    if is_directory and (name.size_bytes or is_held):
        fates.tops.append(name.ino)
    elif not is_directory and name.nlink > count:
        fates.linked[name.ino] = count
    elif is_held or is_large:
        fates.orphans.append(name.ino)
    else:
        fates.removed.append(name.ino)
        if name.mapped_blocks:
            fates.mapped.append(name.ino)
        return name.size_bytes if stat.S_ISREG(name.mode or 0) else 0
    return 0
