"""Tests of unshipped changes in the state directory of a killed daemon."""

import errno
from pathlib import Path

import pytest

from s3fs_meta.mount.existing import killed_state
from s3fs_meta.mount.existing.killed_state import Unshipped
from tests.faults import refuse_file


def test_size_of_unshipped_changes_is_reported() -> None:
    assert Unshipped(0, 0, has_changes=False).described == "everything is in the bucket"
    assert Unshipped(2048, 2, has_changes=True).described == (
        "only on this host: 2 KiB in 2 blocks and changes of the metadata"
    )
    assert (
        Unshipped(0, 0, has_changes=True).described == "only on this host: changes of the metadata"
    )


def test_unshipped_changes_are_unknown_if_the_state_directory_is_unreadable(tmp_path: Path) -> None:
    """If the state directory is missing, the changes are unknown, and no directory is created."""
    assert killed_state.unshipped(tmp_path / "missing") is None
    assert not (tmp_path / "missing").exists()
    (tmp_path / "meta.db").write_bytes(b"no database")
    assert killed_state.described(tmp_path) == "changes may be only on this host"


def test_state_directory_on_a_failed_disk_does_not_count_as_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may refuse even stat(2) of the directory. Its changes are then unknown."""
    assert killed_state.is_removed(tmp_path / "missing")

    refuse_file(monkeypatch, tmp_path.name, errno.EIO)
    assert not killed_state.is_removed(tmp_path)
    assert killed_state.described(tmp_path) == "changes may be only on this host"
