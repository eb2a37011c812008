"""Replacing a database file with another database, and undoing the replacement.

Owns: the order in which SQLite's files are renamed. Does not know: connections (none is open).
Keeps: if the process is killed, no database is left next to the log of another database. At worst
the database is missing, perhaps with its log left, and the next mount restores the database.
Source: https://www.sqlite.org/howtocorrupt.html, chapters 1.4 and 2.5.
"""

from pathlib import Path
from typing import Final

from s3fs_meta.state_paths import unfinished

_LOGS: Final = ("-wal", "-shm")


class Exchange:
    """Replaces a database file with another one, and can undo the replacement."""

    def __init__(self, path: Path, other: Path, old_dir: Path) -> None:
        """Prepare the replacement; no file is changed yet.

        Args:
            path: the database to be replaced.
            other: the new database, whose log was copied into it and removed.
            old_dir: a directory on the same disk; the old database is moved there as ``gone.db``.
        """
        self._path = path
        self._other = other
        self._old_dir = old_dir
        self._done: list[tuple[Path, Path]] = []

    def do(self) -> None:
        """Replace the database. If this raises OSError, the caller must call ``undo``."""
        for suffix in ("", *_LOGS):
            left = _beside(self._path, suffix)
            if left.exists():
                self._move(left, unfinished(self._old_dir, f"gone.db{suffix}"))
        self._move(self._other, self._path)

    def _move(self, source: Path, target: Path) -> None:
        source.rename(target)
        self._done.append((source, target))

    def undo(self) -> None:
        """Move the old database back; raise OSError if this fails."""
        if self._done and self._done[-1][0] == self._other:
            self._path.rename(self._other)
            self._done.pop()
            for suffix in _LOGS:  # remove logs that opening the new database may have created
                _beside(self._path, suffix).unlink(missing_ok=True)
        while self._done:  # the logs are moved back before the database
            source, target = self._done.pop()
            target.rename(source)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
