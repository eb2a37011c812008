"""Tests of converting attributes and space statistics for stat(2) and statfs(2)."""

import struct

import pytest

from s3fs_meta.fs.filesystem import SpaceFigures
from s3fs_meta.fuse.convert import Converter, Overrides, sectors
from s3fs_meta.limits import ENTRY_TIMEOUT_S
from s3fs_meta.model import ROOT_INO
from tests.fuse.conftest import FILE

MIB = 1 << 20


def test_inode_attributes_are_converted_for_the_kernel_without_loss() -> None:
    """Converted times are exact to the nanosecond from before 1970 to after 2038."""
    entry = Converter(MIB).entry(FILE)
    assert (entry.st_ino, entry.st_mode, entry.st_nlink) == (1 << 40, 0o100640, 3)
    assert (entry.st_uid, entry.st_gid, entry.st_size) == (10, 20, 5000)
    assert (entry.st_ctime_ns, entry.st_mtime_ns) == (FILE.ctime_ns, -1)
    assert entry.st_atime_ns == FILE.atime_ns
    assert (entry.st_blocks, entry.st_rdev) == (16, 0)
    assert entry.entry_timeout == entry.attr_timeout == ENTRY_TIMEOUT_S


def test_inode_generation_depends_only_on_the_birth_time() -> None:
    """A file handle contains 32 bits of the generation, which must be 0 for the root directory."""
    converter, birth = Converter(MIB), FILE._replace(btime_ns=(7 << 32) + 5)
    changed = birth._replace(ctime_ns=1, mode=0o100600, nlink=1)
    root = birth._replace(ino=ROOT_INO, mode=0o040755)
    generations = [converter.entry(found).generation for found in (birth, changed, root)]
    assert generations == [5, 5, 0]
    assert Converter(MIB, has_generations=False).entry(birth).generation == 0


def test_device_number_of_a_device_file_is_shown() -> None:
    device = FILE._replace(mode=0o020600, rdev=0x801, mapped_blocks=0, size_bytes=0)
    assert Converter(MIB).entry(device).st_rdev == 0x801


@pytest.mark.parametrize(
    ("size", "mapped", "expected"),
    [
        (0, 0, 0),
        (1, MIB, 8),
        (4096, MIB, 8),
        (4097, MIB, 16),
        (16 << 40, 0, 0),
        (16 << 40, 2 * MIB, 4096),
        (3 * MIB, 3 * MIB, 6144),
    ],
)
def test_st_blocks_is_the_number_of_mapped_blocks(size: int, mapped: int, expected: int) -> None:
    """The block count excludes holes. It counts the last block in pages."""
    assert sectors(size, mapped) == expected


def test_mount_options_override_owner_and_mode_of_files() -> None:
    """The mount options uid, gid and umask change the attributes that stat(2) returns."""
    converter = Converter(MIB, overrides=Overrides(uid=1, gid=2, umask=0o027))
    entry = converter.entry(FILE)
    assert (entry.st_uid, entry.st_gid, entry.st_mode) == (1, 2, 0o100640)
    program = converter.entry(FILE._replace(mode=0o104755))
    assert program.st_mode == 0o100750
    assert converter.entry(FILE._replace(mode=0o040700)).st_mode == 0o040750


def test_kernel_may_cache_a_missing_name() -> None:
    """The reply has inode 0 and a timeout, because the kernel does not cache an errno."""
    ino, _generation, timeout_s = struct.unpack_from("=QQQ", Converter(MIB).no_entry_out())
    assert (ino, timeout_s) == (0, ENTRY_TIMEOUT_S)


def test_statfs_reports_blocks_of_4_kib() -> None:
    """statfs counts space in blocks of 4 KiB. The longest name has 255 bytes."""
    data = Converter(MIB).statfs(SpaceFigures(1 << 30, 1 << 20, 7, 100))
    assert (data.f_bsize, data.f_frsize, data.f_blocks) == (4096, 4096, 1 << 18)
    assert (data.f_bfree, data.f_bavail) == (256, 256)
    assert (data.f_files, data.f_ffree, data.f_favail) == (107, 100, 100)
    assert data.f_namemax == 255
