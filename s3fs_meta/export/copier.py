"""Files of a metadata database, copied out into a directory.

Owns: making them, with content, modes, owners, times, attributes, links, holes, special files;
saying what is missing. Does not know: which are wanted, where content comes from.
Keeps: nothing outside the target is written. Names are made by their paths, so a user who gives a
symbolic link before a directory of the same name (damaged rows) has made a mistake; all else is
done to descriptors, which no name can lead astray.
"""

import contextlib
import logging
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import trio

from s3fs_meta.cache.block_files import write_all
from s3fs_meta.errors import UsageError
from s3fs_meta.fs.xattrs import CAPABILITY
from s3fs_meta.limits import CONTENT_RUN_BYTES, INCOMPLETE_FILES_TOLD_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, properties, symlinks, xattrs
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import Attributes, BlockIndex, Ino, InodeFlag
from s3fs_meta.sync.block_content import Content

_log = logging.getLogger(__name__)

_SHOWN_MAX: Final = 20  # incomplete files that are listed
_ENTERED: Final = stat.S_IRUSR | stat.S_IXUSR
_OWNERS: Final = "owners"  # key in Copier.refused, beside the names of attributes
_SPECIAL: Final = "special files"
_DEVICES: Final = "devices"  # key in Copier.refused and in Copier.left_out
_BITS: Final = "set-user-ID and set-group-ID bits"
_CAPABILITIES: Final = "file capabilities"
_DEVICE_TYPES: Final = (stat.S_IFCHR, stat.S_IFBLK)
_POWER: Final = stat.S_ISUID | stat.S_ISGID


class CopiedFile(NamedTuple):
    """One file, and which bytes of it are not as they should be: first and last of each stretch."""

    path: bytes
    size_bytes: int
    missing: list[tuple[int, int]]  # the missing range is a hole in the copy
    unsure: list[tuple[int, int]]  # copied, but the content was not synced before a power loss


class Source(Protocol):
    """Where content comes from."""

    async def read(self, wanted: Sequence[Located]) -> list[Content]:
        """Return the content of blocks, in their order. Raises StoreError."""
        ...


class Empty(NamedTuple):
    """A file that has its name, and is to be filled."""

    fd: int
    path: bytes
    attributes: Attributes


class Copier:
    """Copies inodes of one database below one directory."""

    def __init__(
        self, db: Database, source: Source, target: Path, *, privileges: bool = True
    ) -> None:
        """Make copies below one directory.

        Args:
            db: has the inodes.
            source: has their content.
            target: the directory.
            privileges: copy what gives power to other users of the copy, too: set-user-ID and
                set-group-ID bits of files, file capabilities, devices.
        """
        self._db = db
        self._source = source
        self._target = os.fsencode(target)
        self._block_bytes = int(properties.get(db, "block_bytes"))
        self._batch_blocks = max(1, CONTENT_RUN_BYTES // self._block_bytes)
        self._firsts: dict[Ino, bytes] = {}  # paths of inodes with more than one name
        self._put_off: list[tuple[Attributes, bytes]] = []
        self._is_root = os.geteuid() == 0
        self._privileges = privileges
        self.left_out: Counter[str] = Counter()  # number of dropped privileges of each kind
        # Number of entries and attributes of each kind that the target refused.
        self.refused: Counter[str] = Counter()

    # --- names -----------------------------------------------------------------------------------

    def make_directory(self, path: bytes) -> None:
        """Make a directory that only this user can enter, until ``finish_directory``."""
        os.mkdir(self._place(path), 0o700)

    def finish_directory(self, attributes: Attributes, path: bytes) -> None:
        """Give a directory what its inode says, when everything is in it.

        One that this user could not enter then is postponed to ``finish``: names in it may be linked.
        """
        if not self._is_root and attributes.mode & _ENTERED != _ENTERED:
            self._put_off.append((attributes, path))
        else:
            self._finish_directory(attributes, path)

    def finish(self) -> None:
        """Apply the postponed attributes of directories; the last call."""
        for attributes, path in self._put_off:  # inner directories first
            self._finish_directory(attributes, path)
        self._put_off.clear()

    def _finish_directory(self, attributes: Attributes, path: bytes) -> None:
        fd = os.open(self._place(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            self._set_attributes(fd, attributes)
        finally:
            os.close(fd)

    def make(self, attributes: Attributes, path: bytes, *, again: bool) -> Empty | None:
        """Make one name of an inode that is no directory; its directory must be there.

        Args:
            attributes: of the inode.
            path: below the target.
            again: further names of it may come.

        Returns:
            A regular file, which is to be given to ``fill``; None where nothing is left to do.
        """
        place, first = self._place(path), self._firsts.get(attributes.ino)
        if first is not None:
            os.link(first, place, follow_symlinks=False)
            return None
        if stat.S_ISREG(attributes.mode):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            made = Empty(os.open(place, flags, 0o600), path, attributes)
        else:
            made = None
            if not self._make_other(attributes, place):
                return None
        if again:
            self._firsts[attributes.ino] = place
        return made

    def _make_other(self, attributes: Attributes, place: bytes) -> bool:
        """Make a symbolic link or a special file; return whether that was possible."""
        if stat.S_ISLNK(attributes.mode):
            os.symlink(symlinks.target(self._db, attributes.ino), place)
        elif self._leaves_out(_DEVICES, stat.S_IFMT(attributes.mode) in _DEVICE_TYPES):
            return False
        else:
            try:
                os.mknod(place, stat.S_IFMT(attributes.mode) | 0o600, attributes.rdev)
            except PermissionError as exc:  # only root may create devices
                _log.info("cannot create the special file %s: %s", os.fsdecode(place), exc)
                self.refused[_SPECIAL] += 1
                return False
        self._set_attributes(place, attributes)
        return True

    def _place(self, path: bytes) -> bytes:
        return os.path.join(self._target, path) if path else self._target

    # --- content ---------------------------------------------------------------------------------

    async def fill(self, file: Empty) -> CopiedFile:
        """Write the content of a file, and what else its inode says; close it.

        Raises:
            StoreError: the bucket cannot be reached.
            OSError: the target cannot be written.
        """
        attributes = file.attributes
        copied = CopiedFile(file.path, attributes.size_bytes, [], [])
        try:
            os.ftruncate(file.fd, attributes.size_bytes)
            for batch in self._batches(attributes.ino):
                contents = await self._source.read([located for _index, located in batch])
                await trio.to_thread.run_sync(self._write, file.fd, batch, contents)
                for (index, located), content in zip(batch, contents, strict=True):
                    self._note(copied, index * self._block_bytes, located, content)
            self._set_attributes(file.fd, attributes)
        finally:
            os.close(file.fd)
        return copied

    def _batches(self, ino: Ino) -> Iterator[list[tuple[BlockIndex, Located]]]:
        after = BlockIndex(0)
        while mapped := block_map.indexes_from(self._db, ino, after, self._batch_blocks):
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
            copied.missing.append((start + length, start + located.plain_bytes - 1))
        if content.sure_bytes < length:
            copied.unsure.append((start + content.sure_bytes, start + length - 1))

    # --- attributes ------------------------------------------------------------------------------

    def _set_attributes(self, what: int | bytes, attributes: Attributes) -> None:
        """Give a copy what its inode says, as far as this user and that filesystem allow.

        The owner first, since a change of it takes capabilities and bits away; the mode after the
        attributes, for which the owner may need its bits.
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
            os.fchmod(what, mode)
            os.utime(what, ns=times)
            return
        if not stat.S_ISLNK(attributes.mode):
            os.chmod(what, mode)
        os.utime(what, ns=times, follow_symlinks=False)

    def _leaves_out(self, what: str, gives_power: bool) -> bool:
        """Return whether something is not copied because of the power that it gives; count it."""
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
        """Pass over what the target refuses, and count it."""
        try:
            yield
        except OSError as exc:
            _log.info("cannot set %s: %s", what, exc)
            self.refused[what] += 1


def is_name(name: bytes) -> bool:
    """Return whether bytes can name something in a directory; damaged rows may hold others."""
    return name not in {b"", b".", b".."} and b"/" not in name and b"\0" not in name


def require_empty(target: Path) -> None:
    """Make a directory, or take one that is empty.

    Raises:
        UsageError: neither is possible.
    """
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise UsageError(f"{str(target)!r} is not empty")
    except OSError as exc:
        raise UsageError(f"{str(target)!r} cannot be used: {exc.strerror}") from exc


class Tally:
    """Counts of what was copied."""

    def __init__(self) -> None:
        self.files = 0
        self.size_bytes = 0
        self.incomplete_files = 0
        # The first incomplete files; the others are only counted.
        self.incomplete: list[CopiedFile] = []

    def add(self, copied: CopiedFile) -> None:
        """Count one file."""
        self.files += 1
        self.size_bytes += copied.size_bytes
        if copied.missing or copied.unsure:
            self.incomplete_files += 1
            if len(self.incomplete) < INCOMPLETE_FILES_TOLD_MAX:
                self.incomplete.append(copied)

    def facts(self, copier: Copier) -> dict[str, Any]:
        """Return the sums for programs, as JSON; *copier* made the files."""
        return {
            "files": self.files,
            "bytes": self.size_bytes,
            "incomplete": [
                {"path": os.fsdecode(one.path), "missing": one.missing, "unsure": one.unsure}
                for one in self.incomplete
            ],
            "incomplete_files": self.incomplete_files,
            "refused": dict(copier.refused),
            "left_out": dict(copier.left_out),
        }

    def lines(self, copier: Copier) -> Iterator[str]:
        """Yield lines for people, beside the sums: what is incomplete or left out."""
        for one in self.incomplete[:_SHOWN_MAX]:
            for what, ranges in (("are missing", one.missing), ("were never synced", one.unsure)):
                if ranges:
                    text = ", ".join(f"{first}-{last}" for first, last in ranges)
                    yield f"  bytes {text} {what} in {os.fsdecode(one.path)!r}"
        if self.incomplete_files > _SHOWN_MAX:
            yield f"  … and {self.incomplete_files - _SHOWN_MAX} more that are not complete"
        for why, counted in (
            ("this user or that filesystem did not allow", copier.refused),
            ("left out as --no-privileges asks", copier.left_out),
        ):
            if counted:
                text = ", ".join(f"{name} ({count})" for name, count in sorted(counted.items()))
                yield f"  {why}: {text}"
