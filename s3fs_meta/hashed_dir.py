"""A tree of files; directories are created on demand, and removed when they are empty.

Owns: creating a directory when a file needs it, and removing it with its last file.
Does not know: the meaning of the files, and when they must be durable.
Used by: the block cache (``NumberedDir``) and the local object store (``PrunedTree``).

Creating and pruning need no lock. rmdir(2) removes a directory only if it is empty. If a directory
is missing, the operation creates the directory and retries. Each unlink tries rmdir(2), and so does
a failed operation that created a directory. So empty directories remain only after a crash, and
``prune_all`` removes them.

All methods are synchronous, block on the disk, and may be called from several threads in parallel.
"""

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from typing_extensions import override

from s3fs_meta.errors import SettingsError
from s3fs_meta.limits import PRUNE_ATTEMPTS_MAX, WRITTEN_AGAIN_BYTES
from s3fs_meta.state_paths import open_regular

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
# O_NONBLOCK makes open(2) return at once for a FIFO, and does not affect regular files.
_CLOSED: Final = os.O_CLOEXEC | os.O_NONBLOCK
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_ANY: Final = "xxx"  # placeholder of three hexadecimal digits: at most 4,096 files per directory
_DIGITS: Final = len(_ANY)
# Errors of rmdir(2) that are ignored; the directory stays.
_NOT_REMOVED: Final = frozenset(
    {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.EBUSY, errno.ENAMETOOLONG}
)

_Result = TypeVar("_Result")


class PrunedTree:
    """Files named by their path relative to *root*; *root* itself is never created or removed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._root = os.fspath(root)

    def path(self, name: str) -> Path:
        """Return the path of the file *name*, without I/O; the file need not exist."""
        return Path(self._location(name))

    def _location(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _name(self, location: str) -> str:
        return location[len(self._root) + 1 :]

    def open(self, name: str, flags: int, mode: int = FILE_MODE) -> int:
        """Open a file; O_CREAT also creates missing directories. Return the descriptor.

        Raises:
            FileNotFoundError: the file or *root* does not exist.
        """
        location = self._location(name)
        try:
            return os.open(location, flags | _CLOSED, mode)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
        return self._with_parents(location, lambda: os.open(location, flags | _CLOSED, mode))

    def put_from(self, source: Path, name: str) -> None:
        """Move *source* to *name*; atomically replace an existing file. The move is not durable.

        Raises:
            FileNotFoundError: *source* or *root* does not exist.
        """
        location = self._location(name)
        self._with_parents(location, lambda: os.rename(source, location), source)

    def rename(self, name: str, new: str) -> None:
        """Rename a file; atomically replace an existing file. The new name is not durable.

        Raises:
            FileNotFoundError: the file or *root* does not exist.
        """
        old_location, location = self._location(name), self._location(new)
        self._with_parents(location, lambda: os.rename(old_location, location), old_location)
        if old_location.rpartition("/")[0] != location.rpartition("/")[0]:
            self._prune_above(old_location)

    def move_to(self, other: "PrunedTree", name: str) -> None:
        """Move a file to another tree on the same disk, with the same name; not yet durable.

        No other task or thread may create files in the other tree.

        Raises:
            FileExistsError: the other tree has a file of this name; nothing was changed.
            FileNotFoundError: the file does not exist.
        """
        location, target = self._location(name), other.path(name)
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        other.put_from(Path(location), name)
        self._prune_above(location)

    def link_new(self, source: Path, name: str) -> None:
        """Link *source* to *name* atomically if no file has that name. The link is not durable.

        Raises:
            FileExistsError: a file has the name; nothing was changed.
            FileNotFoundError: *source* or *root* does not exist.
        """
        location = self._location(name)
        self._with_parents(
            location, lambda: os.link(source, location, follow_symlinks=False), source
        )

    def remove(self, name: str) -> bool:
        """Remove a file, and each directory that becomes empty; return whether the file existed."""
        location = self._location(name)
        try:
            os.unlink(location)
        except FileNotFoundError:
            return False
        self._prune_above(location)
        return True

    def remove_all(self, names: Iterable[str]) -> list[tuple[str, OSError]]:
        """Remove files, then each directory that became empty.

        A file that cannot be removed does not prevent the removal of the others.

        Returns:
            The files that could not be removed, with their errors.
        """
        last_in: dict[str, str] = {}
        left: list[tuple[str, OSError]] = []
        for name in names:
            location = self._location(name)
            try:
                os.unlink(location)
            except FileNotFoundError:
                continue
            except OSError as exc:
                left.append((name, exc))
                continue
            last_in[location.rpartition("/")[0]] = location
        for location in last_in.values():
            self._prune_above(location)
        return left

    def names(self) -> Iterator[str]:
        """Yield the name of every file, in no particular order.

        Files that are created or removed during the listing may be included. Links to directories
        are not followed.
        """
        for directory, _, files in os.walk(self._root, onerror=_pass_over_pruned):
            for file in files:
                yield self._name(f"{directory}/{file}")

    def sync_parents(self, names: Iterable[str]) -> None:
        """Make the names of files durable: fsync each directory above them once, then *root*.

        Directories that another thread has pruned are skipped, because their files were removed.
        """
        places = [self._location(name) for name in names]
        if not places:
            return
        above = {
            directory for location in places for directory in self._directories_above(location)
        }
        for directory in sorted(
            above, key=len, reverse=True
        ):  # Sync each directory before its parent.
            with contextlib.suppress(FileNotFoundError):
                sync_path(directory)
        self._sync_root()

    def _sync_root(self) -> None:
        sync_path(self._root)

    def prune_all(self) -> int:
        """Remove the empty directories that a crash left below *root*; return their number.

        If link counts report the number of subdirectories, the time depends only on the number of
        directories, not on the number of files. (On Btrfs every link count is one.)

        The walk is iterative, because other programs may have created more levels of directories
        than Python can recurse into. Directories whose paths are too long for the kernel stay.
        """
        removed = 0
        path = [(self._root, iter(_subdirectories(self._root)))]
        while path:
            directory, below = path[-1]
            location = next(below, None)
            if location is not None:
                path.append((location, iter(_inner_directories(location))))
                continue
            path.pop()
            removed += bool(path) and _rmdir_if_empty(directory)
        return removed

    def _with_parents(
        self, location: str, action: Callable[[], _Result], source: Path | str | None = None
    ) -> _Result:
        """Run *action*; if directories above *location* are missing, create them and retry."""
        for _ in range(PRUNE_ATTEMPTS_MAX):
            try:
                return action()
            except FileNotFoundError:
                # A parent directory does not exist yet, or another thread has removed it.
                if source is not None and not os.path.lexists(source):
                    self._prune_above(location)
                    raise
            except OSError:
                self._prune_above(location)
                raise
            self._make_parents(location)
        raise FileNotFoundError(
            errno.ENOENT, "another thread repeatedly removed the parent directory", location
        )

    def _make_parents(self, location: str) -> None:
        """Create missing directories above *location*; the caller retries if a thread prunes one."""
        directories = self._directories_above(location)
        if not directories:
            raise FileNotFoundError(errno.ENOENT, "the root directory was removed", self._root)
        for directory in reversed(directories):
            try:
                self._make_directory(directory)
            except FileExistsError:
                continue
            except FileNotFoundError:
                if directory == directories[-1]:
                    raise  # the root directory does not exist
                return  # another thread has removed the new parent directory
            except OSError:
                self._prune_above(location)
                raise

    def _make_directory(self, directory: str) -> None:
        os.mkdir(directory, DIRECTORY_MODE)

    def _prune_above(self, location: str) -> None:
        for directory in self._directories_above(location):
            if not _rmdir_if_empty(directory):
                return

    def _directories_above(self, location: str) -> list[str]:
        """Return the directories between *root* and *location* (both excluded), deepest first."""
        parts = location[len(self._root) + 1 :].split("/")[:-1]
        return ["/".join([self._root, *parts[:depth]]) for depth in range(len(parts), 0, -1)]


class NumberedDir(PrunedTree):
    """Files named by hexadecimal numbers, in one directory per 4,096 consecutive numbers.

    The name of a directory has ``xxx`` instead of the last three digits. Files of consecutive
    numbers are in the same directory, so fewer directories must be synced. On ext4, creating a file
    in this way is four times as fast as in one of 256 directories chosen by a hash.
    Only this process creates directories below *root*. So *root* is synced only if this process has
    created a directory since the last sync.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._making = threading.Lock()  # lock for creating and counting directories
        self._made = 1  # number of directories that this process created, plus 1
        self._made_synced = 0  # value of ``_made`` at the last sync of the root

    @override
    def _make_directory(self, directory: str) -> None:
        with self._making:
            super()._make_directory(directory)
            self._made += 1

    @override
    def _sync_root(self) -> None:
        with self._making:
            made = self._made
        if made > self._made_synced:
            super()._sync_root()
            self._made_synced = max(self._made_synced, made)

    @override
    def _location(self, name: str) -> str:
        return f"{self._root}/{name[:-_DIGITS]}{_ANY}/{name}"

    @override
    def _name(self, location: str) -> str:
        return location.rpartition("/")[2]

    def numbers(self, first: int) -> Iterator[int]:
        """Yield the numbers of all files, unsorted, starting at *first*; skip other files.

        Directories with smaller numbers are skipped.
        """
        for directory in _subdirectories(self._root):
            digits = directory.rpartition("/")[2].removesuffix(_ANY) or "0"
            if not directory.endswith(_ANY) or not _is_number(digits):
                continue
            if int(digits, 16) < first >> (4 * _DIGITS):
                continue
            for name in filter(_is_number, os.listdir(directory)):
                number = int(name, 16)
                if number >= first and self._location(name) == f"{directory}/{name}":
                    yield number

    def require_own_disk(self, tmp: Path) -> None:
        """Require that *root* is on the disk of *tmp*, and has no links in place of directories.

        Files are moved here from *tmp*. Reads and writes follow links, but listings do not.

        Raises:
            SettingsError: files are, or would be, on another disk, or missing in listings.
            FileNotFoundError: *root* or *tmp* does not exist.
        """
        if os.stat(self._root).st_dev != os.stat(tmp).st_dev:
            raise SettingsError(
                f"{self._root!r} is on another disk than {str(tmp)!r}; move it back, and select a"
                " larger or faster disk with --cachedir"
            )
        with os.scandir(self._root) as entries:
            for entry in entries:
                # A link without its target is refused, too: a disk may not be mounted.
                if entry.is_symlink() and (entry.name.endswith(_ANY) or entry.is_dir()):
                    raise SettingsError(
                        f"{entry.path!r} is a link; put the directory with the blocks in its place,"
                        " and select a larger or faster disk with --cachedir"
                    )

    def gather(self) -> int:
        """Move files from directories of an older layout; return the number of moved files.

        A file is not moved if its name is not a number, or if the new layout has this number.
        If the process is killed, the next call moves the remaining files. The caller must not open
        a file before this method returns.

        Raises:
            FileNotFoundError: *root* does not exist.
        """
        moved = 0
        for directory in _subdirectories(self._root):
            if directory.endswith(_ANY):
                continue
            for name in filter(_is_number, os.listdir(directory)):
                if not os.path.lexists(self._location(name)):
                    self.put_from(Path(directory, name), name)
                    moved += 1
                    _rmdir_if_empty(directory)
        return moved


def _is_number(name: str) -> bool:
    try:
        return name == f"{int(name, 16):x}"
    except ValueError:
        return False


def make_durably(path: Path) -> None:
    """Create a directory and its missing parents, and sync the parent of each new name.

    Without the sync, a power cut could lose a new directory with the synced files in it.
    """
    missing = path
    made = []
    while not missing.exists():
        made.append(missing)
        missing = missing.parent
    path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    for directory in made:
        sync_path(directory.parent)


def sync_path(path: str | Path) -> None:
    """Sync a file or directory to the disk (fsync(2))."""
    fd = os.open(path, os.O_RDONLY | _CLOSED)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes | memoryview) -> None:
    """Write a file and fsync it, but not its directory; do not follow a symbolic link.

    No other process may write the file. ``os.write`` is used because the tests of power cuts record
    calls of ``os``.
    """
    _write(path, data, sync=True)


def write_new(path: Path, data: bytes | memoryview) -> None:
    """Write or replace a file without fsync(2); do not follow a symbolic link."""
    _write(path, data, sync=False)


def _write(path: Path, data: bytes | memoryview, *, sync: bool) -> None:
    fd = open_regular(path, _NEW, FILE_MODE)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        if sync:
            os.fsync(fd)
    except OSError as exc:
        # write(2) and fsync(2) do not know the path
        raise OSError(exc.errno, exc.strerror, str(path)) from exc
    finally:
        os.close(fd)


def can_lock(fd: int, path: Path) -> bool:
    """Take the exclusive flock(2) of an open file; return False if another process has a lock.

    Raises:
        OSError: the file cannot be locked, for example because its filesystem does not support
            locks. The error names *path*, because flock(2) reports only a number.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as exc:
        raise OSError(exc.errno, f"the file cannot be locked: {exc.strerror}", str(path)) from exc
    return True


def replace_durably(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably. The call blocks.

    After an error the file has its former content, or the new content if only the sync of the
    directory failed. No other process may replace the file.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        write_durably(new, data)
        new.rename(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


def write_again(
    path: Path,
    copy: Path,
    prepare: Callable[[int], object] | None = None,
    *,
    keep_bytes: int | None = None,
    piece_bytes: int = WRITTEN_AGAIN_BYTES,
) -> None:
    """Replace a file with a durable copy that has the same holes; the caller syncs the directory.

    A failed sync leaves pages in memory that differ from the disk but are marked as written.
    Writing to the same file does not help: ext4 then writes into blocks that are still marked as
    unwritten. The call blocks, so call it in a thread.

    Args:
        path: the file.
        copy: an unused path on the same disk.
        prepare: called with the descriptor of the empty copy.
        keep_bytes: the length of the copy; None for the length of the file.
        piece_bytes: the number of bytes in memory at a time.

    Raises:
        FileNotFoundError: the file does not exist.
        OSError: the file cannot be read, or the copy cannot be written to the disk.
    """
    source = open_regular(path)
    try:
        target = open_regular(copy, _NEW, FILE_MODE)
        try:
            if prepare is not None:
                prepare(target)
            size_bytes = os.fstat(source).st_size if keep_bytes is None else keep_bytes
            for start, stop in _data_ranges(source, size_bytes):
                offset = start
                while offset < stop:  # the loop ends: each pass writes at least one byte or raises
                    data = os.pread(source, min(piece_bytes, stop - offset), offset)
                    offset += os.pwrite(target, data, offset)
            os.ftruncate(target, size_bytes)
            os.fsync(target)
        except BaseException:  # remove the partial copy, because the disk may be full
            copy.unlink(missing_ok=True)
            raise
        finally:
            os.close(target)
        os.rename(copy, path)
    finally:
        os.close(source)


def _data_ranges(fd: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges with data among the first *size_bytes* bytes of an open file."""
    stop = 0
    while stop < size_bytes:
        try:
            start = os.lseek(fd, stop, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:  # the rest of the file is a hole
                return
            raise
        stop = os.lseek(fd, start, os.SEEK_HOLE)
        if start < size_bytes:
            yield start, min(stop, size_bytes)


def _subdirectories(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def _inner_directories(directory: str) -> list[str]:
    """Return the subdirectories of a directory; [] if it is missing or its path is too long."""
    try:
        leaf = os.lstat(directory).st_nlink == 2  # noqa: PLR2004 - its name, and its own "."
        return [] if leaf else _subdirectories(directory)
    except OSError as exc:
        if exc.errno in {errno.ENOENT, errno.ENAMETOOLONG}:
            return []
        raise


def _rmdir_if_empty(directory: str) -> bool:
    try:
        os.rmdir(directory)
    except OSError as exc:
        if exc.errno in _NOT_REMOVED:
            return False
        raise
    return True


def _pass_over_pruned(exc: OSError) -> None:
    if not isinstance(exc, FileNotFoundError):
        raise exc
