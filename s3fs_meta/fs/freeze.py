"""Freezing a subtree: its writers are blocked while it is cloned, so that the copy is consistent.

Owns: which tree is frozen, the requests that wait, the time limit. Does not know: FUSE, which
requests are changes (``fuse.held_back``), the work that is done during a freeze.
A freeze has two steps. In the first step no process can begin a change, but the kernel writes back
changes that it accepted before the freeze. In the second step such changes are blocked, too.
The changes before the second step form a consistent cut: no process has seen the result of a blocked
change, so no completed change depends on a blocked one.
Keeps: a worker is always free for reads. If too many requests wait, the freeze ends and they proceed.
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
    """The arguments of a request to freeze a tree."""

    limit_s: float  # longest time for which writers are blocked
    settle: Callable[[], Awaitable[None]]  # makes the kernel write back earlier changes


class Freeze:
    """The frozen tree of a mount; at most one at a time."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._top: Ino | None = None
        self._is_still = False
        self._ended = trio.Event()
        self._waiting = 0
        self._give_up: Callable[[str], None] = _ignore_reason
        self._listeners: list[Callable[[bool], None]] = []

    def when_changed(self, listener: Callable[[bool], None]) -> None:
        """Call a function with True when a freeze begins, and with False when it ends."""
        self._listeners.append(listener)

    @property
    def is_held(self) -> bool:
        """Return whether a tree is frozen."""
        return self._top is not None

    @property
    def is_still(self) -> bool:
        """Return whether changes that the kernel accepted before the freeze are blocked, too."""
        return self._is_still

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait for the end of the freeze."""
        return self._waiting

    @contextlib.contextmanager
    def hold(self, top: Ino, limit_s: float) -> Iterator[None]:
        """Block the writers of a tree until the context is left.

        Raises:
            FreezeEndedError: the body took too long, or too many requests wait; it was cancelled.
        """
        assert self._top is None, "at most one tree is frozen"
        why = f"writers were blocked for {limit_s:g} s, the time limit of the freeze"

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
        for listener in self._listeners:
            listener(True)

    def _end(self) -> None:
        self._top, self._is_still, self._give_up = None, False, _ignore_reason
        for listener in self._listeners:
            listener(False)
        self._ended.set()

    def still(self) -> None:
        """Begin the second step: also block changes that the kernel accepted before the freeze."""
        self._is_still = True

    async def passed(self, inos: Sequence[Ino]) -> None:
        """Wait until none of these inodes is in a frozen tree.

        Schedule point: only if an inode is in a frozen tree.
        """
        while self._top is not None and any(self._holds(ino) for ino in inos):
            if self._waiting >= HELD_BACK_MAX:
                self._give_up(f"{self._waiting} blocked requests wait, the limit of a freeze")
                self._end_early()
                return
            self._waiting += 1
            try:
                await self._ended.wait()
            finally:
                self._waiting -= 1

    def _end_early(self) -> None:
        """Release all writers now, before the task that holds the freeze is cancelled."""
        self._top = None
        self._ended.set()

    def _holds(self, ino: Ino) -> bool:
        """Return whether an inode is the top of the frozen tree or, by any of its names, below it."""
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
        raise MetadataError("the directories above it form a loop", ino)


def _ignore_reason(_why: str) -> None:
    """Ignore the end of a freeze, because no tree is frozen."""
