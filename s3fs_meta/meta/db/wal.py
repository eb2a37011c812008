"""The write-ahead log of the database: its length, sync and checkpoints.

Owns: the length of the log in frames, fsync of the ``-wal`` file, its room, checkpoints.
Does not know: groups, rows.
Keeps: after a sync or checkpoint has failed, every later one fails, because the kernel reports a lost
page only once to each descriptor. The descriptor of ``sync`` stays open from the first commit on, so
an error that SQLite's descriptor received is reported to it, too.
Tasks: the event loop, except ``sync`` and ``checkpoint``, which belong in a thread.

*Room* is zeros after the end of the log: bytes that the file has on the disk already. A sync of
frames that fill room writes only these frames. Any other sync also writes the new size and the new
blocks of the file, for which a filesystem commits its journal: 0.5 ms instead of 0.15 on ext4.
SQLite ends its search for frames at the zeros, as at any bytes that are no frame of this log.

How the log stays bounded: a checkpoint in a thread copies frames into the database while the
writer continues, so it never reaches the end of the log. SQLite restarts the log only when a
transaction begins after all frames were copied. So the thread repeats the checkpoint until few
frames remain. Then ``nearly_copied`` is true, and the database copies the remaining frames between
two groups, on the event loop. That takes two fsyncs and writes a few pages.
Source: https://www.sqlite.org/wal.html, "Avoiding Excessively Large WAL Files".
"""

import errno
import logging
import os
import weakref
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from s3fs_meta.limits import (
    WAL_CHECKPOINT_BYTES,
    WAL_PASSES_MAX,
    WAL_REST_BYTES_MAX,
    WAL_ROOM_BYTES,
)
from s3fs_meta.meta.db import connections
from s3fs_meta.meta.db.connections import translated
from s3fs_meta.meta.db.local_disk import sync_directory

_log = logging.getLogger(__name__)

_HEADER_BYTES: Final = 32
_REST_SHARE: Final = 16
_FRAME_HEADER_BYTES: Final = 24
_VERSION_AT: Final = 18  # offset in the database header; https://www.sqlite.org/fileformat2.html
_VERSION_WAL: Final = b"\x02"
_NO_SPACE_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Errors of a checkpoint that say nothing about the disk: the log only stays longer.
_HARMLESS: Final = (apsw.FullError, apsw.LockedError, apsw.NoMemError, apsw.InterruptError)


class Checkpoint(NamedTuple):
    """The result of a checkpoint: frames in the log, and how many of them are in the database."""

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
        self._copied_frames = 0
        self._file_bytes = 0  # length of the file including its room; 0: unknown
        self._in_thread = (
            False  # True if a checkpoint runs in a thread; the event loop runs none then
        )
        self.failure = ""  # why every later sync and checkpoint fails; never cleared once set
        self._fd = -1
        self._close: weakref.finalize[[int], Wal] | None = None

    def _open(self) -> None:
        """Open the file; SQLite makes it before the first commit.

        SQLite has no locks on the log file, so we may open and close a descriptor of our own.
        """
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        self._fd, self._close = fd, weakref.finalize(self, os.close, fd)

    def close(self, connection: apsw.Connection) -> None:
        """Prepare for the end of the writing connection; no thread may sync any more."""
        if self.failure:  # the log may not be durable: the database must not change before it is
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        if self._close is not None:
            self._close()

    def note_commit(self, frames: int) -> None:
        """Store the length of the log after a commit, as reported by SQLite's hook."""
        if frames < self._frames:  # SQLite has restarted the log, and may have truncated the file
            self._copied_frames = self._file_bytes = 0
        self._frames = frames
        if self._fd < 0:
            self._open()

    @property
    def size_bytes(self) -> int:
        """Return the number of used bytes of the log; its file may be longer."""
        return self._frames * self._frame_bytes + _HEADER_BYTES if self._frames else 0

    @property
    def uncopied_bytes(self) -> int:
        """Return the number of bytes of the log that are not copied to the database yet."""
        return max(self._frames - self._copied_frames, 0) * self._frame_bytes

    @property
    def lacks_room(self) -> bool:
        """Return whether half of the room is used, so that ``append_room`` is due."""
        return self.size_bytes + WAL_ROOM_BYTES // 2 > self._file_bytes

    def append_room(self, room_bytes: int = WAL_ROOM_BYTES) -> None:
        """Append zeros to the file, so that it has *room_bytes* after the log; ``sync`` must follow.

        On the event loop, while no group is open: the append makes the file newer, and the next
        mount takes block files that are older than the log for committed (``last_change_ns``).
        With O_APPEND zeros never overwrite a frame. A full disk gives no room.

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
                if exc.errno not in _NO_SPACE_ERRNOS:
                    raise
                _log.info("the write-ahead log gets no room: %s", exc.strerror)
        self._file_bytes = wanted

    def forgo_room(self) -> None:
        """Let the log do without room until half as much as the missing room is used."""
        self._file_bytes = self.size_bytes + WAL_ROOM_BYTES

    @property
    def nearly_copied(self) -> bool:
        """Return whether the log is long enough to restart, and few of its frames are not copied.

        The longer the log, the more frames may be left, which bounds the log under any load.
        """
        return (
            self._copied_frames > 0
            and not self._in_thread
            and not self.failure
            and self.size_bytes >= WAL_CHECKPOINT_BYTES
            and self.uncopied_bytes <= max(WAL_REST_BYTES_MAX, self.size_bytes // _REST_SHARE)
        )

    def sync(self) -> None:
        """Make every commit so far durable. Blocking: in a thread.

        Raises:
            OSError: the disk failed now or before; it is unknown which commits are durable.
        """
        if self.failure:
            raise OSError(errno.EIO, self.failure, str(self._path))
        if self._fd < 0:
            self._open()
            if self._fd < 0:  # nothing was written since the database was opened
                return
        try:
            os.fdatasync(self._fd)
            if not self._directory_synced:
                sync_directory(self._path.parent)
                self._directory_synced = True
        except OSError as exc:
            self.failure = f"an earlier sync of the log failed ({exc.strerror or exc})"
            raise

    def checkpoint(self) -> Checkpoint:
        """Copy the log into the database while the writer continues. Blocking: in a thread.

        Raises:
            DatabaseError: the checkpoint failed. On a full disk the log only stays longer; after any
                other error every sync fails.
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
            if done.copied_frames <= before.copied_frames:  # a reader blocks copying more frames
                break
        return done

    def checkpoint_with(self, connection: apsw.Connection) -> Checkpoint:
        """Copy the log through a given connection, without waiting for readers or the writer.

        Raises:
            apsw.Error: as ``checkpoint``.
        """
        if self.failure:
            raise apsw.IOError(self.failure)
        try:
            done = Checkpoint(*connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE))
        except apsw.BusyError:
            return Checkpoint(self._frames, self._copied_frames)
        except _HARMLESS:
            raise
        except apsw.Error as exc:
            # It began with a sync of the log. A second checkpoint would not see that this failed, and
            # would change the database before the log is durable.
            self.failure = f"a checkpoint failed ({exc})"
            raise
        if done.frames >= self._frames:  # otherwise SQLite has restarted the log meanwhile
            self._copied_frames = done.copied_frames
        return done


def last_change_ns(database: Path) -> int | None:
    """Return the newest ctime, in ns, of a database that no process has open and of its log.

    The caller compares it with the time of a file beside the database. Restoring a file from a
    backup gives it a new ctime, even if its mtime is old: see inode(7).

    Returns:
        None if the database or its log is missing.
    """
    try:
        with database.open("rb") as file:
            file.seek(_VERSION_AT)
            has_log = file.read(1) == _VERSION_WAL
        times_ns = [database.stat().st_ctime_ns]
        if has_log:
            times_ns.append(Path(f"{database}-wal").stat().st_ctime_ns)
    except FileNotFoundError:
        return None
    return max(times_ns)
