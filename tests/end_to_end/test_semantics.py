"""Tests of POSIX semantics of files, names and times on a real mount.

docs/design/semantics.md describes these semantics. ``test_semantics_access`` tests permissions, and
``test_semantics_large`` tests very large files and directories.
"""

import contextlib
import errno
import mmap
import os
import signal
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.end_to_end.system_calls import (
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    UTIME_NOW,
    UTIME_OMIT,
    drop_page_cache,
    kernel_stamp_ns,
    read_all_entries,
    read_entries,
    refused,
    renameat2,
    utimensat,
    wait_for_clock_tick,
)
from tests.polling import wait_until
from tests.programs import Program, wait_until_gone

pytestmark = pytest.mark.mount

MIB = 1 << 20


# --- content of files -----------------------------------------------------------------------------


def test_hole_reads_as_zeros_and_uses_no_space(folder: Path) -> None:
    """The field st_blocks includes the written block, but not the hole of 10 MiB before it."""
    file = folder / "f"
    with file.open("wb") as writer:
        writer.seek(10 * MIB + 5)
        writer.write(b"end")
        writer.flush()
        os.fsync(writer.fileno())
    drop_page_cache(file)

    assert file.stat().st_size == 10 * MIB + 8
    assert 0 < file.stat().st_blocks * 512 <= MIB
    assert file.read_bytes() == bytes(10 * MIB + 5) + b"end"


def test_file_that_consists_of_one_hole_uses_no_space(folder: Path) -> None:
    (folder / "f").touch()
    os.truncate(folder / "f", 5 * MIB)

    assert (folder / "f").stat().st_blocks == 0
    assert (folder / "f").read_bytes() == bytes(5 * MIB)


def test_append_writes_at_the_current_end_of_the_file(folder: Path) -> None:
    """Writes through two descriptors with O_APPEND do not overwrite each other."""
    one = os.open(folder / "f", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    two = os.open(folder / "f", os.O_WRONLY | os.O_APPEND)
    plain = os.open(folder / "f", os.O_WRONLY)
    os.write(one, b"a")
    os.write(two, b"b")
    os.pwrite(plain, b"c", 2)
    os.lseek(one, 0, os.SEEK_SET)
    os.write(one, b"d")
    os.truncate(folder / "f", 6)
    os.write(two, b"e")
    for fd in (one, two, plain):
        os.close(fd)

    drop_page_cache(folder / "f")
    assert (folder / "f").read_bytes() == b"abcd\0\0e"


def test_bytes_that_are_written_through_a_shared_mmap_reach_the_file(folder: Path) -> None:
    """read(2) returns bytes of a memory map immediately, and msync(2) sends them to the daemon.

    The written bytes cross a block boundary.
    """
    file = folder / "f"
    with file.open("w+b") as opened:
        opened.truncate(2 * MIB)
        with mmap.mmap(opened.fileno(), 0, mmap.MAP_SHARED) as mapped:
            mapped[MIB - 3 : MIB + 3] = b"border"
            assert os.pread(opened.fileno(), 6, MIB - 3) == b"border"
            mapped.flush()
    drop_page_cache(file)

    assert file.read_bytes() == bytes(MIB - 3) + b"border" + bytes(MIB - 3)


def test_shared_mmap_shows_later_writes_to_the_file(folder: Path) -> None:
    """A shared mmap(2) shows later writes to the file.

    A private mapping still shows the bytes that its own process has changed.
    """
    file = folder / "f"
    file.write_bytes(b"x" * 8192)
    with (
        file.open("r+b") as opened,
        mmap.mmap(opened.fileno(), 0, mmap.MAP_PRIVATE) as private,
        mmap.mmap(opened.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as shown,
    ):
        private[0:3] = b"own"
        os.pwrite(opened.fileno(), b"new", 4096)

        assert shown[4096:4099] == b"new"
        assert (private[0:3], shown[0:3]) == (b"own", b"xxx")


def test_open_with_o_trunc_empties_a_file_and_changes_its_timestamps(folder: Path) -> None:
    """A process in which the truncated file is open sees the new size and the new times."""
    file = folder / "f"
    file.write_bytes(b"x" * 3 * MIB)
    before = file.stat()
    wait_for_clock_tick()
    with file.open("rb") as reader:
        os.close(os.open(file, os.O_WRONLY | os.O_TRUNC))

        assert reader.read() == b""
        after = os.fstat(reader.fileno())
    assert (after.st_size, after.st_blocks) == (0, 0)
    assert after.st_mtime_ns > before.st_mtime_ns
    assert after.st_ctime_ns > before.st_ctime_ns


def test_truncated_content_does_not_reappear_when_a_file_grows(folder: Path) -> None:
    """If a file is truncated and then extended, the extended part reads as zeros."""
    file = folder / "f"
    file.write_bytes(b"x" * 3 * MIB)
    os.truncate(file, 100)
    os.truncate(file, 2 * MIB)
    drop_page_cache(file)

    assert file.read_bytes() == b"x" * 100 + bytes(2 * MIB - 100)


def test_unlinked_open_file_can_be_read_and_written(folder: Path) -> None:
    with (folder / "f").open("wb+") as file:
        file.write(b"before")
        file.flush()
        (folder / "f").unlink()
        file.write(b" and after")
        file.flush()
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), 0o600)

        assert os.fstat(file.fileno()).st_nlink == 0
        assert os.pread(file.fileno(), 99, 0) == b"before and after"
        folder.rmdir()
        assert os.pread(file.fileno(), 99, 0) == b"before and after"
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600


def test_space_of_an_unlinked_file_is_free_after_close(mounted: Place) -> None:
    """The test has its own mount, because files of other tests may be released at any time."""
    folder = mounted.mountpoint
    before = os.statvfs(folder)
    with (folder / "f").open("wb") as file:
        file.write(os.urandom(4 * MIB))
        file.flush()
        os.fsync(file.fileno())
        (folder / "f").unlink()
        during = os.statvfs(folder)

    def is_released() -> bool:
        now = os.statvfs(folder)
        return now.f_files - now.f_ffree == before.f_files - before.f_ffree

    assert (before.f_bfree - during.f_bfree) * before.f_frsize == 4 * MIB
    assert during.f_files - during.f_ffree == before.f_files - before.f_ffree + 1
    # The daemon releases the file some time after close(2) has returned.
    wait_until(is_released, "the inode of the unlinked file was not released")
    assert os.statvfs(folder).f_bfree == before.f_bfree


def test_unlinked_open_file_is_purged_after_a_kill(mounted: Place, program: Program) -> None:
    """The next mount frees the file, because no process has it open any more."""
    empty = program.status(mounted.mountpoint)
    pid = empty["pid"]
    fd = os.open(mounted.mountpoint / "f", os.O_WRONLY | os.O_CREAT)
    os.write(fd, os.urandom(3 * MIB))
    (mounted.mountpoint / "f").unlink()
    os.fsync(fd)
    assert program.status(mounted.mountpoint)["block_bytes"] == 3 * MIB
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    with contextlib.suppress(OSError):  # close(2) fails because the daemon is dead.
        os.close(fd)

    program.ok("mount", mounted.url, mounted.mountpoint)
    program.ok("flush", mounted.mountpoint)
    found = program.status(mounted.mountpoint)
    program.ok("umount", mounted.mountpoint)

    assert found["inodes"] == empty["inodes"]
    assert found["block_bytes"] == 0
    program.ok("fsck", "-n", mounted.url)


# --- creation and removal of names ----------------------------------------------------------------


def test_file_names_may_have_255_bytes_of_any_kind(folder: Path) -> None:
    """Names may contain all bytes except "/" and NUL, and are not normalised."""
    every = bytes(set(range(1, 256)) - {ord("/")}) + b"xy"
    names = {every[:255], b"\xff" * 255, b"A", b"a", "é".encode(), "e\u0301".encode(), b"...", b" "}
    for name in names:
        fd = os.open(os.fsencode(folder) + b"/" + name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(fd, name)
        os.close(fd)

    assert len(every[:255]) == 255
    assert set(os.listdir(os.fsencode(folder))) == names
    for name in names:
        assert (Path(os.fsdecode(os.fsencode(folder) + b"/" + name))).read_bytes() == name


def test_file_name_of_256_bytes_is_refused(folder: Path) -> None:
    long = folder / ("n" * 256)
    (folder / "f").touch()
    for work in (
        long.touch,
        long.mkdir,
        long.stat,
        long.unlink,
        lambda: long.symlink_to("x"),
        lambda: os.link(folder / "f", long),
        lambda: (folder / "f").rename(long),
        lambda: os.mkfifo(long),
    ):
        with refused(errno.ENAMETOOLONG):
            work()
    assert os.listdir(folder) == ["f"]


def test_symlink_target_has_at_most_4095_bytes(folder: Path) -> None:
    target = "t" * 4095
    (folder / "l").symlink_to(target)

    assert os.readlink(folder / "l") == target
    assert (folder / "l").lstat().st_size == 4095
    with refused(errno.ENAMETOOLONG):
        (folder / "m").symlink_to(target + "t")


def test_file_can_have_2001_hard_links(folder: Path) -> None:
    """After 2,000 of the 2,001 names were removed, the content of the file is still complete."""
    (folder / "f").write_bytes(b"content")
    for number in range(2000):
        os.link(folder / "f", folder / str(number))

    assert (folder / "f").stat().st_nlink == 2001
    assert (folder / "1999").stat().st_ino == (folder / "f").stat().st_ino
    (folder / "f").unlink()
    for number in range(1999):
        (folder / str(number)).unlink()
    assert (folder / "1999").stat().st_nlink == 1
    assert (folder / "1999").read_bytes() == b"content"


def test_link_count_of_a_directory_counts_its_subdirectories(folder: Path) -> None:
    """The link count is 2 plus the number of subdirectories, even after renames."""
    for name in ("a", "b", "a/x", "a/y"):
        (folder / name).mkdir()
    (folder / "a" / "file").touch()

    assert [(folder / name).stat().st_nlink for name in (".", "a", "b", "a/x")] == [4, 4, 2, 2]
    (folder / "a" / "x").rename(folder / "b" / "x")
    assert [(folder / name).stat().st_nlink for name in ("a", "b")] == [3, 3]
    (folder / "b" / "x").rmdir()
    (folder / "a" / "y").rename(folder / "y")
    assert [(folder / name).stat().st_nlink for name in (".", "a", "b")] == [5, 2, 2]


# --- rename of files and directories --------------------------------------------------------------


def test_rename_noreplace_keeps_an_existing_target(folder: Path) -> None:
    """RENAME_NOREPLACE fails with EEXIST if the new name exists. Otherwise it renames."""
    (folder / "a").write_bytes(b"a")
    (folder / "b").write_bytes(b"b")

    with refused(errno.EEXIST):
        renameat2(folder / "a", folder / "b", RENAME_NOREPLACE)
    assert (folder / "b").read_bytes() == b"b"
    renameat2(folder / "a", folder / "c", RENAME_NOREPLACE)
    assert sorted(os.listdir(folder)) == ["b", "c"]


def test_rename_exchange_swaps_two_names(folder: Path) -> None:
    """RENAME_EXCHANGE swaps a directory and a file in different directories."""
    (folder / "d" / "sub").mkdir(parents=True)
    (folder / "e").mkdir()
    (folder / "e" / "f").write_bytes(b"file")

    renameat2(folder / "d" / "sub", folder / "e" / "f", RENAME_EXCHANGE)

    assert (folder / "d" / "sub").read_bytes() == b"file"
    assert (folder / "e" / "f").is_dir()
    assert [(folder / name).stat().st_nlink for name in ("d", "e")] == [2, 3]
    with refused(errno.ENOENT):
        renameat2(folder / "d" / "sub", folder / "missing", RENAME_EXCHANGE)
    with refused(errno.EINVAL):
        renameat2(folder / "e", folder / "e" / "f", RENAME_EXCHANGE)


def test_rename_onto_an_open_file_keeps_old_content_readable(folder: Path) -> None:
    """A process in which the replaced file is open still reads the old content."""
    (folder / "old").write_bytes(b"old")
    (folder / "new").write_bytes(b"new")
    with (folder / "old").open("rb") as file:
        (folder / "new").rename(folder / "old")

        assert (folder / "old").read_bytes() == b"new"
        assert file.read() == b"old"
        assert os.fstat(file.fileno()).st_nlink == 0
    assert os.listdir(folder) == ["old"]


def test_rename_into_own_subdirectory_or_onto_non_empty_directory_fails(folder: Path) -> None:
    """A rename cannot move a directory below itself, or replace a non-empty directory."""
    (folder / "d" / "sub").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "f").touch()

    for old, new, code in (
        ("d", "d/sub/d", errno.EINVAL),
        ("f", "empty", errno.EISDIR),
        ("empty", "f", errno.ENOTDIR),
        ("empty", "d", errno.ENOTEMPTY),
        ("missing", "x", errno.ENOENT),
    ):
        with refused(code):
            (folder / old).rename(folder / new)
    (folder / "d").rename(folder / "empty")
    assert sorted(os.listdir(folder)) == ["empty", "f"]
    assert os.listdir(folder / "empty") == ["sub"]


def test_rename_between_two_hard_links_of_one_file_does_nothing(folder: Path) -> None:
    """Renaming a hard link onto another link of the same file has no effect, as in rename(2)."""
    (folder / "a").touch()
    os.link(folder / "a", folder / "b")

    (folder / "a").rename(folder / "b")

    assert sorted(os.listdir(folder)) == ["a", "b"]


# --- listing of directories -----------------------------------------------------------------------


def test_directory_listing_during_changes_neither_omits_nor_repeats_a_name(folder: Path) -> None:
    """A listing has each permanent name exactly once, and each changing name at most once."""
    stays = {b"stays-%04d" % number for number in range(1500)}
    for name in stays:
        os.mknod(os.fsencode(folder) + b"/" + name)
    for number in range(300):
        os.mknod(folder / f"goes-{number}")
    listed: list[bytes] = []
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    rounds = 0
    while entries := read_entries(directory, 1024):
        listed += [entry.name for entry in entries]
        if rounds < 100:
            (folder / f"goes-{rounds}").unlink()
            (folder / f"goes-{100 + rounds}").rename(folder / f"moved-{rounds}")
            os.mknod(folder / f"comes-{rounds}")
            os.mknod(folder / f"blinks-{rounds}")
            (folder / f"blinks-{rounds}").unlink()
        rounds += 1
    os.close(directory)

    assert rounds > 50
    assert len(listed) == len(set(listed))
    assert stays <= set(listed)
    assert {b"goes-%d" % number for number in range(200, 300)} <= set(listed)


def test_directory_listing_can_be_resumed_at_any_earlier_position(folder: Path) -> None:
    """A listing position stays valid in another descriptor, and after its entry is removed."""
    for number in range(400):
        os.mknod(folder / str(number))
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    listed = read_all_entries(directory)
    other = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for at in (0, 100, 250, 398):
        os.unlink(os.fsencode(folder) + b"/" + listed[at].name)
        os.lseek(directory, listed[at].next_position, os.SEEK_SET)
        os.lseek(other, listed[at].next_position, os.SEEK_SET)

        expected = [entry.name for entry in listed[at + 1 :]]
        assert [entry.name for entry in read_all_entries(directory)] == expected
        assert [entry.name for entry in read_all_entries(other)] == expected
    os.lseek(directory, 0, os.SEEK_SET)
    assert len(read_all_entries(directory)) == 396
    os.close(directory)
    os.close(other)


def test_directory_listing_shows_the_inode_numbers_returned_by_stat(folder: Path) -> None:
    (folder / "d").mkdir()
    with os.scandir(folder) as found:
        assert [(entry.name, entry.inode()) for entry in found] == [
            ("d", (folder / "d").stat().st_ino)
        ]
    assert (folder / "d" / "..").stat().st_ino == folder.stat().st_ino


def test_open_directory_that_was_removed_is_empty_and_refuses_new_entries(folder: Path) -> None:
    (folder / "d").mkdir()
    directory = os.open(folder / "d", os.O_RDONLY | os.O_DIRECTORY)
    (folder / "d").rmdir()

    assert os.fstat(directory).st_nlink == 0
    with refused(errno.ENOENT):
        read_all_entries(directory)
    with refused(errno.ENOENT):
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
    os.close(directory)


# --- timestamps of files --------------------------------------------------------------------------


def test_file_times_are_stored_exactly_to_the_nanosecond(folder: Path) -> None:
    """Times after 2038 and before 1970 are exact after the kernel's cache is dropped."""
    file = folder / "f"
    file.touch()
    for atime_ns, mtime_ns in (
        (1, 999_999_999),
        (4_102_444_800_000_000_001, 5_000_000_000_123_456_789),
        (-1, -1_000_000_000_000_000_001),
    ):
        os.utime(file, ns=(atime_ns, mtime_ns))
        drop_page_cache(file)

        assert (file.stat().st_atime_ns, file.stat().st_mtime_ns) == (atime_ns, mtime_ns)


def test_atime_and_mtime_can_be_set_separately(folder: Path) -> None:
    """The function utimensat(2) accepts UTIME_OMIT and UTIME_NOW."""
    file = folder / "f"
    file.touch()
    os.utime(file, ns=(1, 2))

    utimensat(file, (0, UTIME_OMIT), (7, 8))
    assert (file.stat().st_atime_ns, file.stat().st_mtime_ns) == (1, 7_000_000_008)
    utimensat(file, (0, UTIME_NOW), (0, UTIME_OMIT))
    assert file.stat().st_atime > 1_000_000_000
    assert file.stat().st_mtime_ns == 7_000_000_008


def test_ctime_changes_with_every_change_of_an_inode(folder: Path) -> None:
    """Each change of attributes, names or content sets a later ctime. A read does not."""
    file, other = folder / "f", folder / "g"
    file.write_bytes(b"x")
    for work in (
        lambda: file.chmod(0o600),
        lambda: os.chown(file, os.getuid(), os.getgid()),
        lambda: os.utime(file, ns=(1, 1)),
        lambda: os.setxattr(file, "user.a", b"1"),
        lambda: os.removexattr(file, "user.a"),
        lambda: os.link(file, other),
        other.unlink,
        lambda: file.write_bytes(b"other"),
        lambda: os.truncate(file, 1),
    ):
        before = file.stat().st_ctime_ns
        wait_for_clock_tick()
        work()
        drop_page_cache(file)
        assert file.stat().st_ctime_ns > before
    before = file.stat().st_ctime_ns
    wait_for_clock_tick()
    file.read_bytes()
    drop_page_cache(file)
    assert file.stat().st_ctime_ns == before


def test_file_that_is_written_later_never_has_an_earlier_mtime(folder: Path) -> None:
    """make(1) requires that a written file is not older than a file that was created earlier.

    The daemon sets the times of new files, and the kernel sets the times of written files.
    """
    for number in range(20):
        made, written = folder / f"made-{number}", folder / f"written-{number}"
        made.touch()
        created_ns = made.stat().st_mtime_ns
        written.write_bytes(b"x")
        made.write_bytes(b"x")

        assert written.stat().st_mtime_ns >= created_ns
        assert made.stat().st_mtime_ns >= created_ns


def test_directory_that_is_created_later_never_has_an_earlier_mtime(folder: Path) -> None:
    for number in range(20):
        written, made = folder / f"written-{number}", folder / f"made-{number}"
        kernel_stamp_ns()
        written.write_bytes(b"x")
        made.mkdir()

        assert made.stat().st_mtime_ns >= written.stat().st_mtime_ns


def test_directory_mtime_changes_only_when_its_entries_change(folder: Path) -> None:
    (folder / "d").mkdir()
    file = folder / "d" / "f"
    for work in (
        file.touch,
        lambda: os.link(file, folder / "d" / "g"),
        lambda: (folder / "d" / "g").rename(folder / "d" / "h"),
        (folder / "d" / "h").unlink,
        (folder / "d" / "sub").mkdir,
        (folder / "d" / "sub").rmdir,
        lambda: (folder / "d" / "l").symlink_to("x"),
    ):
        before = (folder / "d").stat()
        wait_for_clock_tick()
        work()
        after = (folder / "d").stat()
        assert after.st_mtime_ns > before.st_mtime_ns
        assert after.st_ctime_ns > before.st_ctime_ns
    before = (folder / "d").stat()
    wait_for_clock_tick()
    file.write_bytes(b"x")
    file.chmod(0o600)
    assert (folder / "d").stat().st_mtime_ns == before.st_mtime_ns
