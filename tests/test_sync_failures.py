"""The record that a sync of a state directory has failed."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from s3fs_meta import machine, sync_failures


def _fill(disk: Path) -> None:
    """Use all free bytes of a disk."""
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))


def test_failure_is_noted_until_it_is_forgotten(tmp_path: Path) -> None:
    assert not sync_failures.is_noted(tmp_path)
    sync_failures.prepare(tmp_path)
    assert not sync_failures.is_noted(tmp_path)
    for _ in range(2):
        sync_failures.note(tmp_path)
        assert sync_failures.is_noted(tmp_path)
        sync_failures.prepare(tmp_path)
        assert sync_failures.is_noted(tmp_path), "another opening does not forget it"
    sync_failures.forget(tmp_path)
    assert not sync_failures.is_noted(tmp_path)


def test_failure_is_noted_without_preparation(tmp_path: Path) -> None:
    sync_failures.note(tmp_path)
    assert sync_failures.is_noted(tmp_path)


def test_failure_of_an_earlier_boot_is_not_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory with the lost pages is gone."""
    sync_failures.note(tmp_path)
    monkeypatch.setattr(machine, "BOOT_ID", tmp_path / "boot_id")
    machine.BOOT_ID.write_text("another")
    assert not sync_failures.is_noted(tmp_path)


def test_failure_is_noted_in_a_copy_of_the_directory(tmp_path: Path) -> None:
    """The copy was read from the memory; it may be on its way to a disk that works."""
    state = tmp_path / "state"
    state.mkdir()
    sync_failures.note(state)
    shutil.copytree(state, tmp_path / "copy")
    assert sync_failures.is_noted(tmp_path / "copy")


@pytest.mark.mount
def test_failure_is_noted_on_a_full_disk(small_disk: Path) -> None:
    """A full disk often is why a sync fails."""
    sync_failures.prepare(small_disk)
    _fill(small_disk)
    with pytest.raises(OSError, match="No space"):
        (small_disk / "another").write_bytes(b"x")
    sync_failures.note(small_disk)
    assert sync_failures.is_noted(small_disk)


def test_record_that_cannot_be_made_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the user can help then; the error of the sync itself must still reach its caller."""
    gone = tmp_path / "gone"
    sync_failures.prepare(gone)
    sync_failures.note(gone)
    assert "reboot before the next mount" in caplog.text


def test_record_is_written_through_no_link(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another user could have planted it before the directory was made private."""
    (tmp_path / "other").write_bytes(b"other")
    os.symlink(tmp_path / "other", tmp_path / sync_failures.NAME)
    sync_failures.note(tmp_path)
    assert (tmp_path / "other").read_bytes() == b"other"
    assert "symbolic links" in caplog.text
