"""A VFS that records SQLite's changes to its files.

Owns: recording the changes and syncs of SQLite's unix VFS. Does not know: SQL.
Source: os_unix.c. unixOpen sets UNIXFILE_DIRSYNC for a journal or log that may be created. The
first unixSync of this file also syncs its directory. unixDelete with dirSync also syncs the
directory.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

import apsw
from typing_extensions import override

from s3fs_meta.testing.recorded_disk import (
    DiskRecorder,
    Resized,
    SyncedDirectory,
    SyncedFile,
    Wrote,
)

_NAME: Final = "recorded"
_JOURNALS: Final = (
    apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
)


class _RecordedFile(apsw.VFSFile):
    """One open file of SQLite, whose changes are recorded."""

    def __init__(self, base: str, recorder: DiskRecorder, name: Any, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        wanted = flags[0]
        is_new = path is not None and not os.path.lexists(path)
        super().__init__(base, name, flags)
        self._recorder = recorder
        inside = recorder.inside(path) if path is not None else None
        self._directory = "" if inside is None else os.path.dirname(inside)
        self._syncs_directory = bool(wanted & _JOURNALS and wanted & apsw.SQLITE_OPEN_CREATE)
        self._file = None
        if inside is not None:
            inode = os.stat(path).st_ino
            if is_new:
                recorder.created(inside, inode)
            self._file = recorder.id_of(inode)
            assert self._file is not None, f"{path} was created before the recording began"

    @override
    def xWrite(self, data: bytes, offset: int) -> None:
        with self._recorder.lock:  # other threads may append events to the log
            super().xWrite(data, offset)
            if self._file is not None:
                self._recorder.add(Wrote(self._file, offset, bytes(data)))

    @override
    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        if self._file is not None:
            self._recorder.add(Resized(self._file, newsize))

    @override
    def xSync(self, flags: int) -> None:
        covers = len(self._recorder.events)
        super().xSync(flags)
        if self._file is None:
            return
        self._recorder.add(SyncedFile(self._file, covers))
        if self._syncs_directory:
            self._recorder.add(SyncedDirectory(self._directory, covers))
            self._syncs_directory = False


class _RecordedVfs(apsw.VFS):
    """A VFS that calls SQLite's unix VFS, and passes every change to a recorder."""

    def __init__(self, recorder: DiskRecorder) -> None:
        self._recorder = recorder
        self.base = apsw.vfs_names()[0]
        super().__init__(_NAME, self.base, makedefault=True)

    @override
    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _RecordedFile(self.base, self._recorder, name, flags)

    @override
    def xDelete(self, filename: str, syncdir: bool) -> None:
        inside = self._recorder.inside(filename)
        with self._recorder.lock:
            inode = os.stat(filename).st_ino if os.path.lexists(filename) else 0
            super().xDelete(filename, syncdir)
            if inside is None:
                return
            self._recorder.removed(inside, inode)
            if syncdir:
                covers = len(self._recorder.events)
                self._recorder.add(SyncedDirectory(os.path.dirname(inside), covers))


@contextlib.contextmanager
def recorded_sqlite(recorder: DiskRecorder) -> Iterator[None]:
    """Record all databases that the context opens; the caller must close them all."""
    vfs = _RecordedVfs(recorder)
    try:
        yield
    finally:
        apsw.set_default_vfs(vfs.base)
        vfs.unregister()
