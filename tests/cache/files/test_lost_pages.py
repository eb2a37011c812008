"""Pages that the kernel dropped after a failed write to a real ext4 filesystem."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.cache.files.lost_pages import first_lost_byte
from s3fs_meta.limits import KIB, MIB
from tests.conftest import REQUIRED
from tests.power.loop_disk import LoopDisk, why_no_loop_disk

pytestmark = pytest.mark.mount


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """Return an empty file on a new ext4 filesystem."""
    why = why_no_loop_disk()
    if why and "loop" not in REQUIRED:
        pytest.skip(why)
    disk = LoopDisk(tmp_path / "disk.ext4", tmp_path / "disk")
    disk.mount()
    fd = os.open(disk.mountpoint / "file", os.O_RDWR | os.O_CREAT)
    try:
        yield fd
    finally:
        os.close(fd)
        disk.unmount()


def test_disk_blocks_that_are_reserved_but_not_cached_are_reported_as_lost(file: int) -> None:
    """After a failed write, the reserved disk blocks have no cached pages and count as lost."""
    os.posix_fallocate(file, 0, MIB)
    assert first_lost_byte(file, 0) == 0
    assert first_lost_byte(file, 100 * KIB) == 100 * KIB
    assert first_lost_byte(file, MIB) is None

    os.pwrite(file, b"x" * 64 * KIB, 0)
    assert first_lost_byte(file, 0) == 64 * KIB, "pages in memory are not lost"
    os.fsync(file)
    os.pwrite(file, b"x" * 64 * KIB, 128 * KIB)
    os.fsync(file)
    assert first_lost_byte(file, 0) == 64 * KIB
    assert first_lost_byte(file, 64 * KIB + 1) == 64 * KIB + 1
    assert first_lost_byte(file, 128 * KIB) == 192 * KIB


def test_written_pages_and_gaps_are_not_reported_as_lost(file: int) -> None:
    for start in range(100):  # One query returns fewer than 100 extents.
        os.pwrite(file, b"x" * 4 * KIB, start * 16 * KIB)
    os.ftruncate(file, 2 * MIB)
    assert first_lost_byte(file, 0) is None
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    assert first_lost_byte(file, 0) is None

    os.posix_fallocate(file, 1900 * KIB, 8 * KIB)
    assert first_lost_byte(file, 0) == 1900 * KIB


def test_no_lost_page_is_reported_on_a_filesystem_without_extents(small_disk: Path) -> None:
    """A tmpfs reports no extents; on ext4, the reserved blocks would be reported as lost."""
    with (small_disk / "file").open("wb+") as file:
        os.posix_fallocate(file.fileno(), 0, 512 * KIB)
        assert first_lost_byte(file.fileno(), 0) is None
