"""Invalidating the kernel's dentry, attribute and page caches.

Owns: notifications to the kernel; when a follower applies a txg, which of the changed names and
inodes the kernel can have cached, and the order. Does not know: what a txg is, rows.

A txg is shown in four steps, so that no program sees something of the new one and then something
of the old one out of the kernel's memory:

    1. no answer may be remembered; what changed is forgotten, names and attributes
    2. the database turns, in one slice of the loop
    3. answers may be remembered again
    4. what changed is forgotten once more, and content: an answer of before may have come late

Between 1 and 2 the kernel asks for whatever changed, and gets the old answer. Pages are read again
when the attributes, asked for before each read(2), say that the content is another; step 4 is for
content that changed and kept its time and size.
Tasks: the follower's. Notifications are sent from a thread: the kernel may hold them up until a
request under way is answered.
Source: Linux, fs/fuse/inode.c, fuse_reverse_inval_inode; fs/fuse/dir.c, fuse_reverse_inval_entry.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import trio

from s3fs_meta.cache.slices import slices
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.write_gate import KernelNotices, Lost
from s3fs_meta.fuse.convert import Converter
from s3fs_meta.fuse.extension import pyfuse3
from s3fs_meta.limits import READDIR_ROWS_MAX
from s3fs_meta.model import ROOT_INO, Cookie, Ino
from s3fs_meta.sync.kernel import Turned

_log = logging.getLogger(__name__)

_SLICE_ROWS = 2000  # handled between two schedule points: under a millisecond

Names = Sequence[tuple[Ino, bytes]]


class KernelCache:
    """The memory of the kernel for one mount."""

    def __init__(self, converter: Converter, filesystem: Filesystem) -> None:
        self._converter = converter
        self._lookups = filesystem.lookups
        self._open_files = filesystem.open_files
        self._read_directory = filesystem.read_directory

    async def before_turn(self, turned: Turned | None) -> None:
        """Forget what is about to change, and let nothing be remembered until it has."""
        self._converter.let_remember(False)
        if turned is None:
            await self._forget_all()
            return
        names, inodes = await self._known_names(turned), await self._known(turned.inodes)
        await trio.to_thread.run_sync(_forget, names, inodes, ())

    def at_turn(self) -> None:
        """Let answers be remembered again. Schedule point: never."""
        self._converter.let_remember(True)

    async def after_turn(self, turned: Turned | None) -> None:
        """Forget what changed, content too."""
        if turned is None:
            await self._forget_all()
            return
        names, inodes = await self._known_names(turned), await self._known(turned.inodes)
        contents = await self._known(turned.contents)
        self._forget_capabilities(inodes)
        await trio.to_thread.run_sync(_forget, names, inodes, contents)

    async def _forget_all(self) -> None:
        """Forget every name that is in a directory that the kernel knows, and every inode.

        Before a turn these are the old names; after it, names that the kernel may cache as missing.
        """
        inodes = [ROOT_INO, *self._lookups.known()]
        self._forget_capabilities(inodes)
        for ino in inodes:
            after = Cookie(0)
            while page := self._read_directory(ino, after, READDIR_ROWS_MAX):
                after = page[-1][1]
                names = [(ino, name) for name, _cookie, _attributes in page]
                await trio.to_thread.run_sync(_forget, names, (), ())
            await trio.lowlevel.checkpoint()
        for piece in slices(inodes, _SLICE_ROWS):
            await trio.to_thread.run_sync(_forget, (), (), piece)

    def _forget_capabilities(self, inodes: Iterable[Ino]) -> None:
        for ino in inodes:
            record = self._open_files.find(ino)
            if record is not None:
                record.forget_capability()

    async def _known(self, inodes: Collection[Ino]) -> list[Ino]:
        """Return those inodes that the kernel knows."""
        known: list[Ino] = []
        for piece in slices(list(inodes), _SLICE_ROWS):
            known += [ino for ino in piece if self._knows(ino)]
            await trio.lowlevel.checkpoint()
        return known

    async def _known_names(self, turned: Turned) -> Names:
        """Return those names that are in a directory that the kernel knows."""
        known: list[tuple[Ino, bytes]] = []
        for piece in slices(list(turned.names), _SLICE_ROWS):
            known += [entry for entry in piece if self._knows(entry[0])]
            await trio.lowlevel.checkpoint()
        return known

    def _knows(self, ino: Ino) -> bool:
        return ino == ROOT_INO or self._lookups.count(ino) > 0


async def forget_name(parent: Ino, name: bytes) -> None:
    """Make the kernel forget a name and what it knows below it. Schedule point: always."""
    await trio.to_thread.run_sync(_forget, [(parent, name)], (), ())


def changed(lost: Lost) -> None:
    """Make the kernel ask again for names and inodes. Schedule point: never.

    pyfuse3's thread invalidates names, because that may wait for requests under way; invalidating
    attributes never waits.
    """
    parents = {parent for parent, _name in lost.names}
    for parent, name in lost.names:
        pyfuse3.invalidate_entry_async(parent, name, ignore_enoent=True)
    for ino in {*lost.inodes, *parents}:
        # Pages of a directory are a cached listing: they are never dirty.
        invalidate_inode(ino, attr_only=ino not in parents)


def invalidate_inode(ino: Ino, *, attr_only: bool) -> None:
    """Make the kernel ask again for attributes, or for all that it keeps of an inode."""
    try:
        pyfuse3.invalidate_inode(ino, attr_only=attr_only)
    except OSError as exc:  # the most frequent case: the kernel does not have it
        _log.debug("inode %d was not invalidated: %s", ino, exc.strerror)


NOTICES: Final = KernelNotices(changed, forget_name)


def _forget(names: Names, inodes: Iterable[Ino], contents: Iterable[Ino]) -> None:
    """Tell the kernel; in a thread. What it does not know is no error.

    A listing that it keeps goes with any name of it: it would notice a change only by the time of
    the directory, and two may fall into one tick of the clock.
    """
    contents = [*contents, *{parent for parent, _name in names}]
    for parent, name in names:
        try:
            pyfuse3.invalidate_entry(parent, name)
        except OSError as exc:
            _log.debug("entry %r of inode %d was not forgotten: %s", name, parent, exc)
    for attr_only, wanted in ((True, inodes), (False, contents)):
        for ino in wanted:
            invalidate_inode(ino, attr_only=attr_only)
