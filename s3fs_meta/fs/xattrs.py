"""Extended attributes: supported namespaces, size limits, the effect of ACLs on the mode.

Owns: the rules of setting, reading and listing xattrs. Does not know: FUSE; permissions, except
that only root lists ``trusted``.
Source: xattr(7), setxattr(2), listxattr(2); fs/posix_acl.c.
"""

import stat
from collections.abc import Callable, Collection, Sequence
from typing import Final

from s3fs_meta.errors import (
    AccessRefusedError,
    AttributeRangeError,
    AttributeTooBigError,
    InvalidRequestError,
    NoAttributeError,
    NoSpaceLeftError,
    NotPermittedError,
    NotSupportedError,
    quoted,
)
from s3fs_meta.fs import acl
from s3fs_meta.fs.capacity import Capacity
from s3fs_meta.fs.flags.protection import require_unprotected, require_writable
from s3fs_meta.fs.open_files import OpenFiles
from s3fs_meta.fs.write_gate import Changes
from s3fs_meta.limits import (
    OPERATION_DISK_BYTES,
    XATTR_LIST_BYTES_MAX,
    XATTR_NAME_BYTES_MAX,
    XATTR_VALUE_BYTES_MAX,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import inodes
from s3fs_meta.meta.tables import xattrs as rows
from s3fs_meta.model import Attributes, Caller, Ino, InodeFlag

CAPABILITY: Final = b"security.capability"
# This attribute is computed on request. Listings omit its name, so that tools do not copy it.
STATE: Final = b"user.s3fs-meta.state"

_NAMESPACES: Final = (b"user.", b"trusted.", b"security.")
_NO_NAME: Final = "the extended attribute has a namespace but no name:"
_TRUSTED: Final = b"trusted."
_ACLS: Final = (acl.ACCESS, acl.DEFAULT)
# Space for both ACLs is reserved, so that an ACL can be set even if the list of names is full.
_LIST_BYTES_MAX: Final = XATTR_LIST_BYTES_MAX - sum(len(name) + 1 for name in _ACLS)

SupplementaryGroups = Callable[[int], Collection[int]]


class AttributeNames:
    """Reads and changes the extended attributes of a mount's inodes."""

    def __init__(
        self,
        db: Database,
        changes: Changes,
        open_files: OpenFiles,
        now_ns: Callable[[], int],
        groups_of: SupplementaryGroups,
    ) -> None:
        """Prepare access to the attributes of one mount.

        Args:
            groups_of: returns the supplementary groups of a process.
        """
        self._db = db
        self._changes = changes
        self._open_files = open_files
        self._now_ns = now_ns
        self._groups_of = groups_of
        self._capacity = Capacity(db)

    def lacks_capability(self, ino: Ino) -> bool:
        """Return whether an open inode certainly has no attribute security.capability.

        The result is cached, because the kernel may request it before every write(2).
        """
        record = self._open_files.find(ino)
        if record is None:
            return False
        if record.has_capability is None:
            attributes = inodes.find(self._db, ino)
            record.has_capability = (
                attributes is not None
                and bool(attributes.flags & InodeFlag.HAS_XATTRS)
                and rows.find(self._db, ino, CAPABILITY) is not None
            )
        return not record.has_capability

    def has_none(self, ino: Ino) -> bool:
        """Return whether an inode exists and has no extended attribute.

        Raises:
            BadRowError: the inode's row cannot be read.
        """
        found = inodes.find(self._db, ino)
        return found is not None and not found.flags & InodeFlag.HAS_XATTRS

    def get(self, ino: Ino, name: bytes) -> bytes:
        """Return the value of one attribute.

        Raises:
            NoAttributeError, NoInodeError: the attribute or the inode does not exist.
            NotSupportedError: the namespace of the attribute is not supported.
            InvalidRequestError: the name is only a namespace, and no old version stored it.
        """
        _check_name(name)
        attributes = inodes.get(self._db, ino)
        if name in _NAMESPACES and rows.find(self._db, ino, name) is None:
            raise InvalidRequestError(_NO_NAME, name)
        if not attributes.flags & InodeFlag.HAS_XATTRS:
            raise NoAttributeError(ino, name)
        return rows.get(self._db, ino, name)

    def names(self, ino: Ino, caller: Caller) -> list[bytes]:
        """Return the names of an inode's attributes; only root sees names of ``trusted``."""
        attributes = inodes.get(self._db, ino)
        if not attributes.flags & InodeFlag.HAS_XATTRS:
            return []
        return visible_to(caller, rows.names(self._db, ino))

    def set(
        self,
        ino: Ino,
        name: bytes,
        value: bytes,
        caller: Caller,
        *,
        must_be_new: bool = False,
        must_exist: bool = False,
    ) -> None:
        """Set one attribute.

        Args:
            must_be_new: fail if the attribute exists (XATTR_CREATE).
            must_exist: fail if the attribute does not exist (XATTR_REPLACE).

        Raises:
            NotSupportedError, AttributeRangeError, AttributeTooBigError, NoSpaceLeftError,
            NotPermittedError, AttributeExistsError, NoAttributeError, InvalidRequestError,
            AccessRefusedError, NoInodeError, or an error of ``Changes.begin``: nothing was changed.
        """
        _check_settable(name)
        if name in _NAMESPACES:  # old versions stored these names, so only ``remove`` accepts them
            raise InvalidRequestError(_NO_NAME, name)
        if len(value) > XATTR_VALUE_BYTES_MAX:
            raise AttributeTooBigError(ino, len(value))
        before = inodes.get(self._db, ino)
        require_unprotected(before)
        if name in _ACLS:
            self._set_acl(before, name, value, caller)
            return
        rows.require(self._db, ino, name, must_be_new=must_be_new, must_exist=must_exist)
        self._check_list_fits(before, name)
        self._require_room(ino, name, value)
        self._changes.begin(ino)
        rows.set(self._db, ino, name, value)
        self._changed(ino, name)

    def _check_list_fits(self, before: Attributes, name: bytes) -> None:
        if not before.flags & InodeFlag.HAS_XATTRS:
            return
        names = rows.names(self._db, before.ino)
        total = sum(len(other) + 1 for other in names) + len(name) + 1
        if total > _LIST_BYTES_MAX and name not in names:
            raise NoSpaceLeftError(
                f"the list of attribute names of inode {before.ino} would have {total} bytes,"
                f" but at most {_LIST_BYTES_MAX} bytes are allowed"
            )

    def _require_room(self, ino: Ino, name: bytes, value: bytes | None) -> None:
        """Raise NoSpaceLeftError if an attribute exceeds the capacity or the free local disk space.

        A value of None is not stored, and always fits. A large value is written twice: to its row,
        and to the record of the change.
        """
        if value is not None and 2 * len(value) > OPERATION_DISK_BYTES:
            self._changes.require(2 * len(value))
        if value is not None and self._db.counters.capacity_bytes:
            before_bytes = rows.size_bytes(self._db, ino, name)
            self._capacity.require(len(name) + len(value) - before_bytes)

    def _set_acl(self, before: Attributes, name: bytes, value: bytes, caller: Caller) -> None:
        entries = acl.decode(value)
        ino = before.ino
        if name == acl.DEFAULT:
            if not stat.S_ISDIR(before.mode):
                raise AccessRefusedError(ino)
            stored = value if entries else None
            self._require_room(ino, name, stored)
            self._changes.begin(ino)
            self._store(before, name, stored)
        else:
            mode, kept = acl.apply_access(before.mode, entries)
            if not self._keeps_setgid(before, caller):
                mode &= ~stat.S_ISGID
            self._require_room(ino, name, kept)
            self._changes.begin(ino)
            if mode != before.mode:
                inodes.replace(self._db, before._replace(mode=mode))
            self._store(before, name, kept)
        self._changed(ino, name)

    def _store(self, before: Attributes, name: bytes, value: bytes | None) -> None:
        if value is not None:
            rows.set(self._db, before.ino, name, value)
        elif before.flags & InodeFlag.HAS_XATTRS and rows.find(self._db, before.ino, name):
            rows.remove(self._db, before.ino, name)

    def _keeps_setgid(self, before: Attributes, caller: Caller) -> bool:
        """Return whether setting an ACL keeps the setgid bit (posix_acl_update_mode)."""
        return (
            not before.mode & stat.S_ISGID
            or caller.uid == 0
            or caller.gid == before.gid
            or before.gid in self._groups_of(caller.pid)
        )

    def remove(self, ino: Ino, name: bytes) -> None:
        """Remove one attribute. The removal of a missing ACL succeeds, as on local filesystems.

        Before a write, the kernel removes ``security.capability``. This must not fail for a file that
        is append-only, or that became immutable while it was open.

        Raises:
            NoAttributeError, NotSupportedError, InvalidRequestError, NoInodeError,
            NotPermittedError, or an error of ``Changes.begin``: nothing was changed.
        """
        _check_settable(name)
        before = inodes.get(self._db, ino)
        record = self._open_files.find(ino)
        if name == CAPABILITY and record is not None and record.was_written:
            require_writable(before, self._open_files)
        else:
            require_unprotected(before)
        if not before.flags & InodeFlag.HAS_XATTRS or rows.find(self._db, ino, name) is None:
            if name in _ACLS:
                return
            if name in _NAMESPACES:
                raise InvalidRequestError(_NO_NAME, name)
            raise NoAttributeError(ino, name)
        self._changes.begin(ino)
        rows.remove(self._db, ino, name)
        self._changed(ino, name)

    def _changed(self, ino: Ino, name: bytes) -> None:
        inodes.add_links(self._db, ino, 0, self._now_ns())  # adding 0 links updates only the ctime
        record = self._open_files.find(ino)
        if record is not None and name == CAPABILITY:
            record.forget_capability()


def _check_settable(name: bytes) -> None:
    _check_name(name)
    if name == STATE:
        raise NotPermittedError(f"the extended attribute {STATE.decode()} is read-only")


def _check_name(name: bytes) -> None:
    if not name.startswith(_NAMESPACES) and name not in _ACLS:
        raise NotSupportedError(f"the attribute {quoted(name)} is in an unknown namespace")
    if len(name) > XATTR_NAME_BYTES_MAX:
        raise AttributeRangeError(len(name))


def visible_to(caller: Caller, names: Sequence[bytes]) -> list[bytes]:
    """Return the names of attributes that a caller may list."""
    return [name for name in names if caller.uid == 0 or not name.startswith(_TRUSTED)]
