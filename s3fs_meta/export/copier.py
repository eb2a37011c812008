"""Copying files from a metadata database into a directory.

Owns: creating files with content, modes, owners, times, attributes, links, holes; special files;
reporting missing content. Does not know: the choice of files, the source of their content.
Keeps: no file outside the target is written. Entries are created by path. So if damaged rows
contain a symbolic link and a directory of the same name, the caller must copy the directory first.
All other operations use file descriptors, which no symbolic link can redirect.
"""

import contextlib
import errno
import logging
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.files.block_files import write_all
from s3fs_meta.counted import counted
from s3fs_meta.errors import CorruptionError, MetadataError, NoInodeError, UsageError
from s3fs_meta.fs.xattrs import CAPABILITY
from s3fs_meta.limits import (
    CONTENT_RUN_BYTES,
    FILE_BYTES_MAX,
    INCOMPLETE_FILES_SHOWN_MAX,
    NAME_BYTES_MAX,
    SYMLINK_BYTES_MAX,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, properties, symlinks, xattrs
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import FILE_TYPES, Attributes, BlockIndex, Ino, InodeFlag
from s3fs_meta.sync.uncached_reads import Content

_log = logging.getLogger(__name__)

_SHOWN_MAX: Final = 20  # maximum number of incomplete files to list
_RANGES_SHOWN_MAX: Final = 10  # maximum number of byte ranges to list for a file
_LINKS_SHOWN_MAX: Final = 10  # maximum number of hard links to list for a file
_ENTERED: Final = stat.S_IRUSR | stat.S_IXUSR
_OWNERS: Final = "owners"  # key in Copier.refused for owners that could not be set
_SPECIAL: Final = "special files"
_SYMLINKS: Final = "symbolic links"
_LINKS: Final = "hard links, copied as separate files"
_PERMISSIONS: Final = "permissions"
# Errors of a target filesystem that does not support an operation or does not permit it.
_NOT_PERMITTED: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
# Errors of a target filesystem that does not accept the name or the size of one file.
_NOT_ACCEPTED: Final = frozenset(
    {errno.EINVAL, errno.EILSEQ, errno.ENAMETOOLONG, errno.EEXIST, errno.EFBIG}
)
_DEVICES: Final = "devices"  # key in Copier.refused and in Copier.left_out for device files
_BITS: Final = "set-user-ID and set-group-ID bits"
_CAPABILITIES: Final = "file capabilities"
_DEVICE_TYPES: Final = (stat.S_IFCHR, stat.S_IFBLK)
_POWER: Final = stat.S_ISUID | stat.S_ISGID


class CopiedFile(NamedTuple):
    """One copied file, and its missing or unreliable byte ranges (first and last byte)."""

    path: bytes
    size_bytes: int
    missing: list[tuple[int, int]]  # byte ranges of lost content, which are holes in the copy
    unsure: list[tuple[int, int]]  # byte ranges that were not synced before a power loss
    why: str = ""  # reason why the entry was not copied, or was copied only in part
    links: Sequence[bytes] = ()  # paths of hard links to the copy; the copier may add more

    @property
    def is_complete(self) -> bool:
        """Return whether the copy has all content and attributes of the file."""
        return not (self.missing or self.unsure or self.why)


class ContentSource(Protocol):
    """An object from which the copier gets the contents of blocks."""

    async def read(self, wanted: Sequence[Located]) -> list[Content]:
        """Return the content of blocks, in the given order.

        Raises:
            StoreError: the bucket cannot be reached.
        """
        ...


class Empty(NamedTuple):
    """A regular file that was created in the target, but has no content yet."""

    fd: int
    path: bytes
    attributes: Attributes
    links: Sequence[bytes]  # paths of hard links to the file; the copier may add more


class Copier:
    """Copies inodes of one metadata database into one target directory."""

    def __init__(
        self,
        db: Database,
        source: ContentSource,
        target: Path,
        *,
        privileges: bool = True,
        block_bytes: int | None = None,
    ) -> None:
        """Prepare to copy into one directory.

        Args:
            db: the database with the inodes.
            source: returns the content of blocks.
            target: the directory to copy to.
            privileges: True to copy also set-user-ID and set-group-ID bits of files, file
                capabilities and devices; these give privileges to users of the copy.
            block_bytes: the block size of the filesystem; None for the block size in *db*.
        """
        self._db = db
        self._source = source
        self._target = os.fsencode(target)
        self._block_bytes = block_bytes or int(properties.get(db, "block_bytes"))
        self._batch_blocks = max(1, CONTENT_RUN_BYTES // self._block_bytes)
        # For each inode with hard links, the first path that was copied.
        self._firsts: dict[Ino, bytes] = {}
        # For each hard-linked inode without a complete copy, the paths linked to its first path.
        self._links: dict[Ino, list[bytes]] = {}
        self._put_off: list[tuple[Attributes, bytes]] = []
        self._is_root = os.geteuid() == 0
        self._privileges = privileges
        self.left_out: Counter[str] = Counter()  # number of omitted privileges, by kind
        # Number of entries and attributes that the target refused, by kind.
        self.refused: Counter[str] = Counter()

    # --- create directories and names ------------------------------------------------------------

    def make_directory(self, path: bytes) -> None:
        """Create a directory that only this user can enter, until ``finish_directory``."""
        os.mkdir(self._place(path), 0o700)

    def finish_directory(self, attributes: Attributes, path: bytes) -> None:
        """Apply the attributes of a directory after its last entry was created.

        If the attributes would deny this user access to the directory, ``finish`` applies them,
        because files in the directory may get further hard links.
        """
        if not self._is_root and attributes.mode & _ENTERED != _ENTERED:
            self._put_off.append((attributes, path))
        else:
            self._finish_directory(attributes, path)

    def finish(self, tally: "Tally") -> None:
        """Apply the postponed attributes of directories; the caller must call this method last."""
        for attributes, path in self._put_off:  # subdirectories precede their parents
            with tally.noting_faults(path):
                self._finish_directory(attributes, path)
        self._put_off.clear()

    def _finish_directory(self, attributes: Attributes, path: bytes) -> None:
        fd = os.open(self._place(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            self._set_attributes(fd, attributes)
        finally:
            os.close(fd)

    def make(self, attributes: Attributes, path: bytes, *, again: bool) -> Empty | None:
        """Create one name of an inode that is not a directory; the parent directory must exist.

        Args:
            attributes: attributes of the inode.
            path: path relative to the target.
            again: True if other names of the inode may follow.

        Returns:
            A regular file without content, for ``fill``; None if there is no content to write.

        Raises:
            CorruptionError, NoInodeError: damaged rows; perhaps the name was created.
            OSError: the target cannot be written.
        """
        require_type(attributes)
        if stat.S_ISREG(attributes.mode) and attributes.size_bytes > FILE_BYTES_MAX:
            raise MetadataError("the size of the file is invalid", attributes.ino)
        place, first = self._place(path), self._firsts.get(attributes.ino)
        if first is not None:
            link = partial(os.link, first, place, follow_symlinks=False)
            if self._is_made(_LINKS, place, link):
                if attributes.ino in self._links:
                    self._links[attributes.ino].append(path)
                return None
        links: list[bytes] = []
        if stat.S_ISREG(attributes.mode):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            made = Empty(os.open(place, flags, 0o600), path, attributes, links if again else ())
        else:
            made = None
            if not self._make_other(attributes, place):
                return None
        if again:
            self._firsts[attributes.ino] = place
            if made is not None:
                self._links[attributes.ino] = links
        return made

    def _is_made(self, kind: str, place: bytes, make: Callable[[], None]) -> bool:
        """Create a name; if the target does not permit this kind, count it and return False.

        FAT has no links, and only root may create device files.
        """
        try:
            make()
        except OSError as exc:
            if exc.errno not in _NOT_PERMITTED:
                raise
            _log.info("cannot create %s (%s): %s", os.fsdecode(place), kind, exc)
            self.refused[kind] += 1
            return False
        return True

    def _make_other(self, attributes: Attributes, place: bytes) -> bool:
        """Create a symbolic link or a special file; return whether it was created."""
        if stat.S_ISLNK(attributes.mode):
            make = partial(os.symlink, self._target_of(attributes.ino), place)
            kind = _SYMLINKS
        elif self._leaves_out(_DEVICES, stat.S_IFMT(attributes.mode) in _DEVICE_TYPES):
            return False
        else:
            mode = stat.S_IFMT(attributes.mode) | 0o600
            make, kind = partial(os.mknod, place, mode, attributes.rdev), _SPECIAL
        if not self._is_made(kind, place, make):
            return False
        self._set_attributes(place, attributes)
        return True

    def _target_of(self, ino: Ino) -> bytes:
        """Return the target of a symbolic link; raise an error if symlink(2) would refuse it."""
        found = symlinks.target(self._db, ino)
        if not 0 < len(found) <= SYMLINK_BYTES_MAX or b"\0" in found:
            raise MetadataError("the target of the symbolic link is invalid", ino)
        return found

    @property
    def path_bytes_max(self) -> int:
        """Return the maximum length of a path below the target.

        System calls refuse a longer path; a symbolic link's target has the same limit.
        """
        return SYMLINK_BYTES_MAX - len(self._target) - len(b"/")

    def _place(self, path: bytes) -> bytes:
        return os.path.join(self._target, path) if path else self._target

    # --- copy file content -----------------------------------------------------------------------

    async def fill(self, file: Empty) -> CopiedFile:
        """Write the content and the attributes of a file, and close it.

        Raises:
            CorruptionError: damaged rows; the file lacks content and attributes.
            StoreError: the bucket cannot be reached.
            OSError: the target cannot be written.
        """
        attributes = file.attributes
        copied = CopiedFile(file.path, attributes.size_bytes, [], [], links=file.links)
        try:
            os.ftruncate(file.fd, attributes.size_bytes)
            for batch in self._batches(attributes.ino):
                contents = await self._source.read([located for _index, located in batch])
                await in_thread(self._write, file.fd, batch, contents)
                for (index, located), content in zip(batch, contents, strict=True):
                    self._note(copied, index * self._block_bytes, located, content)
            self._set_attributes(file.fd, attributes)
        except OSError as exc:
            if exc.filename is None:
                # Add the path, because the failed system call had only a descriptor.
                raise OSError(exc.errno, exc.strerror, self._place(file.path)) from exc
            raise
        finally:
            os.close(file.fd)
        if copied.is_complete and self._links.get(attributes.ino) is file.links:
            del self._links[attributes.ino]
        return copied

    def _batches(self, ino: Ino) -> Iterator[list[tuple[BlockIndex, Located]]]:
        after = BlockIndex(0)
        while mapped := block_map.indexes_from(self._db, ino, after, self._batch_blocks):
            if mapped[-1][0] * self._block_bytes >= FILE_BYTES_MAX:
                raise MetadataError("a block is beyond the maximum file size", ino)
            located = block_map.locate_range(self._db, ino, mapped[0][0], mapped[-1][0])
            yield sorted(located.items())
            after = BlockIndex(mapped[-1][0] + 1)

    def _write(
        self, fd: int, batch: Sequence[tuple[BlockIndex, Located]], contents: Sequence[Content]
    ) -> None:
        for (index, _located), content in zip(batch, contents, strict=True):
            write_all(fd, index * self._block_bytes, content.data)

    def _note(self, copied: CopiedFile, start: int, located: Located, content: Content) -> None:
        length = len(content.data)
        if length < located.plain_bytes:
            _extend(copied.missing, start + length, start + located.plain_bytes - 1)
        if content.sure_bytes < length:
            _extend(copied.unsure, start + content.sure_bytes, start + length - 1)

    # --- copy attributes -------------------------------------------------------------------------

    def _set_attributes(self, what: int | bytes, attributes: Attributes) -> None:
        """Apply to a copy all attributes that the user and the target filesystem permit.

        The owner is set first, because chown clears capabilities and set-user-ID bits. The mode is
        set last, because extended attributes may need the permission bits of the owner.
        """
        if self._is_root:
            with self._noting(_OWNERS):
                self._chown(what, attributes)
        if attributes.flags & InodeFlag.HAS_XATTRS:
            follow: dict[str, bool] = {} if isinstance(what, int) else {"follow_symlinks": False}
            for name, value in xattrs.items(self._db, attributes.ino):
                if self._leaves_out(_CAPABILITIES, name == CAPABILITY):
                    continue
                with self._noting(os.fsdecode(name)):
                    os.setxattr(what, name, value, **follow)
        times = (attributes.atime_ns, attributes.mtime_ns)
        mode = stat.S_IMODE(attributes.mode)
        if self._leaves_out(_BITS, stat.S_ISREG(attributes.mode) and bool(mode & _POWER)):
            mode &= ~_POWER
        if isinstance(what, int):
            with self._noting(_PERMISSIONS):
                os.fchmod(what, mode)
            os.utime(what, ns=times)
            return
        if not stat.S_ISLNK(attributes.mode):
            with self._noting(_PERMISSIONS):
                os.chmod(what, mode)
        os.utime(what, ns=times, follow_symlinks=False)

    def _leaves_out(self, what: str, gives_power: bool) -> bool:
        """Return whether to omit an attribute that gives privileges; count the omission."""
        if self._privileges or not gives_power:
            return False
        self.left_out[what] += 1
        return True

    def _chown(self, what: int | bytes, attributes: Attributes) -> None:
        if isinstance(what, int):
            os.fchown(what, attributes.uid, attributes.gid)
        else:
            os.lchown(what, attributes.uid, attributes.gid)

    @contextlib.contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        """If a context raises OSError or ValueError, suppress it, and count *what* as refused.

        Python raises ValueError if the name of an attribute contains a NUL byte.
        """
        try:
            yield
        except (OSError, ValueError) as exc:
            _log.info("cannot set %s: %s", what, exc)
            self.refused[what] += 1


def require_type(attributes: Attributes) -> None:
    """Raise MetadataError for an inode of an unknown type; an unreadable row has type 0.

    Raises:
        MetadataError: the row of the inode is damaged.
    """
    if stat.S_IFMT(attributes.mode) not in FILE_TYPES:
        raise MetadataError("the file type is unknown", attributes.ino)


def is_name(name: bytes) -> bool:
    """Return whether a name is valid; damaged rows may contain invalid names."""
    is_short = 0 < len(name) <= NAME_BYTES_MAX
    return is_short and name not in {b".", b".."} and b"/" not in name and b"\0" not in name


def require_empty(target: Path) -> None:
    """Raise UsageError if a directory has entries.

    Raises:
        UsageError: the directory is not empty, or cannot be read.
    """
    try:
        if any(target.iterdir()):
            raise UsageError(f"the target directory {str(target)!r} is not empty")
    except OSError as exc:
        raise UsageError(
            f"the target directory {str(target)!r} cannot be used: {exc.strerror}"
        ) from exc


class Tally:
    """A report about a copy: the numbers of copied and incomplete files."""

    def __init__(self) -> None:
        self.files = 0
        self.size_bytes = 0
        self.incomplete_files = 0
        self.refused_files = 0  # number of incomplete entries that only the target refused
        # The first INCOMPLETE_FILES_SHOWN_MAX incomplete entries; all others are only counted.
        self.incomplete: list[CopiedFile] = []

    def add(self, copied: CopiedFile) -> None:
        """Count a copied file."""
        self.files += 1
        self.size_bytes += copied.size_bytes
        if not copied.is_complete:
            self._list(copied)

    def omit(self, path: bytes, why: str, links: Sequence[bytes] = ()) -> None:
        """Count an entry that damage prevented from being copied completely."""
        _log.info("%r is not copied: %s", os.fsdecode(path), why)
        self._list(CopiedFile(path, 0, [], [], why, links))

    def refuse(self, path: bytes, why: str, links: Sequence[bytes] = ()) -> None:
        """Count an entry that the target filesystem does not accept."""
        self.omit(path, why, links)
        self.refused_files += 1

    @contextlib.contextmanager
    def noting_faults(self, path: bytes, links: Sequence[bytes] = ()) -> Iterator[None]:
        """Count an entry as incomplete if it cannot be copied; continue with the other entries.

        Rows may be damaged, or the target may refuse the name or the size: FAT accepts neither
        colons nor files of 4 GiB, and some targets ignore case.
        """
        try:
            yield
        except (CorruptionError, NoInodeError) as exc:
            self.omit(path, exc.message, links)
        except OSError as exc:
            if exc.errno not in _NOT_ACCEPTED or exc.filename is None:
                raise
            self.refuse(path, f"the target does not accept it ({exc.strerror})", links)

    def _list(self, incomplete: CopiedFile) -> None:
        self.incomplete_files += 1
        if len(self.incomplete) < INCOMPLETE_FILES_SHOWN_MAX:
            self.incomplete.append(incomplete)

    @property
    def found_damage(self) -> bool:
        """Return whether an entry is incomplete because of damage in the filesystem."""
        return self.incomplete_files > self.refused_files

    def facts(self, copier: Copier) -> dict[str, Any]:
        """Return the counts of this report and of *copier* as a JSON object."""
        return {
            "files": self.files,
            "bytes": self.size_bytes,
            "incomplete": [
                {
                    "path": os.fsdecode(one.path),
                    "links": [os.fsdecode(link) for link in one.links],
                    "missing": one.missing,
                    "unsure": one.unsure,
                    "why": one.why,
                }
                for one in self.incomplete
            ],
            "incomplete_files": self.incomplete_files,
            "refused_files": self.refused_files,
            "refused": dict(copier.refused),
            "left_out": dict(copier.left_out),
        }

    def lines(self, copier: Copier) -> Iterator[str]:
        """Yield lines for the user about incomplete files and omitted attributes."""
        for one in self.incomplete[:_SHOWN_MAX]:
            names = _named(one)
            if one.why:
                yield f"  {names} is not copied, or not complete: {one.why}"
            for what, ranges in (("are missing", one.missing), ("were never synced", one.unsure)):
                if ranges:
                    yield f"  bytes {_described(ranges)} {what} in {names}"
        if self.incomplete_files > _SHOWN_MAX:
            yield f"  … and {self.incomplete_files - _SHOWN_MAX} more files that are not complete"
        for why, counts in (
            ("not copied (no permission, or unsupported by the target)", copier.refused),
            ("omitted because of --no-privileges", copier.left_out),
        ):
            if counts:
                text = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
                yield f"  {why}: {text}"


def _extend(ranges: list[tuple[int, int]], first: int, last: int) -> None:
    """Append a byte range, or extend the last range if the new one follows it directly."""
    if ranges and ranges[-1][1] + 1 == first:
        first = ranges.pop()[0]
    ranges.append((first, last))


def _named(copied: CopiedFile) -> str:
    """Return the path of a file, the first paths of its hard links, and the number of the others."""
    path = repr(os.fsdecode(copied.path))
    if not copied.links:
        return path
    text = ", ".join(repr(os.fsdecode(link)) for link in copied.links[:_LINKS_SHOWN_MAX])
    more = len(copied.links) - _LINKS_SHOWN_MAX
    return f"{path} (hard links: {text}{f' and {more} more' if more > 0 else ''})"


def _described(ranges: Sequence[tuple[int, int]]) -> str:
    """Return the first byte ranges as text, and the number of the remaining ranges."""
    text = ", ".join(f"{first}-{last}" for first, last in ranges[:_RANGES_SHOWN_MAX])
    more = len(ranges) - _RANGES_SHOWN_MAX
    return text if more <= 0 else f"{text} and {counted(more, 'more range')}"
