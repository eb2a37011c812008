"""Attributes: the effects of chmod, chown and utimensat, and the updates of atime.

Owns: the rules for mode bits and times. Does not know: FUSE, content (``file_data`` truncates).
With a write-back cache the kernel maintains size, mtime and ctime of regular files and sends them.
This program stores the values that the kernel sends, including ctime.
Source: chmod(2), chown(2), utimensat(2), mount(8) on relatime; fs/fuse/dir.c, fuse_do_setattr.
"""

import stat
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from s3fs_meta.errors import NoInodeError
from s3fs_meta.fs import acl
from s3fs_meta.fs.flags.protection import require_changeable, require_unprotected, require_writable
from s3fs_meta.fs.open_files import OpenFiles
from s3fs_meta.fs.write_gate import Changes
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import inodes, xattrs
from s3fs_meta.model import AccessTime, Attributes, Ino, InodeFlag
from s3fs_meta.mount_state import MountStatus

_DAY_NS: Final = 24 * 3600 * 1_000_000_000
# The kernel sends "now" as a time. A time within 60 s of the clock is treated as "now".
_NOW_NS: Final = 60 * 10**9
_NOT_DUE_S: Final = 0.05  # time for which a recent atime is not checked again
_SETTABLE: Final = 0o7777
_GROUP_EXECUTE: Final = stat.S_IXGRP
_new = tuple.__new__  # tuple.__new__ is three times as fast as calling the class
_KEEPS_TIMES: Final = InodeFlag.LOCKED | InodeFlag.IMMUTABLE


class SetAttributes(NamedTuple):
    """The attributes that a setattr request changes; None means unchanged."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size_bytes: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None
    ctime_ns: int | None = None


def changed(before: Attributes, wanted: SetAttributes, now_ns: int) -> Attributes:
    """Return the attributes after a setattr request; the size stays unchanged.

    A change of the owner clears suid and sgid, even for root. Source: chown(2), NOTES.
    """
    (ino, mode, nlink, uid, gid, size, mapped, _ctime_ns, mtime_ns, atime_ns, *rest) = before
    new_mode, new_uid, new_gid, _size, new_atime_ns, new_mtime_ns, ctime_ns = wanted
    if new_mode is not None:
        mode = stat.S_IFMT(mode) | new_mode & _SETTABLE
    elif new_uid is not None or new_gid is not None:
        mode = without_privileges(mode)
    owner = uid if new_uid is None else new_uid, gid if new_gid is None else new_gid
    times = (
        now_ns if ctime_ns is None else ctime_ns,
        mtime_ns if new_mtime_ns is None else new_mtime_ns,
        atime_ns if new_atime_ns is None else new_atime_ns,
    )
    return _new(Attributes, (ino, mode, nlink, *owner, size, mapped, *times, *rest))


def without_privileges(mode: int) -> int:
    """Return the mode of an inode after an unprivileged caller wrote to it or changed its owner.

    A directory keeps its mode. suid is cleared. sgid is cleared only if the group may execute the
    file; otherwise sgid means mandatory locking.
    Source: fs/attr.c, should_remove_suid; fs/open.c, chown_common.
    """
    if stat.S_ISDIR(mode):
        return mode
    mode &= ~stat.S_ISUID
    return mode & ~stat.S_ISGID if mode & _GROUP_EXECUTE else mode


def access_time_due(policy: AccessTime, attributes: Attributes, now_ns: int) -> bool:
    """Return whether a read must set the atime to the current time."""
    if policy is AccessTime.NEVER:
        return False
    if policy is AccessTime.ALWAYS:
        return True
    atime_ns = attributes.atime_ns
    return (
        atime_ns <= attributes.mtime_ns
        or atime_ns <= attributes.ctime_ns
        or now_ns - atime_ns >= _DAY_NS
    )


def _sets_another_time(wanted: SetAttributes, now_ns: int) -> bool:
    """Return whether a process sets an access time other than the current time.

    The kernel itself sends modification times, but no access times. A request for the current time
    contains a time too, not a flag, so a time within _NOW_NS of the clock is treated as the current
    time.
    """
    return wanted.atime_ns is not None and abs(wanted.atime_ns - now_ns) > _NOW_NS


class AttributeStore:
    """Reads and changes the attributes of the inodes in one mount."""

    def __init__(
        self,
        db: Database,
        changes: Changes,
        status: MountStatus,
        now_ns: Callable[[], int],
        policy: AccessTime,
        open_files: OpenFiles,
    ) -> None:
        self._db = db
        self._changes = changes
        self._status = status
        self._now_ns = now_ns
        self._policy = policy
        self._open_files = open_files
        self._not_due: Attributes | None = None  # the last inode whose atime was recent enough
        self._not_due_until_s = 0.0

    def get(self, ino: Ino) -> Attributes:
        """Return the attributes of an inode.

        Raises:
            NoInodeError: the inode does not exist.
        """
        return inodes.get(self._db, ino)

    def set_attributes(self, ino: Ino, wanted: SetAttributes) -> Attributes:
        """Change attributes other than the size; return all attributes.

        Raises:
            NoInodeError, NotPermittedError, InvalidRequestError (a damaged ACL), or an error of
            ``Changes.begin``: nothing was changed.
        """
        before = inodes.get(self._db, ino)
        has_times_only = wanted.mode is wanted.uid is wanted.gid is None
        if has_times_only and before.flags:
            require_writable(before, self._open_files)
        now_ns = wanted.ctime_ns
        if now_ns is None or wanted.atime_ns is not None:
            now_ns = self._now_ns()
            if _sets_another_time(wanted, now_ns):
                require_unprotected(before)
        after = changed(before, wanted, now_ns)
        if has_times_only:
            if before.nlink or self._are_shown_later(before, wanted):
                self._changes.begin(ino, times_only=True)
                return inodes.replace(self._db, after)
            return after
        require_unprotected(before)
        changed_acl: bytes | None = None
        if wanted.mode is not None and before.flags & InodeFlag.HAS_XATTRS:
            changed_acl = self._acl_after_chmod(ino, after.mode)
        self._changes.begin(ino)
        after = inodes.replace(self._db, after)
        if changed_acl is not None:
            xattrs.set(self._db, ino, acl.ACCESS, changed_acl)
        return after

    def _are_shown_later(self, orphan: Attributes, wanted: SetAttributes) -> bool:
        """Return whether the new times of an inode without a name must be stored.

        After unlink and before the last close, the kernel sends the mtime and ctime of a regular
        file. The kernel keeps these times itself, so they need not be stored, unless the file can
        still get a name (O_TMPFILE). A new atime is stored, because the kernel requests it again.
        """
        if wanted.atime_ns is not None or not stat.S_ISREG(orphan.mode):
            return True
        record = self._open_files.find(orphan.ino)
        return record is not None and record.is_linkable

    def clear_privileges(self, ino: Ino) -> bool:
        """Clear suid and sgid after an unprivileged write; return whether a bit was set.

        ctime is unchanged, because the write or truncation sets it.
        Raises the same errors as ``set_attributes``.
        """
        before = inodes.get(self._db, ino)
        mode = without_privileges(before.mode)
        if mode == before.mode:
            return False
        require_changeable(before)
        self._changes.begin(ino)
        inodes.replace(self._db, before._replace(mode=mode))
        return True

    def _acl_after_chmod(self, ino: Ino, mode: int) -> bytes | None:
        """Return the access ACL of an inode after a chmod, or None if it has none.

        Raises:
            InvalidRequestError: the ACL is damaged.
        """
        value = xattrs.find(self._db, ino, acl.ACCESS)
        entries = acl.decode(value) if value is not None else ()
        return acl.encode(acl.after_chmod(entries, mode)) if entries else None

    def accessed(self, attributes: Attributes) -> None:
        """Set the atime of an inode that was read, if the mount option for atime requires it.

        While the disk is full, no atime is stored.
        """
        status = self._status
        if self._policy is AccessTime.NEVER or not status.writable or status.kernel_read_only:
            return
        monotonic_s = time.monotonic()
        if attributes is self._not_due and monotonic_s < self._not_due_until_s:
            return
        now_ns = self._now_ns()
        is_due = access_time_due(self._policy, attributes, now_ns)
        if attributes.flags & _KEEPS_TIMES or not (is_due and self._changes.may_note_access()):
            self._not_due, self._not_due_until_s = attributes, monotonic_s + _NOT_DUE_S
            return
        self._db.begin(times_only=True)
        try:
            inodes.touch(self._db, attributes.ino, atime_ns=now_ns)
        except NoInodeError:
            return  # the inode was removed during the download
