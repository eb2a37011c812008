"""The daemon's handlers of control requests that remove, copy or lock a tree.

Owns: converting messages to calls, and reporting progress to the client. Does not know: how the
operations on trees are carried out.
"""

import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from s3fs_meta.control.protocol import Handler, Message, Report
from s3fs_meta.errors import HeldError, S3fsError, UsageError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.removed_trees import TreeProgress, until_checked
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.fuse.error_boundary import broken, failed
from s3fs_meta.limits import TREE_PAUSE_S
from s3fs_meta.model import Ino
from s3fs_meta.mount.existing import mount_paths
from s3fs_meta.mount.limits import TREE_FORGET_S_MAX
from s3fs_meta.mount.past_sources import PastSources
from s3fs_meta.mount.requests import control_api


class TreeHandlers:
    """The handlers of requests about trees in one mount."""

    def __init__(
        self,
        filesystem: Filesystem,
        *,
        check_remount: Callable[[], object],
        collect: Callable[[], Awaitable[bool]],
    ) -> None:
        """Create the handlers; start no operation.

        Args:
            filesystem: the filesystem that contains the trees.
            check_remount: updates the status after a remount to read-only.
            collect: makes the kernel write back dirty pages; returns whether it sent all of them.
        """
        self._status = filesystem.status
        self._removal = filesystem.tree_removal
        self._clone = filesystem.tree_clone
        self._lock = filesystem.tree_lock
        self._past: PastSources | None = None
        self._check_remount = check_remount
        self._collect = collect

    def serve_past(self, past: PastSources | None) -> None:
        """Allow copies of trees as they were at an earlier point in time."""
        self._past = past

    def handlers(self) -> dict[str, Handler]:
        """Return the handler of each control command about trees."""
        return {
            mount_paths.REMOVE: self._on_remove,
            control_api.CLONE: self._on_clone,
            control_api.CLONE_PAST: self._on_clone_past,
            control_api.LOCK: self._on_lock,
        }

    def _require_kernel_writable(self) -> None:
        """Refuse a request that changes files if the kernel's mount is read-only.

        Raises:
            ReadOnlyStateError: the filesystem was mounted or remounted read-only.
        """
        self._check_remount()
        self._status.require_kernel_writable()

    def figures(self) -> dict[str, Any]:
        """Return the progress of each tree operation; None for an operation that is not running."""
        return {
            "copying": _shown(self._clone.progress),
            "locking": _shown(self._lock.progress),
            "removing": _shown(self._removal.progress),
        }

    async def _on_remove(self, arguments: Message, report: Report) -> Message:
        parent, name, ino = _entry(arguments)
        self._require_kernel_writable()
        locked = arguments.get("locked") is True
        forgotten = await until_checked(partial(self._remove, parent, name, ino, locked=locked))
        with trio.move_on_after(TREE_FORGET_S_MAX, shield=True):  # the entry is removed already
            await forgotten.wait()
        if arguments.get("wait") is True:
            await self.wait_for_removal(_throttled(report, "removing"))
        return {}

    def _remove(self, parent: Ino, name: bytes, ino: Ino, *, locked: bool) -> trio.Event:
        """Remove a name as ``TreeRemoval.remove`` does; treat errors as in a FUSE request.

        If the error leaves a part of the change in the open group, the group is rolled back, and the
        mount becomes read-only. Otherwise the next commit would keep that part.
        """
        begun = self._status.progress
        try:
            return self._removal.remove(parent, name, ino, locked=locked)
        except S3fsError as exc:
            failed(self._status, mount_paths.REMOVE, (parent, name, ino), exc, begun)
            raise
        except Exception as exc:
            broken(self._status, mount_paths.REMOVE, (parent, name, ino), exc)
            raise

    async def wait_for_removal(self, show: Callable[[TreeProgress], None]) -> None:
        """Wait until every removed tree has been emptied.

        Raises:
            ReadOnlyStateError: the mount no longer accepts changes.
        """
        while (progress := self._removal.progress) is not None:
            self._status.require_writable()
            show(progress)
            await trio.sleep(TREE_PAUSE_S)

    async def _on_clone(self, arguments: Message, report: Report) -> Message:
        self._require_kernel_writable()
        source, target = _entry(_part(arguments, "source")), _target(arguments)
        await self._collect()
        counted = _Counted(report)
        place = CloneTarget(*source[:2])
        forgotten = await self._clone.clone(place, source[2], target, counted.copied)
        return await counted.result(forgotten)

    async def _on_clone_past(self, arguments: Message, report: Report) -> Message:
        """Copy a tree as it was at a past point in time, or as it is now."""
        self._require_kernel_writable()
        target = _target(arguments)
        if self._past is None:
            raise UsageError("the mount is starting and does not serve files yet; try again")
        txg, find = await self._past.find(_part(arguments, "source"), report)
        counted = _Counted(report)
        forgotten = await self._past.clone.clone(txg, find, target, counted.copied)
        return {**await counted.result(forgotten), "txg": txg}

    async def _on_lock(self, arguments: Message, report: Report) -> Message:
        self._require_kernel_writable()
        show = _throttled(report, "locking")
        if not await self._collect():
            # Otherwise the kernel's later writes to a locked file would fail.
            raise HeldError(
                "the kernel has not yet sent all data that programs wrote; nothing was locked;"
                " close files that are open for writing, and try again"
            )
        return {"entries": await self._lock.lock(*_entry(arguments), show)}


def _shown(progress: TreeProgress | None) -> dict[str, int] | None:
    return None if progress is None else progress._asdict()


class _Counted:
    """Counts the copied entries, and reports the progress of a copy to its client."""

    def __init__(self, report: Report) -> None:
        self._entries = 1
        self._show = _throttled(report, "copying")

    def copied(self, progress: TreeProgress) -> None:
        """Record and report the progress of a copy after a batch of entries."""
        self._entries = progress.done
        self._show(progress)

    async def result(self, forgotten: trio.Event) -> dict[str, Any]:
        """Return the reply, after the kernel has dropped its cached entry for the new name."""
        with trio.move_on_after(TREE_FORGET_S_MAX, shield=True):  # the copy is already complete
            await forgotten.wait()
        return {"entries": self._entries}


def _throttled(report: Report, what: str) -> Callable[[TreeProgress], None]:
    """Return a function that reports progress to a client, at most a few times per second."""
    next_s = 0.0

    def show(progress: TreeProgress) -> None:
        nonlocal next_s
        now_s = trio.current_time()
        if now_s >= next_s:
            next_s = now_s + TREE_PAUSE_S
            total = progress.done + progress.left
            report({"what": what, "done": progress.done, "total": total})

    return show


def _target(arguments: Message) -> CloneTarget:
    """Return the target of a copy; raise UsageError if the request does not contain it."""
    return CloneTarget(*_entry(_part(arguments, "target"))[:2])


def _part(arguments: Message, name: str) -> Message:
    """Return the source or the target in a request; raise UsageError if it is missing."""
    found = arguments.get(name)
    if not isinstance(found, dict):
        raise UsageError("the request for a copy needs a source and a target")
    return found


def _entry(arguments: Message) -> tuple[Ino, bytes, Ino]:
    """Return the directory entry in a message: parent, name and inode number.

    Raises:
        UsageError: a field is missing or has a wrong type.
    """
    parent, name, ino = (arguments.get(key) for key in ("parent", "name", "ino"))
    if not isinstance(parent, int) or not isinstance(ino, int) or not isinstance(name, str):
        raise UsageError("a directory entry in a request needs the fields parent, name and ino")
    return Ino(parent), os.fsencode(name), Ino(ino)
