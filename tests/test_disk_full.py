"""Tests of the errors of writes to a full disk or beyond the maximum file size."""

import errno
import os
import resource
from pathlib import Path

import pytest

from s3fs_meta import disk_full
from s3fs_meta.disk_full import FULL_ERRNOS, NO_ROOM_ERRNOS
from s3fs_meta.errors import DatabaseFullError


def test_errno_of_a_full_filesystem_means_full_disk_and_no_room(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space") as full:
        (small_disk / "file").write_bytes(bytes(2 << 20))
    assert full.value.errno in FULL_ERRNOS & NO_ROOM_ERRNOS


def test_errno_of_a_file_size_limit_means_no_room_but_not_full_disk(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (tmp_path / "file").open("wb", buffering=0) as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            with pytest.raises(OSError, match="large") as too_large:
                file.write(b"content")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert too_large.value.errno in NO_ROOM_ERRNOS - FULL_ERRNOS


def test_error_about_a_full_disk_below_a_directory_says_what_to_do(tmp_path: Path) -> None:
    def fail(code: int, path: Path | None) -> None:
        with disk_full.advising(tmp_path / "state"):
            raise OSError(code, os.strerror(code), path)

    file = tmp_path / "state" / "holder.new"
    with pytest.raises(
        DatabaseFullError, match=r"state/holder.new' is full, .*; delete some files"
    ):
        fail(errno.ENOSPC, file)
    for code, path in (
        (errno.EIO, file),
        (errno.ENOSPC, tmp_path / "elsewhere"),
        (errno.ENOSPC, None),
    ):
        with pytest.raises(OSError, match=os.strerror(code)):
            fail(code, path)
