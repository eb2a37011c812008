"""A recording of all changes that a process makes to one directory, in order.

Owns: the events, and the hooks that record events: replacements for the functions of ``os`` that
change files, and a VFS for SQLite (``recorded_vfs``). Does not know: the effects of a power cut
(``power_cut``).
A test can check a recording: ``replay`` of all events must return the content of the directory.

A file is identified by its inode number, so descriptors need no records. An event is recorded after
its call has returned, and a sync covers the events recorded before the sync began. So the recording
may show a change as less durable than it is, but never as more durable.
"""

import contextlib
import errno
import io
import os
import pathlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from typing_extensions import override

from s3fs_meta.cache.files import block_files

FileId = int


class Wrote(NamedTuple):
    """The event that a process wrote bytes to a file, through the page cache."""

    file: FileId
    offset: int
    data: bytes


class Resized(NamedTuple):
    """The event that a file was truncated or extended."""

    file: FileId
    size_bytes: int


class Entered(NamedTuple):
    """The event that a name for a file or a directory was created."""

    path: str
    file: FileId | None  # identifier of the file; None for a directory


class Left(NamedTuple):
    """The event that the name of a file or directory was removed."""

    path: str


class Moved(NamedTuple):
    """The event that a file or directory was renamed atomically."""

    path: str
    new_path: str
    file: FileId


class SyncedFile(NamedTuple):
    """The event that a sync made one file durable: all its events before event *covers*."""

    file: FileId
    covers: int


class SyncedDirectory(NamedTuple):
    """The event that a sync made a directory durable: all its names before event *covers*."""

    path: str
    covers: int


class SyncedAll(NamedTuple):
    """The event that syncfs(2) made all events before event *covers* durable."""

    covers: int


class Lost(NamedTuple):
    """The event that a sync failed: unsynced writes before event *before* never reach the disk.

    Later syncs succeed, but do not cover these writes, as with fsync(2) on Linux.
    """

    file: FileId
    before: int


class Noted(NamedTuple):
    """An event that does not change the disk, such as the end of an fsync or an upload."""

    what: Any


Event = (
    Wrote
    | Resized
    | Entered
    | Left
    | Moved
    | SyncedFile
    | SyncedDirectory
    | SyncedAll
    | Lost
    | Noted
)

# Names that are not recorded: SQLite's shared memory, which a crash discards, and a socket.
IGNORED: Final = ("-shm", "control.sock")


class DiskRecorder:
    """Collects the events in one directory, which is empty at the start."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.events: list[Event] = []
        self._lock = threading.RLock()
        self._ids: dict[int, FileId] = {}  # identifiers of existing inodes by inode number
        self._next_id = 0
        self.failing = ""  # text in the path of the file whose next sync fails

    def note(self, what: object) -> int:
        """Add an event that does not change the disk; return the number of the event."""
        with self._lock:
            self.events.append(Noted(what))
            return len(self.events) - 1

    def inside(self, path: Any) -> str | None:
        """Return a path relative to the root; None for a path outside the root."""
        text = os.path.abspath(os.fspath(path)) if isinstance(path, (str, Path)) else ""
        if not text.startswith(self.root + "/") or text.endswith(IGNORED):
            return None
        return text[len(self.root) + 1 :]

    # --- record events ---------------------------------------------------------------------------

    def created(self, path: str, inode: int) -> None:
        """Record the creation of an empty file."""
        with self._lock:
            self._ids[inode] = self._next_id
            self._next_id += 1
            self.events.append(Entered(path, self._ids[inode]))

    def id_of(self, inode: int) -> FileId | None:
        """Return the identifier of a recorded file by its inode number, or None if unknown."""
        return self._ids.get(inode)

    def removed(self, path: str, inode: int) -> None:
        """Record that a name was removed; drop its inode number, which may be reused."""
        with self._lock:
            self._ids.pop(inode, None)
            self.events.append(Left(path))

    def forget(self, inode: int) -> None:
        """Drop a recorded inode number, because its file is replaced."""
        self._ids.pop(inode, None)

    def add(self, event: Event) -> None:
        """Append an event to the recording."""
        with self._lock:
            self.events.append(event)

    @property
    def lock(self) -> threading.RLock:
        """Return the lock that a caller holds while it makes a change and records the event."""
        return self._lock


# --- replay events -------------------------------------------------------------------------------


class Disk:
    """The files and names of a directory in memory, built from events."""

    def __init__(self) -> None:
        self.names: dict[str, FileId | None] = {}
        self.files: dict[FileId, bytearray] = {}

    def apply(self, event: Event) -> None:
        """Apply one recorded event to the files and names."""
        if isinstance(event, Wrote):
            content = self.files.setdefault(event.file, bytearray())
            if len(content) < event.offset:
                content.extend(bytes(event.offset - len(content)))
            content[event.offset : event.offset + len(event.data)] = event.data
        elif isinstance(event, Resized):
            content = self.files.setdefault(event.file, bytearray())
            del content[event.size_bytes :]
            content.extend(bytes(event.size_bytes - len(content)))
        else:
            apply_to_names(self.names, event)

    def contents(self) -> dict[str, bytes | None]:
        """Return the content of each file by path; a directory has None."""
        return {
            path: None if file is None else bytes(self.files.get(file, b""))
            for path, file in self.names.items()
        }


def apply_to_names(names: dict[str, FileId | None], event: Event) -> None:
    """Apply an event to names; ignore the removal of a missing name."""
    if isinstance(event, Entered):
        names[event.path] = event.file
    elif isinstance(event, Left):
        names.pop(event.path, None)
    elif isinstance(event, Moved):
        names.pop(event.path, None)
        names[event.new_path] = event.file


def replay(events: list[Event]) -> dict[str, bytes | None]:
    """Return the content of a directory after some events, if no change is lost."""
    disk = Disk()
    for event in events:
        disk.apply(event)
    return disk.contents()


def contents_of(root: Path) -> dict[str, bytes | None]:
    """Return the content of a directory in the form that ``replay`` returns."""
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if not path.name.endswith(IGNORED)
    }


# --- replace system calls ------------------------------------------------------------------------

_REAL: Final = {
    name: getattr(os, name)
    for name in (
        "open",
        "write",
        "pwrite",
        "ftruncate",
        "truncate",
        "fsync",
        "fdatasync",
        "rename",
        "unlink",
        "mkdir",
        "rmdir",
    )
}


def _inode(path: Any) -> int:
    """Return the inode number of a path, or 0 if the path does not exist."""
    return os.lstat(path).st_ino if os.path.lexists(path) else 0


class _Calls:
    """Replacements for functions in ``os``, which pass every change to a recorder."""

    def __init__(self, recorder: DiskRecorder) -> None:
        self._recorder = recorder

    def _file(self, fd: int) -> FileId | None:
        return self._recorder.id_of(os.fstat(fd).st_ino)

    def open(self, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        """Open a file; record its creation or truncation."""
        inside = self._recorder.inside(path)
        if inside is None or not flags & (os.O_CREAT | os.O_TRUNC):
            return int(_REAL["open"](path, flags, *args, **kwargs))
        with self._recorder.lock:
            is_new = not os.path.lexists(path)
            fd: int = _REAL["open"](path, flags, *args, **kwargs)
            if is_new:
                self._recorder.created(inside, os.fstat(fd).st_ino)
            elif flags & os.O_TRUNC:
                self._resized(self._file(fd), 0)
            return fd

    def _resized(self, file: FileId | None, size_bytes: int) -> None:
        if file is not None:
            self._recorder.add(Resized(file, size_bytes))

    def write(self, fd: int, data: Any) -> int:
        """Write bytes at the descriptor's position, or append them; record the write."""
        if self._file(fd) is None:
            return int(_REAL["write"](fd, data))
        with self._recorder.lock:
            count: int = _REAL["write"](fd, data)
            self._wrote(fd, data, os.lseek(fd, 0, os.SEEK_CUR) - count, count)
        return count

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        """Write bytes at an offset; record the write."""
        with self._recorder.lock:
            count: int = _REAL["pwrite"](fd, data, offset)
            self._wrote(fd, data, offset, count)
        return count

    def _wrote(self, fd: int, data: Any, offset: int, count: int) -> None:
        file = self._file(fd)
        if file is not None:
            self._recorder.add(Wrote(file, offset, bytes(data[:count])))

    def ftruncate(self, fd: int, length: int) -> None:
        """Set the size of an open file, and record the size."""
        _REAL["ftruncate"](fd, length)
        self._resized(self._file(fd), length)

    def truncate(self, path: Any, length: int) -> None:
        """Set the size of a file, and record the size."""
        if isinstance(path, int):
            self.ftruncate(path, length)
            return
        _REAL["truncate"](path, length)
        self._resized(self._recorder.id_of(os.stat(path).st_ino), length)

    def fsync(self, fd: int) -> None:
        """Sync a file or directory, and record that it is durable."""
        self._sync(fd, _REAL["fsync"])

    def fdatasync(self, fd: int) -> None:
        """Sync a file; record an fsync, because a changed size is also synced."""
        self._sync(fd, _REAL["fdatasync"])

    def _sync(self, fd: int, sync: Callable[[int], None]) -> None:
        covers = len(self._recorder.events)
        file = self._file(fd)
        if self._recorder.failing and self._recorder.failing in os.readlink(f"/proc/self/fd/{fd}"):
            assert file is not None, "only syncs of files can fail"
            self._recorder.failing = ""
            self._recorder.add(Lost(file, covers))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(fd)
        if file is not None:
            self._recorder.add(SyncedFile(file, covers))
            return
        path = os.readlink(f"/proc/self/fd/{fd}")
        if path == self._recorder.root:
            self._recorder.add(SyncedDirectory("", covers))
        elif (inside := self._recorder.inside(path)) is not None:
            self._recorder.add(SyncedDirectory(inside, covers))

    def syncfs(self, fd: int) -> int:
        """Record that all changes are durable; for speed, do not sync."""
        covers = len(self._recorder.events)
        self._recorder.add(SyncedAll(covers))
        return 0

    def rename(self, source: Any, target: Any, **kwargs: Any) -> None:
        """Rename a file, and record the change."""
        with self._recorder.lock:
            inode = _inode(source)
            self._recorder.forget(_inode(target))
            _REAL["rename"](source, target, **kwargs)
            old, new = self._recorder.inside(source), self._recorder.inside(target)
            file = self._recorder.id_of(inode)
            if old is not None and new is not None:
                assert file is not None, f"{source}: only renames of files can be recorded"
                self._recorder.add(Moved(old, new, file))

    def unlink(self, path: Any, **kwargs: Any) -> None:
        """Remove a file's name, and record the change."""
        with self._recorder.lock:
            inode = _inode(path)
            _REAL["unlink"](path, **kwargs)
            self._left(path, inode)

    def mkdir(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """Create a directory, and record the change."""
        with self._recorder.lock:
            _REAL["mkdir"](path, *args, **kwargs)
            inside = self._recorder.inside(path)
            if inside is not None:
                self._recorder.add(Entered(inside, None))

    def rmdir(self, path: Any, **kwargs: Any) -> None:
        """Remove a directory, and record the change."""
        with self._recorder.lock:
            _REAL["rmdir"](path, **kwargs)
            self._left(path, 0)

    def _left(self, path: Any, inode: int) -> None:
        inside = self._recorder.inside(path)
        if inside is not None:
            self._recorder.removed(inside, inode)

    def path_open(self, path: Path, mode: str = "r", *args: Any, **words: Any) -> Any:
        """Open a file as pathlib does, and record its writes."""
        if self._recorder.inside(path) is None or not set(mode) & set("wxa+"):
            return open(path, mode, *args, **words)
        assert mode in {"wb", "r+b"}, f"mode {mode!r} is not implemented"
        creates = os.O_CREAT | os.O_TRUNC if mode == "wb" else 0
        return io.BufferedRandom(_Raw(self, self.open(path, os.O_RDWR | creates, 0o666)))


class _Raw(io.RawIOBase):
    """A file object whose writes are recorded."""

    def __init__(self, calls: _Calls, fd: int) -> None:
        self._calls, self._fd = calls, fd

    @override
    def fileno(self) -> int:
        return self._fd

    @override
    def readable(self) -> bool:
        return True

    @override
    def writable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = 0) -> int:
        return os.lseek(self._fd, offset, whence)

    @override
    def readinto(self, buffer: Any) -> int:
        """Read bytes of the file into a buffer."""
        return os.readv(self._fd, [buffer])

    @override
    def write(self, data: Any) -> int:
        """Write bytes at the position of the file, and record them."""
        return self._calls.write(self._fd, data)

    @override
    def truncate(self, size: int | None = None) -> int:
        assert size is not None, "truncate without a size is not implemented"
        self._calls.ftruncate(self._fd, size)
        return size

    @override
    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._fd)


@contextlib.contextmanager
def recording(recorder: DiskRecorder) -> Iterator[None]:
    """Record the changes that all threads of this process make below the recorder's root."""
    calls = _Calls(recorder)
    replaced: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, new: Any) -> None:
        replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, new)

    def path_open(path: Path, *args: Any, **words: Any) -> Any:  # replaces Path.open
        return calls.path_open(path, *args, **words)

    for name in _REAL:
        put(os, name, getattr(calls, name))
    put(os, "replace", calls.rename)
    put(os, "remove", calls.unlink)
    put(block_files._libc, "syncfs", calls.syncfs)  # noqa: SLF001 - the only call of syncfs(2)
    put(pathlib.Path, "open", path_open)
    _put_old_pathlib(put, calls)
    try:
        yield
    finally:
        for owner, name, old in reversed(replaced):
            setattr(owner, name, old)


def _put_old_pathlib(put: Callable[[Any, str, Any], None], calls: _Calls) -> None:
    """Replace the functions of ``os`` in pathlib's ``_NormalAccessor`` of Python 3.10."""
    accessor = getattr(pathlib, "_NormalAccessor", None)
    if accessor is not None:
        for name in ("unlink", "rename", "replace", "mkdir", "rmdir"):
            put(accessor, name, staticmethod(getattr(calls, name.replace("replace", "rename"))))
