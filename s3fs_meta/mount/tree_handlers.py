"""Handlers of control requests that remove, copy or lock a tree.

Owns: converting messages to calls, and reporting progress to the client. Does not know: the
operations on trees themselves.
"""

import itertools
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from s3fs_meta.control.protocol import Handler, Message, Report
from s3fs_meta.errors import UsageError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.freeze import FreezeWish
from s3fs_meta.fs.removed_trees import TreeProgress
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.limits import FREEZE_S_MAX, TREE_FORGET_S_MAX, TREE_PAUSE_S
from s3fs_meta.model import Ino
from s3fs_meta.mount import control_api, mount_paths

BOUND: Final = frozenset({control_api.CLONE_FROZEN})
"""Commands that end if their client disconnects, because they block writers meanwhile."""


class TreeHandlers:
    """The tree handlers of one mount."""

    def __init__(
        self,
        filesystem: Filesystem,
        *,
        check_remount: Callable[[], object],
        collect: Callable[[], Awaitable[object]],
    ) -> None:
        """Begin without an operation.

        Args:
            filesystem: the filesystem that has the trees.
            check_remount: updates the status if the mount was remounted read-only.
            collect: makes the kernel write back dirty pages.
        """
        self._status = filesystem.status
        self._removal = filesystem.tree_removal
        self._clone = filesystem.tree_clone
        self._lock = filesystem.tree_lock
        self._freeze = filesystem.freeze
        self._settling: dict[int, trio.Event] = {}
        self._numbers = itertools.count(1)
        self._check_remount = check_remount
        self._collect = collect

    def handlers(self) -> dict[str, Handler]:
        """Return the handler of each command."""
        return {
            mount_paths.REMOVE: self._on_remove,
            control_api.CLONE: self._on_clone,
            control_api.CLONE_FROZEN: self._on_clone_frozen,
            control_api.SETTLED: self._on_settled,
            control_api.LOCK: self._on_lock,
        }

    def _require_kernel_writable(self) -> None:
        """Refuse a control request that changes files while the kernel's mount is read-only.

        Raises:
            ReadOnlyStateError: the mount was remounted read-only.
        """
        self._check_remount()
        self._status.require_kernel_writable()

    def figures(self) -> dict[str, Any]:
        """Return the progress of each tree operation; None for an operation that is not running."""
        return {
            "copying": _shown(self._clone.progress),
            "locking": _shown(self._lock.progress),
            "removing": _shown(self._removal.progress),
            "held_back": self._freeze.waiting,
        }

    async def _on_remove(self, arguments: Message, report: Report) -> Message:
        parent, name, ino = _entry(arguments)
        self._require_kernel_writable()
        locked = arguments.get("locked") is True
        await self._freeze.passed([parent, ino])
        forgotten = self._removal.remove(parent, name, ino, locked=locked)
        with trio.move_on_after(TREE_FORGET_S_MAX):
            await forgotten.wait()
        if arguments.get("wait") is True:
            await self.wait_for_removal(_throttled(report, "removing"))
        return {}

    async def wait_for_removal(self, show: Callable[[TreeProgress], None]) -> None:
        """Wait until every removed tree is emptied.

        Raises:
            ReadOnlyStateError: the mount no longer accepts changes.
        """
        while (progress := self._removal.progress) is not None:
            self._status.require_writable()
            show(progress)
            await trio.sleep(TREE_PAUSE_S)

    async def _on_clone(self, arguments: Message, report: Report) -> Message:
        await self._collect()
        return await self._copy(arguments, report, None)

    async def _on_clone_frozen(self, arguments: Message, report: Report) -> Message:
        """Copy a tree with its writers blocked; the client makes the kernel write back first."""
        limit_s = arguments.get("limit_s")
        if not isinstance(limit_s, int | float) or not 0 < limit_s <= FREEZE_S_MAX:
            raise UsageError(
                f"the time limit of a freeze must be above 0 and at most {FREEZE_S_MAX:g} s"
            )
        number = next(self._numbers)
        settled = self._settling[number] = trio.Event()

        async def settle() -> None:
            report({"held": number})
            await settled.wait()
            await self._collect()

        try:
            return await self._copy(arguments, report, FreezeWish(limit_s, settle))
        finally:
            del self._settling[number]

    async def _on_settled(self, arguments: Message, _report: Report) -> Message:
        """Let a frozen copy continue, unless its freeze has ended."""
        settled = self._settling.get(arguments.get("number", 0))
        if settled is not None:
            settled.set()
        return {}

    async def _copy(self, arguments: Message, report: Report, freeze: FreezeWish | None) -> Message:
        self._require_kernel_writable()
        source, target = (arguments.get(key) for key in ("source", "target"))
        if not isinstance(source, dict) or not isinstance(target, dict):
            raise UsageError("a copy needs source and target")
        parent, name, ino = _entry(source)
        entries = 1
        show = _throttled(report, "copying")

        def copied(progress: TreeProgress) -> None:
            nonlocal entries
            entries = progress.done
            show(progress)

        place, new = CloneTarget(parent, name), CloneTarget(*_entry(target)[:2])
        forgotten = await self._clone.clone(place, ino, new, copied, freeze=freeze)
        with trio.move_on_after(TREE_FORGET_S_MAX):
            await forgotten.wait()
        return {"entries": entries}

    async def _on_lock(self, arguments: Message, report: Report) -> Message:
        self._require_kernel_writable()
        show = _throttled(report, "locking")
        await self._collect()
        return {"entries": await self._lock.lock(*_entry(arguments), show)}


def _shown(progress: TreeProgress | None) -> dict[str, int] | None:
    return None if progress is None else progress._asdict()


def _throttled(report: Report, what: str) -> Callable[[TreeProgress], None]:
    """Return a function that reports progress to a client a few times per second."""
    next_s = 0.0

    def show(progress: TreeProgress) -> None:
        nonlocal next_s
        now_s = trio.current_time()
        if now_s >= next_s:
            next_s = now_s + TREE_PAUSE_S
            total = progress.done + progress.left
            report({"what": what, "done": progress.done, "total": total})

    return show


def _entry(arguments: Message) -> tuple[Ino, bytes, Ino]:
    """Return the directory entry in a message: parent, name and inode number.

    Raises:
        UsageError: a field is missing or has a wrong type.
    """
    parent, name, ino = (arguments.get(key) for key in ("parent", "name", "ino"))
    if not isinstance(parent, int) or not isinstance(ino, int) or not isinstance(name, str):
        raise UsageError("the name of an entry needs parent, name and ino")
    return Ino(parent), os.fsencode(name), Ino(ino)
