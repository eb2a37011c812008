"""Tests of the copier, which writes files and their metadata to a local directory."""

import errno
import os
import stat
from pathlib import Path

import pytest

from s3fs_meta.errors import UsageError
from s3fs_meta.export.copier import CopiedFile, Copier, Tally, is_name, require_empty
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import blocks, inodes, symlinks, xattrs
from s3fs_meta.model import ROOT_INO, Attributes, BlockId, BlockIndex
from tests.export.conftest import Nothing
from tests.faults import raising


def inode(db: Database, mode: int, rdev: int = 0, nlink: int = 1) -> Attributes:
    """Create an inode that no dentry refers to; return its attributes."""
    return inodes.create(db, mode, 0, 0, ROOT_INO, 10**18 + 5, rdev=rdev, nlink=nlink)


async def test_copied_file_has_the_metadata_of_the_original_inode(
    db: Database, target: Path
) -> None:
    """A copied file has the mode, extended attributes, size and times of its inode."""
    ino = inode(db, stat.S_IFREG | 0o4555).ino
    db.inodes.run("UPDATE inodes SET size_bytes = 1000000 WHERE ino = ?", (ino,))
    inodes.set_times(db, ino, ctime_ns=1, mtime_ns=-7, atime_ns=2)
    xattrs.set(db, ino, b"user.colour", b"blue")
    copier = Copier(db, Nothing(), target)

    empty = copier.make(inodes.get(db, ino), b"f", again=False)
    assert empty is not None
    copied = await copier.fill(empty)

    found = (target / "f").stat()
    assert copied == CopiedFile(b"f", 1_000_000, [], [])
    assert (found.st_size, found.st_blocks, found.st_mtime_ns) == (1_000_000, 0, -7)
    assert stat.S_IMODE(found.st_mode) == 0o4555
    assert os.getxattr(target / "f", "user.colour") == b"blue"
    assert not copier.refused


def test_copier_creates_special_files_and_hard_links(db: Database, target: Path) -> None:
    """A FIFO with two names is copied as one FIFO with a hard link."""
    fifo = inode(db, stat.S_IFIFO | 0o640, nlink=2)
    copier = Copier(db, Nothing(), target)

    assert copier.make(fifo, b"one", again=True) is None
    assert copier.make(fifo, b"two", again=True) is None

    assert stat.S_ISFIFO((target / "one").lstat().st_mode)
    assert (target / "one").samefile(target / "two")
    assert (target / "one").stat().st_mtime_ns == 10**18 + 5


def test_copier_reports_metadata_that_the_target_filesystem_refuses(
    db: Database, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copier reports how many attributes and device nodes of each kind were refused."""
    folder = inode(db, stat.S_IFDIR | 0o700, nlink=2)
    xattrs.set(db, folder.ino, b"nowhere.x", b"1")
    xattrs.set(db, folder.ino, b"user.a\0b", b"1")
    device = inode(db, stat.S_IFCHR | 0o600, rdev=os.makedev(1, 3))
    copier = Copier(db, Nothing(), target)
    copier.make_directory(b"d")
    monkeypatch.setattr(os, "mknod", raising(PermissionError(errno.EPERM, "for root")))
    copier.finish_directory(inodes.get(db, folder.ino), b"d")
    assert copier.make(device, b"null", again=False) is None

    assert copier.refused == {"nowhere.x": 1, "user.a\0b": 1, "special files": 1}
    assert os.listdir(target) == ["d"]
    [line] = Tally().lines(copier)
    for name in ("nowhere.x (1)", "special files (1)"):
        assert name in line


async def test_copier_continues_if_the_target_filesystem_supports_neither_links_nor_permissions(
    db: Database, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAT refuses symbolic links, hard links and most permissions with EPERM."""
    file = inode(db, stat.S_IFREG | 0o640, nlink=2)
    symlink = inode(db, stat.S_IFLNK | 0o777)
    symlinks.create(db, symlink.ino, b"a")
    fifo = inode(db, stat.S_IFIFO | 0o640)
    copier = Copier(db, Nothing(), target)
    for function in ("link", "symlink", "fchmod", "chmod"):
        monkeypatch.setattr(os, function, raising(PermissionError(errno.EPERM, "unsupported")))

    for name in (b"a", b"b"):
        empty = copier.make(file, name, again=True)
        assert empty is not None
        await copier.fill(empty)
    assert copier.make(symlink, b"s", again=False) is None
    assert copier.make(fifo, b"f", again=False) is None

    assert sorted(os.listdir(target)) == ["a", "b", "f"]
    assert copier.refused == {
        "hard links, copied as separate files": 1,
        "permissions": 3,
        "symbolic links": 1,
    }


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
async def test_file_is_copied_again_if_the_target_filesystem_refuses_another_hard_link(
    db: Database, target: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """FAT has no links (EPERM), and other filesystems permit only few links to a file (EMLINK)."""
    file = inode(db, stat.S_IFREG | 0o640, nlink=2)
    copier = Copier(db, Nothing(), target)
    monkeypatch.setattr(os, "link", raising(OSError(code, "refused")))

    for name in (b"a", b"b"):
        empty = copier.make(file, name, again=True)
        assert empty is not None
        await copier.fill(empty)

    assert (target / "a").stat().st_ino != (target / "b").stat().st_ino
    assert copier.refused == {"hard links, copied as separate files": 1}


@pytest.mark.parametrize("size_bytes", [0, 5])
async def test_hard_links_are_recorded_only_until_the_copy_is_complete(
    db: Database, target: Path, size_bytes: int
) -> None:
    """A copy of a tree with many hard links does not keep all their paths in memory."""
    file = inode(db, stat.S_IFREG | 0o640, nlink=3)
    if size_bytes:  # Nothing returns no content.
        blocks.fill_hole(db, BlockId(7), file.ino, BlockIndex(0), size_bytes, hole_bytes=0)
    copier = Copier(db, Nothing(), target)

    empty = copier.make(file, b"a", again=True)
    assert empty is not None
    assert copier.make(file, b"b", again=True) is None
    copied = await copier.fill(empty)
    assert copier.make(file, b"c", again=True) is None

    assert copied.links == ([b"b", b"c"] if size_bytes else [b"b"])


@pytest.mark.parametrize("function", ["link", "symlink"])
def test_copier_fails_if_a_link_cannot_be_created_for_an_unexpected_reason(
    db: Database, target: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    fifo = inode(db, stat.S_IFIFO | 0o640, nlink=2)
    symlink = inode(db, stat.S_IFLNK | 0o777)
    symlinks.create(db, symlink.ino, b"a")
    copier = Copier(db, Nothing(), target)
    copier.make(fifo, b"a", again=True)
    monkeypatch.setattr(os, function, raising(OSError(errno.ENOSPC, "full")))

    with pytest.raises(OSError, match="full"):
        copier.make(fifo if function == "link" else symlink, b"b", again=False)


async def test_copier_error_on_a_full_disk_names_the_file(
    db: Database, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed write reports only a file descriptor, so the copier adds the path of the file."""
    copier = Copier(db, Nothing(), target)
    empty = copier.make(inode(db, stat.S_IFREG | 0o644), b"f", again=False)
    assert empty is not None
    monkeypatch.setattr(os, "ftruncate", raising(OSError(errno.ENOSPC, "full")))

    with pytest.raises(OSError, match="full") as caught:
        await copier.fill(empty)

    assert caught.value.filename == os.fsencode(target / "f")


@pytest.mark.parametrize("privileges", [False, True])
async def test_copier_can_omit_suid_bits_capabilities_and_devices(
    db: Database, target: Path, monkeypatch: pytest.MonkeyPatch, privileges: bool
) -> None:
    """If privileges are omitted, set-ID bits, file capabilities and devices are not copied."""
    capability = b"\1\0\0\2" + bytes(16)
    set_attributes: list[bytes] = []
    monkeypatch.setattr(
        os, "setxattr", lambda _what, name, *_value, **_: set_attributes.append(name)
    )
    made_nodes: list[int] = []
    monkeypatch.setattr(os, "mknod", lambda place, mode, _rdev: _touch(place, made_nodes, mode))
    copier = Copier(db, Nothing(), target, privileges=privileges)
    program = inode(db, stat.S_IFREG | 0o6755).ino
    xattrs.set(db, program, b"security.capability", capability)
    xattrs.set(db, program, b"user.colour", b"blue")
    empty = copier.make(inodes.get(db, program), b"program", again=False)
    assert empty is not None
    await copier.fill(empty)
    copier.make_directory(b"d")
    copier.finish_directory(inode(db, stat.S_IFDIR | 0o2755, nlink=2), b"d")
    for name, kind in ((b"disk", stat.S_IFBLK), (b"null", stat.S_IFCHR), (b"fifo", stat.S_IFIFO)):
        copier.make(inode(db, kind | 0o666, rdev=os.makedev(1, 3)), name, again=False)

    mode = stat.S_IMODE((target / "program").stat().st_mode)
    assert stat.S_IMODE((target / "d").stat().st_mode) == 0o2755
    if privileges:
        assert mode == 0o6755
        assert set_attributes == [b"security.capability", b"user.colour"]
        assert sorted(os.listdir(target)) == ["d", "disk", "fifo", "null", "program"]
        assert not copier.left_out
        return
    assert mode == 0o755
    assert set_attributes == [b"user.colour"]
    assert sorted(os.listdir(target)) == ["d", "fifo", "program"]
    assert [*Tally().lines(copier)] == [
        "  omitted because of --no-privileges: devices (2), file capabilities (1),"
        " set-user-ID and set-group-ID bits (1)"
    ]
    assert not copier.refused


def _touch(place: bytes, made: list[int], mode: int) -> None:
    made.append(mode)
    Path(os.fsdecode(place)).touch()


def test_mode_of_a_directory_is_set_after_its_entries_are_created(
    db: Database, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory stays accessible during its copy, even if its own mode forbids access."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    closed = inode(db, stat.S_IFDIR | 0o300, nlink=2)
    copier = Copier(db, Nothing(), target)
    copier.make_directory(b"d")

    copier.finish_directory(closed, b"d")
    assert stat.S_IMODE((target / "d").stat().st_mode) == 0o700
    copier.finish(Tally())

    assert stat.S_IMODE((target / "d").stat().st_mode) == 0o300


def test_copier_does_not_overwrite_existing_files(
    db: Database, target: Path, tmp_path: Path
) -> None:
    """The copier does not replace an existing name, and does not follow a symlink."""
    copier = Copier(db, Nothing(), target)
    (target / "link").symlink_to(tmp_path)
    file = inode(db, stat.S_IFREG | 0o644)

    with pytest.raises(FileExistsError):
        copier.make(file, b"link", again=False)
    with pytest.raises(FileExistsError):
        copier.make_directory(b"link")
    with pytest.raises(OSError, match="link"):
        copier.finish_directory(inode(db, stat.S_IFDIR | 0o777), b"link")


def test_target_of_a_copy_must_be_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "x").touch()

    with pytest.raises(UsageError, match="is not empty"):
        require_empty(tmp_path)
    with pytest.raises(UsageError, match="cannot be used: Not a directory"):
        require_empty(tmp_path / "x")


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/", b"a\0", b"x" * 256])
def test_copier_rejects_invalid_names(name: bytes) -> None:
    """The copier refuses names such as "..", which exist only in a forged bucket."""
    assert not is_name(name)


def test_copy_report_lists_at_most_twenty_incomplete_files_but_counts_all(
    db: Database, target: Path
) -> None:
    tally = Tally()
    for number in range(25):
        tally.add(CopiedFile(b"f%d" % number, 10, [(0, 4), (7, 9)], [(5, 6)]))
    tally.add(CopiedFile(b"whole", 5, [], []))

    lines = list(tally.lines(Copier(db, Nothing(), target)))

    assert lines[:2] == [
        "  bytes 0-4, 7-9 are missing in 'f0'",
        "  bytes 5-6 were never synced in 'f0'",
    ]
    assert lines[-1] == "  … and 5 more files that are not complete"
    assert (tally.files, tally.size_bytes, tally.incomplete_files) == (26, 255, 25)


def test_copy_report_lists_the_first_byte_ranges_of_a_file_but_counts_all(
    db: Database, target: Path
) -> None:
    tally = Tally()
    ranges = [(first, first) for first in range(0, 2000, 2)]
    tally.add(CopiedFile(b"torn", 2000, ranges, []))

    [line] = tally.lines(Copier(db, Nothing(), target))

    assert line.startswith("  bytes 0-0, 2-2, 4-4")
    assert line.endswith("18-18 and 990 more ranges are missing in 'torn'")
    assert tally.facts(Copier(db, Nothing(), target))["incomplete"][0]["missing"] == ranges


def test_copy_report_lists_the_first_hard_links_of_a_file_but_counts_all(
    db: Database, target: Path
) -> None:
    tally = Tally()
    links = [b"link%d" % number for number in range(12)]
    tally.add(CopiedFile(b"torn", 5, [(0, 4)], [], links=links))

    [line] = tally.lines(Copier(db, Nothing(), target))

    assert line.startswith("  bytes 0-4 are missing in 'torn' (hard links: 'link0', 'link1', ")
    assert line.endswith("'link9' and 2 more)")
    assert len(tally.facts(Copier(db, Nothing(), target))["incomplete"][0]["links"]) == 12


@pytest.mark.parametrize(
    "code", [errno.EINVAL, errno.EILSEQ, errno.ENAMETOOLONG, errno.EEXIST, errno.EFBIG]
)
def test_entry_that_the_target_does_not_accept_is_counted_as_refused(code: int) -> None:
    tally = Tally()

    def refuse() -> None:
        raise OSError(code, os.strerror(code), b"/target/f")

    with tally.noting_faults(b"f"):
        refuse()

    assert [one.path for one in tally.incomplete] == [b"f"]
    assert (tally.refused_files, tally.found_damage) == (1, False)


def test_error_without_a_path_in_the_target_ends_the_copy() -> None:
    """An error without a path may come from another disk, so the copy ends."""
    with pytest.raises(OSError, match="Invalid argument"), Tally().noting_faults(b"f"):
        raise OSError(errno.EINVAL, "Invalid argument")
