"""The guard in front of the disk's reserve."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typing_extensions import override

from s3fs_meta.cache.disk_space import DiskSpace
from s3fs_meta.errors import NoSpaceLeftError
from s3fs_meta.limits import DISK_CHECK_BYTES, DISK_FREE_BYTES, OPERATION_DISK_BYTES


class MeasuredDisk(DiskSpace):
    """A disk whose spare bytes the test sets."""

    def __init__(self, path: Path, spare: int, free_some: Callable[[int], None]) -> None:
        super().__init__(path, free_some)
        self.spare = spare
        self.looks = 0

    @override
    def spare_bytes(self) -> int:
        """Return what the test set."""
        self.looks += 1
        return self.spare


def test_one_look_grants_many_operations(tmp_path: Path) -> None:
    """A roomy disk is asked once per granted budget, not once per operation."""
    disk = MeasuredDisk(tmp_path, 1 << 40, lambda _wanted: None)

    for _ in range(100):
        disk.spend(DISK_CHECK_BYTES // 200)

    assert disk.looks == 1


def test_refuses_before_the_reserve(tmp_path: Path) -> None:
    """An operation that would come out of the reserve is refused by name."""
    disk = MeasuredDisk(tmp_path, 100, lambda _wanted: None)

    with pytest.raises(NoSpaceLeftError, match="reserve"):
        disk.spend(101)


def test_evicting_makes_room_first(tmp_path: Path) -> None:
    """Clean blocks are evicted before a write is refused."""
    disk = MeasuredDisk(tmp_path, 0, lambda wanted: setattr(disk, "spare", wanted))

    disk.spend(1000)

    assert disk.spare >= 1000


def test_little_more_is_evicted_than_is_wanted(tmp_path: Path) -> None:
    """It happens on the loop, and small files take as long as large ones, each."""
    asked: list[int] = []

    def free_some(wanted: int) -> None:
        asked.append(wanted)
        disk.spare += wanted

    disk = MeasuredDisk(tmp_path, 0, free_some)
    for _ in range(100):
        disk.spend(OPERATION_DISK_BYTES)

    assert max(asked) <= OPERATION_DISK_BYTES + DISK_FREE_BYTES


def test_spare_bytes_is_what_the_filesystem_says(tmp_path: Path) -> None:
    """The figure comes from statvfs of the directory's own disk."""
    figures = os.statvfs(tmp_path)

    spare = DiskSpace(tmp_path, lambda _wanted: None).spare_bytes()

    assert 0 < spare < figures.f_blocks * figures.f_frsize


def test_space_reserved_for_a_growing_file_is_not_given_to_others(tmp_path: Path) -> None:
    """Others get the space beside it, until the file has grown."""
    disk = MeasuredDisk(tmp_path, 100, lambda _wanted: None)
    path = tmp_path / "image.db"

    with disk.holding(path, 60):
        with pytest.raises(NoSpaceLeftError):
            disk.spend(41)
        path.write_bytes(bytes(60))
        disk.spare = 41
        disk.spend(41)


def test_room_that_is_not_there_cannot_be_held(tmp_path: Path) -> None:
    """Nothing is begun that would end in the reserve, and nothing stays held."""
    disk = MeasuredDisk(tmp_path, 100, lambda _wanted: None)

    with pytest.raises(NoSpaceLeftError), disk.holding(tmp_path / "image.db", 101):
        raise AssertionError("not reached")

    disk.spend(100)
