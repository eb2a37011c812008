"""The record of a failed sync of a state directory."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from s3fs_meta import sync_failures


def _fill(disk: Path) -> None:
    """Use all free bytes of a disk."""
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))


def test_sync_failure_is_recorded_until_it_is_forgotten(tmp_path: Path) -> None:
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


def test_sync_failure_is_recorded_without_preparation(tmp_path: Path) -> None:
    sync_failures.note(tmp_path)
    assert sync_failures.is_noted(tmp_path)


def test_sync_failure_before_a_reboot_does_not_count(
    tmp_path: Path, reboot: Callable[[], None]
) -> None:
    """A sync failure does not count after a reboot, which clears the memory."""
    sync_failures.note(tmp_path)
    reboot()
    assert not sync_failures.is_noted(tmp_path)


def test_sync_failure_is_also_recorded_in_a_copy_of_the_directory(tmp_path: Path) -> None:
    """A copy of a state directory may contain pages that are not on a disk."""
    state = tmp_path / "state"
    state.mkdir()
    sync_failures.note(state)
    shutil.copytree(state, tmp_path / "copy")
    assert sync_failures.is_noted(tmp_path / "copy")


@pytest.mark.mount
def test_sync_failure_can_be_recorded_on_a_full_disk(small_disk: Path) -> None:
    """A sync often fails because the disk is full."""
    sync_failures.prepare(small_disk)
    _fill(small_disk)
    with pytest.raises(OSError, match="No space"):
        (small_disk / "another").write_bytes(b"x")
    sync_failures.note(small_disk)
    assert sync_failures.is_noted(small_disk)


def test_failure_to_make_the_record_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If no record can be made, the log advises a reboot."""
    gone = tmp_path / "gone"
    sync_failures.prepare(gone)
    sync_failures.note(gone)
    assert "reboot before the next mount" in caplog.text


def test_record_of_a_sync_failure_follows_no_symlink(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The record is not written through a symlink that another user may have made."""
    (tmp_path / "other").write_bytes(b"other")
    os.symlink(tmp_path / "other", tmp_path / sync_failures.NAME)
    sync_failures.note(tmp_path)
    assert (tmp_path / "other").read_bytes() == b"other"
    assert "symbolic links" in caplog.text
