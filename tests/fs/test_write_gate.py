"""Tests of the write gate, which every operation that changes data must pass."""

import pytest

from s3fs_meta.errors import NoSpaceLeftError, ReadOnlyStateError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.namespace import RENAME_EXCHANGE
from s3fs_meta.fs.write_gate import Invalidations, KernelNotices
from s3fs_meta.limits import DISK_RESERVE_BYTES, GROUP_OPERATIONS_MAX, KIB, MIB
from s3fs_meta.model import ROOT_INO, AccessTime
from s3fs_meta.options.settings import FilesystemOptions
from tests.fs.conftest import BLOCK_BYTES, ROOT, Volume, make_directory, make_file


def fill(volume: Volume, monkeypatch: pytest.MonkeyPatch, spare_bytes: int) -> None:
    """Simulate a local disk with this number of free bytes above the reserve."""
    disk = volume.session.cache.disk
    monkeypatch.setattr(disk, "spare_bytes", lambda: spare_bytes)
    assert disk.has_room(0) is (spare_bytes >= 0)  # The free disk space is measured again.


async def test_operations_that_need_space_are_refused_on_a_full_disk(
    fs: Filesystem, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, SQLite could not commit the group, so the write gate refuses operations."""
    ino = make_file(fs, b"f")
    fill(volume, monkeypatch, 0)
    with pytest.raises(NoSpaceLeftError):
        make_file(fs, b"g")
    with pytest.raises(NoSpaceLeftError):
        await fs.write(ino, 0, b"a")
    with pytest.raises(NoSpaceLeftError):
        fs.xattrs.set(ino, b"user.a", b"1", ROOT)
    assert fs.lookup(ROOT_INO, b"g") is None


async def test_each_commit_group_measures_free_disk_space(
    fs: Filesystem, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program may fill the disk between two operations."""
    make_file(fs, b"f")
    monkeypatch.setattr(volume.session.cache.disk, "spare_bytes", lambda: 0)
    make_file(fs, b"g")
    volume.session.durability.commit()

    with pytest.raises(NoSpaceLeftError):
        make_file(fs, b"h")


async def test_files_can_be_removed_on_a_full_disk(
    fs: Filesystem, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal may use the disk reserve, but at most half of the reserve."""
    make_file(fs, b"f")
    make_file(fs, b"g")
    fill(volume, monkeypatch, -DISK_RESERVE_BYTES // 4)
    fs.namespace.unlink(ROOT_INO, b"f")
    fill(volume, monkeypatch, -DISK_RESERVE_BYTES)
    with pytest.raises(NoSpaceLeftError):
        fs.namespace.unlink(ROOT_INO, b"g")


async def test_reads_on_a_full_disk_store_no_access_times(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many access times would use up the reserve, so that SQLite loses a commit group."""
    async with volume.mounted(FilesystemOptions(access_time=AccessTime.ALWAYS)) as fs:
        file, directory = make_file(fs, b"f"), make_directory(fs, b"d")
        await fs.write(file, 0, b"content")
        volume.commit()
        before = [fs.getattr(ino) for ino in (file, directory)]
        volume.clock.later()

        fill(volume, monkeypatch, 0)
        assert await fs.read(file, 0, 7) == b"content"
        fs.open_directory(directory)
        assert not fs.db.in_group
        assert [fs.getattr(ino) for ino in (file, directory)] == before

        fill(volume, monkeypatch, MIB)
        await fs.read(file, 0, 7)
        assert fs.getattr(file).atime_ns == volume.clock.time_ns


async def test_changes_of_a_fenced_filesystem_are_refused(fs: Filesystem, volume: Volume) -> None:
    ino = make_file(fs, b"f")
    volume.session.status.fence("another host took over")

    with pytest.raises(ReadOnlyStateError):
        await fs.write(ino, 0, b"a")
    with pytest.raises(ReadOnlyStateError):
        make_file(fs, b"g")
    with pytest.raises(ReadOnlyStateError):
        fs.namespace.unlink(ROOT_INO, b"f")
    with pytest.raises(ReadOnlyStateError):
        fs.xattrs.set(ino, b"user.a", b"1", ROOT)


async def test_rollback_reports_the_names_and_inodes_of_the_lost_commit_group(
    volume: Volume,
) -> None:
    reported: list[Invalidations] = []
    async with volume.mounted(notices=KernelNotices(reported.append)) as fs:
        make_file(fs, b"safe")
        volume.commit()
        make_file(fs, b"a")
        fs.namespace.rename(ROOT_INO, b"a", ROOT_INO, b"b")
        fs.db.rollback()
        [lost] = reported
        assert set(lost.names) == {(ROOT_INO, b"a"), (ROOT_INO, b"b")}
        assert lost.inodes == [ROOT_INO]
        assert fs.lookup(ROOT_INO, b"safe") is not None


async def test_undone_commit_group_reports_only_its_own_names_and_inodes(volume: Volume) -> None:
    reported: list[Invalidations] = []
    async with volume.mounted(notices=KernelNotices(reported.append)) as fs:
        one, two = make_directory(fs, b"one"), make_directory(fs, b"two")
        make_file(fs, b"a", one)
        make_file(fs, b"b", two)
        volume.commit()
        fs.xattrs.set(two, b"user.a", b"1", ROOT)
        fs.db.undo()
        fs.namespace.rename(one, b"a", two, b"b", RENAME_EXCHANGE)
        fs.db.undo()
        fs.namespace.unlink(two, b"b")
        fs.db.undo()

        assert reported == [
            Invalidations([], [two]),
            Invalidations([(one, b"a"), (two, b"b")], [one]),
            Invalidations([(two, b"b")], [two]),
        ]


async def test_group_with_the_maximum_number_of_operations_is_committed(volume: Volume) -> None:
    reported: list[Invalidations] = []
    async with volume.mounted(notices=KernelNotices(reported.append)) as fs:
        for number in range(GROUP_OPERATIONS_MAX + 10):
            make_file(fs, b"%d" % number)

        assert volume.session.db.group_operations <= GROUP_OPERATIONS_MAX
        fs.db.rollback()
        assert len(reported[0].names) == 10
        assert fs.lookup(ROOT_INO, b"0") is not None


async def test_copy_of_a_shared_block_is_refused_on_a_nearly_full_disk(
    fs: Filesystem, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of one byte copies the complete block, which must not use SQLite's reserve."""
    ino, other = make_file(fs, b"f"), make_file(fs, b"other")
    await fs.write(ino, 0, bytes(range(1, 256)) * (BLOCK_BYTES // 255))
    await volume.upload()
    await fs.ranges.copy(ino, 0, other, 0, BLOCK_BYTES)
    volume.commit()
    fill(volume, monkeypatch, 48 * KIB)

    with pytest.raises(NoSpaceLeftError):
        await fs.write(other, 5, b"x")


async def test_large_attribute_is_refused_on_a_nearly_full_disk(
    fs: Filesystem, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value is written twice: to its row, and to the record of the change."""
    ino = make_file(fs, b"f")
    volume.commit()
    fill(volume, monkeypatch, 100 * KIB)

    with pytest.raises(NoSpaceLeftError):
        fs.xattrs.set(ino, b"user.a", bytes(65_536), ROOT)
