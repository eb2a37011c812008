"""Rows of ``pending``, ``pack_news`` and ``outbox``: changes that are not in the bucket yet.

Owns: the record of the changes of each commit group, and of the blocks and packs that the next
changelog must report. Does not know: how the changes of a group are recorded (``group_changes``),
the content of a changeset (``changesets``), the store.
Keeps: a group and its record are committed together, so a crash loses both or neither. The bytes of
a changelog never change after its first upload attempt.
Tasks: the event loop, except ``read_news`` and ``merged_run``, which take a connection and may
run in a thread.
"""

import json
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

import apsw

from s3fs_meta.bucket_errors import UnfitRecordsError
from s3fs_meta.errors import FormatError
from s3fs_meta.limits import (
    CHANGELOG_RUN_BYTES,
    CONDENSED_RECORDS_MAX,
    CONDENSED_RECORDS_MIN,
    PURGED_AT_ONCE_MAX,
)
from s3fs_meta.meta import changesets
from s3fs_meta.meta.db import connections
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.group_listeners import LossStep
from s3fs_meta.meta.db.statements import Arguments, Row
from s3fs_meta.meta.group_changes import GroupChanges
from s3fs_meta.meta.tables import local_state
from s3fs_meta.model import BlockId, BlockRow, Ino, PackId, PackState, Txg

_FLOOR: Final = "block_floor"
_SHIPPED_SEQ: Final = "shipped_seq"


class ChangeRecorder:
    """Records the changes that each commit group makes to the replicated tables of one database."""

    def __init__(
        self, db: Database, now_ns: Callable[[], int], *, run_bytes: int = CHANGELOG_RUN_BYTES
    ) -> None:
        """Load the records of earlier commit groups.

        Args:
            db: the database, which calls this object for each group.
            now_ns: returns the time.
            run_bytes: the maximum size of a record, so that one changelog can contain it.
        """
        self._db = db
        self._run_bytes = run_bytes
        self._now_ns = now_ns
        self._changes = GroupChanges(db, db.path)
        self._is_recording = False
        self._sizes: deque[tuple[int, int]] = deque()  # (number, size) of each pending record
        self._given: list[bytes] = []  # changesets that callers added to the open commit group
        # True if a failed attempt has left records in the open commit group.
        self._is_partly_recorded = False
        self.bytes = 0  # total size of the records that no changelog contains yet
        self.last_seq = 0
        self.shipped_seq = 0  # number of the last record that a changelog contains
        self.oldest_ns = 0  # time of the oldest pending record, or 0 if there is none
        self._listeners: list[Callable[[], None]] = []
        self._load()
        db.record_with(self, self)
        db.listeners.when_lost(LossStep.RELOAD, self._load)

    def when_recorded(self, listener: Callable[[], None]) -> None:
        """Register a function to call after a commit group is recorded and before its COMMIT."""
        self._listeners.append(listener)

    def begin_txg(self) -> int:
        """Assign all later records to the next txg.

        Returns:
            The time of the previous txg's oldest record, or 0 if it has no records.
        """
        oldest_ns, self.oldest_ns = self.oldest_ns, 0
        return oldest_ns

    def resume_txg(self, oldest_ns: int) -> None:
        """Undo ``begin_txg``, because the earlier records, if any, were not shipped."""
        self.oldest_ns = oldest_ns or self.oldest_ns

    def _load(self) -> None:
        self._given = []
        self._changes.end()
        self._is_recording = False
        self._is_partly_recorded = False
        self.shipped_seq = done = _shipped_seq(self._db)
        rows = self._db.all("SELECT seq, length(changeset) FROM pending WHERE seq > ?", (done,))
        self._sizes = deque((row[0], row[1]) for row in rows)
        self.bytes = sum(size for _seq, size in self._sizes)
        # Never decrease last_seq: a cut may still use the numbers of records that a merge removed.
        self.last_seq = max(self.last_seq, self._sizes[-1][0] if self._sizes else done)
        self.oldest_ns = self._now_ns() if self._sizes else 0

    def group_opened(self) -> None:
        """Start recording a new commit group."""
        self._changes.begin()
        self._is_recording = True

    def group_committing(self) -> None:
        """Write the changes in the commit group as ``pending`` rows, as a part of the group.

        After a failure the group stays open, and the next attempt writes all changes.
        """
        if not self._is_recording:  # the commit group began before a recorder was set
            return
        changeset = self._changes.changeset()
        pieces = [*self._given, *([changeset] if changeset else [])]
        if pieces:
            self._record(
                [part for piece in pieces for part in changesets.split(piece, self._run_bytes)]
            )
        self._changes.end()
        self._is_recording = False
        self._given = []
        if pieces:
            self.oldest_ns = self.oldest_ns or self._now_ns()
            for listener in self._listeners:
                listener()

    def expect_few_rows(self) -> None:
        """Prepare for a commit group with a few rows, as between two fsyncs."""
        self._changes.expect_few_rows()

    def pause(self) -> None:
        """Pause recording; the caller records its next changes itself.

        The rows of these changes must still be unchanged in the commit group.
        """
        self._changes.pause(True)

    def go_on(self, changeset: bytes) -> None:
        """Resume recording; *changeset* contains the changes that the caller made since the pause.

        The changeset is written before all changes that were recorded. This is correct, because a
        row of the changeset was recorded only if it changed again later.
        """
        self._changes.pause(False)
        if self._is_recording and changeset:
            self._given.append(changeset)

    def _record(self, pieces: Sequence[bytes]) -> None:
        sizes = [(seq, len(piece)) for seq, piece in enumerate(pieces, self.last_seq + 1)]
        if self._is_partly_recorded:
            self._db.run("DELETE FROM pending WHERE seq > ?", (self.last_seq,))
        self._is_partly_recorded = True
        for (seq, _size), piece in zip(sizes, pieces, strict=True):
            self._db.run("INSERT INTO pending VALUES (?, ?)", (seq, piece))
        self._is_partly_recorded = False
        self._sizes.extend(sizes)
        self.last_seq = sizes[-1][0]
        self.bytes += sum(size for _seq, size in sizes)

    def attempted(
        self,
        txg: Txg,
        data: bytes,
        seq_max: int,
        next_block: BlockId,
        reported: Collection[PackId],
    ) -> None:
        """Store a changelog that is about to be sent, and mark its content as shipped.

        Requires an open transaction. ``purge`` deletes the records later, in several commit groups.

        Args:
            txg: the txg of the changelog.
            data: the bytes of the changelog.
            seq_max: the number of the last record that the changelog contains.
            next_block: the lowest number of a block that the changelog does not list.
            reported: the packs that the changelog reports.
        """
        put_outbox(self._db, txg, data)
        # The next changelog reports packs that changed after the cut, so their rows stay.
        confirmed = [(pack,) for pack in reported if pack not in self._db.packs_changed_after_cut]
        self._db.run_many("DELETE FROM pack_news WHERE pack = ?", confirmed)
        local_state.put_all(self._db, {_SHIPPED_SEQ: str(seq_max), _FLOOR: str(next_block)})
        self.shipped_seq = seq_max
        while self._sizes and self._sizes[0][0] <= seq_max:
            self.bytes -= self._sizes.popleft()[1]
        self.oldest_ns = self._now_ns() if self._sizes else 0

    def small_run(
        self, seq_after: int, *, records_min: int = CONDENSED_RECORDS_MIN
    ) -> tuple[int, int] | None:
        """Return the first and last number of a run of small records that can be merged.

        A run has *records_min* or more records after *seq_after* that together fit into one section
        of a changelog. Return None if there is no such run.
        """
        first, last, total, count = 0, 0, 0, 0
        for seq, size in self._sizes:
            if seq <= seq_after:
                continue
            if total + size > self._run_bytes:
                if count >= records_min:
                    break
                total = count = 0
            if count == 0:
                first = seq
            last, total, count = seq, total + size, count + 1
            if count >= CONDENSED_RECORDS_MAX:
                break
        return (first, last) if count >= records_min else None

    def replace_run(self, first: int, last: int, merged: bytes) -> None:
        """Replace several consecutive pending records with one record. Needs a transaction."""
        self._db.run("DELETE FROM pending WHERE seq BETWEEN ? AND ?", (first, last))
        if merged:
            self._db.run("INSERT INTO pending VALUES (?, ?)", (last, merged))
        sizes = [(seq, size) for seq, size in self._sizes if not first <= seq <= last]
        before = sum(seq < first for seq, _size in sizes)
        self._sizes = deque([*sizes[:before], (last, len(merged)), *sizes[before:]])
        self.bytes = sum(size for _seq, size in self._sizes)

    def purge(self) -> bool:
        """Delete some shipped records. Requires an open transaction.

        Returns:
            True if more shipped records may exist.
        """
        return bool(
            self._db.run(
                "DELETE FROM pending WHERE seq IN"
                " (SELECT seq FROM pending WHERE seq <= ? ORDER BY seq LIMIT ?)",
                (self.shipped_seq, PURGED_AT_ONCE_MAX),
            )
        )


def _shipped_seq(db: Database) -> int:
    return local_state.number(db, _SHIPPED_SEQ) or 0


class PackNews(NamedTuple):
    """A pack to report in a changelog; only its number is set if the pack's row was deleted."""

    pack: PackId
    object_key: str | None
    object_bytes: int | None
    state: int | None


class News(NamedTuple):
    """Changed locations that no changelog contains yet, read from one snapshot."""

    blocks: list[BlockRow]  # new and moved blocks of files; an upload sets the pack of a block
    packs: list[PackNews]


def read_news(connection: apsw.Connection, waiting: Sequence[BlockId] = ()) -> News:
    """Return the new and moved blocks, and the changed packs, for the next changelog.

    Args:
        connection: a connection that reads a snapshot.
        waiting: blocks that will soon have a location; they are returned even if an earlier
            changelog lists them.
    """
    floor = _block_floor(connection)
    new = _all(
        connection,
        "SELECT block, refs, plain_bytes, hash, pack, pack_offset, stored_bytes FROM blocks"
        " WHERE block >= ? AND refs > 0",
        (floor,),
    )
    moved = _all(
        connection,
        "SELECT b.block, b.refs, b.plain_bytes, b.hash, b.pack, b.pack_offset, b.stored_bytes"
        " FROM pack_news AS n CROSS JOIN blocks AS b ON b.pack = n.pack"
        " WHERE b.block < ? AND b.refs > 0",
        (floor,),
    )
    moving = _all(
        connection,
        "SELECT block, refs, plain_bytes, hash, pack, pack_offset, stored_bytes FROM blocks"
        " WHERE block IN (SELECT value FROM json_each(?)) AND refs > 0",
        (json.dumps([block for block in waiting if block < floor]),),
    )
    packs = _all(
        connection,
        "SELECT n.pack, p.object_key, p.object_bytes, p.state"
        " FROM pack_news AS n LEFT JOIN packs AS p ON p.pack = n.pack"
        f" WHERE p.state IS NOT {PackState.UPLOADING:d}",
    )
    rows = (*new, *moved, *moving)
    return News([BlockRow._make(row) for row in rows], [PackNews._make(row) for row in packs])


def _all(connection: apsw.Connection, sql: str, arguments: Arguments = ()) -> list[Row]:
    """Return all rows of a query; raise the errors of ``connections.translating``."""
    with connections.translating(connection.filename):
        return connection.execute(sql, arguments).fetchall()


class MergedRecords(NamedTuple):
    """Several consecutive pending records, merged into one record."""

    changeset: bytes
    last_seq: int


def merged_run(
    connection: apsw.Connection, seq_after: int, seq_max: int, bytes_max: int
) -> MergedRecords | None:
    """Merge records after *seq_after* up to *seq_max*, as many as fit into *bytes_max*.

    The first record is always included, even if it is larger.

    Returns:
        None if no record is in this range.
    """
    sizes = _all(
        connection,
        "SELECT seq, length(changeset) FROM pending WHERE seq > ? AND seq <= ? ORDER BY seq",
        (seq_after, seq_max),
    )
    if not sizes:
        return None
    last_seq = seq_after

    def records() -> Iterator[bytes]:
        nonlocal last_seq
        total = 0
        for seq, size in sizes:
            if total and total + size > bytes_max:
                return
            total += size
            last_seq = seq
            for row in _all(connection, "SELECT changeset FROM pending WHERE seq = ?", (seq,)):
                yield bytes(row[0])

    return MergedRecords(changesets.merge(records(), connection), last_seq)


def fitting_run(
    connection: apsw.Connection, seq_after: int, seq_max: int, bytes_max: int
) -> MergedRecords | None:
    """Return the result of ``merged_run`` for a changelog.

    Raises:
        UnfitRecordsError: a row was damaged before its change, so other hosts cannot apply the run.
    """
    run = merged_run(connection, seq_after, seq_max, bytes_max)
    if run is not None and changesets.has_invalid_values(run.changeset):
        raise UnfitRecordsError
    return run


def records_of_run(connection: apsw.Connection, first: int, last: int) -> list[tuple[int, bytes]]:
    """Return the records of a run that ``small_run`` found; it limits their total size."""
    sql = "SELECT seq, changeset FROM pending WHERE seq BETWEEN ? AND ? ORDER BY seq"
    return [(seq, bytes(changeset)) for seq, changeset in _all(connection, sql, (first, last))]


class ChangedInodes(NamedTuple):
    """The inodes that a run of pending records changes."""

    last: dict[Ino, int]  # number of the last record that changes each inode
    last_seq: int  # number of the last record that was read
    complete: bool  # False if some later records were not read


def inodes_changed(connection: apsw.Connection, seq_after: int, count_max: int) -> ChangedInodes:
    """Return inodes that the records after *seq_after* change; stop after *count_max* inodes.

    Records are always read completely, so the result can have more than *count_max* inodes.
    """
    last: dict[Ino, int] = {}
    last_seq = seq_after
    for seq, changeset in records(connection, seq_after):
        if len(last) >= count_max:
            return ChangedInodes(last, last_seq, complete=False)
        last.update(dict.fromkeys(changesets.inodes_of(changeset), seq))
        last_seq = seq
    return ChangedInodes(last, last_seq, complete=True)


def records(connection: apsw.Connection, seq_after: int) -> Iterator[tuple[int, bytes]]:
    """Yield the pending records after *seq_after* with their numbers, in order."""
    with connections.translating(connection.filename):
        rows: Iterator[Row] = connection.execute(
            "SELECT seq, changeset FROM pending WHERE seq > ? ORDER BY seq", (seq_after,)
        )
        yield from ((seq, changeset) for seq, changeset in rows)


def _block_floor(connection: apsw.Connection) -> BlockId:
    """Return the number of the first block that no changelog lists yet."""
    rows = _all(connection, "SELECT value FROM local_state WHERE name = ?", (_FLOOR,))
    return BlockId(int(str(rows[0][0])) if rows else 1)


def raise_block_floor(db: Database) -> None:
    """Record that changelogs contain all existing blocks. Requires an open transaction."""
    local_state.put(db, _FLOOR, str(db.counters.next_block))


def has_pack_news(db: Database) -> bool:
    """Return whether the next changelog must report a pack."""
    return db.one("SELECT 1 FROM pack_news LIMIT 1") is not None


def pack_news(connection: apsw.Connection) -> list[PackId]:
    """Return the packs that the next changelog must report, read through a connection."""
    return [PackId(row[0]) for row in _all(connection, "SELECT pack FROM pack_news")]


def forget(db: Database, seq_max: int) -> None:
    """Delete the records up to *seq_max*, which an image contains. Requires an open transaction."""
    db.run("DELETE FROM pending WHERE seq <= ?", (seq_max,))


def put_outbox(db: Database, txg: Txg, data: bytes) -> None:
    """Store the bytes of a changelog that is about to be uploaded. Requires an open transaction."""
    db.run("INSERT INTO outbox VALUES (?, ?)", (txg, data))


def outbox(db: Database) -> tuple[Txg, bytes] | None:
    """Return the changelog whose upload was attempted but not confirmed, or None.

    Raises:
        FormatError: the row is damaged.
    """
    row = db.one("SELECT txg, data FROM outbox")
    if row is None:
        return None
    txg, data = row
    if not (isinstance(txg, int) and isinstance(data, bytes)):
        raise FormatError(str(db.path), "the row of the outbox has values of a wrong type")
    return Txg(txg), data


def clear_outbox(db: Database) -> None:
    """Delete the changelog in the outbox: it is uploaded, or another changelog has its number.

    Requires an open transaction.
    """
    db.run("DELETE FROM outbox")


def has_news(db: Database) -> bool:
    """Return whether an unshipped record changes more than counters and properties."""
    rows = db.iterate("SELECT changeset FROM pending WHERE seq > ?", (_shipped_seq(db),))
    return any(changesets.is_news(row[0]) for row in rows)


def is_empty(db: Database) -> bool:
    """Return whether a confirmed changelog contains every recorded change."""
    return (
        db.one("SELECT 1 FROM pending WHERE seq > ? LIMIT 1", (_shipped_seq(db),)) is None
        and db.one("SELECT 1 FROM outbox LIMIT 1") is None
    )
