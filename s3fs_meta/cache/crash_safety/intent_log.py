"""The intent log: content that fsync made durable before the block files themselves are synced.

Owns: the format of the file, appending entries, reading them back. Does not know: rows, when
content is logged, how entries are replayed (``intent_replay``).
Why: an fsync of a new block file waits for a commit of the disk's journal. Appending an entry does
not, because the space of the log file is already allocated.
Keeps: an entry is complete or invalid, because a digest covers it. Each log has a random key for
its digests, so neither file content nor entries of an earlier log are mistaken for entries. The
pages of a needed entry are not overwritten.
Tasks: ``append`` and ``prepare`` block, so a thread must run them; one call at a time.
Source: the intent log of ZFS; the format is described in docs/design/format.md.
"""

import hashlib
import os
import secrets
import struct
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from s3fs_meta.hashed_dir import FILE_MODE, sync_path
from s3fs_meta.limits import INTENT_LOG_BYTES, INTENT_LOG_BYTES_MAX, INTENT_PIECES_MAX, KIB
from s3fs_meta.model import BlockId
from s3fs_meta.state_paths import open_regular, read_regular

# The intent log is in the directory of block files, so that quarantine moves both together.
NAME: Final = "intent-log"

_MAGIC: Final = b"s3fsil1\n"
_HEADER: Final = struct.Struct(">8sQQII")  # entry header: magic, epoch, sequence, pieces, bytes
_PIECE: Final = struct.Struct(">QII")  # fields of a log piece: block, offset in the block, length
_DIGEST_BYTES: Final = 32
KEY_BYTES: Final = 16
_PAGE_BYTES: Final = 4 * KIB
_ZEROS_BYTES: Final = 256 * KIB


class LoggedPiece(NamedTuple):
    """Consecutive bytes of one block, and their offset in the block."""

    block: BlockId
    offset: int
    data: bytes

    @property
    def stop(self) -> int:
        """Return the offset after the last byte."""
        return self.offset + len(self.data)


class LogEntry(NamedTuple):
    """The content that one fsync made durable."""

    sequence: int
    pieces: tuple[LoggedPiece, ...]


class IntentLog:
    """Writes this host's intent log for one epoch."""

    def __init__(self, directory: Path, epoch: int, size_bytes: int = INTENT_LOG_BYTES) -> None:
        """Set the directory and the size of the log; ``prepare`` opens its file.

        Args:
            directory: the directory of block files.
            epoch: the epoch of this host, which each entry contains.
            size_bytes: the length of the file.
        """
        self._path = directory / NAME
        self._size_bytes = size_bytes
        self._fd = -1
        self._end = 0
        self.epoch = epoch
        self.key = secrets.token_bytes(KEY_BYTES)
        self.sequence = 0  # number of the last log entry

    def prepare(self) -> None:
        """Open the log file and allocate all its space; all entries in it must be obsolete.

        Raises:
            OSError: the disk is full or failed; the file was removed, so that it takes no space.
        """
        fd = open_regular(self._path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        weakref.finalize(self, os.close, fd)
        try:
            self._allocate(fd)
        except OSError:
            self._path.unlink(missing_ok=True)
            raise
        self._fd = fd

    def _allocate(self, fd: int) -> None:
        position = os.fstat(fd).st_size
        while position < self._size_bytes:
            count = min(_ZEROS_BYTES, self._size_bytes - position)
            position += os.pwrite(fd, bytes(count), position)
        os.fsync(fd)
        sync_path(self._path.parent)

    def has_room(self, pieces: int, content_bytes: int) -> bool:
        """Return whether an entry of this size fits after the last entry."""
        return self._end + _entry_bytes(pieces, content_bytes) <= self._size_bytes

    def restart(self) -> None:
        """Let the next entry overwrite the first entry; all entries must be obsolete."""
        self._end = 0

    def append(self, pieces: Sequence[LoggedPiece]) -> None:
        """Write an entry after the last entry, and make it durable. Blocks, so call it in a thread.

        Raises:
            OSError: the disk failed; the entry may be durable or not.
        """
        entry = _encode(self.key, self.epoch, self.sequence + 1, pieces)
        assert self._end + len(entry) <= self._size_bytes, "the caller must check the free space"
        written = 0
        while written < len(entry):
            written += os.pwrite(self._fd, memoryview(entry)[written:], self._end + written)
        os.fdatasync(self._fd)
        self._end += _aligned(len(entry))
        self.sequence += 1


def read_entries(directory: Path, epoch: int, key: bytes, after: int = 0) -> list[LogEntry]:
    """Return the entries of a log whose numbers are above *after*, in order.

    Reading stops at the first page that does not begin a valid entry with the next number. From
    that page on, the file has only old entries that were not overwritten yet, or a torn entry whose
    fsync never returned.

    Raises:
        OSError: the file exists but cannot be read.
    """
    try:
        data = read_regular(directory / NAME, INTENT_LOG_BYTES_MAX)
    except FileNotFoundError:
        return []
    return [entry for entry in _decoded(data, epoch, key) if entry.sequence > after]


def _decoded(data: bytes, epoch: int, key: bytes) -> Iterator[LogEntry]:
    position, sequence = 0, None
    while (entry := _decode(data, position, epoch, key)) is not None:
        if sequence is not None and entry.sequence != sequence + 1:
            return
        sequence = entry.sequence
        yield entry
        size = sum(len(piece.data) for piece in entry.pieces)
        position += _entry_bytes(len(entry.pieces), size)


def _encode(key: bytes, epoch: int, sequence: int, pieces: Sequence[LoggedPiece]) -> bytes:
    size = sum(len(piece.data) for piece in pieces)
    header = _HEADER.pack(_MAGIC, epoch, sequence, len(pieces), size)
    table = [_PIECE.pack(piece.block, piece.offset, len(piece.data)) for piece in pieces]
    body = b"".join([*table, *(piece.data for piece in pieces)])
    return header + _digest(key, header, body) + body


def _decode(data: bytes, position: int, epoch: int, key: bytes) -> LogEntry | None:
    """Return the entry at a position, or None if the log has no complete entry there."""
    body_at = position + _HEADER.size + _DIGEST_BYTES
    if body_at > len(data):
        return None
    header = data[position : position + _HEADER.size]
    magic, found_epoch, sequence, count, size = _HEADER.unpack(header)
    if magic != _MAGIC or found_epoch != epoch or count > INTENT_PIECES_MAX:
        return None
    content_at = body_at + count * _PIECE.size
    body = data[body_at : content_at + size]
    if len(body) != content_at + size - body_at:
        return None
    if data[position + _HEADER.size : body_at] != _digest(key, header, body):
        return None
    pieces: list[LoggedPiece] = []
    for block, offset, length in _PIECE.iter_unpack(bytes(data[body_at:content_at])):
        pieces.append(LoggedPiece(BlockId(block), offset, data[content_at : content_at + length]))
        content_at += length
    return LogEntry(sequence, tuple(pieces))


def _digest(key: bytes, header: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(header + body, digest_size=_DIGEST_BYTES, key=key).digest()


def _entry_bytes(pieces: int, content_bytes: int) -> int:
    """Return the size of an entry in the file, which is a multiple of a page."""
    return _aligned(_HEADER.size + _DIGEST_BYTES + pieces * _PIECE.size + content_bytes)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES
