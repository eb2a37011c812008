"""What a mount does with whole trees when it is asked through its control socket.

Owns: from messages to calls. Does not know: how trees are removed.
"""

import os

import trio

from s3fs_meta.cli import mount_requests
from s3fs_meta.control.protocol import Handler, Message, Report
from s3fs_meta.errors import UsageError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.tree_clone import Place
from s3fs_meta.limits import TREE_TOLD_S_MAX
from s3fs_meta.model import Ino


class TreeHandlers:
    """Handlers of one mount."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._removal = filesystem.tree_removal
        self._clone = filesystem.tree_clone
        self._lock = filesystem.tree_lock

    def handlers(self) -> dict[str, Handler]:
        """Return what each command does."""
        return {
            mount_requests.REMOVE: self._on_remove,
            mount_requests.CLONE: self._on_clone,
            mount_requests.LOCK: self._on_lock,
        }

    async def _on_remove(self, arguments: Message, _report: Report) -> Message:
        parent, name, ino = _entry(arguments)
        locked = arguments.get("locked") is True
        told = self._removal.remove(parent, name, ino, locked=locked)
        with trio.move_on_after(TREE_TOLD_S_MAX):
            await told.wait()
        return {}

    async def _on_clone(self, arguments: Message, _report: Report) -> Message:
        source, target = (arguments.get(key) for key in ("source", "target"))
        if not isinstance(source, dict) or not isinstance(target, dict):
            raise UsageError("a copy is given as source and target")
        parent, name, ino = _entry(source)
        entries = 0

        def copied(names: int) -> None:
            nonlocal entries
            entries = names

        told = await self._clone.clone(Place(parent, name), ino, Place(*_entry(target)[:2]), copied)
        with trio.move_on_after(TREE_TOLD_S_MAX):
            await told.wait()
        return {"entries": entries + 1}

    async def _on_lock(self, arguments: Message, _report: Report) -> Message:
        return {"entries": await self._lock.lock(*_entry(arguments))}


def _entry(arguments: Message) -> tuple[Ino, bytes, Ino]:
    """Return the name that a message is about, and what it stands for.

    Raises:
        UsageError: the message is not of this form.
    """
    parent, name, ino = (arguments.get(key) for key in ("parent", "name", "ino"))
    if not isinstance(parent, int) or not isinstance(ino, int) or not isinstance(name, str):
        raise UsageError("a name is given as parent, name and ino")
    return Ino(parent), os.fsencode(name), Ino(ino)
