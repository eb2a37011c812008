"""Requests for files at past points in time (``fs.past``).

Owns: the replies to lookup, open and readdir, and the errors of requests that change files.
Does not know: how past states are read.
"""

import errno
import os
from collections.abc import Sequence
from typing import Final

from s3fs_meta.errors import FsError, NoInodeError, S3fsError
from s3fs_meta.fs.past.past_tree import PAST_TOP_INO, PastTree
from s3fs_meta.fs.waiting_room import caller
from s3fs_meta.fuse.convert import GENERATION_MAX, Converter
from s3fs_meta.fuse.extension import fuse_intercept, pyfuse3
from s3fs_meta.limits import ENTRY_TIMEOUT_S, PAST_INO_MIN, PAST_NAME_TIMEOUT_S, READDIR_ROWS_MIN
from s3fs_meta.model import Attributes, Cookie, Ino

# Positions of "." and "..". Cookies are larger, except in the directory .snapshots itself.
_AT_DOT: Final = 1
_AT_DOT_DOT: Final = 2
# A txg's position in .snapshots is the txg plus this offset; "." and ".." have positions 1 and 2.
_TOP_SHIFT: Final = 16

_EXACT: Final = b"txg="
# Positions of the inode numbers among the arguments of a request.
# In all other requests, only the first argument is an inode number.
_INODES_AT: Final = {"link": (0, 1), "rename": (0, 2)}
# Requests with two inodes. If only one inode is from the past, the error is EXDEV.
_BETWEEN: Final = frozenset({"copy_file_range", "link", "rename"})
_CHANGES: Final = frozenset(
    {
        "clear_privileges",
        "create",
        "fallocate",
        "mkdir",
        "mknod",
        "removexattr",
        "rmdir",
        "setattr",
        "setxattr",
        "symlink",
        "unlink",
        "write",
    }
)


def errno_of(name: str, arguments: Sequence[object], exc: S3fsError) -> int | None:
    """Return the errno of a request that failed because an inode is from a past state.

    Such an inode cannot be changed. The handlers of changes do not know it, so they report that it
    is missing. Return None if the failure has another cause.
    """
    if not isinstance(exc, FsError):
        return None
    inos = [arguments[at] for at in _INODES_AT.get(name, (0,)) if at < len(arguments)]
    are_past = [isinstance(ino, int) and ino >= PAST_INO_MIN for ino in inos]
    if not any(are_past) and not (isinstance(exc, NoInodeError) and exc.ino >= PAST_INO_MIN):
        return None
    if name in _BETWEEN:
        return errno.EROFS if name == "rename" and all(are_past) else errno.EXDEV
    if name == "flags":
        return errno.ENOTTY
    return errno.EROFS if name in _CHANGES else None


class PastRequests:
    """The handlers of one mount for requests about files at past points in time."""

    def __init__(self, tree: PastTree | None, converter: Converter) -> None:
        self._tree = tree
        self._converter = converter
        self.name = None if tree is None else tree.name

    @property
    def tree(self) -> PastTree:
        """Return the tree of past states.

        Raises:
            NoInodeError: the mount shows no past states, so the inode does not exist.
        """
        if self._tree is None:
            raise NoInodeError(PAST_TOP_INO)
        return self._tree

    def for_caller(self) -> PastTree:
        """Return the tree of past states, and record the user of the current request.

        Raises the same errors as ``tree``.
        """
        caller.set(fuse_intercept.caller())
        return self.tree

    def top(self) -> pyfuse3.EntryAttributes:
        """Return the reply with the attributes of the directory ``.snapshots``."""
        return self.entry_of(self.tree.top())

    async def lookup(self, parent: Ino, name: bytes) -> pyfuse3.EntryAttributes:
        """Return the reply to a lookup in a past directory.

        A name such as a time or an age may later mean another txg, so the kernel caches the reply
        only briefly.
        """
        found = await self.for_caller().lookup(parent, name)
        if found is None:
            entry = pyfuse3.EntryAttributes()
            entry.st_ino = 0  # makes the kernel cache that the name is missing
            entry.entry_timeout = ENTRY_TIMEOUT_S
        else:
            entry = self.entry_of(found)
        if parent == PAST_TOP_INO and (found is None or not name.startswith(_EXACT)):
            entry.entry_timeout = min(entry.entry_timeout, PAST_NAME_TIMEOUT_S)
        return entry

    async def getattr(self, ino: Ino) -> pyfuse3.EntryAttributes:
        """Return the reply with the attributes of an inode."""
        return self.entry_of(await self.for_caller().getattr(ino))

    def entry_of(self, found: Attributes) -> pyfuse3.EntryAttributes:
        """Return the reply with a past inode; its generation depends on the txg.

        A later mount may use the inode number for another txg. An NFS file handle also contains the
        generation, so the handle never opens a file of another txg. The kernel caches the attributes
        of ``.snapshots`` only briefly, because they depend on those of the root.
        """
        entry = self._converter.entry(found)
        if found.ino == PAST_TOP_INO:
            entry.attr_timeout = min(entry.attr_timeout, PAST_NAME_TIMEOUT_S)
        entry.generation = (entry.generation + self.tree.txg_of(found.ino)) & GENERATION_MAX
        return entry

    def open(self, ino: Ino, flags: int) -> pyfuse3.FileInfo:
        """Open a file for reading; the kernel may cache its content, which never changes.

        Raises:
            FUSEError: EROFS, because the file would be opened for writing.
        """
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise pyfuse3.FUSEError(errno.EROFS)
        return pyfuse3.FileInfo(ino, keep_cache=True)

    async def readdir(self, ino: Ino, start: int, token: pyfuse3.ReaddirToken) -> None:
        """List a past directory, until the reply is full."""
        tree, entry_of = self.for_caller(), self.entry_of
        if start < _AT_DOT_DOT:
            here = await tree.getattr(ino)
            above = here if ino == PAST_TOP_INO else await tree.getattr(here.parent)
            for at, name, attributes in ((_AT_DOT, b".", here), (_AT_DOT_DOT, b"..", above)):
                if start < at and not pyfuse3.readdir_reply(token, name, entry_of(attributes), at):
                    return
        shift = _TOP_SHIFT if ino == PAST_TOP_INO else 0
        after = Cookie(max(start - shift, 0) if shift else max(start, _AT_DOT_DOT))
        while True:  # the loop ends when the reply is full
            page = await tree.read_directory(ino, after, READDIR_ROWS_MIN)
            for name, cookie, attributes in page:
                entry = entry_of(attributes)
                if not pyfuse3.readdir_reply(token, name, entry, cookie + shift):
                    return
                after = cookie
            if len(page) < READDIR_ROWS_MIN:
                return
