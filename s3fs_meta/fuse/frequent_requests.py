"""Frequent requests, which the C extension passes to this module before pyfuse3.

Owns: the layouts of these requests, and the decision whether a request can be answered immediately.
Does not know: semantics (``fs``), replies that must wait, past points in time (``Operations``).
pyfuse3 creates a coroutine and several objects for each request, and waits for the next request
in an event loop. After a reply of this module, the C extension itself receives the next request.
If a request must wait or is about the past, its handler returns None; ``Operations`` handles it.
Source: linux/fuse.h. The layouts skip file handles, because a handle is the inode number.
"""

import errno
import functools
import os
import struct
import time
from collections.abc import Callable
from typing import Final

from s3fs_meta.errors import NoInodeError, NotSupportedError, S3fsError, UnfinishedWalkError
from s3fs_meta.fs import acl
from s3fs_meta.fs.attributes import SetAttributes
from s3fs_meta.fs.xattrs import CAPABILITY
from s3fs_meta.fuse.collection.barrier import BARRIER_INO
from s3fs_meta.fuse.directory_page import DirectoryPage
from s3fs_meta.fuse.error_boundary import CHANGES_NO_TWO_ROWS, broken, failed
from s3fs_meta.fuse.extension import fuse_intercept
from s3fs_meta.fuse.operations import Operations
from s3fs_meta.limits import PAST_INO_MIN, READDIR_ROWS_MAX, READDIR_ROWS_MIN, READDIR_S_MAX
from s3fs_meta.model import Caller, Cookie, Ino

# Bits for the valid fields of SETATTR. ``Operations`` handles requests that change the size.
SET_MODE: Final = 1 << 0
SET_UID: Final = 1 << 1
SET_GID: Final = 1 << 2
SET_SIZE: Final = 1 << 3
SET_ATIME: Final = 1 << 4
SET_MTIME: Final = 1 << 5
SET_CTIME: Final = 1 << 10

CREATE: Final = struct.Struct("=III4x")  # header of CREATE: flags, mode, umask; then the name
FORGET: Final = struct.Struct("=Q")  # body of FORGET: number of lookups to subtract
FORGETS: Final = struct.Struct("=I4x")  # header of BATCH_FORGET: number of pairs (inode, lookups)
FORGOTTEN: Final = struct.Struct("=QQ")  # pair in BATCH_FORGET: inode, lookups to subtract
LINK: Final = struct.Struct("=Q")  # header of LINK: the inode; then the new name
MKDIR: Final = struct.Struct("=II")  # header of MKDIR: mode, umask; then the name
RENAME: Final = struct.Struct("=Q")  # header of RENAME: new directory; then old and new name
OPEN: Final = struct.Struct("=I4x")  # field: flags
READ: Final = struct.Struct("=8xQI")  # body of READ and READDIRPLUS: offset, length
WRITE: Final = struct.Struct("=8xQ24x")  # header of WRITE: offset; the data follows
WRITE_OUT: Final = struct.Struct("=I4x")
# SETATTR: valid bits, seconds of atime, mtime and ctime, their nanoseconds, mode, owner, group.
SETATTR: Final = struct.Struct("=I28xqqqIIII4xII4x")
# Header of GETXATTR: maximum reply size; then the attribute's name.
GETXATTR: Final = struct.Struct("=I4x")
SETXATTR: Final = struct.Struct("=4xI")  # header of SETXATTR: flags; then name and value
LISTXATTR_SIZE_OUT: Final = bytes(8)  # the size of an empty attribute list

# Directory positions of "." and "..", which have no rows. All cookies are larger.
_AT_DOT: Final = 1
_AT_DOT_DOT: Final = 2
_SECOND_NS: Final = 1_000_000_000
_new = tuple.__new__  # tuple.__new__ is three times as fast as calling the class
# Extended attributes that few files have, but that the kernel and cp(1) often request.
_OFTEN_MISSING: Final = frozenset({CAPABILITY, acl.ACCESS, acl.DEFAULT})

# Function that takes the inode, user ID and body of a request, and returns the reply.
Answer = Callable[["FrequentRequests", Ino, int, bytes], bytes | None]
# Function that takes the number, inode, user ID and body of a request; true if it has replied.
Handler = Callable[["FrequentRequests", int, Ino, int, bytes], bool]


def at_once(function: Answer) -> Handler:
    """Turn a function into a handler that replies with the function's result, or with an errno."""
    name = function.__name__
    changes_rows = name not in CHANGES_NO_TWO_ROWS

    @functools.wraps(function)
    def handler(self: "FrequentRequests", unique: int, ino: Ino, uid: int, content: bytes) -> bool:
        operations = self.operations
        status = operations.status
        code, begun = 0, status.progress if changes_rows else None
        answer: bytes | None = b""
        try:
            answer = function(self, ino, uid, content)
        except UnfinishedWalkError:
            return False
        except S3fsError as exc:
            code = failed(status, name, (ino,), exc, begun)
        except Exception as exc:  # noqa: BLE001 - the kernel must get a reply
            code = broken(status, name, (ino,), exc)
        if answer is None:
            return False
        operations.requests[name] += 1
        fuse_intercept.answer(unique, code, answer)
        return True

    return handler


class FrequentRequests:
    """The handlers of one mount for frequent requests; none of them waits."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self._fs = operations.filesystem
        self._data = self._fs.data
        self._namespace = operations.filesystem.namespace
        self._converter = operations.converter
        # Number of rows that READDIRPLUS reads first: one more than the last full reply listed.
        self._readdir_rows = READDIR_ROWS_MIN

    @at_once
    def lookup(self, parent: Ino, _uid: int, content: bytes) -> bytes | None:
        """Reply with the inode of a name, or with its absence; the kernel caches both replies."""
        if parent >= PAST_INO_MIN:
            return None
        found = self._fs.lookup(parent, content[:-1])
        if found is not None:
            answer = self._converter.entry_out(found)
            self._fs.lookups.add(found.ino)
            return answer
        if self.operations.may_be_special(parent, content[:-1]):
            return None
        return self._converter.no_entry_out()

    @at_once
    def getattr(self, ino: Ino, _uid: int, _content: bytes) -> bytes | None:
        """Reply with the attributes of an inode."""
        if ino >= PAST_INO_MIN:
            return None
        return self._converter.attributes_out(self._fs.getattr(ino))

    @at_once
    def setattr(self, ino: Ino, _uid: int, content: bytes) -> bytes | None:
        """Change attributes other than the size.

        If a process sets the time "now", the kernel sends the current time as well.
        """
        valid, atime_s, mtime_s, ctime_s, atime, mtime, ctime, mode, uid, gid = SETATTR.unpack_from(
            content
        )
        if valid & SET_SIZE or ino == BARRIER_INO:
            return None
        fields = (
            mode if valid & SET_MODE else None,
            uid if valid & SET_UID else None,
            gid if valid & SET_GID else None,
            None,
            atime_s * _SECOND_NS + atime if valid & SET_ATIME else None,
            mtime_s * _SECOND_NS + mtime if valid & SET_MTIME else None,
            ctime_s * _SECOND_NS + ctime if valid & SET_CTIME else None,
        )
        wanted = _new(SetAttributes, fields)
        return self._converter.attributes_out(self._fs.attributes.set_attributes(ino, wanted))

    @at_once
    def create(self, parent: Ino, uid: int, content: bytes) -> bytes:
        """Create a regular file and open it. The C extension passes no request with O_TMPFILE."""
        _flags, mode, umask = CREATE.unpack_from(content)
        name, who = content[CREATE.size : -1], self._caller(uid, umask)
        return self._converter.created_out(self.operations.create_now(parent, name, mode, who))

    @at_once
    def open(self, ino: Ino, _uid: int, content: bytes) -> bytes | None:
        """Open a file; the handle is the inode number.

        The kernel does not set O_TRUNC, but sends SETATTR after this request, because the extension
        removes FUSE_ATOMIC_O_TRUNC from INIT. With that flag, the kernel would release the lock of the
        inode after this request and then drop its pages and its size again. It would thus lose a
        concurrent write that this daemon has received (Linux, fs/fuse/dir.c, fuse_do_setattr).

        On a read-only mount the kernel refuses to open for writing. A follower is writable for the
        kernel, because it may be promoted, so this method must refuse.
        """
        (flags,) = OPEN.unpack_from(content)
        if ino >= PAST_INO_MIN:
            return None
        if flags & os.O_TRUNC:
            raise NotSupportedError("the kernel sent O_TRUNC without FUSE_ATOMIC_O_TRUNC")
        self._fs.open_files.expect_reports(True)
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        if writes and self.operations.status.read_only:
            self.operations.status.require_writable()
        self._fs.open(ino, writes=writes, appends=bool(flags & os.O_APPEND))
        return self._converter.opened_out(ino)

    @at_once
    def release(self, ino: Ino, _uid: int, _content: bytes) -> bytes | None:
        """Decrease the open count of a file after the last descriptor of one open(2) was closed."""
        if ino >= PAST_INO_MIN:
            return None
        self._fs.release(ino)
        return b""

    @at_once
    def link(self, parent: Ino, _uid: int, content: bytes) -> bytes:
        """Create a hard link to an inode."""
        (ino,) = LINK.unpack_from(content)
        linked = self.operations.link_now(ino, parent, content[LINK.size : -1])
        return self._converter.entry_out(linked)

    @at_once
    def mkdir(self, parent: Ino, uid: int, content: bytes) -> bytes:
        """Create a directory."""
        mode, umask = MKDIR.unpack_from(content)
        name, who = content[MKDIR.size : -1], self._caller(uid, umask)
        created = self._namespace.make_directory(parent, name, mode, who)
        self._fs.lookups.add(created.ino)
        return self._converter.entry_out(created)

    @at_once
    def symlink(self, parent: Ino, uid: int, content: bytes) -> bytes:
        """Create a symbolic link."""
        name, target, _ = content.split(b"\0")
        created = self._namespace.make_symlink(parent, name, target, self._caller(uid, umask=0))
        self._fs.lookups.add(created.ino)
        return self._converter.entry_out(created)

    @at_once
    def readlink(self, ino: Ino, _uid: int, _content: bytes) -> bytes | None:
        """Reply with the target of a symbolic link."""
        return None if ino >= PAST_INO_MIN else self._fs.readlink(ino)

    @at_once
    def rmdir(self, parent: Ino, _uid: int, content: bytes) -> bytes | None:
        """Remove an empty directory."""
        if self.operations.may_be_special(parent, content[:-1]):
            return None
        self._namespace.remove_directory(parent, content[:-1])
        return b""

    @at_once
    def unlink(self, parent: Ino, _uid: int, content: bytes) -> bytes:
        """Remove a name of an inode that is not a directory."""
        self._namespace.unlink(parent, content[:-1])
        return b""

    @at_once
    def rename(self, parent: Ino, uid: int, content: bytes) -> bytes | None:
        """Rename or move a directory entry. The C extension passes no request with flags."""
        (new_parent,) = RENAME.unpack_from(content)
        name, new_name, _ = content[RENAME.size :].split(b"\0")
        if max(parent, new_parent) >= PAST_INO_MIN:
            return None
        may_be_special = self.operations.may_be_special
        if may_be_special(parent, name) or may_be_special(new_parent, new_name):
            return None
        who = self._caller(uid, umask=0)
        self._namespace.rename(parent, name, new_parent, new_name, 0, caller=who)
        return b""

    @at_once
    def write(self, ino: Ino, _uid: int, content: bytes) -> bytes | None:
        """Write all given bytes to a file if the write need not wait."""
        data = memoryview(content)[WRITE.size :]
        if not data or ino >= PAST_INO_MIN:
            return None
        (offset,) = WRITE.unpack_from(content)
        sets_times = not self.operations.enable_writeback_cache
        if self._data.try_write(ino, offset, data, sets_times=sets_times) is not None:
            return None
        return WRITE_OUT.pack(len(data))

    def read(self, unique: int, ino: Ino, _uid: int, content: bytes) -> bool:
        """Reply with bytes of one cached block, from memory or from the block's file.

        Returns:
            True if the reply was sent. Otherwise ``Operations.read`` handles the request.
        """
        if ino >= PAST_INO_MIN:
            return False
        offset, length = READ.unpack_from(content)
        try:
            found = self._data.find_cached(ino, offset, length)
        except S3fsError:
            return False  # the handler in ``Operations`` reports the error
        if found is None:
            return False
        source, start, count = found
        if not isinstance(source, int):
            fuse_intercept.answer(unique, 0, memoryview(source)[start : start + count])
        elif not fuse_intercept.answer_from_file(unique, source, start, count):
            return False
        self.operations.requests["read"] += 1
        return True

    @at_once
    def readdir(self, ino: Ino, _uid: int, content: bytes) -> bytes | None:
        """List a directory with attributes, starting at a position, until the reply is full."""
        if ino >= PAST_INO_MIN:
            return None
        start, room_bytes = READ.unpack_from(content)
        page = DirectoryPage(self._converter, ino, room_bytes)
        self.list_directory(ino, start, page)
        return page.content()

    def list_directory(self, ino: Ino, start: int, page: DirectoryPage) -> None:
        """Add the entries of a directory after a position to a reply, until the reply is full.

        If the rows must be read from a slow disk, the reply ends after READDIR_S_MAX, so that other
        requests do not wait; the kernel then requests the next entries. Every name in the reply
        counts as a lookup, except "." and "..".

        Args:
            ino: the directory.
            start: 0, or the position of the last entry of an earlier reply.
            page: the reply.
        """
        if start == 0 and not self.operations.requests["opendir"]:
            self._fs.open_directory(ino)  # with NO_OPENDIR, the first readdir replaces opendir
        if start < _AT_DOT_DOT and not self._list_dots(ino, start, page):
            return
        after, limit, listed = Cookie(max(start, _AT_DOT_DOT)), self._readdir_rows, 0
        began_s = time.monotonic()
        while True:  # the loop ends when the reply is full, or after READDIR_S_MAX
            rows = self._fs.read_directory_rows(ino, after, limit)
            added = page.add_rows(rows)
            for row in rows[:added]:
                self._fs.lookups.add(row[2])
            listed += added
            is_full, is_slow = added < len(rows), time.monotonic() - began_s > READDIR_S_MAX
            if is_full or is_slow:
                rows_max = READDIR_ROWS_MIN if is_slow else READDIR_ROWS_MAX
                self._readdir_rows = min(max(listed + 1, READDIR_ROWS_MIN), rows_max)
                return
            if len(rows) < limit:
                return
            after, limit = rows[-1][1], READDIR_ROWS_MIN

    def _list_dots(self, ino: Ino, start: int, page: DirectoryPage) -> bool:
        """List "." and ".."; return whether the reply has space for further entries."""
        here = self._fs.getattr(ino)
        if start < _AT_DOT and not page.add(b".", here, _AT_DOT):
            return False
        try:
            above = self._fs.getattr(here.parent)
        except NoInodeError:
            above = here  # the directory and its parent were removed while the directory was open
        return page.add(b"..", above, _AT_DOT_DOT)

    def getxattr(self, unique: int, ino: Ino, _uid: int, content: bytes) -> bool:
        """Reply that an extended attribute is missing if the inode has no extended attributes.

        Returns:
            True if the reply was sent. Otherwise ``Operations.getxattr`` handles the request.
        """
        name = content[GETXATTR.size : -1]
        if name not in _OFTEN_MISSING or not self._has_none(ino):
            return False
        self.operations.requests["getxattr"] += 1
        fuse_intercept.answer(unique, errno.ENODATA, b"")
        return True

    @at_once
    def setxattr(self, ino: Ino, uid: int, content: bytes) -> bytes:
        """Set an extended attribute.

        Both XATTR_CREATE and XATTR_REPLACE may be requested: as on ext4, the request then fails.
        """
        (flags,) = SETXATTR.unpack_from(content)
        name, _, value = content[SETXATTR.size :].partition(b"\0")
        self._fs.xattrs.set(
            ino,
            name,
            value,
            self._caller(uid, umask=0),
            must_be_new=bool(flags & os.XATTR_CREATE),
            must_exist=bool(flags & os.XATTR_REPLACE),
        )
        return b""

    def listxattr(self, unique: int, ino: Ino, _uid: int, content: bytes) -> bool:
        """Reply with an empty list if an inode has no xattrs; return whether the reply was sent."""
        if not self._has_none(ino):
            return False
        self.operations.requests["listxattr"] += 1
        (room_bytes,) = GETXATTR.unpack_from(content)
        fuse_intercept.answer(unique, 0, b"" if room_bytes else LISTXATTR_SIZE_OUT)
        return True

    def forget(self, _unique: int, ino: Ino, _uid: int, content: bytes) -> None:
        """Decrease the lookup count of an inode; this request has no reply."""
        self.operations.requests["forget"] += 1
        self._forget(ino, *FORGET.unpack_from(content))

    def forget_many(self, _unique: int, _ino: Ino, _uid: int, content: bytes) -> None:
        """Decrease the lookup counts of several inodes; this request has no reply."""
        self.operations.requests["forget"] += 1
        (count,) = FORGETS.unpack_from(content)
        pairs = content[FORGETS.size :][: count * FORGOTTEN.size]
        for ino, times in FORGOTTEN.iter_unpack(bytes(pairs)):
            self._forget(ino, times)

    def _forget(self, ino: Ino, times: int) -> None:
        """Decrease a lookup count. Errors are only logged, because the request has no reply."""
        if ino >= PAST_INO_MIN:
            return
        status = self.operations.status
        try:
            self._fs.forget(ino, times)
        except S3fsError as exc:
            failed(status, "forget", (ino, times), exc)
        except Exception as exc:  # noqa: BLE001 - the boundary, as in ``at_once``
            broken(status, "forget", (ino, times), exc)

    def _caller(self, uid: int, umask: int) -> Caller:
        """Return the process that sent the current request."""
        group, thread = fuse_intercept.caller_ids()
        return _new(Caller, (uid, group, umask, thread))

    def _has_none(self, ino: Ino) -> bool:
        try:
            return self._fs.xattrs.has_none(ino)
        except S3fsError:
            return False  # the handler in ``Operations`` reports the error
