"""A VFS in which one sync of SQLite fails, as on a disk with an unwritable sector.

Owns: the failure, and the number of later syncs. Does not know: SQL.
As in the kernel, only the first sync after the loss fails; later syncs report success.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import apsw
from typing_extensions import override

_NAME: Final = "failing"


class FailingSync:
    """A fault: once ``armed``, the next sync of a file with a given name suffix fails."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix
        self.armed = False
        self.failures = 0
        self.later_syncs = 0

    def note(self, path: str) -> None:
        """Once armed, fail the first sync of the chosen file; count later syncs."""
        if not self.armed or not path.endswith(self.suffix):
            return
        if self.failures:
            self.later_syncs += 1
            return
        self.failures += 1
        raise apsw.IOError("Input/output error")


class _FailingFile(apsw.VFSFile):
    """One open file of SQLite, whose sync may fail."""

    def __init__(self, base: str, failing: FailingSync, name: Any, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__(base, name, flags)
        self._failing, self._path = failing, str(path)

    @override
    def xSync(self, flags: int) -> None:
        self._failing.note(self._path)
        super().xSync(flags)


class _FailingVfs(apsw.VFS):
    """A VFS that passes all calls to SQLite's unix VFS, but lets one sync fail."""

    def __init__(self, failing: FailingSync) -> None:
        self._failing = failing
        self.base = apsw.vfs_names()[0]
        super().__init__(_NAME, self.base, makedefault=True)

    @override
    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _FailingFile(self.base, self._failing, name, flags)


@contextlib.contextmanager
def failing_sqlite(suffix: str) -> Iterator[FailingSync]:
    """Make a sync fail in databases that the context opens; the caller must close them all."""
    failing = FailingSync(suffix)
    vfs = _FailingVfs(failing)
    try:
        yield failing
    finally:
        apsw.set_default_vfs(vfs.base)
        vfs.unregister()
