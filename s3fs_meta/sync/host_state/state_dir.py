"""The state directory of one filesystem on this host: database, cache, socket, lock.

Owns: the layout, the lock that excludes a second process, and the check that no other user owns or
can write to the directory. Does not know: how the path is chosen (``state_paths``).

The directory contains names, content and the database of the mount. Another user with write
permission could make the daemon write to any file to which the daemon may write. The check follows
no symbolic link, and opens no entry, because closing a descriptor of the database would drop
SQLite's locks.

    <cachedir>/<label>-<hash of the URL>/
        lock           flock(2) by the process that uses the directory
        holder         this host's proof of a lease (``lease_proof``), in case the database is lost
        superblock     a copy of the newest superblock that this host has seen (``host_copy``)
        pins           the pinned trees of this host (``fs.trees.pins_file``)
        requests.json  counted requests (``request_log``); not essential
        failed-sync    whether a sync failed (``sync_failures``), until the next mount
        points.json    points in time for completion (``known_points``); not essential
        replaced-*     objects of the bucket that fsck -y replaced
        kept-*         quarantined states (``quarantine_move``) and other quarantined files
        meta.db        the metadata database, with its -wal and -shm
        blocks/        block files
        tmp/           unfinished files
        rollback/      the restored database of a rollback that has not finished
        control.sock   the mount's control socket
        mount.log      the daemon's log if it has no terminal

    <cachedir>/<label>-<hash of the URL>-at-<hash of the mountpoint>/
        the state of a snapshot mounted on the mountpoint; removed after the unmount
"""

import contextlib
import errno
import functools
import glob
import itertools
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

import trio

from s3fs_meta import sync_failures
from s3fs_meta.cache.crash_safety import intent_log
from s3fs_meta.clock import SystemClock
from s3fs_meta.errors import DatabaseError, HeldError, S3fsError, SettingsError
from s3fs_meta.hashed_dir import (
    DIRECTORY_MODE,
    FILE_MODE,
    NumberedDir,
    can_lock,
    make_durably,
    replace_durably,
)
from s3fs_meta.limits import HOLDER_BYTES_MAX
from s3fs_meta.meta.db.wal import last_change_ns
from s3fs_meta.state_paths import SNAPSHOT_INFIX, open_regular, read_regular
from s3fs_meta.sync.host_state import quarantine_move

_log = logging.getLogger(__name__)

_LOCK_POLL_S: Final = 0.1
_QUARANTINE: Final = "kept-"  # beginning of the names of quarantine directories
_RESCUED: Final = (
    _QUARANTINE,
    "replaced-",
)  # beginnings of the names of entries that no command removes
_OF_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_WRITE_OF_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
# The lock is missing, or the disk has failed: ext4 and XFS then refuse each open(2) with EIO.
_UNWATCHED_ERRNOS: Final = frozenset({errno.ENOENT, errno.EIO})
# Entries that do not show that a state directory was used.
_FRAME: Final = frozenset({"lock", "mount.log", "tmp", "blocks", sync_failures.NAME})
_ENTRY_TYPES: Final = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISSOCK)
_DIRECTORIES: Final = frozenset({"tmp", "blocks"})

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType]


class Leftovers(NamedTuple):
    """The entries of a state directory that remain after its removal."""

    rescued: list[Path]  # quarantined states and replaced objects, sorted
    failures: list[OSError]  # errors that prevented the removal of other entries


class StateDir:
    """One state directory, created if missing, to which no other user can write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = path / "meta.db"  # the metadata database
        # temporary file for the snapshot of a database without a WAL
        self.spool = path / "meta.db-snapshot"
        self.blocks = path / "blocks"  # directory of the block files
        self.tmp = path / "tmp"  # directory for unfinished files
        # temporary directory in which a rollback restores the earlier txg
        self.rollback = path / "rollback"
        self.log = path / "mount.log"  # the daemon's log
        self.since_change_ns: range | None = None
        self._lock_fd = -1
        self._make()

    def _make(self) -> None:
        try:
            make_durably(self.path)
            require_private(self.path)
        except OSError as exc:
            raise SettingsError(
                f"cannot make the state directory {str(self.path)!r}: {exc.strerror};"
                " choose another directory with --cachedir"
            ) from exc

    @property
    def holder(self) -> list[str]:
        """Return the recorded holder name and nonces of this host, or [] if there are none."""
        return read_holder(self.path)

    def keep_holder(self, fields: Sequence[str]) -> None:
        """Durably store the holder name and nonces in the file ``holder``. The call blocks."""
        data = "\n".join(fields).encode("ascii")
        assert len(data) <= HOLDER_BYTES_MAX, "the file must fit into one read"
        if self.holder == list(fields):
            return
        replace_durably(self.path / "holder", data)

    def clear_unfinished(self) -> None:
        """Remove leftovers of interrupted operations that are not in ``tmp``."""
        self.spool.unlink(missing_ok=True)
        shutil.rmtree(self.rollback, ignore_errors=True)

    async def lock(self, *, wait_s: float = 0.0) -> None:
        """Take the lock of the directory, waiting at most *wait_s* seconds.

        Raises:
            HeldError: another process on this host uses the filesystem.
        """
        deadline_s = trio.current_time() + wait_s
        while not self.try_lock():
            if trio.current_time() >= deadline_s:
                raise HeldError(
                    f"another process on this host uses {self.path}:"
                    " is the filesystem mounted, or still uploading?"
                )
            await trio.sleep(_LOCK_POLL_S)

    def try_lock(self) -> bool:
        """Take the lock if it is free; return whether it was free.

        If the lock was free, this method sets ``since_change_ns``, the time range from the last
        commit of the database until now. If another process has removed the directory in the
        meantime, the directory is created again. If a process was killed while it moved the local
        state to a quarantine directory, the move is finished or undone.

        Raises:
            DatabaseError: the disk failed, so an interrupted move cannot be finished.
            OSError: the disk failed, or has no locks; the error names the path.
        """
        with contextlib.ExitStack() as opened:
            fd = self._open_lock()
            opened.callback(os.close, fd)
            if not can_lock(fd, self.path / "lock") or not _is_entry(fd, self.path / "lock"):
                return False
            self._resume_quarantine()
            changed_ns = last_change_ns(self.database)
            opened.pop_all()
        self._lock_fd = fd
        if changed_ns is not None:
            self.since_change_ns = range(changed_ns, SystemClock().now_ns() + 1)
        return True

    def _resume_quarantine(self) -> None:
        try:
            quarantine_move.resume(self.path, f"{_QUARANTINE}*")
        except OSError as exc:
            raise DatabaseError(
                f"cannot finish the interrupted quarantine of the local state in {self.path}:"
                f" {exc.strerror}"
            ) from exc

    def _open_lock(self) -> int:
        try:
            return open_regular(self.path / "lock", os.O_RDWR | os.O_CREAT, FILE_MODE)
        except FileNotFoundError:
            self._make()
            return open_regular(self.path / "lock", os.O_RDWR | os.O_CREAT, FILE_MODE)

    def unlock(self) -> None:
        """Release the lock, if this process holds it."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    @property
    def is_locked_by_other(self) -> bool:
        """Return whether another process holds the lock now."""
        return is_locked(self.path)

    def drop_contents(self) -> None:
        """Remove the database and the block files; the bucket must have all of their data.

        Files that other programs made in ``blocks`` stay.
        """
        # Remove block files before the database: after a crash, remaining block files have rows.
        if self.blocks.is_dir():
            _remove_blocks(self.blocks)
        for suffix in ("", "-wal", "-shm", "-journal"):
            self.database.with_name(self.database.name + suffix).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the complete directory; this process must hold its lock."""
        assert self._lock_fd >= 0, "the caller must hold the lock of the directory"
        shutil.rmtree(self.path, ignore_errors=True)

    def discard(self) -> Leftovers:
        """Remove the local state, for good; this process must hold its lock. The call blocks.

        Quarantined states and replaced objects stay: they may be the only copies of files, even of
        an earlier filesystem at the same URL. If there are none, the directory is removed.
        """
        assert self._lock_fd >= 0, "the caller must hold the lock of the directory"
        failures: list[OSError] = []

        def failed(_call: object, _path: object, reason: _ExcInfo) -> None:
            assert isinstance(reason[1], OSError), "rmtree reports only this class"
            failures.append(reason[1])

        rescued = self.rescued()
        kept = {*rescued, self.path / "lock"} if rescued else set()
        for path in {*self.path.iterdir()}.difference(kept):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, onerror=failed)
                continue
            try:
                path.unlink()
            except OSError as exc:
                failures.append(exc)
        if not rescued and not failures:
            try:
                self.path.rmdir()
            except OSError as exc:
                failures.append(exc)
        return Leftovers(rescued, failures)

    def rescued(self) -> list[Path]:
        """Return the quarantined states and replaced objects, sorted. The call blocks."""
        if not self.path.is_dir():
            return []
        return sorted(path for path in self.path.iterdir() if path.name.startswith(_RESCUED))

    @property
    def has_remains(self) -> bool:
        """Return whether database logs or block files exist, even if the database is lost."""
        logs = (self.path / f"meta.db-{suffix}" for suffix in ("wal", "journal"))
        blocks = self.blocks.is_dir() and any(self.blocks.iterdir())
        return blocks or any(log.exists() for log in logs)

    def quarantine(self, stamp: str) -> Path:
        """Return the path of the quarantine directory with *stamp*; do not create it."""
        return self.path / f"{_QUARANTINE}{stamp}"

    def quarantine_as(self, stamp: str) -> Path:
        """Move the database and the blocks to a quarantine directory; return its path.

        After an interruption, the next process that locks the directory finishes or undoes the
        move.

        Raises:
            DatabaseError: the disk is full or failed; no file is lost.
        """
        quarantined = self.quarantine(stamp)
        quarantine_move.move(self.path, quarantined)
        return quarantined


def _remove_blocks(root: Path) -> None:
    """Remove the block files and the intent log, and *root* if it is empty then.

    A failed step does not prevent the other steps, because the caller has already published or
    restored the state that replaces these files. The next mount quarantines a file that stays.
    """
    files = NumberedDir(root)
    steps: Sequence[Callable[[], object]] = (
        files.gather,  # move files of an older directory layout
        functools.partial(_unlink_blocks, files),
        files.prune_all,
        root.rmdir,
    )
    for step in steps:
        with contextlib.suppress(OSError):
            step()


def _unlink_blocks(files: NumberedDir) -> None:
    paths = (files.path(f"{number:x}") for number in files.numbers(0))
    for path in itertools.chain([files.root / intent_log.NAME], paths):
        with contextlib.suppress(OSError):
            path.unlink()


def read_holder(path: Path) -> list[str]:
    """Return the holder name and nonces recorded in a state directory, or [] if there are none."""
    try:
        data = read_regular(path / "holder", HOLDER_BYTES_MAX)
    except FileNotFoundError:
        return []
    return data.decode("ascii", "replace").split()


def is_locked(path: Path) -> bool:
    """Return whether another process uses a state directory, which may not exist."""
    try:
        fd = _open_to_probe(path / "lock")
    except FileNotFoundError:
        return False
    try:
        return not can_lock(fd, path / "lock")
    finally:
        os.close(fd)


def _open_to_probe(lock: Path) -> int:
    """Open an existing lock file, if possible for writing, which NFS requires for exclusive locks.

    Source: flock(2), "NFS details".
    """
    try:
        return open_regular(lock, os.O_RDWR)
    except OSError as exc:
        if exc.errno != errno.EROFS:
            raise
    return open_regular(lock)


class LockWatch:
    """Waits until no process uses a state directory, which may be missing or removed concurrently.

    A process that removes the directory holds the lock until the directory is removed. Create the
    watch before asking that process to exit. If the disk has failed, the lock cannot be watched,
    and the watch waits for no process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path / "lock"
        try:
            self._fd = _open_to_probe(self._path)
        except OSError as exc:
            if exc.errno not in _UNWATCHED_ERRNOS:
                raise
            self._fd = -1

    def __enter__(self) -> "LockWatch":
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    async def wait_until_free(self) -> None:
        """Wait until no process uses the directory."""
        if self._fd < 0:
            return
        # No event reports the end of a flock(2).
        while not can_lock(self._fd, self._path):  # noqa: ASYNC110
            await trio.sleep(_LOCK_POLL_S)


def _is_entry(fd: int, path: Path) -> bool:
    """Return whether a path still refers to an open file; if not, its directory was removed.

    A lock on a removed file does not lock out a process that creates the directory again.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), found)


@contextlib.contextmanager
def without_new_remains(path: Path) -> Iterator[None]:
    """If the with-block fails, remove the state directory, provided it is new and unused."""
    is_new = not path.exists()
    try:
        yield
    except BaseException:
        if is_new:
            remove_unused(path)
        raise


def remove_unused(path: Path) -> None:
    """Remove a state directory that contains no state (``is_unused``). The call blocks.

    A failure is only logged, because the caller is already reporting why a command failed.
    """
    try:
        if not is_unused(path):
            return
        state_dir = StateDir(path)
        if state_dir.try_lock():
            try:
                # Another process may have used the directory before it was locked, so check again.
                if is_unused(path):
                    state_dir.remove()
            finally:
                state_dir.unlock()
    except (OSError, S3fsError) as exc:
        _log.warning("the unused state directory %s was not removed: %s", path, exc)


def is_unused(path: Path) -> bool:
    """Return whether a directory exists, but has only empty directories and files without state."""
    if not path.is_dir():
        return False
    entries = list(path.iterdir())
    if any(entry.name not in _FRAME for entry in entries):
        return False
    return not any(any(inner.iterdir()) for inner in entries if inner.is_dir())


def remove_stale_snapshots(state: Path, but: Path) -> None:
    """Remove the state directories of killed snapshot mounts. The call blocks.

    A directory that cannot be removed is logged: another user may own it, and the mount that calls
    this function does not need its removal.

    Args:
        state: the state directory of the filesystem itself.
        but: the directory of the snapshot that is about to be mounted, which is not removed.
    """
    try:
        found = list(state.parent.glob(f"{glob.escape(state.name)}{SNAPSHOT_INFIX}*"))
    except OSError as exc:
        _log.warning("cannot search %s for directories of killed mounts: %s", state.parent, exc)
        return
    for path in found:
        try:
            # A directory without a lock file belongs to a mount that is starting.
            if path != but and (path / "lock").exists():
                remove_stale_snapshot(path)
        except (OSError, S3fsError) as exc:
            _log.warning("the directory %s of a killed mount was not removed: %s", path, exc)


def remove_stale_snapshot(path: Path) -> None:
    """Remove a state directory that may not exist, unless another process uses it."""
    if path.exists():
        left = StateDir(path)
        if left.try_lock():
            left.remove()
            left.unlock()


def require_own(path: Path) -> None:
    """Raise SettingsError if another user owns a state directory, which may not exist.

    The call blocks. A file owned by root in another user's directory would make that user's mounts
    fail.

    Raises:
        SettingsError: the directory belongs to another user; the message says what to do.
        OSError: the directory cannot be examined.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    _require_owner(f"the state directory {str(path)!r}", found)


def require_private(path: Path) -> None:
    """Raise SettingsError if another user owns the directory or an entry, or can write to it.

    An entry of a wrong type is rejected, too. If other users can only read the directory, their
    permission is removed without an error, because they cannot have created an entry.

    Raises:
        SettingsError: the directory is rejected; the write permission of others on some entries may
            already be removed.
        OSError: the directory cannot be examined.
    """
    try:
        directory_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as exc:  # open(2) also reports a symbolic link with this error
        raise SettingsError(
            f"the state directory {str(path)!r} is a symbolic link or a file; remove it or "
            "choose another directory with --cachedir"
        ) from exc
    try:
        directory = os.fstat(directory_fd)
        _require_owner(f"the state directory {str(path)!r}", directory)
        if directory.st_mode & _WRITE_OF_OTHERS:
            raise SettingsError(
                f"other users can write to the state directory {str(path)!r} (mode"
                f" {stat.S_IMODE(directory.st_mode):04o}); if you trust its content, run chmod 700"
                " on it"
            )
        is_open = bool(directory.st_mode & _OF_OTHERS)
        for name in os.listdir(directory_fd):
            _require_entry(path, directory_fd, name, is_open=is_open)
        if is_open:
            os.chmod(directory_fd, DIRECTORY_MODE)
    finally:
        os.close(directory_fd)


def _require_entry(path: Path, directory_fd: int, name: str, *, is_open: bool) -> None:
    """Check the owner and the type of an entry; remove the write permission of other users."""
    try:
        entry = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return  # another process of this user has just removed the entry
    what = f"{str(path / name)!r} in the state directory"
    _require_owner(what, entry)
    if not any(is_type(entry.st_mode) for is_type in _ENTRY_TYPES):
        raise SettingsError(
            f"{what} is a symbolic link or a special file; remove it, or choose another directory "
            "with --cachedir"
        )
    if name in _DIRECTORIES and not stat.S_ISDIR(entry.st_mode):
        raise SettingsError(
            f"{what} is not a directory; move it away, and put back the directory that had this"
            " name, if there is one"
        )
    if stat.S_ISSOCK(entry.st_mode) or not entry.st_mode & _WRITE_OF_OTHERS:
        return
    mode = stat.S_IMODE(entry.st_mode)
    if is_open:
        raise SettingsError(
            f"other users can write to {what} (mode {mode:04o}); if you trust its content, run "
            "chmod go-w on it"
        )
    os.chmod(name, mode & ~_WRITE_OF_OTHERS, dir_fd=directory_fd)


def _require_owner(what: str, found: os.stat_result) -> None:
    uid = os.geteuid()
    if found.st_uid != uid:
        raise SettingsError(
            f"{what} belongs to user {found.st_uid}, not to the current user {uid}; run this as "
            "that user, or choose another directory with --cachedir"
        )
