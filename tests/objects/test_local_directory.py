"""Tests of the directory of a local store and of the identity in its lock file."""

import os
from pathlib import Path

import pytest

from s3fs_meta.errors import UsageError
from s3fs_meta.objects import local_directory


def test_directory_is_absent_if_it_is_missing_or_empty(tmp_path: Path) -> None:
    root = tmp_path / "bucket"
    assert local_directory.is_absent(root)
    local_directory.make_root_directory(root)
    assert local_directory.is_absent(root)
    (root / "object").touch()
    assert not local_directory.is_absent(root)
    with pytest.raises(UsageError, match="it is not a directory"):
        local_directory.make_root_directory(root / "object")


def test_second_write_of_the_identity_of_a_lock_file_keeps_the_first(tmp_path: Path) -> None:
    location = tmp_path / "lock"
    os.close(local_directory.open_lock(location, os.O_CREAT))

    first = local_directory.write_identity(location)

    assert len(first) == 32
    assert local_directory.write_identity(location) == first == location.read_bytes()
