"""Reading the intent log: complete entries are returned, torn and outdated entries are ignored."""

import errno
import os
from pathlib import Path

import pytest

from s3fs_meta.cache.crash_safety.intent_log import (
    KEY_BYTES,
    NAME,
    IntentLog,
    LogEntry,
    LoggedPiece,
    read_entries,
)
from s3fs_meta.limits import INTENT_PIECES_MAX, KIB
from s3fs_meta.model import BlockId
from s3fs_meta.testing.recorded_disk import (
    DiskRecorder,
    Entered,
    SyncedDirectory,
    SyncedFile,
    Wrote,
    recording,
)
from tests.faults import raising

PAGE = 4 * KIB
ONE, TWO = BlockId(1), BlockId(2)
HELLO = LoggedPiece(ONE, 0, b"hello")
KEY = bytes(KEY_BYTES)


def log_in(directory: Path, epoch: int = 7) -> IntentLog:
    """Return an intent log of four pages that is ready for entries."""
    log = IntentLog(directory, epoch, 4 * PAGE)
    log.key = KEY
    log.prepare()
    return log


def numbers(entries: list[LogEntry]) -> list[int]:
    """Return the numbers of log entries."""
    return [entry.sequence for entry in entries]


def test_intent_log_entries_are_read_in_the_order_of_their_append(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    pieces = [HELLO, LoggedPiece(TWO, 9, b"x" * PAGE), LoggedPiece(ONE, 1, b"")]
    log.append([HELLO])
    log.append(pieces)

    assert read_entries(tmp_path, 7, KEY) == [LogEntry(1, (HELLO,)), LogEntry(2, tuple(pieces))]
    assert numbers(read_entries(tmp_path, 7, KEY, after=1)) == [2]


def test_empty_or_missing_intent_log_has_no_entries(tmp_path: Path) -> None:
    assert read_entries(tmp_path, 7, KEY) == []
    log_in(tmp_path)
    assert read_entries(tmp_path, 7, KEY) == []


def test_intent_log_entries_of_another_epoch_are_not_read(tmp_path: Path) -> None:
    """A host of another epoch may have used the same block numbers for different content."""
    log_in(tmp_path, epoch=6).append([HELLO])

    assert read_entries(tmp_path, 7, KEY) == []
    log_in(tmp_path, epoch=7).append([LoggedPiece(TWO, 0, b"new")])
    assert numbers(read_entries(tmp_path, 7, KEY)) == [1]


def test_intent_log_entries_written_before_a_log_restart_are_not_read(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    for _ in range(4):
        log.append([HELLO])
    assert not log.has_room(1, 5)

    log.restart()
    log.append([HELLO])

    assert numbers(read_entries(tmp_path, 7, KEY)) == [5]


def test_entries_of_another_intent_log_with_the_same_epoch_are_not_read(tmp_path: Path) -> None:
    """One epoch number can occur twice if the bucket and the database are restored from backups."""
    old = log_in(tmp_path)
    old.key = b"another key"
    for _ in range(3):
        old.append([HELLO])
    log_in(tmp_path).append([HELLO])

    assert numbers(read_entries(tmp_path, 7, KEY)) == [1]


def test_file_content_that_looks_like_an_intent_log_entry_is_not_read_as_an_entry(
    tmp_path: Path,
) -> None:
    """A program may write data that looks like a log entry for a file of another user."""
    forger = IntentLog(tmp_path / "forged", 7, PAGE)
    (tmp_path / "forged").mkdir()
    forger.prepare()
    forger.sequence = 2
    forger.append([LoggedPiece(TWO, 0, b"forged")])
    forged = (tmp_path / "forged" / NAME).read_bytes()

    log = log_in(tmp_path)
    # The forged entry begins at a page boundary of the log.
    log.append([LoggedPiece(ONE, 0, bytes(PAGE - 80) + forged)])
    log.restart()
    log.append([HELLO])

    assert (tmp_path / NAME).read_bytes()[PAGE : 2 * PAGE] == forged
    assert numbers(read_entries(tmp_path, 7, KEY)) == [2]


@pytest.mark.parametrize("at", [0, 8, 16, 24, 28, 32, 64, 68, 80, PAGE + 20])
def test_changed_byte_invalidates_its_intent_log_entry_and_all_later_entries(
    tmp_path: Path, at: int
) -> None:
    """A torn last log entry ends the log, even if an old valid entry happens to follow it."""
    log = log_in(tmp_path)
    log.append([HELLO])
    log.append([LoggedPiece(ONE, 0, b"y" * 2 * PAGE)])
    data = bytearray((tmp_path / NAME).read_bytes())
    data[PAGE + at] ^= 1
    (tmp_path / NAME).write_bytes(data)

    assert numbers(read_entries(tmp_path, 7, KEY)) == [1]
    data[at] ^= 1
    (tmp_path / NAME).write_bytes(data)
    assert len(read_entries(tmp_path, 7, KEY)) == (at > PAGE)


@pytest.mark.parametrize("size", [0, 20, PAGE - 1, PAGE, PAGE + 40, 2 * PAGE])
def test_reading_a_truncated_intent_log_returns_only_its_complete_entries(
    tmp_path: Path, size: int
) -> None:
    log = log_in(tmp_path)
    log.append([LoggedPiece(ONE, 0, b"z" * (PAGE - 80))])
    log.append([LoggedPiece(ONE, 0, b"z" * PAGE)])
    with (tmp_path / NAME).open("r+b") as file:
        file.truncate(size)

    assert numbers(read_entries(tmp_path, 7, KEY)) == [1] * (size >= PAGE)


def test_intent_log_entry_with_the_maximum_number_of_pieces_is_read(tmp_path: Path) -> None:
    pieces = [LoggedPiece(BlockId(number), 0, b"1") for number in range(1, INTENT_PIECES_MAX + 1)]
    log = IntentLog(tmp_path, 7, size_bytes=64 * KIB)
    log.key = KEY
    log.prepare()
    log.append(pieces)

    [entry] = read_entries(tmp_path, 7, KEY)
    assert list(entry.pieces) == pieces


def test_intent_log_refuses_an_entry_larger_than_its_free_space(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    assert log.has_room(1, 4 * PAGE - 80)
    assert not log.has_room(1, 4 * PAGE - 79)


def test_disk_space_of_the_intent_log_is_allocated_in_advance(tmp_path: Path) -> None:
    """Writing into a hole of the intent log would force a commit of the disk's journal."""
    log_in(tmp_path)

    found = (tmp_path / NAME).stat()
    assert found.st_size == 4 * PAGE
    assert found.st_blocks * 512 >= found.st_size


def test_intent_log_that_exceeds_the_free_disk_space_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", raising(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        log_in(tmp_path)
    assert not (tmp_path / NAME).exists()


def test_intent_log_is_not_created_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"foreign")
    (tmp_path / NAME).symlink_to("target")

    with pytest.raises(OSError, match="symbolic link"):
        log_in(tmp_path)
    assert (tmp_path / "target").read_bytes() == b"foreign"


def test_intent_log_and_its_entries_are_synced_before_the_call_returns(tmp_path: Path) -> None:
    """The log's directory is synced, because a power cut could remove the name of a new log."""
    recorder = DiskRecorder(tmp_path)
    with recording(recorder):
        log = log_in(tmp_path)
        prepared = len(recorder.events)
        log.append([HELLO])

    kinds = [type(event) for event in recorder.events]
    assert kinds[:prepared] == [Entered, Wrote, SyncedFile, SyncedDirectory]
    assert kinds[prepared:] == [Wrote, SyncedFile]
