"""The disk guard: it keeps a reserve of disk space that only SQLite may use."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from typing_extensions import override

from s3fs_meta.cache.disk_space import DiskSpace
from s3fs_meta.errors import NoSpaceLeftError
from s3fs_meta.limits import DISK_CHECK_BYTES, DISK_FREE_BYTES, OPERATION_DISK_BYTES


class MeasuredDisk(DiskSpace):
    """A disk guard whose number of spare bytes is set by the test."""

    def __init__(
        self,
        path: Path,
        spare: int,
        free_some: Callable[[int], None],
        free_slice: Callable[[int], Awaitable[bool]] | None = None,
    ) -> None:
        if free_slice is None:
            super().__init__(path, free_some)
        else:
            super().__init__(path, free_some, free_slice)
        self.spare = spare
        self.looks = 0

    @override
    def spare_bytes(self) -> int:
        """Return the number of spare bytes that the test set."""
        self.looks += 1
        return self.spare


def test_free_disk_space_is_measured_once_for_many_operations(tmp_path: Path) -> None:
    disk = MeasuredDisk(tmp_path, 1 << 40, lambda _wanted: None)

    for _ in range(100):
        disk.spend(DISK_CHECK_BYTES // 200)

    assert disk.looks == 1


def test_free_disk_space_is_measured_again_after_it_expires(tmp_path: Path) -> None:
    """Another program may have filled the disk since the measurement."""
    disk = MeasuredDisk(tmp_path, 1 << 40, lambda _wanted: None)
    disk.spend()
    disk.spare = 0

    assert disk.can_spend()
    disk.expire()

    assert not disk.can_spend()
    with pytest.raises(NoSpaceLeftError):
        disk.spend()


def test_operation_that_needs_the_disk_reserve_is_refused(tmp_path: Path) -> None:
    disk = MeasuredDisk(tmp_path, 100, lambda _wanted: None)

    with pytest.raises(NoSpaceLeftError, match="reserve"):
        disk.spend(101)


def test_clean_blocks_are_evicted_before_a_write_is_refused(tmp_path: Path) -> None:
    disk = MeasuredDisk(tmp_path, 0, lambda wanted: setattr(disk, "spare", wanted))

    disk.spend(1000)

    assert disk.spare >= 1000


def test_optional_write_evicts_no_block_and_is_refused_on_a_full_disk(tmp_path: Path) -> None:
    evicted: list[int] = []
    disk = MeasuredDisk(tmp_path, 100, evicted.append)

    assert disk.can_spend(100)
    assert not disk.can_spend(101)
    disk.spare = 1 << 40
    assert all(disk.can_spend(DISK_CHECK_BYTES // 200) for _ in range(100))

    assert disk.looks == 3
    assert evicted == []


def test_eviction_frees_only_slightly_more_disk_space_than_needed(tmp_path: Path) -> None:
    """Eviction removes files on the event loop, so each call must remove only a few files."""
    asked: list[int] = []

    def free_some(wanted: int) -> None:
        asked.append(wanted)
        disk.spare += wanted

    disk = MeasuredDisk(tmp_path, 0, free_some)
    for _ in range(100):
        disk.spend(OPERATION_DISK_BYTES)

    assert max(asked) <= OPERATION_DISK_BYTES + DISK_FREE_BYTES


async def test_room_for_a_large_file_is_made_in_slices(tmp_path: Path) -> None:
    """Eviction in slices lets other tasks run, and ends when no clean block is left."""
    slices: list[int] = []

    async def free_slice(wanted: int) -> bool:
        await trio.lowlevel.checkpoint()
        slices.append(wanted)
        disk.spare += min(wanted, 400)
        return len(slices) < 5

    disk = MeasuredDisk(tmp_path, DISK_FREE_BYTES, lambda _wanted: None, free_slice)
    await disk.make_room(1000)
    assert slices == [1000, 600, 200]

    await disk.make_room(10_000)
    assert slices[3:] == [9000, 8600]


def test_spare_disk_space_is_less_than_the_size_of_the_disk(tmp_path: Path) -> None:
    figures = os.statvfs(tmp_path)

    spare = DiskSpace(tmp_path, lambda _wanted: None).spare_bytes()

    assert 0 < spare < figures.f_blocks * figures.f_frsize


def test_disk_space_reserved_for_a_growing_file_is_refused_to_other_files(tmp_path: Path) -> None:
    """As a file grows, the reservation of disk space for the file shrinks."""
    disk = MeasuredDisk(tmp_path, 100, lambda _wanted: None)
    path = tmp_path / "image.db"

    with disk.holding(path, 60):
        with pytest.raises(NoSpaceLeftError):
            disk.spend(41)
        path.write_bytes(bytes(60))
        disk.spare = 41
        disk.spend(41)


def test_reservation_larger_than_the_free_disk_space_is_refused(tmp_path: Path) -> None:
    disk = MeasuredDisk(tmp_path, 100, lambda _wanted: None)

    with pytest.raises(NoSpaceLeftError), disk.holding(tmp_path / "image.db", 101):
        raise AssertionError("not reached")

    disk.spend(100)


def test_disk_space_reserved_for_a_file_can_grow_but_not_shrink(tmp_path: Path) -> None:
    disk = MeasuredDisk(tmp_path, 100, lambda _wanted: None)
    path = tmp_path / "image.db"

    with disk.holding(path, 60):
        disk.hold_more(path, 50)
        disk.hold_more(path, 80)
        with pytest.raises(NoSpaceLeftError):
            disk.hold_more(path, 101)
        with pytest.raises(NoSpaceLeftError):
            disk.spend(21)
        disk.spend(20)
    disk.spend(100)
