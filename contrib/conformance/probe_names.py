"""Probed operations on names: create, link, rename and list files of each type."""

import errno
import os
import socket
import stat
from pathlib import Path

from contrib.conformance.probe_checks import Operations, checked, expect, libc, make_file, refused

OPERATIONS = Operations()

RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000


@OPERATIONS.add("create, exclusively", "open(2)")
def _create(folder: Path) -> None:
    os.close(os.open(folder / "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
    expect((folder / "f").stat().st_mode & 0o777, 0o640 & ~_umask())
    refused(errno.EEXIST, lambda: os.open(folder / "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def _umask() -> int:
    before = os.umask(0o022)
    os.umask(before)
    return before


@OPERATIONS.add("a name of 255 bytes, but not of 256", "open(2)")
def _long_name(folder: Path) -> None:
    (folder / ("n" * 255)).touch()
    refused(errno.ENAMETOOLONG, (folder / ("n" * 256)).touch)


@OPERATIONS.add("a name that is not UTF-8", "path_resolution(7)")
def _any_bytes(folder: Path) -> None:
    name = b"\xff\n\x01"
    os.close(os.open(os.fsencode(folder) + b"/" + name, os.O_CREAT | os.O_WRONLY))
    expect(os.listdir(os.fsencode(folder)), [name])


@OPERATIONS.add("mkdir, and rmdir of an empty directory only", "rmdir(2)")
def _directories(folder: Path) -> None:
    (folder / "d").mkdir()
    (folder / "d" / "f").touch()
    refused(errno.ENOTEMPTY, (folder / "d").rmdir)
    (folder / "d" / "f").unlink()
    (folder / "d").rmdir()


@OPERATIONS.add("links of a directory count its directories", "inode(7)")
def _directory_links(folder: Path) -> None:
    before = folder.stat().st_nlink
    (folder / "d").mkdir()
    expect((folder / "d").stat().st_nlink, 2)
    expect(folder.stat().st_nlink, before + 1)


@OPERATIONS.add("symlink, readlink", "symlink(2)")
def _symlink(folder: Path) -> None:
    (folder / "l").symlink_to("t" * 1000)
    expect(os.readlink(folder / "l"), "t" * 1000)
    expect((folder / "l").lstat().st_size, 1000)


@OPERATIONS.add("a hard link", "link(2)")
def _link(folder: Path) -> None:
    path = make_file(folder)
    os.link(path, folder / "g")
    expect(path.stat().st_nlink, 2)
    expect((folder / "g").stat().st_ino, path.stat().st_ino)


@OPERATIONS.add("a link to an open file by its descriptor", "linkat(2)")
def _link_descriptor(folder: Path) -> None:
    with make_file(folder).open("rb") as file:
        name = os.fsencode(folder / "g")
        checked(libc.linkat(file.fileno(), b"", AT_FDCWD, name, AT_EMPTY_PATH))
    expect((folder / "g").read_bytes(), b"content")


@OPERATIONS.add("rename over a file", "rename(2)")
def _rename(folder: Path) -> None:
    os.rename(make_file(folder, b"new", "a"), make_file(folder, b"old", "b"))
    expect((folder / "b").read_bytes(), b"new")
    expect(os.listdir(folder), ["b"])


@OPERATIONS.add("rename of a directory, but not into itself", "rename(2)")
def _rename_directory(folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    refused(errno.EINVAL, lambda: os.rename(folder / "a", folder / "a" / "b" / "c"))
    os.rename(folder / "a", folder / "z")
    expect(os.listdir(folder / "z"), ["b"])


def _renameat2(folder: Path, old: str, new: str, flags: int) -> None:
    one, other = os.fsencode(folder / old), os.fsencode(folder / new)
    checked(libc.renameat2(AT_FDCWD, one, AT_FDCWD, other, flags))


@OPERATIONS.add("rename without replacing a file", "renameat2(2), RENAME_NOREPLACE")
def _rename_noreplace(folder: Path) -> None:
    make_file(folder, name="a")
    make_file(folder, name="b")
    refused(errno.EEXIST, lambda: _renameat2(folder, "a", "b", RENAME_NOREPLACE))
    _renameat2(folder, "a", "c", RENAME_NOREPLACE)


@OPERATIONS.add("exchange of two names", "renameat2(2), RENAME_EXCHANGE")
def _rename_exchange(folder: Path) -> None:
    make_file(folder, b"1", "a")
    (folder / "b").mkdir()
    _renameat2(folder, "a", "b", RENAME_EXCHANGE)
    expect((folder / "b").read_bytes(), b"1")


@OPERATIONS.add("rename that leaves a whiteout", "renameat2(2), RENAME_WHITEOUT")
def _rename_whiteout(folder: Path) -> None:
    make_file(folder, name="a")
    _renameat2(folder, "a", "b", RENAME_WHITEOUT)
    expect(stat.S_ISCHR((folder / "a").lstat().st_mode), True)


@OPERATIONS.add("a file without a name", "open(2), O_TMPFILE")
def _tmpfile(folder: Path) -> None:
    os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR))


@OPERATIONS.add("a FIFO", "mkfifo(3)")
def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "p")
    reader = os.open(folder / "p", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(folder / "p", os.O_WRONLY)
    os.write(writer, b"x")
    expect(os.read(reader, 9), b"x")
    os.close(reader)
    os.close(writer)


@OPERATIONS.add("a socket", "unix(7)")
def _socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        here = os.open(folder, os.O_RDONLY)
        place = f"/proc/self/fd/{here}/s"  # A short path; sockets allow 107 bytes.
        server.bind(place)
        server.listen()
        client.connect(place)
        os.close(here)


@OPERATIONS.add("a device", "mknod(2)")
def _device(folder: Path) -> None:
    os.mknod(folder / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    expect((folder / "null").lstat().st_rdev, os.makedev(1, 3))


@OPERATIONS.add("file types in a listing", "readdir(3), d_type")
def _types(folder: Path) -> None:
    (folder / "d").mkdir()
    (folder / "l").symlink_to("x")
    with os.scandir(folder) as found:
        kinds = {
            each.name: (each.is_dir(follow_symlinks=False), each.is_symlink()) for each in found
        }
    expect(kinds, {"d": (True, False), "l": (False, True)})


@OPERATIONS.add("a large directory whose files are removed while it is read", "readdir(3)")
def _listing(folder: Path) -> None:
    for number in range(2000):
        (folder / f"{number}").touch()
    with os.scandir(folder) as found:
        for each in found:
            os.unlink(each.path)
    expect(os.listdir(folder), [])
