"""Tests of very large files and very many names on a real mount."""

import errno
import os
from pathlib import Path

import pytest

from s3fs_meta.limits import READDIR_ROWS_MAX
from tests.cli.conftest import Place
from tests.end_to_end.system_calls import drop_page_cache, refused
from tests.programs import Program

pytestmark = pytest.mark.mount

TIB = 1 << 40


def test_file_of_16_tib_with_one_written_byte_uses_one_block(folder: Path) -> None:
    """A file of 16 TiB with one byte at its end uses one block and reads as zeros elsewhere."""
    file = folder / "f"
    with file.open("wb") as writer:
        writer.seek(16 * TIB - 1)
        writer.write(b"x")
    drop_page_cache(file)

    found = file.stat()
    assert found.st_size == 16 * TIB
    assert 0 < found.st_blocks * 512 <= 1 << 20
    with file.open("rb") as reader:
        assert reader.read(100) == bytes(100)
        reader.seek(9 * TIB + 12_345)
        assert reader.read(100) == bytes(100)
        reader.seek(-2, os.SEEK_END)
        assert reader.read() == b"\0x"
    os.truncate(file, 5)
    assert (file.read_bytes(), file.stat().st_blocks) == (bytes(5), 0)


def test_file_cannot_grow_past_2_to_the_60_bytes(folder: Path) -> None:
    """Extending a file beyond 2**60 bytes fails with EFBIG and does not change the file."""
    (folder / "f").write_bytes(b"content")
    os.truncate(folder / "f", 1 << 60)
    with refused(errno.EFBIG):
        os.truncate(folder / "f", (1 << 60) + 1)

    assert (folder / "f").stat().st_size == 1 << 60
    with (folder / "f").open("rb") as file:
        assert file.read(7) == b"content"


def fill(folder: Path, count: int) -> set[str]:
    """Create a number of empty files and return their names."""
    names = [f"{number:07d}" for number in range(count)]
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in names:
            os.mknod(name, dir_fd=directory)
    finally:
        os.close(directory)
    return set(names)


def assert_holds(folder: Path, names: set[str]) -> None:
    """Require that a directory lists each name once, each with a different inode."""
    with os.scandir(folder) as found:
        listed = {entry.name: entry.inode() for entry in found}
    assert listed.keys() == names
    assert len(set(listed.values())) == len(names)
    assert folder.stat().st_size == len(names)
    for name in sorted(names)[:: len(names) // 100]:
        assert (folder / name).stat().st_ino == listed[name]
        assert not (folder / f"x{name}").exists()


def test_directory_of_several_pages_lists_each_name_once(folder: Path) -> None:
    """A directory lists each name once, even after every twentieth name was removed."""
    names = fill(folder, 4 * READDIR_ROWS_MAX)
    assert_holds(folder, names)
    gone = set(sorted(names)[::20])
    for name in gone:
        os.unlink(folder / name)

    assert_holds(folder, names - gone)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_directory_of_a_million_entries_lists_each_name_once(
    mounted: Place, program: Program
) -> None:
    """All names of a directory still exist after an unmount and a mount without local state."""
    (mounted.mountpoint / "d").mkdir()
    names = fill(mounted.mountpoint / "d", 1_000_000)
    assert_holds(mounted.mountpoint / "d", names)
    program.ok("umount", mounted.mountpoint)
    program.cachedir.rename(program.cachedir.with_name("lost"))
    program.ok("mount", mounted.url, mounted.mountpoint)

    assert_holds(mounted.mountpoint / "d", names)
    found = os.statvfs(mounted.mountpoint)
    # The filesystem has a million files and two directories.
    assert found.f_files - found.f_ffree == 1_000_002
    program.ok("umount", mounted.mountpoint)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_file_with_65100_hard_links_keeps_its_content(folder: Path) -> None:
    """A file can have 65,100 links, more than in ext4, and keeps its content."""
    (folder / "f").write_bytes(b"content")
    (folder / "d").mkdir()
    for number in range(65_100):
        os.link(folder / "f", folder / "d" / str(number))

    assert (folder / "f").stat().st_nlink == 65_101
    (folder / "f").unlink()
    assert (folder / "d" / "65099").read_bytes() == b"content"
    for number in range(65_099):
        (folder / "d" / str(number)).unlink()
    assert (folder / "d" / "65099").stat().st_nlink == 1
