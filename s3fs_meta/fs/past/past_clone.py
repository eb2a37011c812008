"""Copying a tree of a past point in time into the filesystem: ``s3fs-meta clone --at``.

Owns: the order of the steps: open the point in time, hold its packs, check them, copy.
Does not know: rows (``meta.trees.past_content``), slices (``fs.trees.clone``), requests of users.
Keeps: no content is downloaded. If content of the tree is not retained, or is damaged, nothing
changes. Packs of the copy are *held*, in memory, from before the check until the copy has its name
or becomes a removed tree. A held pack is never condemned, and the check refuses condemned packs.
Tasks: one copy at a time, including copies of the present state.
Design: docs/design/durability.md, "Copies of the past".
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial

import trio

from s3fs_meta.background_task import in_thread, in_thread_or_here
from s3fs_meta.cache.slices import slices
from s3fs_meta.errors import PastUnavailableError
from s3fs_meta.fs.past.open_points import OpenPoint, OpenPoints
from s3fs_meta.fs.removed_trees import TreeProgress, until_checked
from s3fs_meta.fs.trees.clone import CloneTarget, TreeClone
from s3fs_meta.limits import REVIVED_PACKS_MAX, WALK_SLICE_BLOCKS
from s3fs_meta.meta.db.attached import attached
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.trees import past_content
from s3fs_meta.meta.trees.past_survey import PastSurvey
from s3fs_meta.model import Attributes, BlockId, Ino, ObjectKey, PackId, Txg

Find = Callable[[Database], Attributes]
"""A function that finds the inode to copy in a past database, and raises if none exists."""


class PastClone:
    """Copies trees from past points in time into the present filesystem."""

    def __init__(
        self,
        db: Database,
        points: OpenPoints,
        clone: TreeClone,
        ship: Callable[[], Awaitable[object]],
        *,
        revived_packs_max: int = REVIVED_PACKS_MAX,
        slice_blocks: int = WALK_SLICE_BLOCKS,
    ) -> None:
        """Store the parts of the mount.

        Args:
            points: opens points in time.
            clone: copies the rows.
            ship: uploads all changes.
            revived_packs_max: the maximum number of revived packs that one changelog may list.
            slice_blocks: the number of blocks to check at a time.
        """
        self._db = db
        self._revived_packs_max = revived_packs_max
        self._slice_blocks = slice_blocks
        self._points = points
        self._clone = clone
        self._ship = ship
        self._unreported = 0  # number of revived packs that the next changelog must list

    async def clone(
        self,
        txg: Txg,
        find: Find,
        target: CloneTarget,
        copied: Callable[[TreeProgress], None],
    ) -> trio.Event:
        """Copy a file or tree as it was at the end of a txg to a new name.

        Args:
            txg: the number of a retained txg.
            find: finds the file or tree.
            target: an unused name in an existing directory.
            copied: called after each slice with the progress.

        Returns:
            An event that is set once the kernel has dropped its cached entry for the new name.

        Raises:
            StoreError: the bucket cannot be reached.
            PastUnavailableError: the point in time cannot be read, or content of the tree was
                deleted or is damaged; no copy was made.
            The errors of *find* and ``TreeClone.clone``: no copy was made.

        Always yields to other tasks.
        """
        async with self._clone.one_at_a_time, self._points.kept_open(txg) as point:
            found = find(point.db)
            await until_checked(partial(self._clone.require_free, found, target))
            if point.db.cookie_key != self._db.cookie_key:
                raise PastUnavailableError(
                    txg,
                    "fsck has rebuilt the filesystem since that txg, so the positions of names in"
                    " directories have changed; copy from .snapshots, or use s3fs-meta restore",
                )
            with self._held():
                await self._require_content(point, txg, found.ino)
                with attached(self._db, point.db.path):
                    return await self._clone.clone_past(found, txg, target, copied, self._revived)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """At the end of a ``with`` block, permit garbage collection of the copied packs again."""
        assert not self._db.held_packs, "only one copy from the past runs at a time"
        try:
            yield
        finally:
            self._db.hold_packs(())

    async def _require_content(self, point: OpenPoint, txg: Txg, top: Ino) -> None:
        """Protect a tree's packs from deletion; refuse the copy if some content is unavailable."""
        survey = await in_thread(PastSurvey, point.db.path, txg, top)
        try:
            packs = await in_thread(survey.packs)
            if packs is None:
                raise past_content.unavailable(self._db, txg, None)
            self._db.hold_packs(packs)
            doubtful = [
                pack
                for piece in slices(list(packs.items()))
                for pack in await self._doubtful(piece)
            ]
            if doubtful:
                await in_thread(survey.choose, doubtful)
                await self._require_blocks(survey, txg, packs)
        finally:
            with trio.CancelScope(shield=True):
                await in_thread_or_here(survey.close)

    async def _doubtful(self, packs: Iterable[tuple[PackId, ObjectKey]]) -> list[PackId]:
        """Return the packs that may contain unavailable blocks."""
        await trio.lowlevel.checkpoint()
        return [one for one, key in packs if not past_content.is_retained(self._db, one, key)]

    async def _require_blocks(
        self, survey: PastSurvey, txg: Txg, packs: Mapping[PackId, ObjectKey]
    ) -> None:
        """Refuse the copy if one of the given blocks is not in a retained, intact pack."""
        after, read = BlockId(0), survey.blocks_after
        while rows := await in_thread(read, after, self._slice_blocks):
            for piece in slices(rows):
                await trio.lowlevel.checkpoint()
                for row in piece:
                    assert row.pack is not None, "the survey chose the blocks by their packs"
                    if not past_content.is_available(self._db, row, packs[row.pack]):
                        raise past_content.unavailable(self._db, txg, packs[row.pack])
            after = rows[-1].block

    async def _revived(self, count: int) -> None:
        """Upload all changes before the next changelog lists more revived packs than it may."""
        self._unreported += count
        if self._unreported >= self._revived_packs_max:
            self._unreported = 0
            await self._ship()
