"""The connection to the metadata database: statements, commit groups, counters.

Owns: the only writing connection, its pragmas, the start and end of groups, the row of counters.
Does not know: the meaning of rows (other modules of ``meta``), files, tasks.
Keeps: the counters equal the rows at every commit.
Tasks: the event loop, except ``sync_wal``, ``checkpoint`` and copying a snapshot, which run in a
thread. No method is a schedule point. This process must not open and close the database file or its
``-shm`` file through another descriptor, because closing it releases SQLite's POSIX locks.

A *group* combines operations in one transaction. An operation checks everything before its first
change, so there are no savepoints. If SQLite loses the group (a full disk, an I/O error), all its
changes are undone. Listeners are called in the order of ``LossStep``, and the error is raised.
Under ``journal_mode=off`` nothing can be undone: the database refuses further groups, its owner
makes the mount read-only, and a later mount restores.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import apsw
from typing_extensions import override

from s3fs_meta.clock import SystemClock
from s3fs_meta.errors import DatabaseError, FormatError, NewerFormatError, S3fsError
from s3fs_meta.meta.db import connections, counters, schema, snapshot
from s3fs_meta.meta.db.connections import is_full, note_failed_sync, translated
from s3fs_meta.meta.db.cookies import NameHash, name_hash
from s3fs_meta.meta.db.counters import Counters
from s3fs_meta.meta.db.db_swap import Exchange
from s3fs_meta.meta.db.group_listeners import BulkRecorder, GroupListeners, LossStep, Recorder
from s3fs_meta.meta.db.inode_table import InodeTable
from s3fs_meta.meta.db.local_disk import create_empty, refuse_wal_on_network
from s3fs_meta.meta.db.pinned_reader import View
from s3fs_meta.meta.db.pragmas import SYNCHRONOUS, Pragmas
from s3fs_meta.meta.db.snapshot import Snapshot
from s3fs_meta.meta.db.statements import Row, Statements
from s3fs_meta.meta.db.wal import Checkpoint, Wal

_log = logging.getLogger(__name__)

_IS_BYTES: Final = "typeof(value) = 'blob'"
COOKIE_KEY_BYTES: Final = 16
# Properties that are necessary to interpret the rows.
FACTS: Final = ("uuid", "block_bytes", "cookie_key")

_NOTE_DURABLE_COMMIT: Final = (
    "INSERT INTO local_state VALUES ('durable_commits', '1')"
    " ON CONFLICT DO UPDATE SET value = CAST(value AS INTEGER) + 1"
)


class Database(Statements):
    """One open metadata database, as returned by ``create`` and ``open``."""

    def __init__(self, path: Path, pragmas: Pragmas, connection: apsw.Connection) -> None:
        super().__init__(connection)
        self.inodes = InodeTable(self)
        self.path = path
        self.pragmas = pragmas
        self.group_operations = 0
        self.times_begun = 0  # number of operations that changed only the times of an inode
        self.changes_begun = 0  # number of all other operations, and of ``begin_local`` calls
        self.changed = False  # True after an operation, until ``mark_changed(False)``
        self.listeners = GroupListeners()
        self.recorder: Recorder | None = None
        self.bulk_recorder: BulkRecorder | None = None
        self.counters = Counters()
        self.cookie_key = b""
        self.name_hash: NameHash = len
        # False if no directory has two names with the same hash.
        self.shares_hashes = True
        # True if the file has an earlier schema version, whose rows are converted by views.
        self.is_former = False
        self._written: tuple[int, ...] = ()
        # Number of rows that commits wrote, in addition to the rows that operations changed.
        self._written_late = 0
        self._refuses = False
        self._closed = False
        self._snapshots: set[Snapshot] = set()  # open snapshots; a thread removes closed snapshots
        self.wal: Wal | None = None  # the write-ahead log, or None in another journal mode
        self._wants_restart = False  # True if the WAL should be restarted
        self._view: View | None = None  # the state that a follower shows; None on a writer

    # --- create and open databases -------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: Path,
        pragmas: Pragmas,
        properties: Mapping[str, bytes],
        *,
        uid: int = 0,
        gid: int = 0,
        now_ns: int | None = None,
    ) -> "Database":
        """Create a database with an empty root directory, and open it.

        Args:
            properties: the facts that mkfs sets, including ``cookie_key`` (16 bytes).
            uid: owner of the root directory.
            gid: group of the root directory.

        Raises:
            UsageError: the pragmas are invalid, or the disk does not support them.
            DatabaseError: the file already exists or cannot be created.
        """
        assert len(properties["cookie_key"]) == COOKIE_KEY_BYTES, "cookie_key has 16 bytes"
        pragmas.validate()
        if pragmas.is_wal:
            refuse_wal_on_network(path)
        try:
            create_empty(path)
        except OSError as exc:
            raise DatabaseError(f"cannot create database {str(path)!r}: {exc.strerror}") from exc
        connection = connections.connect(path, read_only=False)
        made = False
        try:
            connection.pragma("page_size", pragmas.page_size)
            connection.execute("BEGIN IMMEDIATE")
            schema.create_tables(connection)
            now = SystemClock().now_ns() if now_ns is None else now_ns
            schema.insert_first_rows(connection, uid, gid, now)
            facts = {**properties, "schema_version": b"%d" % schema.SCHEMA_VERSION}
            connection.executemany("INSERT INTO properties VALUES (?, ?)", facts.items())
            connection.execute("COMMIT")
            made = True
        except apsw.Error as exc:
            raise translated(exc, str(path)) from exc
        finally:
            connection.close()
            if not made:
                path.unlink(missing_ok=True)
        try:
            return cls.open(path, pragmas)
        except BaseException:
            connections.remove_files(path)
            raise

    @classmethod
    def open(
        cls, path: Path, pragmas: Pragmas, *, read_only: bool = False, repairing: bool = False
    ) -> "Database":
        """Open an existing database; after a crash SQLite recovers it.

        A database of an earlier schema version is upgraded durably, after its journal mode was set.
        If setting the mode fails, the earlier program can thus still open the database.

        Args:
            read_only: change and upgrade nothing. Under WAL another process may write concurrently.
            repairing: accept missing properties of mkfs, because fsck repairs them.

        Raises:
            UsageError: the pragmas are invalid, or the disk does not support them.
            FormatError: the file is not a metadata database of this program.
            DatabaseError: the file is missing, locked or unreadable.
        """
        pragmas.validate()
        if pragmas.is_wal and not read_only:
            refuse_wal_on_network(path)
        connection = None
        try:
            connection = connections.connect(path, read_only=read_only)
            _require_tables(connection, path)
            if not read_only and schema.is_former(connection):
                mode = pragmas.journal_mode if pragmas.has_durable_journal else "delete"
                connections.set_journal_mode(connection, mode, "extra", path)
                schema.upgrade(connection)
            database = cls(path, pragmas, connection)
            database._configure(read_only=read_only)
            database._load(repairing=repairing)
        except BaseException as exc:
            if connection is not None:
                connection.close()
            if isinstance(exc, apsw.Error):
                note_failed_sync(exc, path)
                raise translated(exc, str(path)) from exc  # noqa: ASYNC104 - no cancellation
            raise
        return database

    def _configure(self, *, read_only: bool) -> None:
        pragma = self.connection.pragma
        pragma("cache_size", self.pragmas.effective_cache_size)
        pragma("mmap_size", self.pragmas.mmap_size)
        pragma("temp_store", self.pragmas.temp_store)
        if read_only:
            return
        # SQLite changes journal_mode in a transaction that still uses the old mode.
        # With synchronous=NORMAL, a power cut during this transaction could damage the database.
        safe = "extra" if self.pragmas.survives_power_loss else "off"
        connections.set_journal_mode(self.connection, self.pragmas.journal_mode, safe, self.path)
        pragma("synchronous", self.pragmas.synchronous)
        pragma("journal_size_limit", self.pragmas.journal_size_limit)
        if self.pragmas.is_wal:
            self.wal = Wal(self.path, pragma("page_size"), self.pragmas.synchronous)
            self.connection.set_wal_hook(self._note_commit)

    def _load(self, *, repairing: bool) -> None:
        named = ", ".join(f"'{name}'" for name in ("schema_version", *FACTS))
        # The query reads only the required properties, because the table may have many other rows.
        sql = f"SELECT name, value FROM properties WHERE name IN ({named}) AND {_IS_BYTES}"
        rows: list[Row] = self.connection.execute(sql).fetchall()
        facts = {name: value for name, value in rows if type(value) is bytes}
        number = facts.get("schema_version", b"")[:9]
        version = int(number) if number.isdigit() else 0
        if version > schema.SCHEMA_VERSION:
            raise NewerFormatError(str(self.path), f"the schema version {version} is unknown")
        is_read_only = self.connection.readonly("main")
        if is_read_only:
            self.is_former = schema.show_as_present(self.connection)
        if version != schema.SCHEMA_VERSION and not self.is_former:
            raise FormatError(str(self.path), f"the schema version {version} is unknown")
        if not is_read_only:
            schema.create_local_tables(self.connection)
        lacking = [name for name in FACTS if not facts.get(name)]
        if lacking and not repairing:
            text = f"property {lacking[0]} is missing; run s3fs-meta fsck -y"
            raise FormatError(str(self.path), text)
        self.take_cookie_key(facts.get("cookie_key", b""))
        self.load_counters(repairing=repairing)

    def take_cookie_key(self, key: bytes) -> None:
        """Use another cookie key from now on; the caller must replace all dentries' cookies."""
        self.cookie_key = key
        self.name_hash = name_hash(key)

    def load_counters(self, *, repairing: bool = False) -> None:
        """Read the counters again, after a statement changed their rows.

        Args:
            repairing: treat a value that is not a number as 0, because fsck repairs it.

        Raises:
            FormatError: the row of the counters is missing, or a value in it is not a number.
        """
        self.inodes.forget()
        shared = "SELECT 1 FROM dentries WHERE cookie & 255 <> 0 LIMIT 1"
        self.shares_hashes = bool(self.connection.execute(shared).fetchall())
        rows: list[Row] = self.connection.execute(counters.SELECT).fetchall()
        if len(rows) != 1:
            raise FormatError(str(self.path), "the table counters or totals has no valid row")
        values = tuple(value if type(value) is int else 0 for value in rows[0])
        if values != rows[0] and not repairing:
            raise FormatError(str(self.path), "a counter is not a number; run s3fs-meta fsck -y")
        self.counters.load(values)
        self._written = rows[0]

    def close(self) -> None:
        """Close the database, and roll back an open commit group. A second call has no effect."""
        if self._closed:
            return
        self._closed = True
        self.connection.set_wal_hook(None)
        if self.connection.in_transaction:
            # End the open transaction: a group, or the read of a follower.
            self._cursor.execute("ROLLBACK")
        self.in_group = False
        if self.wal is not None:
            self.wal.close(self.connection)
        self.connection.close()

    def record_with(self, recorder: Recorder, bulk: BulkRecorder | None = None) -> None:
        """Set the recorder for the next commit groups, replacing any earlier recorder."""
        assert self.recorder is None or not self.in_group, "its recorder must record the open group"
        self.recorder, self.bulk_recorder = recorder, bulk

    # --- groups of operations ------------------------------------------------------------------

    def rows_changed(self) -> int:
        """Return a number that increases with every row that an operation changes.

        An inode is counted when it changes in memory, and not again when a commit writes it.
        """
        return self._total_changes() - self._written_late + self.inodes.unwritten_changes

    def begin(self, *, times_only: bool = False) -> None:
        """Begin an operation: open a commit group if none is open, and count the operation.

        Args:
            times_only: the operation changes only inode times, which fdatasync(2) need not sync.

        Raises:
            DatabaseError: no group can be opened.
        """
        if not self.in_group:
            self._open_group()
        self.group_operations += 1
        if times_only:
            self.times_begun += 1
        else:
            self.changes_begun += 1
        self.changed = True

    def mark_changed(self, changed: bool = True) -> None:
        """Record whether the database has changes for the next txg."""
        self.changed = changed

    def note_shared_hash(self) -> None:
        """Record that some names have the same hash, so that inserts search for a free cookie."""
        self.shares_hashes = True

    def begin_local(self) -> None:
        """Open a commit group if none is open, to change only rows of local tables."""
        if not self.in_group:
            self._open_group()
        self.changes_begun += 1

    def _open_group(self) -> None:
        if self._refuses:
            raise DatabaseError(
                "an earlier change failed under journal_mode=off, and part of it may be in the"
                " database; unmount and mount again to restore the database from the bucket"
            )
        if self._view is None:
            try:
                self._cursor.execute("BEGIN IMMEDIATE")
            except apsw.Error as exc:
                raise self._failed(exc) from exc
        self.in_group = True
        if self.recorder is not None and self._view is None:
            self.recorder.group_opened()
        for listener in self.listeners.of_opening:
            listener()

    def commit(self) -> None:
        """Commit the open group, if there is one.

        Raises:
            DatabaseError: the group is lost, or under journal_mode=off a part of it.
        """
        if not self.in_group:
            return
        if self._view is not None:
            self.in_group = False
            return
        before = self.rows_changed()
        if self.inodes.changed:
            self.inodes.flush()
        updates = self.counters.updates(self._written)
        for sql, row in updates.statements:
            self.run(sql, row)
        if self.recorder is not None:
            self.recorder.group_committing()
        try:
            self._cursor.execute("COMMIT")
        except apsw.Error as exc:
            raise self._failed(exc, changing=True, committing=True) from exc
        self._written = updates.values
        self._written_late += self.rows_changed() - before
        self.in_group = False
        self.group_operations = 0
        if self.wal is not None and self._wants_restart and not self._snapshots:
            self._wants_restart = False
            self.wal.try_checkpoint(self.connection)  # ``sync_wal`` reports disk errors

    def commit_durable(self) -> None:
        """Commit the group so that it survives a power cut; under WAL, call ``sync_wal`` next.

        In the rollback journal modes this blocks the event loop for several fsyncs. Under settings
        that do not survive power loss (``Pragmas.survives_power_loss``) this is a normal commit.
        """
        self.commit()
        if (
            self.wal is not None
            or self.pragmas.commit_syncs_journal_end
            or not self.pragmas.survives_power_loss
        ):
            return
        # The first commit synced the database, but not the end of its journal.
        # A second commit at a higher level of `synchronous` syncs the journal.
        # The second commit must change a row: COMMIT ignores an UPDATE that writes the same bytes.
        self._set_synchronous("full")
        try:
            self.begin_local()
            self.run(_NOTE_DURABLE_COMMIT)
            self.commit()
        finally:
            self._set_synchronous(self.pragmas.synchronous)

    def _set_synchronous(self, level: str) -> None:
        self._cursor.execute(f"PRAGMA synchronous={SYNCHRONOUS.index(level)}")

    @override
    def rollback(self) -> None:
        """Undo the open group, if any, including operations that have already reported success.

        Under journal_mode=off nothing is undone and the database refuses further groups.
        """
        if self.in_group:
            self._lose_group()

    def undo(self) -> None:
        """Undo the open group, whose changes no caller has seen yet; later changes are accepted."""
        if self.in_group:
            self._lose_group(LossStep.RELOAD)

    @override
    def _failed(
        self, exc: apsw.Error, *, changing: bool = False, committing: bool = False
    ) -> S3fsError:
        """Return an S3fsError for an SQLite exception; discard the group if it cannot continue."""
        note_failed_sync(exc, self.path)
        if self.in_group:
            gone = is_full(exc) or not self.connection.in_transaction
            if gone or committing or (changing and not self.pragmas.can_undo):
                self._lose_group()
        return translated(exc, str(self.path))

    def _lose_group(self, first: LossStep = LossStep.REFUSE) -> None:
        self.in_group = False
        self.group_operations = 0
        self.inodes.forget()
        self._forget_recent()
        try:
            if self.connection.in_transaction:
                self._cursor.execute("ROLLBACK" if self.pragmas.can_undo else "COMMIT")
            if self._view is not None:
                self._view.pin()
            # Keep the txg in memory: the row has an older one until another counter changes.
            txg = self.counters.txg
            self.load_counters()
            self.counters.begin_txg(txg)
        except (apsw.Error, FormatError) as exc:
            _log.error("database %s is unusable after a failed commit: %s", self.path, exc)
            self._refuses = True
        if not self.pragmas.can_undo:
            self._refuses = True
        try:
            self.listeners.lost(LossStep.REFUSE if self._refuses else first)
        except S3fsError as exc:  # after a disk failure, the mount continues read-only
            _log.error("database %s is unreadable after a failed commit: %s", self.path, exc)
            self._refuses = True

    # --- apply txgs on a follower --------------------------------------------------------------

    def follow(self) -> None:
        """Pin the committed state: read this state even if another connection commits.

        Until ``lead``, groups change only rows of fetched blocks, in temporary tables outside the
        file.
        """
        assert self.pragmas.is_wal, "only WAL allows consistent reads during writes"
        assert not self.in_group, "the open group must be committed to the file first"
        self.remembers = False
        self._forget_recent()
        with connections.translating(str(self.path)):
            self._view = View(self.connection, self.load_counters)

    def go_on(self) -> None:
        """Let a follower read the newest committed state. Call this between two requests."""
        assert self._view is not None, "only the database of a follower is pinned"
        with connections.translating(str(self.path)):
            self._view.pin()

    def lead(self) -> None:
        """Undo ``follow``: move the rows of fetched blocks to the file, which groups now change."""
        assert self._view is not None, "only the database of a follower is pinned"
        self.commit()
        with connections.translating(str(self.path)):
            self._view.end()
        self._view = None
        self.remembers = True

    def exchange(self, other: Path, old_dir: Path) -> None:
        """Replace the file of a follower's database with another database, and open the new file.

        The rows of fetched blocks are lost, even after an error, because they are outside the file.
        If the process is killed meanwhile, the database may be missing, perhaps with its log left;
        the next mount then restores the database.

        Args:
            other: a database with the same pragmas, which no process has open.
            old_dir: a directory on the same disk, to which the old file is moved.

        Raises:
            DatabaseError, FormatError: the replacement failed. The old file is in use again, or
                ``is_closed`` is true because it could not be reopened.
        """
        assert self._view is not None, "only the database of a follower has no changes to lose"
        self.commit()
        with connections.translating(str(self.path)):
            # Close without a checkpoint, which would only write to the old, unneeded database file.
            self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self.connection.set_wal_hook(None)
            self.connection.close()
            files = Exchange(self.path, other, old_dir)
            try:
                files.do()
                self._reopen()
            except (apsw.Error, OSError, S3fsError) as exc:
                self._go_back(files)
                if isinstance(exc, OSError):
                    text = f"cannot replace the database {str(self.path)!r}: {exc.strerror}"
                    raise DatabaseError(text) from exc
                raise

    def _reopen(self) -> None:
        self._use(connections.connect(self.path, read_only=False))
        self._configure(read_only=False)
        self._load(repairing=False)
        self._view = View(self.connection, self.load_counters)

    def _go_back(self, files: Exchange) -> None:
        self.connection.close()
        try:
            files.undo()
            self._reopen()
        except (apsw.Error, OSError, S3fsError) as exc:
            _log.error("cannot reopen the old database %s: %s", self.path, exc)
            self.connection.close()
            self._closed = True

    @property
    def is_closed(self) -> bool:
        """Return whether the database is closed."""
        return self._closed

    @property
    def follows(self) -> bool:
        """Return whether the database is pinned: after ``follow`` and before ``lead``."""
        return self._view is not None

    # --- write-ahead log and snapshots -----------------------------------------------------------

    def _note_commit(self, connection: apsw.Connection, _schema: str, frames: int) -> int:
        wal = self.wal
        assert wal is not None, "the hook is set only under WAL"
        self._wants_restart = wal.note_commit(frames)
        if 0 < self.pragmas.wal_autocheckpoint <= frames:
            wal.checkpoint_with(connection)
        return apsw.SQLITE_OK

    @property
    def size_bytes(self) -> int:
        """Return the size that a copy of the database would have, in bytes."""
        row = self.one("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        assert row is not None, "a pragma returns a row"
        return int(row[0])

    @property
    def wal_bytes(self) -> int:
        """Return the length of the write-ahead log in bytes, or 0 without a log."""
        return 0 if self.wal is None else self.wal.size_bytes

    @property
    def wal_uncopied_bytes(self) -> int:
        """Return the number of bytes of the log that no checkpoint has copied yet."""
        return 0 if self.wal is None else self.wal.uncopied_bytes

    def sync_wal(self) -> None:
        """Sync the WAL, if there is one and the settings survive power loss. Call in a thread.

        Raises:
            OSError: the disk failed; it is unknown which commits are durable.
        """
        if self.wal is not None and self.pragmas.survives_power_loss:
            self.wal.sync()

    def checkpoint(self) -> Checkpoint | None:
        """Copy the WAL into the database while the writer continues. Call this in a thread.

        A later commit restarts the log. Without a WAL, do nothing. Errors: see ``Wal.checkpoint``.
        """
        return None if self.wal is None else self.wal.checkpoint()

    def open_snapshot(self) -> Snapshot:
        """Open a snapshot of the last commit; a thread can copy it while commit groups continue.

        Under WAL this takes less than a millisecond. In the other journal modes it copies the
        complete database to a file next to it, which stalls the event loop.

        Raises:
            DatabaseError: the snapshot cannot be opened.
        """
        with connections.translating(str(self.path)):
            if self.wal is not None:
                opened = snapshot.open_in_wal(self.path, self._snapshots.discard)
            else:
                assert not self.in_group, "without WAL, a snapshot must follow a commit"
                spool = self.path.with_name(f"{self.path.name}-snapshot")
                opened = snapshot.spool(self.connection, spool, self._snapshots.discard)
        self._snapshots.add(opened)
        return opened


def _require_tables(connection: apsw.Connection, path: Path) -> None:
    """Raise FormatError for an empty file, which SQLite opens as a database without tables."""
    sql = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'properties'"
    if connection.execute(sql).fetchone() is None:
        raise FormatError(str(path), "the database has no table 'properties'")
