"""Single operations of POSIX and Linux, each with its manual page.

The argument of each function is an empty directory. A function returns normally if the operation
had the effect that its manual page describes. The function raises ``Different`` if the effect was
different, and OSError if the operation was refused.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import select
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

MIB: Final = 1 << 20
PAGE: Final = 4096
USER_ID: Final = 65534

# Constants from the Linux headers fs.h, falloc.h, fcntl.h, stat.h and inotify.h.
FICLONE: Final = 0x40049409
FS_IOC_GETFLAGS: Final = 0x80086601
FS_IOC_SETFLAGS: Final = 0x40086602
FS_IMMUTABLE_FL: Final = 0x10
FS_APPEND_FL: Final = 0x20
KEEP_SIZE, PUNCH_HOLE, COLLAPSE_RANGE, ZERO_RANGE, INSERT_RANGE = 1, 2, 8, 16, 32
RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
STATX_BTIME: Final = 0x800
STATX_BTIME_AT: Final = 80  # Offset of the birth time in struct statx.
STATX_BYTES: Final = 256
HANDLE_BYTES: Final = 128
IN_CREATE: Final = 0x100
F_OFD_SETLK: Final = 37
XATTR_CREATE, XATTR_REPLACE = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


class Different(Exception):  # noqa: N818 - the name describes the result
    """Error: the effect of the operation differs from its manual page."""


class Operation(NamedTuple):
    """One operation, its manual page, and the function that tries it."""

    name: str
    page: str  # Name of the manual page for the operation.
    check: Callable[[Path], None]


OPERATIONS: list[Operation] = []


def _operation(name: str, page: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    def note(check: Callable[[Path], None]) -> Callable[[Path], None]:
        OPERATIONS.append(Operation(name, page, check))
        return check

    return note


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise Different(f"{found!r} instead of {wanted!r}")


def _refused(code: int, call: Callable[[], object]) -> None:
    """Require that a call fails with the errno *code*; otherwise raise Different or OSError."""
    try:
        call()
    except OSError as exc:
        if exc.errno != code:
            raise
        return
    raise Different(f"not refused with {errno.errorcode[code]}")


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _file(folder: Path, content: bytes = b"content", name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


# --- operations on names -----------------------------------------------------------------------


@_operation("create, exclusively", "open(2)")
def _create(folder: Path) -> None:
    os.close(os.open(folder / "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
    _expect((folder / "f").stat().st_mode & 0o777, 0o640 & ~_umask())
    _refused(errno.EEXIST, lambda: os.open(folder / "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def _umask() -> int:
    before = os.umask(0o022)
    os.umask(before)
    return before


@_operation("a name of 255 bytes, but not of 256", "open(2)")
def _long_name(folder: Path) -> None:
    (folder / ("n" * 255)).touch()
    _refused(errno.ENAMETOOLONG, (folder / ("n" * 256)).touch)


@_operation("a name that is not UTF-8", "path_resolution(7)")
def _any_bytes(folder: Path) -> None:
    name = b"\xff\n\x01"
    os.close(os.open(os.fsencode(folder) + b"/" + name, os.O_CREAT | os.O_WRONLY))
    _expect(os.listdir(os.fsencode(folder)), [name])


@_operation("mkdir, and rmdir of an empty directory only", "rmdir(2)")
def _directories(folder: Path) -> None:
    (folder / "d").mkdir()
    (folder / "d" / "f").touch()
    _refused(errno.ENOTEMPTY, (folder / "d").rmdir)
    (folder / "d" / "f").unlink()
    (folder / "d").rmdir()


@_operation("links of a directory count its directories", "inode(7)")
def _directory_links(folder: Path) -> None:
    before = folder.stat().st_nlink
    (folder / "d").mkdir()
    _expect((folder / "d").stat().st_nlink, 2)
    _expect(folder.stat().st_nlink, before + 1)


@_operation("symlink, readlink", "symlink(2)")
def _symlink(folder: Path) -> None:
    (folder / "l").symlink_to("t" * 1000)
    _expect(os.readlink(folder / "l"), "t" * 1000)
    _expect((folder / "l").lstat().st_size, 1000)


@_operation("a hard link", "link(2)")
def _link(folder: Path) -> None:
    path = _file(folder)
    os.link(path, folder / "g")
    _expect(path.stat().st_nlink, 2)
    _expect((folder / "g").stat().st_ino, path.stat().st_ino)


@_operation("a link to an open file by its descriptor", "linkat(2)")
def _link_descriptor(folder: Path) -> None:
    with _file(folder).open("rb") as file:
        name = os.fsencode(folder / "g")
        _checked(_libc.linkat(file.fileno(), b"", AT_FDCWD, name, AT_EMPTY_PATH))
    _expect((folder / "g").read_bytes(), b"content")


@_operation("rename over a file", "rename(2)")
def _rename(folder: Path) -> None:
    os.rename(_file(folder, b"new", "a"), _file(folder, b"old", "b"))
    _expect((folder / "b").read_bytes(), b"new")
    _expect(os.listdir(folder), ["b"])


@_operation("rename of a directory, but not into itself", "rename(2)")
def _rename_directory(folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    _refused(errno.EINVAL, lambda: os.rename(folder / "a", folder / "a" / "b" / "c"))
    os.rename(folder / "a", folder / "z")
    _expect(os.listdir(folder / "z"), ["b"])


def _renameat2(folder: Path, old: str, new: str, flags: int) -> None:
    one, other = os.fsencode(folder / old), os.fsencode(folder / new)
    _checked(_libc.renameat2(AT_FDCWD, one, AT_FDCWD, other, flags))


@_operation("rename without replacing a file", "renameat2(2), RENAME_NOREPLACE")
def _rename_noreplace(folder: Path) -> None:
    _file(folder, name="a")
    _file(folder, name="b")
    _refused(errno.EEXIST, lambda: _renameat2(folder, "a", "b", RENAME_NOREPLACE))
    _renameat2(folder, "a", "c", RENAME_NOREPLACE)


@_operation("exchange of two names", "renameat2(2), RENAME_EXCHANGE")
def _rename_exchange(folder: Path) -> None:
    _file(folder, b"1", "a")
    (folder / "b").mkdir()
    _renameat2(folder, "a", "b", RENAME_EXCHANGE)
    _expect((folder / "b").read_bytes(), b"1")


@_operation("rename that leaves a whiteout", "renameat2(2), RENAME_WHITEOUT")
def _rename_whiteout(folder: Path) -> None:
    _file(folder, name="a")
    _renameat2(folder, "a", "b", RENAME_WHITEOUT)
    _expect(stat.S_ISCHR((folder / "a").lstat().st_mode), True)


@_operation("a file without a name", "open(2), O_TMPFILE")
def _tmpfile(folder: Path) -> None:
    os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR))


@_operation("a FIFO", "mkfifo(3)")
def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "p")
    reader = os.open(folder / "p", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(folder / "p", os.O_WRONLY)
    os.write(writer, b"x")
    _expect(os.read(reader, 9), b"x")
    os.close(reader)
    os.close(writer)


@_operation("a socket", "unix(7)")
def _socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        here = os.open(folder, os.O_RDONLY)
        place = f"/proc/self/fd/{here}/s"  # The path of a socket has at most 108 bytes.
        server.bind(place)
        server.listen()
        client.connect(place)
        os.close(here)


@_operation("a device", "mknod(2)")
def _device(folder: Path) -> None:
    os.mknod(folder / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    _expect((folder / "null").lstat().st_rdev, os.makedev(1, 3))


@_operation("file types in a listing", "readdir(3), d_type")
def _types(folder: Path) -> None:
    (folder / "d").mkdir()
    (folder / "l").symlink_to("x")
    with os.scandir(folder) as found:
        kinds = {
            each.name: (each.is_dir(follow_symlinks=False), each.is_symlink()) for each in found
        }
    _expect(kinds, {"d": (True, False), "l": (False, True)})


@_operation("a large directory whose files are removed while it is read", "readdir(3)")
def _listing(folder: Path) -> None:
    for number in range(2000):
        (folder / f"{number}").touch()
    with os.scandir(folder) as found:
        for each in found:
            os.unlink(each.path)
    _expect(os.listdir(folder), [])


# --- operations on content ---------------------------------------------------------------------


@_operation("O_TRUNC and O_APPEND", "open(2)")
def _append(folder: Path) -> None:
    path = _file(folder)
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
    one, other = (os.open(path, os.O_WRONLY | os.O_APPEND) for _ in range(2))
    os.write(one, b"a")
    os.write(other, b"b")
    os.write(one, b"c")
    os.close(one)
    os.close(other)
    _expect(path.read_bytes(), b"abc")


@_operation("a file made shorter and longer", "truncate(2)")
def _truncate(folder: Path) -> None:
    path = _file(folder)
    os.truncate(path, 3)
    os.truncate(path, 6)
    _expect(path.read_bytes(), b"con\0\0\0")


@_operation("an offset of 2^43", "pwrite(2)")
def _far(folder: Path) -> None:
    with (folder / "f").open("wb") as file:
        os.pwrite(file.fileno(), b"x", 1 << 43)
        _expect(os.fstat(file.fileno()).st_size, (1 << 43) + 1)


@_operation("an append by one write", "pwritev2(2), RWF_APPEND")
def _append_once(folder: Path) -> None:
    path = _file(folder)
    with path.open("r+b") as file:
        os.pwritev(file.fileno(), [b"!"], 0, os.RWF_APPEND if hasattr(os, "RWF_APPEND") else 0x10)
    _expect(path.read_bytes(), b"content!")


@_operation("direct reads and writes", "open(2), O_DIRECT")
def _direct(folder: Path) -> None:
    page = mmap.mmap(-1, PAGE)
    page[:] = b"d" * PAGE
    fd = os.open(folder / "f", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    try:
        _expect(os.pwritev(fd, [page], 0), PAGE)
        page[:] = bytes(PAGE)
        _expect(os.preadv(fd, [page], 0), PAGE)
        _expect(page[:], b"d" * PAGE)
    finally:
        os.close(fd)


@_operation("a shared map", "mmap(2), MAP_SHARED")
def _mapped(folder: Path) -> None:
    path = _file(folder, bytes(2 * PAGE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[PAGE : PAGE + 3] = b"map"
        _expect(os.pread(file.fileno(), 3, PAGE), b"map")
    _expect(path.read_bytes()[PAGE : PAGE + 3], b"map")


@_operation("a private map", "mmap(2), MAP_PRIVATE")
def _mapped_privately(folder: Path) -> None:
    path = _file(folder)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as mapped:
        mapped[:3] = b"XXX"
        _expect(path.read_bytes(), b"content")


@_operation("reads and writes of an open file without a name", "unlink(2)")
def _unnamed(folder: Path) -> None:
    path = _file(folder)
    with path.open("r+b") as file:
        path.unlink()
        os.pwrite(file.fileno(), b"C", 0)
        _expect(os.pread(file.fileno(), 9, 0), b"Content")


@_operation("link count of an open file without a name", "inode(7), st_nlink")
def _unnamed_links(folder: Path) -> None:
    path = _file(folder)
    with path.open("rb") as file:
        path.unlink()
        _expect(os.fstat(file.fileno()).st_nlink, 0)


@_operation("a program that is run", "execve(2)")
def _executed(folder: Path) -> None:
    path = _file(folder, b"#!/bin/sh\necho ran\n")
    path.chmod(0o755)
    done = subprocess.run([path], capture_output=True, check=True)
    _expect(done.stdout, b"ran\n")


@_operation("copy from a file to a socket", "sendfile(2)")
def _sendfile(folder: Path) -> None:
    one, other = socket.socketpair()
    with one, other, _file(folder).open("rb") as file:
        _expect(os.sendfile(one.fileno(), file.fileno(), 0, 7), 7)
        _expect(other.recv(9), b"content")


@_operation("move from a pipe to a file", "splice(2)")
def _splice(folder: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"pipe")
    with (folder / "f").open("wb") as file:
        _expect(_checked(_libc.splice(reader, None, file.fileno(), None, 4, 0)), 4)
    os.close(reader)
    os.close(writer)
    _expect((folder / "f").read_bytes(), b"pipe")


# --- operations on space and holes -------------------------------------------------------------


def _fallocate(path: Path, mode: int, offset: int, length: int) -> None:
    with path.open("r+b") as file:
        at, count = ctypes.c_longlong(offset), ctypes.c_longlong(length)
        _checked(_libc.fallocate(file.fileno(), mode, at, count))


@_operation("blocks of a sparse file", "inode(7), st_blocks")
def _sparse(folder: Path) -> None:
    with (folder / "f").open("wb") as file:
        os.truncate(file.fileno(), 64 * MIB)
        os.pwrite(file.fileno(), b"x", 32 * MIB)
        os.fsync(file.fileno())
    found = (folder / "f").stat().st_blocks * 512
    if not 0 < found <= 4 * MIB:
        raise Different(f"{found} bytes for one byte of content")


@_operation("blocks of a file after fsync", "inode(7), st_blocks")
def _blocks(folder: Path) -> None:
    with (folder / "f").open("wb") as file:
        file.write(os.urandom(4 * MIB))
        os.fsync(file.fileno())
        found = os.fstat(file.fileno()).st_blocks * 512
    if not 4 * MIB <= found <= 5 * MIB:
        raise Different(f"{found} of {4 * MIB} bytes")


@_operation("allocate", "fallocate(2)")
def _allocate(folder: Path) -> None:
    path = _file(folder)
    _fallocate(path, 0, 0, MIB)
    _expect(path.stat().st_size, MIB)


@_operation("allocate beyond the end of a file", "fallocate(2), KEEP_SIZE")
def _allocate_behind(folder: Path) -> None:
    path = _file(folder)
    _fallocate(path, KEEP_SIZE, 0, MIB)
    _expect(path.stat().st_size, 7)


@_operation("punch a hole", "fallocate(2), PUNCH_HOLE")
def _punch(folder: Path) -> None:
    path = _file(folder, b"x" * 3 * MIB)
    _fallocate(path, PUNCH_HOLE | KEEP_SIZE, MIB, MIB)
    _expect(path.read_bytes() == b"x" * MIB + bytes(MIB) + b"x" * MIB, True)


@_operation("zero a range", "fallocate(2), ZERO_RANGE")
def _zero(folder: Path) -> None:
    path = _file(folder, b"x" * 3000)
    _fallocate(path, ZERO_RANGE, 1000, 3000)
    _expect(path.read_bytes(), b"x" * 1000 + bytes(3000))


@_operation("collapse a range", "fallocate(2), COLLAPSE_RANGE")
def _collapse(folder: Path) -> None:
    path = _file(folder, b"a" * MIB + b"b" * MIB)
    _fallocate(path, COLLAPSE_RANGE, 0, MIB)
    _expect(path.stat().st_size, MIB)


@_operation("insert a range", "fallocate(2), INSERT_RANGE")
def _insert(folder: Path) -> None:
    path = _file(folder, b"a" * MIB + b"b" * MIB)
    _fallocate(path, INSERT_RANGE, MIB, MIB)
    _expect(path.stat().st_size, 3 * MIB)


def _with_a_hole(folder: Path) -> Path:
    path = folder / "f"
    with path.open("wb") as file:
        os.pwrite(file.fileno(), b"x" * MIB, 8 * MIB)
        os.truncate(file.fileno(), 16 * MIB)
    return path


@_operation("find data", "lseek(2), SEEK_DATA")
def _data(folder: Path) -> None:
    with _with_a_hole(folder).open("rb") as file:
        _expect(os.lseek(file.fileno(), 0, os.SEEK_DATA), 8 * MIB)


@_operation("find a hole", "lseek(2), SEEK_HOLE")
def _hole(folder: Path) -> None:
    with _with_a_hole(folder).open("rb") as file:
        _expect(os.lseek(file.fileno(), 8 * MIB, os.SEEK_HOLE), 9 * MIB)


@_operation("copy a range", "copy_file_range(2)")
def _copy(folder: Path) -> None:
    with _file(folder).open("rb") as source, (folder / "g").open("wb") as target:
        _expect(os.copy_file_range(source.fileno(), target.fileno(), 100), 7)
    _expect((folder / "g").read_bytes(), b"content")


@_operation("share all content", "ioctl_ficlone(2)")
def _reflink(folder: Path) -> None:
    with _file(folder).open("rb") as source, (folder / "g").open("wb") as target:
        fcntl.ioctl(target.fileno(), FICLONE, source.fileno())


# --- operations on attributes ------------------------------------------------------------------


@_operation("owner and mode", "chown(2)")
def _owner(folder: Path) -> None:
    path = _file(folder)
    os.chown(path, 12, 34)
    path.chmod(0o4711)
    found = path.stat()
    _expect((found.st_uid, found.st_gid, found.st_mode & 0o7777), (12, 34, 0o4711))


@_operation("a write clears set-user-ID", "write(2)")
def _privilege(folder: Path) -> None:
    path = _file(folder)
    path.chmod(0o4755)
    fd = os.open(path, os.O_WRONLY)
    child = os.fork()
    if child == 0:  # The child process drops its privileges and uses a file that root opened.
        status = 1
        try:
            os.setuid(USER_ID)
            status = os.write(fd, b"x") - 1
        finally:
            os._exit(status)
    os.close(fd)
    _expect(os.waitpid(child, 0)[1], 0)
    _expect(path.stat().st_mode & 0o7777, 0o755)


@_operation("times to the nanosecond", "utimensat(2)")
def _times(folder: Path) -> None:
    path = _file(folder)
    os.utime(path, ns=(1_000_000_001, -5))
    _expect((path.stat().st_atime_ns, path.stat().st_mtime_ns), (1_000_000_001, -5))


@_operation("time of birth", "statx(2), STATX_BTIME")
def _birth(folder: Path) -> None:
    path, buffer = _file(folder), ctypes.create_string_buffer(STATX_BYTES)
    _checked(_libc.statx(AT_FDCWD, os.fsencode(path), 0, STATX_BTIME, buffer))
    [mask] = struct.unpack_from("I", buffer.raw, 0)
    [seconds] = struct.unpack_from("q", buffer.raw, STATX_BTIME_AT)
    _expect(bool(mask & STATX_BTIME), True)
    _expect(abs(seconds - time.time()) < 60, True)


@_operation("a new directory inherits group and set-group-ID", "inode(7), S_ISGID")
def _set_group(folder: Path) -> None:
    os.chown(folder, 0, 77)
    folder.chmod(0o2755)
    (folder / "d").mkdir()
    found = (folder / "d").stat()
    _expect((found.st_gid, bool(found.st_mode & stat.S_ISGID)), (77, True))


@_operation("extended attributes of users", "xattr(7), user")
def _attributes(folder: Path) -> None:
    path = _file(folder)
    os.setxattr(path, "user.a", b"1" * 2000)
    _refused(errno.EEXIST, lambda: os.setxattr(path, "user.a", b"2", XATTR_CREATE))
    _refused(errno.ENODATA, lambda: os.setxattr(path, "user.b", b"2", XATTR_REPLACE))
    _expect(os.listxattr(path), ["user.a"])
    os.removexattr(path, "user.a")


@_operation("extended attributes of root and of programs", "xattr(7), trusted, security")
def _attributes_of_root(folder: Path) -> None:
    path = _file(folder)
    for name in ("trusted.a", "security.a"):
        os.setxattr(path, name, b"1")
        _expect(os.getxattr(path, name), b"1")


def _acl(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@_operation("an access control list shows in the mode", "acl(5)")
def _access_list(folder: Path) -> None:
    path, no_id = _file(folder), 0xFFFFFFFF
    path.chmod(0o600)
    entries = ((1, 6, no_id), (2, 4, 1234), (4, 0, no_id), (16, 4, no_id), (32, 0, no_id))
    os.setxattr(path, "system.posix_acl_access", _acl(*entries))
    _expect(path.stat().st_mode & 0o777, 0o640)


@_operation("a default access control list replaces the umask", "acl(5)")
def _default_list(folder: Path) -> None:
    no_id, before = 0xFFFFFFFF, os.umask(0o077)
    try:
        entries = ((1, 7, no_id), (4, 7, no_id), (32, 7, no_id))
        os.setxattr(folder, "system.posix_acl_default", _acl(*entries))
        (folder / "f").touch(mode=0o666)
    finally:
        os.umask(before)
    _expect((folder / "f").stat().st_mode & 0o777, 0o666)


def _flags(path: Path, wanted: int | None = None) -> int:
    with path.open("rb") as file:
        if wanted is not None:
            fcntl.ioctl(file.fileno(), FS_IOC_SETFLAGS, struct.pack("l", wanted))
        found: int = struct.unpack("l", fcntl.ioctl(file.fileno(), FS_IOC_GETFLAGS, bytes(8)))[0]
    return found


@_operation("flags of an inode", "ioctl_iflags(2)")
def _inode_flags(folder: Path) -> None:
    _flags(_file(folder))


@_operation("an immutable file", "ioctl_iflags(2), FS_IMMUTABLE_FL")
def _immutable(folder: Path) -> None:
    path = _file(folder)
    before = _flags(path)
    _flags(path, before | FS_IMMUTABLE_FL)
    try:
        _refused(errno.EPERM, path.unlink)
    finally:
        _flags(path, before)


@_operation("a file that can only grow", "ioctl_iflags(2), FS_APPEND_FL")
def _append_only(folder: Path) -> None:
    path = _file(folder)
    before = _flags(path)
    _flags(path, before | FS_APPEND_FL)
    try:
        _refused(errno.EPERM, lambda: os.open(path, os.O_WRONLY))
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
    finally:
        _flags(path, before)


@_operation("a file by its handle", "open_by_handle_at(2)")
def _handle(folder: Path) -> None:
    path = _file(folder)
    handle = ctypes.create_string_buffer(struct.pack("Ii", HANDLE_BYTES, 0) + bytes(HANDLE_BYTES))
    mount = ctypes.c_int()
    _checked(_libc.name_to_handle_at(AT_FDCWD, os.fsencode(path), handle, ctypes.byref(mount), 0))
    here = os.open(folder, os.O_RDONLY)
    try:
        os.close(_checked(_libc.open_by_handle_at(here, handle, os.O_RDONLY)))
    finally:
        os.close(here)


# --- locks, notification and syncs -------------------------------------------------------------


@_operation("locks of whole files", "flock(2)")
def _flock(folder: Path) -> None:
    with _file(folder).open("rb") as one, (folder / "file").open("rb") as other:
        fcntl.flock(one, fcntl.LOCK_EX)
        _refused(errno.EAGAIN, lambda: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB))


@_operation("locks of open file descriptions", "fcntl(2), F_OFD_SETLK")
def _range_lock(folder: Path) -> None:
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 10, 0)
    with _file(folder).open("r+b") as one, (folder / "file").open("r+b") as other:
        fcntl.fcntl(one, F_OFD_SETLK, lock)
        _refused(errno.EAGAIN, lambda: fcntl.fcntl(other, F_OFD_SETLK, lock))


@_operation("a lease", "fcntl(2), F_SETLEASE")
def _lease(folder: Path) -> None:
    with _file(folder).open("rb") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)


@_operation("notification of changes in a directory", "inotify(7)")
def _notified(folder: Path) -> None:
    fd = _checked(_libc.inotify_init())
    try:
        _checked(_libc.inotify_add_watch(fd, os.fsencode(folder), IN_CREATE))
        (folder / "f").touch()
        _expect(bool(select.select([fd], [], [], 5)[0]), True)
    finally:
        os.close(fd)


@_operation("sync of a file and of its directory", "fsync(2)")
def _synced(folder: Path) -> None:
    for path in (_file(folder), folder):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.fdatasync(fd)
        os.close(fd)


@_operation("sync of a filesystem", "syncfs(2)")
def _synced_all(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    _checked(_libc.syncfs(fd))
    os.close(fd)


@_operation("sizes of a filesystem", "statvfs(3)")
def _sizes(folder: Path) -> None:
    found = os.statvfs(folder)
    if not 0 < found.f_bavail <= found.f_blocks or found.f_namemax != 255:
        raise Different(str(found))


@_operation("advice to read ahead, and to forget", "posix_fadvise(2)")
def _advice(folder: Path) -> None:
    with _file(folder, bytes(MIB)).open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
