"""Replaying the intent log after a crash.

Owns: the rows that record which log is in use and which entries the block files contain; writing
entries to block files.
Does not know: the format of the log, and how copied blocks are restored from their origins.
Keeps: an entry changes only the file of a block whose content is not in the bucket, and only if the
state was last written in the epoch of the entry. Thus old content never overwrites a block that an
older version of the program wrote later, or a block with the same number in another database.
Tasks: these functions run when a filesystem is opened, before any other task.
Design: docs/design/durability.md, "The intent log".
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.crash_safety import intent_log
from s3fs_meta.cache.crash_safety.intent_log import IntentLog, LoggedPiece
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.cache.index import NOT_UPLOADED
from s3fs_meta.errors import DatabaseError, FormatError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_origins, blocks, cached_blocks, local_state
from s3fs_meta.meta.tables.row_types import decimal
from s3fs_meta.model import BlockId, BlockState

# Name of the row that records the intent log's epoch and key, and its last applied entry.
_ROW: Final = "intent_log"
_USED: Final = re.compile(f"([0-9]+) ([0-9a-f]{{{2 * intent_log.KEY_BYTES}}}) ([0-9]+)", re.ASCII)


def epoch_of(db: Database) -> int | None:
    """Return the epoch in which this host last wrote, or None if it never wrote.

    Raises:
        FormatError: the row is damaged.
    """
    return local_state.number(db, "epoch")


class Used(NamedTuple):
    """The intent log in use, and the last of its entries that the block files contain."""

    epoch: int
    key: bytes
    settled: int


def announce(db: Database, log: IntentLog) -> None:
    """Record that a log is in use. Requires an open transaction.

    The row ``volatile`` is for older programs, which do not know the log: after a power cut they
    quarantine the state together with the log, so that the content of the log is not lost.
    """
    local_state.put(db, "volatile", "power")
    note_settled(db, Used(log.epoch, log.key, 0))


def note_settled(db: Database, used: Used) -> None:
    """Record that files contain all log entries up to ``used.settled``. Needs a transaction."""
    local_state.put(db, _ROW, f"{used.epoch} {used.key.hex()} {used.settled}")


def end_use(db: Database) -> None:
    """Record that no entry of an intent log is needed any more. Requires an open transaction."""
    local_state.delete(db, _ROW)


def is_in_use(db: Database) -> bool:
    """Return whether entries of the intent log may be needed after a power cut.

    If so, this program ignores the row ``volatile``, which is then only for older programs.

    Raises:
        FormatError: the row of the log is damaged.
    """
    return _in_use(db) is not None


def _in_use(db: Database) -> Used | None:
    """Return the intent log in use, or None if no entry of an intent log is needed.

    Raises:
        FormatError: the row is damaged, so the entries cannot be recognised.
    """
    text = local_state.get(db, _ROW)
    if text is None:
        return None
    match = _USED.fullmatch(text)
    epoch, settled = (None, None) if match is None else (decimal(match[1]), decimal(match[3]))
    if match is None or epoch is None or settled is None:
        raise FormatError(str(db.path), f"the row {_ROW!r} of the table local_state is damaged")
    return Used(epoch, bytes.fromhex(match[2]), settled) if epoch == epoch_of(db) else None


def needed_pieces(db: Database, directory: Path) -> list[LoggedPiece]:
    """Return the logged content that block files in a directory may lack, in write order.

    Raises:
        DatabaseError: the log cannot be read.
        FormatError: the row of the log is damaged.
    """
    used = _in_use(db)
    try:
        entries = [] if used is None else intent_log.read_entries(directory, *used)
    except OSError as exc:
        raise DatabaseError(
            f"the intent log {str(directory / intent_log.NAME)!r} cannot be read"
            f" ({exc.strerror or exc}); it may have the only copy of content that fsync made"
            " durable: check the disk (fsck), and mount again. If it stays unreadable, move"
            " it away; reads of that content then fail"
        ) from exc
    return [piece for entry in entries for piece in entry.pieces]


def only_here(db: Database, pieces: Sequence[LoggedPiece]) -> set[BlockId]:
    """Return the logged blocks that a file needs and that are not in the bucket.

    These are dirty and sealed blocks, and deleted blocks from which a copied block is restored.
    """
    origins = block_origins.origins_not_uploaded(db)
    return {
        block for block in {piece.block for piece in pieces} if _is_only_here(db, block, origins)
    }


def _is_only_here(db: Database, block: BlockId, origins: set[BlockId]) -> bool:
    held, row = cached_blocks.get(db, block), blocks.find(db, block)
    if held is None:
        return False
    if held.state is BlockState.DOOMED:
        return row is None and block in origins
    return held.state in NOT_UPLOADED and row is not None and row.pack is None


async def replay(db: Database, files: BlockFiles) -> dict[BlockId, list[LoggedPiece]]:
    """Write the content of all needed entries into the block files, after a power cut.

    Return the content, keyed by block. A second call has no effect. The log entries stay necessary
    until ``settle``.

    Raises:
        OSError, DatabaseError: the disk failed.
    """
    pieces = await in_thread(needed_pieces, db, files.root)
    wanted = only_here(db, pieces)
    logged: dict[BlockId, list[LoggedPiece]] = {}
    for piece in pieces:
        if piece.block in wanted:
            logged.setdefault(piece.block, []).append(piece)
    if not logged:
        return logged
    ends: dict[BlockId, int] = {}
    for block, its in logged.items():
        end = await in_thread(put_all, files, its)
        ends[block] = max(end, cached_blocks.synced_bytes(db, block))
    await in_thread(files.sync, sorted(ends))
    _note(db, ends)
    db.commit_durable()
    await in_thread(db.sync_wal)
    return logged


def put_all(files: BlockFiles, pieces: Iterable[LoggedPiece]) -> int:
    """Write the logged content of a block into its file; return the end offset. Runs in a thread.

    Raises:
        DatabaseError: the file cannot be opened or written, for example because the disk is full.
    """
    end = 0
    for piece in pieces:
        _put(files, piece)
        end = max(end, piece.stop)
    return end


def _put(files: BlockFiles, piece: LoggedPiece) -> None:
    """Write one logged piece into its block file. Runs in a thread.

    Raises:
        DatabaseError: the file cannot be opened or written, for example because the disk is full.
    """
    try:
        files.put(piece.block, piece.offset, piece.data)
    except OSError as exc:
        raise DatabaseError(
            f"the cache file of block {piece.block} cannot be written ({exc.strerror or exc}); the"
            f" content is still in {files.root / intent_log.NAME}: free space on the local disk, or"
            " check its filesystem, and mount again"
        ) from exc


async def settle(db: Database, files: BlockFiles, *, power_lost: bool) -> None:
    """Sync the files with the content of the intent log; record that the log is not needed.

    If the daemon was killed, the files contain every write, because the kernel's memory survived.
    If the disk has lost the end of a file, the end is written again from the log.
    After a power cut, ``replay`` has already synced and recorded everything.

    Raises:
        OSError, DatabaseError: the disk failed.
    """
    if not is_in_use(db):
        return
    if not power_lost:
        pieces = await in_thread(needed_pieces, db, files.root)
        wanted = only_here(db, pieces)
        pieces = [piece for piece in pieces if piece.block in wanted]
        sizes = await in_thread(_sync_pieces, files, pieces)
        _note(db, sizes)
        block_origins.forget(db, sizes)
    db.begin_local()
    end_use(db)
    if db.pragmas.survives_power_loss:
        local_state.put(db, "volatile", "nothing")
    db.commit_durable()
    await in_thread(db.sync_wal)


def _sync_pieces(files: BlockFiles, pieces: Sequence[LoggedPiece]) -> dict[BlockId, int]:
    """Restore the lost end of each file from the log, and sync the files; return their lengths."""
    found: dict[BlockId, int] = {}  # lengths of the block files before the replay of the log
    sizes: dict[BlockId, int] = {}
    for block, offset, data in pieces:
        if block not in found:
            found[block] = sizes[block] = files.size(block) or 0
        start, stop = max(offset, found[block]), offset + len(data)
        if start < stop and start <= sizes[block]:
            _put(files, LoggedPiece(block, start, data[start - offset :]))
            sizes[block] = max(sizes[block], stop)
    files.sync_everything()
    return sizes


def _note(db: Database, ends: dict[BlockId, int]) -> None:
    """Record the durable lengths of files, limited to the lengths of their blocks."""
    db.begin_local()
    lengths: list[tuple[BlockId, int]] = []
    for block, end in ends.items():
        row = blocks.find(db, block)
        lengths.append((block, end if row is None else min(end, row.plain_bytes)))
    cached_blocks.note_synced(db, lengths)


def overlaid(data: bytes, pieces: Iterable[LoggedPiece]) -> bytes:
    """Return the content of a block after its logged pieces are written over it; gaps are zeros."""
    content = bytearray(data)
    for piece in pieces:
        content.extend(bytes(max(piece.offset - len(content), 0)))
        content[piece.offset : piece.stop] = piece.data
    return bytes(content)
