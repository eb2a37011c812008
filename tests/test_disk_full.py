"""Tests of the errnos of writes to a full disk or beyond the maximum file size."""

import resource
from pathlib import Path

import pytest

from s3fs_meta.disk_full import FULL_ERRNOS, NO_ROOM_ERRNOS


def test_full_filesystem_counts_as_a_full_disk_in_both_errno_sets(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space") as full:
        (small_disk / "file").write_bytes(bytes(2 << 20))
    assert full.value.errno in FULL_ERRNOS & NO_ROOM_ERRNOS


def test_file_size_limit_does_not_count_as_a_full_disk_but_as_no_room(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (tmp_path / "file").open("wb", buffering=0) as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            with pytest.raises(OSError, match="large") as too_large:
                file.write(b"content")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert too_large.value.errno in NO_ROOM_ERRNOS - FULL_ERRNOS
