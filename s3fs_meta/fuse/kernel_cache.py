"""Invalidating the kernel's dentry, attribute and page caches.

Owns: the order of notifications when a follower applies a txg; the selection of names and inodes
that the kernel may have cached. Does not know: the content of a txg, rows, the session.

A txg becomes visible in four steps. So a program that has read the new state never reads the old
state from the kernel's caches afterwards:

    1. replies forbid caching; changed names and attributes are invalidated
    2. the database switches to the new state, without a schedule point
    3. replies allow caching again
    4. changed names, attributes and content are invalidated, because an old reply may arrive late

Between steps 1 and 2 the kernel requests changed entries, and receives the old state. The kernel
requests attributes before each read(2), and reads pages again if time or size have changed. So
invalidating content in step 4 is only needed if time and size stayed the same.
Tasks: the follower's task. A thread sends notifications, because the kernel may block a notification
until it has the reply to another request.
Source: Linux, fs/fuse/inode.c, fuse_reverse_inval_inode; fs/fuse/dir.c, fuse_reverse_inval_entry.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.slices import slices
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.write_gate import Invalidations, KernelNotices
from s3fs_meta.fuse.convert import Converter
from s3fs_meta.fuse.notifications import (
    invalidate_inode,
    invalidate_name,
    invalidate_name_later,
)
from s3fs_meta.limits import READDIR_ROWS_MAX
from s3fs_meta.model import ROOT_INO, Cookie, Ino
from s3fs_meta.sync.kernel import SwitchChanges

# Number of names or inodes between two schedule points; checking them takes less than 1 ms.
_SLICE_ROWS = 2000

Names = Sequence[tuple[Ino, bytes]]


class KernelCache:
    """Invalidates the kernel's caches of one mount while a follower applies a txg."""

    def __init__(self, converter: Converter, filesystem: Filesystem) -> None:
        self._converter = converter
        self._lookups = filesystem.lookups
        self._open_files = filesystem.open_files
        self._read_directory = filesystem.read_directory

    async def before_switch(self, changes: SwitchChanges | None) -> None:
        """Forbid caching, and invalidate the names and attributes that will change (step 1)."""
        self._converter.let_remember(False)
        if changes is None:
            await self._forget_all()
            return
        names, inodes = await self._known_names(changes), await self._known(changes.inodes)
        await in_thread(_forget, names, inodes, ())

    def at_switch(self) -> None:
        """Allow caching again (step 3). Never yields to other tasks."""
        self._converter.let_remember(True)

    async def after_switch(self, changes: SwitchChanges | None) -> None:
        """Invalidate changed names, attributes and content after the switch to a txg (step 4)."""
        if changes is None:
            await self._forget_all()
            return
        names, inodes = await self._known_names(changes), await self._known(changes.inodes)
        contents = await self._known(changes.contents)
        self._forget_capabilities(inodes)
        await in_thread(_forget, names, inodes, contents)

    async def _forget_all(self) -> None:
        """Invalidate all inodes with a lookup count, and all names in directories among them.

        Call this before and after the switch of the database. The first call invalidates the old
        names, the second the new names, which the kernel may have cached as missing.
        """
        inodes = [ROOT_INO, *self._lookups.known()]
        self._forget_capabilities(inodes)
        for ino in inodes:
            after = Cookie(0)
            while page := self._read_directory(ino, after, READDIR_ROWS_MAX):
                after = page[-1][1]
                names = [(ino, name) for name, _cookie, _attributes in page]
                await in_thread(_forget, names, (), ())
            await trio.lowlevel.checkpoint()
        for piece in slices(inodes, _SLICE_ROWS):
            await in_thread(_forget, (), (), piece)

    def _forget_capabilities(self, inodes: Iterable[Ino]) -> None:
        for ino in inodes:
            record = self._open_files.find(ino)
            if record is not None:
                record.forget_capability()

    async def _known(self, inodes: Collection[Ino]) -> list[Ino]:
        """Return the inodes in *inodes* that have a lookup count."""
        known: list[Ino] = []
        for piece in slices(list(inodes), _SLICE_ROWS):
            known += [ino for ino in piece if self._knows(ino)]
            await trio.lowlevel.checkpoint()
        return known

    async def _known_names(self, changes: SwitchChanges) -> Names:
        """Return the changed names in directories that have a lookup count."""
        known: list[tuple[Ino, bytes]] = []
        for piece in slices(list(changes.names), _SLICE_ROWS):
            known += [entry for entry in piece if self._knows(entry[0])]
            await trio.lowlevel.checkpoint()
        return known

    def _knows(self, ino: Ino) -> bool:
        return ino == ROOT_INO or self._lookups.count(ino) > 0


async def forget_name(parent: Ino, name: bytes) -> None:
    """Invalidate a name and the cached entries below it. Always yields to other tasks."""
    await in_thread(_forget, [(parent, name)], (), ())


def changed(lost: Invalidations) -> None:
    """Invalidate names and inodes, so that the kernel requests them again. Never yields.

    Another thread invalidates the names, because the kernel may block the call until requests are
    answered. Invalidating attributes never blocks.
    """
    parents = {parent for parent, _name in lost.names}
    for parent, name in lost.names:
        invalidate_name_later(parent, name)
    for ino in {*lost.inodes, *parents}:
        # Drop the pages of a directory, which are never dirty, because they cache its listing.
        invalidate_inode(ino, attr_only=ino not in parents)


NOTICES: Final = KernelNotices(changed, forget_name)


def _forget(names: Names, inodes: Iterable[Ino], contents: Iterable[Ino]) -> None:
    """Invalidate names, attributes and contents. Call this in a thread.

    A name or inode that the kernel has not cached is not an error. The cached listing of a name's
    directory is also invalidated, because the kernel detects changes of a directory only by its
    mtime. Two changes within one clock tick may have the same mtime.
    """
    contents = [*contents, *{parent for parent, _name in names}]
    for parent, name in names:
        invalidate_name(parent, name)
    for attr_only, wanted in ((True, inodes), (False, contents)):
        for ino in wanted:
            invalidate_inode(ino, attr_only=attr_only)
