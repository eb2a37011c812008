"""Names: lookup, creation, links, removal, rename.

Owns: the rules of POSIX for directories and names: link counts, times, setgid directories,
inherited ACLs. Does not know: FUSE, file content, permissions (the kernel checks them).
Keeps: the nlink of a file is its number of names. The size of a directory is its number of names,
and its nlink is 2 plus its number of subdirectories. No directory is below itself.
Tasks: each operation makes all checks, calls ``changes.begin``, and then changes rows, without a
schedule point. An operation that must check many directories above an inode raises
UnfinishedWalkError before it changes a name; the caller then repeats it.
"""

import stat
from collections.abc import Callable
from typing import Final

from s3fs_meta.errors import (
    DirectoryInUseError,
    EntryExistsError,
    InvalidRequestError,
    NameTooLongError,
    NeedsDirectoryError,
    NoEntryError,
    NoInodeError,
    NotPermittedError,
    RefusesDirectoryError,
    TooManyLinksError,
)
from s3fs_meta.fs import acl
from s3fs_meta.fs.ancestry import Ancestry
from s3fs_meta.fs.capacity import Capacity
from s3fs_meta.fs.flags.protection import require_changeable, require_unprotected
from s3fs_meta.fs.orphans import Orphans
from s3fs_meta.fs.slices import Slices
from s3fs_meta.fs.write_gate import Changes
from s3fs_meta.limits import LINKS_MAX, NAME_BYTES_MAX, SYMLINK_BYTES_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, hard_links, inodes, symlinks, xattrs
from s3fs_meta.model import SPECIAL_TYPES, Attributes, Caller, Ino, InodeFlag

RENAME_NOREPLACE: Final = 1  # from linux/fs.h
RENAME_EXCHANGE: Final = 2
RENAME_WHITEOUT: Final = 4
_RENAME_FLAGS: Final = frozenset(
    {0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT, RENAME_WHITEOUT | RENAME_NOREPLACE}
)

_KERNEL: Final = Caller(uid=0, gid=0, umask=0, pid=0)

_NODE_TYPES: Final = SPECIAL_TYPES | {stat.S_IFREG}
_DIRECTORY: Final = stat.S_IFDIR
_TYPE: Final = 0o170000
_DOTS: Final = (b".", b"..")
_DOT_BYTES_MAX: Final = 2


class Namespace:
    """The operations on directories and names of one mount."""

    def __init__(
        self,
        db: Database,
        changes: Changes,
        orphans: Orphans,
        now_ns: Callable[[], int],
        slices: Slices,
    ) -> None:
        self._db = db
        self._ancestry = Ancestry(db, slices.ancestors)
        self._changes = changes
        self._orphans = orphans
        self._trees = orphans.trees
        self._now_ns = now_ns
        self._capacity = Capacity(db)

    # --- look up names -------------------------------------------------------------------------

    def lookup(self, parent: Ino, name: bytes) -> Attributes | None:
        """Return the attributes of a name's inode, or None if the name is not in the directory.

        The name "." may also be looked up in a file, to open the file by its handle.

        Raises:
            NameTooLongError: the name is longer than NAME_BYTES_MAX.
            NoInodeError: the name is "." and the inode is being deleted.
        """
        length = len(name)
        if length <= _DOT_BYTES_MAX and name in _DOTS:
            found = inodes.get(self._db, parent)
            if name == b"..":
                return inodes.get(self._db, found.parent)
            if not found.nlink and self._orphans.is_unused(parent):
                raise NoInodeError(parent)
            return found
        if length > NAME_BYTES_MAX:
            raise NameTooLongError(length)
        return dentries.find_attributes(self._db, parent, name)

    def require(self, parent: Ino, name: bytes, ino: Ino) -> Attributes:
        """Return the inode of a name. Raises NoEntryError if the inode is not *ino*."""
        found = self.lookup(parent, name)
        if found is None or found.ino != ino:
            raise NoEntryError(parent, name)
        return found

    def _find(self, parent: Ino, name: bytes) -> Attributes:
        """Return the inode of a name to remove or move; raise if it is missing or protected."""
        found = dentries.find_attributes(self._db, parent, name)
        if found is None or (self._trees and self._trees.hold(parent)):
            raise NoEntryError(parent, name)
        require_unprotected(found)
        require_unprotected(inodes.get(self._db, parent))
        return found

    def _directory(self, ino: Ino) -> Attributes:
        """Return the directory for a new name; raise if it was removed or is protected."""
        directory = inodes.get(self._db, ino)
        if directory.mode & _TYPE != _DIRECTORY:
            raise NeedsDirectoryError(ino)
        if not directory.nlink or (self._trees and self._trees.hold(ino)):
            raise NoEntryError(ino, b".")
        require_changeable(directory)
        return directory

    def require_free(self, parent: Ino, name: bytes) -> Attributes:
        """Return the directory *parent*; raise if it cannot accept the name.

        Raises:
            NoInodeError, NeedsDirectoryError, NoEntryError: the directory no longer exists.
            NotPermittedError: the directory is protected.
            EntryExistsError, NameTooLongError, InvalidRequestError: the name is in use or invalid.
        """
        directory = self._directory(parent)
        _check_name(name)
        if dentries.find(self._db, parent, name) is not None:
            raise EntryExistsError(parent, name)
        return directory

    # --- create files and directories ----------------------------------------------------------

    def make_node(
        self, parent: Ino, name: bytes, mode: int, caller: Caller, rdev: int = 0
    ) -> Attributes:
        """Create a regular file, FIFO, socket or device (mknod(2), open(2) with O_CREAT).

        Raises:
            EntryExistsError, NoInodeError, NoEntryError, NeedsDirectoryError, NotPermittedError,
            NameTooLongError, InvalidRequestError, or an error of ``Changes.begin_entry``: nothing
            was changed.
        """
        if mode & _TYPE not in _NODE_TYPES:
            raise InvalidRequestError("invalid file type", oct(mode))
        return self._create(parent, name, mode, caller, rdev=rdev)

    def make_directory(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Attributes:
        """Create an empty directory.

        Raises TooManyLinksError, and the errors of ``make_node``.
        """
        return self._create(parent, name, mode & ~_TYPE | _DIRECTORY, caller)

    def make_symlink(self, parent: Ino, name: bytes, target: bytes, caller: Caller) -> Attributes:
        """Create a symbolic link. Raises the same errors as ``make_node``."""
        if len(target) > SYMLINK_BYTES_MAX:
            raise NameTooLongError(len(target))
        if not target:
            raise NoEntryError(parent, name)
        created = self._create(parent, name, stat.S_IFLNK | 0o777, caller, size_bytes=len(target))
        symlinks.create(self._db, created.ino, target)
        return created

    def _create(
        self,
        parent: Ino,
        name: bytes,
        mode: int,
        caller: Caller,
        *,
        rdev: int = 0,
        size_bytes: int = 0,
    ) -> Attributes:
        directory = self._directory(parent)
        _check_name(name)
        is_directory = mode & _TYPE == _DIRECTORY
        if is_directory and directory.nlink >= LINKS_MAX:
            raise TooManyLinksError(parent)
        gid = caller.gid
        if directory.mode & stat.S_ISGID:
            gid = directory.gid
            if is_directory:
                mode |= stat.S_ISGID
        default = inherited = None
        if directory.flags:
            default = self._default_acl(directory, mode)
            inherited = _inherited(default, mode)
        if inherited is None and mode & _TYPE != stat.S_IFLNK:
            mode &= ~caller.umask  # the umask applies only without a default ACL
        db = self._db
        now_ns = self._now_ns()
        if inherited is not None:
            self._require_room(inherited.value, default if is_directory else None)
        self._changes.begin_entry(parent, name)
        # Adding the dentry is the only step that may be refused, so it is the first step.
        ino = Ino(db.counters.next_ino)
        dentries.add(db, parent, name, ino)
        created = inodes.create(
            db,
            mode if inherited is None else inherited.mode,
            caller.uid,
            gid,
            parent,
            now_ns,
            rdev=rdev,
            nlink=2 if is_directory else 1,
            size_bytes=size_bytes,
        )
        inodes.change_directory(db, parent, now_ns, entries=1, subdirectories=int(is_directory))
        if inherited is None:
            return created
        return self._give_acls(created, inherited.value, default if is_directory else None)

    def make_nameless(self, parent: Ino, mode: int, caller: Caller) -> Attributes:
        """Create a regular file without a name (open(2), O_TMPFILE).

        Raises:
            NotPermittedError: the directory is protected or, as on ext4, it was removed.
            NoEntryError, NeedsDirectoryError, or an error of ``Changes.begin``: nothing was
            changed.
        """
        if not inodes.get(self._db, parent).nlink or (self._trees and self._trees.hold(parent)):
            raise NotPermittedError(
                "cannot create a nameless file (O_TMPFILE) in a removed directory"
            )
        directory = self._directory(parent)
        mode = mode & ~_TYPE | stat.S_IFREG
        gid = directory.gid if directory.mode & stat.S_ISGID else caller.gid
        inherited = _inherited(self._default_acl(directory, mode), mode)
        mode = mode & ~caller.umask if inherited is None else inherited.mode
        if inherited is not None:
            self._require_room(inherited.value, None)
        self._changes.begin(parent)
        now_ns = self._now_ns()
        created = inodes.create(self._db, mode, caller.uid, gid, parent, now_ns, nlink=0)
        self._orphans.made(created.ino)
        return created if inherited is None else self._give_acls(created, inherited.value, None)

    def _default_acl(self, directory: Attributes, mode: int) -> bytes | None:
        """Return the default ACL of a directory, which new inodes inherit, or None."""
        if not directory.flags & InodeFlag.HAS_XATTRS or stat.S_ISLNK(mode):
            return None
        return xattrs.find(self._db, directory.ino, acl.DEFAULT)

    def _require_room(self, access: bytes | None, default: bytes | None) -> None:
        """Raise NoSpaceLeftError if the inherited ACLs of a new inode exceed the capacity."""
        given = ((acl.ACCESS, access), (acl.DEFAULT, default))
        self._capacity.require(sum(len(name) + len(value) for name, value in given if value))

    def _give_acls(
        self, created: Attributes, access: bytes | None, default: bytes | None
    ) -> Attributes:
        if access is not None:
            xattrs.set(self._db, created.ino, acl.ACCESS, access)
        if default is not None:
            xattrs.set(self._db, created.ino, acl.DEFAULT, default)
        if access is None and default is None:
            return created
        return created._replace(flags=created.flags | InodeFlag.HAS_XATTRS)

    def link(self, ino: Ino, parent: Ino, name: bytes, *, is_linkable: bool = False) -> Attributes:
        """Add a name to an inode (link(2)).

        Args:
            is_linkable: accept an inode that never had a name (O_TMPFILE).

        Raises:
            NotPermittedError: the inode is a directory, or one of the two inodes is protected.
            NoEntryError: the inode has lost its last name, or the directory was removed.
            EntryExistsError, TooManyLinksError, NameTooLongError, or an error of
            ``Changes.begin_entry``: nothing was changed.
        """
        before = inodes.get(self._db, ino)
        if stat.S_ISDIR(before.mode):
            raise NotPermittedError("a directory cannot have hard links")
        require_unprotected(before)
        if not before.nlink and not is_linkable:
            raise NoEntryError(parent, name)
        if before.nlink >= LINKS_MAX:
            raise TooManyLinksError(ino)
        self._directory(parent)
        _check_name(name)
        now_ns = self._now_ns()
        self._changes.begin_entry(parent, name)
        dentries.add(self._db, parent, name, ino)
        hard_links.link_added(self._db, before, parent)
        inodes.add_links(self._db, ino, 1, now_ns)
        inodes.change_directory(self._db, parent, now_ns, entries=1)
        return inodes.get(self._db, ino)

    # --- remove names --------------------------------------------------------------------------

    def unlink(self, parent: Ino, name: bytes) -> None:
        """Remove a name of an inode that is not a directory.

        Raises:
            NoEntryError, NotPermittedError, RefusesDirectoryError, or an error of
            ``Changes.begin_removal``: nothing was changed.
        """
        before = self._find(parent, name)
        if before.mode & _TYPE == _DIRECTORY:
            raise RefusesDirectoryError(before.ino)
        now_ns = self._now_ns()
        self._changes.begin_removal(parent, name)
        dentries.remove_found(self._db, parent, name)
        inodes.change_directory(self._db, parent, now_ns, entries=-1)
        self._lose_name(before, parent, now_ns)

    def remove_directory(self, parent: Ino, name: bytes) -> None:
        """Remove an empty directory.

        Raises:
            NoEntryError, NotPermittedError, NeedsDirectoryError, DirectoryInUseError, or an error
            of ``Changes.begin_removal``: nothing was changed.
        """
        before = self._find(parent, name)
        if before.mode & _TYPE != _DIRECTORY:
            raise NeedsDirectoryError(before.ino)
        if not dentries.is_empty(self._db, before.ino):
            raise DirectoryInUseError(before.ino)
        now_ns = self._now_ns()
        self._changes.begin_removal(parent, name)
        dentries.remove_found(self._db, parent, name)
        inodes.change_directory(self._db, parent, now_ns, entries=-1, subdirectories=-1)
        self._lose_name(before, parent, now_ns)

    def _lose_name(self, before: Attributes, parent: Ino, now_ns: int) -> None:
        """Decrease an inode's nlink after one of its names was removed."""
        if before.mode & _TYPE == _DIRECTORY:
            inodes.add_links(self._db, before.ino, -before.nlink, now_ns)
            self._orphans.unlinked(before.ino)
            return
        inodes.add_links(self._db, before.ino, -1, now_ns)
        hard_links.link_removed(self._db, before, parent)
        if before.nlink == 1:
            self._orphans.unlinked(before.ino)

    # --- rename files and directories ----------------------------------------------------------

    def rename(
        self,
        parent: Ino,
        name: bytes,
        new_parent: Ino,
        new_name: bytes,
        flags: int = 0,
        *,
        caller: Caller = _KERNEL,
    ) -> None:
        """Move a name; replace an existing name (rename(2), renameat2(2)).

        Args:
            flags: 0, RENAME_NOREPLACE or RENAME_EXCHANGE; RENAME_WHITEOUT with or without
                RENAME_NOREPLACE.
            caller: the owner of the whiteout.

        Raises:
            UnfinishedWalkError: the directories above the new parent are too many for one slice; no
                name was changed.
            InvalidRequestError: the flags are invalid, or a directory would be moved below itself.
            NoEntryError, EntryExistsError, NameTooLongError, TooManyLinksError,
            NeedsDirectoryError, RefusesDirectoryError, DirectoryInUseError, NotPermittedError,
            ReadOnlyStateError: nothing was changed.
            NoSpaceLeftError: the disk is full, or the ACL of a whiteout exceeds the capacity;
                nothing was changed.
        """
        if flags not in _RENAME_FLAGS:
            raise InvalidRequestError("invalid rename flags", flags)
        _check_name(new_name)
        moved = self._find(parent, name)
        target = self._find_target(new_parent, new_name, flags)
        if target is not None and target.ino == moved.ino:
            return
        if target is not None:
            require_unprotected(target)
            require_unprotected(inodes.get(self._db, new_parent))
        self._check_move(moved, parent, new_parent)
        if flags == RENAME_EXCHANGE:
            assert target is not None, "_find_target requires a target for an exchange"
            self._check_move(target, new_parent, parent)
            self._mark_move(moved, parent, new_parent)
            self._mark_move(target, new_parent, parent)
            self._exchange(parent, name, moved, new_parent, new_name, target)
            return
        if target is not None:
            self._check_replace(moved, target)
        self._check_whiteout(parent, flags)
        self._mark_move(moved, parent, new_parent)
        self._move(parent, name, moved, new_parent, new_name, target)
        if flags & RENAME_WHITEOUT:
            self._put_whiteout(parent, name, caller)

    def _put_whiteout(self, parent: Ino, name: bytes, owner: Caller) -> None:
        """Create a whiteout in place of a name that was just moved.

        A whiteout is a character device 0:0, which hides the name in an overlayfs. As on ext4, it
        inherits the default ACL of the directory, limited by its mode 0.

        Call this in the transaction of the rename. Source: rename(2), RENAME_WHITEOUT.
        """
        db, now_ns, directory = self._db, self._now_ns(), inodes.get(self._db, parent)
        dentries.add(db, parent, name, Ino(db.counters.next_ino))
        gid = directory.gid if directory.mode & stat.S_ISGID else owner.gid
        created = inodes.create(db, stat.S_IFCHR, owner.uid, gid, parent, now_ns)
        inodes.change_directory(db, parent, now_ns, entries=1)
        self._give_acls(created, self._whiteout_acl(parent), None)

    def _check_whiteout(self, parent: Ino, flags: int) -> None:
        """Raise NoSpaceLeftError if a rename makes a whiteout whose ACL exceeds the capacity."""
        if flags & RENAME_WHITEOUT:
            self._require_room(self._whiteout_acl(parent), None)

    def _whiteout_acl(self, parent: Ino) -> bytes | None:
        """Return the access ACL that a whiteout inherits from its directory, or None."""
        default = self._default_acl(inodes.get(self._db, parent), stat.S_IFCHR)
        inherited = _inherited(default, stat.S_IFCHR)
        return None if inherited is None else inherited.value

    def _find_target(self, new_parent: Ino, new_name: bytes, flags: int) -> Attributes | None:
        """Return the inode that a rename replaces or exchanges, or None.

        Raises:
            NoEntryError: RENAME_EXCHANGE is set, but the name does not exist.
            EntryExistsError: RENAME_NOREPLACE is set, but the name exists.
        """
        target = dentries.find_attributes(self._db, new_parent, new_name)
        if target is None and flags == RENAME_EXCHANGE:
            raise NoEntryError(new_parent, new_name)
        if target is not None and flags & RENAME_NOREPLACE:
            raise EntryExistsError(new_parent, new_name)
        return target

    def _check_move(self, moved: Attributes, parent: Ino, new_parent: Ino) -> None:
        """Raise if the new parent was removed, has too many links, or is in the moved directory."""
        if parent == new_parent:
            return
        directory = self._directory(new_parent)
        if not stat.S_ISDIR(moved.mode):
            return
        if directory.nlink >= LINKS_MAX:
            raise TooManyLinksError(new_parent)
        if self._ancestry.is_below(new_parent, moved.ino, outside=parent):
            raise InvalidRequestError(
                "cannot move a directory into its own subtree: inode", moved.ino
            )

    def _mark_move(self, moved: Attributes, parent: Ino, new_parent: Ino) -> None:
        """If the moved directory has protected inodes, mark its new parent and all parents above.

        The marks remain even if the move then fails.
        """
        is_marked_tree = stat.S_ISDIR(moved.mode) and moved.flags & InodeFlag.HOLDS_LOCKED
        if parent != new_parent and is_marked_tree:
            self._changes.begin(new_parent)
            self._ancestry.mark(new_parent)

    def _check_replace(self, moved: Attributes, target: Attributes) -> None:
        if not stat.S_ISDIR(target.mode):
            if stat.S_ISDIR(moved.mode):
                raise NeedsDirectoryError(target.ino)
            return
        if not stat.S_ISDIR(moved.mode):
            raise RefusesDirectoryError(target.ino)
        if not dentries.is_empty(self._db, target.ino):
            raise DirectoryInUseError(target.ino)

    def _move(
        self,
        parent: Ino,
        name: bytes,
        moved: Attributes,
        new_parent: Ino,
        new_name: bytes,
        target: Attributes | None,
    ) -> None:
        db = self._db
        now_ns = self._now_ns()
        self._changes.begin_entry(parent, name)
        self._changes.also(new_parent, new_name)
        if target is None:
            dentries.move_found(db, parent, name, new_parent, new_name, moved.ino)
        else:
            dentries.replace(db, new_parent, new_name, moved.ino)
            dentries.remove_found(db, parent, name)
        is_directory = int(stat.S_ISDIR(moved.mode))
        replaced_names = int(target is not None)
        # ``_check_replace`` ensures that the target is a directory if the moved inode is one.
        replaced_directories = replaced_names and is_directory
        if parent == new_parent:
            inodes.change_directory(
                db, parent, now_ns, entries=-replaced_names, subdirectories=-replaced_directories
            )
        else:
            inodes.change_directory(db, parent, now_ns, entries=-1, subdirectories=-is_directory)
            inodes.change_directory(
                db,
                new_parent,
                now_ns,
                entries=1 - replaced_names,
                subdirectories=is_directory - replaced_directories,
            )
        self._moved(moved, parent, new_parent, now_ns)
        if target is not None:
            self._lose_name(target, new_parent, now_ns)

    def _exchange(
        self,
        parent: Ino,
        name: bytes,
        moved: Attributes,
        new_parent: Ino,
        new_name: bytes,
        target: Attributes,
    ) -> None:
        db = self._db
        now_ns = self._now_ns()
        self._changes.begin_entry(parent, name)
        self._changes.also(new_parent, new_name)
        dentries.replace(db, parent, name, target.ino)
        dentries.replace(db, new_parent, new_name, moved.ino)
        difference = 0
        if parent != new_parent:
            difference = int(stat.S_ISDIR(target.mode)) - int(stat.S_ISDIR(moved.mode))
            inodes.change_directory(db, new_parent, now_ns, subdirectories=-difference)
        inodes.change_directory(db, parent, now_ns, subdirectories=difference)
        self._moved(moved, parent, new_parent, now_ns)
        self._moved(target, new_parent, parent, now_ns)

    def _moved(self, moved: Attributes, parent: Ino, new_parent: Ino, now_ns: int) -> None:
        inodes.add_links(self._db, moved.ino, 0, now_ns)  # adding 0 links updates only the ctime
        if parent == new_parent:
            return
        if stat.S_ISDIR(moved.mode):
            self._ancestry.moved()
            self._trees.restart_checks()
            inodes.set_parent(self._db, moved.ino, new_parent)
        else:
            hard_links.moved(self._db, moved, parent, new_parent)


def _inherited(default: bytes | None, mode: int) -> acl.WithMode | None:
    """Return the mode and ACL that a new inode inherits from the default ACL of its directory."""
    entries = acl.decode(default) if default else ()
    return acl.inherit(entries, mode) if entries else None


def _check_name(name: bytes) -> None:
    length = len(name)
    if length > NAME_BYTES_MAX:
        raise NameTooLongError(length)
    if length <= _DOT_BYTES_MAX and (not name or name in _DOTS):
        raise InvalidRequestError("invalid name", name)
    if b"/" in name:
        raise InvalidRequestError("invalid name", name)
