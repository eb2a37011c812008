"""Tests of the record that a sync of the state directory has failed."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from s3fs_meta import sync_failures


def _fill(disk: Path) -> None:
    """Write a file until the disk is full."""
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))


def test_record_of_a_sync_failure_is_kept_until_it_is_deleted(tmp_path: Path) -> None:
    assert not sync_failures.is_noted(tmp_path)
    sync_failures.prepare(tmp_path)
    assert not sync_failures.is_noted(tmp_path)
    for _ in range(2):
        sync_failures.note(tmp_path)
        assert sync_failures.is_noted(tmp_path)
        sync_failures.prepare(tmp_path)
        assert sync_failures.is_noted(tmp_path), "prepare must not remove the record"
    sync_failures.forget(tmp_path)
    assert not sync_failures.is_noted(tmp_path)


def test_sync_failure_can_be_recorded_without_a_preallocated_file(tmp_path: Path) -> None:
    sync_failures.note(tmp_path)
    assert sync_failures.is_noted(tmp_path)


def test_sync_failure_before_a_reboot_is_ignored(
    tmp_path: Path, reboot: Callable[[], None]
) -> None:
    """A reboot drops all cached pages, so earlier sync failures no longer matter."""
    sync_failures.note(tmp_path)
    reboot()
    assert not sync_failures.is_noted(tmp_path)


def test_record_of_a_sync_failure_also_applies_to_a_copied_directory(tmp_path: Path) -> None:
    """A copied state directory may come from cached pages that never reached a disk."""
    state = tmp_path / "state"
    state.mkdir()
    sync_failures.note(state)
    shutil.copytree(state, tmp_path / "copy")
    assert sync_failures.is_noted(tmp_path / "copy")


@pytest.mark.mount
def test_sync_failure_can_be_recorded_on_a_full_disk(small_disk: Path) -> None:
    """The record needs no space, because a sync often fails on a full disk."""
    sync_failures.prepare(small_disk)
    _fill(small_disk)
    with pytest.raises(OSError, match="No space"):
        (small_disk / "another").write_bytes(b"x")
    sync_failures.note(small_disk)
    assert sync_failures.is_noted(small_disk)


def test_failure_to_record_a_sync_failure_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If a sync failure cannot be recorded, the log advises a reboot."""
    gone = tmp_path / "gone"
    sync_failures.prepare(gone)
    sync_failures.note(gone)
    assert "reboot before the next mount" in caplog.text


def test_record_of_a_sync_failure_does_not_follow_a_symlink(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed sync is not recorded through a symlink, which another user may have made."""
    (tmp_path / "other").write_bytes(b"other")
    os.symlink(tmp_path / "other", tmp_path / sync_failures.NAME)
    sync_failures.note(tmp_path)
    assert (tmp_path / "other").read_bytes() == b"other"
    assert "symbolic link" in caplog.text
