"""The state directory of one filesystem on this host: database, cache, socket, lock.

Owns: its layout, its place, and the lock that keeps a second process out.

    <cachedir>/<label>-<hash of the URL>/
        lock           flock(2) by the one process that uses the directory
        meta.db        the metadata database, with its -wal and -shm
        blocks/        block files
        tmp/           unfinished files
        control.sock   the mount's control socket
        mount.log      what the daemon says when it has no terminal
"""

import fcntl
import hashlib
import os
import re
from pathlib import Path
from typing import Final

import trio

from s3fs_meta.errors import HeldError, SettingsError
from s3fs_meta.hashed_dir import make_durably

_LOCK_POLL_S: Final = 0.1


class StateDir:
    """One state directory; exists after construction."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_fd = -1
        try:
            make_durably(path)
        except OSError as exc:
            raise SettingsError(
                f"cannot make the state directory {str(path)!r}: {exc.strerror}; choose another with --cachedir"
            ) from exc

    @property
    def database(self) -> Path:
        """Return the path of the metadata database."""
        return self.path / "meta.db"

    @property
    def spool(self) -> Path:
        """Return where a database without a log makes its snapshots; a crash may leave one."""
        return self.path / "meta.db-snapshot"

    @property
    def blocks(self) -> Path:
        """Return the directory of the block files."""
        return self.path / "blocks"

    @property
    def tmp(self) -> Path:
        """Return the directory of unfinished files."""
        return self.path / "tmp"

    @property
    def log(self) -> Path:
        """Return the path of the daemon's log."""
        return self.path / "mount.log"

    async def lock(self, *, wait_s: float = 0.0) -> None:
        """Take the lock, waiting at most *wait_s* seconds.

        Raises:
            HeldError: another process on this host uses the filesystem.
        """
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline_s = trio.current_time() + wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if trio.current_time() >= deadline_s:
                    os.close(fd)
                    raise HeldError(
                        f"another process on this host uses {self.path}; is it mounted, or still uploading?"
                    ) from None
                await trio.sleep(_LOCK_POLL_S)
            else:
                self._lock_fd = fd
                return

    def unlock(self) -> None:
        """Give the lock back; without it nothing happens."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    @property
    def is_locked_by_other(self) -> bool:
        """Return whether some other process holds the lock now."""
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    @property
    def has_remains(self) -> bool:
        """Return whether there are logs or block files, which mean nothing without a database."""
        logs = (self.path / f"meta.db-{suffix}" for suffix in ("wal", "journal"))
        blocks = self.blocks.is_dir() and any(self.blocks.iterdir())
        return blocks or any(log.exists() for log in logs)

    def set_aside(self, stamp: str) -> Path:
        """Move database and blocks into a directory beside, which nothing ever removes; return it.

        The blocks go first and the logs last: interrupted anywhere, what is left is found again,
        and no database is opened without its log.
        """
        aside = self.path / f"kept-{stamp}"
        aside.mkdir(mode=0o700)
        for name in ("blocks", "meta.db", "meta.db-wal", "meta.db-shm", "meta.db-journal"):
            source = self.path / name
            if source.exists():
                source.rename(aside / name)
        return aside


def locate(url: str, cachedir: Path) -> Path:
    """Return the path of the state directory for a URL; it may not exist.

    The name has a readable part and a hash, so that two URLs never share one.
    """
    digest = hashlib.blake2b(url.rstrip("/").encode(), digest_size=8).hexdigest()
    words = re.sub(r"[^A-Za-z0-9]+", "-", url.split("://", 1)[-1]).strip("-")[-40:]
    return cachedir.resolve() / f"{words}-{digest}"
