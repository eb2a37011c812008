"""The write-ahead log of the database: its length, sync and checkpoints.

Owns: the length of the log in frames, fsync of the ``-wal`` file and zeros at its end, checkpoints.
Does not know: commit groups, rows.
Keeps: after a failed sync, and after a checkpoint that failed because of the disk, every later sync
fails, because the kernel reports a lost page only once per descriptor. The failure is also recorded
(``sync_failures``). The descriptor of ``sync`` is open from the first commit on, so it also
receives errors of SQLite's descriptor.
Tasks: the event loop, except ``sync`` and ``checkpoint``, which must run in a thread.

Zeros are appended to the file in advance (its *room*). A sync of frames that overwrote zeros only
writes the frames: 0.15 ms on ext4. A sync that also writes the new size and blocks of the file
takes 0.5 ms, because the disk's filesystem commits its journal. SQLite stops at the zeros when it
searches for frames.

A checkpoint in a thread copies frames while the writer continues, so it never reaches the end of
the log, and SQLite would never restart the log. So the thread repeats the checkpoint until few
frames remain (``nearly_copied``). The database copies these between two groups, on the event loop:
two fsyncs and a few pages.
Source: https://www.sqlite.org/wal.html, "Avoiding Excessively Large WAL Files".
"""

import contextlib
import errno
import logging
import os
import weakref
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from s3fs_meta import sync_failures
from s3fs_meta.disk_full import NO_ROOM_ERRNOS
from s3fs_meta.errors import DatabaseError
from s3fs_meta.limits import (
    WAL_CHECKPOINT_BYTES,
    WAL_PASSES_MAX,
    WAL_REST_BYTES_MAX,
    WAL_ROOM_BYTES,
)
from s3fs_meta.meta.db import connections
from s3fs_meta.meta.db.connections import translated
from s3fs_meta.state_paths import open_regular

_log = logging.getLogger(__name__)

_HEADER_BYTES: Final = 32
_REST_SHARE: Final = 16
_FRAME_HEADER_BYTES: Final = 24
_VERSION_AT: Final = 18  # offset in the database header (https://www.sqlite.org/fileformat2.html)
_VERSION_WAL: Final = b"\x02"
_LOG_MAGICS: Final = (bytes.fromhex("377f0682"), bytes.fromhex("377f0683"))
_PAGE_BYTES_MIN: Final = 512
_JOURNAL_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")
# Maximum time from the first operation of a commit group to the end of its commit.
# A commit group is open for at most ``GROUP_AGE_S_MAX``; the rest of the time is for a busy host.
_GROUP_NS_MAX: Final = 1_000_000_000
# Errors of a checkpoint that do not indicate a failed disk; the WAL merely keeps growing.
_HARMLESS: Final = (apsw.LockedError, apsw.NoMemError, apsw.InterruptError)


class Checkpoint(NamedTuple):
    """The result of a checkpoint: how many frames the log has, and how many were copied."""

    frames: int
    copied_frames: int


class Wal:
    """The write-ahead log of one open database."""

    def __init__(self, database: Path, page_size: int, synchronous: str) -> None:
        self._database = str(database)
        self._path = Path(f"{database}-wal")
        self._frame_bytes = page_size + _FRAME_HEADER_BYTES
        self._synchronous = synchronous
        self._directory_synced = False
        self._frames = 0
        self.size_bytes = 0  # number of bytes in use in the WAL; its file may be longer
        self._copied_frames = 0
        # Length of the WAL file including the zeros at its end, or 0 if unknown.
        self._file_bytes = 0
        # True while a thread runs a checkpoint. The event loop then does not start another one.
        self._in_thread = False
        self.failure = ""  # reason why all later syncs and checkpoints fail; never cleared
        self._fd = -1
        self._directory_fd = -1
        self._close: weakref.finalize[[list[int]], Wal] | None = None

    def _open(self) -> None:
        """Open the log file, which SQLite creates before the first commit, and its directory.

        SQLite holds no locks on the log file, so closing another descriptor releases none.
        A later sync opens no file, so that a lack of descriptors is not taken for a failed disk.

        Raises:
            OSError: the file cannot be opened; the next commit or sync tries again.
        """
        fds: list[int] = []
        try:
            fds.append(open_regular(self._path, os.O_RDWR | os.O_APPEND))
            fds.append(os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except FileNotFoundError:
            _close_all(fds)
            return
        except OSError:
            _close_all(fds)
            raise
        self._fd, self._directory_fd = fds
        self._close = weakref.finalize(self, _close_all, fds)

    def close(self, connection: apsw.Connection) -> None:
        """Prepare to close the writing connection; afterwards no thread may call ``sync``.

        The connection must have no open transaction. Closing it would checkpoint the log without
        reporting an error, so the checkpoint is made here.
        """
        # Do not checkpoint after a failure, because the WAL may not be durable.
        if self.failure or not self.try_checkpoint(connection):
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        if self._close is not None:
            self._close()

    def note_commit(self, frames: int) -> bool:
        """Record the length of the log, which SQLite's hook reports after a commit.

        Returns:
            True if the log should be restarted (``nearly_copied``).
        """
        if frames < self._frames:  # SQLite restarted the WAL and may have truncated its file
            self._copied_frames = self._file_bytes = 0
        self._frames = frames
        self.size_bytes = _HEADER_BYTES + frames * self._frame_bytes if frames else 0
        if self._fd < 0:
            with contextlib.suppress(OSError):  # the commit is done; ``sync`` reports the error
                self._open()
        return self.nearly_copied

    @property
    def uncopied_bytes(self) -> int:
        """Return the number of bytes of the log that are not yet copied to the database."""
        return max(self._frames - self._copied_frames, 0) * self._frame_bytes

    @property
    def lacks_room(self) -> bool:
        """Return whether half of the zeros after the log are used, so ``append_room`` is due."""
        return self.size_bytes + WAL_ROOM_BYTES // 2 > self._file_bytes

    def append_room(self, room_bytes: int = WAL_ROOM_BYTES) -> None:
        """Append zeros until *room_bytes* of zeros follow the log; call ``sync`` afterwards.

        Must run on the event loop while no group is open: the append makes the file newer, and the
        next mount assumes that block files older than the log are committed (``last_change_ns``).
        With O_APPEND, zeros never overwrite a frame. On a full disk no zeros are added.

        Raises:
            OSError: the disk failed.
        """
        if self._fd < 0:
            return
        wanted = self.size_bytes + room_bytes
        lacking = wanted - os.fstat(self._fd).st_size
        if lacking > 0:
            try:
                os.write(self._fd, bytes(lacking))
            except OSError as exc:
                if exc.errno not in NO_ROOM_ERRNOS:
                    self._fail(f"the log could not be written ({exc.strerror or exc})")
                    raise
                _log.info("cannot extend the file of the write-ahead log: %s", exc.strerror)
        self._file_bytes = wanted

    def forgo_room(self) -> None:
        """Let ``lacks_room`` return False for a while, as if zeros had been appended now."""
        self._file_bytes = self.size_bytes + WAL_ROOM_BYTES

    @property
    def nearly_copied(self) -> bool:
        """Return whether to restart the log, because it is long and nearly all frames are copied.

        The longer the log, the more uncopied frames are accepted, so the log stays bounded under
        any load.
        """
        return (
            self._copied_frames > 0
            and not self._in_thread
            and not self.failure
            and self.size_bytes >= WAL_CHECKPOINT_BYTES
            and self.uncopied_bytes <= max(WAL_REST_BYTES_MAX, self.size_bytes // _REST_SHARE)
        )

    def sync(self) -> None:
        """Make all earlier commits durable. Blocking: call this in a thread.

        Raises:
            OSError: the disk failed, now or in an earlier call; it is unknown which commits are
                durable.
        """
        if self.failure:
            raise OSError(errno.EIO, self.failure, str(self._path))
        if self._fd < 0:
            self._open()
            if self._fd < 0:  # no commit has created the WAL file yet
                return
        try:
            os.fdatasync(self._fd)
            if not self._directory_synced:
                os.fsync(self._directory_fd)
                self._directory_synced = True
        except OSError as exc:
            self._fail(f"an earlier sync of the log failed ({exc.strerror or exc})")
            raise

    def _fail(self, why: str) -> None:
        self.failure = why  # set before the file is written, because that takes time
        sync_failures.note(self._path.parent)

    def checkpoint(self) -> Checkpoint:
        """Copy the WAL into the database while the writer continues. Call this in a thread.

        Raises:
            DatabaseError: the checkpoint failed. If the disk is full, memory is short or the
                database is locked, the WAL keeps growing; after any other error, all later syncs
                fail.
        """
        self._in_thread = True
        try:
            connection = connections.connect(self._database, read_only=False)
            try:
                connection.pragma("synchronous", self._synchronous)
                return self._pass_until_short(connection)
            finally:
                connection.close()
        except apsw.Error as exc:
            raise translated(exc, self._database) from exc
        finally:
            self._in_thread = False

    def _pass_until_short(self, connection: apsw.Connection) -> Checkpoint:
        done = self.checkpoint_with(connection)
        for _ in range(WAL_PASSES_MAX - 1):
            if self.uncopied_bytes <= WAL_REST_BYTES_MAX:
                break
            before, done = done, self.checkpoint_with(connection)
            # Stop if a reader prevents the checkpoint from copying more frames.
            if done.copied_frames <= before.copied_frames:
                break
        return done

    def try_checkpoint(self, connection: apsw.Connection) -> bool:
        """Call ``checkpoint_with``; log a failure, and return whether the call succeeded."""
        try:
            self.checkpoint_with(connection)
        except apsw.Error as exc:
            _log.warning("the checkpoint of database %s failed: %s", self._database, exc)
            return False
        return True

    def checkpoint_with(self, connection: apsw.Connection) -> Checkpoint:
        """Copy the log through a given connection, without waiting for readers or the writer.

        Raises:
            apsw.Error: the checkpoint failed; ``checkpoint`` describes the effects.
        """
        if self.failure:
            raise apsw.IOError(self.failure)
        try:
            done = Checkpoint(*connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE))
        except apsw.BusyError:
            return Checkpoint(self._frames, self._copied_frames)
        except apsw.Error as exc:
            if isinstance(exc, _HARMLESS) or connections.is_full(exc):
                raise
            # Allow no later checkpoint: after a failed sync of the WAL, a retry falsely succeeds.
            # A later checkpoint would change the database, although the WAL is not durable.
            self._fail(f"a checkpoint failed ({exc})")
            raise
        if done.frames >= self._frames:
            # If the number is lower than before, SQLite has restarted the WAL.
            self._copied_frames = done.copied_frames
        return done


def require_copied(database: Path) -> None:
    """Raise DatabaseError if a closed database still needs its log, so that it cannot be moved.

    ``Wal.close`` leaves the log if its last checkpoint fails, for example on a full disk.
    """
    if database.with_name(f"{database.name}-wal").exists():
        raise DatabaseError(
            f"the log of {database} could not be copied into the database; free space on its disk"
        )


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def last_change_ns(database: Path) -> int | None:
    """Return the ctime in ns of the file that received the last commit of a closed database.

    The caller compares it with the time of a file next to the database. Restoring a file from a
    backup gives it a new ctime, even if its mtime is old (inode(7)).
    With a log, this file is the log: a checkpoint changes the database, too, but commits nothing,
    and may run while a commit group is open.
    If a kill interrupted a commit, the file may be newer than the operations that the kill undid.
    In this case the result is reduced to a time before these operations.

    Returns:
        None if the database or its log is missing.
    """
    try:
        with open(open_regular(database), "rb") as file:
            file.seek(_VERSION_AT)
            has_log = file.read(1) == _VERSION_WAL
        path = Path(f"{database}-wal") if has_log else database
        changed_ns = path.stat().st_ctime_ns
        is_cut = _ends_in_a_group(path) if has_log else _is_hot(Path(f"{database}-journal"))
    except FileNotFoundError:
        return None
    return changed_ns - _GROUP_NS_MAX if is_cut else changed_ns


def _ends_in_a_group(log: Path) -> bool:
    """Return whether the last frame of a log ends no commit.

    Reading stops where SQLite finds no more frames, so zeros after the frames are not read, even if
    another program has extended the file to many gigabytes.

    Source: https://www.sqlite.org/fileformat2.html#walformat
    """
    is_committed = True
    # The file is unbuffered, because only headers are read.
    with open(open_regular(log), "rb", buffering=0) as file:
        header = file.read(_HEADER_BYTES)
        page_bytes, salts = int.from_bytes(header[8:12], "big"), header[16:24]
        if header[:4] not in _LOG_MAGICS or page_bytes < _PAGE_BYTES_MIN:
            return False  # SQLite ignores the log
        while len(frame := file.read(_FRAME_HEADER_BYTES)) == _FRAME_HEADER_BYTES:
            # The rest is zeros, or frames of an earlier log. No frame has page number 0.
            if frame[8:16] != salts or not any(frame[:4]):
                break
            is_committed = any(frame[4:8])  # database size, which is 0 if the frame ends no commit
            file.seek(page_bytes, os.SEEK_CUR)
    return not is_committed


def _is_hot(journal: Path) -> bool:
    """Return whether a rollback journal has the header of an unfinished transaction."""
    try:
        with open(open_regular(journal), "rb") as file:
            return file.read(len(_JOURNAL_MAGIC)) == _JOURNAL_MAGIC
    except FileNotFoundError:
        return False
