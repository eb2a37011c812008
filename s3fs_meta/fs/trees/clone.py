"""Copying a complete tree: rows are copied, content is shared.

Owns: ``s3fs-meta clone``. Slices build the copy below a directory without a dentry; the last step
adds the name. Does not know: FUSE, permissions, past points in time (``fs.past.past_clone``).
Keeps: a copy is complete or not visible. An unfinished copy is a removed tree, which ``remove``
deletes during this mount or the next. A dirty or sealed block is mapped at one file position only
(I42). A clone therefore copies this block on the local disk; the upload deduplicates the copy.
Tasks: one copy at a time, requested through the control socket.
Design: docs/design/semantics.md, "Trees".
"""

import contextlib
import stat
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import trio

from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.errors import (
    MetadataError,
    NoEntryError,
    PastUnavailableError,
    TooManyLinksError,
)
from s3fs_meta.fs.capacity import Capacity
from s3fs_meta.fs.namespace import Namespace
from s3fs_meta.fs.open_files import OpenFiles
from s3fs_meta.fs.orphans import Orphans
from s3fs_meta.fs.removed_trees import TreeProgress, until_checked
from s3fs_meta.fs.slices import Slices
from s3fs_meta.fs.trees.remove import TreeRemoval, wait_for_log, yield_to_tasks
from s3fs_meta.fs.write_gate import Changes
from s3fs_meta.limits import (
    LINKS_MAX,
    TREE_SLICE_DISK_BYTES,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, blocks, dentries, inodes
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.meta.trees import past_content, tree_copies
from s3fs_meta.meta.trees.inode_set import InodeSet
from s3fs_meta.meta.trees.tree_copies import LIVING, CopiedSlice, Origin, SourceDirectory
from s3fs_meta.model import ROOT_INO, Attributes, BlockIndex, Cookie, Ino, Txg
from s3fs_meta.mount_state import MountStatus


class CloneTarget(NamedTuple):
    """A name in a directory: the source or the target of a copy."""

    parent: Ino
    name: bytes


async def _do_nothing(_revived: int) -> None:
    """Do nothing. A copy of the present revives no packs, so it uses this callback."""
    await trio.lowlevel.checkpoint()


class _Work(NamedTuple):
    """The origin of a running copy, and the callbacks for its progress."""

    origin: Origin
    copied: Callable[[TreeProgress], None]  # callback for the progress after each slice
    revived: Callable[[int], Awaitable[None]]  # callback after a slice that revived packs


class _Piece(NamedTuple):
    """The blocks of a source file that one slice shares or copies, in ascending order."""

    parts: list[tuple[BlockIndex, Located]]
    dirty_bytes: int  # length of the blocks that are not uploaded yet


class _EndCheck:
    """A check that a copy ends: damaged rows may make a directory contain itself."""

    def __init__(self, db: Database, top: Ino, origin: Origin) -> None:
        self._db = db
        self._txg = origin.txg
        self._entered = InodeSet()
        self._entered.add(top)
        self._names = self._names_max = 0

    def require_end(self, done: CopiedSlice) -> None:
        """Raise an error if the source is not a tree.

        At a past point in time, each directory has one name. In the present, a directory that moves
        during the copy may be found twice, so only the number of names is limited.

        Raises:
            PastUnavailableError: a directory has two names, or contains itself.
            MetadataError: the copy has too many names, so the directories form a cycle.
        """
        if self._txg is not None:
            for directory in done.directories:
                if not self._entered.add(directory.old):
                    what = f"the directory with inode {directory.old} has two names, or contains"
                    raise PastUnavailableError(self._txg, f"{what} itself; no copy was made")
            return
        self._names += done.names
        others = self._db.counters.dentries - self._names  # names outside of the unfinished copy
        self._names_max = max(self._names_max, 2 * (others + 1))
        if self._names > self._names_max:
            raise MetadataError("the directories of a tree form a cycle", ROOT_INO)


class TreeClone:
    """Copies files and directory trees within one mount."""

    def __init__(  # noqa: PLR0913 - one argument per collaborator
        self,
        db: Database,
        cache: BlockCache,
        changes: Changes,
        status: MountStatus,
        *,
        namespace: Namespace,
        orphans: Orphans,
        removal: TreeRemoval,
        open_files: OpenFiles,
        now_ns: Callable[[], int],
        block_bytes: int,
        slices: Slices,
    ) -> None:
        self._db = db
        self._cache = cache
        self._changes = changes
        self._status = status
        self._namespace = namespace
        self._orphans = orphans
        self._removal = removal
        self._open_files = open_files
        self._now_ns = now_ns
        self._block_bytes = block_bytes
        self._slices = slices
        self._capacity = Capacity(db)
        self.one_at_a_time = trio.Lock()
        self.progress: TreeProgress | None = None

    async def clone(
        self,
        source: CloneTarget,
        ino: Ino,
        target: CloneTarget,
        copied: Callable[[TreeProgress], None],
    ) -> trio.Event:
        """Copy a file or tree to a new name.

        Args:
            source: the name to copy.
            ino: the expected inode of *source*; with any other inode the call fails.
            target: an unused name in an existing directory.
            copied: called after each slice with the progress.

        Returns:
            An event that is set once the kernel has dropped its cached entry for the new name.

        Raises:
            NoEntryError, NeedsDirectoryError, EntryExistsError, NameTooLongError,
            InvalidRequestError, NotPermittedError, TooManyLinksError, ReadOnlyStateError,
            NoSpaceLeftError: no copy was made.
            LostBlockError, NotLocalError: content is unavailable; no copy was made.
            MetadataError: the directories form a cycle; no copy was made.

        Always yields to other tasks.
        """
        async with self.one_at_a_time:
            find = partial(self._require_source, source, ino)
            return await self._clone(find, target, _Work(LIVING, copied, _do_nothing))

    async def clone_past(
        self,
        found: Attributes,
        txg: Txg,
        target: CloneTarget,
        copied: Callable[[TreeProgress], None],
        revived: Callable[[int], Awaitable[None]],
    ) -> trio.Event:
        """Copy a file or tree of a past point in time, whose database is attached, to a new name.

        The caller holds the lock ``one_at_a_time``, and protects the packs from deletion.

        Args:
            found: the inode at that point in time.
            revived: called after each slice that revived packs without live blocks.

        Raises:
            PastUnavailableError: some content was deleted or is damaged, or the directories are not
                a tree; no copy was made.
            The errors of ``clone``.

        Always yields to other tasks.
        """
        work = _Work(tree_copies.past(txg), copied, revived)
        return await self._clone(lambda: found, target, work)

    async def _clone(
        self, find: Callable[[], Attributes], target: CloneTarget, work: _Work
    ) -> trio.Event:
        def checked() -> Attributes:
            source = find()
            self.require_free(source, target)
            return source

        found = await until_checked(checked)
        new = self._begin(found, target, work.origin)
        try:
            directories = await self._build(found, new, work)
            appear = partial(self._appear, found, new, target, directories)
            return await until_checked(partial(appear, is_living=work.origin is LIVING))
        except BaseException:
            self._abandon(new)
            raise
        finally:
            self.progress = None

    def _require_source(self, source: CloneTarget, ino: Ino) -> Attributes:
        """Return the source inode, if the mount is writable and the name still has that inode."""
        self._status.require_writable()
        return self._namespace.require(*source, ino)

    def _require_left(self, source: Attributes, target: CloneTarget) -> None:
        """Raise NoEntryError if the source was removed during the copy."""
        left = inodes.find(self._db, source.ino)
        if left is None or not left.nlink:
            raise NoEntryError(source.parent, target.name)

    def require_free(self, source: Attributes, target: CloneTarget) -> Attributes:
        """Return the target directory; raise if the new name cannot be added to it."""
        self._status.require_writable()
        directory = self._namespace.require_free(*target)
        if stat.S_ISDIR(source.mode) and directory.nlink >= LINKS_MAX:
            raise TooManyLinksError(target.parent)
        return directory

    def _begin(self, source: Attributes, target: CloneTarget, origin: Origin) -> Ino:
        self._db.commit()
        with self._group():
            self._changes.begin(target.parent)
            tree_copies.begin(self._db)
            return tree_copies.copy_inode(self._db, origin, source, self._now_ns())

    def _abandon(self, new: Ino) -> None:
        """Turn an unfinished copy into a removed tree. Never yields to other tasks."""
        if self._status.writable and inodes.find(self._db, new) is not None:
            self._db.begin()
            self._orphans.unlinked(new)

    def _appear(
        self,
        source: Attributes,
        new: Ino,
        target: CloneTarget,
        directories: int,
        *,
        is_living: bool,
    ) -> trio.Event:
        """Give a finished copy its name; return the event that ``clone`` returns."""
        if is_living:
            self._require_left(source, target)
        self.require_free(source, target)
        is_directory = int(stat.S_ISDIR(source.mode))
        nlink = 2 + directories if is_directory else 1
        with self._group():
            self._changes.begin_entry(*target)
            dentries.add(self._db, *target, new)
            tree_copies.set_nlink_and_parent(self._db, new, target.parent, nlink)
            inodes.change_directory(
                self._db, target.parent, self._now_ns(), entries=1, subdirectories=is_directory
            )
        return self._removal.announce(*target)

    # --- create the copy -----------------------------------------------------------------------

    async def _build(self, source: Attributes, new: Ino, work: _Work) -> int:
        """Copy all names and contents; return the number of subdirectories of the copied directory."""
        if not stat.S_ISDIR(source.mode):
            if source.mapped_blocks:
                await self._copy_contents([(source.ino, new)], work)
            return 0
        waiting = [SourceDirectory(source.ino, new, Cookie(0))]
        end_check = _EndCheck(self._db, source.ino, work.origin)
        self.progress = TreeProgress(1, source.size_bytes)
        directories = 0
        while waiting:
            began_s = trio.current_time()
            taken = waiting[: -self._slices.directories - 1 : -1]
            done = self._copy_slice(taken, work.origin)
            del waiting[-len(taken) :]
            waiting += [*done.left[::-1], *done.directories]
            if any(each.new == new for each in taken):
                directories += tree_copies.directories_in(self._db, new)
            end_check.require_end(done)
            self.progress = self.progress.step(done.names, done.names_below)
            work.copied(self.progress)
            worked_s = trio.current_time() - began_s
            if done.revived:
                await work.revived(done.revived)
            await self._copy_contents(done.files, work)
            await yield_to_tasks(worked_s)
            await wait_for_log(self._db, self._changes)
        return directories

    def _copy_slice(self, taken: list[SourceDirectory], origin: Origin) -> CopiedSlice:
        """Copy some names in one commit group. Never yields to other tasks."""
        self._cache.disk.spend(TREE_SLICE_DISK_BYTES)
        with self._group():
            self._changes.begin(taken[0].new)
            done = tree_copies.copy_names(
                self._db,
                origin,
                taken,
                self._now_ns(),
                names_max=self._slices.cloned_names,
                blocks_max=self._slices.shared_blocks,
            )
        self._capacity.require_kept()
        return done

    @contextlib.contextmanager
    def _group(self) -> Iterator[None]:
        """Commit the changes of a ``with`` block in a separate commit group.

        If the block fails, only that group is undone. No caller has seen its changes, so the mount
        stays writable.
        """
        self._db.commit()
        try:
            yield
            self._db.commit()
        except PastUnavailableError:
            raise  # the with-block has changed no row, so there is nothing to undo
        except Exception:
            self._db.undo()
            raise

    # --- copy file content ---------------------------------------------------------------------

    async def _copy_contents(self, files: Sequence[tuple[Ino, Ino]], work: _Work) -> None:
        """Copy the content of files whose blocks were not shared with their names."""
        if work.origin.txg is None:
            await self._copy_living(files)
            return
        for old, new in files:
            await self._copy_past(old, new, work)

    async def _copy_past(self, old: Ino, new: Ino, work: _Work) -> None:
        """Share the blocks of a past file with its copy, in slices."""
        assert work.origin.txg is not None, "the origin is a past point in time"
        start: BlockIndex | None = BlockIndex(0)
        while start is not None:
            began_s = trio.current_time()
            self._cache.disk.spend(TREE_SLICE_DISK_BYTES)
            with self._group():
                self._changes.begin(new)
                start, revived = past_content.share_range(
                    self._db, work.origin.txg, old, new, start, self._slices.shared_blocks
                )
            self._capacity.require_kept()
            worked_s = trio.current_time() - began_s
            if revived:
                await work.revived(revived)
            await yield_to_tasks(worked_s)
            await wait_for_log(self._db, self._changes)

    async def _copy_living(self, files: Sequence[tuple[Ino, Ino]]) -> None:
        """Share or copy the blocks of present files.

        During the copy, the sources are treated as open. Otherwise a source file that is unlinked
        meanwhile would lose its blocks, and the copy would contain only zeros.
        """
        for old, _new in files:
            self._open_files.opened(old)
        try:
            for old, new in files:
                await self._copy_content(old, new)
        finally:
            for old, _new in files:
                if not self._open_files.closed(old):
                    self._orphans.unused(old)

    async def _copy_content(self, old: Ino, new: Ino) -> None:
        """Copy the blocks of a source file in slices, and finally its size.

        Content that is appended after the first slice is not copied. Otherwise the copy could
        contain zeros instead of content: an append between two slices may extend a copied block.
        """
        size_bytes = inodes.get(self._db, old).size_bytes
        end = BlockIndex(-(-size_bytes // self._block_bytes))
        after, reach = BlockIndex(0), 0
        while (piece := self._next_piece(old, after, end)).parts:
            if piece.dirty_bytes and not self._cache.find_room(piece.dirty_bytes):
                await self._cache.wait_for_room(piece.dirty_bytes)
                # Read the rows again: another task may have written to the source, or truncated it.
                piece = self._next_piece(old, after, end)
                if not piece.parts:
                    break
            began_s = trio.current_time()
            self._changes.begin(new)
            reach = self._copy_piece(new, piece, reach)
            after = BlockIndex(piece.parts[-1][0] + 1)
            self._db.commit()
            await yield_to_tasks(trio.current_time() - began_s)
        self._changes.begin(new)
        size_bytes = min(size_bytes, inodes.get(self._db, old).size_bytes)
        inodes.set_size(self._db, new, max(reach, size_bytes), 0)

    def _next_piece(self, old: Ino, after: BlockIndex, end: BlockIndex) -> _Piece:
        """Return the next blocks of a source file before *end*, as many as one slice takes."""
        found_indexes = block_map.indexes_from(self._db, old, after, self._slices.cloned_indexes)
        wanted = [one for one in found_indexes if one[0] < end]
        parts: list[tuple[BlockIndex, Located]] = []
        dirty_bytes = 0
        if wanted:
            found = block_map.locate_range(self._db, old, wanted[0][0], wanted[-1][0])
            for index, located in found.items():
                parts.append((index, located))
                dirty_bytes += 0 if located.hash is not None else located.plain_bytes
                if dirty_bytes >= self._slices.cloned_bytes:
                    break
        return _Piece(parts, dirty_bytes)

    def _copy_piece(self, new: Ino, piece: _Piece, reach: int) -> int:
        """Share or copy some blocks; return the end offset of the last block.

        The rows of the copy match its blocks even after an error. Otherwise blocks without a row
        would remain after the deletion of the unfinished copy.
        """
        size_bytes = inodes.get(self._db, new).size_bytes
        mapped = 0
        try:
            for index, located in piece.parts:
                self._give(new, index, located)
                mapped += 1
                reach = index * self._block_bytes + located.plain_bytes
        finally:
            if mapped and self._db.in_group:
                inodes.set_size(self._db, new, max(size_bytes, reach), mapped)
        return reach

    def _give(self, new: Ino, index: BlockIndex, located: Located) -> None:
        """Map a block into the copy of its file: share it if it is uploaded, otherwise copy it."""
        if located.hash is not None:
            blocks.add_ref(self._db, located.block)
            block_map.set(self._db, new, index, located.block)
            return
        self._capacity.require(located.plain_bytes)
        block = self._cache.copy_on_write(located, new, index, located.plain_bytes)
        # After a crash, this block must not be restored from the original: a write may change the
        # original in place.
        self._cache.copies.forget([block])
        block_map.set(self._db, new, index, block)
