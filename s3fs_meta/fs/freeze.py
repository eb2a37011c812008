"""Holding back those who write in one tree, so that a copy of it is of one moment.

Owns: which tree is held, who waits, for how long at most. Does not know: FUSE, which requests
change something (``fuse.held_back``), what is done meanwhile.
Two steps. In the first nobody begins a change, but what the kernel has taken already may still
come: it is asked to hand that over. In the second that waits, too.
What passes in the first step is a consistent cut: a program that waits can have shown nobody what
it did not do, and whoever goes on has seen nothing of it.
Keeps: somebody always answers those who read: if more wait than may, the hold ends and they go on.
Tasks: one ``hold`` at a time (``TreeClone``); any number of handlers wait.
Design: docs/design/semantics.md, "Trees".
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

import trio

from s3fs_meta.errors import FreezeEndedError, MetadataError
from s3fs_meta.limits import DIRECTORY_DEPTH_MAX, HELD_BACK_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import hard_links, inodes
from s3fs_meta.model import ROOT_INO, Ino


class FreezeWish(NamedTuple):
    """How somebody wants a tree to be held."""

    limit_s: float
    settle: Callable[[], Awaitable[None]]  # has the kernel hand over what it took before


class Freeze:
    """The one tree of a mount whose writers wait, if there is one."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._top: Ino | None = None
        self._is_still = False
        self._ended = trio.Event()
        self._waiting = 0
        self._give_up: Callable[[str], None] = _nobody
        self.on_change: Callable[[bool], None] = _nothing

    @property
    def is_held(self) -> bool:
        """Return whether there is such a tree."""
        return self._top is not None

    @property
    def is_still(self) -> bool:
        """Return whether what the kernel took before waits, too."""
        return self._is_still

    @property
    def waiting(self) -> int:
        """Return how many wait."""
        return self._waiting

    @contextlib.contextmanager
    def hold(self, top: Ino, limit_s: float) -> Iterator[None]:
        """Let those who write in a tree wait, until the block is left.

        Raises:
            FreezeEndedError: the block took too long, or too many wait; it was cancelled.
        """
        assert self._top is None, "one tree is held at a time"
        why = f"those who write were held back for {limit_s:g} s, the most that was allowed"

        def give_up(reason: str) -> None:
            nonlocal why
            why = reason
            scope.cancel()

        with trio.move_on_after(limit_s) as scope:
            self._begin(top, give_up)
            try:
                yield
            finally:
                self._end()
        if scope.cancelled_caught:
            raise FreezeEndedError(why)

    def _begin(self, top: Ino, give_up: Callable[[str], None]) -> None:
        self._top, self._give_up = top, give_up
        self._ended = trio.Event()
        self.on_change(True)

    def _end(self) -> None:
        self._top, self._is_still, self._give_up = None, False, _nobody
        self.on_change(False)
        self._ended.set()

    def still(self) -> None:
        """Hold back what the kernel took before, as well: all that was wanted has come."""
        self._is_still = True

    async def passed(self, inos: Sequence[Ino]) -> None:
        """Return as soon as none of some inodes is in a tree that is held.

        Schedule point: only if one is.
        """
        while self._top is not None and any(self._holds(ino) for ino in inos):
            if self._waiting >= HELD_BACK_MAX:
                self._give_up(f"{self._waiting} requests wait to write, the most that may")
                self._end_early()
                return
            self._waiting += 1
            try:
                await self._ended.wait()
            finally:
                self._waiting -= 1

    def _end_early(self) -> None:
        """Let everybody go on now, before whoever holds the tree has noticed."""
        self._top = None
        self._ended.set()

    def _holds(self, ino: Ino) -> bool:
        """Return whether an inode is the top of the tree or, by any of its names, below it."""
        found = inodes.find(self._db, ino)
        if ino == self._top or found is None:
            return ino == self._top
        if found.nlink > 1 and hard_links.has_rows(self._db, ino):
            return any(
                self._is_below(parent) for parent, _names in hard_links.parents(self._db, ino)
            )
        return self._is_below(ino)

    def _is_below(self, ino: Ino) -> bool:
        at = ino
        for _ in range(DIRECTORY_DEPTH_MAX):
            if at == self._top:
                return True
            found = inodes.find(self._db, at)
            if at == ROOT_INO or found is None or not found.nlink:
                return False
            at = found.parent
        raise MetadataError("its directories form a loop", ino)


def _nothing(_is_held: bool) -> None:
    """Hear that a tree is held, or not any more."""


def _nobody(_why: str) -> None:
    """Hold nothing that could be given up."""
